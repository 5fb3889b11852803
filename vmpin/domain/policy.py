"""The operator's policy: where vCPUs and the other threads of a sandbox go.

Values only; `rules` and `vcpus` apply them. The same keys are in the configuration file (config.settings) and in
scenarios.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.domain.model import ThreadRole


class VcpuRule(enum.StrEnum):
    """`auto`: one-to-one where the counts allow; `union`: every vCPU on the sandbox mask; `off`: left alone."""

    AUTO = "auto"
    UNION = "union"
    OFF = "off"


class SpareVcpuRule(enum.StrEnum):
    """Where vCPUs without a CPU of their own go when the sandbox has no shared CPU."""

    SANDBOX = "sandbox"
    SHARED = "shared"
    HOUSEKEEPING = "housekeeping"


class ThreadPolicy(enum.StrEnum):
    """Where the threads of a role go."""

    #: The sandbox's CPUs that are not exclusive, so that exclusive ones are left to their vCPUs; else its mask.
    APART = "apart"
    SANDBOX = "sandbox"
    SHARED = "shared"
    HOUSEKEEPING = "housekeeping"
    #: Of the CPUs of `apart` those on the NUMA node of the VM's NIC; else all of them. For vhost workers alone.
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
        found: ThreadPolicy | CpuSet = getattr(self, role.policy)
        return found

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Policy:
        """Make a policy of values as a file has them. :raises ValueError: with the key, the value and what it may
        be."""
        made: dict[str, object] = {}
        for key, value in values.items():
            if key not in cls._fields:
                raise ValueError(f"unknown policy {key!r:.80} (known: {', '.join(sorted(cls._fields))})")
            # YAML reads a bare off as false.
            made[key] = parse_rule(key, "off" if value is False else value)
        return cls(**made)  # type: ignore[arg-type]

    def as_text(self) -> dict[str, str]:
        """The rules by key, as in a file."""
        return {key: str(value) for key, value in zip(self._fields, self, strict=True)}


_RULES: dict[str, type[VcpuRule] | type[SpareVcpuRule] | type[ThreadPolicy]] = {
    "vcpus": VcpuRule, "spare_vcpus": SpareVcpuRule}


def parse_rule(key: str, value: object) -> VcpuRule | SpareVcpuRule | ThreadPolicy | CpuSet:
    """One policy value, as written or parsed already. :raises ValueError: naming what it may be."""
    rules = _RULES.get(key, ThreadPolicy)
    names = [rule for rule in rules if rule is not ThreadPolicy.NEAR or key == "vhost"]
    if str(value) in names:
        return rules(str(value))
    may = ", ".join(names)
    if rules is ThreadPolicy and isinstance(value, str | int | CpuSet) and not isinstance(value, bool):
        may += " or a CPU list"
        try:
            if cpus := CpuSet.parse(str(value)):
                return cpus
        except CpuSetError:
            pass
    raise ValueError(f"{key}: {value!r:.80} is none of {may}")
