"""S3 through s3fs: the default for ``s3://`` where s3fs is installed. Works on AWS, MinIO, moto and Ceph RGW."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from typing import Any

from zarr_core.errors import TruncatedError
from zarr_core.storage.backends import ConditionFailed, ObjectInfo, Page, RemoteBackend, UnfinishedUpload
from zarr_core.storage.filesystems import open_filesystem, s3_endpoint
from zarr_core.storage.retries import status_of

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class ConditionalPut(RemoteBackend):
    """Conditional writes on S3 services.

    AWS expects the etag in ``If-Match`` in the quotes that it is reported in. Ceph RGW finds no match for a quoted
    etag and expects the bare digits.
    """

    impossible_version = f'"{"0" * 32}"'
    gets_listed_versions = True
    # Whether the service expects etags without their quotes; None as long as that is not known.
    _bare_etags: bool | None = None
    # Larger objects are uploaded in parts, because S3 and Azure take 5 GiB per request. S3 takes 10,000 parts. Parts in
    # flight are copies.
    single_put_bytes = 256 << 20
    part_bytes = 32 << 20
    parts_in_flight = 4

    async def put_if(self, path: str, data: bytes, version: str | None) -> None:
        bare = version and version.strip('"')
        try:
            await self._put_on_condition(path, data, bare if self._bare_etags else version)
        except ConditionFailed:
            if not version or self._bare_etags is not None or (await self.get(path, 0, 1))[1] != version:
                raise
            # The object is unchanged, so the service expects the etag without quotes.
            await self._put_on_condition(path, data, bare)
            self._bare_etags = True

    @abstractmethod
    async def _put_on_condition(self, path: str, data: bytes, etag: str | None) -> None:
        """Write if the object has this etag (None: if there is no object); raises ConditionFailed."""


class S3Backend(ConditionalPut):
    """Requests through s3fs."""

    def __init__(self, url: str, given: Any = None) -> None:
        self.fs, self.location = open_filesystem(url, given)

    @property
    def identity(self) -> str:
        """URL and endpoint."""
        return with_endpoint(f"s3://{self.location}", s3_endpoint(self.fs))

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> tuple[bytes, str]:
        options = {} if byte_range(start, stop) is None else {"Range": byte_range(start, stop)}
        response = await self._call("get_object", path, **options)
        try:
            data = await response["Body"].read()
        finally:
            response["Body"].close()
        check_response(start, stop, len(data), response.get("ContentLength"), response.get("ContentRange"))
        return data, str(response.get("ETag", ""))

    async def head(self, path: str) -> ObjectInfo:
        response = await self._call("head_object", path)
        return _info(response["ContentLength"], response)

    async def put(self, path: str, data: bytes | bytearray | mmap) -> None:
        if not isinstance(data, mmap) and len(data) <= self.single_put_bytes:
            await self._call("put_object", path, Body=data)
        else:
            with upload_in_parts():
                await self.fs._pipe_file(path, data, chunksize=self.part_bytes, max_concurrency=self.parts_in_flight)

    async def _put_on_condition(self, path: str, data: bytes, etag: str | None) -> None:
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        try:
            await self._call("put_object", path, Body=data, **condition)
        except (OSError, FileExistsError) as error:
            # s3fs raises FileExistsError, EINVAL or FileNotFoundError, by service; the status is the same.
            if status_of(error) == 412 or isinstance(error, FileExistsError):
                raise ConditionFailed from error
            if isinstance(error, FileNotFoundError) and etag is not None:  # no object, hence no match
                raise ConditionFailed from error
            raise

    async def delete(self, path: str) -> None:
        await self._call("delete_object", path)

    async def list_page(self, prefix: str, token: str | None, recursive: bool = True) -> Page:
        bucket, _, key = prefix.partition("/")
        options = {} if recursive else {"Delimiter": "/"}
        if token is not None:
            options["ContinuationToken"] = token
        response = await self.fs._call_s3("list_objects_v2", Bucket=bucket, Prefix=key, **options)
        found = {
            f"{bucket}/{each['Key']}": _info(each["Size"], each)
            for each in response.get("Contents", ())
            if not is_folder(each["Key"], each["Size"])
        }
        return found, response.get("NextContinuationToken")

    async def unfinished_uploads(self, prefix: str) -> list[UnfinishedUpload]:
        bucket, _, key = prefix.partition("/")
        found = []
        markers: dict[str, str] = {}
        while True:
            page = await self.fs._call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key, **markers)
            for each in page.get("Uploads", ()):
                started = each["Initiated"].timestamp()
                found.append(UnfinishedUpload(f"{bucket}/{each['Key']}", each["UploadId"], started))
            if not page.get("IsTruncated"):
                return found
            markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        await self._call("abort_multipart_upload", upload.path, UploadId=upload.upload_id)

    async def _call(self, method: str, path: str, **options: Any) -> Any:
        bucket, _, key = path.partition("/")
        return await self.fs._call_s3(method, Bucket=bucket, Key=key, **options)


@contextmanager
def upload_in_parts() -> Iterator[None]:
    """Make an upload worth another attempt if the answer to its end was lost, or was an error.

    It may have ended: the client then aborts an upload that is no more, and raises as if there were no bucket.
    """
    try:
        yield
    except FileNotFoundError as error:
        if "NoSuchUpload" not in f"{error} {error.__cause__}":
            raise
        raise ConnectionError("the service did not confirm that the upload ended") from None


def with_endpoint(url: str, endpoint: str) -> str:
    """The URL with the service's endpoint, so that equal names at two services differ."""
    return f"{url} at {endpoint}" if endpoint else url


def is_folder(key: str, size: int) -> bool:
    """Whether an object stands for a folder, as web consoles and programs that copy folders make them."""
    return key.endswith("/") and size == 0


def byte_range(start: int | None, stop: int | None) -> str | None:
    """The ``Range`` header for bytes ``[start, stop)``; None for the whole object."""
    if start is not None and start < 0:
        return f"bytes={start}"
    if not start and stop is None:
        return None
    return f"bytes={start or 0}-{'' if stop is None else stop - 1}"


def check_response(
    start: int | None, stop: int | None, came: int, announced: int | None, content_range: str | None = None
) -> None:
    """Check that a response has the bytes that :func:`byte_range` asks for; the request is repeated otherwise.

    Gateways and proxies may ignore ``Range``, and HTTP allows a response that has only a part of it. ``announced`` and
    ``content_range`` are its headers ``Content-Length`` and ``Content-Range``.

    Raises:
        TruncatedError: fewer bytes came than the service announced.
        OSError: other bytes came.
    """
    if announced is not None and came < announced:
        raise TruncatedError(f"the service announced {announced} bytes, but {came} came")
    asked = byte_range(start, stop)
    if asked is None:
        return
    first, end, size = 0, came, came
    if found := _CONTENT_RANGE.fullmatch(content_range or ""):
        first, end = int(found[1]), int(found[2]) + 1
        size = end if found[3] == "*" else int(found[3])
    begin = max(size + start, 0) if start is not None and start < 0 else start or 0
    if (first, end) != (begin, size if stop is None else min(stop, size)) or end - first != came:
        what = content_range or "no Content-Range"
        raise OSError(f"the service was asked for {asked} and sent {came} bytes, {what}")


def _info(size: int, described: dict[str, Any]) -> ObjectInfo:
    modified = described.get("LastModified")
    return ObjectInfo(int(size), described.get("ETag", "").strip('"'), modified.timestamp() if modified else 0.0)
