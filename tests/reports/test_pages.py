from __future__ import annotations

import pytest
from jinja2 import UndefinedError
from matplotlib.figure import Figure

from zarr_core.reports import pages
from zarr_core.reports.pages import as_svg

HOSTILE = '"><script>alert("x")</script>'
ESCAPED = "&#34;&gt;&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;"


def render(text: str, **values: object) -> str:
    """Render ``text``, which may use the macros as ``m``."""
    return pages._ENVIRONMENT.from_string('{% import "reports/macros.html.j2" as m %}' + text).render(values)


@pytest.mark.parametrize(
    ("call", "times"),
    [
        ("{{ x }}", 1),
        ("{% call m.header(x, x, x, true) %}{{ x }}{% endcall %}", 4),
        ("{{ m.numbers([(x, x)]) }}", 2),
        ("{% call m.card(x, x) %}{{ x }}{% endcall %}", 3),
        ("{{ m.chart(x, x) }}", 2),
        ("{{ m.table([x], [[x]]) }}", 2),
        ("{{ m.problems(x, x, [x]) }}", 3),
        ("{{ m.pairs({x: x}) }}", 2),
    ],
)
def test_every_argument_of_every_macro_is_escaped(call: str, times: int) -> None:
    page = render(call, x=HOSTILE)
    assert page.count(ESCAPED) == times
    assert "<script" not in page


def test_a_figure_is_html_and_its_text_is_escaped() -> None:
    figure = Figure()
    figure.add_subplot(title=HOSTILE, label=HOSTILE).plot([1], label=HOSTILE)
    page = render("{{ m.chart(svg, 'a figure') }}", svg=as_svg(figure))
    assert "<svg" in page
    assert "alert" in page
    assert "<script" not in page


def test_the_row_of_sums_is_counted_from_either_end() -> None:
    page = render("{{ m.table(['a'], [['1'], ['2'], ['3']], sum_row=-2) }}")
    assert page.count("<tr") == 4
    assert '<tr class="sum"><td>2</td></tr>' in page
    assert "sum" not in render("{{ m.table(['a'], [['1']]) }}")


def test_a_missing_variable_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'y' is undefined"):
        render("{{ y }}", x=1)
