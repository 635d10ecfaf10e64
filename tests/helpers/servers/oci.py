"""OCI object storage on loopback, in this process's memory: the part of its REST API that ocifs uses.

Requests that change something are handled one at a time, so that conditions (``if-match``, ``if-none-match``)
hold for any number of threads and processes. Signatures are not verified, but a request without one is refused.

    with OciServer() as server:
        os.environ.update(server.environment(folder))
        fsspec.config.set_conf_env(fsspec.config.conf)
        ocifs.OCIFileSystem().ls(f"oci://bucket@{NAMESPACE}")
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import uuid
from base64 import b64encode
from bisect import bisect_left
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

NAMESPACE = "loopback"
_PAGE = 1000
_OBJECTS = re.compile(r"/n/(?P<namespace>[^/]+)/b/(?P<bucket>[^/]+)/(?P<kind>[ou])(?:/(?P<key>.*))?")
_BUCKET = re.compile(r"/n/[^/]+/b/(?P<bucket>[^/]+)/?")


class Stored(NamedTuple):
    """An object."""

    data: bytes
    etag: str
    modified: datetime

    @property
    def md5(self) -> str:
        """MD5 as the API reports it."""
        return b64encode(hashlib.md5(self.data).digest()).decode()


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection.

    Attributes:
        authorization: beginning of the header of a signed request.
    """

    service: OciServer
    authorization = "Signature "
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def handle_expect_100(self) -> bool:
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        span = self.headers.get("Range")
        self.service.requests.append(f"{self.command} {unquote(parts.path)}" + (f" [{span}]" if span else ""))
        try:
            if not self.headers.get("Authorization", "").startswith(self.authorization):
                raise Refused(401, "NotAuthenticated")
            with self.service.lock:
                status, answer, headers = self._answer(parts.path, query, body)
        except Refused as refused:
            content = {"code": refused.code, "message": f"{refused.code}: {parts.path}"}
            status, answer, headers = refused.status, json.dumps(content).encode(), {}
        self.send_response(status)
        headers = {"Content-Type": "application/json", "opc-request-id": uuid.uuid4().hex} | headers
        for name, value in ({"Content-Length": str(len(answer))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _answer(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        if path.rstrip("/") == "/n":
            return 200, json.dumps(NAMESPACE).encode(), {}
        if path.rstrip("/") == f"/n/{NAMESPACE}":
            compartments = {"defaultS3CompartmentId": "c", "defaultSwiftCompartmentId": "c"}
            return 200, json.dumps({"namespace": NAMESPACE, **compartments}).encode(), {}
        if path.rstrip("/") == f"/n/{NAMESPACE}/b":
            return self._buckets(body)
        if whole := _BUCKET.fullmatch(path):
            self._bucket(whole["bucket"])
            return 200, json.dumps({"name": whole["bucket"], "namespace": NAMESPACE}).encode(), {"etag": "bucket"}
        found = _OBJECTS.fullmatch(path)
        if not found:
            raise Refused(404, "NotFound")
        objects, key = self._bucket(found["bucket"]), unquote(found["key"] or "")
        if found["kind"] == "u":
            return self._upload(objects, found["bucket"], key, query, body)
        if not key:
            return 200, json.dumps(listing(objects, query)).encode(), {}
        match self.command:
            case "PUT":
                return self._put(objects, key, body)
            case "DELETE":
                if key not in objects:
                    raise Refused(404, "ObjectNotFound")
                del objects[key]
                return 204, b"", {}
            case _:
                return self._get(objects, key)

    def _buckets(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        if self.command == "POST":
            name = json.loads(body)["name"]
            if name in self.service.buckets:
                raise Refused(409, "BucketAlreadyExists")
            self.service.buckets[name] = {}
            return 200, json.dumps({"name": name, "namespace": NAMESPACE}).encode(), {}
        return 200, json.dumps([{"name": n, "namespace": NAMESPACE} for n in self.service.buckets]).encode(), {}

    def _bucket(self, name: str) -> dict[str, Stored]:
        if name not in self.service.buckets:
            raise Refused(404, "BucketNotFound")
        return self.service.buckets[name]

    def _put(self, objects: dict[str, Stored], key: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        if not self.service.ignore_conditions:
            wanted, unwanted = self.headers.get("If-Match"), self.headers.get("If-None-Match")
            if unwanted == "*" and key in objects:
                raise Refused(412, "IfNoneMatchFailed")
            if wanted is not None and (key not in objects or wanted not in ("*", objects[key].etag)):
                raise Refused(412, "IfMatchFailed")
        stored = objects[key] = Stored(body, str(uuid.uuid4()), datetime.now(UTC))
        return 200, b"", self._versions(stored) | {"opc-content-md5": stored.md5}

    def _get(self, objects: dict[str, Stored], key: str) -> tuple[int, bytes, dict[str, str]]:
        if key not in objects:
            raise Refused(404, "ObjectNotFound")
        stored = objects[key]
        headers = {
            "Content-Type": "application/octet-stream",
            "Last-Modified": format_datetime(stored.modified, usegmt=True),
            "Accept-Ranges": "bytes",
            **self._versions(stored),
        }
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not span or self.command == "HEAD":
            return 200, stored.data, headers | {"opc-content-md5": stored.md5}
        size = len(stored.data)
        if span[1]:
            first, last = int(span[1]), min(int(span[2]), size - 1) if span[2] else size - 1
        else:
            first, last = max(0, size - int(span[2])), size - 1
        if first > last:
            raise Refused(416, "InvalidRange")
        return 206, stored.data[first : last + 1], headers | {"Content-Range": f"bytes {first}-{last}/{size}"}

    def _versions(self, stored: Stored) -> dict[str, str]:
        """Headers that tell an object's version."""
        return {"etag": stored.etag, "version-id": "1", "storage-tier": "Standard"}

    def _upload(
        self, objects: dict[str, Stored], bucket: str, key: str, query: dict[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        uploads = self.service.uploads
        if self.command == "POST" and not key:
            upload = uuid.uuid4().hex
            uploads[upload] = {}
            name = json.loads(body)["object"]
            answer = {"namespace": NAMESPACE, "bucket": bucket, "object": name, "uploadId": upload}
            return 200, json.dumps(answer).encode(), {}
        upload = query["uploadId"]
        if upload not in uploads:
            raise Refused(404, "NoSuchUpload")
        match self.command:
            case "PUT":
                uploads[upload][int(query["uploadPartNum"])] = body
                return 200, b"", {"etag": hashlib.md5(body).hexdigest()}
            case "POST":
                parts = uploads.pop(upload)
                numbers = [part["partNum"] for part in json.loads(body)["partsToCommit"]]
                return self._put(objects, key, b"".join(parts[number] for number in numbers))
            case _:
                del uploads[upload]
                return 204, b"", {}


class OciServer:
    """The service, for as long as the context lasts.

    Args:
        ignore_conditions: accept every conditional write, like gateways that do not know the headers.

    Attributes:
        handler: class of the connections.
        buckets: objects by name, by bucket.
        requests: method and path of each, oldest first, ranges in brackets.
        url: where it listens.
    """

    handler: ClassVar[type[Handler]] = Handler

    def __init__(self, ignore_conditions: bool = False) -> None:
        self.buckets: dict[str, dict[str, Stored]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.requests: list[str] = []
        self.ignore_conditions = ignore_conditions
        self.lock = threading.Lock()
        handler = type("Handler", (self.handler,), {"service": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> OciServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def environment(self, folder: Path, endpoint: str | None = None) -> dict[str, str]:
        """Variables that point ocifs to this server, with a key in a configuration file.

        fsspec reads them when it is imported; a process that has done so calls ``fsspec.config.set_conf_env``.

        Args:
            folder: where the file is written.
            endpoint: of a proxy in between.
        """
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        encoding, no_encryption = serialization.Encoding, serialization.NoEncryption()
        key_file = folder / "oci_key.pem"
        key_file.write_bytes(key.private_bytes(encoding.PEM, serialization.PrivateFormat.PKCS8, no_encryption))
        public = key.public_key().public_bytes(encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        digest = hashes.Hash(hashes.MD5())
        digest.update(public)
        config = {
            "user": "ocid1.user.oc1..loopback",
            "tenancy": "ocid1.tenancy.oc1..loopback",
            "fingerprint": digest.finalize().hex(":"),
            "key_file": str(key_file),
            "region": "us-ashburn-1",
        }
        path = folder / "oci_config"
        path.write_text("[DEFAULT]\n" + "".join(f"{name}={value}\n" for name, value in config.items()))
        path.chmod(0o600)
        key_file.chmod(0o600)
        return {
            "OCIFS_IAM_TYPE": "api_key",
            "OCIFS_CONFIG_LOCATION": str(path),
            "OCIFS_CONFIG_PROFILE": "DEFAULT",
            "FSSPEC_OCI": json.dumps({"config_kwargs": {"service_endpoint": endpoint or self.url}}),
        }


def listing(objects: dict[str, Stored], query: dict[str, str]) -> dict[str, Any]:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
    limit = min(int(query.get("limit", _PAGE)), _PAGE)
    names = sorted(name for name in objects if name.startswith(prefix))
    listed: list[dict[str, Any]] = []
    prefixes: list[str] = []
    following = None
    for name in names[bisect_left(names, query.get("start", "")) :]:
        rest = name[len(prefix) :]
        folder = f"{prefix}{rest.split(delimiter)[0]}{delimiter}" if delimiter and delimiter in rest else None
        if folder in prefixes:
            continue
        if len(listed) + len(prefixes) == limit:
            following = name
            break
        if folder is not None:
            prefixes.append(folder)
            continue
        stored = objects[name]
        time = stored.modified.isoformat()
        described = {"name": name, "size": len(stored.data), "etag": stored.etag, "md5": stored.md5}
        listed.append(described | {"timeCreated": time, "timeModified": time, "storageTier": "Standard"})
    return {"objects": listed, "prefixes": prefixes} | ({"nextStartWith": following} if following else {})
