"""A comparison as text for a terminal, and as a table for the documentation. Pure."""

from __future__ import annotations

from peers.figures import Comparison, Measure, Part, Row


def table(comparison: Comparison) -> str:
    lines = []
    for part in comparison.parts:
        lines += [f"{part.title} ({_conditions(comparison, part)})"]
        for measure in part.measures:
            lines.append(f"  {measure.title}, {measure.unit}")
            lines.append(f"    {'':34} {'median':>10} {'least':>10} {'95 %':>10} {'ratio':>8}")
            lines += [f"    {row.subject:34} {_number(row.median):>10} {_number(row.least):>10} "
                      f"{_number(row.p95):>10} {_times(row.ratio):>8}  {_said(measure, row)}".rstrip()
                      for row in measure.rows(comparison.busy(part))]
        lines += [f"  left out: {sentence}" for sentence in part.skipped]
        lines.append("")
    lines.append(_machine(comparison))
    busy = [part.name for part in comparison.parts if comparison.busy(part)]
    if busy:
        lines.append(f"BUSY: other programs took more than {comparison.limit:g} % of the CPUs during "
                     f"{', '.join(busy)}: no verdict on their times.")
    return "\n".join(lines)


def markdown(comparison: Comparison) -> str:
    """One row for each peer of each measure; the last column is vmpin's side."""
    lines = ["| | vmpin | beside | its figure | ratio | vmpin is |", "|---|---|---|---|---|---|"]
    for part in comparison.parts:
        for measure in part.measures:
            reference, *others = measure.rows(comparison.busy(part))
            title = f"{measure.title}, {measure.unit}"
            if reference.subject != measure.of:
                reference, others = Row("", float("nan"), 0, 0, None, ""), [reference, *others]
            for row in others or [reference]:
                shown = (row.subject, _pair(row)) if others else ("-", "-")
                verdict = row.verdict or ("(busy)" if comparison.busy(part) and measure.timed else "-")
                lines.append(f"| {title} | {_pair(reference)} | {shown[0]} | {shown[1]} | {_times(row.ratio)} "
                             f"| {verdict} |")
    lines += ["", _machine(comparison)]
    lines += [f"{part.title}: {_conditions(comparison, part)}." for part in comparison.parts]
    lines += [f"Left out: {sentence}" for part in comparison.parts for sentence in part.skipped]
    return "\n".join(lines)


def _machine(comparison: Comparison) -> str:
    return ", ".join(f"{name} {value}" for name, value in comparison.machine.items())


def _conditions(comparison: Comparison, part: Part) -> str:
    conditions = part.conditions
    busy = "busy: " if comparison.busy(part) else ""
    return (f"{busy}load {conditions.load:.1f}, others took {conditions.others_percent:.1f} % of the CPUs, "
            f"{conditions.seconds:.0f} s")


def _said(measure: Measure, row: Row) -> str:
    return f"vmpin: {row.verdict}" if row.verdict and measure.of == "vmpin" else row.verdict


def _pair(row: Row) -> str:
    if row.median != row.median:
        return "-"
    return _number(row.median) if row.median == row.least else f"{_number(row.median)} ({_number(row.least)})"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3g}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
