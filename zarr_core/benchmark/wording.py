"""Text and tables of a benchmark report, for its page, a terminal and Dagster alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarr_core._util.command_line import table
from zarr_core._util.units import format_size
from zarr_core.reports import describe_points, describe_ranges

#: The ways to get a training sample, in the order of every table and figure: the source files, the whole sample of the
#: store, a draw from it.
WAYS = ("pt", "full", "drawn")
Table = list[list[str]]


def readable_share(share: float) -> str:
    """A ratio as a percentage with at least two significant digits: ``9.2 %``, ``64 %``."""
    return f"{100 * share:.2g} %" if share < 0.0995 else f"{100 * share:.0f} %"


def readable_count(mean: float) -> str:
    """A mean count with at most one decimal: ``7``, ``14.6``."""
    return f"{mean:.1f}".removesuffix(".0")


class Wording:
    """The sentences and tables of a report.

    Args:
        report: the content of ``report.json``.
    """

    def __init__(self, report: Mapping[str, Any]) -> None:
        self.report, self._total = report, report["reads"]["total"]
        counts = report["reads"]["num_points"].items()
        self.points = " + ".join(f"{n:,} {domain}" for domain, n in counts) + " points"
        self.share = readable_share(self._total["drawn"]["bytes"] / self._total["pt"]["bytes"])
        names = ("source files, then subsample", "store, whole sample", f"store, {self.points}")
        self.ways = dict(zip(WAYS, names, strict=True))
        self._fps = {way: report["throughput"][way]["samples_per_s"] for way in WAYS}

    @property
    def headline(self) -> str:
        """The main result in one sentence."""
        return f"A training step reads {self.share} of the bytes"

    @property
    def detail(self) -> str:
        """The byte counts behind the headline's percentage."""
        drawn, source = self._total["drawn"], self._total["pt"]
        return (
            f"{format_size(drawn['bytes'])} instead of {format_size(source['bytes'])} of source files for a sample of "
            f"{self.points}, in {readable_count(drawn['requests'])} requests"
        )

    @property
    def equivalence(self) -> str:
        """Whether the measured samples equal their source files."""
        found = self.report["equivalence"]
        count, problems = found["samples"], len(found["problems"])
        if not found["ok"]:
            return f"{problems} problem{'s' * (problems > 1)} found when comparing the store with its source"
        subject = f"All {count} checked samples equal" if count > 1 else f"{count} checked sample equals"
        return f"{subject} the source, {found['how']}"

    @property
    def stored_share(self) -> str:
        """Stored bytes of the measured samples as a share of their source files."""
        return readable_share(self.report["store"]["bytes_stored"] / self.report["store"]["bytes_source"])

    @property
    def throughput_note(self) -> str:
        """How the samples per second were measured, and how to read them."""
        local = self.report["local"]
        note = (
            f"One process, one thread, one sample after another, {self.report['throughput']['pt']['reads']} reads per "
            f"way in turns; {'files in the page cache' if local else 'over the network'}. The first and last way "
            "return the same number of points."
        )
        if local and self._fps["drawn"] < self._fps["pt"]:
            note += (
                f" Copying {format_size(self._total['pt']['bytes'])} within memory takes less time than the reader's "
                "work per request; on a network, the bytes and requests above determine the time."
            )
        return note

    @property
    def cards(self) -> list[tuple[str, str]]:
        """The most important numbers with their captions."""
        reads, store = self.report["reads"], self.report["store"]
        fewer = self._total["pt"]["bytes"] / self._total["drawn"]["bytes"]
        first = readable_count(reads["first"]["drawn"]["requests"])
        sizes = f"{format_size(store['bytes_stored'])} stored for {format_size(store['bytes_source'])} of source files"
        layouts = " and ".join(store["layouts"])
        stored = f"{store['objects_stored']:,} objects ({layouts}{_inodes(store['inodes_stored'])})"
        source = f"{store['objects_source']:,} files{_inodes(store['inodes_source'])}"
        rates = f"{self._fps['drawn']:,.0f} instead of {self._fps['pt']:,.0f}"
        return [
            (f"{fewer:.1f}x", "fewer bytes per training step than loading the source files"),
            (
                readable_count(self._total["drawn"]["requests"]),
                f"requests per sample for {len(reads['fields'])} fields, {first} at the first read of a sample",
            ),
            (self.stored_share, f"of the source's size: {sizes}, in {stored} for {source}"),
            (f"{self._fps['drawn'] / self._fps['pt']:.1f}x", f"the samples per second of the source files ({rates})"),
        ]

    @property
    def bytes_table(self) -> Table:
        """Bytes and requests per sample: one row per field, the sum, and the first read of a sample."""
        reads = self.report["reads"]
        header = ["per sample", "source", "requests", "whole", "requests", "drawn", "requests", "drawn / source"]
        rows = [header]
        lines = {**reads["fields"], "sum": reads["total"], "first read of a sample": reads["first"]}
        for name, ways in lines.items():
            row = [name]
            for way in WAYS:
                row += [format_size(ways[way]["bytes"]), readable_count(ways[way]["requests"])]
            share = readable_share(ways["drawn"]["bytes"] / ways["pt"]["bytes"]) if ways["pt"]["bytes"] else "–"
            rows.append([*row, share])
        return rows

    @property
    def throughput_table(self) -> Table:
        """Samples per second and milliseconds per sample, one row per way."""
        rows = [["one process, one thread", "samples/s", "p50 ms", "p99 ms", "relative to source"]]
        for way, name in self.ways.items():
            measured = self.report["throughput"][way]
            times = [f"{measured['p50_ms']:.2f}", f"{measured['p99_ms']:.2f}"]
            rows.append([name, f"{self._fps[way]:,.1f}", *times, f"{self._fps[way] / self._fps['pt']:.2f}x"])
        return rows

    @property
    def fields_table(self) -> Table:
        """One row per field, with the components of a vector on lines of their own."""
        moments = ("mean", "std", "min", "max", "rms_error")
        rows = [["field", "stored as", *moments[:-1], "RMS error / std"]]
        for name, field in self.report["fields"].items():
            rows.append([name, field["dtype"], *(_moment(field.get(key)) for key in moments)])
        return rows

    @property
    def bounds_table(self) -> Table:
        """Bytes per point of each field of a sample as it is stored and with error bounds, and bytes of all of them."""
        found = self.report["error_bounds"]
        if "problem" in found:
            return []
        rows = [["bytes per point", "as stored", *found["bounds"][1:]]]
        for name, sizes in found["fields"].items():
            rows.append([name, *(f"{size:g}" for size in sizes)])
        return [*rows, ["the sample", *map(format_size, found["bytes"])]]

    @property
    def bounds_note(self) -> str:
        """What error bounds would save, in sentences."""
        found = self.report["error_bounds"]
        if "problem" in found:
            return f"Not measured: {found['problem']}"
        stored, *bounded = found["bytes"]
        shares = []
        for bound, size in zip(found["bounds"][1:], bounded, strict=True):
            shares.append(f"{readable_share(size / stored)} with {bound}")
        return (
            f"Fields of {found['sample']}, encoded with max_errors and thrown away. A bound is the largest error of a "
            f"value, here in standard deviations. With a bound on all fields, the sample would take "
            f"{' and '.join(shares)} of the bytes."
        )

    @property
    def store_facts(self) -> dict[str, str]:
        """What the manifest says, and what a bucket would charge for the requests of draws."""
        store = self.report["store"]
        requests, price = self._total["drawn"]["requests"], store["usd_per_million_gets"]
        bill = (
            f"a million draws of samples read before cost USD {requests * price:.2f} for {readable_count(requests)} "
            f"GETs each, at USD {price:.2f} per million GETs"
        )
        in_quarantine = f", {store['quarantined']:,} in quarantine" if store["quarantined"] else ""
        return {
            "store": store["root"],
            "dataset": f"{store['dataset_name']} ({store['dataset_kind']})",
            "samples": f"{store['samples']:,}{in_quarantine}",
            "generation": str(store["generation"]),
            "points per sample": describe_ranges(store["points"]),
            "chunk": f"{describe_points(store['chunk_points'])} points",
            "codec": store["codec"],
            "shuffle seed": str(store["shuffle_seed"]),
            "points per draw": self.points,
            "in a bucket": bill,
        }


