"""Checks of where vmpin reads which container has which CPUs: the kubelet and NRI. What stays out: the OCI hook
(hooks)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.doctor.finding import Verdict, bad, denied, ok, several, unknown, warn
from vmpin.domain.facts import Engine, Facts

_POOL = ("give the kubelet cpuManagerPolicy: static, or say which CPUs are shared: node.shared_pool in "
         "/etc/vmpin/vmpin.yaml")
_THERE = {True: "is there", False: "is not there", None: "cannot be looked at"}


def kubelet(facts: Facts) -> Verdict:
    point, config = facts.checkpoint, facts.kubelet
    evidence = [*_kubelet_words(facts)]
    pool = facts.settings.get("node.shared_pool", "")
    configured = config.text("cpuManagerPolicy")
    stale = ((facts.status.get("sources") or {}).get("kubelet") or {}) if point is None else {}
    if stale.get("stale"):
        return warn("the kubelet's checkpoint is gone: who owns a CPU is as the last one says, of "
                    f"{stale['written']}; {stale['second_witness']}",
                    "the kubelet writes it again at its next allocation. If there is to be no static policy any more, "
                    "start it with another (its checkpoint then says so), or set watch.kubelet: false", *evidence)
    if point is None:
        if configured == "static":
            return bad("the kubelet is to run the static policy, and has no checkpoint",
                       "does the kubelet run? Else paths.kubelet is not its directory (--root-dir)", *evidence)
        if pool:
            return ok(f"no static CPU manager; node.shared_pool is {pool}, and CPUs outside of it are exclusive",
                      *evidence)
        if config.pid is None and not config.files:
            return unknown("no kubelet is found, and node.shared_pool is unset: no container owns a CPU, so every VM "
                           "floats on its containers' CPUs", *evidence, remedy=_POOL)
        return warn("no CPU manager tells who owns which CPU: no vCPU gets a CPU of its own", _POOL, *evidence)
    if not point.policy and denied(point.trouble):
        return unknown("the kubelet's checkpoint cannot be read", *evidence, remedy="run this as root")
    if not point.policy:
        return bad(f"the kubelet's checkpoint cannot be used: {point.trouble}",
                   "the kubelet writes it anew at its next allocation; if it does not, drain the node, remove the "
                   "file and restart the kubelet", *evidence)
    if configured and configured.lower() != point.policy.lower():
        return bad(f"the kubelet is configured for policy {configured}, its checkpoint is of policy {point.policy}: "
                   "it refuses to start like that",
                   f"drain the node, remove {point.path}, restart the kubelet", *evidence)
    if facts.settings.get("watch.kubelet") == "False":
        return warn("the checkpoint is not read (watch.kubelet: false)",
                    "set watch.kubelet: true, unless another file is meant to rule", *evidence)
    if point.policy.lower() != "static":
        if pool:
            return ok(f"policy {point.policy}; node.shared_pool is {pool}, and CPUs outside of it are exclusive",
                      *evidence)
        return warn(f"policy {point.policy}: no container owns a CPU, so no vCPU gets one of its own", _POOL,
                    *evidence)
    if config.pid is None and facts.sees:
        return warn("a checkpoint of the static policy lies there, and no kubelet runs: CPUs "
                    f"{point.exclusive or 'none'} stay exclusive as it says",
                    "start the kubelet; where there is to be none, set watch.kubelet: false", *evidence)
    if point.trouble:
        return warn(f"the static policy's checkpoint is odd: {point.trouble}",
                    "CPUs exclusive to two pods are the kubelet's mistake: restart the younger pod", *evidence)
    return ok(f"static policy: CPUs {point.exclusive or 'none'} exclusive, {point.shared_pool or 'none'} shared",
              *evidence)


def _kubelet_words(facts: Facts) -> Iterable[str]:
    point, config = facts.checkpoint, facts.kubelet
    yield f"kubelet pid {config.pid}" if config.pid else "no kubelet process is seen"
    for key in ("cpuManagerPolicy", "cpuManagerReconcilePeriod", "reservedSystemCPUs", "topologyManagerPolicy",
                "memoryManagerPolicy"):
        if config.text(key):
            yield f"{key}: {config.text(key)} ({config.settings[key].file})"
    yield from config.trouble
    if point is None:
        yield "no cpu_manager_state"
    else:
        checksum = {True: "right", False: "wrong", None: "not looked at"}[point.checksum_ok]
        yield f"{point.path}: version {point.version}, policy {point.policy or 'unknown'}, checksum {checksum}"


def kubelet_options(facts: Facts) -> Verdict:
    point = facts.checkpoint
    found = facts.kubelet.settings.get("cpuManagerPolicyOptions")
    options = found.value if found is not None and isinstance(found.value, dict) else {}
    evidence = [f"{key}: {value} ({found.file})" for key, value in options.items()] if found is not None else []
    if point is not None and denied(point.trouble):
        return unknown("the kubelet's checkpoint cannot be read", *evidence, remedy="run this as root")
    if point is None or point.policy.lower() != "static":
        return ok("no static policy: there are no options of it", *evidence)
    split = _split_cores(facts)
    if split and str(options.get("full-pcpus-only", "false")).lower() != "true":
        return warn(f"{len(split)} cores are shared by two owners of exclusive CPUs: each slows the other down",
                    "set cpuManagerPolicyOptions full-pcpus-only: \"true\" (drain the node and remove "
                    f"{point.path} first)", *evidence, *split[:10])
    if not facts.status or not facts.cpus.cores:
        return unknown("whether two owners of exclusive CPUs share a core cannot be told: "
                       f"{facts.status_trouble or facts.cpus.trouble or 'the cores are not known'}", *evidence)
    return ok("no core is shared by two owners of exclusive CPUs" if facts.cpus.smt else
              "every CPU is a core of its own", *evidence)


def _split_cores(facts: Facts) -> list[str]:
    """Cores whose threads are exclusive to different containers, in words."""
    owners: dict[int, str] = {}
    for owner in (facts.status.get("node") or {}).get("owners", ()):
        for cpu in CpuSet.parse(owner["cpus"]):
            owners[cpu] = f"{owner['sandbox']}/{owner['container']}"
    found = []
    for core in facts.cpus.cores:
        names = dict.fromkeys(owners[cpu] for cpu in core if cpu in owners)
        if len(names) > 1:
            found.append(f"core {core}: {', '.join(names)}")
    return found


def nri(facts: Facts) -> Verdict:
    wanted = facts.settings.get("watch.nri", "auto")
    told = _told_of_nri(facts)
    engines = [engine for engine in facts.engines if engine.name != "podman"]
    path = facts.settings.get("paths.nri", "")
    evidence = [f"watch.nri: {wanted}", f"{path} {_THERE[facts.nri_socket]}",
                *(_engine_words(engine) for engine in engines),
                *(trouble for engine in engines for trouble in engine.trouble)]
    if told is not None:
        evidence.append(f"the watcher: {told['state']}, {told['events']} events"
                        + (f", last error: {told['last_error']}" if told.get("last_error") else ""))
    if wanted == "off":
        if any(hook.read_by for hook in facts.hooks):
            return ok("NRI is not used (watch.nri: off), the hook is registered", *evidence)
        return warn("NRI is not used, and no runtime reads a registration of the hook: new containers are seen at a "
                    "resync, those of Kata's runtime-rs not at all",
                    "set watch.nri: auto, or register the hook (vmpin install-hook)", *evidence)
    if connected(facts):
        return ok(f"NRI is {told['state'] if told else ''}", *evidence)
    if facts.nri_socket is None:
        return unknown(f"whether {path} is there cannot be told", *evidence, remedy="run this as root")
    refused = [engine.name for engine in engines if engine.nri is False]
    if not facts.nri_socket:
        return _no_socket(facts, wanted, path, engines, refused, evidence)
    if told is not None:
        verdict = bad if wanted == "on" else warn
        return verdict(f"the watcher has no NRI connection: {told['state']}",
                       "look at the runtime's log: it says why it closed a plugin's connection (journalctl -u "
                       "containerd, -u crio)", *evidence)
    return ok("NRI is there for the watcher to use", *evidence)


def _told_of_nri(facts: Facts) -> Mapping[str, Any] | None:
    """The watcher's word on its connection."""
    found: Mapping[str, Any] | None = (facts.status.get("sources") or {}).get("nri")
    return found


