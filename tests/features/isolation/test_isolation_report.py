"""The report as data and as text: of pods whose names, and whose programs' names, are hostile."""

from __future__ import annotations

from typing import Any

import pytest
from booked import figures_between
from documents import checked

from vmpin.config.settings import BY_KEY
from vmpin.cpuset import CpuSet
from vmpin.feature import features
from vmpin.features.isolation import isolation_text as texts
from vmpin.features.isolation.cpu_intervals import Interval
from vmpin.features.isolation.isolation_books import MINUTE, ForeignProgram, ForeignRun, OwnerBook, ProgramKind
from vmpin.features.isolation.isolation_report import (
    advice,
    document,
    pod_report,
    slo_of,
    title,
    with_slo,
)
from vmpin.features.isolation.isolation_shares import Slo

SECOND = 10**9
HOSTILE = "\x1b[2J<script>alert(1)</script>&\u202e"
PROGRAM = ForeignProgram(ProgramKind.HOST, HOSTILE, "backup.service")
#: Those of the configuration that belong to other features.
OTHER_KEYS = [key for feature in features() if feature.name != "isolation"
              for section in feature.sections for key in BY_KEY if key.startswith(f"{section}.")]


def clock(moment: int) -> str:
    minutes = moment // MINUTE
    return f"2026-11-{1 + minutes // 1440:02}T{minutes // 60 % 24:02}:{minutes % 60:02}:00Z"


