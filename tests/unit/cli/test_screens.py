"""What a person sees at 80 and at 200 columns, as files beside this one. Where a screen is meant to change, write them
again, and read the difference: `GOLDEN=write python -m pytest tests/unit/cli/test_screens.py`.
"""

from __future__ import annotations

import copy
import io
import json
import os
import re
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import recorded_isolation
import recorded_node
import recorded_reports
from documents import checked
from fleet_given import mixed
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from vmpin.cli import control_client
from vmpin.cli.main import main
from vmpin.cli.output import Block, blocks_of, lines_of
from vmpin.domain.wrapping import wrapped
from vmpin.features.allocator.verbs import alloc
from vmpin.features.cluster.verbs import all_nodes
from vmpin.features.memory import memory_nodes
from vmpin.features.network import network_inspection
from vmpin.features.proof.verbs.run_times import total

GOLDEN = Path(__file__).parent / "golden"
SCREENS = {
    "status": "status", "status-one": "status web-7d9f8c6b5-x2zkp", "status-wide": "status -o wide",
    "status-problems": "status --problems",
    "status-explain": "status shop/db-0 --explain", "verify": "verify --since 24h", "plan": "plan",
    "unpin": "unpin --every --dry-run", "repin": "repin", "alloc": "alloc", "alloc-wide": "alloc -o wide",
    "isolation": "isolation --all --slo 99.9", "isolation-pod": "isolation 5f2c8e91d0b7 --slo 99.9",
    "all-nodes": "status --all-nodes", "all-nodes-wide": "status --all-nodes -o wide",
    "verify-all-nodes": "verify --all-nodes", "doctor": "doctor", "doctor-wide": "doctor -o wide",
    "verify-others": "verify --others", "verify-others-strict": "verify --others --strict", "map": "map",
    "gather": "gather --dry-run"}


class Pipe(io.StringIO):
    @property
    def buffer(self) -> io.BytesIO:
        """For an archive, which a listing does not write."""
        return io.BytesIO()


class Terminal(Pipe):
    """Without colours (NO_COLOR)."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What a watcher answers, by operation; and every node of a cluster."""
    given = {**recorded_node.answers(), "isolation": recorded_isolation.isolation()}

    def ask_raw(config: object, request: dict[str, Any], *_: object, **__: object) -> bytes:
        return json.dumps(given[request["op"]]).encode()

    monkeypatch.setattr(control_client, "ask_raw", ask_raw)
    for module, name in ((network_inspection, "add_networks"), (memory_nodes, "add_memory")):
        monkeypatch.setattr(module, name, lambda *_: None)  # of real processes of these numbers
    # No other way in: the nodes of a cluster are read from an API server.
    monkeypatch.setattr(all_nodes, "_read", lambda args, everything=False: mixed())
    recorded_reports.replace_readers(monkeypatch, given["status"])
    # No other way in: ages in the table are by the clock.
    monkeypatch.setattr(alloc, "_now", lambda: datetime.fromisoformat(recorded_node.NOW))
    monkeypatch.setenv("TERM", "dumb")  # nor bold
    monkeypatch.chdir(tmp_path)
    return given


