"""Checks of vmpin itself: the watcher, its configuration and files, and the status of the sandboxes.

Pure."""

from __future__ import annotations

from collections.abc import Mapping

from vmpin.domain.facts import NodeFacts
from vmpin.domain.terminal import ENDED, as_written, number_of
from vmpin.features.common.finding import CheckResult, Level, bad, ok, several, unknown, warn
from vmpin.status.health import alive

_START = "`vmpin install service --now`, or the chart (`vmpin help kubernetes`)"
_LOG = "read its log: journalctl -u vmpin"
#: Bytes and inodes that the run directory should have left: the state of some thousand containers, and the spool.
_FREE, _INODES = 4 << 20, 1000
#: A guest's state while it boots, as the guest's session reports it (guests.guest_session).
WAITING = "waiting for an answer"


def watcher(facts: NodeFacts) -> CheckResult:
    service = facts.watcher
    if service.state == "absent":
        return bad("no watcher runs: no thread is kept in place", _START, *([service.why] if service.why else []))
    if service.state == "hidden":
        return unknown(f"whether a watcher runs is unknown: {service.why}", remedy="run this as root")
    process = f"pid {service.pid or 'unknown'}" + (f", unit {service.unit}" if service.unit else "")
    if service.state == "stopped":
        return bad(f"the watcher ({process}) is stopped: no thread is kept in place",
                   f"`kill -CONT {service.pid}`, or systemctl kill --signal=CONT {service.unit or 'vmpin'}", process)
    if service.state == "mute":
        return bad(f"the watcher ({process}) does not answer: {service.why}", _LOG, process)
    if not service.about:
        return unknown(f"a watcher runs ({process}), and gives no details: {service.why}",
                       f"this command is {service.version}", remedy="run this as root; if it is root already, the "
                       "watcher is of an older version: systemctl restart vmpin")
    its = str(service.about.get("version", ""))
    evidence = [process, f"version {its}, running for {float(service.about.get('uptime', 0)):.0f} s"]
    sources = {source["name"]: source for source in service.about.get("sources", ())}
    lines = [f"source {source['name']}: {'up' if source['up'] else 'down'}"
             + (f" ({source['why']})" if source["why"] else "") for source in sources.values()]
    # Each watcher has the hook's socket among its sources, up or failing.
    if "hook" in sources and not _receives(facts, {name for name, source in sources.items() if source["up"]}):
        return bad("the watcher receives no events: process events and NRI are down or switched off, and no hook "
                   "reaches it; new VMs and containers are placed at a resync at best",
                   "see the checks proc-connector, nri and hooks: one of these sources has to work", *evidence, *lines)
    if "resync" in sources and not sources["resync"]["up"]:
        return bad("the watcher's passes fail: no thread is kept in place", _LOG, *evidence, *lines)
    if its != service.version:
        return warn(f"the watcher is version {its}, this command {service.version}", "systemctl restart vmpin",
                    *evidence)
    needed = [source["name"] for source in sources.values() if source["needed"] and not source["up"]]
    if needed:
        return warn(f"the watcher runs without {several(needed)}", _LOG, *evidence, *lines)
    return ok(f"the watcher runs ({process})", *evidence, *lines)


def _receives(facts: NodeFacts, up: set[str]) -> bool:
    """True if a source reports new VMs and containers; the hook's socket only counts if a runtime runs the hook."""
    hook = facts.watcher.about.get("passes", {}).get("hook") or any(
        registration.read_by and not registration.broken for registration in facts.hooks)
    return bool(up & {"new_threads", "nri"} or ("hook" in up and hook))


def configuration(facts: NodeFacts) -> CheckResult:
    if facts.watcher.config_errors:
        return bad("the configuration cannot be used: no watcher would start with it, and one that runs does not load "
                   "it", "mend the file; `vmpin config` shows whether it is right", *facts.watcher.config_errors)
    result, ignored = _configuration_in_use(facts), facts.watcher.config_warnings
    if not ignored or result.level is Level.WARN:
        return result
    return warn(number_of(len(ignored), "part of the configuration is ignored: unknown to this version", "empty"),
                "remove these lines, or install the version that the file is for", *ignored, *result.evidence)