def book(name: str = "shop", foreign: float = 0.3) -> OwnerBook:
    """An hour on CPUs 2 and 3, of which the last ten minutes but one were not seen."""
    made = OwnerBook(name, 0)
    made.namespace, made.pod, made.kind = "demo", name, "vm"
    made.cpus = CpuSet([2, 3])
    made.begin(0, 48 * 10**6)
    for minute in range(1, 50):
        spent = int(foreign * SECOND * (10 if minute == 20 else 1))
        made.book(minute * MINUTE, Interval(MINUTE, {2: spent, 3: 0}, 0, 0, spent // 10, 0))
    made.add_runs(20 * MINUTE, [ForeignRun(PROGRAM, 2, int(5 * foreign * SECOND))])
    made.book(60 * MINUTE, Interval(MINUTE, {2: 0, 3: 0}, 0, 0, 0, 0))
    return made


def report(made: OwnerBook, since: int = 0, now: int = 60 * MINUTE, **more: Any) -> Any:
    return pod_report(figures_between(made, since, now), clock, **more)


DRIFT = {"repairs": {"tuned": 2}, "last": 1.0, "why": HOSTILE}


def test_the_document_is_as_its_schema_describes_it() -> None:
    pods = [report(book(), drift=DRIFT), report(book("calm", 0))]
    checked("isolation", document(pods, clock(0), clock(60 * MINUTE)))
    checked("isolation", with_slo(document(pods, clock(0), clock(60 * MINUTE)), 99.9))
    checked("isolation", document([], clock(0), clock(60 * MINUTE)))


def test_the_worst_minute_has_its_cause_and_what_to_do() -> None:
    found = report(book())
    assert found["worst"]["minute"] == clock(20 * MINUTE)
    assert (found["worst"]["cpu"], found["worst"]["seconds"]) == (2, 3.0)
    assert found["worst"]["cause"]["kind"] == "host"
    assert "CPUAffinity= of backup.service (systemctl edit backup.service)" in found["worst"]["advice"]
    assert found["parts"]["unseen"]["seconds"] == 10 * 60 * 2
    assert any("600 s of the period had no samples" in text for text in found["limits"])
    assert [each["share"] is None for each in found["bins"]].count(True) > 2


def test_a_pod_without_foreign_time_has_no_worst_minute() -> None:
    found = report(book("calm", 0), since=40 * MINUTE)
    assert found["worst"] is None
    assert "no minute had foreign time" in "\n".join(texts.lines(found, None))


@pytest.mark.parametrize(("made", "percent", "verdict"), [
    (book("calm", 0), 10, Slo.KEPT), (book("calm", 0), 99.9, Slo.UNDECIDED), (book("noisy", 9), 99.9, Slo.MISSED)])
def test_an_objective_is_compared_with_the_bounds(made: OwnerBook, percent: float, verdict: Slo) -> None:
    """Ten minutes of the hour were not seen."""
    assert slo_of(report(made), percent) is verdict


def test_one_that_missed_counts_more_than_one_that_is_undecided() -> None:
    pods = [report(book("calm", 0)), report(book("noisy", 9))]
    assert with_slo(document(pods, "", ""), 99.9)["slo"]["verdict"] == "missed"
    assert with_slo(document(pods[:1], "", ""), 99.9)["slo"]["verdict"] == "undecided"
    assert with_slo(document([], "", ""), 99.9)["slo"]["verdict"] == "kept"


def test_the_text_has_80_columns_and_nothing_that_steers_a_terminal() -> None:
    made = book()
    made.pod = HOSTILE * 4
    lines = list(texts.lines(with_slo(document([report(made, drift=DRIFT)], "", ""), 99.9)["pods"][0], 99.9, 79))
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)
    assert "SLO 99.9 %: " in lines[-1]


@pytest.mark.parametrize(("cpus", "words"), [("2-4", "its 3 exclusive CPUs 2-4"), ("7", "its 1 exclusive CPU 7"),
                                             ("", "its former exclusive CPUs")])
def test_the_first_line_counts_the_cpus(cpus: str, words: str) -> None:
    assert words in texts.headline({**report(book()), "cpus": cpus})


@pytest.mark.parametrize("share", [0.9999999, 0.99999])
def test_a_share_is_never_rounded_up_to_all(share: float) -> None:
    assert texts.percent(share) == "99.999 %"
    assert texts.percent(1.0) == "100.000 %"
    assert texts.percent(1e-9) == "<0.001 %"


@pytest.mark.parametrize("kind", ProgramKind)
def test_each_kind_of_program_has_advice(kind: ProgramKind) -> None:
    for name in ("kworker/u8:1", "ksoftirqd/2"):
        program = ForeignProgram(kind, name, "backup")
        assert len(advice(program, "2-3")) > 40
        assert title(program).startswith(name)
        assert [key for key in OTHER_KEYS if key in advice(program, "2-3")] == []


@pytest.mark.parametrize("stopped", [2, 10, 30])
def test_time_in_which_the_watcher_was_stopped_is_not_seen_in_text_bars_and_seconds_alike(stopped: int) -> None:
    """Its next reading covers all of that time, in which nothing was sampled."""
    made = OwnerBook("shop", 0)
    made.namespace, made.pod, made.kind = "demo", "shop", "vm"
    made.cpus = CpuSet([2, 3])
    made.begin(0, 48 * 10**6)
    now, after = 0, 5 * MINUTE + stopped * MINUTE
    while now < after + 5 * MINUTE:
        elapsed = stopped * MINUTE if now == 5 * MINUTE else 10 * SECOND
        now += elapsed
        booked = made.book(now, Interval(elapsed, {2: elapsed // 10, 3: 0}, 0, 0, 0, 0))
        assert booked is (elapsed < MINUTE)
    found = report(made, now=now)
    gap = stopped * 60
    assert found["seconds"] == 600 + gap
    assert found["parts"]["unseen"]["seconds"] == 2 * gap
    assert found["parts"]["had"]["seconds"] + found["parts"]["unidentified"]["seconds"] == 2 * 600
    assert sum(part["share"] for part in found["parts"].values()) == pytest.approx(1, abs=1e-6)
    blank = [each["start"] for each in found["bins"] if each["share"] is None]
    assert blank == [clock((5 + minute) * MINUTE) for minute in range(stopped)] + [
        each["start"] for each in found["bins"][-1:] if each["share"] is None]
    assert texts.curve(found).count("·") == len(blank)
    text = "\n".join(texts.lines(found, None))
    assert "had no samples" in text
    assert found["worst"]["share"] == pytest.approx(0.05, abs=0.01)
    assert found["bounds"]["most"] - found["bounds"]["least"] >= 2 * gap


def test_a_scope_has_no_file_to_edit() -> None:
    """It is transient, and takes no CPUAffinity= (systemd.scope(5)): a session's, or that of a container's monitor."""
    program = ForeignProgram(ProgramKind.HOST, "conmon", "/system.slice/crio-conmon-1.scope")
    assert "CPUAffinity= of its unit, or in /etc/systemd/system.conf" in advice(program, "2-3")
