"""`vmpin logs`: the watcher's log lines about a pod, from systemd's journal or a file."""

from __future__ import annotations

import argparse
import os
import re
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

from vmpin.bounded import checked_real, load_json, parse_whole
from vmpin.cli.verbs import Verbs, namespace_flag, usable_config, verb
from vmpin.config.settings import Config
from vmpin.domain.terminal import printable
from vmpin.errors import UsageError, VmpinError
from vmpin.features.common.option_values import duration
from vmpin.named_tuple import NamedTuple

#: Lines of an operation that are kept until one of them names the pod.
HELD = 1000
#: How the log of a watcher in a container is read; `kubectl -n vmpin get pods -o wide` has the pod of each node.
_KUBECTL = "kubectl -n vmpin logs WATCHER_POD | vmpin logs POD --file -"
_LEVELS = {"7": "debug", "6": "info", "5": "info", "4": "warning", "3": "error", "2": "critical"}
#: A line as `vmpin watch` writes it, also with the time that `kubectl logs --timestamps` puts before it.
_LINE = re.compile(r"(?:(?P<stamp>\d{4}-\d\d-\d\dT\S+) )?(?:\d\d:\d\d:\d\d (?P<level>[A-Z]+) +)?(?P<message>.*)")
_POD = re.compile(r" pod=(\S+)(?: op=\d+)?$")
_OP = re.compile(r" op=(\d+)$")
_IDS = re.compile(r"\b(?:sandbox(?:es)?|container)=([^\s:]+)")

_ABOUT = """\
Print the lines of the watcher's log about a pod: those that name it (pod=NAMESPACE/NAME), those about its sandbox from
before the name was known, and the lines of the same operations (op=N) that name no pod, as the kubelet's or the
runtime's report that led to them. The log is in systemd's journal, or in the file to which the watcher writes;
--file reads another one, and - standard input.
"""

