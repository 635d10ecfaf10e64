"""Random mutations of documents and bytes."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

NUMBERS = (0, -1, 1, 2, 3, 7, 255, 2**31 - 1, 2**32, 10**9, 10**15, 2**63 - 1, 2**63, 2**64, 10**400, -(10**15))
#: Target of hostile paths; the sandbox reports whenever it is opened.
ESCAPES = ("../" * 12 + "etc/passwd", "/etc/passwd", "samples/" + "../" * 12 + "etc/passwd")
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "..",
    *ESCAPES,
    "a\0b",
    "\ud800",
    "\x1b[2J",
    "s3://elsewhere/x",
    "float64",
    "float16",
    "x" * 100_000,
    "{0.__class__}",
    [],
    {},
    [[]],
    {"a": {}},
    *NUMBERS,
)


def mutate_document(document: Any, chance: random.Random) -> Any:
    """A copy of a JSON-like value with one to three things changed."""
    changed = copy.deepcopy(document)
    for _ in range(chance.randint(1, 3)):
        places = list(_places(changed))
        if not places:
            return chance.choice(VALUES)
        holder, key = chance.choice(places)
        _change(holder, key, [h[k] for h, k in places], chance)
    return changed


def _places(value: Any) -> Any:
    """Every (container, key) below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in list(items):
        yield value, key
        yield from _places(below)


def _change(holder: Any, key: Any, others: list[Any], chance: random.Random) -> None:
    match chance.randrange(6):
        case 0:
            del holder[key]
        case 1:
            holder[key] = chance.choice(VALUES)
        case 2:
            holder[key] = copy.deepcopy(chance.choice(others))
        case 3 if isinstance(holder, dict):
            name = chance.choice([*map(str, holder), "../x", "", "a/b", "\0", "run_9"])
            holder[name] = holder.pop(key)
        case 4 if isinstance(holder[key], int):
            holder[key] = chance.choice((holder[key] + 1, holder[key] - 1, holder[key] * 2, -holder[key], *NUMBERS))
        case 4 if isinstance(holder[key], str):
            holder[key] = mutate_bytes(holder[key].encode(errors="replace"), chance).decode(errors="replace")
        case _:
            holder[key] = [holder[key]]


def as_json(document: Any, chance: random.Random) -> bytes:
    """The text of a document; sometimes with damaged bytes, or nested too deeply."""
    text = json.dumps(document).encode()
    if chance.random() < 0.15:
        text = mutate_bytes(text, chance)
    if chance.random() < 0.02:
        depth = chance.choice((10, 1000, 200_000))
        text = text[:-1] + b',"x":' + b"[" * depth + b"]" * depth + b"}"
    return text


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """A copy with one to three places damaged."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(changed) + 1)
        size = chance.choice((1, 1, 2, 4, 8, 16, 300))
        match chance.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                del changed[at : at + size]
            case 3:
                changed[at:at] = chance.randbytes(size)
            case 4:
                changed[at : at + size] = chance.choice((b"\0", b"\xff", b"\x7f")) * size
            case 5:
                other = chance.randrange(len(changed) + 1)
                changed[at : at + size] = changed[other : other + size]
            case _:
                changed += chance.randbytes(size)
    return bytes(changed)


def restore(whole: dict[Path, bytes]) -> None:
    """Write files as they were, and forget them."""
    for path, data in whole.items():
        path.write_bytes(data)
    whole.clear()