def _configuration_in_use(facts: NodeFacts) -> CheckResult:
    here = facts.watcher.config
    evidence = [f"{key} = {as_written(entry['value'])} ({entry['from']})" for key, entry in here.items()
                if entry["from"] != "default"]
    its = facts.watcher.about.get("config")
    if not its and facts.watcher.state == "running":
        return unknown("the watcher does not report its configuration", *evidence, remedy="run this as root")
    if not its:
        return ok(f"{number_of(len(evidence), 'key is')} not at the default", *evidence)
    differing = {key: (entry, here.get(key, {})) for key, entry in its.items()
                 if entry["value"] != here.get(key, {}).get("value")}
    texts = {key: f"{key}: the watcher has {as_written(entry['value']) or 'unset'} ({entry['from']}), this command "
             f"{as_written(mine.get('value')) or 'unset'} ({mine.get('from')})"
             for key, (entry, mine) in differing.items()}
    stale = [texts[key] for key, (entry, mine) in differing.items() if not _own_value(entry) and not _own_value(mine)]
    evidence += [line for line in texts.values() if line not in stale]
    if stale:
        return warn("the configuration was changed, and the watcher does not use the change: "
                    f"{number_of(len(stale), 'key')}",
                    "systemctl reload vmpin; where its log then says that a change takes a restart: "
                    "systemctl restart vmpin",
                    *stale, *evidence)
    return ok(f"the watcher has the current configuration; {number_of(len(here), 'key')}", *evidence)


def _own_value(entry: Mapping[str, object]) -> bool:
    """True for a value that was given to one process only: by a flag, or in its environment."""
    return str(entry.get("from")).partition(" ")[0] in ("flag", "environment")


def resync(facts: NodeFacts) -> CheckResult:
    about = facts.watcher.about
    if facts.watcher.state != "running" or not about:
        return unknown("no watcher reports the time of its last resync")
    every = float(about.get("resync_seconds", 10.0))
    age = float(about["resynced"])
    passes = ", ".join(f"{count} {why}" for why, count in sorted(about.get("passes", {}).items()))
    evidence = [f"every {every:g} s (watch.resync_seconds)", f"passes so far: {passes or 'none'}"]
    if not alive(age, every).up:
        return bad(f"the last resync was {age:.1f} s ago: drift is not repaired", _LOG, *evidence)
    return ok(f"the last resync was {age:.1f} s ago", *evidence)


def run_directory(facts: NodeFacts) -> CheckResult:
    run = facts.run
    if not run.exists:
        return (ok(f"{run.path} does not exist, as no watcher has run yet") if facts.watcher.state == "absent" else
                bad(f"{run.path} was removed while the watcher runs",
                    "systemctl restart vmpin; RuntimeDirectoryPreserve=yes keeps it"))
    oldest = f", the oldest {run.oldest:.0f} s" if run.spooled else ""
    evidence = [f"{run.path}: uid {run.uid}, mode {run.mode:04o}, {run.file_system}",
                f"{run.free >> 20} MiB and {number_of(run.inodes, 'inode')} free",
                f"{number_of(run.spooled, 'message')} in the spool{oldest}"]
    if run.read_only:
        return bad(f"{run.path} is mounted read-only", "remount it, or set paths.run elsewhere", *evidence)
    if run.mode & 0o022 or run.uid != 0:
        return bad(f"{run.path} is writable for users other than root, who could change the placement",
                   f"chown root {run.path}; chmod 755 {run.path}", *evidence)
    if run.free < _FREE or run.inodes < _INODES:
        return warn(f"{run.path} is almost full", "free space there: without it, a restart forgets the cpusets that "
                    "only hooks reported, and the original masks", *evidence)
    if facts.watcher.state == "running" and run.spooled and run.oldest > 60:
        return warn(f"{number_of(run.spooled, 'message waits')} in the spool of hooks although a watcher runs",
                    _LOG, *evidence)
    if not run.writable:
        return unknown(f"whether {run.path} can be written is unknown", *evidence, remedy="run this as root")
    return ok(f"{run.path} can be written", *evidence)


