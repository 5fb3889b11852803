"""Checks of what reports containers and their CPUs: the kubelet, NRI, vmpin's OCI hook.

Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.domain.distributions import DISTRIBUTIONS
from vmpin.domain.facts import CRIO_DEFAULT, Checkpoint, Engine, NodeFacts
from vmpin.domain.terminal import number_of
from vmpin.features.common.finding import CheckResult, bad, denied, ok, several, unknown, warn

_POOL = ("set cpuManagerPolicy: static in the kubelet's configuration, or name the shared CPUs: node.shared_pool in "
         "/etc/vmpin/vmpin.yaml")
_THERE = {True: "exists", False: "does not exist", None: "cannot be accessed"}


def kubelet(facts: NodeFacts) -> CheckResult:
    evidence, point, pool = [*_kubelet_evidence(facts)], facts.checkpoint, facts.settings.get("node.shared_pool", "")
    config = facts.kubelet
    # Without a static policy there is nothing to read, unless another directory's checkpoint is read instead.
    counts = config.text("cpuManagerPolicy") != "none" or (point is not None and point.policy == "static")
    if counts and not config.reached and facts.settings.get("watch.kubelet") != "false":
        here = facts.settings.get("paths.kubelet")
        if here == config.directory:
            return bad(f"{here} is not the kubelet's directory here (paths.kubelet), but on the node: its checkpoint "
                       "is not read", "mount the node's directory there, or set paths.kubelet to its place here",
                       *evidence)
        return bad(f"the kubelet's directory is {config.directory}, and paths.kubelet is {here}: its checkpoint is "
                   "not read", f"set paths.kubelet: {config.directory} (in the chart: kubelet.directory)", *evidence)
    if point is None:
        return _no_checkpoint(facts, pool, evidence)
    broken = _broken_checkpoint(facts, point, evidence)
    if broken is not None:
        return broken
    if point.policy.lower() == "static":
        return _static_policy(facts, point, evidence)
    other = _other_authority(facts, pool)
    if other:
        return ok(f"policy {point.policy}; {other}", *evidence)
    return warn(f"policy {point.policy}: no container owns a CPU, so no vCPU is pinned one-to-one", _POOL, *evidence)


def _other_authority(facts: NodeFacts, pool: str) -> str:
    """Name the authority in place of the kubelet, by the watcher's status; "" without one."""
    rulings = (facts.status.get("node") or {}).get("authorities") or ()
    if "dra" in rulings:
        return "the claims of dra-driver-cpu decide which CPUs are exclusive"
    if pool:
        return f"node.shared_pool is {pool}, and CPUs outside it are exclusive"
    if "observed" in rulings:
        return "CPUs that no other pod's container may use are exclusive (policy.observed_ownership)"
    return ""


def _no_checkpoint(facts: NodeFacts, pool: str, evidence: Sequence[str]) -> CheckResult:
    config = facts.kubelet
    stale = (facts.status.get("sources") or {}).get("kubelet") or {}
    if stale.get("stale"):
        return warn("the kubelet's checkpoint is gone: its last contents are used, written "
                    f"{stale['written']}; {stale['second_witness']}",
                    "the kubelet rewrites it at its next allocation. To end the static policy, start the kubelet with "
                    "another policy, which it writes into its checkpoint, or set watch.kubelet: false", *evidence)
    if config.text("cpuManagerPolicy") == "static":
        return bad("the kubelet is configured for the static policy, and has no checkpoint",
                   "start the kubelet; if it runs, set paths.kubelet to its directory (--root-dir)", *evidence)
    other = _other_authority(facts, pool)
    if other:
        return ok(f"no static CPU manager; {other}", *evidence)
    if config.pid is None and not config.files:
        return unknown("no kubelet was found, and node.shared_pool is unset: no container owns a CPU, so every VM "
                       "floats on its containers' CPUs", *evidence, remedy=_POOL)
    return warn("no CPU manager assigns exclusive CPUs: no vCPU is pinned one-to-one", _POOL, *evidence)


def _broken_checkpoint(facts: NodeFacts, point: Checkpoint, evidence: Sequence[str]) -> CheckResult | None:
    """The result for a checkpoint that is not used; None for a usable one."""
    configured = facts.kubelet.text("cpuManagerPolicy")
    if not point.policy and denied(point.trouble):
        return unknown("the kubelet's checkpoint cannot be read", *evidence, remedy="run this as root")
    if not point.policy:
        return bad(f"the kubelet's checkpoint cannot be used: {point.trouble}", "the kubelet rewrites it at its next "
                   "allocation; if it does not, drain the node, remove the file and restart the kubelet", *evidence)
    if configured and configured.lower() != point.policy.lower():
        return bad(f"the kubelet is configured for policy {configured}, its checkpoint is of policy {point.policy}: "
                   "it refuses to start", f"drain the node, remove {point.path}, restart the kubelet", *evidence)
    if facts.settings.get("watch.kubelet") == "false":
        return warn("the checkpoint is not read (watch.kubelet: false)",
                    "set watch.kubelet: true, unless another file is to decide", *evidence)
    return None


