"""Renders the HTML pages of reports from Jinja templates.

A page's template lies beside the module that renders it and extends ``reports/base.html.j2``; the parts of a page are
the macros in ``reports/macros.html.j2``. Values are escaped unless they are :class:`markupsafe.Markup`, as the figures
of :func:`zarr_core.reports.charts.as_svg` are. A name that the template uses and the caller does not pass is an error.
"""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

_ENVIRONMENT = Environment(
    loader=PackageLoader("zarr_core", "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def render(template: str, **values: Any) -> str:
    """One HTML document.

    Args:
        template: path of the template below ``zarr_core``, for example ``"benchmark/page.html.j2"``.
        values: the template's variables.
    """
    return _ENVIRONMENT.get_template(template).render(values)
