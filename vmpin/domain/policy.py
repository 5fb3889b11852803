"""The operator's policy for the placement of vCPUs and other threads, as values (`rules` and `vcpus` apply them). The
keys are those of the configuration file (config.settings) and of scenarios.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.domain.model import ThreadRole
from vmpin.named_tuple import NamedTuple


class VcpuRule(enum.StrEnum):
    """`auto`: one-to-one where the counts allow; `union`: every vCPU on the sandbox mask; `off`: left alone."""

    AUTO = "auto"
    UNION = "union"
    OFF = "off"


class SpareVcpuRule(enum.StrEnum):
    """The CPUs of vCPUs without a CPU of their own, if the sandbox has no shared CPU."""

    SANDBOX = "sandbox"
    SHARED = "shared"
    HOUSEKEEPING = "housekeeping"


class ThreadPolicy(enum.StrEnum):
    """The CPUs of the threads of a role."""

    #: The sandbox's shared CPUs, so that only vCPUs run on exclusive ones; without any, the sandbox mask.
    APART = "apart"
    SANDBOX = "sandbox"
    SHARED = "shared"
    HOUSEKEEPING = "housekeeping"
    #: Those CPUs of `apart` on the NUMA node of the VM's NIC; without any, all of them. Only for vhost workers.
    NEAR = "near"
    OFF = "off"


class Policy(NamedTuple):
    """One rule for the vCPUs, one for each other role of threads (a named rule, or a CPU list of the host)."""

    vcpus: VcpuRule = VcpuRule.AUTO
    spare_vcpus: SpareVcpuRule = SpareVcpuRule.SANDBOX
    iothreads: ThreadPolicy | CpuSet = ThreadPolicy.APART
    vhost: ThreadPolicy | CpuSet = ThreadPolicy.APART
    emulator: ThreadPolicy | CpuSet = ThreadPolicy.APART
    virtiofsd: ThreadPolicy | CpuSet = ThreadPolicy.APART
    shim: ThreadPolicy | CpuSet = ThreadPolicy.APART

    def rule(self, role: ThreadRole) -> ThreadPolicy | CpuSet:
        """The rule of a role other than the vCPUs."""
        rule: ThreadPolicy | CpuSet = getattr(self, role.policy)
        return rule

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Policy:
        """Parse the values of a file. :raises ValueError: with the key, the value and the valid ones."""
        rules: dict[str, object] = {}
        for key, value in values.items():
            if key not in cls._fields:
                raise ValueError(f"unknown policy {key!r:.80} (known: {', '.join(sorted(cls._fields))})")
            rules[key] = parse_rule(key, value)
        return cls(**rules)  # type: ignore[arg-type]

    def as_text(self) -> dict[str, str]:
        """The rules by key, as in a file."""
        return {key: str(value) for key, value in zip(self._fields, self, strict=True)}


_RULES: dict[str, type[VcpuRule] | type[SpareVcpuRule] | type[ThreadPolicy]] = {
    "vcpus": VcpuRule, "spare_vcpus": SpareVcpuRule}


def parse_rule(key: str, value: object) -> VcpuRule | SpareVcpuRule | ThreadPolicy | CpuSet:
    """Parse one policy value; a parsed one is returned unchanged. :raises ValueError: with the valid values."""
    value = "off" if value is False else value  # YAML reads a bare off as false
    rules = _RULES.get(key, ThreadPolicy)
    names = [rule for rule in rules if rule is not ThreadPolicy.NEAR or key == "vhost"]
    if str(value) in names:
        return rules(str(value))
    valid = ", ".join(names)
    if rules is ThreadPolicy and isinstance(value, str | int | CpuSet) and not isinstance(value, bool):
        valid += " or a CPU list"
        try:
            if cpus := CpuSet.parse(str(value)):
                return cpus
        except CpuSetError:
            pass
    raise ValueError(f"{key}: {value!r:.80} is none of {valid}")