def _inodes(number: int) -> str:
    return f", {number:,} inodes" if number else ""


def _moment(value: float | list[float] | None) -> str:
    if value is None:
        return "–"
    return "\n".join(f"{x:.4g}" for x in value) if isinstance(value, list) else f"{value:.4g}"


def console_text(report: Mapping[str, Any]) -> str:
    """The report for a terminal."""
    words, equivalence = Wording(report), report["equivalence"]
    lines = [words.equivalence + ("" if equivalence["ok"] else ":")]
    for problem in equivalence["problems"]:
        lines.append(f"  {problem}")
    lines += ["", table(words.bytes_table), "", table(words.throughput_table), ""]
    if words.bounds_table:
        lines += [table(words.bounds_table), ""]
    lines.append(f"error bounds: {words.bounds_note}")
    environment = ", ".join(f"{key} {value}" for key, value in report["environment"].items())
    return "\n".join([*lines, f"environment: {environment}", f"{words.headline}: {words.detail}."])


def headline_markdown(report: Mapping[str, Any]) -> str:
    """A summary of less than 1,000 characters, which Dagster renders in place."""
    words, store = Wording(report), report["store"]
    lines = [
        f"**{words.headline}.** {words.equivalence}.",
        "",
        "| per sample | bytes | requests | samples/s | p50 ms |",
        "|:--|--:|--:|--:|--:|",
    ]
    for way, name in words.ways.items():
        read, timed = report["reads"]["total"][way], report["throughput"][way]
        size, requests = format_size(read["bytes"]), readable_count(read["requests"])
        lines.append(f"| {name} | {size} | {requests} | {timed['samples_per_s']:,.0f} | {timed['p50_ms']:.1f} |")
    kept = f"{store['samples']:,} samples, generation {store['generation']}, {store['codec']}"
    return "\n".join([*lines, "", f"{kept}: {words.stored_share} of the source's size."])
