"""Facts of a node on which nothing is wrong, and changed ones, for the tests of the doctor's checks."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from vmpin.config import loading as config
from vmpin.cpuset import CpuSet
from vmpin.domain.facts import (
    Checkpoint,
    ConnectorFacts,
    CpuFacts,
    Engine,
    FoundSetting,
    Handler,
    Hook,
    KataConfig,
    Kernel,
    KubeletConfig,
    NodeFacts,
    Rights,
    RunDirectoryFacts,
    WatcherFacts,
)
from vmpin.feature import features
from vmpin.features.common.finding import CheckResult

ALL = frozenset(("CAP_SYS_NICE", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_NET_ADMIN", "CAP_CHOWN"))


ROOT = Rights("the watcher", 100, 0, ALL, user_ns=True, pid_ns=True)


DEFAULTS = {key: "" if entry["value"] is None else str(entry["value"])
            for key, entry in config.load(None, {}, {}).data().items()}


STATIC = Checkpoint("/k/cpu_manager_state", "static", CpuSet.parse("0-1"), CpuSet.parse("2-3"), 2, 2, True)
ABOUT: dict[str, Any] = {"pid": 100, "version": "1.2", "uptime": 5.0, "resynced": 1.0, "resync_seconds": 10.0,
                         "passes": {}, "sources": [],
                         "config": {"policy.vcpus": {"value": "auto", "from": "default"}}}


#: A feature that has facts has a module NAME_facts among its tests.
OF_FEATURES = {feature.name: import_module(f"{feature.name}_facts").FACTS for feature in features()
               if find_spec(f"{feature.name}_facts")}


def facts(**changes: Any) -> NodeFacts:
    """A node on which nothing is wrong, but for the changes."""
    settings = {**DEFAULTS, **changes.pop("settings", {})}
    base = NodeFacts(
        rights=ROOT, kernel=Kernel("6.12.1-x", (6, 12), schedstat=True, kvm_debugfs=True),
        cpus=CpuFacts(CpuSet.parse("0-7"), CpuSet.parse("0-7"), cores=tuple(CpuSet((cpu,)) for cpu in range(8))),
        cgroups="v2", checkpoint=STATIC,
        kubelet=KubeletConfig(7, {"cpuManagerPolicy": FoundSetting("static", "/c.yaml")}, ("/c.yaml",)),
        nri_socket=True, cri_sockets=("/run/containerd/containerd.sock",), connector=ConnectorFacts(True),
        watcher=WatcherFacts("running", 100, "", ABOUT, "1.2", ABOUT["config"]),
        run=RunDirectoryFacts("/run/vmpin", True, 0, 0o755, "tmpfs", free=1 << 30, inodes=1 << 20, writable=True,
                         state_size=10),
        status=status(), settings=settings, of_features=OF_FEATURES)
    return replace(base, **changes)


def status(*sandboxes: dict[str, Any], **node: Any) -> dict[str, Any]:
    return {"watcher": 100, "policy": {"vcpus": "auto", "spare_vcpus": "sandbox", "iothreads": "apart",
                                       "vhost": "apart", "emulator": "apart", "virtiofsd": "apart",
                                       "shim": "apart"},
            "node": {"online": "0-7", "shared_pool": "0-1", "exclusive": "2-3", "owners": [], "unknown_owners": [],
                     "collisions": [], "names": {},
                     "disagreements": [], **node},
            "sources": {"nri": {"state": "connected to containerd", "events": 3, "last_error": ""}, "kubelet": None},
            "sandboxes": list(sandboxes)}


def sandbox(name: str = "a", **changes: Any) -> dict[str, Any]:
    return {"id": name, "vmm": {"type": "qemu", "pid": 9}, "mask": "2-3", "verdict": "pinned", "reasons": [],
            "found_by": "names", "cgroup": None, "guest": None, "containers": [], "threads": [],
            "pod": None, "network": None, **changes}


def verdict(name: str, found: NodeFacts) -> CheckResult:
    check = next(check for feature in features() if feature.checks
                 for check in feature.loaded(feature.checks, tuple) if check.name == name)
    result: CheckResult = check.judge(found)
    return result


def kata(path: str = "/k.toml", runtime: str = "go", readers: tuple[str, ...] = ("kata-qemu",),
         **settings: object) -> KataConfig:
    """A configuration with `runtime.x` written as runtime__x."""
    return KataConfig(path, runtime, readers, (), {key.replace("__", "."): FoundSetting(value, path)
                                                   for key, value in settings.items()})


def handler(name: str = "kata-qemu", **changes: Any) -> Handler:
    return replace(Handler(name, "containerd", True, "/etc/containerd/config.toml", config_path="/k.toml"), **changes)


def hook(**changes: Any) -> Hook:
    return replace(Hook("/h/50.json", ("createRuntime", "createContainer", "poststart", "poststop"), "/h/vmpin-hook",
                        "/run/vmpin/hook.sock", read_by=("crio",)), **changes)


def rights(*without: str, **changes: Any) -> Rights:
    return replace(ROOT, capabilities=ALL - set(without), **changes)


def containerd(*handlers: Handler, **changes: Any) -> Engine:
    return replace(Engine("containerd", 5, ("/etc/containerd/config.toml",), True, handlers=handlers), **changes)


CRIO = Engine("crio", 7, hooks_dirs=("/usr/share/containers/oci/hooks.d",), age=100.0)


def received(age: float | None, *begun: float, uptime: float = 1000.0) -> NodeFacts:
    """A hook that CRI-O reads, the age of the last that the watcher received, and those of CRI-O's containers."""
    about = {**ABOUT, "uptime": uptime, "hooks": {"applied": 0 if age is None else 1, "age": age}}
    return facts(hooks=(hook(),), engines=(replace(CRIO, begun=begun),),
                 watcher=WatcherFacts("running", 100, "", about, "1.2", ABOUT["config"]))


def configured(its: str, its_from: str, mine: str, mine_from: str) -> NodeFacts:
    """A watcher with one value of policy.vcpus, and this command with another."""
    about = {**ABOUT, "config": {"policy.vcpus": {"value": its, "from": its_from}}}
    return facts(watcher=WatcherFacts("running", 100, "", about, "1.2",
                                 {"policy.vcpus": {"value": mine, "from": mine_from}}))


def running(passes: dict[str, int] | None = None, **sources: bool) -> NodeFacts:
    """A watcher with these sources, up or down."""
    reported = [{"name": name, "up": up, "needed": name not in ("new_threads", "another", "reporter"), "why": ""}
                for name, up in sources.items()]
    return facts(watcher=WatcherFacts("running", 100, "", {**ABOUT, "sources": reported, "passes": passes or {}},
                                 "1.2", ABOUT["config"]))
