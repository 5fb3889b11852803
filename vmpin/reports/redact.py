"""What of a text may leave the node in a bug report: pure, and by lists of what is known to be harmless.

A parameter or option that nobody listed keeps its name and loses its value. What stays out: which texts go into a
report (gather).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

LEFT_OUT = "<left out>"

#: Kernel parameters on CPUs, cgroups and virtualisation: their values say how the machine is cut, and no secret.
_HARMLESS = frozenset((
    "isolcpus", "nohz_full", "nohz", "rcu_nocbs", "rcu_nocb_poll", "irqaffinity", "kthread_cpus", "skew_tick", "tsc",
    "nosmt", "maxcpus", "nr_cpus", "possible_cpus", "mitigations", "numa", "numa_balancing", "preempt", "threadirqs",
    "hugepages", "hugepagesz", "default_hugepagesz", "transparent_hugepage", "cgroup_disable", "cgroup_enable",
    "cgroup_no_v1", "cgroup_memory", "systemd.unified_cgroup_hierarchy", "systemd.legacy_systemd_cgroup_controller",
    "systemd.cpu_affinity", "tuned.non_isolcpus", "intel_idle.max_cstate", "processor.max_cstate", "intel_pstate",
    "amd_pstate", "idle", "cpuidle.off", "nosoftlockup", "nmi_watchdog", "sched_domains", "workqueue.unbound_cpus",
    "kvm.nx_huge_pages", "kvm-intel.nested", "kvm-amd.nested", "intel_iommu", "amd_iommu", "iommu", "quiet", "debug",
    "panic", "selinux", "apparmor", "audit", "psi", "schedstats", "delayacct"))

_SECRET = re.compile(r"pass(?:wd|phrase|code)?(?![a-z])|passw|secret|token|credential|private|initdata|cookie|bearer"
                     r"|auth(?:ori[sz]ation|entication)?(?![a-z])|signature|(?:api|access|shared|master|encryption)key"
                     r"|(?<![a-z])key(?![a-z])", re.IGNORECASE)
#: NAME=, NAME:, "NAME": and --NAME as a log or a configuration has them, and what follows: in quotes, or up to what
#: ends it.
_NAMED = re.compile(r"""(?<![\w.-])([\w.-]++)(?:["']?\s?=\s?|["']?:\s|["']:|(?<=\w)\s)""")
_FOLLOWING = re.compile(r"""(?:bearer|basic)\s+\S+|"(?:\\.|[^"\\])*+"?|'[^']*+'?|(?:,,|[^,\s;&"'}\]])*+""",
                        re.IGNORECASE)
#: The same in an option of a VMM's, of which QEMU takes `,,` for a comma, and which may have blanks in it. rbd has
#: options within one value, behind colons: they go with it.
_OPTION = re.compile(r"(?<![\w.-])([\w.-]++)=")
_REST = re.compile(r"(?:,,|[^,])*+")
_SCHEME = re.compile(r"\b(bearer|basic)\s[\w.~+/=-]{8,}+", re.IGNORECASE)
#: The user may be anything up to the last @ before the path.
_USER = re.compile(r"(?<=://)[^/\s\"']{1,1000}@")
#: A web token, whatever it is called: base64 of `{"`, thrice.
_JWT = re.compile(r"\beyJ[\w-]++\.[\w-]++\.[\w-]*+")
#: Options of VMMs whose value may be anything, secrets among them (Cloud Hypervisor's platform: oem_strings).
_OPAQUE = frozenset(("fw_cfg", "smbios", "acpitable", "set", "platform"))
#: Options of VMMs whose value is a kernel command line.
_COMMAND_LINES = frozenset(("append", "cmdline"))
#: QEMU's objects that hold secrets: secret, secret_keyring; their type need not stand first.
_SECRET_OBJECT = re.compile(r"(?:^|,)(?:qom-type=)?secret")
#: One parameter of a kernel's command line; blanks in quotes do not end it (lib/cmdline.c: next_arg).
_PARAMETER = re.compile(r'(?:"[^"]*(?:"|$)|[^\s"])+')


def kernel_parameters(line: str) -> list[str]:
    """A kernel's command line, one item a parameter; what stands behind `--` is init's, and none of our business."""
    found = []
    for text in _PARAMETER.findall(line):
        if text == "--":
            found.append(f"-- {LEFT_OUT}")
            break
        name, equals, _ = text.partition("=")
        if '"' in name:  # the whole of it was quoted
            found.append(LEFT_OUT)
        else:
            found.append(text if not equals or name in _HARMLESS else f"{name}={LEFT_OUT}")
    return found


def words(text: str) -> str:
    """A text without the values of what is named like a secret, and without the users in URLs."""
    return _tokens(_without(text, _NAMED, _FOLLOWING))


def _without(text: str, named: re.Pattern[str], value: re.Pattern[str]) -> str:
    """Without the values that follow names of secrets. Looks at each name once, however long the text."""
    kept, done, at = [], 0, named.search(text)
    while at is not None:
        end = at.end()
        named_so = not at[0][-1].isspace() or at[0].rstrip()[-1] in "=:" or at[1].startswith("-")
        if named_so and _SECRET.search(at[1]) and (found := value.match(text, end)) is not None and found[0]:
            kept += [text[done:end], LEFT_OUT]
            done = end = found.end()
        at = named.search(text, end)
    return "".join([*kept, text[done:]])


def _tokens(text: str) -> str:
    """Without what is a secret by its looks, whatever its name."""
    kept = _SCHEME.sub(lambda match: f"{match[1]} {LEFT_OUT}", text)
    return _USER.sub(f"{LEFT_OUT}@", _JWT.sub(LEFT_OUT, kept))


def command_line(argv: Sequence[str]) -> list[str]:
    """A VMM's command line: the guest's kernel parameters like the host's, opaque values left out."""
    found: list[str] = []
    option = ""
    for arg in argv:
        if arg.startswith("-") and len(arg) > 1:
            option, equals, value = arg.lstrip("-").partition("=")
            found.append(f"{arg[: len(arg) - len(value)]}{_value(option, value)}" if equals else arg)
            if equals:
                option = ""
        else:
            found.append(_value(option, arg))
            option = ""
    return found


def _value(option: str, value: str) -> str:
    if option in _COMMAND_LINES:
        return " ".join(kernel_parameters(value))
    if option in _OPAQUE or _SECRET.search(option):
        return LEFT_OUT
    if value.lstrip().startswith("{"):
        return _json(option, value)
    if option == "object" and _SECRET_OBJECT.search(value):
        return f"secret,{LEFT_OUT}"
    return _tokens(_without(value, _OPTION, _REST))


def _json(option: str, text: str) -> str:
    """QEMU takes -object, -blockdev, -netdev and -device as JSON, too, and libvirt writes them so."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return LEFT_OUT
    if option == "object" and str(value.get("qom-type")).startswith("secret"):
        return f"secret,{LEFT_OUT}"
    return json.dumps(_plain(value), separators=(",", ":"), ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: LEFT_OUT if _SECRET.search(key) else _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return words(value) if isinstance(value, str) else value


def log_lines(lines: Iterable[str]) -> list[str]:
    """Lines of our own log: they hold names of pods and threads, and what a runtime said in an error."""
    return [words(line) for line in lines]
