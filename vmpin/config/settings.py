"""The configuration: defaults, then the file, then the environment, then flags; checked once, frozen after.

One table (`SETTINGS`) is the only place that knows a key: its default, how it is read, and what it means. What stays
out: what the values do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from vmpin.config import values
from vmpin.config.values import Address
from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.domain.drift import ContentionRules, OnContention
from vmpin.errors import ConfigError
from vmpin.placement.policy import Policy, parse_rule

DEFAULT_FILE = Path("/etc/vmpin/vmpin.yaml")


class Setting(NamedTuple):
    """One key. `parse` raises ValueError with what is wrong about a value."""

    key: str
    default: object
    parse: Callable[[object], object]
    help: str

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "VMPIN_" + self.key.replace(".", "_").upper()


def _policy(key: str, default: str, help_text: str) -> Setting:
    return Setting(f"policy.{key}", default,
                   lambda value: parse_rule(key, "off" if value is False else value), help_text)


SETTINGS = (
    Setting("paths.run", "/run/vmpin", values.path, "sockets, spool, lock and state file; root's own"),
    Setting("paths.proc", "/proc", values.path, "the host's /proc"),
    Setting("paths.sys", "/sys", values.path, "the host's /sys"),
    Setting("paths.cgroup", "/sys/fs/cgroup", values.path, "the host's cgroups"),
    Setting("paths.kata_go", "/run/vc", values.path, "state of Kata's Go runtime"),
    Setting("paths.kata_rs", "/run/kata", values.path, "state of Kata's runtime-rs"),
    Setting("paths.kubelet", "/var/lib/kubelet", values.path, "the kubelet's directory: its CPU manager's checkpoint"),
    Setting("paths.nri", "/var/run/nri/nri.sock", values.path, "socket of the container runtime for NRI plugins"),
    Setting("paths.cri", "", values.path_or_unset,
            "socket of the container runtime for CRI calls, used by policy.runc_repair alone; unset: containerd's and "
            "CRI-O's own, where they exist"),
    Setting("node.shared_pool", None, values.pool,
            "CPU list that all shared containers live on, where the kubelet's static CPU manager does not tell it; "
            "unset: what nobody owns"),
    Setting("node.housekeeping", "", values.cpus, "CPU list for work that is nobody's"),
    _policy("vcpus", "auto", "auto (one-to-one where the counts allow), union (all on the sandbox mask) or off"),
    _policy("spare_vcpus", "sandbox",
            "vCPUs without a CPU of their own, when the sandbox has no shared CPU: sandbox, shared or housekeeping"),
    _policy("iothreads", "apart", "QEMU's iothreads: apart, sandbox, shared, housekeeping, off or a CPU list"),
    _policy("vhost", "apart", "vhost workers: apart, sandbox, shared, housekeeping, off or a CPU list"),
    _policy("emulator", "apart", "all other VMM threads: apart, sandbox, shared, housekeeping, off or a CPU list"),
    _policy("virtiofsd", "apart", "virtiofsd: apart, sandbox, shared, housekeeping, off or a CPU list"),
    _policy("shim", "apart", "the sandbox's Kata shim: apart, sandbox, shared, housekeeping, off or a CPU list"),
    Setting("policy.exclusive_annotation", "", values.word,
            "annotation by which a container says whether its CPUs are exclusive (true or false); unset: not heard, "
            "as a pod's author could claim CPUs that way"),
    Setting("policy.runc_repair", False, values.flag,
            "whether the runtime is asked (CRI) to give a runc container back the CPUs that the kubelet gave it, when "
            "its cgroup has others"),
    Setting("watch.resync_seconds", 10.0, values.seconds, "how often everything is read again and drift repaired"),
    Setting("watch.only", "*", values.word,
            "which sandboxes are touched, by a pattern of their ids (as a shell matches file names); others are not "
            "even looked at"),
    Setting("watch.status_group", "", values.word, "group that may ask for the status; unset: root alone"),
    Setting("watch.nri", "auto", values.nri,
            "whether to be an NRI plugin: on, off, or auto (when the socket is there)"),
    Setting("watch.kubelet", True, values.flag, "whether the kubelet's checkpoint and PodResources are read"),
    Setting("watch.births", True, values.flag,
            "whether the kernel is asked (proc connector) to tell of new programs and threads as they come"),
    Setting("watch.qmp", True, values.flag,
            "whether QEMU may be asked over QMP when nothing else tells its threads apart"),
    Setting("watch.on_exit", "keep", values.on_exit,
            "what becomes of the masks when the watcher ends: keep, or unpin (those from before; nothing is left)"),
    Setting("drift.on_fight", "rest", values.on_fight,
            "what is done about a thread that somebody else moves again and again: rest (left alone for a while, then "
            "tried again), leave (left alone until it is to be elsewhere, or vmpin reconcile) or persist"),
    Setting("drift.fight_repairs", 3, values.count,
            "how often a minute a thread is put back before the next time counts as a fight"),
    Setting("drift.rest_seconds", 300.0, values.seconds,
            "how long such a thread is left alone the first time (each further time twice as long, an hour at most)"),
    Setting("proof.sample_seconds", 10.0, values.seconds_or_off,
            "how often it is sampled where the threads ran; off: never"),
    Setting("guest.via", "auto", values.via,
            "who keeps each container's processes on its vCPUs in the guest: vmpin-agent, kata-agent, off, or auto "
            "(vmpin's agent where there is one, else Kata's)"),
    Setting("guest.port", 10789, values.port, "vsock port on which vmpin's agent listens in the guests"),
    Setting("guest.system", "spare", values.system,
            "where the guest's own processes go: spare (the vCPUs that back no container's own CPUs) or off"),
    Setting("guest.export", False, values.flag,
            "whether the guest's containers can read which of the guest's CPUs are whose (/run/vmpin/cpus.json)"),
    Setting("guest.expose_host_cpus", False, values.flag,
            "whether the guests are told which of the host's CPUs are behind a container's (shown with guest.export)"),
    Setting("guest.disabled_handlers", "", values.word,
            "runtime handlers whose guests are told nothing: patterns, separated by commas, as for confidential VMs"),
    Setting("metrics.address", "", values.address,
            "where metrics and probes are answered: an IP address and port (127.0.0.1:9750), or unix:/path; unset: "
            "nowhere"),
    Setting("metrics.per_sandbox", False, values.flag,
            "whether there are metrics of each sandbox, labelled with its pod"),
    Setting("log.level", "info", values.level, "debug, info, warning or error"),
)

_BY_KEY = {setting.key: setting for setting in SETTINGS}

#: Variables that set no key: VMPIN_DEBUG shows the traceback of an error of the operating system (cli/main), the
#: others are the tests' own (docs/testing.md).
_NO_KEYS = ("VMPIN_DEBUG", "VMPIN_LAB_", "VMPIN_MIXED_", "VMPIN_FUZZ_", "VMPIN_SOAK_")
#: A pod has variables for each Service of its namespace: of vmpin-metrics VMPIN_METRICS_SERVICE_HOST and others.
_SERVICE = "_SERVICE_HOST"


@dataclass(frozen=True)
class Config:
    """The effective configuration. `origin` tells for every key where its value came from."""

    values: Mapping[str, Any]
    origin: Mapping[str, str]
    policy: Policy

    def path(self, name: str) -> Path:
        """`paths.<name>`."""
        found: Path = self.values[f"paths.{name}"]
        return found

    @property
    def run(self) -> Path:
        return self.path("run")

    @property
    def cri(self) -> Path | None:
        """The configured CRI socket; None: the runtimes' own places."""
        found: Path | None = self.values["paths.cri"]
        return found

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
    def state_file(self) -> Path:
        return self.run / "state.json"

    @property
    def notes_file(self) -> Path:
        """Masks from before that the state file has not yet."""
        return self.run / "before.notes"

    @property
    def lock_file(self) -> Path:
        return self.run / "lock"

    @property
    def shared_pool(self) -> CpuSet | None:
        found: CpuSet | None = self.values["node.shared_pool"]
        return found

    @property
    def housekeeping(self) -> CpuSet:
        found: CpuSet = self.values["node.housekeeping"]
        return found

    @property
    def resync_seconds(self) -> float:
        return float(self.values["watch.resync_seconds"])

    @property
    def qmp(self) -> bool:
        return bool(self.values["watch.qmp"])

    @property
    def on_exit(self) -> str:
        return str(self.values["watch.on_exit"])

    @property
    def nri(self) -> str:
        """auto, on or off"""
        return str(self.values["watch.nri"])

    @property
    def kubelet(self) -> bool:
        return bool(self.values["watch.kubelet"])

    @property
    def births(self) -> bool:
        return bool(self.values["watch.births"])

    @property
    def runc_repair(self) -> bool:
        return bool(self.values["policy.runc_repair"])

    @property
    def only(self) -> str:
        return str(self.values["watch.only"]) or "*"

    @property
    def log_level(self) -> str:
        return str(self.values["log.level"])

    @property
    def status_group(self) -> str:
        return str(self.values["watch.status_group"])

    @property
    def exclusive_annotation(self) -> str:
        return str(self.values["policy.exclusive_annotation"])

    @property
    def contention_rules(self) -> ContentionRules:
        return ContentionRules(OnContention(self.values["drift.on_fight"]), int(self.values["drift.fight_repairs"]),
                          float(self.values["drift.rest_seconds"]), self.resync_seconds)

    @property
    def sample_seconds(self) -> float | None:
        """None: no samples are taken."""
        return float(self.values["proof.sample_seconds"]) or None

    @property
    def proof_file(self) -> Path:
        return self.run / "proof"

    @property
    def guest_port(self) -> int:
        return int(self.values["guest.port"])

    @property
    def guest_system(self) -> str:
        """spare or off"""
        return str(self.values["guest.system"])

    @property
    def guest_export(self) -> bool:
        return bool(self.values["guest.export"])

    @property
    def metrics(self) -> Address | None:
        """Where they are served, None for nowhere."""
        found: Address | None = self.values["metrics.address"]
        return found

    @property
    def per_sandbox(self) -> bool:
        return bool(self.values["metrics.per_sandbox"])

    @property
    def guest_host_cpus(self) -> bool:
        return bool(self.values["guest.expose_host_cpus"])

    def guest_via(self, handler: str = "") -> str:
        """auto, vmpin-agent, kata-agent or off, for the guests of a runtime handler; "" is one that nobody told."""
        patterns = [each for each in str(self.values["guest.disabled_handlers"]).split(",") if each]
        if patterns and (not handler or any(fnmatchcase(handler, pattern) for pattern in patterns)):
            return "off"
        return str(self.values["guest.via"])

    def data(self) -> dict[str, dict[str, object]]:
        """Every key with its value, as words, and where it came from."""
        return {key: {"value": to_plain(value), "from": self.origin[key]} for key, value in self.values.items()}


