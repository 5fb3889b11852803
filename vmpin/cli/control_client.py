"""The client of the watcher's control socket, and the status document with or without a watcher."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

from vmpin.config.settings import Config
from vmpin.domain.pod_names import names_of
from vmpin.domain.terminal import printable
from vmpin.errors import UsageError, VmpinError, WatcherError, WatcherStopped
from vmpin.status.pod_arguments import NamedSandbox, PodMatch, only_match

if TYPE_CHECKING:
    import socket

#: A running watcher answers in milliseconds; a stopped one never does.
DEADLINE = 10.0
#: For a whole answer (seconds): a peer that sends a byte now and then is no watcher.
WHOLE = 60.0
#: Bytes: the status of a thousand sandboxes has some 3 MB.
MAX_ANSWER = 256 << 20
#: Seconds without an answer after which a client looks whether the watcher is stopped.
_FIRST = 1.0

Document = dict[str, Any]


def ask_raw(config: Config, request: Document, has_direct: bool = False, deadline: float = DEADLINE) -> bytes | None:
    """The watcher's answer as bytes, None if no watcher runs.

    :param has_direct: the verb has the flag --direct, which the error then suggests.
    :param deadline: for each part of the answer, in seconds; all of it may take WHOLE.
    :raises WatcherError: the watcher does not answer; WatcherStopped: as it is stopped.
    :raises UsageError: it refuses the request.
    """
    import socket
    path = str(config.paths.control_socket)
    without = "--direct reads the node without it" * has_direct
    hint = "; ".join(filter(None, (without, "read its log: journalctl -u vmpin")))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(min(_FIRST, deadline))
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except BlockingIOError:  # many clients wait to be accepted
            _check_running(config, without)
            raise WatcherError(f"{path}: the watcher accepts no connection", hint) from None
        except OSError as err:
            raise _no_place(path, err) from None
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            try:
                part = connection.recv(1 << 20)
            except TimeoutError:
                _check_running(config, without)
                connection.settimeout(max(deadline - _FIRST, 0.001))
                part = connection.recv(1 << 20)
            answer = part + _rest(connection, deadline, time.monotonic() + WHOLE) if part else b""
        except TimeoutError:
            raise WatcherError(f"{path}: the watcher does not answer within {deadline:.0f} s", hint) from None
        except OSError as err:
            raise WatcherError(f"{path}: the watcher hung up: {err.strerror}", hint) from err
        except ValueError as err:
            raise WatcherError(f"{path}: the answer {err}", hint) from None
    if not answer:
        raise WatcherError(f"{path}: the watcher hung up without an answer", hint)
    if not (answer.startswith(b"{") and answer.endswith(b"}\n")):  # it was killed meanwhile, or is another program
        _parsed(answer, path)
    if answer.startswith(b'{"error":'):
        refusal = _parsed(answer, path)
        raise UsageError(printable(refusal["error"]), printable(refusal.get("hint", "")))
    return answer


def _rest(connection: socket.socket, deadline: float, end: float) -> bytes:
    """The rest of an answer. :param deadline: for each part (seconds). :param end: for all (time.monotonic()).
    :raises OSError: TimeoutError too. :raises ValueError: it is too long or takes too long."""
    received = bytearray()
    while (left := end - time.monotonic()) > 0:
        connection.settimeout(min(deadline, left))
        try:
            part = connection.recv(1 << 20)
        except TimeoutError:
            if left > deadline:
                raise
            break
        if not part:
            return bytes(received)
        received += part
        if len(received) > MAX_ANSWER:
            raise ValueError(f"has more than {MAX_ANSWER >> 20} MiB")
    raise ValueError("has not ended in time")


def _no_place(path: str, err: OSError) -> WatcherError:
    """The error for a socket that cannot be connected to: its path may go through a file, or be too long for one."""
    if isinstance(err, PermissionError):
        return WatcherError(f"{path}: permission denied", "use root, or join the group of watch.status_group")
    return WatcherError(f"{path}: {err.strerror or err}", "correct paths.run")


def _parsed(answer: bytes, place: object) -> Document:
    """An answer as data. :raises WatcherError: it is no JSON object, or an empty one."""
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(document := json.loads(answer), dict) and document:
            return document
    raise WatcherError(f"{place}: the answer is incomplete, or no watcher's: {answer[:40]!r}",
                       "are vmpin and its watcher the same version?")


def _check_running(config: Config, hint: str) -> None:
    """Check that the watcher is not stopped. :raises WatcherStopped: the process that holds its lock is."""
    from vmpin.host.lock import lock_holder
    from vmpin.host.procfs import Procfs
    proc = Procfs(config.paths.proc)
    pid = lock_holder(config.paths.lock_file, proc)
    stat = None if pid is None else proc.stat(pid)
    if pid is not None and stat is not None and stat.state == "T":  # proc_pid_stat(5): stopped by a signal
        raise WatcherStopped(pid, hint)


def ask(config: Config, request: Document, has_direct: bool = False) -> Document | None:
    """The watcher's answer, None if no watcher runs. :raises WatcherError, UsageError: as ask_raw."""
    raw = ask_raw(config, request, has_direct)
    return None if raw is None else _parsed(raw, config.paths.control_socket)


