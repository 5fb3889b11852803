"""Reads the state files of Kata's two runtimes, one file per sandbox.

The Go runtime keeps `/run/vc/sbs/<sid>/persist.json` up to date, including the current cpuset of each container
(virtcontainers/persist). runtime-rs writes `/run/kata/<sid>/state.json` once at the start, without the VMM's pid and
without containers. Both write in place (O_TRUNC), so a reader may get an empty or truncated file; it is read again at
once and then in each pass. The pids in the files are not trusted here: vmm.inventory confirms them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from vmpin.cpuset import CpuLists, CpuSetError
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId, valid_id
from vmpin.errors import SourceError, passing
from vmpin.host.files import Stamp, lasting_stamp, read_regular, stamp
from vmpin.host.procfs import names_in
from vmpin.named_tuple import NamedTuple
from vmpin.runtime.dialect import CRIO, KATA_BUNDLE, declared_exclusive, dialect_of, name_of, pod_of
from vmpin.runtime.documents import dig, parse_object, pid_of

#: Limits on a file (Kata writes some 4 kB and 200 values per container), and on the containers of a pod.
MAX_BYTES, MAX_VALUES, MAX_CONTAINERS = 1 << 20, 24_576, 512
_REMOTE = "remote"
#: Seconds for which a file may be incomplete before it is an error: writing may take that long on a busy node.
SETTLING = 1.0
#: Seconds after a change of a sandbox's file in which its containers' files are read in each pass: Kata never writes
#: those alone, but after the sandbox's in one go (virtcontainers/persist/fs/fs.go: ToDisk).
CONTAINERS_FOLLOW = 60.0


class KataSandbox(NamedTuple):
    """A sandbox as in its runtime's state file. `containers` is None if the runtime does not record them."""

    id: SandboxId
    runtime: str
    vmm_pid: int
    containers: tuple[Container, ...] | None
    pod: Pod | None
    #: The VM's UUID, "" for none. It is on the command line, also of a VM from Kata's factory, which has another id.
    uuid: str
    written: int  #: When its file was written, CLOCK_REALTIME ns.
    pins_vcpus: bool  #: Whether Kata's own vCPU pinning is on, so that Kata also sets these masks.
    #: The address of Kata's agent, vsock://CID:1024 or hvsock://PATH:1024; "" if it is not recorded.
    agent_url: str = ""
    hypervisor: str = ""  #: The kind of VMM as Kata names it (virtcontainers/hypervisor.go); "" if unknown.
    remote: bool = False  #: Whether its VM runs on another machine (peer pods: the hypervisor `remote`).


#: Parses a state file: (sandbox, content, modification time in ns).
Parse = Callable[[SandboxId, bytes, int], KataSandbox]


def named_for_kata(handler: str) -> bool:
    """Whether a runtime handler has a name of Kata's: then its pods count as VMs from the first report on, before
    their processes exist. Pods of other handlers are recognized by their processes."""
    return handler.startswith("kata")


