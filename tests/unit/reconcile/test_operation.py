"""One number ties the log lines of one event together: from the source's line to the masks that were read back."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from collections.abc import Iterator

import pytest
from newcomers import Machine, mask, sandbox

from vmpin import log
from vmpin.host import boottime
from vmpin.reconcile.intake import take_hook
from vmpin.runtime.oci import parse_hook

pytest_plugins = ["given_unit"]


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What vmpin logs meanwhile, as on a terminal."""
    written, vmpin = io.StringIO(), logging.getLogger("vmpin")
    handler, level = logging.StreamHandler(written), vmpin.level
    handler.setFormatter(log.Text())
    vmpin.addHandler(handler)
    vmpin.setLevel(logging.DEBUG)
    yield written
    vmpin.removeHandler(handler)
    vmpin.setLevel(level)


def created(machine: Machine, name: str, cpus: str) -> bytes:
    """A hook's message: a container of the sandbox is created."""
    bundle = machine.path / f"bundle-{name}"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps({"linux": {"resources": {"cpu": {"cpus": cpus}}}}))
    state = {"id": f"main-{name}", "pid": 0, "bundle": str(bundle), "annotations": {
        "io.kubernetes.cri.sandbox-id": sandbox(name), "io.kubernetes.cri.container-type": "container"}}
    head = f"vmpin-hook/1 stage=createRuntime boot={boottime.now()}\n"
    return head.encode() + json.dumps(state).encode()


def test_one_hook_message_is_followed_by_its_number_to_the_mask_that_was_read_back(
        machine: Machine, lines: io.StringIO) -> None:
    vmm = machine.vmm("a")
    machine.reconciler.resync(full=True)
    lines.truncate(0)
    raw = created(machine, "a", str(machine.other))
    with log.operation() as number:  # as the watcher does
        sandboxes = take_hook(machine.node_state, parse_hook(raw))
        assert sandboxes == {sandbox("a")}
        machine.reconciler.reconcile(sandboxes)
    assert mask(vmm) == machine.other
    found = lines.getvalue().lstrip("\0").splitlines()
    assert all(line.endswith(f" op={number}") for line in found)
    steps = (rf"received source=hook sandboxes={sandbox('a')} op=",
             rf"placed sandbox={sandbox('a')} verdict=\w+ mask={machine.other} op=",
             rf"sandbox {sandbox('a')}: set emulator \(thread {vmm.pid}, .*\) to CPUs {machine.other}, was .* op=",
             rf"pinned sandbox={sandbox('a')} threads=1 mask={machine.other} verdict=\w+ op=")
    at = [next(index for index, line in enumerate(found) if re.search(step, line)) for step in steps]
    assert at == sorted(at)


def test_each_event_has_a_number_of_its_own_and_what_it_leads_to_has_the_same() -> None:
    with log.operation() as first, log.operation() as inner:
        assert inner == first
    with log.operation() as second:
        assert second == first + 1


def test_a_line_outside_any_event_has_no_number(lines: io.StringIO) -> None:
    logging.getLogger("vmpin.test").info("idle")
    assert lines.getvalue().endswith("idle\n")


def test_a_line_of_another_thread_has_no_number(lines: io.StringIO) -> None:
    with log.operation():
        thread = threading.Thread(target=logging.getLogger("vmpin.test").info, args=("from the plugin",))
        thread.start()
        thread.join()
    assert lines.getvalue().endswith("from the plugin\n")


@pytest.mark.parametrize("as_json", [False, True])
def test_each_format_has_the_number(as_json: bool, capsys: pytest.CaptureFixture[str],
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """Of JSON it is a member of its own; conftest.py restores the handlers."""
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    log.setup("info", as_json)
    with log.operation() as number:
        logging.getLogger("vmpin.test").info("took messages=%d", 1)
    (line,) = capsys.readouterr().err.splitlines()
    if as_json:
        entry = json.loads(line)
        assert (entry["message"], entry["op"]) == ("took messages=1", number)
    else:
        assert line == f"<6>took messages=1 op={number}"
