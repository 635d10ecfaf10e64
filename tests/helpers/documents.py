"""Changes of stored JSON documents."""

from __future__ import annotations

import json
from pathlib import Path


def edit(path: Path, *keys: str, value: object) -> None:
    """Set a value in a JSON file, below these keys."""
    document = json.loads(path.read_text())
    holder = document
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = value
    path.write_text(json.dumps(document))
