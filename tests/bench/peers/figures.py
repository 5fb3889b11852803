"""Samples by subject, their medians and ratios, and the verdict on a peer. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

VMPIN = "vmpin"
#: A peer whose ratio is nearer to 1 than this counts as even.
EVEN = 1.1


@dataclass(frozen=True)
class Row:
    """One subject of a measure. `ratio`: how many times vmpin's figure; None for vmpin, and where that is 0.

    `verdict`: on vmpin beside this subject; "" where there is none."""

    subject: str
    median: float
    least: float
    p95: float
    ratio: float | None
    verdict: str


@dataclass(frozen=True)
class Measure:
    """One question, and what each subject's answers were.

    :ivar samples: by subject. Where `pairs`, the n-th of each was taken in the same round.
    :ivar rises: more is better.
    :ivar timed: another program on the machine changes it, so that a busy machine gives no verdict.
    :ivar of: the subject that the others are compared with.
    """

    title: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    pairs: bool = True
    rises: bool = False
    timed: bool = True
    of: str = VMPIN

    def rows(self, busy: bool) -> list[Row]:
        """The reference first."""
        reference = self.samples.get(self.of)
        order = sorted(self.samples, key=lambda subject: subject != self.of)
        rows = []
        for subject in order:
            values = self.samples[subject]
            ratio = None
            verdict = ""
            if reference and subject != self.of:
                ratio = self._ratio(reference, values)
                if not ((busy and self.timed) or subject.startswith(VMPIN)):  # vmpin otherwise is no peer
                    verdict = _verdict(self._worth(ratio, reference, values))
            rows.append(Row(subject, statistics.median(values), min(values), percentile_95(values), ratio, verdict))
        return rows

    def _ratio(self, reference: Sequence[float], values: Sequence[float]) -> float | None:
        if self.pairs:
            ratios = [value / base for base, value in zip(reference, values, strict=True) if base > 0]
            return statistics.median(ratios) if ratios else None
        base = statistics.median(reference)
        return statistics.median(values) / base if base > 0 else None

    def _worth(self, ratio: float | None, reference: Sequence[float], values: Sequence[float]) -> float:
        """How many times better the reference is: infinite beside a peer that has what it has nothing of."""
        if ratio is None:
            other = statistics.median(values)
            ratio = float("inf") if other > 0 else 1.0
        if not self.rises:
            return ratio
        return 1 / ratio if ratio else float("inf")


def _verdict(worth: float) -> str:
    if 1 / EVEN < worth < EVEN:
        return "even"
    if worth in (0.0, float("inf")):
        return "worse" if worth == 0 else "better"
    return f"{worth:.3g} times better" if worth > 1 else f"{1 / worth:.3g} times worse"


def percentile_95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


@dataclass(frozen=True)
class Conditions:
    """Of the machine while a part ran.

    :ivar others_percent: of its CPUs' time, what programs took that are not of the benchmark's.
    """

    load: float
    others_percent: float
    seconds: float


@dataclass(frozen=True)
class Part:
    """One part of the comparison. `skipped`: a sentence for each peer that was not measured."""

    name: str
    title: str
    measures: Sequence[Measure]
    skipped: Sequence[str] = ()
    conditions: Conditions = field(default_factory=lambda: Conditions(0, 0, 0))


@dataclass(frozen=True)
class Comparison:
    """All parts.

    :ivar machine: what it is, by name.
    :ivar limit: the percent of others beyond which a part counts as busy.
    """

    machine: Mapping[str, str | float]
    limit: float
    parts: Sequence[Part]

    def busy(self, part: Part) -> bool:
        return part.conditions.others_percent > self.limit

    def document(self) -> dict[str, object]:
        """The JSON document."""
        return {"version": 1, "machine": dict(self.machine), "busy_above_percent": self.limit,
                "busy": any(map(self.busy, self.parts)), "parts": [{
                    "name": part.name, "title": part.title, "busy": self.busy(part), **asdict(part.conditions),
                    "skipped": list(part.skipped), "measures": [{
                        "title": measure.title, "unit": measure.unit, "pairs": measure.pairs,
                        "rounds": max(map(len, measure.samples.values()), default=0),
                        "rows": [asdict(row) for row in measure.rows(self.busy(part))]}
                        for measure in part.measures]} for part in self.parts]}
