"""The configuration's keys, and the frozen values that the rest of the program reads.

The section classes below are the table of settings: a field is a key, its type the type of the value, and its default
the `Setting` that holds the key's default value, its parser and its explanation. `loading.load` makes a `Config` of
them. Named tuples, as every command imports this module and a dataclass takes longer to make."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from vmpin.config import values
from vmpin.config.values import Setting, setting
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.contention import ContentionRules, OnContention
from vmpin.domain.policy import Policy, SpareVcpuRule, ThreadPolicy, VcpuRule, parse_rule
from vmpin.errors import ConfigError
from vmpin.feature import features
from vmpin.named_tuple import NamedTuple

#: Of the placement rules.
_DEFAULTS = Policy._field_defaults


def _rule(key: str, help_text: str) -> Any:
    """A placement rule of `Policy`, with its default there."""
    return Setting(_DEFAULTS[key], partial(parse_rule, key), help_text)


class PathSettings(NamedTuple):
    """`paths`: what is read of the host, and where the watcher's own files are."""

    run: Path = setting(Path("/run/vmpin"), values.path, "sockets, spool, lock and state file; owned by root")
    proc: Path = setting(Path("/proc"), values.path, "the host's /proc")
    sys: Path = setting(Path("/sys"), values.path, "the host's /sys")
    cgroup: Path = setting(Path("/sys/fs/cgroup"), values.path, "the host's cgroups")
    kata_go: Path = setting(Path("/run/vc"), values.path, "state of Kata's Go runtime")
    kata_rs: Path = setting(Path("/run/kata"), values.path, "state of Kata's runtime-rs")
    kubelet: Path = setting(Path("/var/lib/kubelet"), values.path,
                            "the kubelet's directory: its CPU manager's checkpoint")
    cdi: Path = setting(Path("/var/run/cdi"), values.path, "CDI specs of devices: the CPUs of DRA claims")
    nri: Path = setting(Path("/var/run/nri/nri.sock"), values.path, "socket of the container runtime for NRI plugins")
    cri: Path | None = setting(None, values.path_or_unset, "socket of the container runtime for CRI calls; unset: "
                               "containerd's and CRI-O's own, if they exist")

    @property
    def hook_socket(self) -> Path:
        return self.run / "hook.sock"

    @property
    def spool(self) -> Path:
        return self.run / "spool"

    @property
    def control_socket(self) -> Path:
        return self.run / "vmpin.sock"

    @property
    def status_socket(self) -> Path:
        """The socket for reading only. Its directory is all that `vmpin reporter` gets of the host."""
        return self.run / "status" / "vmpin.sock"

    @property
    def state_file(self) -> Path:
        return self.run / "state.json"

    @property
    def notes_file(self) -> Path:
        """Original masks that the state file does not have yet."""
        return self.run / "originals.notes"

    @property
    def originals_file(self) -> Path:
        """The original masks once more, for a state file that is lost."""
        return self.run / "originals.json"

    @property
    def lock_file(self) -> Path:
        return self.run / "lock"


class NodeSettings(NamedTuple):
    """`node`: CPUs that no source reports."""

    shared_pool: CpuSet | None = setting(
        None, values.pool, "CPU list that all shared containers run on, where the kubelet's static CPU manager does "
        "not report it; unset: every CPU that no container owns")
    housekeeping: CpuSet = setting(EMPTY, values.cpus, "CPU list for threads whose policy is housekeeping")


_ROLE_RULES = "apart, sandbox, shared, housekeeping, off or a CPU list"


