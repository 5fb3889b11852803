"""Facts about a node, as plain data: the checks of `vmpin doctor` judge them.

None, "" and () mean "not found"; `trouble` is the reason why something could not be read. Field names are JSON members
of the bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vmpin.cpuset import EMPTY, CpuSet

#: The kinds of daemons that give out CPUs by themselves.
ALLOCATORS = frozenset(("balloons", "topology-aware", "nri-policy", "koordinator", "crane", "cri-resmgr",
                        "dra-driver-cpu", "katalyst", "cpu-pooler", "ctlplane", "mixed-cpus", "cmk"))
#: The directory of hooks that CRI-O reads by default (1.37, pkg/config/config.go:1239).
CRIO_DEFAULT = "/usr/share/containers/oci/hooks.d"


@dataclass(frozen=True)
class FoundSetting:
    """A value in a program's configuration, and the file that sets it."""

    value: object
    file: str


@dataclass(frozen=True)
class Rights:
    """The rights of a process. `who` is its name in texts; `capabilities` are its effective ones among CAPABILITIES,
    None if unreadable. A namespace is True if it is the machine's own, None if unreadable."""

    who: str
    pid: int
    uid: int = -1
    capabilities: frozenset[str] | None = None
    user_ns: bool | None = None
    pid_ns: bool | None = None


@dataclass(frozen=True)
class Kernel:
    """`version` is (major, minor), None if the release has no such numbers."""

    release: str = ""
    version: tuple[int, int] | None = None
    parameters: tuple[str, ...] = ()  #: Of its command line, without secrets.
    schedstat: bool = False  #: Whether /proc/PID/schedstat is there (CONFIG_SCHED_INFO).
    kvm_debugfs: bool = False  #: Whether KVM's debugfs is mounted and can be read.
    mshv: bool = False  #: Whether VMs are Microsoft's hypervisor's, of which this machine is the root or a guest.


@dataclass(frozen=True)
class CpuFacts:
    """The node's CPUs. `cores` are sets of SMT siblings; a CPU without siblings is a set of its own. `smt_off`: SMT is
    switched off, wholly or in part, so that siblings are offline on purpose."""

    online: CpuSet = EMPTY
    present: CpuSet = EMPTY
    isolated: CpuSet = EMPTY
    nohz_full: CpuSet = EMPTY
    cores: tuple[CpuSet, ...] = ()
    trouble: str = ""
    smt_off: bool = False

    @property
    def smt(self) -> bool:
        return any(len(core) > 1 for core in self.cores)


@dataclass(frozen=True)
class KubeletConfig:
    """The kubelet's configuration: its file, overridden by drop-ins, overridden by flags. `settings` has only keys
    that concern CPUs, by their names in config.yaml. `directory` is that of the flag --root-dir, or of edgecore's
    rootDirectory, "" if none is named; `reached` is False if paths.kubelet is another directory."""

    pid: int | None = None
    settings: Mapping[str, FoundSetting] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()
    directory: str = ""
    reached: bool = True

    def text(self, key: str) -> str:
        setting = self.settings.get(key)
        return "" if setting is None or setting.value is None else str(setting.value)


@dataclass(frozen=True)
class Checkpoint:
    """The kubelet's cpu_manager_state. `policy` is "" if the file is unusable (`trouble`)."""

    path: str
    policy: str = ""
    shared_pool: CpuSet = EMPTY
    exclusive: CpuSet = EMPTY
    largest: int = 0
    version: int = 0
    checksum_ok: bool | None = None
    trouble: str = ""


@dataclass(frozen=True)
class Handler:
    """A runtime handler of a container runtime. `config_path` is the configuration that Kata reads with it ("": Kata's
    default), `annotations` the patterns of pod annotations that it passes on (None: all of them, with CRI-O)."""

    name: str
    engine: str
    kata: bool
    file: str
    runtime_path: str = ""
    config_path: str = ""
    annotations: tuple[str, ...] | None = ()
    base_spec: str = ""
    kata_conf_file: str = ""  #: The variable in the environment of its runtime, which the shim inherits.


@dataclass(frozen=True)
class Engine:
    """A container runtime that runs, or has a configuration. `nri` is None if the configuration leaves it to the
    version's default; `hooks_dirs` are the directories from which it reads hooks. `cpus` is the mask of its main
    thread, which the shims inherit that it starts; None if it does not run."""

    name: str
    pid: int | None = None
    files: tuple[str, ...] = ()
    nri: bool | None = None
    nri_socket: str = ""
    handlers: tuple[Handler, ...] = ()
    default: str = ""  #: The handler of pods without a RuntimeClass; "" if the configuration names none.
    nri_closed: bool = False  #: NRI is on only for the plugins that the runtime starts by itself.
    nri_plugins: str = ""  #: The directory of the NRI plugins that it starts by itself.
    workloads: Mapping[str, str] = field(default_factory=dict)  #: CRI-O's, with the cpuset of each ("": none).
    hooks_dirs: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()  #: The directories of the files that its configuration imports.
    cpus: CpuSet | None = None
    #: Seconds since it started, None if it does not run; and since the monitors of its containers started (conmon of
    #: CRI-O, except those of pause containers; containerd has no monitor per container).
    age: float | None = None
    begun: tuple[float, ...] = ()


