"""The client of the watcher's control socket, and the status document with or without a watcher."""

import contextlib
import json
from typing import Any

from vmpin.config.settings import Config
from vmpin.domain.pod_names import names_of
from vmpin.errors import UsageError, VmpinError, WatcherError
from vmpin.status.pod_arguments import Meant, NamedSandbox, the_one_meant

#: A running watcher answers in milliseconds; a stopped one never does.
DEADLINE = 10.0

Document = dict[str, Any]


def ask_raw(config: Config, request: Document, has_direct: bool = False, deadline: float = DEADLINE) -> bytes | None:
    """The watcher's answer as bytes, None if no watcher runs.

    :param has_direct: the verb has the flag --direct, which the error then suggests.
    :param deadline: for each part of the answer, in seconds.
    :raises WatcherError: the watcher does not answer. :raises UsageError: it refuses the request.
    """
    import socket
    path = str(config.paths.control_socket)
    hint = "--direct reads the node without it; " * has_direct + "read its log: journalctl -u vmpin"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(deadline)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except PermissionError:
            raise WatcherError(f"{path}: permission denied",
                               "use root, or join the group of watch.status_group") from None
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            parts = []
            while part := connection.recv(1 << 20):
                parts.append(part)
        except TimeoutError:
            raise WatcherError(f"{path}: the watcher does not answer within {deadline:.0f} s", hint) from None
        except OSError as err:
            raise WatcherError(f"{path}: the watcher hung up: {err.strerror}", hint) from err
    answer = b"".join(parts)
    if not answer:
        raise WatcherError(f"{path}: the watcher hung up without an answer", hint)
    if answer.startswith(b'{"error":'):
        refusal = json.loads(answer)
        raise UsageError(str(refusal["error"]), str(refusal.get("hint", "")))
    return answer


def ask(config: Config, request: Document, has_direct: bool = False) -> Document | None:
    """The watcher's answer, None if no watcher runs. :raises WatcherError, UsageError: as ask_raw."""
    raw = ask_raw(config, request, has_direct)
    return None if raw is None else json.loads(raw)


def watcher_values(config: Config) -> Document:
    """The running watcher's own configuration, as `Config.data` has it; {} where none answers."""
    with contextlib.suppress(VmpinError, OSError, ValueError, KeyError, TypeError):
        return dict((ask(config, {"op": "about"}) or {})["config"])
    return {}


def status_document(config: Config, sandbox: str | None, wide: bool = False, direct: bool | None = None,
                    pods: bool = False, namespace: str = "") -> Document:
    """The status document, from the watcher, or read by this process if none runs.

    :param sandbox: the only one, by its pod's name or its id; None for all. :param namespace: of that pod.
    :param wide: with the VMMs' cgroups.
    :param direct: do not ask the watcher; None for a verb without the flag --direct.
    :param pods: with the names of all pods of the node.
    :raises UsageError: for an unknown sandbox, several, or a container.
    """
    request = {"op": "status", "wide": wide, "pods": pods}
    found = (None if direct else ask(config, request, direct is not None)) or read_status(config, wide, pods)
    if sandbox is not None:
        found["sandboxes"] = [only(found, sandbox, namespace)]
    return found


def known_names(config: Config, direct: bool = False) -> dict[str, str]:
    """Names of pods and containers by their ids, for a text; {} where they cannot be read now."""
    with contextlib.suppress(VmpinError, OSError):
        return names_of(status_document(config, None, direct=direct or None))
    return {}


def only(found: Document, sandbox: str, namespace: str) -> Document:
    """The sandbox that an argument names. :raises UsageError: for an unknown sandbox, several, or a container."""
    chosen = the_one_meant(sandbox, namespace, named_sandboxes(found))
    if chosen.container:
        raise UsageError(f"{sandbox!r} is a container, and not a VM sandbox",
                         f"give its pod: {chosen.sandbox.title}; `vmpin explain` takes a container, too")
    return entry_of(found, chosen)


def named_sandboxes(found: Document) -> list[NamedSandbox]:
    """The sandboxes of a status document, as an argument may name them."""
    named = []
    for entry in found["sandboxes"]:
        pod = entry.get("pod") or {"namespace": "", "name": ""}
        containers = [(each["id"], each["name"] or "") for each in entry.get("containers", ())]
        named.append(NamedSandbox(entry["id"], pod["namespace"], pod["name"], containers))
    return named


def entry_of(found: Document, chosen: Meant) -> Document:
    """Return a sandbox's entry of the status document."""
    entry: Document = next(each for each in found["sandboxes"] if each["id"] == chosen.sandbox.id)
    return entry


def stale_checkpoint(found: Document) -> str | None:
    """A sentence if the kubelet's checkpoint is gone and its last contents are used, else None."""
    kubelet = found["sources"]["kubelet"]
    if kubelet is None or not kubelet.get("stale"):
        return None
    return (f"the kubelet's checkpoint is gone: its last contents are used, written "
            f"{kubelet['written'] or 'at an unknown time'}; {kubelet['second_witness']}")


def read_status(config: Config, wide: bool = False, pods: bool = False) -> Document:
    from vmpin.reconcile import one_pass
    from vmpin.status import collector
    quiet_log(config)
    return collector.document(one_pass.inspect(config)[0], wide=wide, pods=pods)


def quiet_log(config: Config) -> None:
    """Log for short commands: warnings to standard error, and no routine messages unless log.level is set."""
    from vmpin import log
    log.setup("warning" if config.origin["log.level"] == "default" else config.log.level)