class KataState:
    """Reads both state directories. A file is parsed again only if it changed or was incomplete.
    :param complain: called with an error line for each unusable file, once per version of the file.
    :param exclusive_annotation: the annotation that declares a container's CPUs exclusive, "" for none."""

    def __init__(self, go_root: Path, rs_root: Path, complain: Callable[[str], None],
                 exclusive_annotation: str = "") -> None:
        self.go_root, self.rs_root = os.fspath(go_root), os.fspath(rs_root)
        self.complain = complain
        #: The sandboxes that had a directory at the last reading, even if their files were unreadable.
        self.listed: set[SandboxId] = set()
        self.exclusive_annotation = exclusive_annotation
        #: Incomplete files within SETTLING, with the time of their first reading (monotonic).
        self._incomplete: dict[str, float] = {}
        self._parsed: dict[str, tuple[Stamp, KataSandbox | None]] = {}
        self._stopped: dict[str, tuple[Stamp, bool]] = {}
        #: By directory: the sandbox as parsed, since when (monotonic), and with the states of its containers.
        self._marked: dict[str, tuple[KataSandbox, float, KataSandbox]] = {}

    def sandboxes(self) -> dict[SandboxId, KataSandbox]:
        """Return all sandboxes that either runtime has on disk."""
        sandboxes: dict[SandboxId, KataSandbox] = {}
        seen: set[str] = set()
        self.listed = set()
        parse_go_file = partial(parse_go, exclusive_annotation=self.exclusive_annotation)
        for root, name, parse in ((f"{self.go_root}/sbs", "persist.json", parse_go_file),
                                  (self.rs_root, "state.json", parse_rs)):
            for sid in names_in(root):
                path = f"{root}/{sid}/{name}"
                sandbox = self._read(path, SandboxId(sid), parse) if valid_id(sid) else None
                seen.add(path)
                self.listed.add(SandboxId(sid))
                if sandbox is not None:
                    sandboxes.setdefault(sandbox.id, self._with_states(f"{root}/{sid}", sandbox))
        for vanished in self._incomplete.keys() - seen:
            del self._incomplete[vanished]
        for vanished in self._parsed.keys() - seen:
            del self._parsed[vanished]
            directory = os.path.dirname(vanished)
            self._marked.pop(directory, None)
            for path in [path for path in self._stopped if path.startswith(f"{directory}/")]:
                del self._stopped[path]
        return sandboxes

    @property
    def unsettled(self) -> bool:
        """Whether a file was incomplete at its last reading and must be read again."""
        return bool(self._incomplete)

    def use_annotation(self, annotation: str) -> None:
        """Set `exclusive_annotation` ("": none); if it changed, all files are parsed again."""
        if annotation != self.exclusive_annotation:
            self.exclusive_annotation = annotation
            self._parsed.clear()

    def _with_states(self, directory: str, sandbox: KataSandbox) -> KataSandbox:
        """Mark stopped containers: the sandbox's file lists them until they are removed; their state is in a file of
        each container (persist/api/container.go: State)."""
        now = time.monotonic()
        parsed, since, marked = self._marked.get(directory, (None, now, sandbox))
        if parsed is not sandbox:
            since, marked = now, sandbox
        elif now - since >= CONTAINERS_FOLLOW:
            return marked
        stopped = [container.id for container in sandbox.containers or ()
                   if self._is_stopped(f"{directory}/{container.id}/persist.json")]
        states = tuple(container._replace(state=ContainerState.STOPPED) if container.id in stopped else container
                       for container in sandbox.containers or ()) if stopped else sandbox.containers
        if states != marked.containers:
            marked = sandbox._replace(containers=states)
        self._marked[directory] = sandbox, since, marked
        return marked

    def _is_stopped(self, path: str) -> bool:
        try:
            info = os.stat(path, follow_symlinks=False)
            unchanged, stopped = self._stopped.get(path, (None, False))
            if unchanged != stamp(info):
                stopped = parse_object(read_regular(path, MAX_BYTES)[0], path, MAX_VALUES).get("State") == "stopped"
                self._stopped[path] = lasting_stamp(info), stopped
        except (OSError, SourceError):
            return False
        return stopped

    def _read(self, path: str, sid: SandboxId, parse: Parse) -> KataSandbox | None:
        try:
            info = os.stat(path, follow_symlinks=False)
        except OSError:
            self._incomplete.pop(path, None)
            return None
        unchanged, before = self._parsed.get(path, (None, None))
        if unchanged == stamp(info):
            return before
        sandbox: KataSandbox | None = None
        try:
            sandbox = _read_whole(path, sid, parse, info.st_mtime_ns)
        except FileNotFoundError:
            self._incomplete.pop(path, None)
            return None
        except OSError as err:
            if passing(err):
                return before
            self.complain(f"{path}: not read: {err.strerror}")  # a FIFO, a symbolic link, or too large
        except SourceError as err:
            if self._settles(path, info):
                return before
            sandbox = before  # an old state is better than none
            self.complain(f"{path}: {err.why}" + (": its last state is used" if sandbox else ""))
        self._incomplete.pop(path, None)
        self._parsed[path] = (lasting_stamp(info), sandbox)
        return sandbox

    def _settles(self, path: str, info: os.stat_result) -> bool:
        """Whether an incomplete file may still be in the process of being written: by its mtime and, in case the wall
        clock was stepped, by the time since its first incomplete reading."""
        now = time.monotonic()
        seen = now - self._incomplete.setdefault(path, now)
        return max(seen, time.time() - info.st_mtime) < SETTLING