@dataclass(frozen=True)
class Hook:
    """A registration of vmpin's hook. `broken` is the reason why the script cannot run, "" if it can."""

    file: str
    stages: tuple[str, ...]
    script: str
    socket: str
    fail_closed: bool = False
    broken: str = ""
    #: Runtimes and handlers that read the file; () if no runtime reads its directory.
    read_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class KataConfig:
    """A configuration of Kata: a file, overridden by the drop-ins beside it. `settings` has the relevant keys as
    section.key (hypervisor.qemu.default_vcpus). `read_by` are the handlers that use it, and "default" if Kata uses it
    without a handler's configuration."""

    path: str
    runtime: str
    read_by: tuple[str, ...] = ()
    dropins: tuple[str, ...] = ()
    settings: Mapping[str, FoundSetting] = field(default_factory=dict)
    trouble: str = ""

    def find(self, key: str) -> list[tuple[str, FoundSetting]]:
        """The settings with this last part of their key, in all sections."""
        return [(name, setting) for name, setting in self.settings.items() if name.rpartition(".")[2] == key]


@dataclass(frozen=True)
class KataSandboxFacts:
    """A sandbox in Kata's state on disk, and whether Kata pins its vCPUs."""

    id: str
    runtime: str
    pins_vcpus: bool


@dataclass(frozen=True)
class Daemon:
    """A process of a program that sets masks, or is suspected of it."""

    kind: str
    name: str
    pid: int


@dataclass(frozen=True)
class OtherAllocator:
    """A program that gives out CPUs of this node, and the evidence that it does. `cpus` are the only ones that it
    gives out; None: it may give out any."""

    name: str
    evidence: str
    cpus: CpuSet | None = None

    def is_rival(self, reserved: CpuSet) -> bool:
        """Whether it may give out CPUs that are not reserved."""
        return self.cpus is None or not self.cpus <= reserved


@dataclass(frozen=True)
class Tuned:
    """tuned's active profile with the files of included profiles, and the options of its scheduler plugin that concern
    masks, with variables expanded. `lost` are profiles that are missing or unreadable. `off`: no profile is active, as
    after `tuned-adm off`."""

    profile: str = ""
    files: tuple[str, ...] = ()
    scheduler: Mapping[str, FoundSetting] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    off: bool = False


@dataclass(frozen=True)
class ConnectorFacts:
    """Whether this process can receive the kernel's process events, and the reason if not."""

    available: bool | None = None
    why: str = ""


@dataclass(frozen=True)
class WatcherFacts:
    """`state` is running, absent, stopped (as by SIGSTOP), mute (it has the lock or the socket, and does not answer),
    or hidden (this user may not connect to its socket). `about` is its own report (status.collector), {} without one.
    `version` and `config` are those of this command, which a watcher started now would have. `config_errors` are
    errors that would prevent its start, `config_warnings` parts of the file that this version does not know and that
    set nothing."""

    state: str = "absent"
    pid: int | None = None
    why: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    config: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    unit: str = ""
    config_errors: tuple[str, ...] = ()
    config_warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunDirectoryFacts:
    """The run directory. Ages in seconds, sizes in bytes."""

    path: str
    exists: bool = False
    uid: int = 0
    mode: int = 0
    file_system: str = ""
    read_only: bool = False
    writable: bool = False
    free: int = 0
    inodes: int = 0
    spooled: int = 0
    oldest: float = 0.0
    set_aside: bool = False
    state_size: int | None = None
    #: Whether this process may read the state file.
    state_read: bool = True
    state_trouble: str = ""


@dataclass(frozen=True)
class VmProcess:
    """A process of a VM whose threads vmpin places, by its main thread; before Linux 6.4 also a kernel thread of it.
    `cgroups` is its /proc/PID/cgroup, the lines separated by commas."""

    name: str
    cgroups: str
    vmm: bool


@dataclass(frozen=True)
class NodeFacts:
    """All facts about a node. `status` is the status document, {} without one (`status_trouble`); `settings` are the
    values of the effective configuration as text, by key, `of_features` the facts of features, by name. `sees`:
    whether this process sees those of other programs. `nri_socket` is None if unreadable."""

    rights: Rights
    sees: bool = True
    kernel: Kernel = Kernel()
    cpus: CpuFacts = CpuFacts()
    cgroups: str = "none"
    #: By the cgroup of a VMM that has not all CPUs of its mask: the topmost one above it that has not, with its CPUs.
    narrow_cgroups: Mapping[str, tuple[str, CpuSet]] = field(default_factory=dict)
    kubelet: KubeletConfig = KubeletConfig()
    checkpoint: Checkpoint | None = None
    engines: tuple[Engine, ...] = ()
    nri_socket: bool | None = False
    cri_sockets: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    kata: tuple[KataConfig, ...] = ()
    kata_sandboxes: tuple[KataSandboxFacts, ...] = ()
    daemons: tuple[Daemon, ...] = ()
    allocators: tuple[OtherAllocator, ...] = ()
    tuned: Tuned = Tuned()
    vm_processes: tuple[VmProcess, ...] = ()  #: Of VMs in the status; read only where tuned runs.
    connector: ConnectorFacts = ConnectorFacts()
    watcher: WatcherFacts = WatcherFacts()
    run: RunDirectoryFacts = RunDirectoryFacts("")
    status: Mapping[str, Any] = field(default_factory=dict)
    status_trouble: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    of_features: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sandboxes(self) -> list[Mapping[str, Any]]:
        return list(self.status["sandboxes"]) if self.status else []

    @property
    def exclusive(self) -> CpuSet:
        """All exclusive CPUs: those of the status, else those of the checkpoint."""
        return self._cpus("exclusive")

    @property
    def pool(self) -> CpuSet:
        return self._cpus("shared_pool")

    def _cpus(self, name: str) -> CpuSet:
        node = self.status.get("node")
        cpus: CpuSet = CpuSet.parse(node[name]) if node else getattr(self.checkpoint, name, EMPTY)
        return cpus
