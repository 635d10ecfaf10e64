"""Keeping credentials out of messages, logs and reports.

A URL with credentials is refused where it enters (:func:`refuse_credentials`). Text of others passes :func:`redact`
before it is printed. An exception whose traceback would print a secret is not chained to ours
(:func:`printable_cause`).

Text comes from servers, too. It is cut first, and no expression takes more than linear time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from fsspec.config import conf as fsspec_conf

from zarr_core.errors import StoreError

# Longer text is cut: it is the answer of a server, not a message for people.
_MOST_CHARACTERS = 20_000

# Schemes whose URLs have a bucket or container before the @.
_CONTAINERS = ("oci://", "ocilake://", "az://", "abfs://", "abfss://", "wasb://", "wasbs://", "adl://")
# Schemes whose user name alone is a token.
_TOKENS = ("http://", "https://", "git+https://", "hf://")
# user:password@ with any password, but not "host:port/"; else token@.
_PASSWORD = r"[^/@:]*+:(?!\d+(?:/|$))[^@]*+@(?:[^/@]*+@)*+"
_USER = re.compile(rf"(?<=://)(?:{_PASSWORD}|[^/@]*+@)")
# The same without a scheme, at the beginning of a word: "Invalid bucket name 'KEY:SECRET@bucket'".
_USER_OF_WORD = re.compile(rf"^(\W*+){_PASSWORD}")
# Pre-authenticated requests of OCI.
_PREAUTHENTICATED = re.compile(r"(?:(?<=http://)|(?<=https://))([^/]++/p)/.+?/(?=n/)")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}-----|\Z)", re.DOTALL)
_AUTHORIZATION = re.compile(r"(?<!/)\b(authorization['\"]?\s{0,9}[:=]\s{0,9})[^\n}]++", re.IGNORECASE)
_BEARER = re.compile(r"\b(bearer\s{1,9})[^\s'\",;})\]]{8,}+", re.IGNORECASE)
# Tokens that are known by their form: of Hugging Face, GitHub, GitLab and Slack, and JSON web tokens.
_KNOWN_FORMS = re.compile(r"\b(?:(?:hf|gh[pousr]|github_pat)_|glpat-|xox[abps]-|eyJ)\w{16}\S*+")
# name=value and name: value, but not a part of a path, as in "/data/sigma=0.5" and "bucket/token=3".
_ASSIGNMENT = re.compile(r"(?<![\w/.\-])([\w.\-]++)['\"]?\s{0,9}[=:]\s{0,9}")
_VALUE = re.compile(r"""'[^'\n]*+|"[^"\n]*+|[^&\s'",;})\]]++""")
_IN_QUERY = re.compile(r"[?&;]([\w.\-%]++)=")
# Connection strings of Azure: "AccountName=a;AccountKey=...".
_IN_CONNECTION = re.compile(r"(?:^|;)(\w++)=")
_SECRET_NAME = re.compile(
    r"secret|token|passw|passphrase|pwd|credential|signature|authorization"
    r"|(?:api|access|account|private|shared|master|encryption|sas)[-_.]?key",
    re.IGNORECASE,
)
# The names of errors contain such words: "NoCredentialsError: Unable to locate".
_ERROR_NAME = re.compile(r"(?:Error|Exception)$")
# Names that are those of secrets as a whole; "key" is one only in the query of a URL.
_SHORT_NAMES = ("sas", "sig")
# Shorter values may be ordinary words.
_SHORTEST_SECRET = 8


def redact(text: str, secrets: Collection[str] = ()) -> str:
    """The text without user names, passwords, tokens, signatures, and secrets of the environment.

    Args:
        text: to be printed; cut if it has more than 20,000 characters.
        secrets: further strings to remove.
    """
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]} ... ({len(text) - _MOST_CHARACTERS:,} characters more)"
    # Longest first: one may contain another.
    for secret in sorted({*_known_secrets(), *secrets}, key=len, reverse=True):
        text = text.replace(secret, "***")
        text = text.replace(quote(secret, safe=""), "***")
    text = _PRIVATE_KEY.sub("***", text)
    text = re.sub(r"\S++", _redacted_word, text)
    text = _AUTHORIZATION.sub(r"\1***", text)
    text = _BEARER.sub(r"\1***", text)
    text = _KNOWN_FORMS.sub("***", text)
    return "".join(_without_secret_values(text))


