"""Removes from a text what must not leave the node in a bug report. Pure."""

import json
import re
from collections.abc import Sequence

from vmpin.bounded import load_json

#: In place of a value that may be a secret.
LEFT_OUT = "<left out>"
#: Kernel parameters for CPUs, cgroups and virtualisation: their values are no secrets.
_HARMLESS = frozenset((
    "isolcpus", "nohz_full", "nohz", "rcu_nocbs", "rcu_nocb_poll", "irqaffinity", "kthread_cpus", "skew_tick", "tsc",
    "nosmt", "maxcpus", "nr_cpus", "possible_cpus", "mitigations", "numa", "numa_balancing", "preempt", "threadirqs",
    "hugepages", "hugepagesz", "default_hugepagesz", "transparent_hugepage", "cgroup_disable", "cgroup_enable",
    "cgroup_no_v1", "cgroup_memory", "systemd.unified_cgroup_hierarchy", "systemd.legacy_systemd_cgroup_controller",
    "systemd.cpu_affinity", "tuned.non_isolcpus", "intel_idle.max_cstate", "processor.max_cstate", "intel_pstate",
    "amd_pstate", "idle", "cpuidle.off", "nosoftlockup", "nmi_watchdog", "sched_domains", "workqueue.unbound_cpus",
    "kvm.nx_huge_pages", "kvm_intel.nested", "kvm_amd.nested", "intel_iommu", "amd_iommu", "iommu", "quiet", "debug",
    "panic", "selinux", "apparmor", "audit", "psi", "schedstats", "delayacct"))
#: One parameter of a kernel's command line; blanks in quotes do not end it (lib/cmdline.c: next_arg).
_PARAMETER = re.compile(r'(?:"[^"]*(?:"|$)|[^\s"])+')

_SECRET = re.compile(r"pass(?:wd|phrase|code)?(?![a-z])|passw|secret|token|credential|private|initdata|cookie|bearer"
                     r"|auth(?:ori[sz]ation|entication)?(?![a-z])|signature|(?:api|access|shared|master|encryption)key"
                     r"|(?:account|function|client|host|license|signing)key|(?<![a-z])key(?![a-z])"
                     r"|p(?:ass|s)?wd(?![a-z])|session_?id|[cx]srf|saml|sigv[0-9]"
                     r"|(?<![a-z])(?:sigs?|pw|psk|otp|hmac|sas|jwt|ticket|creds?|assertion)(?![a-z])"
                     r"|(?-i:(?<=[a-z])(?:Sig|Pw|Psk|Otp|Hmac|Sas|Jwt|Creds?))(?![a-z])",
                     re.IGNORECASE)
#: NAME=, NAME:, "NAME": and --NAME in a log or a configuration, and the value after it: in quotes, or up to a
#: separator.
_NAMED = re.compile(r"""(?<![\w.-])([\w.-]++)(?:["']?\s?=\s?|["']?:\s|["']:|(?<=\w)\s)""")
_FOLLOWING = re.compile(r"""(?:bearer|basic)\s+\S+|"(?:\\.|[^"\\])*+"?|'[^']*+'?|(?:,,|[^,\s;&"'}\]])*+""",
                        re.IGNORECASE)
#: The same in an option of a VMM, in which QEMU reads `,,` as a comma, and which may contain blanks. rbd has options
#: within one value, after colons: they are removed with it.
_OPTION = re.compile(r"(?<![\w.-])([\w.-]++)=")
_REST = re.compile(r"(?:,,|[^,])*+")
_SCHEME = re.compile(r"\b(bearer|basic)\s[\w.~+/=-]{8,}+", re.IGNORECASE)
#: Where a URL ends: at white space, a quote, or a comma, which QEMU writes twice within a value.
_URL_END = re.compile(r"[\s\"'<>]|(?<!,),(?!,)|$")
_QUERY = re.compile(r"[?#]")
#: The user may be anything up to the last @ before the path.
_USER = re.compile(r"(?<=://)[^/\s\"']{1,1000}@")
#: A web token with any name: base64 of `{"`, three times.
_JWT = re.compile(r"\beyJ[\w-]++\.[\w-]++\.[\w-]*+")
#: Options of VMMs with arbitrary values, possibly secrets (Cloud Hypervisor's platform: oem_strings).
_OPAQUE = frozenset(("fw_cfg", "smbios", "acpitable", "set", "platform"))
#: Options of VMMs with a kernel command line as value.
_COMMAND_LINES = frozenset(("append", "cmdline"))
#: QEMU's objects with secrets: secret, secret_keyring; their type need not come first.
_SECRET_OBJECT = re.compile(r"(?:^|,)(?:qom-type=)?secret")


