"""What is booked of owners of exclusive CPUs, round by round."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from exclusive import Owner
from strayed import Spinners, burner_on, run_for, spinners

from vmpin.features.isolation.books_database import IsolationKeeper
from vmpin.features.isolation.isolation_books import ProgramKind
from vmpin.features.isolation.isolation_observer import IsolationObserver
from vmpin.features.isolation.isolation_shares import Figures
from vmpin.host import boottime


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Spinners]:
    with spinners(tmp_path) as made:
        yield made


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as child:
        yield child.pid
        child.kill()


@pytest.fixture
def burning(node: Spinners, tmp_path: Path) -> Iterator[tuple[int, str]]:
    with burner_on(node.there, tmp_path) as made:
        yield made


@pytest.fixture
def burner(burning: tuple[int, str]) -> int:
    return burning[0]


#: Of the test.
KEEPERS: list[IsolationKeeper] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while KEEPERS:
        KEEPERS.pop().close()


def observing(node: Spinners) -> IsolationObserver:
    """Processes are scanned in each round."""
    keeper = IsolationKeeper(None, "boot")
    asyncio.run(keeper.load())
    KEEPERS.append(keeper)
    return IsolationObserver(node.reconciler.view, keeper, scan_share=float("inf"))


def a_round(observer: IsolationObserver) -> None:
    time.sleep(0.02)  # a reading that is a millisecond old is used again
    observer.refresh()
    observer.round_ended()
    while observer.go_on(1.0):
        pass


def sums(observer: IsolationObserver, owner: Owner) -> dict[str, int]:
    """Of each column until now (ms)."""
    return figures(observer, owner).account._asdict()


def figures(observer: IsolationObserver, owner: Owner) -> Figures:
    observer.keeper.write(0.0)
    figures = observer.keeper.figures(observer.books.owners[owner.sandbox].described, 0, boottime.now(), 48).result()
    assert figures is not None
    return figures


@pytest.mark.parametrize("below", ["", "/init.scope", "/system.slice/a.service"])
def test_what_a_container_runs_below_its_cgroup_is_its_own(node: Spinners, sleeper: int, below: str) -> None:
    """Its first process is where systemd put it; most of its work is in other cgroups of the container."""
    owner = Owner(node, sleeper, node.there, below)
    observer = observing(node)
    a_round(observer)
    owner.ran("", 1000)
    a_round(observer)
    found = sums(observer, owner)
    assert found["seen"] > 0
    assert found["foreign"] < found["seen"] - 999_000
    moved = "/elsewhere"
    owner.ran(moved, 0)
    (node.root / "proc" / str(sleeper) / "cgroup").write_text(f"0::{owner.cgroup}{moved}\n")
    owner.ran("", 2000)
    a_round(observer)
    assert sums(observer, owner)["foreign"] < sums(observer, owner)["seen"] - 1_999_000


def test_what_burns_the_cpu_is_booked_with_its_name_and_no_more_than_was_foreign(node: Spinners, sleeper: int,
                                                                                 burning: tuple[int, str]) -> None:
    burner, name = burning
    owner = Owner(node, sleeper, node.there)
    observer = observing(node)
    a_round(observer)
    for _ in range(3):
        run_for(0.1, burner)
        a_round(observer)
    found = sums(observer, owner)
    assert found["foreign"] > 250
    book = observer.books.owners[owner.sandbox]
    sums_until_now = figures(observer, owner)
    programs = {program.name: program for program in sums_until_now.by_program}
    assert programs[name].kind in (ProgramKind.HOST, ProgramKind.CONTAINER)
    assert max(sums_until_now.by_program.values()) <= found["foreign"] + 1
    assert (book.namespace, book.pod, book.kind) == ("shop", "web", "runc")


def test_what_the_owner_itself_runs_is_not_foreign(node: Spinners, sleeper: int, burning: tuple[int, str]) -> None:
    burner, name = burning
    owner = Owner(node, sleeper, node.there)
    owner.holds(burner, "/init.scope")
    observer = observing(node)
    a_round(observer)
    for _ in range(2):
        run_for(0.1, burner)  # and the files have nothing of it
        a_round(observer)
    assert sums(observer, owner)["foreign"] > 100
    assert name not in {program.name for program in figures(observer, owner).by_program}


def test_an_owner_that_loses_its_first_process_begins_again(node: Spinners, sleeper: int) -> None:
    owner = Owner(node, sleeper, node.there)
    observer = observing(node)
    a_round(observer)
    a_round(observer)
    seen = sums(observer, owner)["seen"]
    (node.root / "cgroup" / owner.cgroup.lstrip("/") / "cpu.stat").unlink()
    a_round(observer)
    assert sums(observer, owner)["seen"] == seen  # not seen, and not foreign
    owner.ran("", 0)
    a_round(observer)
    assert sums(observer, owner)["seen"] == seen
    a_round(observer)
    assert sums(observer, owner)["seen"] > seen
    assert sums(observer, owner)["slack"] > 0


def test_rounds_at_the_same_moment_begin_no_series_anew(node: Spinners, sleeper: int) -> None:
    """As two commands may ask for one: each beginning widens the bounds."""
    owner = Owner(node, sleeper, node.there)
    observer = observing(node)
    a_round(observer)
    slack = sums(observer, owner)["slack"]
    fresh, observer.fresh = observer.fresh, 3600 * 10**9  # one reading for all
    for _ in range(3):
        a_round(observer)
    assert sums(observer, owner)["slack"] == slack
    observer.fresh = fresh
    owner.ran("", 1000)
    a_round(observer)
    assert sums(observer, owner)["seen"] > 0


def test_foreign_seconds_by_cpu_only_grow(node: Spinners, sleeper: int, burner: int) -> None:
    owner = Owner(node, sleeper, node.there)
    observer = observing(node)
    a_round(observer)
    last = 0.0
    for ran in (0, 0, 1000, 1000):  # the third reading shows less foreign time than none
        run_for(0.05, burner)
        owner.ran("", ran)
        a_round(observer)
        now = observer.foreign_seconds().get(node.there.first, 0.0)
        assert now >= last
        last = now
    assert last > 0.04


def test_foreign_seconds_are_also_by_owner_as_long_as_it_is_there(node: Spinners, sleeper: int, burner: int) -> None:
    owner = Owner(node, sleeper, node.there)
    observer = observing(node)
    a_round(observer)
    run_for(0.1, burner)
    a_round(observer)
    assert observer.foreign_by_sandbox() == {owner.sandbox: observer.foreign_seconds()}
    had = observer.foreign_seconds()[node.there.first]
    assert had > 0.05
    owner.gone()
    a_round(observer)
    assert observer.foreign_by_sandbox() == {}
    assert observer.foreign_seconds()[node.there.first] == had


def test_a_pod_whose_cpus_are_no_longer_exclusive_is_watched_without_them(node: Spinners, sleeper: int) -> None:
    owner = Owner(node, sleeper, node.there)
    observer = observing(node)
    a_round(observer)
    a_round(observer)
    assert observer.owns(owner.sandbox)
    assert sums(observer, owner)["without"] == 0
    owner.shares()
    a_round(observer)
    assert not observer.owns(owner.sandbox)
    before = sums(observer, owner)
    a_round(observer)
    after = sums(observer, owner)
    assert after["without"] > before["without"]
    assert after["watched"] - before["watched"] == pytest.approx(after["without"] - before["without"], abs=2)
    assert after["seen"] == before["seen"]