def refuse_credentials(*places: object) -> None:
    """Raise StoreError if a URL, a connection string, or any other text in which there may be one, has credentials.

    Whatever a URL contains ends up in manifests, logs, databases and the messages of clients.
    """
    for place in places:
        text = os.fspath(place) if isinstance(place, str | os.PathLike) else ""
        if isinstance(text, str) and _has_credentials(text[:_MOST_CHARACTERS]):
            raise StoreError(
                f"{redact(text):.200} was given with a password, key, token or signature. URLs are stored and printed: "
                "put credentials into environment variables (AWS_ACCESS_KEY_ID, ...) or fsspec's configuration "
                "(~/.config/fsspec), see docs/clouds.md"
            )


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


def _redacted_word(found: re.Match[str]) -> str:
    word = found[0]
    # Every attempt to match then finds the character that it looks for.
    users, rest = _split_after(word, "@")
    if users:
        users = _USER.sub(_redacted_user, users) if "://" in users else _USER_OF_WORD.sub(r"\1", users)
    word = users + rest
    requests, rest = _split_after(word, "/n/")
    return _PREAUTHENTICATED.sub(r"\1/***/", requests) + rest if requests else word


def _split_after(word: str, mark: str) -> tuple[str, str]:
    end = word.rfind(mark)
    return ("", word) if end < 0 else (word[: end + len(mark)], word[end + len(mark) :])


def _redacted_user(user: re.Match[str]) -> str:
    """Nothing of a user with a password, or of a token, before the host of a URL; a container stays."""
    return user[0] if ":" not in user[0] and _scheme(user).endswith(_CONTAINERS) else ""


def _scheme(user: re.Match[str]) -> str:
    return user.string[max(user.start() - 20, 0) : user.start()].lower()


def _without_secret_values(text: str) -> Iterator[str]:
    done = 0
    for found in _ASSIGNMENT.finditer(text):
        name, is_in_query = found[1], found.start() > 0 and text[found.start() - 1] in "?&"
        if found.start() < done or not (_is_secret(name) or (is_in_query and name.lower() == "key")):
            continue
        value = _VALUE.match(text, found.end())
        if value:
            opening = value[0][0] if value[0][0] in "'\"" else ""
            yield f"{text[done : value.start()]}{opening}***"
            done = value.end()
    yield text[done:]


def _is_secret(name: str) -> bool:
    return name.lower() in _SHORT_NAMES or bool(_SECRET_NAME.search(name) and not _ERROR_NAME.search(name))


def _has_credentials(text: str) -> bool:
    for word in text.split():
        if ";" in word and any(_is_secret(found[1]) for found in _IN_CONNECTION.finditer(word)):
            return True
        if "://" not in word:
            continue
        if _KNOWN_FORMS.search(word):
            return True
        users, _ = _split_after(word, "@")
        if any(":" in user[0] or _scheme(user).endswith(_TOKENS) for user in _USER.finditer(users)):
            return True
        names = (found[1].lower() for found in _IN_QUERY.finditer(word))
        if any(name == "key" or _is_secret(name) for name in names):
            return True
    return False


@lru_cache(maxsize=1024)
def _names_a_secret(variable: str) -> bool:
    """Whether a variable of the environment may hold a secret: asked of all of them for each text."""
    return bool(_SECRET_NAME.search(variable))


def _known_secrets() -> set[str]:
    values = [os.environ.get(name, "") for name in os.environ if _names_a_secret(name)]
    values += [
        value
        for options in fsspec_conf.values()
        for name, value in options.items()
        if isinstance(value, str) and (name == "key" or _SECRET_NAME.search(name))
    ]
    return {value for value in values if len(value) >= _SHORTEST_SECRET and not os.path.exists(value)}