def _static_policy(facts: NodeFacts, point: Checkpoint, evidence: Sequence[str]) -> CheckResult:
    if facts.kubelet.pid is None and facts.sees:
        stay = f"CPUs {point.exclusive} stay" if point.exclusive else "no CPU is"
        return warn(f"a checkpoint of the static policy exists, and no kubelet runs: {stay} exclusive by it",
                    "start the kubelet; on a node without one, set watch.kubelet: false", *evidence)
    if point.trouble:
        return warn(f"the static policy's checkpoint is inconsistent: {point.trouble}",
                    "CPUs exclusive to two pods are a fault of the kubelet: restart the younger pod", *evidence)
    exclusive = f"CPUs {point.exclusive}" if point.exclusive else "no CPU is"
    return ok(f"static policy: {exclusive} exclusive, {point.shared_pool or 'none'} shared", *evidence)


def _kubelet_evidence(facts: NodeFacts) -> Iterable[str]:
    point, config = facts.checkpoint, facts.kubelet
    yield f"kubelet pid {config.pid}" if config.pid else "no kubelet process was found"
    if config.directory:
        yield f"its directory: {config.directory}"
    for key in ("cpuManagerPolicy", "cpuManagerReconcilePeriod", "reservedSystemCPUs", "topologyManagerPolicy",
                "memoryManagerPolicy"):
        if config.text(key):
            yield f"{key}: {config.text(key)} ({config.settings[key].file})"
    yield from config.trouble
    if point is None:
        yield "no cpu_manager_state"
    else:
        checksum = {True: "right", False: "wrong", None: "not checked"}[point.checksum_ok]
        yield f"{point.path}: version {point.version}, policy {point.policy or 'unknown'}, checksum {checksum}"


def kubelet_options(facts: NodeFacts) -> CheckResult:
    point = facts.checkpoint
    setting = facts.kubelet.settings.get("cpuManagerPolicyOptions")
    options = setting.value if setting is not None and isinstance(setting.value, dict) else {}
    evidence = [f"{key}: {value} ({setting.file})" for key, value in options.items()] if setting is not None else []
    if point is not None and denied(point.trouble):
        return unknown("the kubelet's checkpoint cannot be read", *evidence, remedy="run this as root")
    if point is None or point.policy.lower() != "static":
        return ok("no static policy, so its options do not apply", *evidence)
    split = _split_cores(facts)
    on = {key for key, value in options.items() if str(value) in ("1", "t", "T", "true", "True", "TRUE")}  # ParseBool
    if split and "full-pcpus-only" not in on:
        # The kubelet refuses both together (cpumanager/policy_options.go).
        instead = " in place of distribute-cpus-across-cores" * ("distribute-cpus-across-cores" in on)
        return warn(f"{number_of(len(split), 'core is')} shared by two owners of exclusive CPUs, which slow "
                    "each other down",
                    "set cpuManagerPolicyOptions full-pcpus-only: \"true\""
                    f"{instead} (drain the node and remove {point.path} first)", *evidence, *split[:10])
    if not facts.status or not facts.cpus.cores:
        return unknown("whether two owners of exclusive CPUs share a core is unknown: "
                       f"{facts.status_trouble or facts.cpus.trouble or 'the cores are unknown'}", *evidence)
    return ok("no core is shared by two owners of exclusive CPUs" if facts.cpus.smt else
              "every core has one CPU", *evidence)


def authorities(facts: NodeFacts) -> CheckResult:
    node = facts.status.get("node") or {}
    if not node:
        return unknown(f"what decides on exclusive CPUs is unknown: {facts.status_trouble or 'there is no status'}")
    rule = several(node.get("authorities") or ("none",), 6)
    rivals = node.get("rivals") or ()
    if rivals:
        pairs = dict.fromkeys(" and ".join(rival["authorities"]) for rival in rivals)
        return warn(f"two decide on the same CPUs: {several(pairs)}", "let one program give out this node's CPUs, and "
                    "remove the other one: `vmpin doctor pinners` lists programs (observed: what writes cpusets)",
                    f"in force: {rule}", *(rival["what"] for rival in rivals[:10]))
    return ok(f"exclusive CPUs are decided by: {rule}")


