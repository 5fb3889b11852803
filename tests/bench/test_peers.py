"""The comparison with other programs: its pure middle, and the parts that need none of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from enclosure import Enclosure
from peers import grants, greedy, histories, judge, machines, quality, report
from peers.figures import Comparison, Conditions, Measure, Part
from peers.histories import Grant
from peers.machines import Event, Machine
from waiting import wait

BENCH = Path(__file__).parent


def verdicts(*samples: tuple[str, list[float]], busy: bool = False, **more: Any) -> dict[str, str]:
    return {row.subject: row.verdict for row in Measure("m", "ms", dict(samples), **more).rows(busy)}


def test_a_ratio_is_the_median_over_the_pairs_of_a_round() -> None:
    measure = Measure("m", "ms", {"peer": [2, 60, 9], "vmpin": [1, 20, 3]})
    assert [(row.subject, row.median, row.least, row.ratio) for row in measure.rows(False)] == [
        ("vmpin", 3, 1, None), ("peer", 9, 2, 3)]
    assert replace(measure, pairs=False, samples={"vmpin": [2], "peer": [1, 8, 9]}).rows(False)[1].ratio == 4


@pytest.mark.parametrize(("ours", "theirs", "verdict"), [
    (2.0, 5.0, "2.5 times better"), (5.0, 2.0, "2.5 times worse"), (1.0, 1.05, "even"), (0.0, 0.0, "even"),
    (0.0, 0.1, "better"), (0.1, 0.0, "worse")])
def test_the_verdict_is_on_vmpin(ours: float, theirs: float, verdict: str) -> None:
    assert verdicts(("vmpin", [ours]), ("peer", [theirs])) == {"vmpin": "", "peer": verdict}


def test_where_more_is_better_the_verdict_turns() -> None:
    assert verdicts(("vmpin", [2.0]), ("peer", [5.0]), rises=True)["peer"] == "2.5 times worse"
    assert verdicts(("vmpin", [2.0]), ("peer", [0.0]), rises=True)["peer"] == "better"


def test_a_busy_machine_gives_no_verdict_on_times_and_one_on_counts() -> None:
    assert verdicts(("vmpin", [1]), ("peer", [2]), busy=True)["peer"] == ""
    assert verdicts(("vmpin", [1]), ("peer", [2]), busy=True, timed=False)["peer"] == "2 times better"


def test_without_the_reference_there_is_neither_ratio_nor_verdict() -> None:
    [row] = Measure("m", "ms", {"peer": [1]}).rows(False)
    assert (row.ratio, row.verdict) == (None, "")


def comparison(others: float) -> Comparison:
    measure = Measure("a mask", "ms", {"vmpin": [1, 1.5], "virsh": [4, 8]})
    return Comparison({"processor": "P"}, 4, [Part("masks", "Masks", [measure], ["taskset, which is not installed"],
                                                   Conditions(0.3, others, 9))])


def test_a_report_has_the_load_the_verdict_and_what_was_left_out() -> None:
    quiet, busy = (report.table(comparison(others)) for others in (1.0, 50.0))
    assert "load 0.3, others took 1.0 % of the CPUs" in quiet
    assert "vmpin: 4.67 times better" in quiet
    assert "left out: taskset, which is not installed" in quiet
    assert "BUSY" not in quiet
    assert "times better" not in busy
    assert "no verdict on their times" in busy


def test_the_table_for_the_documentation_has_a_row_for_each_peer() -> None:
    text = report.markdown(comparison(1.0))
    assert "| a mask, ms | 1.25 (1) | virsh | 6 (4) | 4.67 |" in text.splitlines()
    assert "Left out: taskset, which is not installed." in text
    assert "times without a verdict" in report.markdown(comparison(50.0))


def test_several_measures_of_many_subjects_have_a_column_for_each_and_what_is_better_is_bold() -> None:
    measures = [Measure("start", "ms", {"vmpin": [4], "a": [1], "b": [8]}), Measure("rest", "%", {"vmpin": [2]})]
    single = report.markdown(Comparison({}, 4, [Part("masks", "Masks", measures[:1])])).splitlines()
    assert single[-4:] == ["|---|---|---|", "| vmpin | 4 | - |", "| a | **1** | 0.25 |", "| b | 8 | 2 |"]
    lines = report.markdown(Comparison({}, 4, [Part("events", "Events", measures)])).splitlines()
    assert lines[-4:] == ["| | vmpin | a | b |", "|---|---|---|---|", "| start, ms | 4 | **1** | 8 |",
                          "| rest, % | 2 |  |  |"]


def test_the_document_has_each_row_and_whether_the_machine_was_busy() -> None:
    document = json.loads(json.dumps(comparison(50.0).document()))
    assert document["busy"] is True
    [part] = document["parts"]
    assert (part["name"], part["busy"], part["others_percent"]) == ("masks", True, 50.0)
    assert [row["subject"] for row in part["measures"][0]["rows"]] == ["vmpin", "virsh"]


#: Two nodes of two cores of two threads, the first core reserved.
SMALL = replace(machines.shaped(8, 2, 2, 2), events=(Event(0, 2), Event(1, 1), Event(0, 0), Event(2, 2)))


def test_a_machine_has_its_groups() -> None:
    assert SMALL.core == [0, 1, 2, 3, 0, 1, 2, 3]
    assert SMALL.node == [0, 0, 1, 1, 0, 0, 1, 1]
    assert SMALL.usable == {1, 2, 3, 5, 6, 7}
    assert SMALL.topology.node_of(6) == 1


def test_the_judge_counts_nodes_caches_and_parts_of_cores() -> None:
    assert judge.spread(SMALL, frozenset((1, 5))) == (1, 0, 1, 0)
    assert judge.spread(SMALL, frozenset((1, 2, 6))) == (2, 12, 2, 1)
    assert judge.left(SMALL, SMALL.usable - {2}) == (2, 0, 0, 3)


def parsed(*entries: dict[str, Any], machine: Machine = SMALL) -> dict[int, Grant]:
    raw = json.dumps({"version": 1, "peer": "p", "machines": [{"id": machine.id, "grants": entries}]})
    peer = grants.parse(raw.encode(), [machine])
    assert peer.peer == "p"
    return peer.grants[machine.id]


def test_grants_of_a_peer_are_read_with_their_times_and_refusals() -> None:
    read = parsed({"id": 0, "cpus": [1, 5], "us": 3.5}, {"id": 1, "refused": "no"}, {"id": 2, "cpus": [5, 1]})
    assert read == {0: Grant(frozenset((1, 5)), 3.5), 1: Grant(None), 2: Grant(frozenset((1, 5)))}


@pytest.mark.parametrize(("cpus", "text"), [
    ([1], "are 1"), ([0, 1], r"has \[0\], not free"), ([5, 6], r"has \[5\], not free"), ([7, 99], r"has \[99\]")])
def test_a_grant_that_is_not_legal_names_machine_and_request(cpus: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=rf"machine 0, request 2 for 2 CPUs: .*{text}"):
        parsed({"id": 0, "cpus": [1, 6]}, {"id": 1, "cpus": [5]}, {"id": 2, "cpus": cpus})


@pytest.mark.parametrize(("raw", "text"), [
    (b"[]", "not as documented"), (b'{"version": 2}', "version 2"), (b"{", "Expecting"),
    (b'{"version": 1, "peer": "p", "machines": [{"id": 7, "grants": []}]}', "machine 7 is not among"),
    (b'{"version": 1, "peer": "p", "machines": [{"id": 0, "grants": []}]}', "no grant for request 0")])
def test_a_file_of_grants_that_is_wrong_says_what(raw: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        grants.parse(raw, [SMALL])


def test_a_duel_counts_each_side_s_worse_grants_and_what_is_left() -> None:
    def of(first: set[int], last: set[int]) -> dict[int, dict[int, Grant]]:
        given = {0: first, 1: {7}, 2: last}
        return {0: {number: Grant(frozenset(cpus)) for number, cpus in given.items()}}

    counted = quality.duel([SMALL], of({1, 5}, {1, 5}), of({1, 2}, {2, 6}))
    assert (counted.grants, counted.worse, counted.better) == (3, 1, 0)
    assert tuple(counted.fewer) == (2, 1, 1, 3)
    assert tuple(counted.more) == (0, 0, 0, 0)


def test_every_allocator_gets_the_same_requests_and_gives_legal_grants() -> None:
    made = histories.made(9)
    assert machines.document(made) == machines.document(histories.made(9))
    for machine in made[:9]:
        for allocator in (greedy.vmpin, greedy.greedy):
            played = histories.played(machine, allocator)
            entries = [{"id": number, **({"refused": ""} if grant.cpus is None else {"cpus": sorted(grant.cpus)})}
                       for number, grant in played.items()]
            assert parsed(*entries, machine=machine).keys() == played.keys()


def test_no_grant_of_vmpin_s_is_worse_than_the_best_of_all_sets() -> None:
    worse = quality.oracle(60).samples
    assert worse["vmpin"] == [0]
    assert worse["greedy"][0] > 0


#: A process that its parent leaves behind, and that is there, having worked, at the end.
_LEFT = """
import os, sys, time
if os.fork():
    os._exit(0)
