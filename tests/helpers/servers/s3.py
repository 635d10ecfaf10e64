"""An S3 server on loopback, in this process: moto, with conditional writes that are atomic, as those of S3 are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

#: What any client of the server may pass.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def quick_moto() -> Iterator[None]:
    """Servers of moto in this process answer in a third of the time.

    A listing of moto's 200 folders per request and a time parsed per object of a listing took the rest. Clients of this
    process parse each description of a service once: that took most of the time of a new client.
    """
    from botocore.loaders import JSONFileLoader
    from moto import backends
    from moto.core import serialize

    parsed = cache(partial(JSONFileLoader.load_file, JSONFileLoader()))
    services = tuple(backends.list_of_moto_modules())
    with (
        patch.object(JSONFileLoader, "load_file", lambda _, path: parsed(path)),
        patch.object(backends, "list_of_moto_modules", lambda: services),
        patch.object(serialize, "parse_to_aware_datetime", cache(serialize.parse_to_aware_datetime)),
    ):
        yield


@contextmanager
def s3_server() -> Iterator[str]:
    """The server's URL; the system chooses a free port."""
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    put_object, lock = S3Response.put_object, threading.Lock()

    def put_one_at_a_time(response: S3Response) -> Any:
        # moto compares the condition and stores the object in two steps, so that both of two writers could succeed.
        with lock:
            return put_object(response)

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # no line of log per request
    with quick_moto(), patch.object(S3Response, "put_object", put_one_at_a_time):
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()
