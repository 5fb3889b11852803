"""Checks of Kata's configurations: settings that conflict with vmpin or limit it.

Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.facts import KataConfig, NodeFacts
from vmpin.domain.terminal import number_of
from vmpin.features.common.finding import CheckResult, bad, denied, ok, several, unknown, warn

_PINNING = "io.katacontainers.config.runtime.enable_vcpus_pinning"
_READ = "run this as root; correct the named file"
#: Policies that keep a thread within its sandbox's CPUs, which every cgroup allows.
_INSIDE = ("apart", "sandbox", "near", "off")


def kata(facts: NodeFacts) -> CheckResult:
    evidence = [line for config in facts.kata for line in _evidence(config)]
    handlers = [handler for engine in facts.engines for handler in engine.handlers if handler.kata]
    evidence += [f"handler {handler.name} of {handler.engine} ({handler.file}): "
                 f"{handler.config_path or 'the default configuration'}" for handler in handlers]
    unread = _unread(facts)
    evidence += unread
    broken = [config for config in facts.kata if config.trouble and not denied(config.trouble)]
    if broken:
        return bad(f"a configuration of Kata cannot be read: {broken[0].path}: {broken[0].trouble}",
                   "correct it: until then no sandbox of its handlers can start", *evidence)
    if unread:
        return unknown(f"a part of Kata's configuration could not be read: {unread[0]}", *evidence, remedy=_READ)
    if not facts.kata and not handlers and not facts.kata_sandboxes:
        return unknown("no Kata was found on this node: no configuration, no handler, no sandbox",
                       remedy="if its configuration is elsewhere, name it in the handler's ConfigPath (containerd) or "
                       "runtime_config_path (CRI-O)")
    paths = {config.path for config in facts.kata}
    lost = [handler for handler in handlers if handler.config_path and handler.config_path not in paths]
    if lost:
        return warn(f"handler {lost[0].name} names a configuration that does not exist: {lost[0].config_path}",
                    f"correct {lost[0].file}, or install that file", *evidence)
    rootless = _where(facts, "rootless")
    if rootless:
        return warn("Kata runs rootless: its state is below $XDG_RUNTIME_DIR, which vmpin does not read",
                    "NRI and the hook still report sandboxes; or set paths.kata_go to that directory", *rootless,
                    *evidence)
    counted = (("configuration", facts.kata), ("handler", handlers), ("sandbox", facts.kata_sandboxes))
    return ok(", ".join(number_of(len(many), noun) for noun, many in counted), *evidence)


def _unread(facts: NodeFacts) -> list[str]:
    """Why parts of the configurations could not be read; with any of these, no check is `ok`."""
    return [*(trouble for engine in facts.engines for trouble in engine.trouble),
            *(config.trouble for config in facts.kata if config.trouble)]


def _evidence(config: KataConfig) -> list[str]:
    """A configuration, its drop-ins and its settings, one line each."""
    by = f", read by {several(config.read_by, 6)}" if config.read_by else ", read by no known handler"
    lines = [f"{config.path} (runtime-{config.runtime}{by})"]
    lines += [f"{config.path}: drop-in {name}" for name in config.dropins]
    lines += [f"{setting.file}: {name} = {_toml(setting.value)}" for name, setting in config.settings.items()]
    return lines


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _where(facts: NodeFacts, key: str, used: bool = True) -> list[str]:
    """The files that set a switch to true, among the configurations with a reader (`used`) or without one."""
    return [f"{setting.file}: {name} = true" + (f" (handlers {several(config.read_by)})" if config.read_by else "")
            for config in facts.kata if bool(config.read_by) is used
            for name, setting in config.find(key) if setting.value is True]


def pinning(facts: NodeFacts) -> CheckResult:
    on, idle = _where(facts, "enable_vcpus_pinning"), _where(facts, "enable_vcpus_pinning", used=False)
    running = [sandbox for sandbox in facts.kata_sandboxes if sandbox.pins_vcpus]
    open_to = [handler for engine in facts.engines for handler in engine.handlers
               if handler.kata and (handler.annotations is None or any(
                   fnmatchcase(_PINNING, pattern) for pattern in handler.annotations))]
    evidence = [*on, *idle, *(f"{sandbox.id} runs with it" for sandbox in running[:10])]
    evidence += [f"handler {handler.name} passes the annotation {_PINNING} on: a pod can enable it"
                 for handler in open_to]
    remedy = ("set enable_vcpus_pinning = false, in a drop-in beside the configuration (config.d/90-vmpin.toml), and "
              "remove the annotation from pods; this applies to sandboxes started afterwards")
    if on or running:
        scope = f"{number_of(len(running), 'sandbox runs')} with it" if running else "it is on for new sandboxes"
        return bad(f"Kata also pins vCPUs: two writers of the same masks ({scope})", remedy, *evidence)
    if idle:
        return warn("a configuration that no known handler reads enables Kata's own pinning", remedy, *evidence)
    if not facts.kata and not facts.kata_sandboxes and not _unread(facts):
        return unknown("no Kata was found on this node")
    if unread := _unread(facts):
        return unknown(f"whether Kata pins vCPUs itself is unknown: {unread[0]}", *evidence, remedy=_READ)
    return ok("Kata does not pin vCPUs itself", *evidence)


def vcpus(facts: NodeFacts) -> CheckResult:
    if not facts.kata:
        return unknown("no configuration of Kata was found")
    evidence = [line for config in facts.kata for line in _evidence(config)
                if any(key in line for key in ("static_sandbox", "default_vcpus", "default_maxvcpus"))]
    masks = [(engine.name, engine.cpus, engine.pid) for engine in facts.engines
             if engine.cpus is not None and any(handler.kata for handler in engine.handlers)]
    evidence += [f"{name} pid {pid} may use CPUs {mask}, and its shims inherit that mask" for name, mask, pid in masks]
    narrow = next(((name, mask) for name, mask, _ in masks if not facts.cpus.online <= mask), None)
    if narrow is not None:
        return warn(f"{narrow[0]} may use {len(narrow[1])} of {number_of(len(facts.cpus.online), 'CPU')}, and Kata's "
                    "shims size VMs by the mask that they inherit from it: pods that ask for more vCPUs fail (Go), or "
                    "get no more (runtime-rs)", f"give {narrow[0]}'s service every CPU (no CPUAffinity= in its unit, "
                    "nor in /etc/systemd/system.conf, where tuned's cpu-partitioning sets it; no AllowedCPUs= in "
                    "its slice): vmpin places a shim once its VMM runs", *evidence)
    static = _where(facts, "static_sandbox_resource_mgmt")
    by_crio = [handler.name for engine in facts.engines if engine.name == "crio" for handler in engine.handlers
               if handler.kata and any(handler.name in config.read_by and any(
                   setting.value is True for _, setting in config.find("static_sandbox_resource_mgmt"))
                   for config in facts.kata)]
    if by_crio:
        return warn(f"CRI-O does not pass the size of a pod to Kata, and handlers {several(by_crio)} size VMs at "
                    "start: each gets default_vcpus, however many CPUs its containers own",
                    "set static_sandbox_resource_mgmt = false for them, or default_vcpus to the largest pod",
                    *evidence)
    largest = _most_exclusive(facts)
    small = [f"{setting.file}: {name} = {setting.value}" for config in facts.kata if config.read_by
             for name, setting in config.find("default_maxvcpus")
             if isinstance(setting.value, int) and 0 < setting.value < largest]
    if small:
        return warn(f"a VM may have fewer vCPUs than a pod here has CPUs of its own ({largest}): the other CPUs stay "
                    "unused", "raise default_maxvcpus (0: as many as the node has CPUs)", *small, *evidence)
    if unread := _unread(facts):
        return unknown(f"the maximum number of vCPUs is unknown: {unread[0]}", *evidence, remedy=_READ)
    if static:
        evidence.append("sized at start: no vCPU backs CPUs that a pod gets later (in-place resize)")
    return ok("VMs can have as many vCPUs as their containers have CPUs", *evidence)


def _most_exclusive(facts: NodeFacts) -> int:
    """The most CPUs that a pod in a VM owns, by the status. Without a status those of a listed container or pod, which
    may be runc's."""
    if not facts.status:
        return 0 if facts.checkpoint is None else facts.checkpoint.largest
    own = {sandbox["id"]: EMPTY for sandbox in facts.sandboxes}
    for owner in facts.status["node"]["owners"]:
        if owner["sandbox"] in own:
            own[owner["sandbox"]] |= CpuSet.parse(owner["cpus"])
    return max(map(len, own.values()), default=0)