def watcher_values(config: Config) -> Document:
    """The running watcher's own configuration, as `Config.data` has it; {} where none answers."""
    with contextlib.suppress(VmpinError, OSError, ValueError, KeyError, TypeError):
        return dict((ask(config, {"op": "about"}) or {})["config"])
    return {}


def status_document(config: Config, wide: bool = False, direct: bool | None = None, pods: bool = False) -> Document:
    """The status document, from the watcher, or read by this process if none runs.

    :param wide: with the VMMs' cgroups.
    :param direct: do not ask the watcher; None for a verb without the flag --direct.
    :param pods: with the names of all pods of the node.
    """
    request = {"op": "status", "wide": wide, "pods": pods}
    return (None if direct else ask(config, request, direct is not None)) or read_status(config, wide, pods)


def read_status(config: Config, wide: bool = False, pods: bool = False) -> Document:
    """The status document, read by this process. :param wide, pods: as for `status_document`."""
    from vmpin.reconcile import one_pass
    from vmpin.status import collector
    quiet_log(config)
    return collector.document(one_pass.inspect(config)[0], wide=wide, pods=pods)


def known_names(config: Config, direct: bool = False) -> dict[str, str]:
    """Names of pods and containers by their ids, for a text; {} where they cannot be read now."""
    with contextlib.suppress(VmpinError, OSError):
        return names_of(status_document(config, direct=direct or None))
    return {}


def only(document: Document, sandbox: str, namespace: str) -> Document:
    """The entry of the sandbox that an argument names. :param sandbox: its pod's name, or its id.
    :param namespace: of that pod. :raises UsageError: for an unknown sandbox, several, or a container."""
    match = only_match(sandbox, namespace, named_sandboxes(document))
    if match.container:
        raise UsageError(f"{sandbox!r} is a container, and not a VM sandbox",
                         f"give its pod: {match.sandbox.title}; `vmpin status POD/CONTAINER --explain` takes a "
                         "container, too")
    return entry_of(document, match)


def named_sandboxes(document: Document) -> list[NamedSandbox]:
    """The sandboxes of a status document, as an argument may name them."""
    sandboxes = []
    for entry in document["sandboxes"]:
        pod = entry.get("pod") or {"namespace": "", "name": ""}
        containers = [(container["id"], container["name"] or "") for container in entry.get("containers", ())]
        sandboxes.append(NamedSandbox(entry["id"], pod["namespace"], pod["name"], containers))
    return sandboxes


def entry_of(document: Document, match: PodMatch) -> Document:
    """A sandbox's entry of the status document."""
    entry: Document = next(entry for entry in document["sandboxes"] if entry["id"] == match.sandbox.id)
    return entry


def stale_checkpoint(document: Document) -> str | None:
    """A sentence if the kubelet's checkpoint is gone and its last contents are used, else None."""
    kubelet = document["sources"]["kubelet"]
    if kubelet is None or not kubelet.get("stale"):
        return None
    return (f"the kubelet's checkpoint is gone: its last contents are used, written "
            f"{kubelet['written'] or 'at an unknown time'}; {kubelet['second_witness']}")


def quiet_log(config: Config) -> None:
    """Log for short commands: warnings to standard error, and no routine messages unless log.level is set."""
    from vmpin import log
    log.setup("warning" if config.origin["log.level"] == "default" else config.log.level)
