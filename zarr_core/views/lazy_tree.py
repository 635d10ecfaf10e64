"""An ``xarray.DataTree`` that makes its nodes when they are first used. Needs xarray, so it is imported on use.

xarray attaches children one by one and compares each with all before it, so a tree of 25,000 samples would take
minutes, and a request per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from itertools import islice

import xarray as xr


class LazyTree(xr.DataTree):  # type: ignore[misc]
    """A node whose children are made on use; made by :func:`lazy_tree`."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown, hidden = self._shown()
        return repr(shown) + (f"\n... and {hidden:,} more nodes" if hidden else "")

    def _repr_html_(self) -> str:
        shown, hidden = self._shown()
        return str(shown._repr_html_()) + (f"<p>... and {hidden:,} more nodes</p>" if hidden else "")

    def _shown(self) -> tuple[xr.DataTree, int]:
        """The node with its first children only, and the number of the others: xarray would make all of them."""
        most = int(xr.get_options()["display_max_children"])
        first = dict(islice(self.children.items(), most))
        return xr.DataTree(self.to_dataset(), first, self.name), len(self.children) - len(first)


def lazy_tree(dataset: xr.Dataset, name: str | None, make: Mapping[str, Callable[[], xr.DataTree]]) -> LazyTree:
    """A node with children that are made when they are first looked up.

    Args:
        dataset: content of the node.
        name: of the node; None for a root.
        make: by name, makes a child of this name.
    """
    tree = LazyTree(dataset, name=name)
    tree._children = _Nodes(tree, make)
    return tree


class _Nodes(MutableMapping[str, xr.DataTree]):
    """The children of a node, in the place of xarray's dict of them."""

    def __init__(self, parent: xr.DataTree, make: Mapping[str, Callable[[], xr.DataTree]]) -> None:
        self._parent = parent
        self._nodes: dict[str, xr.DataTree | Callable[[], xr.DataTree]] = dict(make)

    def __getitem__(self, name: str) -> xr.DataTree:
        node = self._nodes[name]
        if not isinstance(node, xr.DataTree):
            node = node()
            node._parent = self._parent
            self._nodes[name] = node
        return node

    def __setitem__(self, name: str, node: xr.DataTree) -> None:
        self._nodes[name] = node

    def __delitem__(self, name: str) -> None:
        del self._nodes[name]

    def __contains__(self, name: object) -> bool:  # that of Mapping would make the node
        return name in self._nodes

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)
