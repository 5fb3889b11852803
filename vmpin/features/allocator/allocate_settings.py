"""`allocate`: the keys of the allocator, which gives out CPUs where the kubelet's static policy does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmpin.bounded import parse_whole
from vmpin.config import values
from vmpin.config.values import setting
from vmpin.cpuset import EMPTY, CpuSet, CpuSetError
from vmpin.named_tuple import NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from vmpin.config.settings import Config
    from vmpin.features.allocator.grants.allocation_options import AllocationOptions, GroupRule
    from vmpin.features.common.scenario_values import ScenarioValues

_ALIGNMENT = values.one_of("node", "cache", "core", "socket", "node!", "cache!", "core!", "socket!")
_MODES = values.one_of("off", "observe", "on")


def _mode(value: object) -> str:
    """YAML reads a bare on as true, and off as false."""
    return _MODES("on" if value is True else value)


def _headroom(value: object) -> str:
    try:
        return "auto" if value == "auto" else "0" if value == 0 or value == "0" else str(values.count(value))
    except ValueError:
        raise ValueError("is neither auto nor a number from 0 to 999999") from None


def _honour(value: object) -> str:
    text = values.token(value)
    for name in text.split(",") if text else ():
        values.one_of("crane", "nri-plugins", "cmk")(name)
    return text


def _groups(value: object) -> str:
    """`NAME=CPUS@NAMESPACE+NAMESPACE;…`: the CPUs and the namespaces may be left out."""
    text = values.token(value)
    group_rules(text)
    return text


def group_rules(text: str) -> dict[str, GroupRule]:
    """Parse the rules of groups, as NAME=CPUS@NAMESPACE+NAMESPACE;…
    :raises ValueError: naming the group. :raises CpuSetError: for a CPU list that is none."""
    if not text:
        return {}
    # Not in what every command without groups loads. A name is as annotations have it: no other could be joined.
    from vmpin.features.allocator.grants.allocation_options import GroupRule
    from vmpin.features.allocator.texts.annotation_values import GROUP_NAME

    rules: dict[str, GroupRule] = {}
    for group in filter(None, text.split(";")):
        rest, only, namespaces = group.partition("@")
        name, _, cpus = rest.partition("=")
        if not GROUP_NAME.fullmatch(name) or name in rules:
            raise ValueError(f"{group!r}: {name!r} is no name of a group (1 to 63 lower-case letters, digits, '-', "
                             "'_', '.'), or has a rule already")
        if only and not namespaces.strip("+"):
            raise ValueError(f"{group!r}: after @ stand the namespaces that may join; without @ all may")
        rule = GroupRule(CpuSet.parse(cpus), frozenset(filter(None, namespaces.split("+"))))
        for name_before, before in rules.items():
            if not rule.cpus.isdisjoint(before.cpus):
                raise ValueError(f"{group!r}: the CPUs {rule.cpus & before.cpus} are of the group {name_before!r} "
                                 "already")
        rules[name] = rule
    return rules


def _pause(value: object) -> float:
    try:
        return 0.0 if value == 0 or value == "0" else values.seconds(value)
    except ValueError as err:
        raise ValueError(f"{err}, nor 0") from None


class AllocateSettings(NamedTuple):
    """`allocate`: whether CPUs are given out, and by which rules. A change takes a restart."""

    mode: str = setting("off", _mode, "whether vmpin gives containers their CPUs: off, observe (works out and "
                        "reports, changes nothing) or on; never beside another program that does")
    reserved: CpuSet = setting(EMPTY, values.cpus, "CPUs that no container gets exclusively: the system's, and of "
                               "containers with the policy infra")
    default: str = setting("none", values.one_of("none", "guaranteed", "exclusive"), "what a container without an "
                           "annotation gets: none (the pool), guaranteed (exclusive CPUs where its pod is of that "
                           "class and its CPUs are whole) or exclusive (where request and limit are the same whole "
                           "CPUs)")
    align: str = setting("node", _ALIGNMENT, "what exclusive CPUs should lie within, or be made of: node, cache, "
                         "core or socket; with ! after it a container is refused where that cannot be")
    smt: str = setting("prefer", values.one_of("prefer", "require", "spread"), "whole cores where possible (prefer), "
                       "whole cores or a refusal (require), or one thread of each core first (spread)")
    spread: str = setting("off", values.one_of("off", "nodes"), "nodes: where more than one NUMA node is needed, the "
                          "same number of CPUs from each")
    strict_reserved: bool = setting(False, values.flag, "whether the pool is without the reserved CPUs")
    pool_headroom: str = setting("auto", _headroom, "free CPUs that shared containers are kept off, so that the next "
                                 "exclusive container waits for no update of them: a number, or auto (one core of "
                                 "each NUMA node while there are more than 6 shared containers)")
    privileged_namespaces: str = setting("kube-system", values.token, "namespaces whose containers may ask for the "
                                         "policy infra and for isolated CPUs, separated by commas")
    groups: str = setting("", _groups, "groups that containers of several namespaces may join, separated by ;, each "
                          "NAME=CPUS@NAMESPACE+NAMESPACE: without CPUs its members bring their own, without "
                          "namespaces all may join; others are a namespace's own")
    honour: str = setting("crane", _honour, "other programs' annotations that are honoured: crane, nri-plugins, cmk, "
                          "separated by commas; unset: none")
    export: str = setting("off", values.one_of("off", "cmk"), "variables in the containers' environment: cmk "
                          "(CMK_CPUS_ASSIGNED and the others), or off")
    grow_delay_seconds: float = setting(2.0, _pause, "how long CPUs that came back wait for an answer of vmpin's to "
                                        "ride in, before the pool's containers are given them by CRI calls")
    live_annotations: bool = setting(False, values.flag, "whether a changed annotation of a pod, as the reporter "
                                     "hands it over, changes a container that runs")

    @property
    def options(self) -> AllocationOptions:
        """Return the settings as the allocator takes them."""
        from vmpin.features.allocator.grants import allocation_options as allowed  # not in what every command loads
        from vmpin.features.allocator.grants.cpu_request import Alignment, SmtUse

        headroom = parse_whole(self.pool_headroom, 999999)  # None: auto
        return allowed.AllocationOptions(
            allowed.AllocationMode(self.mode), self.reserved, allowed.DefaultPolicy(self.default),
            Alignment(self.align.removesuffix("!")), SmtUse(self.smt), self.spread.replace("off", ""),
            self.strict_reserved, headroom, frozenset(filter(None, self.privileged_namespaces.split(","))),
            group_rules(self.groups), frozenset(map(allowed.HonouredKeys, filter(None, self.honour.split(",")))),
            self.export.replace("off", ""), self.grow_delay_seconds, self.align.endswith("!"))


def scenario_options(values: ScenarioValues, given: object, valid: CpuSet) -> AllocationOptions:
    """Read `allocate` of a scenario, with the keys of the configuration. :param valid: the CPUs of the topology.
    :raises ConfigError: with the place."""
    keys = values.mapping({} if given is None else given, "allocate", AllocateSettings._fields)
    settings = {}
    for key, entry in AllocateSettings._field_defaults.items():
        try:
            settings[key] = entry.parse(keys[key]) if key in keys else entry.default
        except (ValueError, CpuSetError) as err:
            raise values.wrong(f"allocate.{key}", f"{keys[key]!r:.80}: {err}") from err
    options = AllocateSettings(**settings).options
    values.cpuset(str(options.reserved), "allocate.reserved", valid)
    for name, rule in options.groups.items():
        values.cpuset(str(rule.cpus), f"allocate.groups: {name}", valid)
    return options


#: The hint of an error where a command needs it.
OFF = ("allocate.mode is off: set it to observe or on, and restart the watcher; `vmpin help allocation` describes "
       "what it then gives out")


def settings_of(config: Config) -> AllocateSettings:
    """Return the section `allocate` of a configuration."""
    settings: AllocateSettings = config.of_features["allocate"]
    return settings


def ledger_path(config: Config) -> Path:
    """Return the place of the ledger's file, in the run directory."""
    return config.paths.run / "ledger.json"
