"""What `tests/benchmarks/run` writes for the documentation: JSON, tables in Markdown, a plot."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import ratio
from tests.benchmarks.peers import C_ONE
from tests.benchmarks.rows import Row
from tests.benchmarks.sections import SECTIONS

EXACT, SHUFFLED, RATARMOUNT = "deepiofs, exact", "deepiofs, shuffled", "ratarmount"


@dataclasses.dataclass(frozen=True)
class Target:
    """`view` is to have at least this many times the rate of `reference`."""

    section: str
    case: str
    view: str
    reference: str
    least: float


TARGETS = (
    Target("opens", "100 KB, 1 reader, cold", EXACT, C_ONE, 0.65),
    Target("opens", "100 KB, 4 readers, cold", EXACT, C_ONE, 0.65),
    Target("opens", "100 KB, 1 reader, cold", EXACT, RATARMOUNT, 1.5),
    Target("opens", "100 KB, 4 readers, cold", EXACT, RATARMOUNT, 1.5),
    Target("opens", "100 KB, 1 reader, warm", EXACT, "squashfuse_ll", 0.9),
    Target("opens", "100 KB, 4 readers, warm", EXACT, "squashfuse_ll", 0.9),
    Target("opens", "100 KB, 1 reader, warm", EXACT, "ratarmount, kernel_cache", 2),
    Target("opens", "100 KB, 4 readers, warm", EXACT, "ratarmount, kernel_cache", 2),
    Target("opens", "100 KB, 1 reader, cold", SHUFFLED, C_ONE, 0.5),
    Target("opens", "100 KB, 4 readers, cold", SHUFFLED, C_ONE, 0.5),
    Target("streams", "100 KB members, 1 reader, cold", "deepiofs, one large file", C_ONE, 0.85),
    Target("streams", "100 KB members, 1 reader, cold", "deepiofs, tar stream", C_ONE, 0.85),
    Target("two hosts", "100 KB, 4 readers, cold", "all remote", "all local", 0.4),
    Target("entropy", "100 KB, 2 readers per host, cold", "entropy=1", "entropy=0", 0.9),
    Target("mounts", "100 KB, 2 readers and a core per mount", "two mounts", "one mount", 1.5),
    Target("mounts", "100 KB, 4 readers on all", "two mounts", "one mount", 1.5),
    Target("listing", "", "deepiofs", "plain directory", 1 / 1.5),
    Target("loading", "", "deepiofs", "cat, 8 at a time", 0.8),
)


def write(folder: Path, name: str, about: Mapping[str, Any], rows: Sequence[Row]) -> list[Path]:
    """NAME.json, NAME.md, and NAME.png if there is matplotlib; what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    data, text, picture = (folder / f"{name}{suffix}" for suffix in (".json", ".md", ".png"))
    data.write_text(json.dumps({**about, "rows": [dataclasses.asdict(row) for row in rows]}, indent=1) + "\n")
    text.write_text(markdown(about, rows))
    return [data, text, *([picture] if _plot(picture, rows) else [])]


def read(data: Path) -> tuple[dict[str, Any], list[Row]]:
    """What `write` wrote as JSON."""
    about = json.loads(data.read_text())
    return about, [Row(**row) for row in about.pop("rows")]


def markdown(about: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """All tables."""
    lines = ["# Measured", "", "Made by `tests/benchmarks/run`; not to be edited.", ""]
    lines += [f"- {key}: {value}" for key, value in about.items() if key != "missing"]
    lines += [f"- left out: {line}" for line in about["missing"]]
    lines += ["", "## Targets", "", "| case | view | beside | to reach | measured | |", "|---|---|---|---|---|---|"]
    lines += [_judged(target, rows) for target in TARGETS]
    for section, measure in SECTIONS.items():
        some = [row for row in rows if row.section == section]
        if some:
            lines += ["", f"## {section.capitalize()}", "", (measure.__doc__ or "").splitlines()[0]]
            for unit in dict.fromkeys(row.unit for row in some):
                lines += ["", *_table([row for row in some if row.unit == unit])]
    return "\n".join(lines) + "\n"


def _judged(target: Target, rows: Sequence[Row]) -> str:
    found = _ratio(target, rows)
    measured, verdict = ("", "not measured") if found is None else (f"{found:.2f}", "")
    if found is not None:
        verdict = "reached" if found >= target.least else "missed"
    case = f"{target.section}: {target.case}" if target.case else target.section
    return f"| {case} | {target.view} | {target.reference} | {target.least:.2f} | {measured} | {verdict} |"


def _ratio(target: Target, rows: Sequence[Row]) -> float | None:
    some: dict[str, Sequence[float]] = {}
    for row in rows:
        if row.section == target.section and row.case.startswith(target.case):
            some.setdefault(row.view, row.rates)
    if target.view not in some or target.reference not in some:
        return None
    return ratio(some[target.view], some[target.reference])


def _table(rows: Sequence[Row]) -> list[str]:
    """Medians, what they ranged over, and the median of the ratios to the reference within each repetition."""
    unit, reference = rows[0].unit, rows[0].reference
    lines = [f"| | | {unit} | from - to | beside {reference} |", "|---|---|---|---|---|"]
    rates = {(row.case, row.view): row.rates for row in rows}
    for row in rows:
        of = rates.get((row.case, reference))
        beside = f"{ratio(row.rates, of):.2f}" if of else ""
        lines.append(
            f"| {row.case} | {row.view} | {statistics.median(row.rates):,.0f} "
            f"| {min(row.rates):,.0f} - {max(row.rates):,.0f} | {beside} |"
        )
    return lines


def _plot(path: Path, rows: Sequence[Row]) -> bool:
    """Bars of files per second for 100 KB, cold and warm, by readers."""
    opened = [row for row in rows if row.section == "opens" and row.case.startswith("100 KB")]
    try:
        import matplotlib
    except ImportError:
        return False
    if not opened:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = list(dict.fromkeys(row.case for row in opened))
    views = list(dict.fromkeys(row.view for row in opened if row.view != "plain directory"))
    rates = {(row.case, row.view): statistics.median(row.rates) for row in opened}
    figure, axes = pyplot.subplots(1, 2, figsize=(13, 5), layout="constrained")
    for axis, cache in zip(axes, ("cold", "warm"), strict=True):
        here = [case for case in cases if case.endswith(cache)]
        width = 0.8 / len(views)
        for i, view in enumerate(views):
            bars = [(x + i * width, rates[case, view]) for x, case in enumerate(here) if (case, view) in rates]
            # An empty bar keeps the colours of the two halves the same.
            axis.bar([x for x, _ in bars] or [0], [y for _, y in bars] or [0], width, label=view)
        axis.set_xticks([x + 0.4 - width / 2 for x in range(len(here))], [case.split(", ")[1] for case in here])
        axis.set_title(f"files of 100 KB, page cache {cache}")
        axis.set_ylabel("files/s")
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