class PolicySettings(NamedTuple):
    """`policy`: the rules of placement (`Config.rules` has them as one value), and which CPUs are exclusive."""

    vcpus: VcpuRule = _rule(
        "vcpus", "auto (one-to-one where the counts allow), union (all on the sandbox mask) or off")
    spare_vcpus: SpareVcpuRule = _rule(
        "spare_vcpus",
        "vCPUs without a CPU of their own, when the sandbox has no shared CPU: sandbox, shared or housekeeping")
    iothreads: ThreadPolicy | CpuSet = _rule("iothreads", f"QEMU's iothreads: {_ROLE_RULES}")
    vhost: ThreadPolicy | CpuSet = _rule("vhost", f"vhost workers: {_ROLE_RULES}; or near (those of apart's CPUs "
                                         "that are on the NUMA node of the VM's NIC)")
    emulator: ThreadPolicy | CpuSet = _rule("emulator", f"all other VMM threads: {_ROLE_RULES}")
    virtiofsd: ThreadPolicy | CpuSet = _rule("virtiofsd", f"virtiofsd: {_ROLE_RULES}")
    shim: ThreadPolicy | CpuSet = _rule("shim", f"the sandbox's Kata shim: {_ROLE_RULES}")
    exclusive_annotation: str = setting("", values.token,
                                        "annotation that declares whether a container's CPUs are exclusive (true or "
                                        "false); unset: none is read, as a pod's author could claim CPUs that way")
    observed_ownership: str = setting(
        "auto", values.one_of("auto", "off"),
        "auto: where no program reports which CPUs are exclusive and no shared pool is configured, a container owns "
        "the CPUs that no other pod's container may use (needs NRI); off: it owns none")


class WatchSettings(NamedTuple):
    """`watch`: what the watcher reads, how often, and what becomes of the masks when it ends."""

    resync_seconds: float = setting(10.0, values.seconds, "how often everything is read again and drift repaired")
    only: str = setting("*", values.token, "which sandboxes are placed, by a pattern of their ids (as a shell "
                        "matches file names); others are not even inspected")
    status_group: str = setting("", values.group, "group that may read the status, by name or number (a container's "
                                "groups have no name here); unset: root alone")
    nri: str = setting("auto", values.nri, "whether to be an NRI plugin: on, off, or auto (when the socket is there)")
    kubelet: bool = setting(True, values.flag, "whether the kubelet's checkpoint and PodResources are read")
    births: bool = setting(
        True, values.flag, "whether the kernel reports new programs and threads as they start (proc connector)")
    reload: str = setting(
        "signal", values.one_of("signal", "change"),
        "when the configuration is loaded again: at SIGHUP (signal), or also when its file changes (change)")
    qmp: bool = setting(
        True, values.flag, "whether QEMU is asked over QMP when nothing else identifies its vCPU threads")
    on_exit: str = setting(
        "keep", values.one_of("keep", "unpin"),
        "what becomes of the masks when the watcher ends: keep, or unpin (restore the original ones; nothing is left)")

    @property
    def pattern(self) -> str:
        """The pattern that the ids of sandboxes match which are placed."""
        return self.only or "*"


class DriftSettings(NamedTuple):
    """`drift`: what is done about a thread that another program moves again and again."""

    on_contention: str = setting("rest", values.one_of("rest", "leave", "persist"), "what is done about a thread that "
                             "another program moves again and again: rest (left alone for a while, then tried again), "
                             "leave (left alone until its placement changes, or vmpin repin) or persist")
    contention_repairs: int = setting(
        3, values.count, "how often a minute a thread is put back before the next time counts as contention")
    rest_seconds: float = setting(
        300.0, values.seconds,
        "how long such a thread is left alone the first time (each further time twice as long, an hour at most)")


class GuestSettings(NamedTuple):
    """`guest`: what is done inside the VMs."""

    via: str = setting("auto", values.one_of("auto", "vmpin-agent", "kata-agent", "off"),
                       "which agent keeps each container's processes on its vCPUs in the guest: vmpin-agent, "
                       "kata-agent, off, or auto (vmpin's agent where there is one, else Kata's)")
    port: int = setting(10789, values.port, "vsock port on which vmpin's agent listens in the guests")
    system: str = setting(
        "spare", values.one_of("spare", "off"),
        "where the guest's own processes go: spare (the vCPUs that back no container's own CPUs) or off")
    export: bool = setting(
        False, values.flag,
        "whether the guest's containers can read which container has which of the guest's CPUs (/run/vmpin/cpus.json)")
    expose_host_cpus: bool = setting(
        False, values.flag,
        "whether the guests are sent the host's CPUs behind each container's (shown with guest.export)")
    disabled_handlers: str = setting(
        "", values.token,
        "runtime handlers whose guests are sent nothing: patterns, separated by commas, as for confidential VMs")

    def via_for(self, handler: str = "") -> str:
        """auto, vmpin-agent, kata-agent or off, for the guests of a runtime handler ("": no source named one)."""
        patterns = [pattern for pattern in self.disabled_handlers.split(",") if pattern]
        if patterns and (not handler or any(fnmatchcase(handler, pattern) for pattern in patterns)):
            return "off"
        return self.via


