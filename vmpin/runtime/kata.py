"""The state files of Kata's two runtimes, one for each sandbox.

The Go runtime keeps `/run/vc/sbs/<sid>/persist.json` up to date, each container's live cpuset in it (virtcontainers/
persist); it writes with O_TRUNC, so a reader may meet half a file and reads again. runtime-rs writes
`/run/kata/<sid>/state.json` once at the start, without the VMM's pid and without containers. Read at every resync
(sources.disk). What stays out: whether the processes named are what they should be (vmm.inventory).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId, valid_id
from vmpin.errors import SourceError, passing
from vmpin.host.regular import Stamp, lasting_stamp, read_regular, stamp
from vmpin.runtime.dialect import CRIO, KATA_BUNDLE, declared_exclusive, dialect_of, name_of, pod_of
from vmpin.runtime.json_files import parse_object

MAX_BYTES = 8 << 20


class KataSandbox(NamedTuple):
    """A sandbox as its runtime describes it. `containers` is None where the runtime's file has none."""

    id: SandboxId
    runtime: str
    vmm_pid: int
    virtiofsd_pid: int
    containers: tuple[Container, ...] | None
    pod: Pod | None
    #: Of the VM, "" for none: a VM from Kata's factory has another id on its command line, but this is on it too.
    uuid: str
    #: When its file was written, CLOCK_REALTIME ns.
    written: int
    #: Kata's own pinning is on: two writers of the same masks.
    pins_vcpus: bool
    #: How Kata reaches its agent: vsock://CID:1024 or hvsock://PATH:1024; "" where it is not kept.
    agent_url: str = ""