def cgroup(facts: NodeFacts) -> CheckResult:
    policy = facts.status.get("policy") or {key.removeprefix("policy."): value for key, value in
                                            facts.settings.items() if key.startswith("policy.")}
    outside = {key: policy[key] for key in ("iothreads", "vhost", "emulator", "virtiofsd", "shim")
               if key in policy and policy[key] not in _INSIDE}
    if policy.get("spare_vcpus", "sandbox") != "sandbox":
        outside["spare_vcpus"] = policy["spare_vcpus"]
    only = _where(facts, "sandbox_cgroup_only")
    evidence = [*only, *(f"policy.{key}: {value}" for key, value in outside.items()), f"cgroups {facts.cgroups}"]
    if not outside:
        return ok("every policy keeps threads on their sandbox's CPUs, which every cgroup allows", *evidence)
    if facts.cgroups == "v2" and facts.kata:
        why = "on cgroup v2 the whole VMM is in its sandbox's cgroup"
    elif only:
        why = "with sandbox_cgroup_only all of Kata is in its sandbox's cgroup"
    else:
        return ok("threads with a policy outside their sandbox's CPUs are in a separate cgroup", *evidence)
    return warn(f"{why}: its cpuset keeps {', '.join(outside)} on the sandbox's CPUs, whatever the policy",
                "leave those policies at their defaults, or set sandbox_cgroup_only = false on cgroup v1; `vmpin "
                "status` shows the mask of each thread", *evidence)


