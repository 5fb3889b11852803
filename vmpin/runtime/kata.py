"""The state files of Kata's two runtimes, one for each sandbox.

The Go runtime keeps `/run/vc/sbs/<sid>/persist.json` up to date, each container's live cpuset in it (virtcontainers/
persist). runtime-rs writes `/run/kata/<sid>/state.json` once at the start, without the VMM's pid and without
containers. Both write in place (O_TRUNC): a reader may meet an empty or half file, and reads again, at once and then
in each pass. The pids in them are not believed here: vmm.inventory confirms them.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from vmpin.cpuset import CpuLists, CpuSetError
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId, valid_id
from vmpin.errors import SourceError, passing
from vmpin.host.procfs import names_in
from vmpin.host.regular import Stamp, lasting_stamp, read_regular, stamp
from vmpin.runtime.dialect import CRIO, KATA_BUNDLE, declared_exclusive, dialect_of, name_of, pod_of
from vmpin.runtime.json_files import dig, parse_object, pid_of

#: Of a file, in which Kata keeps some 4 kB and 200 values for each container; and the containers of a pod.
MAX_BYTES, MAX_VALUES, MAX_CONTAINERS = 1 << 20, 24_576, 512
#: Seconds for which a file may be half written before that counts: a busy node may take as long to write it.
SETTLING = 1.0


class KataSandbox(NamedTuple):
    """A sandbox as its runtime describes it. `containers` is None where the runtime's file has none."""

    id: SandboxId
    runtime: str
    vmm_pid: int
    containers: tuple[Container, ...] | None
    pod: Pod | None
    #: Of the VM, "" for none: a VM from Kata's factory has another id on its command line, but this is on it too.
    uuid: str
    written: int  #: When its file was written, CLOCK_REALTIME ns.
    pins_vcpus: bool  #: Kata's own pinning is on: two writers of the same masks.
    #: How Kata reaches its agent: vsock://CID:1024 or hvsock://PATH:1024; "" where it is not kept.
    agent_url: str = ""
    hypervisor: str = ""  #: The kind of VMM as Kata names it (virtcontainers/hypervisor.go), "" where it is not known.


#: Parses a state file: its sandbox, its bytes, and when it was written.
Parse = Callable[[SandboxId, bytes, int], KataSandbox]


def named_for_kata(handler: str) -> bool:
    """Whether a runtime handler has a name of Kata's: its pods are VMs from the first report on, before a process of
    theirs is there. Others are known by their processes, whatever their name."""
    return handler.startswith("kata")


