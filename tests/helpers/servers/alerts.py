"""What takes alerts: a webhook and a mail server, on loopback in this process."""

from __future__ import annotations

import base64
import datetime as dt
import email
import email.policy
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer, StreamRequestHandler, ThreadingTCPServer


@contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """The server works in a thread until the block ends."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Webhook:
    """Takes alerts as Slack does.

    Attributes:
        texts: of the alerts that it took.
        statuses: what it answers to the next requests, instead of 200.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.statuses: list[int] = []
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = webhook.statuses.pop(0) if webhook.statuses else 200
                if status == 200:
                    assert self.headers["Content-Type"] == "application/json"
                    assert document.keys() == {"text"}
                    webhook.texts.append(document["text"])
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/services/secret"


class MailServer:
    """Takes mails: the commands of SMTP that ``smtplib`` needs.

    Args:
        certificate: for STARTTLS, or for TLS from the first byte if ``encrypted``.
        encrypted: as smtps://.

    Attributes:
        mails: those that it took.
        logins: user and password of each login, in the form of AUTH PLAIN.
        statuses: what it answers to the next mails, instead of 250.
        refused: receivers that it refuses.
    """

    def __init__(self, certificate: Path | None = None, *, encrypted: bool = False) -> None:
        self.mails: list[EmailMessage] = []
        self.logins: list[bytes] = []
        self.statuses: list[int] = []
        self.refused: set[str] = set()
        mail_server, context = self, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if certificate is not None:
            context.load_cert_chain(certificate)

        class Handler(StreamRequestHandler):
            def answer(self, *lines: str) -> None:
                self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())
                self.wfile.flush()

            def secure(self) -> None:
                self.connection = context.wrap_socket(self.connection, server_side=True)
                self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")

            def handle(self) -> None:
                secure = encrypted
                if encrypted:
                    self.secure()
                self.answer("220 test")
                while line := self.rfile.readline().decode().strip():
                    match line.split()[0].upper():
                        case "EHLO":
                            can_secure = ["250-STARTTLS"] if certificate and not secure else []
                            self.answer("250-test", *can_secure, "250 AUTH PLAIN")
                        case "STARTTLS":
                            self.answer("220 go on")
                            self.secure()
                            secure = True
                        case "AUTH":
                            assert secure, "a password must not be sent in the clear"
                            mail_server.logins.append(base64.b64decode(line.split()[2]))
                            self.answer("235 ok")
                        case "RCPT":
                            address = line.partition("<")[2].partition(">")[0]
                            self.answer("550 unknown" if address in mail_server.refused else "250 ok")
                        case "DATA":
                            self.answer("354 go on")
                            data = b""
                            while (part := self.rfile.readline()) != b".\r\n":
                                data += part.replace(b"\r\n", b"\n")
                            status = mail_server.statuses.pop(0) if mail_server.statuses else 250
                            if status == 250:
                                policy = email.policy.default
                                mail_server.mails.append(email.message_from_bytes(data, policy=policy))  # type: ignore[arg-type]
                            self.answer(f"{status} done")
                        case "QUIT":
                            self.answer("221 bye")
                            return
                        case _:
                            self.answer("250 ok")

        self.server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.address = f"{'smtps' if encrypted else 'smtp'}://localhost:{self.port}"

    @property
    def texts(self) -> list[str]:
        """The contents of the mails."""
        return [mail.get_content().removesuffix("\n") for mail in self.mails]


def certificate_for_localhost(path: Path) -> Path:
    """Write a key, and a certificate that it signed itself, to a file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    path.write_bytes(key.private_bytes(pem, *plain) + builder.sign(key, hashes.SHA256()).public_bytes(pem))
    return path