def guest(facts: NodeFacts) -> CheckResult:
    if not facts.kata:
        return unknown("no configuration of Kata was found")
    via = facts.settings.get("guest.via", "auto")
    patterns = [text for text in facts.settings.get("guest.disabled_handlers", "").split(",") if text]
    secret = [(config, f"{setting.file}: {name} = true") for config in facts.kata
              for name, setting in config.find("confidential_guest") if setting.value is True]
    confidential = sorted({handler for config, _ in secret for handler in config.read_by
                    if handler != "default" and not any(fnmatchcase(handler, pattern) for pattern in patterns)})
    evidence = [f"guest.via: {via}, guest.disabled_handlers: {','.join(patterns) or 'none'}",
                *(line for _, line in secret)]
    dropped = [f"{setting.file}: {name} = {setting.value!r}" for config in facts.kata
               if config.runtime == "rs" and config.read_by
               for name, setting in config.find("guest_hook_path") if setting.value]
    if dropped and any(hook.read_by for hook in facts.hooks):
        return warn("runtime-rs drops the hooks of a guest's image when vmpin's OCI hook is registered",
                    "if the guests need theirs, remove vmpin's from those handlers "
                    "(`vmpin install hook --hooks-dir DIR --remove`) and use NRI", *dropped, *evidence)
    if via != "off" and confidential:
        return warn(f"handlers {several(confidential)} run confidential guests, and vmpin would connect to these",
                    f"set guest.disabled_handlers: \"{','.join(confidential)}\"", *evidence)
    if unread := _unread(facts):
        return unknown(f"whether Kata runs confidential guests is unknown: {unread[0]}", *evidence, remedy=_READ)
    return ok("no setting of Kata keeps vmpin from the guests", *evidence)
