"""Comparison of a sample's parameters with those that its source has now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zarr_core._util.documents import expect, to_json
from zarr_core.errors import SampleError
from zarr_core.points.verify.report import SampleFindings
from zarr_core.sources.sample import SourceSample
from zarr_core.sources.tree import SampleTree


def compare_parameters(
    recorded: Mapping[str, Any], tree: SampleTree | None, sample: SourceSample | None, found: SampleFindings
) -> None:
    """Add the parameters of a sample that are not those of its source to the findings.

    Args:
        recorded: what this library recorded of the sample.
        tree: of the source; None if its kind is not known.
        sample: as a conversion would find it there; None if it would not.
        found: of the sample.
    """
    stored = expect(dict, recorded.get("parameters", {}), "parameters")
    if tree is None or sample is None:
        found.parameters = False if stored else None
        return
    try:
        source = json.loads(to_json(tree.load_parameters(sample)))
    except SampleError as error:
        found.add("", f"its parameters cannot be compared: {error.explanation}", damage=False)
        return
    found.parameters = True if stored or source else None
    for name in sorted(stored.keys() | source.keys()):
        if name not in stored:
            found.add("", f"parameter {name!r} is missing; its source has {source[name]!r:.200}")
        elif name not in source:
            found.add("", f"parameter {name!r} is {stored[name]!r:.200}; its source has none")
        elif stored[name] != source[name]:
            found.add("", f"parameter {name!r} is {stored[name]!r:.200}, that of its source {source[name]!r:.200}")