def to_plain(value: object) -> object:
    """A value as JSON and YAML can hold it."""
    return value if value is None or isinstance(value, bool | float) else str(value)


def load(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """Put the configuration together.

    :param file: the file asked for, which must exist; None takes the default file if there is one.
    :param flags: by key, from the command line.
    :raises ConfigError: naming the source, the key and the value.
    """
    given: dict[str, tuple[object, str]] = {setting.key: (setting.default, "default") for setting in SETTINGS}
    path = file or DEFAULT_FILE
    if file is not None or _is_there(path):
        given |= {key: (value, str(path)) for key, value in _read(path).items()}
    for setting, text in _from(environment).items():
        given[setting.key] = (text, f"environment {setting.variable}")
    for key, text in flags.items():
        if key not in _BY_KEY:
            raise ConfigError(f"--set {key}={text}: unknown key {key!r}", _hint(key))
        given[key] = (text, "flag")
    parsed: dict[str, object] = {}
    for key, (value, origin) in given.items():
        try:
            parsed[key] = _BY_KEY[key].parse(value)
        except (ValueError, CpuSetError) as err:
            raise ConfigError(f"{origin}: {key}: {value!r}: {err}", _BY_KEY[key].help) from err
    no_rules = ("policy.exclusive_annotation", "policy.runc_repair")
    policy = Policy.of({key.partition(".")[2]: value for key, value in parsed.items()
                        if key.startswith("policy.") and key not in no_rules})
    return Config(parsed, {key: origin for key, (_, origin) in given.items()}, policy)


def _from(environment: Mapping[str, str]) -> dict[Setting, str]:
    """What the environment sets. :raises ConfigError: for a variable that is named like vmpin's and sets no key."""
    services = [name.removesuffix(_SERVICE) for name in environment if name.endswith(_SERVICE)]
    others = (*_NO_KEYS, *(f"{name}{part}" for name in services for part in ("_SERVICE_", "_PORT")))
    known = {setting.variable: setting for setting in SETTINGS}
    found = {}
    for name, text in environment.items():
        if not name.startswith("VMPIN_") or name.startswith(others):
            continue
        if name not in known:
            raise ConfigError(f"environment {name}: sets no key that is known", _near(
                name.removeprefix("VMPIN_"), [each.removeprefix("VMPIN_") for each in known], "VMPIN_"))
        found[known[name]] = text
    return found


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # hidden from this user: reading it says so


def _read(path: Path) -> dict[str, object]:
    """The keys of a file, as `section.key`."""
    from vmpin.config import yaml_file  # only when there is a file: YAML costs a third of a short command's start

    document = yaml_file.load(path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: is no mapping of sections")
    found: dict[str, object] = {}
    for section, keys in document.items():
        if section not in {key.partition(".")[0] for key in _BY_KEY}:
            raise ConfigError(f"{path}: unknown section {section!r}", _hint(str(section)))
        if not isinstance(keys, dict | None):
            raise ConfigError(f"{path}: {section}: {keys!r} is no mapping of keys to values")
        for name, value in (keys or {}).items():
            key = f"{section}.{name}"
            if key not in _BY_KEY:
                raise ConfigError(f"{path}: unknown key {key!r}", _hint(key))
            found[key] = value
    return found


def _hint(key: str) -> str:
    return _near(key, [*_BY_KEY, *{name.partition(".")[0] for name in _BY_KEY}])


def _near(name: str, known: list[str], prefix: str = "") -> str:
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {prefix + near[0]!r}? " if near else "`vmpin config` lists every key"
