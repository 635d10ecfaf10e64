"""Renders the HTML pages of reports from Jinja templates, with figures of matplotlib.

A page's template lies beside the module that renders it and extends ``reports/base.html.j2``; the parts of a page are
the macros in ``reports/macros.html.j2``. Values are escaped unless they are :class:`markupsafe.Markup`, as the figures
of :func:`zarr_core.reports.pages.as_svg` are. A name that the template uses and the caller does not pass is an error.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_ENVIRONMENT = Environment(
    loader=PackageLoader("zarr_core", "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
# as_svg replaces these colours by the page's variables of the same names, so figures must not use them otherwise.
INK = "#1c2530"
MUTED = "#66727f"
RULE = "#d9dee4"
PT = "#a9b2bd"
FULL = "#5b8db8"
DRAWN = "#d9622b"
_THEMED = {"ink": INK, "muted": MUTED, "rule": RULE, "pt": PT, "full": FULL, "drawn": DRAWN}
#: Settings for ``matplotlib.rc_context``.
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10.0,
    "text.parse_math": False,  # names of batches and fields may contain dollar signs
    "svg.fonttype": "none",  # text elements, which use the page's font and can be selected
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "xtick.color": MUTED,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


def render(template: str, **values: Any) -> str:
    """One HTML document.

    Args:
        template: path of the template below ``zarr_core``, for example ``"benchmark/page.html.j2"``.
        values: the template's variables.
    """
    return _ENVIRONMENT.get_template(template).render(values)


def as_svg(figure: Figure) -> Markup:
    """The figure as an ``<svg>`` element whose colours are CSS variables (``--ink``, ``--drawn`` ...).

    So it follows the page's light or dark theme. It is marked as safe HTML: matplotlib escapes every text that it
    draws.
    """
    buffer = io.StringIO()
    # Element ids are hashes of content and salt: figures on one page need different salts for distinct ids.
    salt = hashlib.sha256(repr([axes.get_label() for axes in figure.axes]).encode()).hexdigest()
    with rc_context(STYLE | {"svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = buffer.getvalue()
    svg = text[text.index("<svg") :]
    for name, colour in _THEMED.items():
        svg = svg.replace(colour, f"var(--{name}, {colour})")
    return Markup(svg)


def bare_bars(axes: Axes, names: Sequence[str]) -> None:
    """Axes for labelled horizontal bars: names on the left from top to bottom, and no other decoration."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)
