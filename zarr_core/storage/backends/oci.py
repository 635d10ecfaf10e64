"""OCI object storage through the SDK's client, as configured and signed by ocifs."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from mmap import mmap
from typing import Any

from zarr_core.storage.backends import ConditionFailed, ObjectInfo, Page
from zarr_core.storage.backends.generic import FsspecBackend, in_thread
from zarr_core.storage.backends.s3 import byte_range, check_response, is_folder


class OciBackend(FsspecBackend):
    """Requests through the client of ocifs.

    Each method is one request. ocifs itself would request the size before a read, read 5 MiB ahead, write parts of
    5 MiB in sequence, and list folder by folder.
    """

    impossible_version = "00000000-0000-0000-0000-000000000000"
    gets_listed_versions = True

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> tuple[Any, str]:
        span = byte_range(start, stop)

        def work() -> tuple[bytes, str]:
            response = self._call("get_object", path, **({} if span is None else {"range": span}))
            data = bytes(response.data.content)
            headers = response.headers
            check_response(start, stop, len(data), int(headers["content-length"]), headers.get("content-range"))
            return data, str(headers["etag"])

        return await in_thread(work)

    async def head(self, path: str) -> ObjectInfo:
        headers = (await in_thread(lambda: self._call("head_object", path))).headers
        modified = parsedate_to_datetime(headers["last-modified"]).timestamp()
        return ObjectInfo(int(headers["content-length"]), headers["etag"], modified)

    async def put(self, path: str, data: bytes | bytearray | mmap) -> None:
        await in_thread(lambda: self._call("put_object", path, put_object_body=bytes(data)))

    async def put_if(self, path: str, data: bytes, version: str | None) -> None:
        condition = {"if_none_match": "*"} if version is None else {"if_match": version}
        try:
            await in_thread(lambda: self._call("put_object", path, put_object_body=data, **condition))
        except Exception as error:
            status = getattr(error.__cause__, "status", None)
            if status == 412 or (status == 404 and version is not None):
                raise ConditionFailed from error
            raise

    async def delete(self, path: str) -> None:
        await in_thread(lambda: self._call("delete_object", path))

    async def list_page(self, prefix: str, token: str | None, recursive: bool = True) -> Page:
        bucket, namespace, _ = self.fs.split_path(prefix)
        place, _, key = prefix.partition("/")
        options = {"namespace_name": namespace, "bucket_name": bucket, "prefix": key}
        options["fields"] = "name,size,etag,timeModified"
        if not recursive:
            options["delimiter"] = "/"
        if token is not None:
            options["start"] = token
        page = (await in_thread(lambda: self._translated("list_objects", **options))).data
        found = {
            # Whole seconds, as in the response to a head request, so that times can be compared.
            f"{place}/{each.name}": ObjectInfo(
                each.size, each.etag or "", each.time_modified.timestamp() // 1 if each.time_modified else 0.0
            )
            for each in page.objects
            if not is_folder(each.name, each.size)
        }
        return found, page.next_start_with

    def _call(self, method: str, path: str, **options: Any) -> Any:
        bucket, namespace, key = self.fs.split_path(path)[:3]
        return self._translated(method, namespace_name=namespace, bucket_name=bucket, object_name=key, **options)

    def _translated(self, method: str, **options: Any) -> Any:
        from ocifs.errors import translate_oci_error

        try:
            return self.fs._call_oci(getattr(self.fs.oci_client, method), **options)
        except Exception as error:
            if hasattr(error, "code") and hasattr(error, "status"):
                raise translate_oci_error(error) from error
            raise