_EXAMPLES = """\
examples:
  vmpin logs shop                 of the pod shop, in any namespace; also demo/shop, or -n demo shop
  vmpin logs 'demo/*' --since 1h  of all pods of a namespace, in the last hour
  vmpin logs 5f2c                 by the first digits of the id of its sandbox, or of a container
  vmpin logs | grep op=17         every line of one operation, of all pods
  vmpin logs shop -f              and those to come, until Ctrl-C
  kubectl -n vmpin logs WATCHER_POD | vmpin logs demo/shop --file -

exit codes: 0 lines were printed, 1 the log has none of these, or cannot be read
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "logs", "show the watcher's log lines about a pod", run, about=_ABOUT, epilog=_EXAMPLES)
    parser.add_argument("pod", nargs="?", metavar="POD", default="", help="POD, NAMESPACE/POD, either with * ? [ ]"
                        ", or the first digits of an id; without it all lines")
    namespace_flag(parser)
    parser.add_argument("--since", metavar="DURATION", help="only lines since then: 90s, 30m, 24h, 7d")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with new lines, until Ctrl-C")
    parser.add_argument("--file", metavar="FILE", help="read this log; -: standard input")


class LogLine(NamedTuple):
    """A line of the log. `text` is the line as a terminal has it; `run` differs between two watchers, if it is known;
    `time` is in seconds since 1970, None if the line has none; `op` 0 without one."""

    text: str
    time: float | None
    level: str
    message: str
    pods: tuple[str, ...]
    op: int
    run: str = ""

    @property
    def ids(self) -> set[str]:
        """The sandboxes and containers that the line names."""
        return {name for match in _IDS.finditer(self.message) for name in match[1].split(",")}


class LineFilter(NamedTuple):
    """Chooses lines of pods by `pattern` and `namespace`, "" for any."""

    pattern: str
    namespace: str

    @property
    def any_pod(self) -> bool:
        return not self.pattern and not self.namespace

    def has_pod(self, pod: str) -> bool:
        """Whether a pod, `namespace/name`, is chosen."""
        namespace, _, name = pod.partition("/")
        return self.namespace in ("", namespace) and (
            not self.pattern or fnmatchcase(pod if "/" in self.pattern else name, self.pattern))

    def has_id(self, id: str) -> bool:
        """Whether the pattern is the beginning of an id."""
        return not self.namespace and re.fullmatch("[0-9a-f]{4,64}", self.pattern) is not None and (
            id.startswith(self.pattern))

    def select(self, lines: Iterable[LogLine], ids: set[str]) -> Iterator[LogLine]:
        """The chosen lines. Those of an operation that name no pod come once another line of it is chosen.
        :param ids: the sandboxes of chosen pods."""
        held: list[LogLine] = []
        current, chosen = ("", 0), self.any_pod
        for line in lines:
            if line.op and (line.run, line.op) != current:
                current, chosen, held = (line.run, line.op), self.any_pod, []
            if self.any_pod or self.is_about(line, ids):
                if line.op:
                    yield from held
                    held, chosen = [], True
                yield line
            elif line.op and not line.pods and not line.ids:
                if chosen:
                    yield line
                else:
                    held = [*held[-HELD:], line]

    def is_about(self, line: LogLine, ids: set[str]) -> bool:
        """Whether a line is about a chosen pod."""
        return any(map(self.has_pod, line.pods)) or any(map(self.has_id, line.ids)) or (
            not line.pods and not ids.isdisjoint(line.ids))


class Log(NamedTuple):
    """A place of the log. `read` gives its lines from the beginning, with True also those to come."""

    place: str
    read: Callable[[bool], Iterator[LogLine]]


def run(args: argparse.Namespace) -> int:
    chosen = LineFilter(args.pod, args.namespace)
    since = None if args.since is None else time.time() - duration(args.since)
    log = log_of(usable_config(args), args.file, since)
    ids, count = set[str](), 0
    if not (args.file == "-" and args.follow):
        for line in _since(log.read(False), since, log.place):
            if len(line.pods) == 1 and chosen.has_pod(line.pods[0]) and not chosen.any_pod:
                ids |= line.ids
    for line in chosen.select(_since(log.read(args.follow), since, log.place), ids):
        count += 1
        print(printable(line.text), flush=args.follow)
    if not count:
        raise VmpinError(f"no such line is in {log.place}", "`vmpin logs` prints all lines, `vmpin status` lists the "
                         "pods; log.level: debug logs more")
    return 0


def log_of(config: Config, file: str | None, since: float | None) -> Log:
    """The log that is to be read. :param since: the journal need not have earlier lines (CLOCK_REALTIME, s).
    :raises UsageError: if the file cannot be read. :raises VmpinError: if no log can be read here, with the reason and
    the place to which it goes."""
    if file == "-":
        return _input_log()
    if file is not None:
        return _file_log(Path(file), file)
    from vmpin.host.daemons import unit
    from vmpin.host.procfs import Procfs

    pid = watcher_pid(config)
    stderr = config.paths.proc / str(pid) / "fd" / "2"
    kind = None
    if pid:
        try:
            kind = os.stat(stderr).st_mode
        except OSError as err:
            raise VmpinError(f"the log of the watcher (pid {pid}) cannot be located: {err.strerror}",
                             "use root") from err
    if kind is not None and stat.S_ISREG(kind):
        return _file_log(stderr, os.readlink(stderr))
    if kind is not None and not stat.S_ISSOCK(kind):
        raise VmpinError(
            f"the watcher (pid {pid}) writes its log to {os.readlink(stderr)}, which cannot be read again",
            f"in a container: {_KUBECTL}")
    return _journal_log((pid and unit(Procfs(config.paths.proc), pid)) or "vmpin.service", since)


def watcher_pid(config: Config) -> int:
    """The running watcher's pid, 0 without one, or if it is in a pid namespace that is hidden from this process."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(config.paths.control_socket))
        except OSError:
            return 0
        pid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


# The journal


def journal_command(unit: str, since: float | None, follow: bool) -> list[str]:
    """The call of journalctl for the lines of a unit, each a JSON object."""
    return ["journalctl", "--quiet", "--no-pager", "--all", f"--unit={unit}", "--output=json",
            "--output-fields=MESSAGE,PRIORITY,_PID", *([f"--since=@{since:.0f}"] if since is not None else []),
            *(["--follow", "--no-tail"] if follow else [])]


def _journal_log(unit: str, since: float | None) -> Log:
    def read(follow: bool) -> Iterator[LogLine]:
        for raw in _lines_of(journal_command(unit, since, follow), "use root, or join the group systemd-journal"):
            yield from _of_journal(raw)

    return Log(f"the journal of {unit}", read)


def _lines_of(command: list[str], hint: str) -> Iterator[bytes]:
    """The lines that a command prints. :raises VmpinError: it cannot be started, or fails."""
    # Not a pipe, which stops a command that writes much; no file: a container may have no directory for one.
    with os.fdopen(os.memfd_create("stderr"), "w+b") as errors:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        except OSError as err:
            raise VmpinError(f"{command[0]}: {err.strerror}, and no watcher runs that writes its log to a file",
                             f"give the file: --file FILE; in a container: {_KUBECTL}") from err
        with process:
            assert process.stdout is not None
            try:
                yield from process.stdout
            except GeneratorExit:
                process.terminate()
                raise
            if process.wait():
                errors.seek(0)
                why = errors.read(4096).decode("utf-8", "replace").strip() or f"exit code {process.returncode}"
                raise VmpinError(f"{command[0]}: {why}", hint)