class KataState:
    """Reads both state directories; a file is parsed again only when it changed, or was half written.
    :param complain: called with a line for each file that cannot be used, once per version of that file.
    :param exclusive_annotation: by which a container declares its CPUs exclusive, "" for none."""

    def __init__(self, go_root: Path, rs_root: Path, complain: Callable[[str], None],
                 exclusive_annotation: str = "") -> None:
        self.go_root, self.rs_root = os.fspath(go_root), os.fspath(rs_root)
        self.complain = complain
        #: The sandboxes that had a directory at the last reading, readable or not.
        self.listed: set[SandboxId] = set()
        self.exclusive_annotation = exclusive_annotation
        #: When each half-written file was met (monotonic), as long as that may pass.
        self._half: dict[str, float] = {}
        self._parsed: dict[str, tuple[Stamp, KataSandbox | None]] = {}
        self._stopped: dict[str, tuple[Stamp, bool]] = {}

    def sandboxes(self) -> dict[SandboxId, KataSandbox]:
        """Every sandbox either runtime has on disk."""
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
        for vanished in self._half.keys() - seen:
            del self._half[vanished]
        for vanished in self._parsed.keys() - seen:
            del self._parsed[vanished]
            directory = os.path.dirname(vanished) + "/"
            for path in [path for path in self._stopped if path.startswith(directory)]:
                del self._stopped[path]
        return sandboxes

    @property
    def unsettled(self) -> bool:
        """Whether a file was half written when it was last read, and is to be read again."""
        return bool(self._half)

    def use_annotation(self, annotation: str) -> None:
        """Set `exclusive_annotation` ("": none), and parse all files again where it changed."""
        if annotation != self.exclusive_annotation:
            self.exclusive_annotation = annotation
            self._parsed.clear()

    def _with_states(self, directory: str, sandbox: KataSandbox) -> KataSandbox:
        """The sandbox with stopped containers marked: its file lists those until they are removed, and each one's own
        file beside it (persist/api/container.go: State) has the state."""
        stopped = [container.id for container in sandbox.containers or ()
                   if self._is_stopped(f"{directory}/{container.id}/persist.json")]
        if not stopped:
            return sandbox
        containers = (container._replace(state=ContainerState.STOPPED) if container.id in stopped else container
                      for container in sandbox.containers or ())
        return sandbox._replace(containers=tuple(containers))

    def _is_stopped(self, path: str) -> bool:
        try:
            info = os.stat(path, follow_symlinks=False)
            cached = self._stopped.get(path)
            if cached is None or cached[0] != stamp(info):
                state = parse_object(read_regular(path, MAX_BYTES)[0], path, MAX_VALUES)
                cached = (stamp(info), state.get("State") == "stopped")
                self._stopped[path] = (lasting_stamp(info), cached[1])
        except (OSError, SourceError):
            return False
        return cached[1]

    def _read(self, path: str, sid: SandboxId, parse: Parse) -> KataSandbox | None:
        try:
            info = os.stat(path, follow_symlinks=False)
        except OSError:
            self._half.pop(path, None)
            return None
        unchanged, before = self._parsed.get(path, (None, None))
        if unchanged == stamp(info):
            return before
        sandbox: KataSandbox | None = None
        for attempt in range(5):
            try:
                sandbox = parse(sid, read_regular(path, MAX_BYTES)[0], info.st_mtime_ns)
                break
            except FileNotFoundError:
                self._half.pop(path, None)
                return None
            except OSError as err:
                if passing(err):
                    return before
                self.complain(f"{path}: not read: {err.strerror}")  # a FIFO, a link, too large
                break
            except SourceError as err:
                if attempt < 4:
                    time.sleep(0.002)
                elif self._settles(path, info):
                    return before
                else:
                    sandbox = before  # better than none
                    self.complain(f"{path}: {err.why}" + (": its last state is used" if sandbox else ""))
        self._half.pop(path, None)
        self._parsed[path] = (lasting_stamp(info), sandbox)
        return sandbox

    def _settles(self, path: str, info: os.stat_result) -> bool:
        """Whether a half-written file may still become whole: by its own time, or if the wall clock was stepped, by
        how long it has been seen so."""
        now = time.monotonic()
        seen = now - self._half.setdefault(path, now)
        return max(seen, time.time() - info.st_mtime) < SETTLING


def _url(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 4096 else ""


def _hypervisor(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 64 else ""


def parse_go(sid: SandboxId, raw: bytes, written: int, exclusive_annotation: str = "") -> KataSandbox:
    """Parse persist.json of the Go runtime; the keys are Go's field names.
    :param written: when the file was written, CLOCK_REALTIME ns.
    :raises SourceError: when it is half written."""
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
        # The sandbox's own container has the sandbox's id; CRI-O starts none alone.
        pause = cid == sid and (
            kind in ("sandbox", "pod_sandbox", "podsandbox") or dialect is CRIO or len(configs) > 1)
        if not (pause and dialect is CRIO):  # in the config of that one the author's annotations come last
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
                       _url(dig(state, "AgentState", "URL")), _hypervisor(dig(vmm, "Type")))


def parse_rs(sid: SandboxId, raw: bytes, written: int) -> KataSandbox:
    """Parse state.json of runtime-rs; `written` as for parse_go. :raises SourceError: when it is half written."""
    state = parse_object(raw, "state.json", MAX_VALUES)
    return KataSandbox(sid, "kata-rs", pid_of(dig(state, "hypervisor", "pid")), None, None, "", written,
                       dig(state, "resource", "cgroup_state", "enable_vcpus_pinning") is True)