def _read_whole(path: str, sid: SandboxId, parse: Parse, written: int) -> KataSandbox:
    """Read and parse a file, repeatedly within 10 ms if it is incomplete. :raises OSError: it cannot be read.
    :raises SourceError: it is invalid or still incomplete."""
    for _ in range(4):
        with contextlib.suppress(SourceError):
            return parse(sid, read_regular(path, MAX_BYTES)[0], written)
        time.sleep(0.002)
    return parse(sid, read_regular(path, MAX_BYTES)[0], written)


def _text(value: object, most: int) -> str:
    return value if isinstance(value, str) and len(value) <= most else ""


def parse_go(sid: SandboxId, raw: bytes, written: int, exclusive_annotation: str = "") -> KataSandbox:
    """Parse persist.json of the Go runtime; the keys are Go's field names.
    :param written: the file's mtime (CLOCK_REALTIME, ns).
    :raises SourceError: it is invalid or incomplete."""
    state = parse_object(raw, "persist.json", MAX_VALUES)
    containers = []
    pod = None
    configs = dig(state, "Config", "ContainerConfigs")
    configs = configs if isinstance(configs, list) else []
    if len(configs) > MAX_CONTAINERS:
        raise SourceError("persist.json", f"names {len(configs)} containers, at most {MAX_CONTAINERS} are read")
    lists = CpuLists()
    for config in configs:
        cid = dig(config, "ID")
        if not isinstance(cid, str) or not valid_id(cid):
            continue
        labels = dig(config, "Annotations")
        annotations = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}
        dialect = dialect_of(annotations.get(KATA_BUNDLE, ""))
        kind = annotations.get(dialect.kind) or annotations.get("io.katacontainers.pkg.oci.container_type")
        # The pause container has the sandbox's id. CRI-O always creates one; with other runtimes a sole container may
        # be the workload itself.
        pause = cid == sid and (
            kind in ("sandbox", "pod_sandbox", "podsandbox") or dialect is CRIO or len(configs) > 1)
        if not (pause and dialect is CRIO):  # there the author's annotations come last
            pod = pod or pod_of(annotations, dialect)
        cpus = dig(config, "Resources", "cpu", "cpus")
        try:
            cpuset = lists.parse(cpus) if isinstance(cpus, str) else None
        except CpuSetError:
            cpuset = None
        container = Container(ContainerId(cid), cpuset=cpuset or None, pause=pause)
        if not pause:
            container = container._replace(name=name_of(annotations, dialect),
                                           exclusive=declared_exclusive(annotations, exclusive_annotation))
        containers.append(container)
    vmm = dig(state, "HypervisorState")
    return KataSandbox(sid, "kata-go", pid_of(dig(vmm, "Pid")), tuple(containers), pod, str(dig(vmm, "UUID") or ""),
                       written, dig(state, "Config", "EnableVCPUsPinning") is True,
                       _text(dig(state, "AgentState", "URL"), 4096), _text(dig(vmm, "Type"), 64),
                       dig(state, "Config", "HypervisorType") == _REMOTE)


def parse_rs(sid: SandboxId, raw: bytes, written: int) -> KataSandbox:
    """Parse state.json of runtime-rs. :param written: as in `parse_go`. :raises SourceError: as `parse_go`."""
    state = parse_object(raw, "state.json", MAX_VALUES)
    return KataSandbox(sid, "kata-rs", pid_of(dig(state, "hypervisor", "pid")), None, None, "", written,
                       dig(state, "resource", "cgroup_state", "enable_vcpus_pinning") is True,
                       remote=dig(state, "hypervisor", "hypervisor_type") == _REMOTE)
