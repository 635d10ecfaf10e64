"""Google Cloud Storage and Azure Blob Storage on loopback: the parts of their APIs that obstore uses.

with GoogleServer() as server:
    os.environ.update(server.environment())
    server.buckets["bucket"] = {}
    Storage("gs://bucket/store")
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from base64 import b64encode
from datetime import UTC, datetime
from email.utils import format_datetime
from itertools import count
from urllib.parse import unquote
from xml.sax.saxutils import escape

from tests.helpers.servers.oci import Handler, OciServer, Refused, Stored, listing

ACCOUNT = "devstoreaccount1"
# Versions of all objects, in microseconds as Google's are.
_generations = count(1_700_000_000_000_000)


class _CloudHandler(Handler, ABC):
    """Objects below the name of a bucket, and its listing in XML."""

    prefix = "/"

    def _answer(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        bucket, _, key = unquote(path.removeprefix(self.prefix)).partition("/")
        objects = self._bucket(bucket)
        if not key and self.command == "POST":
            return self._batch(objects, body)
        if not key:
            return 200, self._listing(objects, query).encode(), {"Content-Type": "application/xml"}
        match self.command:
            case "PUT":
                if not self.service.ignore_conditions:
                    self._check(objects.get(key))
                objects[key] = Stored(body, str(next(_generations)), datetime.now(UTC))
                times = {"Last-Modified": format_datetime(objects[key].modified, usegmt=True)}
                return 201, b"", times | self._versions(objects[key])
            case "DELETE":
                if key not in objects:
                    raise Refused(404, "NoSuchKey")
                del objects[key]
                return 202, b"", {}
            case _:
                return self._get(objects, key)

    @abstractmethod
    def _check(self, stored: Stored | None) -> None:
        """Refuse a write whose condition does not hold."""

    @abstractmethod
    def _listing(self, objects: dict[str, Stored], query: dict[str, str]) -> str:
        """The document that answers a listing."""

    def _batch(self, objects: dict[str, Stored], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Answer several deletions in one request, where the service has that."""
        raise Refused(405, "MethodNotAllowed")


class _GoogleHandler(_CloudHandler):
    authorization = ""  # buckets are public: a web server serves them as well

    def _check(self, stored: Stored | None) -> None:
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted not in (None, stored.etag if stored else "0"):
            raise Refused(412, "PreconditionFailed")

    def _versions(self, stored: Stored) -> dict[str, str]:
        return {"ETag": f'"{stored.md5}"', "x-goog-generation": stored.etag}

    def _listing(self, objects: dict[str, Stored], query: dict[str, str]) -> str:
        if "start-after" in query:
            query["start"] = query["start-after"] + "\0"
        page = listing(objects, query | {"start": query.get("continuation-token", query.get("start", ""))})
        found = "".join(
            f'<Contents><Key>{escape(each["name"])}</Key><Size>{each["size"]}</Size><ETag>"{each["md5"]}"</ETag>'
            f"<LastModified>{each['timeModified'].replace('+00:00', 'Z')}</LastModified></Contents>"
            for each in page["objects"]
        )
        found += "".join(f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in page["prefixes"])
        if following := page.get("nextStartWith"):
            found += f"<NextContinuationToken>{escape(following)}</NextContinuationToken>"
        return f"<ListBucketResult>{found}</ListBucketResult>"


class GoogleServer(OciServer):
    """Google Cloud Storage, for as long as the context lasts."""

    handler = _GoogleHandler

    def environment(self) -> dict[str, str]:  # type: ignore[override]
        """Variables that point obstore to this server."""
        return {"GOOGLE_BASE_URL": self.url, "GOOGLE_BEARER_TOKEN": "bearer"}


class _AzureHandler(_CloudHandler):
    authorization = "SharedKey "
    prefix = f"/{ACCOUNT}/"

    def _check(self, stored: Stored | None) -> None:
        if self.headers.get("If-None-Match") == "*" and stored:
            raise Refused(409, "BlobAlreadyExists")
        if self.headers.get("If-Match") not in (None, f'"{stored.etag}"' if stored else ""):
            raise Refused(412, "ConditionNotMet")

    def _versions(self, stored: Stored) -> dict[str, str]:
        return {"ETag": f'"{stored.etag}"', "x-ms-blob-type": "BlockBlob"}

    def _listing(self, objects: dict[str, Stored], query: dict[str, str]) -> str:
        page = listing(objects, query | {"start": query.get("marker", "")})
        found = "".join(
            f"<Blob><Name>{escape(each['name'])}</Name><Properties>"
            f"<Last-Modified>{format_datetime(objects[each['name']].modified, usegmt=True)}</Last-Modified>"
            f"<Etag>{each['etag']}</Etag><Content-Length>{each['size']}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
            for each in page["objects"]
        )
        found += "".join(f"<BlobPrefix><Name>{escape(p)}</Name></BlobPrefix>" for p in page["prefixes"])
        following = escape(page.get("nextStartWith", ""))
        return f"<EnumerationResults><Blobs>{found}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"

    def _batch(self, objects: dict[str, Stored], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Delete the blobs of a batch request."""
        answer = ""
        for number, path in enumerate(re.findall(rb"DELETE /(\S+) HTTP/1.1", body)):
            key = unquote(path.decode()).removeprefix(f"{ACCOUNT}/").partition("/")[2]
            status = "404 Not Found" if objects.pop(key, None) is None else "202 Accepted"
            answer += f"--batch\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 {status}\r\n\r\n\r\n"
        return 202, f"{answer}--batch--".encode(), {"Content-Type": "multipart/mixed; boundary=batch"}


class AzureServer(OciServer):
    """Azure Blob Storage with one account, for as long as the context lasts."""

    handler = _AzureHandler

    def environment(self) -> dict[str, str]:  # type: ignore[override]
        """Variables that point obstore to this server."""
        return {
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": b64encode(b"loopback").decode(),
        }