while time.process_time() < 0.5:
    pass
open(sys.argv[1], "w").close()
time.sleep(3600)
"""


@pytest.mark.root
def test_what_is_left_in_an_enclosure_counts_as_the_benchmark_s_own_work(tmp_path: Path) -> None:
    """Shims run so, with their containers. Their CPU time is not other programs' (conditions.Meter)."""
    worked, before = tmp_path / "worked", os.times()
    with Enclosure() as enclosure:
        enclosure.popen([sys.executable, "-IS", "-c", _LEFT, str(worked)])
        wait(worked.exists, "the process does not end its work")
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system >= 0.5


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "peers", *args], env={**os.environ, "PYTHONPATH": str(BENCH)},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)


def test_the_parts_without_peers_run_and_write_their_figures(tmp_path: Path) -> None:
    file = tmp_path / "made/peers.json"
    done = run("--quick", "--only", "quality", "--only", "decisions", "-o", "json", "--file", file)
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert document == json.loads(done.stdout)
    assert [part["name"] for part in document["parts"]] == ["quality", "decisions"]
    for part in document["parts"]:
        assert part["skipped"] == ["the peers' allocators: give their grants by --grants FILE"]
        assert all(row["subject"] in ("vmpin", "greedy") for measure in part["measures"] for row in measure["rows"])
    assert "measuring quality" in done.stderr


def test_grants_for_the_written_requests_are_compared(tmp_path: Path) -> None:
    requests, answers = tmp_path / "requests.json", tmp_path / "grants.json"
    assert run("--requests", requests).returncode == 0
    machine = next(entry for entry in json.loads(requests.read_text())["machines"] if entry["purpose"] == "decisions")
    refused = [{"id": event["id"], "refused": "always", "us": 2} for event in machine["events"] if event["cpus"]]
    answers.write_text(json.dumps({"version": 1, "peer": "none", "machines": [
        {"id": machine["id"], "grants": refused}]}))

    done = run("--only", "decisions", "--grants", answers, "-o", "json")
    assert done.returncode == 0, done.stderr
    [part] = json.loads(done.stdout)["parts"]
    assert {row["subject"]: row["median"] for row in part["measures"][0]["rows"]}["none"] == 2


def test_grants_that_cannot_be_read_fail_the_part(tmp_path: Path) -> None:
    (tmp_path / "grants.json").write_text("{}")
    done = run("--only", "quality", "--grants", tmp_path / "grants.json")
    assert done.returncode == 1
    assert "quality: not measured: grants: the grants are not as documented" in done.stdout