def cleaned(text: str) -> str:
    """A text without values whose name is like that of a secret, and without users and queries in URLs. Of a log, give
    each line by itself."""
    return _tokens(_without(_without_queries(text), _NAMED, _FOLLOWING))


def _without_queries(text: str) -> str:
    """The text without the queries and fragments of URLs: signed URLs have their secrets there, under any name."""
    kept, done, at = [], 0, text.find("://")
    while at >= 0:
        end_of_url = _URL_END.search(text, at)
        end = len(text) if end_of_url is None else end_of_url.start()
        query = _QUERY.search(text, at, end)
        if query is not None and query.end() < end:
            kept += [text[done : query.end()], LEFT_OUT]
            done = end
        at = text.find("://", end)
    return "".join([*kept, text[done:]])


def _without(text: str, named: re.Pattern[str], value: re.Pattern[str]) -> str:
    """The text without the values after names of secrets. Each name is read once, so the time is linear."""
    kept, done, at = [], 0, named.search(text)
    while at is not None:
        end = at.end()
        named_so = not at[0][-1].isspace() or at[0].rstrip()[-1] in "=:" or at[1].startswith("-")
        if named_so and _SECRET.search(at[1]) and (secret := value.match(text, end)) is not None and secret[0]:
            kept += [text[done:end], LEFT_OUT]
            done = end = secret.end()
        at = named.search(text, end)
    return "".join([*kept, text[done:]])


def _tokens(text: str) -> str:
    """The text without what has the form of a secret, whatever its name."""
    kept = _SCHEME.sub(lambda match: f"{match[1]} {LEFT_OUT}", text)
    return _USER.sub(f"{LEFT_OUT}@", _JWT.sub(LEFT_OUT, kept))


def command_line(argv: Sequence[str]) -> list[str]:
    """A VMM's command line: the guest's kernel parameters are treated like the host's, opaque values are left out."""
    kept: list[str] = []
    option = ""
    for arg in argv:
        if arg.startswith("-") and len(arg) > 1:
            option, equals, value = arg.lstrip("-").partition("=")
            kept.append(f"{arg[: len(arg) - len(value)]}{_value(option, value)}" if equals else arg)
            if equals:
                option = ""
        else:
            kept.append(_value(option, arg))
            option = ""
    return kept


def _value(option: str, value: str) -> str:
    if option in _COMMAND_LINES:
        return " ".join(kernel_parameters(value))
    if option in _OPAQUE or _SECRET.search(option):
        return LEFT_OUT
    if value.lstrip().startswith("{"):
        return _json(option, value)
    if option == "object" and _SECRET_OBJECT.search(value):
        return f"secret,{LEFT_OUT}"
    return _tokens(_without(_without_queries(value), _OPTION, _REST))


def _json(option: str, text: str) -> str:
    """An option in JSON: QEMU accepts -object, -blockdev, -netdev and -device in JSON, which libvirt uses."""
    try:
        value = load_json(text)
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
    return cleaned(value) if isinstance(value, str) else value


def kernel_parameters(line: str) -> list[str]:
    """The parameters of a kernel command line, without values that may be secret, and without those of init after
    `--`. Known names are spelled with underscores: the kernel does not tell them from dashes (kernel/params.c)."""
    parameters = []
    for text in _PARAMETER.findall(line):
        if text == "--":
            parameters.append(f"-- {LEFT_OUT}")
            break
        name, equals, value = text.partition("=")
        known = name.replace("-", "_")
        if '"' in name:  # it is quoted as a whole
            parameters.append(LEFT_OUT)
        elif known in _HARMLESS:
            parameters.append(f"{known}{equals}{value}")
        else:
            parameters.append(f"{name}={LEFT_OUT}" if equals else text)
    return parameters
