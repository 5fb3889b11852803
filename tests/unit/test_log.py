"""Every log line about a sandbox ends in its pod's name, once that is known."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vmpin import log
from vmpin.domain.model import Pod

PACKAGE = Path(log.__file__).parent
NAMES = {"a" * 64: "demo/shop", "main": "demo/shop", "b": "demo/db", "f": "x op=7,y/z"}
LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")
#: Words in the names of values that are a sandbox, or something of one.
WORDS = {"sandbox", "sandboxes", "container", "containers", "vm", "guest", "grant", "claim", "call", "impostor",
         "hook", "operation", "placement", "rival"}


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    written, logger = io.StringIO(), logging.getLogger("vmpin.named")
    handler = logging.StreamHandler(written)
    handler.setFormatter(log.Text())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    log.name_pods(lambda name: NAMES.get(name, ""))
    yield written
    logger.removeHandler(handler)
    log.name_pods(lambda name: "")


@pytest.mark.parametrize(("form", "args", "ending"), [
    ("pinned sandbox=%s threads=%d mask=%s", ("a" * 64, 9, "2-3"), "mask=2-3 pod=demo/shop"),
    ("moved 100%% %s %.1f%% container=%s: %r", ("x", 2.5, "main", "y"), "'y' pod=demo/shop"),
    ("misplaced container=%s sandbox=%s", ("main", "b"), "sandbox=b pod=demo/db"),
    ("received sandboxes=%s", (f"b,{'a' * 64},b,other",), "other pod=demo/db,demo/shop"),
    ("new sandbox=%s container=%s", ("unknown", "main"), "container=main pod=demo/shop"),
    ("new sandbox=%s", ("unknown",), "sandbox=unknown"),
    ("not of a sandbox: %s", ("main",), "not of a sandbox: main"),
    ("took messages=%d", (1,), "messages=1"),
    ("nothing", (), "nothing"),
    ("forged sandbox=%s", ("f",), "sandbox=f pod=x_op=7_y/z"),
])
def test_a_line_about_a_sandbox_ends_in_its_pod(form: str, args: tuple[object, ...], ending: str,
                                                lines: io.StringIO) -> None:
    logging.getLogger("vmpin.named").info(form, *args)
    assert lines.getvalue().endswith(f"{ending}\n")


@pytest.mark.parametrize("text", ["x pod=demo/shop", "x op=7", "x pod=demo/shop op=7", "x\n pod=demo/shop"])
@pytest.mark.parametrize("form", [log.Text, log._Journal])
def test_text_from_outside_feigns_neither_a_pod_nor_an_operation_nor_a_line(
        form: type[logging.Formatter], text: str, lines: io.StringIO) -> None:
    logger = logging.getLogger("vmpin.named")
    logger.handlers[0].setFormatter(form())
    logger.info("refused: %s", text)
    with log.operation() as number:
        logger.info("refused: %s", text)
        logger.info("pinned sandbox=%s: %s", "b", text)
    read = [re.search(r"( pod=\S+)?( op=\d+)?$", line) for line in lines.getvalue().splitlines()]
    assert [found and found.groups() for found in read] == [
        (" pod=-", None), (" pod=-", f" op={number}"), (" pod=demo/db", f" op={number}")]


@pytest.mark.parametrize("text", ["name sandbox=b", "x\nsandbox=b", "containers=1 container=main", "(sandboxes=b,x)"])
@pytest.mark.parametrize("form", [log.Text, log._Journal, log._Json])
@pytest.mark.parametrize("line", ["refused: %s", "refused %r sandbox=%s"])
def test_text_from_outside_names_no_sandbox(
        form: type[logging.Formatter], line: str, text: str, lines: io.StringIO) -> None:
    """A guest's error, a thread's name, an annotation: `vmpin logs` takes ids from a line."""
    logger = logging.getLogger("vmpin.named")
    logger.handlers[0].setFormatter(form())
    for value in (text, ValueError(text), OSError(2, text)):
        logger.info(line, *([value, "unknown"] if "sandbox" in line else [value]))
    logger.error("known keys=1 sandbox=%s: %s", "unknown", "a=b")
    named = [re.findall(r"\b(?:sandbox(?:es)?|container)=([^\s:\"]+)", text) for text in lines.getvalue().splitlines()]
    assert named == [["unknown"] if "sandbox" in line else []] * 3 + [["unknown"]]
    assert "a=b" in lines.getvalue()


def test_the_text_of_an_error_feigns_neither_a_pod_nor_a_line(lines: io.StringIO) -> None:
    logger = logging.getLogger("vmpin.named")
    logger.handlers[0].setFormatter(log.Text())
    try:
        raise ValueError("x\n12:00:00 INFO    pinned pod=demo/shop\nx pod=demo/shop op=7")
    except ValueError:
        logger.exception("failed")
    quoted = lines.getvalue().splitlines()[-2:]
    assert quoted == ["  12:00:00 INFO    pinned pod=demo/shop pod=-", "  x pod=demo/shop op=7 pod=-"]


def test_the_pod_stands_before_the_operation(lines: io.StringIO) -> None:
    with log.operation() as number:
        logging.getLogger("vmpin.named").info("pinned sandbox=%s", "b")
    assert lines.getvalue().endswith(f" sandbox=b pod=demo/db op={number}\n")


def test_a_line_can_bring_its_pod(lines: io.StringIO) -> None:
    logging.getLogger("vmpin.named").info("nri: %s", "RUN_POD", extra={"pod": Pod("demo", "web")})
    logging.getLogger("vmpin.named").info("nri: sandbox=%s", "b", extra={"pod": None})
    assert [line.split(" nri: ")[1] for line in lines.getvalue().splitlines()] == [
        "RUN_POD pod=demo/web", "sandbox=b pod=demo/db"]


@pytest.mark.parametrize("journal", [False, True])
def test_a_line_is_one_line_and_harmless_whatever_a_thread_is_named(
        journal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    if journal:
        monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    log.setup("info")
    logging.getLogger("vmpin.named").info("set thread 7 (%s)", "\x1b[2J\n\u202eé\x7f\ud800")
    assert capsys.readouterr().err.endswith("set thread 7 (\\x1b[2J\\n\\u202eé\\x7f\\ud800)\n")


@pytest.mark.parametrize("how", ["text", "journal", "json"])
def test_an_error_that_nobody_foresaw_is_logged_with_its_place(
        how: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Under systemd too; and what it quotes is harmless."""
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    if how == "journal":
        monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    log.setup("info", as_json=how == "json")
    log.name_pods(lambda name: NAMES.get(name, ""))
    try:
        raise ValueError("a thread named \x1b[2J")
    except ValueError:
        logging.getLogger("vmpin.named").exception("not reconciled sandbox=%s", "b")
    finally:
        log.name_pods(lambda name: "")
    printed = capsys.readouterr().err
    assert "test_an_error_that_nobody_foresaw_is_logged_with_its_place" in printed
    assert r"a thread named \x1b[2J" in printed or r"a thread named \u001b[2J" in printed
    assert "\x1b" not in printed
    assert (printed.count("\n") == 1) == (how != "text")
    if how == "journal":
        assert printed.endswith(" pod=demo/db\n")
    if how == "json":
        assert "Traceback" in json.loads(printed)["traceback"]


