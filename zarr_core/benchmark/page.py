"""The HTML page of a benchmark report: one file, no network, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from zarr_core.benchmark import figures, wording
from zarr_core.benchmark.wording import readable_bytes, readable_points, readable_share

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
.chart svg { display: block; width: 100%; height: auto; font-family: inherit; }
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


def render_page(report: dict[str, Any], picture: dict[str, Any] | None) -> str:
    """The report as one HTML document.

    Args:
        report: what ``report.json`` holds.
        picture: arguments of :func:`figures.sample_figure`, or None where the store has no surface scalar to show.
    """
    sections = [
        _head(report),
        _numbers(report),
        _problems(report),
        _picture(report, picture),
        _bytes(report),
        _throughput(report),
        _fields(report),
        _facts(report),
    ]
    title = f"{report['store']['dataset_name']}: {wording.headline(report)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_CSS}</style></head>\n<body><main>\n"
        + "\n".join(section for section in sections if section)
        + f"\n<footer>Measured {escape(report['created'])}. The same numbers for programs: report.json.</footer>"
        "\n</main></body></html>\n"
    )


def _card(title: str, note: str, *content: str) -> str:
    return (
        f'<section class="card"><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>'
        + "".join(content)
        + "</section>"
    )


def _chart(svg: str, what: str) -> str:
    return f'<div class="chart" role="img" aria-label="{escape(what, quote=True)}">{svg}</div>'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, strong: int | None = None) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = []
    for at, row in enumerate(rows):
        style = ' class="sum"' if strong is not None and at == strong % len(rows) else ""
        body.append(f"<tr{style}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _head(report: dict[str, Any]) -> str:
    store, equivalence = report["store"], report["equivalence"]
    before, share, after = wording.headline(report).partition(
        readable_share(report["reads"]["total"]["drawn"]["bytes"] / report["reads"]["total"]["pt"]["bytes"])
    )
    return (
        f'<header><p class="eyebrow">{escape(store["dataset_name"])} · {store["samples"]:,} samples · '
        f"generation {store['generation']}</p>"
        f"<h1>{escape(before)}<em>{escape(share)}</em>{escape(after)}</h1>"
        f'<p class="lead">{escape(wording.headline_detail(report))}.</p>'
        f'<span class="verdict{"" if equivalence["ok"] else " bad"}">{"✓" if equivalence["ok"] else "✗"} '
        f"{escape(wording.equivalence_sentence(report))}</span></header>"
    )


def _numbers(report: dict[str, Any]) -> str:
    reads, throughput, store = report["reads"], report["throughput"], report["store"]
    total = reads["total"]
    faster = throughput["drawn"]["samples_per_s"] / throughput["pt"]["samples_per_s"]
    cards = [
        (
            f"{total['pt']['bytes'] / total['drawn']['bytes']:.1f}x",
            "fewer bytes a training step than loading the .pt files",
        ),
        (
            wording.readable_count(total["drawn"]["requests"]),
            f"requests a sample for {len(reads['fields'])} fields, "
            f"{wording.readable_count(reads['first']['drawn']['requests'])} when a "
            "reader meets it first",
        ),
        (
            wording.stored_share(report),
            "of the source's size: "
            f"{readable_bytes(store['bytes_stored'])} stored for {readable_bytes(store['bytes_source'])} of .pt files",
        ),
        (
            f"{faster:.1f}x",
            f"the samples a second of the .pt files ({throughput['drawn']['samples_per_s']:,.0f} against "
            f"{throughput['pt']['samples_per_s']:,.0f})",
        ),
    ]
    return (
        '<div class="numbers">'
        + "".join(
            f'<div class="card"><strong>{escape(number)}</strong><span>{escape(what)}</span></div>'
            for number, what in cards
        )
        + "</div>"
    )


def _problems(report: dict[str, Any]) -> str:
    problems = report["equivalence"]["problems"]
    if not problems:
        return ""
    items = "".join(f"<li>{escape(problem)}</li>" for problem in problems[:50])
    more = f"and {len(problems) - 50} more, see report.json" if len(problems) > 50 else ""
    return _card("What differs", more, f'<ul class="problems">{items}</ul>')


def _picture(report: dict[str, Any], picture: dict[str, Any] | None) -> str:
    if picture is None:
        return ""
    svg = figures.as_svg(figures.sample_figure(**picture))
    return _card(
        f"One sample: {report['picture']}",
        "The points of a sample were shuffled when the store was written, so a contiguous run of chunks is a uniform "
        "subset of it: what training sees has the shape of the whole.",
        _chart(svg, "surface of one sample, all points beside one draw"),
    )


def _bytes(report: dict[str, Any]) -> str:
    reads = report["reads"]
    return _card(
        "Bytes a sample, by field",
        f"Mean of {reads['samples']} samples, counted below the reader. A .pt file counts as one request. The last "
        "line includes the metadata that is fetched when a reader meets a sample for the first time.",
        _chart(figures.as_svg(figures.bytes_chart(report)), "bytes per sample by field"),
        _table(wording.BYTES_HEADER, wording.bytes_rows(report), strong=-2),
    )


def _throughput(report: dict[str, Any]) -> str:
    return _card(
        "Samples a second",
        wording.throughput_note(report),
        _chart(figures.as_svg(figures.throughput_chart(report)), "samples per second"),
        _table(wording.THROUGHPUT_HEADER, wording.throughput_rows(report)),
    )


def _fields(report: dict[str, Any]) -> str:
    fields = report["fields"]
    rows = [
        [name, field["dtype"], *(_numbers_text(field[key]) for key in ("mean", "std", "min", "max"))]
        for name, field in fields.items()
    ]
    return _card(
        "What the fields hold",
        "Distribution of a uniform subset of the measured samples between the 0.1 and 99.9 percentiles, each component "
        "scaled to its own peak. Below: moments of every point of the measured samples.",
        _chart(figures.as_svg(figures.fields_chart(report)), "histograms of all fields"),
        _table(("field", "stored as", "mean", "std", "min", "max"), rows),
    )


def _numbers_text(value: float | list[float] | None) -> str:
    if value is None:
        return "–"
    return "\n".join(f"{x:.4g}" for x in value) if isinstance(value, list) else f"{value:.4g}"


def _facts(report: dict[str, Any]) -> str:
    store = report["store"]
    points = ", ".join(f"{domain} {low:,} to {high:,}" for domain, (low, high) in store["points"].items())
    facts = {
        "store": store["root"],
        "dataset": f"{store['dataset_name']} ({store['dataset_kind']})",
        "samples": f"{store['samples']:,}"
        + (f", {store['quarantined']:,} in quarantine" if store["quarantined"] else ""),
        "generation": str(store["generation"]),
        "points a sample": points,
        "chunk": ", ".join(f"{domain} {n:,} points" for domain, n in store["chunk_points"].items()),
        "codec": store["codec"],
        "shuffle seed": str(store["shuffle_seed"]),
        "a draw": readable_points(report["reads"]["num_points"]),
    }
    return (
        '<div class="two">'
        + _card("The store", "As its manifest has it.", _pairs(facts))
        + _card("The machine", "Ratios travel better than absolute times.", _pairs(report["environment"]))
        + "</div>"
        + _card("Measure again", "", f"<pre>{escape(report['command'])}</pre>")
    )


def _pairs(facts: dict[str, str]) -> str:
    return (
        "<dl>"
        + "".join(f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items())
        + "</dl>"
    )