class KataState:
    """Reads both state directories; a file is parsed again only when it changed.

    :param complain: called with a line for each file that cannot be used, once per version of that file.
    """

    def __init__(self, go_root: Path, rs_root: Path, complain: Callable[[str], None]) -> None:
        self.go_root = os.fspath(go_root)
        self.rs_root = os.fspath(rs_root)
        self.complain = complain
        #: The sandboxes that had a directory at the last reading, readable or not.
        self.listed: set[SandboxId] = set()
        #: The annotation by which a container declares its CPUs exclusive, "" for none.
        self.exclusive_annotation = ""
        self._parsed: dict[str, tuple[Stamp, KataSandbox | None]] = {}
        self._stopped: dict[str, tuple[Stamp, bool]] = {}

    def sandboxes(self) -> dict[SandboxId, KataSandbox]:
        """Every sandbox either runtime has on disk."""
        found: dict[SandboxId, KataSandbox] = {}
        seen: set[str] = set()
        self.listed = set()
        for root, name, parse in ((f"{self.go_root}/sbs", "persist.json", self._parse_go),
                                  (self.rs_root, "state.json", parse_rs)):
            for sid in _listdir(root):
                path = f"{root}/{sid}/{name}"
                sandbox = self._read(path, SandboxId(sid), parse) if valid_id(sid) else None
                seen.add(path)
                self.listed.add(SandboxId(sid))
                if sandbox is not None:
                    found.setdefault(sandbox.id, self._with_states(f"{root}/{sid}", sandbox))
        for gone in self._parsed.keys() - seen:
            del self._parsed[gone]
            directory = os.path.dirname(gone) + "/"
            for path in [path for path in self._stopped if path.startswith(directory)]:
                del self._stopped[path]
        return found

    def use_annotation(self, annotation: str) -> None:
        """Set `exclusive_annotation` ("": none), and parse all files again where it changed."""
        if annotation != self.exclusive_annotation:
            self.exclusive_annotation = annotation
            self._parsed.clear()

    def _parse_go(self, sid: SandboxId, raw: bytes, written: int) -> KataSandbox:
        return parse_go(sid, raw, written, self.exclusive_annotation)

    def _with_states(self, directory: str, sandbox: KataSandbox) -> KataSandbox:
        """The sandbox with stopped containers marked: its file lists those until they are removed, and each one's own
        file beside it (persist/api/container.go: State) has the state."""
        stopped = [container.id for container in sandbox.containers or ()
                   if self._is_stopped(f"{directory}/{container.id}/persist.json")]
        if not stopped:
            return sandbox
        return sandbox._replace(containers=tuple(
            container._replace(state=ContainerState.STOPPED) if container.id in stopped else container
            for container in sandbox.containers or ()))

    def _is_stopped(self, path: str) -> bool:
        try:
            info = os.stat(path, follow_symlinks=False)
            cached = self._stopped.get(path)
            if cached is None or cached[0] != stamp(info):
                cached = (stamp(info), parse_object(read_regular(path, MAX_BYTES)[0], path).get("State") == "stopped")
                self._stopped[path] = (lasting_stamp(info), cached[1])
        except (OSError, SourceError):
            return False
        return cached[1]

    def _read(self, path: str, sid: SandboxId,
              parse: Callable[[SandboxId, bytes, int], KataSandbox]) -> KataSandbox | None:
        try:
            info = os.stat(path, follow_symlinks=False)
        except OSError:
            return None
        cached = self._parsed.get(path)
        if cached is not None and cached[0] == stamp(info):
            return cached[1]
        sandbox: KataSandbox | None = None
        for attempt in range(5):
            try:
                sandbox = parse(sid, read_regular(path, MAX_BYTES)[0], info.st_mtime_ns)
                break
            except FileNotFoundError:
                return None
            except OSError as err:
                if passing(err):
                    return cached[1] if cached else None
                self.complain(f"{path}: not read: {err.strerror}")  # a FIFO, a link, too large
                break
            except SourceError as err:
                if attempt == 4:
                    # The state before it was rewritten is better than none.
                    sandbox = cached[1] if cached else None
                    self.complain(f"{path}: {err.why}" + (": its last state is used" if sandbox else ""))
                time.sleep(0.002)
        self._parsed[path] = (lasting_stamp(info), sandbox)
        return sandbox


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _dig(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _pid(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 22 else 0


def _url(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 4096 else ""


def parse_go(sid: SandboxId, raw: bytes, written: int, exclusive_annotation: str = "") -> KataSandbox:
    """Parse persist.json of the Go runtime; the keys are Go's field names.

    :param written: when the file was written, CLOCK_REALTIME ns.
    :raises SourceError: when it is half written.
    """
    state = parse_object(raw, "persist.json")
    containers = []
    pod = None
    configs = _dig(state, "Config", "ContainerConfigs")
    for config in configs if isinstance(configs, list) else []:
        cid = _dig(config, "ID")
        if not isinstance(cid, str) or not valid_id(cid):
            continue
        given = _dig(config, "Annotations")
        annotations = {str(key): str(value) for key, value in given.items()} if isinstance(given, dict) else {}
        dialect = dialect_of(annotations.get(KATA_BUNDLE, ""))
        kind = annotations.get(dialect.kind) or annotations.get("io.katacontainers.pkg.oci.container_type")
        # The sandbox's own container has the sandbox's id; CRI-O starts none alone.
        pause = cid == sid and (kind in ("sandbox", "pod_sandbox", "podsandbox") or dialect is CRIO
                                or len(configs if isinstance(configs, list) else []) > 1)
        if not (pause and dialect is CRIO):  # in the config of that one the author's annotations come last
            pod = pod or pod_of(annotations, dialect)
        cpus = _dig(config, "Resources", "cpu", "cpus")
        try:
            cpuset = CpuSet.parse(cpus) if isinstance(cpus, str) else None
        except CpuSetError:
            cpuset = None
        container = Container(ContainerId(cid), cpuset=cpuset or None, pause=pause)
        if not pause:
            container = container._replace(name=name_of(annotations, dialect),
                                exclusive=declared_exclusive(annotations, exclusive_annotation))
        containers.append(container)
    return KataSandbox(sid, "kata-go", _pid(_dig(state, "HypervisorState", "Pid")),
                       _pid(_dig(state, "HypervisorState", "VirtiofsDaemonPid")), tuple(containers), pod,
                       str(_dig(state, "HypervisorState", "UUID") or ""), written,
                       _dig(state, "Config", "EnableVCPUsPinning") is True, _url(_dig(state, "AgentState", "URL")))


def parse_rs(sid: SandboxId, raw: bytes, written: int) -> KataSandbox:
    """Parse state.json of runtime-rs; `written` as for parse_go. :raises SourceError: when it is half written."""
    state = parse_object(raw, "state.json")
    return KataSandbox(sid, "kata-rs", _pid(_dig(state, "hypervisor", "pid")),
                       _pid(_dig(state, "hypervisor", "virtiofs_daemon_pid")), None, None, "", written,
                       _dig(state, "resource", "cgroup_state", "enable_vcpus_pinning") is True)