class LogSettings(NamedTuple):
    """`log`."""

    level: str = setting("info", values.one_of("debug", "info", "warning", "error"), "debug, info, warning or error")


class Config(NamedTuple):
    """The effective configuration, by section. `of_features` has the sections that features add, by name: a feature
    reads its own. `origin` has for every key where its value came from, `rules` the placement rules of section
    `policy`. `errors` are the faults of the parts that were left out, for a command that sets no masks by it
    (`loading.load_usable`): with any, no watcher would start. `warnings` are parts of the file that this version does
    not know and that set nothing."""

    paths: PathSettings
    node: NodeSettings
    policy: PolicySettings
    watch: WatchSettings
    drift: DriftSettings
    guest: GuestSettings
    log: LogSettings
    of_features: Mapping[str, Any]
    origin: Mapping[str, str]
    rules: Policy
    errors: tuple[ConfigError, ...] = ()
    warnings: tuple[ConfigError, ...] = ()

    @property
    def values(self) -> dict[str, object]:
        """Return every value by its key, in the order of the table."""
        return {setting.key: getattr(self.section(section), name)
                for setting, (section, name) in zip(SETTINGS, _PLACES, strict=True)}

    def section(self, name: str) -> Any:
        """The values of a section, a feature's or one of the core's."""
        return self.of_features[name] if name in self.of_features else getattr(self, name)

    @property
    def contention_rules(self) -> ContentionRules:
        return ContentionRules(OnContention(self.drift.on_contention), self.drift.contention_repairs,
                               self.drift.rest_seconds, self.watch.resync_seconds)

    def data(self) -> dict[str, dict[str, object]]:
        """Return every key with its value, as JSON and YAML can hold it, and where it came from."""
        return {key: {"value": to_plain(value), "from": self.origin[key]} for key, value in self.values.items()}


_OF_CORE: dict[str, type[Any]] = {"paths": PathSettings, "node": NodeSettings, "policy": PolicySettings,
                                  "watch": WatchSettings, "drift": DriftSettings,
                                  "guest": GuestSettings, "log": LogSettings}
_OF_FEATURES: dict[str, type[Any]] = {
    name: feature.loaded(place, type) for feature in features() for name, place in feature.sections.items()}
SECTIONS = _OF_CORE | _OF_FEATURES
_PLACES = [(section, name) for section, fields in SECTIONS.items() for name in fields._fields]
#: Every key, in the order of `vmpin config`.
SETTINGS: tuple[Setting, ...] = tuple(
    SECTIONS[section]._field_defaults[name]._replace(key=f"{section}.{name}") for section, name in _PLACES)
BY_KEY = {setting.key: setting for setting in SETTINGS}


def with_values(parsed: Mapping[str, object], origin: Mapping[str, str]) -> Config:
    """A configuration of parsed values. :param parsed: every key's; of one origin each."""
    def sections(classes: Mapping[str, type[Any]]) -> dict[str, Any]:
        return {section: fields._make(parsed[f"{section}.{name}"] for name in fields._fields)
                for section, fields in classes.items()}

    rules = Policy.of({name: parsed[f"policy.{name}"] for name in Policy._fields})
    return Config(**sections(_OF_CORE), of_features=sections(_OF_FEATURES), origin=origin, rules=rules)


def to_plain(value: object) -> object:
    """A value as JSON and YAML can hold it; a number as the file has it: 10, and not 10.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if value is None or isinstance(value, int | float) else str(value)
