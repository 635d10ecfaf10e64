"""Keeping credentials out of what is printed: URLs, and the messages of clients that print URLs.

Text passes :func:`redact` before it enters a message, a log or a report. An exception that would print a secret along
with a traceback is not chained to ours (:func:`printable_cause`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from fsspec.config import conf as fsspec_conf

# Where what stands before an @ is a bucket or a container.
_CONTAINERS = r"(?:oci|ocilake|abfs|abfss|wasb|wasbs|adl)"
_PATTERNS = (
    # user:password@, whatever the password is made of; "host:port/" is none.
    (re.compile(r"(?<=://)[^/@:\s]*:(?!\d+(?:/|$))[^@\s]*@(?:[^/@\s]*@)*"), ""),
    # token@
    (re.compile(rf"(?<![a-z])(?!{_CONTAINERS}://)([a-z][a-z0-9+.\-]*://)[^/\s]*@", re.IGNORECASE), r"\1"),
    # Signed URLs, and headers that are printed as text.
    (
        re.compile(
            r"((?:[?&][^=&\s]*|\b)(?:signature|credential|token|secret|password|passwd|apikey|api_key|access_key|sig)"
            r"[\w\-]*['\"]?\s*[=:]\s*['\"]?)[^&\s'\",}]+",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
    (re.compile(r"(authorization['\"]?\s*[:=]\s*)[^\n}]+", re.IGNORECASE), r"\1***"),
    # OCI's pre-authenticated requests.
    (re.compile(r"(://[^/\s]+/p)/[^\s?]+?/(?=n/)"), r"\1/***/"),
)
_SECRET_NAME = re.compile(
    r"secret|token|password|passwd|passphrase|credential|signature|authorization|account[-_.]?key", re.IGNORECASE
)
# Shorter values are words that messages are made of.
_SHORTEST_SECRET = 8


def redact(text: str, secrets: Collection[str] = ()) -> str:
    """The text without user names, passwords, tokens and signatures, and without those that the process was given.

    Args:
        text: what is to be printed.
        secrets: others that it must not hold.
    """
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    for secret in sorted({*_known_secrets(), *secrets}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def redact_url(url: str) -> str:
    """The URL as it may be printed."""
    return redact(url)


def secrets_of(settings: Mapping[str, Any]) -> set[str]:
    """Values of settings that are called like secrets: "token", "s3.secret-access-key", "credential"."""
    found = (str(value) for name, value in settings.items() if _SECRET_NAME.search(name))
    return {value for value in found if len(value) >= _SHORTEST_SECRET}


def printable_cause(error: BaseException, secrets: Collection[str] = ()) -> BaseException | None:
    """The error, to be raised from; None where its traceback would print a secret."""
    seen: BaseException | None = error
    while seen is not None:
        text = f"{seen} {seen!r}"
        if redact(text, secrets) != text:
            return None
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return error


def _known_secrets() -> set[str]:
    values = [value for name, value in os.environ.items() if _SECRET_NAME.search(name)]
    values += [
        value
        for options in fsspec_conf.values()
        for name, value in options.items()
        if isinstance(value, str) and (name == "key" or _SECRET_NAME.search(name))
    ]
    return {value for value in values if len(value) >= _SHORTEST_SECRET and not os.path.exists(value)}
