"""Parts of the HTML pages that reports are: one file each, no network, light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_CSS = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1c2530; --muted: #66727f;
  --rule: #e3e7ec; --pt: #a9b2bd; --full: #5b8db8; --drawn: #d9622b; --good: #1f7a4d; --good-ground: #e4f4eb;
  --bad: #b3261e; --bad-ground: #fce8e6; }
@media (prefers-color-scheme: dark) { :root { --ground: #12161b; --card: #1a2027; --ink: #e6eaee; --muted: #9aa6b2;
  --rule: #2c343d; --pt: #67727e; --full: #6ea3d0; --drawn: #f0854e; --good: #6fd3a0; --good-ground: #153226;
  --bad: #ff9d94; --bad-ground: #3c1a18; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 48px 24px 64px; }
.eyebrow { color: var(--muted); font-size: 14px; margin: 0 0 4px; }
h1 { font-size: clamp(28px, 4.6vw, 46px); line-height: 1.1; letter-spacing: -0.02em; margin: 0 0 12px;
  text-wrap: balance; }
h1 em { font-style: normal; color: var(--drawn); }
.lead { font-size: 18px; color: var(--muted); margin: 0 0 20px; max-width: 46em; }
.verdict { display: inline-block; padding: 6px 14px; border-radius: 999px; font-size: 15px; font-weight: 600;
  background: var(--good-ground); color: var(--good); }
.verdict.bad { background: var(--bad-ground); color: var(--bad); }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(210px, 1fr)); gap: 16px; margin: 28px 0 16px; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 14px; padding: 24px; margin: 0 0 16px; }
.numbers .card { margin: 0; padding: 18px 20px; }
.numbers strong { display: block; font-size: 32px; line-height: 1.15; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums; }
.numbers span { color: var(--muted); font-size: 14px; }
h2 { font-size: 20px; letter-spacing: -0.01em; margin: 0 0 4px; }
.note { color: var(--muted); font-size: 14px; margin: 0 0 14px; max-width: 62em; }
.chart { overflow-x: auto; }
.chart svg { display: block; width: 100%; min-width: 620px; height: auto; font-family: inherit; }
.chart svg text { font-family: inherit !important; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 7px 10px; border-bottom: 1px solid var(--rule); white-space: pre;
  vertical-align: top; }
th { color: var(--muted); font-weight: 500; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tbody tr:last-child td { border-bottom: 0; }
tr.sum td { font-weight: 600; }
dl { display: grid; grid-template-columns: minmax(9em, max-content) 1fr; gap: 6px 20px; margin: 0; font-size: 14px; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 16px; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; font-size: 13px; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
ul.problems { margin: 0; padding-left: 20px; color: var(--bad); font-size: 14px; }
footer { color: var(--muted); font-size: 13px; margin-top: 24px; }
"""


def document(title: str, sections: Sequence[str], footer: str) -> str:
    """A page from its sections; empty ones are left out."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_CSS}</style></head>\n<body><main>\n"
        + "\n".join(section for section in sections if section)
        + f"\n<footer>{escape(footer)}</footer>\n</main></body></html>\n"
    )


def head(eyebrow: str, title: str, lead: str, verdict: str, good: bool) -> str:
    """The top of a page.

    Args:
        eyebrow: what the page is about.
        title: HTML of the headline, in which ``<em>`` marks the number that counts.
        lead: a sentence on it.
        verdict: whether all is well, in a few words.
        good: whether it is.
    """
    return (
        f'<header><p class="eyebrow">{escape(eyebrow)}</p><h1>{title}</h1><p class="lead">{escape(lead)}</p>'
        f'<span class="verdict{"" if good else " bad"}">{"✓" if good else "✗"} {escape(verdict)}</span></header>'
    )


def numbers(cards: Sequence[tuple[str, str]]) -> str:
    """Large numbers side by side, each with what it counts."""
    return (
        '<div class="numbers">'
        + "".join(
            f'<div class="card"><strong>{escape(number)}</strong><span>{escape(what)}</span></div>'
            for number, what in cards
        )
        + "</div>"
    )


def card(title: str, note: str, *content: str) -> str:
    """A titled section."""
    return (
        f'<section class="card"><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>'
        + "".join(content)
        + "</section>"
    )


def chart(svg: str, what: str) -> str:
    """A figure, and what it shows for those who cannot see it."""
    return f'<div class="chart" role="img" aria-label="{escape(what, quote=True)}">{svg}</div>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, strong: int | None = None) -> str:
    """A table whose first column is text; ``strong`` is the number of a row that sums up."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = []
    for at, row in enumerate(rows):
        style = ' class="sum"' if strong is not None and at == strong % len(rows) else ""
        body.append(f"<tr{style}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def problems(title: str, note: str, found: Sequence[str]) -> str:
    """A card with a list of what is wrong."""
    items = "".join(f"<li>{escape(problem)}</li>" for problem in found)
    return card(title, note, f'<ul class="problems">{items}</ul>')


def pairs(facts: Mapping[str, str]) -> str:
    """Names and what they are."""
    return (
        "<dl>"
        + "".join(f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items())
        + "</dl>"
    )