def test_json_has_the_pod_as_a_member(capsys: pytest.CaptureFixture[str]) -> None:
    log.name_pods(lambda name: NAMES.get(name, ""))
    log.setup("info", as_json=True)
    for sandbox in ("b", "unknown"):
        logging.getLogger("vmpin.named").info("pinned sandbox=%s", sandbox)
    log.name_pods(lambda name: "")
    named, other = map(json.loads, capsys.readouterr().err.splitlines())
    assert (named["message"], named["pod"]) == ("pinned sandbox=b", "demo/db")
    assert "pod" not in other


def test_a_line_below_the_level_looks_no_name_up(lines: io.StringIO) -> None:
    def refused(name: str) -> str:
        raise AssertionError(name)

    log.name_pods(refused)
    logging.getLogger("vmpin.named").debug("placed sandbox=%s", "b")
    assert lines.getvalue() == ""


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Each call of a logger in the sources, with its place."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS
                    and ast.unparse(node.func.value) == "logger"):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node


def is_about_a_sandbox(value: ast.expr) -> bool:
    """Whether an argument is a sandbox or something of one, by the names in its expression; a number is none."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("len", "sum"):
        return False
    names = {name for node in ast.walk(value)
             for name in ((node.id,) if isinstance(node, ast.Name) else (node.attr,) if isinstance(node, ast.Attribute)
                          else ())}
    return any(WORDS & set(name.lower().strip("_").split("_")) for name in names)


def test_each_call_of_a_logger_that_is_about_a_sandbox_names_it() -> None:
    """By a key that the log reads, or by the pod itself; the number of a process has its sandbox beside it."""
    nameless = []
    for place, call in calls():
        args = call.args[call.func.attr == "log":] if isinstance(call.func, ast.Attribute) else []
        form = args[0].value if isinstance(args[0], ast.Constant) else None
        assert isinstance(form, str), f"{place}: the format string is computed"
        about = any(map(is_about_a_sandbox, args[1:])) or re.search(r"\b(pid|thread|tid|vcpu)=%", form)
        if about and not log.subjects(form) and not any(keyword.arg == "extra" for keyword in call.keywords):
            nameless.append(f"{place}: {form}")
    assert nameless == []


def test_lines_that_others_cause_come_back_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limit = log.LineLimit(3, 60.0)

    def shown(lines: int) -> int:
        return [limit.spend(logging.ERROR) for _ in range(lines)].count(logging.ERROR)

    assert shown(9) == 3
    now += 59.0
    assert shown(9) == 0
    now += 1.0
    assert shown(9) == 1
    now += 130.0
    assert shown(1) + shown(9) == 2
    now += 1e6
    assert shown(9) == 3


def test_the_place_of_an_error_is_the_last_one() -> None:
    assert log.raised_at(ValueError()) == ""
    with pytest.raises(ValueError) as raised:
        json.loads("{")
    assert re.fullmatch(r"decoder\.py:\d+", log.raised_at(raised.value))


#: Logs more than any pipe holds, then waits for a line of input, and logs once more.
_LOGS = """
import logging, sys
from vmpin import log
log.setup("info")
logger = logging.getLogger("vmpin.x")
for number in range(1000):
    logger.info("%s", "x" * int(sys.argv[1]))
print("logged", flush=True)
input()
logger.info("after")
"""


@pytest.mark.parametrize("length", [500, 5000])
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_standard_error_that_is_not_read_holds_nothing_up(kind: str, length: int) -> None:
    """A container's pipe is read by containerd, a service's socket by journald; both may hang."""
    ours, theirs = (end.detach() for end in socket.socketpair()) if kind == "socket" else os.pipe()
    with subprocess.Popen([sys.executable, "-c", _LOGS, str(length)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=theirs, text=True) as process, open(ours, "rb") as end:
        os.close(theirs)
        assert process.stdin is not None
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], 120)[0]:
            process.kill()
            pytest.fail("it waits for a reader")
        read = bytearray()
        while select.select([end], [], [], 0)[0]:
            read += os.read(ours, 65536)
        process.stdin.write("\n")
        process.stdin.close()
        read += end.read()
    lines = read.decode().splitlines()
    whole = [line for line in lines if line.endswith("x" * length)]
    assert 0 < len(whole) < 1000
    assert lines[-1].endswith("INFO    after")
    assert lines[-2].endswith(f"WARNING lines lost={1000 - len(whole)}: standard error was not read")
    assert len(lines) - len(whole) <= 3, "at most one is cut"
