"""The doctor's check of repairs of runc containers."""

from __future__ import annotations

import pytest
from healthy_node import facts, verdict

from vmpin.domain.facts import Daemon

ON = {"runc.repair": "true"}


@pytest.mark.parametrize("daemon", [Daemon("dra-driver-cpu", "dracpu", 4), Daemon("koordinator", "koordlet", 4)])
def test_two_writers_of_the_same_cpusets_are_bad(daemon: Daemon) -> None:
    result = verdict("runc-repair", facts(daemons=(daemon,), settings=ON))
    assert (result.level.value, result.evidence) == ("bad", (f"{daemon.name} pid 4",))
    assert f"{daemon.kind} write" in result.what


@pytest.mark.parametrize("daemon", [Daemon("cri-resmgr", "cri-resmgr", 4), Daemon("numad", "numad", 4),
                                    Daemon("cmk", "cmk.py", 4), Daemon("mixed-cpus", "mixedcpu", 4)])
def test_other_programs_write_none_of_these_cpusets(daemon: Daemon) -> None:
    assert verdict("runc-repair", facts(daemons=(daemon,), settings=ON)).level.value == "ok"


def test_while_it_is_off_no_other_writer_matters() -> None:
    result = verdict("runc-repair", facts(daemons=(Daemon("koordinator", "koordlet", 4),)))
    assert (result.level.value, result.evidence) == ("ok", ())


def test_where_no_process_is_seen_the_result_is_unknown() -> None:
    assert verdict("runc-repair", facts(sees=False, settings=ON)).level.value == "unknown"