def screen(command: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that are shown; 0 columns: in a pipe."""
    monkeypatch.setenv("COLUMNS", str(columns or 80))
    with redirect_stdout(Terminal() if columns else Pipe()) as page:
        main(["--set", "allocate.mode=off", *command.split()])
    return page.getvalue().splitlines()


def test_what_is_shown_here_is_what_a_watcher_answers() -> None:
    given = {**recorded_node.answers(), "isolation": recorded_isolation.isolation()}
    checked("status", given["status"])
    checked("alloc", given["allocations"])
    checked("plan", given["plan"])
    checked("unpin-dry-run", given["unpinning"])
    checked("repin", given["reconcile"])
    checked("isolation", given["isolation"])
    checked("verify", {"version": 1, "ok": True, "threads": 0, "sandboxes": 0, "drift": [], "collisions": [],
                       "contested": [], "unmanaged": [], "unknown_owners": [], "unknown_vms": [],
                       "proof": {**given["proof"], "total": total(given["proof"])}})


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was(name: str, columns: int, answers: dict[str, Any],
                               monkeypatch: pytest.MonkeyPatch) -> None:
    lines = screen(SCREENS[name], columns, monkeypatch)
    assert max(map(len, lines)) <= columns
    file = GOLDEN / f"{name}-{columns}.txt"
    shown = f"$ vmpin {SCREENS[name]}\n" + "".join(f"{line.rstrip()}\n" for line in lines)
    if os.environ.get("GOLDEN") == "write":
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")


def test_every_golden_file_is_of_a_screen() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {
        f"{name}-{columns}" for name in SCREENS for columns in (80, 200)}


@pytest.mark.parametrize("name", SCREENS)
def test_ids_are_short_and_pods_are_named(name: str, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(screen(SCREENS[name], 0, monkeypatch))
    long = [id for id in re.findall(r"\b[0-9a-f]{13,64}\b", text) if f"sandbox {id} of" not in text
            and f"/{id}," not in text]
    assert long == []
    if "all-nodes" not in name and name != "gather":
        assert "shop/" in text


@pytest.mark.parametrize(("words", "lines"), [
    ("-o name", ["shop/db-0", "shop/web-7d9f8c6b5-x2zkp"]), ("shop/d* -o name", ["shop/db-0"]),
    ("-n shop --problems web* -o name", ["shop/web-7d9f8c6b5-x2zkp"]), ("-n shop -A -o name db-0", ["shop/db-0"]),
    ("-n demo -o name", []), ("-n demo", ["no VM sandbox in namespace 'demo' is on this node"]),
    ("x* --problems", ["no VM sandbox named 'x*' with a problem is on this node"]), ("-n demo --no-headers", []),
    ("db-0 --no-headers", ["shop/db-0 pinned qemu 48-51 4 5/5"]),
    ("--no-headers", ["shop/db-0 pinned qemu 48-51 4 5/5",
                      "shop/web-7d9f8c6b5-x2zkp degraded qemu 0-7,32-47,56-63 5 6/8"])])
def test_a_status_can_be_reduced_to_names_and_rows(words: str, lines: list[str], answers: dict[str, Any],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (0, 200):
        assert [" ".join(line.split()) for line in screen(f"status {words}", columns, monkeypatch)] == lines


@pytest.mark.parametrize(("words", "pods"), [
    ("", ["db-0", "web-7d9f8c6b5-x2zkp"]), ("--problems", ["web-7d9f8c6b5-x2zkp", "db-0"]), ("d*", ["db-0"]),
    ("-n demo", []), ("-n shop", ["db-0", "web-7d9f8c6b5-x2zkp"])])
def test_the_document_has_the_sandboxes_that_the_text_has(words: str, pods: list[str], answers: dict[str, Any],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads("\n".join(screen(f"status -o json {words}", 80, monkeypatch)))
    checked("status", document)
    assert [sandbox["pod"]["name"] for sandbox in document["sandboxes"]] == pods


def test_the_empty_name_is_no_sandbox_s(answers: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--set", "allocate.mode=off", "status", ""]) == 2
    assert "no VM sandbox '' is on this node" in capsys.readouterr().err


def test_two_sandboxes_of_a_pod_have_their_ids_for_names(answers: dict[str, Any],
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    for sandbox in answers["status"]["sandboxes"]:
        sandbox["pod"] = {**sandbox["pod"], "name": "db-0"}
    assert screen("status -o name -n shop", 80, monkeypatch) == [
        sandbox["id"] for sandbox in answers["status"]["sandboxes"]]


def test_a_map_of_a_namespace_leaves_out_the_vms_of_others(answers: dict[str, Any],
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    every, others = screen("map -n shop", 200, monkeypatch), screen("map -n demo", 200, monkeypatch)
    assert every == screen("map", 200, monkeypatch)
    assert [line for line in every if " degraded, on " in line]
    assert not [line for line in others if " degraded, on " in line or " pinned, on " in line]
    assert [line for line in others if line.startswith("COLLISION on CPU 48: exclusive to main of shop/db-0, but 1 "
                                                       "thread of shop/web-")]


@pytest.mark.parametrize("columns", [80, 200])
def test_the_configuration_fits_whatever_a_value_is(columns: int, answers: dict[str, Any],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """No golden file: each new key would change it."""
    path = "/var/" + "/".join(f"directory-{number}\x1b[2J\x07" for number in range(12))
    lines = screen(f"--set paths.kubelet={path} --set node.shared_pool=0-7,32-39,44-47,56-63,100-103 config", columns,
                   monkeypatch)
    assert max(map(len, lines)) <= columns
    assert all(line.isprintable() for line in lines)
    text = re.sub(r"\s|KEY|VALUE|FROM", "", "".join(lines))
    assert "policy.vhost" in text
    assert "56-63,100-103" in text


NAMES = ("name", "namespace", "what", "why", "reasons", "reason", "handler", "state", "path", "by", "text", "error",
         "runtime", "container", "pod", "group", "trouble", "last_error", "asked", "title", "where", "advice")


def hostile(node: Any, text: str, key: str = "") -> Any:
    """With this text in each name and sentence that comes from outside."""
    if isinstance(node, dict):
        return {name: hostile(value, text, name) for name, value in node.items()}
    if isinstance(node, list):
        return [hostile(value, text, key) for value in node]
    return node + text if isinstance(node, str) and key in NAMES else node


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(min_size=1, max_size=40), name=st.sampled_from([
    name for name in SCREENS if "all-nodes" not in name and "one" not in name and name != "status-explain"]))
@example(text="00000", name="map")
@example(text="w" * 40, name="map")
@example(text="w" * 40, name="doctor-wide")
@example(text="w" * 40, name="verify-others")
@example(text="w" * 40, name="gather")
def test_no_line_has_a_character_that_steers_a_terminal(text: str, name: str, answers: dict[str, Any],
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    kept = copy.deepcopy(recorded_node.answers())
    for operation, document in kept.items():
        answers[operation] = hostile(document, f"{text}\x1b[2J\x07\r\u202e")
    recorded_reports.replace_readers(monkeypatch, answers["status"], f"{text}\x1b[2J\x07\r\u202e")
    for columns in (0, 80, 200):
        page = "\n".join(screen(SCREENS[name], columns, monkeypatch))
        assert all(line.isprintable() for line in page.split("\n")), page
        if columns:
            assert max(map(len, page.split("\n"))) <= columns


TEXTS = st.lists(st.lists(st.text("ab0,- ", max_size=30), min_size=3, max_size=3), min_size=1, max_size=5)


@given(rows=TEXTS, width=st.integers(0, 120), spare=st.booleans(),
       keys=st.sampled_from([(), ("CPUS",), ("POD", "CPUS")]))
def test_a_table_loses_nothing_and_keeps_its_width(rows: list[list[str]], width: int, spare: bool,
                                                   keys: tuple[str, ...]) -> None:
    rows = [["POD", "CPUS", "WHY"], *rows]
    blocks = blocks_of(rows, width, ["WHY"] if spare else [], keys)
    if width == 0 or width > 50:
        assert blocks
    shown = {place for block in blocks for place in block.places}
    assert shown in ([{0, 1, 2}, {0, 1}] if spare else [{0, 1, 2}]) or not blocks
    for block in blocks:
        assert not width or sum(block.widths) + block.gap * (len(block.widths) - 1) <= width
        for row, lines in zip(rows, lines_of(rows, block), strict=True):
            for at, place in enumerate(block.places):
                assert "".join(line[at] for line in lines).replace(" ", "") == row[place].replace(" ", "")
    for block in blocks_of(rows, 0):
        assert [[cell.rstrip() for cell in line] for lines in lines_of(rows, block) for line in lines] == [
            [cell.rstrip() for cell in row] for row in rows]


def test_a_number_of_a_cpu_list_stays_whole() -> None:
    rows = [["POD", "CPUS"], ["shop/web-7d9f8c6b5-x2zkp", "0-7,32-39,44-47,56-63,100-103,110-117"]]
    (block,) = blocks_of(rows, 50)
    assert [line[1].rstrip() for line in lines_of(rows, block)[1]] == ["0-7,32-39,44-47,56-63,", "100-103,110-117"]


def test_columns_go_before_a_name_is_broken_and_the_least_important_first() -> None:
    rows = [["POD", "CPUS", "KERNEL", "LEAST"], ["shop/web-7d9f8c6b5-x2zkp", "9", "0.002 %", "0.1 %"]]
    spare = ["KERNEL", "LEAST"]
    places = {width: [list(block.places) for block in blocks_of(rows, width, spare)] for width in (60, 38, 32, 25)}
    assert places == {60: [[0, 1, 2, 3]], 38: [[0, 1, 3]], 32: [[0, 1]], 25: [[0, 1]]}
    assert [line[0].rstrip() for line in lines_of(rows, blocks_of(rows, 25, spare)[0])[1]] == [
        "shop/web-7d9f8c6b5-", "x2zkp"]


def test_a_table_without_room_is_cut_into_several_which_all_name_their_rows() -> None:
    rows = [["POD", "ROLE", "RAN", "WAITED", "MIGRATIONS"], ["shop/web-7d9f8c6b5-x2zkp", "vcpu", "3 s", "1 s", "17"]]
    assert blocks_of(rows, 37, keys=("POD", "ROLE")) == [
        Block([0, 1, 2, 3], [18, 4, 3, 6], 2), Block([0, 1, 4], [19, 4, 10], 2)]
    assert blocks_of(rows, 20, keys=("POD", "ROLE")) == []
    assert [block.places for block in blocks_of(rows, 42, keys=("POD", "ROLE"))] == [[0, 1, 2, 3], [0, 1, 4]]


def test_a_long_name_is_broken_at_a_sign_of_its_own() -> None:
    assert wrapped("shop/web-7d9f8c6b5-x2zkp", 16) == ["shop/web-", "7d9f8c6b5-x2zkp"]
    assert wrapped("service-7d9f8c6b5-x2zkp", 16) == ["service-", "7d9f8c6b5-x2zkp"]
    assert wrapped("a" * 20, 16) == ["a" * 16, "a" * 4]


LONG = "production/checkout-service-worker-7d9f8c6b5-x2zkp"


@pytest.mark.parametrize("name", [name for name in SCREENS if "all-nodes" not in name and "one" not in name])
def test_80_columns_are_enough_for_a_table_of_long_names(name: str, answers: dict[str, Any],
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(answers).replace("web-7d9f8c6b5-x2zkp", "web-7d9f8c6b5-x2zkp" + LONG)
    answers.update(json.loads(text))
    lines = screen(SCREENS[name], 80, monkeypatch)
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if re.match(r"(POD|SANDBOX|NODE) [a-z0-9]", line)]