def _of_journal(raw: bytes) -> Iterator[LogLine]:
    try:
        entry = load_json(raw)
        message, when = entry["MESSAGE"], (parse_whole(entry["__REALTIME_TIMESTAMP"], 10**17) or 0) / 1e6
    except (ValueError, KeyError, TypeError):
        return
    if isinstance(message, list):  # of bytes that are no UTF-8
        message = bytes(message).decode("utf-8", "replace")
    if isinstance(message, str):
        pid = str(entry.get("_PID", ""))
        yield _dated(_with_json(message, pid) or _line(
            "", None, _LEVELS.get(str(entry.get("PRIORITY")), "info"), message, pid), when)


# A file


def _file_log(path: Path, place: str) -> Log:
    try:
        path.open("rb").close()
    except OSError as err:
        raise UsageError(f"{place}: {err.strerror}",
                         "give the file to which the watcher's standard error goes") from err

    def read(follow: bool) -> Iterator[LogLine]:
        # -F: also of a file that replaces it, or that was emptied. No long options: busybox has none.
        lines = _lines_of(["tail", "-n", "+1", *["-F"] * follow, "--", os.fspath(path)], "use root")
        return _parsed(raw.decode("utf-8", "replace") for raw in lines)

    return Log(place, read)


def _input_log() -> Log:
    """Standard input, which can be read once only: its lines are kept, unless they are followed."""
    lines = _parsed(raw.decode("utf-8", "replace") for raw in sys.stdin.buffer)
    kept: list[LogLine] = []

    def read(follow: bool) -> Iterator[LogLine]:
        if follow:
            return lines
        kept.extend(lines)
        return iter(kept)

    return Log("standard input", read)


def _since(lines: Iterator[LogLine], since: float | None, place: str) -> Iterator[LogLine]:
    """The lines since then. :raises UsageError: where lines have no date."""
    for line in lines:
        if since is None:
            yield line
        elif line.time is None:
            raise UsageError(f"--since: the lines of {place} have no date",
                             "`vmpin watch -o json` and `kubectl logs --timestamps` have one")
        elif line.time >= since:
            yield line


def _parsed(lines: Iterable[str]) -> Iterator[LogLine]:
    """The lines of a text or JSON log. A watcher counts its operations up: where they fall, another one began."""
    last = run = 0
    for raw in lines:
        text = raw.rstrip("\r\n")
        if not (line := _with_json(text)):
            match = _LINE.fullmatch(text)
            stamp, level, message = match.group("stamp", "level", "message") if match else ("", "", text)
            line = _line(text, _seconds(stamp), (level or "").lower(), message)
        run += line.op != 0 and line.op < last
        last = line.op or last
        yield line._replace(run=str(run))


def _with_json(text: str, run: str = "") -> LogLine | None:
    """A line of `vmpin watch -o json`; None for another one."""
    if not text.startswith("{"):
        return None
    try:
        entry = load_json(text)
        when, level, message = checked_real(entry["time"], 1e11), str(entry["level"]), str(entry["message"])
    except (ValueError, KeyError, TypeError):
        return None
    pods = tuple(str(entry["pod"]).split(",")) if "pod" in entry else ()
    op = parse_whole(str(entry.get("op", 0)), 10**12) or 0
    return _dated(LogLine("", None, level, message, pods, op, run), when)


def _line(text: str, when: float | None, level: str, message: str, run: str = "") -> LogLine:
    """A line of which the text ends in the pod and the operation."""
    pod, op = _POD.search(message), _OP.search(message)
    bare = message[:pod.start() if pod else op.start() if op else len(message)]
    return LogLine(text, when, level, bare, tuple(pod[1].split(",")) if pod and pod[1] != "-" else (),
                   parse_whole(op[1], 10**12) or 0 if op else 0, run)


def _dated(line: LogLine, when: float) -> LogLine:
    """The line with its time, and with the text that a terminal shows: pod and operation as a text log has them."""
    stamp = datetime.fromtimestamp(when).astimezone().isoformat(" ", "seconds")[:19]
    pods, op = f" pod={','.join(line.pods)}" if line.pods else "", f" op={line.op}" if line.op else ""
    return line._replace(time=when, text=f"{stamp} {line.level.upper():7} {line.message}{pods}{op}")


def _seconds(stamp: str | None) -> float | None:
    try:
        return datetime.fromisoformat(stamp).timestamp() if stamp else None
    except ValueError:
        return None