def _split_cores(facts: NodeFacts) -> list[str]:
    """Cores with CPUs exclusive to different containers, one text each."""
    owners: dict[int, str] = {}
    for owner in (facts.status.get("node") or {}).get("owners", ()):
        for cpu in CpuSet.parse(owner["cpus"]):
            owners[cpu] = f"{owner['sandbox']}/{owner['container']}"
    cores = []
    for core in facts.cpus.cores:
        names = dict.fromkeys(owners[cpu] for cpu in core if cpu in owners)
        if len(names) > 1:
            cores.append(f"core {core}: {', '.join(names)}")
    return cores


def nri(facts: NodeFacts) -> CheckResult:
    wanted = facts.settings.get("watch.nri", "auto")
    link = _nri_link(facts)
    engines = [engine for engine in facts.engines if engine.name != "podman"]
    path = facts.settings.get("paths.nri", "")
    evidence = [f"watch.nri: {wanted}", f"{path} {_THERE[facts.nri_socket]}",
                *(_engine_evidence(engine) for engine in engines),
                *(trouble for engine in engines for trouble in engine.trouble)]
    if link is not None:
        evidence.append(f"the watcher: {link['state']}, {number_of(link['events'], 'event')}"
                        + (f", last error: {link['last_error']}" if link.get("last_error") else ""))
    if wanted == "off":
        if any(hook.read_by for hook in facts.hooks):
            return ok("NRI is not used (watch.nri: off), the hook is registered", *evidence)
        return warn("NRI is not used, and no runtime reads a registration of the hook: new containers are found at a "
                    "resync, those of Kata's runtime-rs never",
                    "set watch.nri: auto, or register the hook (`vmpin install hook --hooks-dir DIR`)", *evidence)
    if connected(facts):
        return ok(f"NRI is {link['state'] if link else ''}", *evidence)
    if facts.nri_socket is None:
        return unknown(f"whether {path} exists is unknown", *evidence, remedy="run this as root")
    if not facts.nri_socket:
        return _no_socket(wanted, path, engines, evidence)
    if link is not None:
        verdict = bad if wanted == "on" else warn
        return verdict(f"the watcher has no NRI connection: {link['state']}", "read the runtime's log for the reason "
                       "why it closed the plugin's connection (journalctl -u containerd, -u crio)", *evidence)
    return ok("NRI is available to a watcher", *evidence)


def _nri_link(facts: NodeFacts) -> Mapping[str, Any] | None:
    """The state of the NRI connection, from the status; None without a watcher."""
    link: Mapping[str, Any] | None = (facts.status.get("sources") or {}).get("nri")
    return link


def connected(facts: NodeFacts) -> bool:
    """True if the watcher reports a connection to the runtime's NRI."""
    link = _nri_link(facts)
    return link is not None and str(link["state"]).startswith("connected")


def _no_socket(wanted: str, path: str, engines: Sequence[Engine], evidence: Sequence[str]) -> CheckResult:
    if not engines:
        return unknown("no container runtime was found on this node", *evidence)
    refused = [engine.name for engine in engines if engine.nri is False]
    closed = [engine.name for engine in engines if engine.nri_closed]
    where = (f"NRI is disabled in the configuration of {', '.join(refused)}" if refused else
             f"{', '.join(closed)} takes no connections of NRI plugins (disable_connections)" if closed else
             f"{', '.join(engine.name for engine in engines)} opens no NRI socket")
    remedy = ("containerd: disable = false and disable_connections = false under plugins.'io.containerd.nri.v1.nri' "
              "(off by default in 1.7); CRI-O: enable_nri = true and nri_disable_connections = false under crio.nri; "
              f"then restart it{_made(engines)}. Or register the hook: `vmpin install hook --hooks-dir DIR`")
    other = [engine.nri_socket for engine in engines if engine.nri_socket and engine.nri_socket != path]
    if other:
        remedy = f"its socket is {other[0]}: set paths.nri to that. Otherwise: {remedy}"
    verdict = bad if wanted == "on" else warn
    return verdict(f"{where}: without it changes are found only at a resync", remedy, *evidence)


def _made(engines: Iterable[Engine]) -> str:
    """Name the file to change where a distribution overwrites the runtime's own."""
    read = {path for engine in engines for path in engine.files}
    made = {place.engine: place.made_from for place in DISTRIBUTIONS if place.made_from and place.engine in read}
    return "".join(f" ({path} is made anew at each start: change {source})" for path, source in made.items())


def _engine_evidence(engine: Engine) -> str:
    runs = f"pid {engine.pid}" if engine.pid else "not running"
    nri = {True: "NRI on", False: "NRI off", None: "NRI at its default (containerd: on since 2.0)"}[engine.nri]
    return f"{engine.name}: {runs}, {nri}" + (f", {several(engine.files)}" if engine.files else "")