def state_file(facts: NodeFacts) -> CheckResult:
    run = facts.run
    if run.state_trouble:
        return bad(f"the state file cannot be used: {run.state_trouble}", "the watcher sets it aside at its next "
                   "start and rebuilds the state from what runs; the original masks are lost")
    if facts.watcher.about.get("saved") is False:
        return bad("the watcher cannot write its state file", "free space in the run directory; its log has the "
                   "kernel's error: journalctl -u vmpin")
    if run.state_size is None:
        return ok("there is no state file yet")
    evidence = [f"{run.state_size} bytes"]
    if not run.state_read:
        return unknown("the state file cannot be read", *evidence, remedy="run this as root")
    if run.set_aside:
        return warn("an earlier state file was damaged and was set aside (state.json.bad)",
                    "inspect it, then remove it", *evidence)
    return ok("the state file is valid", *evidence)


def vcpu_threads(facts: NodeFacts) -> CheckResult:
    if not facts.status:
        return unknown(f"no status: {facts.status_trouble}")
    running = [sandbox for sandbox in facts.sandboxes if sandbox["vmm"]]
    blind = [sandbox["id"] for sandbox in running if sandbox["found_by"] == "none" and sandbox["verdict"] != "waiting"]
    methods = dict.fromkeys(sandbox["found_by"] for sandbox in running)
    if blind:
        remedy = ("mount debugfs (/sys/kernel/debug), or make the VMM name its threads (Kata: enable_debug = true in "
                  "the hypervisor's section gives QEMU debug-threads=on)")
        return bad(f"the vCPU threads of {number_of(len(blind), 'VM')} cannot be identified: {several(blind)}", remedy,
                   "CAP_SYS_PTRACE is needed to find them in KVM_RUN" if "CAP_SYS_PTRACE" not in
                   (facts.rights.capabilities or ()) else "all their threads are kept on their sandbox's CPUs")
    return ok(f"the vCPU threads of {number_of(len(running), 'VM')} are identified" if running else "no VM runs",
              *(f"by {method}" for method in methods))


def vmms(facts: NodeFacts) -> CheckResult:
    if not facts.status:
        return unknown(f"no status: {facts.status_trouble}")
    contested = [sandbox for sandbox in facts.sandboxes if sandbox.get("rivals")]
    posing = facts.status["node"].get("impostors") or []
    evidence = [f"{sandbox['id']}: {reason}" for sandbox in contested[:20] for reason in sandbox["reasons"]]
    evidence += [f"process {entry['pid']} of user {entry['uid']} names sandbox {entry['sandbox']}"
                 for entry in posing[:20]]
    if contested:
        return bad(f"several VMMs name one sandbox, and nothing shows which is its own: "
                   f"{several(sandbox['id'] for sandbox in contested)}",
                   "end the process that is not a sandbox's VMM; Kata's VMM is a child of its shim", *evidence)
    if posing:
        return warn(f"{number_of(len(posing), 'process')} of unprivileged users with the command line of a sandbox's "
                    "VMM, shim or virtiofsd: ignored", "find the owner of these processes; no VM is affected",
                    *evidence)
    running = sum(sandbox["vmm"] is not None for sandbox in facts.sandboxes)
    return ok(f"{number_of(running, 'VMM')} recognized, each the only one of its sandbox" if running else
              "no VMM runs")


def guests(facts: NodeFacts) -> CheckResult:
    if facts.settings.get("guest.via") == "off":
        return ok("nothing is sent to guests (guest.via: off)")
    if facts.watcher.state != "running":
        return unknown("only a running watcher connects to guests")
    if not facts.status:
        return unknown(f"no status: {facts.status_trouble}")
    connected = [sandbox for sandbox in facts.sandboxes if sandbox.get("guest")]
    mute = [sandbox for sandbox in connected if not sandbox["guest"]["by"] and sandbox["guest"]["state"] != WAITING]
    evidence = [f"{sandbox['id']}: {sandbox['guest']['by'] or 'no agent'}: {sandbox['guest']['state']}"
                for sandbox in connected[:20]]
    if mute:
        return warn(f"{len(mute)} of {number_of(len(connected), 'guest does not answer')}: "
                    f"{several(sandbox['id'] for sandbox in mute)}",
                    "put vmpin's agent into the image (guest/README.md), or allow Kata's (guest.via: auto); to leave "
                    "guests alone: guest.disabled_handlers", *evidence)
    late = sum(sandbox["guest"]["state"] == WAITING for sandbox in connected)
    if late:
        return ok(f"{number_of(len(connected) - late, 'guest answers')}, and the watcher waits for {late}", *evidence)
    return ok(number_of(len(connected), "guest answers") if connected else "no guest to send anything to",
              *evidence)


