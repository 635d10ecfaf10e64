"""A minimal kind of store, for tests of commits, tags and garbage collection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from zarr_core.storage import Storage, StoredObject
from zarr_core.versioning.generations import Change, Head, Retention, commit

_RETENTION = TypeAdapter(Retention)


@dataclass(frozen=True)
class TinyState:
    """Items by name, and the group of each."""

    items: Mapping[str, str] = field(default_factory=dict)
    generation: int = 0
    retention: Retention = field(default_factory=Retention)

    def to_json(self) -> bytes:
        document = {"items": dict(self.items), "generation": self.generation, **self._retention()}
        return json.dumps(document).encode()

    def _retention(self) -> dict[str, object]:
        document = self.retention.to_document()
        return {"retention": document} if document else {}


def parse(data: bytes, where: str) -> TinyState:
    document = json.loads(data)
    return TinyState(
        document["items"], document["generation"], _RETENTION.validate_python(document.get("retention", {}))
    )


def changes(before: TinyState | None, after: TinyState) -> list[Change]:
    added = tuple(sorted(set(after.items) - set(before.items if before else ())))
    return [Change("added", added)] if added else []


def _owner(name: str) -> str | None:
    parts = name.split("/")
    return "/".join(parts[:2]) if len(parts) == 3 else None


#: A group ``groups/<name>`` is whole when it has both of its objects.
HEAD = Head(
    "tiny.json",
    parse,
    lambda state: ("groups",),
    lambda state: state.items.values(),
    _owner,
    lambda storage, prefix: all(storage.exists(f"{prefix}/{part}") for part in "ab"),
    changes,
    lambda before, after: True,
)


def write_group(storage: Storage, name: str) -> str:
    """Write a group whose objects hold its name; returns its prefix."""
    for part in "ab":
        storage.write(f"groups/{name}/{part}", [f"{name} {part}".encode()])
    return f"groups/{name}"


def set_item(storage: Storage, item: str, group: str | None) -> TinyState:
    """Commit that an item is in a group, or that it is removed."""

    def change(current: TinyState | None) -> TinyState:
        start = current or TinyState()
        items = {name: at for name, at in start.items.items() if name != item}
        return replace(start, items=items if group is None else items | {item: group})

    return commit(storage, HEAD, change)


class Killed(BaseException):
    """Simulates kill -9: nothing catches it."""


class ClockedStorage(Storage):
    """Storage with a clock that is set by hand, and a hook before every change.

    Attributes:
        time: of the clock, in seconds.
        interrupt: called before everything that changes an object, with what is about to happen.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.time = 1_000_000.0
        self.written: dict[str, float] = {}
        self.interrupt: Callable[[str], None] = lambda _: None

    def objects(self, prefix: str, *, recursive: bool = True) -> Iterator[StoredObject]:
        for found in super().objects(prefix, recursive=recursive):
            yield found._replace(modified=self.written[found.name])

    def now(self) -> float:
        return self.time

    def write(self, name: str, pieces: Sequence[bytes]) -> int:  # type: ignore[override]
        self.interrupt(f"write {name}")
        self.written[name] = self.time
        return super().write(name, pieces)

    def replace(self, name: str, data: bytes, version: str | None) -> None:
        self.interrupt(f"replace {name}")
        super().replace(name, data, version)
        self.written[name] = self.time

    def create(self, name: str, data: bytes) -> bool:
        self.interrupt(f"create {name}")
        created = super().create(name, data)
        if created:  # also if the same bytes are already there
            self.written.setdefault(name, self.time)
        return created

    def delete(self, names: Sequence[str]) -> None:
        for name in names:  # so that it may end in the middle of a batch
            self.interrupt(f"delete {name}")
            super().delete([name])
            self.written.pop(name, None)

    def sync(self) -> None:
        """Nothing to do: the store is in memory."""