def connected(facts: Facts) -> bool:
    """Whether the watcher has a connection to the runtime's NRI, by its own word."""
    told = _told_of_nri(facts)
    return told is not None and str(told["state"]).startswith("connected")


def _no_socket(facts: Facts, wanted: str, path: str, engines: Sequence[Engine], refused: Sequence[str],
               evidence: Sequence[str]) -> Verdict:
    if not engines:
        return unknown("no container runtime is found on this node", *evidence)
    where = (f"NRI is switched off in the configuration of {', '.join(refused)}" if refused else
             f"{', '.join(engine.name for engine in engines)} opens no NRI socket")
    remedy = ("containerd: disable = false under plugins.'io.containerd.nri.v1.nri' (1.7 has it off by default); "
              "CRI-O: enable_nri = true under crio.nri; then restart it. Or register the hook: vmpin install-hook")
    other = [engine.nri_socket for engine in engines if engine.nri_socket and engine.nri_socket != path]
    if other:
        remedy = f"its socket is {other[0]}: set paths.nri to that. Else: {remedy}"
    verdict = bad if wanted == "on" else warn
    return verdict(f"{where}: without it changes are seen at a resync only", remedy, *evidence)


def _engine_words(engine: Engine) -> str:
    runs = f"pid {engine.pid}" if engine.pid else "not running"
    said = {True: "NRI on", False: "NRI off", None: "NRI as its version has it (containerd: on since 2.0)"}[engine.nri]
    return f"{engine.name}: {runs}, {said}" + (f", {several(engine.files)}" if engine.files else "")
