"""The check of vmpin's OCI hook: its registrations, the runtimes that read them, and its messages to the watcher.

Pure."""

from __future__ import annotations

from typing import Any

from vmpin.doctor.cluster_checks import connected
from vmpin.doctor.finding import CheckResult, bad, ok, several, unknown, warn
from vmpin.domain.facts import Engine, NodeFacts
from vmpin.domain.terminal import number_of

_STAGES = frozenset(("createRuntime", "createContainer", "poststart", "poststop"))
#: CRI-O 1.37, pkg/config/config.go:1239; a --hooks-dir on its command line has no effect.
CRIO_DEFAULT = "/usr/share/containers/oci/hooks.d"
_NAME_IT = ("name the directory in the runtime's hooks_dir (CRI-O's only default is "
            f"{CRIO_DEFAULT}, and it ignores --hooks-dir), or the spec in base_runtime_spec of the handler, and "
            "restart it: hooks/README.md. To delete an unused registration: vmpin install-hook --remove")
_LATELY = 5.0  #: Seconds: the hook message of a container started more recently may still be on its way.


def hooks(facts: NodeFacts) -> CheckResult:
    wanted = facts.settings.get("paths.run", "/run/vmpin") + "/hook.sock"
    evidence = [f"{hook.file}: {', '.join(hook.stages)} → {hook.script}, "
                f"read by {several(hook.read_by) or 'no runtime'}" for hook in facts.hooks]
    broken = [hook for hook in facts.hooks if hook.broken]
    if broken:
        return bad(f"the hook cannot be run, so no container starts: {broken[0].script}: {broken[0].broken}",
                   "register it again (vmpin install-hook), or remove the registrations (vmpin install-hook "
                   "--remove)", *evidence)
    if not facts.hooks:
        if connected(facts):
            return ok("no hook is registered; NRI reports every container")
        return warn("no hook of vmpin is registered, and NRI is not connected either", "vmpin install-hook "
                    "--hooks-dir DIR (podman, CRI-O) or --base-spec FILE (containerd): hooks/README.md")
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
        return warn(f"CRI-O reads no registration of the hook: its hooks_dir is {several(deaf.hooks_dirs)}", _NAME_IT,
                    *evidence)
    lacking = _STAGES - {stage for hook in facts.hooks for stage in hook.stages}
    if lacking:
        return warn(f"stages without the hook: {', '.join(sorted(lacking))}; each of Kata's runtimes skips some",
                    "register it for all four: vmpin install-hook without --stage", *evidence)
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
