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
    """A table for each part: medians, with the least in brackets. In bold what is better than vmpin's."""
    lines = [f"Measured on {_machine(comparison)}. Bold: better than vmpin."]
    for part in comparison.parts:
        many = any(len(measure.samples) > 2 for measure in part.measures)
        form = _long if not many else _wide if len(part.measures) > 1 else _single
        lines += ["", f"**{part.title}** ({_conditions(comparison, part)}"
                      f"{'; times without a verdict' if comparison.busy(part) else ''})", ""]
        lines += form(part, comparison.busy(part))
        lines += [f"\nLeft out: {'; '.join(part.skipped)}."] if part.skipped else []
    return "\n".join(lines)


def _single(part: Part, busy: bool) -> list[str]:
    """A row for each subject of the one measure."""
    [measure] = part.measures
    return [f"| {measure.title} | {measure.unit} | ratio |", "|---|---|---|",
            *(f"| {row.subject} | {_cell(row)} | {_times(row.ratio)} |" for row in measure.rows(busy))]


def _wide(part: Part, busy: bool) -> list[str]:
    """A column for each subject."""
    subjects = list(dict.fromkeys(row.subject for measure in part.measures for row in measure.rows(busy)))
    lines = [f"| | {' | '.join(subjects)} |", f"|---|{'---|' * len(subjects)}"]
    for measure in part.measures:
        cells = {row.subject: _cell(row) for row in measure.rows(busy)}
        lines.append(f"| {measure.title}, {measure.unit} | {' | '.join(cells.get(each, '') for each in subjects)} |")
    return lines


def _long(part: Part, busy: bool) -> list[str]:
    """A row for each peer of each measure."""
    lines = ["| | vmpin | beside | its figure | ratio |", "|---|---|---|---|---|"]
    for measure in part.measures:
        reference, *others = measure.rows(busy)
        lines += [f"| {measure.title}, {measure.unit} | {_cell(reference)} | {row.subject} | {_cell(row)} "
                  f"| {_times(row.ratio)} |" for row in others]
    return lines


def _cell(row: Row) -> str:
    text = _number(row.median) if row.median == row.least else f"{_number(row.median)} ({_number(row.least)})"
    return f"**{text}**" if row.verdict.endswith("worse") else text


def _machine(comparison: Comparison) -> str:
    return ", ".join(f"{name} {value}" for name, value in comparison.machine.items())


def _conditions(comparison: Comparison, part: Part) -> str:
    conditions = part.conditions
    busy = "busy: " if comparison.busy(part) else ""
    return (f"{busy}load {conditions.load:.1f}, others took {conditions.others_percent:.1f} % of the CPUs, "
            f"{conditions.seconds:.0f} s")


def _said(measure: Measure, row: Row) -> str:
    return f"vmpin: {row.verdict}" if row.verdict and measure.of == "vmpin" else row.verdict


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3g}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