def sandboxes(facts: NodeFacts) -> CheckResult:
    if not facts.status:
        return unknown(f"no status: {facts.status_trouble}", remedy="run this as root")
    listing = facts.sandboxes
    drift = [(sandbox["id"], thread) for sandbox in listing if sandbox["verdict"] != "waiting"
             for thread in sandbox["threads"] if not thread["ok"] and not thread.get("cgroup")]
    degraded = [sandbox for sandbox in listing if sandbox["verdict"] == "degraded"]
    verdicts = sorted(sandbox["verdict"] for sandbox in listing)
    evidence = [f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)]
    evidence += [f"{sandbox['id']}: {reason}" for sandbox in degraded[:20] for reason in sandbox["reasons"]]
    if drift and facts.watcher.state == "running":
        return bad(f"{number_of(len(drift), 'thread is')} misplaced",
                   "`vmpin verify` names them, `vmpin status SANDBOX --explain` has the reasons; `vmpin repin` puts "
                   "them back", *evidence)
    if drift:
        return warn(f"{number_of(len(drift), 'thread is')} not where vmpin would place them",
                    "`vmpin repin`, or start the watcher", *evidence)
    unmanaged = [sandbox for sandbox in listing if sandbox["verdict"] == "unmanaged"]
    if unmanaged:
        evidence += [f"{sandbox['id']}: {reason}" for sandbox in unmanaged[:20] for reason in sandbox["reasons"]]
        return warn(f"{number_of(len(unmanaged), 'VM is')} left alone, as their CPUs are not known: "
                    f"{several(sandbox['id'] for sandbox in unmanaged)}",
                    "for pods: NRI, the OCI hook or Kata's state has to report their containers (docs/sources.md); "
                    "until then node.shared_pool, or the kubelet's static policy, places them on the shared pool. VMs "
                    "that are no pods: exclude them by watch.only", *evidence)
    if degraded:
        return warn(f"{number_of(len(degraded), 'sandbox is')} degraded: "
                    f"{several(sandbox['id'] for sandbox in degraded)}",
                    "`vmpin status SANDBOX --explain` has the reasons", *evidence)
    waiting = verdicts.count("waiting")
    if waiting:
        return ok(f"{number_of(len(listing), 'sandbox')}; {waiting} of them wait: for the kubelet or the runtime to "
                  "rewrite a cpuset, or for vCPU threads to be identified", *evidence)
    ended = sum(ENDED in sandbox["reasons"] for sandbox in listing)
    why = f"; {number_of(ended, 'sandbox has ended')}, not removed by the runtime yet" * bool(ended)
    return ok(f"{number_of(len(listing), 'sandbox')}, every thread in place{why}" if listing else
              "no VM sandbox runs on this node", *evidence)


def collisions(facts: NodeFacts) -> CheckResult:
    if not facts.status:
        return unknown(f"no status: {facts.status_trouble}")
    node = facts.status["node"]
    open_cpus = [f"CPU {collision['cpu']}: {collision['what']}" for collision in node["collisions"]]
    disagreements = [f"{entry['container']}: {entry['what']}" for entry in node["disagreements"]]
    if open_cpus:
        return bad(number_of(len(open_cpus), "CPU is open to others", "exclusive"),
                   "`vmpin status SANDBOX --explain` names the source of each container's CPUs: correct the wrong "
                   "one; `vmpin verify --others` lists what runs there", *open_cpus[:20], *disagreements[:20])
    if lost := [entry["what"] for entry in node["unknown_owners"]]:
        return warn(f"no container is known of {number_of(len(lost), 'pod')} with exclusive CPUs",
                    "for a running VM: create its container again, or use NRI or Kata's state as a source beside the "
                    "hook (docs/sources.md); for a pod that is not on this node: check that the kubelet runs, which "
                    "takes the pod's CPUs back", *lost[:20], *disagreements[:20])
    if disagreements:
        return warn(f"the sources disagree on the CPUs of {number_of(len(disagreements), 'container')}, for longer "
                    "than a resync",
                    "docs/sources.md has the precedence of the sources; find the program that writes the cgroup",
                    *disagreements[:20])
    return ok("no exclusive CPU is used by others, and the sources agree")