_STAGES = frozenset(("createRuntime", "createContainer", "poststart", "poststop"))
_NAME_IT = ("name the directory in the runtime's hooks_dir (CRI-O's only default is "
            f"{CRIO_DEFAULT}), or the spec in base_runtime_spec of the handler, and restart it: hooks/README.md. To "
            "delete an unused registration: `vmpin install hook --hooks-dir DIR --remove`")
_LATELY = 5.0  #: Seconds: the hook message of a container started more recently may still be on its way.


def hooks(facts: NodeFacts) -> CheckResult:
    wanted = facts.settings.get("paths.run", "/run/vmpin") + "/hook.sock"
    evidence = [f"{hook.file}: {', '.join(hook.stages)} → {hook.script}, "
                f"read by {several(hook.read_by) or 'no runtime'}" for hook in facts.hooks]
    broken = [hook for hook in facts.hooks if hook.broken]
    if broken:
        return bad(f"the hook cannot be run, so no container starts: {broken[0].script}: {broken[0].broken}",
                   "register it again (`vmpin install hook --hooks-dir DIR`), or remove the registrations (`vmpin "
                   "install hook --hooks-dir DIR --remove`)", *evidence)
    if not facts.hooks:
        if connected(facts):
            return ok("no hook is registered; NRI reports every container")
        return warn("no hook of vmpin is registered, and NRI is not connected either", "`vmpin install hook "
                    "--hooks-dir DIR` (podman, CRI-O) or `vmpin install hook --base-spec FILE` (containerd): "
                    "hooks/README.md")
    elsewhere = [hook for hook in facts.hooks if hook.socket != wanted]
    if elsewhere:
        return warn(f"the hook connects to {elsewhere[0].socket}, but the watcher listens on {wanted}",
                    f"register it again with --socket {wanted}", *evidence)
    idle = [hook.file for hook in facts.hooks if not hook.read_by]
    if idle:
        return warn(f"no runtime on this node reads {several(idle)}", _NAME_IT, *evidence)
    deaf = next((engine for engine in facts.engines if engine.name == "crio" and engine.pid is not None
                 and not _reads(engine, facts)), None)
    if deaf is not None:
        return warn(f"CRI-O reads no registration of the hook: its hooks_dir is {several(deaf.hooks_dirs) or 'empty'}",
                    _NAME_IT, *evidence)
    unhooked = () if connected(facts) else tuple(
        handler.name for engine in facts.engines if engine.name == "containerd" and engine.pid is not None
        for handler in engine.handlers if handler.kata
        and not any(f"containerd handler {handler.name}" in hook.read_by for hook in facts.hooks))
    if unhooked:
        return warn(f"no hook runs for pods of containerd's handlers {several(unhooked)}: their base specs, if any, "
                    "have none", f"{_NAME_IT}{_made(facts.engines)}", *evidence)
    lacking = _STAGES - {stage for hook in facts.hooks for stage in hook.stages}
    if lacking:
        return warn(f"stages without the hook: {', '.join(sorted(lacking))}; each of Kata's runtimes skips some",
                    "register it for all four: `vmpin install hook --hooks-dir DIR`, without --stage", *evidence)
    closed = [hook.file for hook in facts.hooks if hook.fail_closed]
    if closed:
        evidence.append(f"--fail-closed: without the watcher no container starts ({several(closed)})")
    return _received(facts, evidence)


def _received(facts: NodeFacts, evidence: list[str]) -> CheckResult:
    """Whether the watcher has received a hook since the runtimes that read it were started."""
    received: dict[str, Any] | None = facts.watcher.about.get("hooks")
    if received is None:
        return ok(number_of(len(facts.hooks), "registration"), *evidence)
    age = received["age"]
    evidence.append("the watcher has received no hook" if age is None else
                    f"the watcher received the last hook {age:.0f} s ago")
    for engine in facts.engines:
        if engine.age is None or not _reads(engine, facts) or (age is not None and age <= engine.age):
            continue
        since = f"since {engine.name} (pid {engine.pid}) started, {engine.age:.0f} s ago"
        # A watcher that started later has read the messages of the time before from the spool.
        watched = min(engine.age, float(facts.watcher.about.get("uptime", 0.0)))
        if any(_LATELY < begun < watched for begun in engine.begun):
            return warn(f"no hook has been received {since}, and it has started containers",
                        f"restart {engine.name} if its configuration was changed since; search its log for hooks. "
                        "No hook runs for CRI-O's pause containers", *evidence)
        return unknown(f"no hook has been received {since}", *evidence,
                       remedy="start a container and repeat the check: it shows whether the runtime runs the hook")
    return ok(number_of(len(facts.hooks), "registration"), *evidence)


def _reads(engine: Engine, facts: NodeFacts) -> bool:
    return any(reader.split(" ")[0] == engine.name for hook in facts.hooks for reader in hook.read_by)
