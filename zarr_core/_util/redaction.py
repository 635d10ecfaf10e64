"""Keeping credentials out of messages, logs and reports.

Text passes :func:`redact` before it is printed. An exception whose traceback would print a secret is not chained to
ours (:func:`printable_cause`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from fsspec.config import conf as fsspec_conf

# Schemes whose URLs have a bucket or container before the @.
_CONTAINERS = r"(?:oci|ocilake|abfs|abfss|wasb|wasbs|adl)"
# Beginning of a name that is no part of a path.
_NAME = r"(?<![\w/.\-])[\w.\-]*?"
_PATTERNS = (
    # user:password@ with any password, but not "host:port/".
    (re.compile(r"(?<=://)[^/@:\s]*:(?!\d+(?:/|$))[^@\s]*@(?:[^/@\s]*@)*"), ""),
    # token@
    (re.compile(rf"(?<![a-z])(?!{_CONTAINERS}://)([a-z][a-z0-9+.\-]*://)[^/\s]*@", re.IGNORECASE), r"\1"),
    # Signed URLs, and headers printed as text. A part of a path, as in "/data/sigma=0.5" and "bucket/token=3", is none.
    (
        re.compile(
            rf"((?:[?&][^=&\s]*?|{_NAME})(?:(?:signature|credential|token|secret|password|passwd|api_?key|access_?key)"
            r"[\w\-]*|(?<![\w\-])sig)['\"]?\s*[=:]\s*['\"]?)[^&\s'\",}]+",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
    (re.compile(rf"({_NAME}authorization['\"]?\s*[:=]\s*)[^\n}}]+", re.IGNORECASE), r"\1***"),
    # Pre-authenticated requests of OCI.
    (re.compile(r"(https?://[^/\s]+/p)/[^\s?]+?/(?=n/)"), r"\1/***/"),
)
_SECRET_NAME = re.compile(
    r"secret|token|password|passwd|passphrase|credential|signature|authorization"
    r"|(?:account|storage_access|storage_master|sas)[-_.]?key",
    re.IGNORECASE,
)
# Shorter values may be ordinary words.
_SHORTEST_SECRET = 8


def redact(text: str, secrets: Collection[str] = ()) -> str:
    """The text without user names, passwords, tokens, signatures, and secrets of the environment.

    Args:
        text: to be printed.
        secrets: further strings to remove.
    """
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    for secret in sorted({*_known_secrets(), *secrets}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def secrets_of(settings: Mapping[str, Any]) -> set[str]:
    """Values of settings whose names are those of secrets: "token", "s3.secret-access-key", "credential"."""
    found = (str(value) for name, value in settings.items() if _SECRET_NAME.search(name))
    return {value for value in found if len(value) >= _SHORTEST_SECRET}


def printable_cause(error: BaseException, secrets: Collection[str] = ()) -> BaseException | None:
    """The error, to raise from; None if its traceback would print a secret."""
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
