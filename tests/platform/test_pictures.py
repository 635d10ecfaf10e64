"""Pictures that Dagster renders inline, with the values that their colours mean."""

from __future__ import annotations

import re
from urllib.parse import unquote

import numpy as np
from zarr_core.platform.assets.pictures import silhouette


def test_a_silhouette_has_a_legend_and_its_extent() -> None:
    random = np.random.default_rng(1)
    positions = random.uniform(-1, 1, (4096, 3)) * [2.0, 0.5, 0.7]
    image = silhouette(positions, positions[:, 0] * 3, "surface_pressure")
    assert len(image) < 1000, "Dagster hides longer ones behind a click"
    picture, legend = image.split("\n\n")
    title, values, extent = legend.split("  \n")
    assert title == "surface_pressure, blue to red:"
    assert max(map(len, (title, values, extent))) <= 50, "the UI does not wrap them"
    ends = [float(end) for end in values.split(" | ")]
    assert ends == sorted(ends)
    assert len(ends) == 6
    np.testing.assert_allclose([ends[0], ends[-1]], [-6, 6], atol=0.01)
    assert extent == "width 4, height 1.4"
    svg = unquote(picture)
    height = int(re.search(r"viewBox='0,-.5,\d+,(\d+)'", svg)[1])
    strip = re.findall(rf"M(\d+),{height - 1}h(\d+)", svg)
    assert len(strip) == 5, "one stroke per colour, below the body"
