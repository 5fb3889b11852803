"""What the configuration sets for giving out CPUs (`allocate.*`): plain values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.features.allocator.grants.cpu_request import Alignment, SmtUse
from vmpin.named_tuple import NamedTuple


class AllocationMode(enum.StrEnum):
    OFF = "off"
    OBSERVE = "observe"  #: Decides and reports, and changes nothing.
    ON = "on"


class DefaultPolicy(enum.StrEnum):
    """What a container without an annotation gets: the pool; CPUs of its own where its pod is Guaranteed, or in any
    pod. Only whole CPUs with request = limit become a container's own; the others stay on the pool."""

    NONE = "none"
    GUARANTEED = "guaranteed"
    EXCLUSIVE = "exclusive"


class HonouredKeys(enum.StrEnum):
    """The peers whose annotations count (`allocate.honour`)."""

    CRANE = "crane"
    NRI_PLUGINS = "nri-plugins"
    CMK = "cmk"


class GroupRule(NamedTuple):
    """A configured group. `cpus`: its fixed set, which no container has to request; empty: its members bring their
    own. `namespaces`: those whose containers may join, empty: all."""

    cpus: CpuSet = EMPTY
    namespaces: frozenset[str] = frozenset()


class AllocationOptions(NamedTuple):
    """The keys of `allocate`, each with its default."""

    mode: AllocationMode = AllocationMode.OFF
    reserved: CpuSet = EMPTY  #: For the system and for `infra`; exclusive to no container.
    default: DefaultPolicy = DefaultPolicy.NONE
    align: Alignment = Alignment.NODE
    smt: SmtUse = SmtUse.PREFER
    spread: str = ""  #: "nodes": the same number of CPUs from each, where more than one node is needed.
    strict_reserved: bool = False  #: The pool is without the reserved CPUs.
    pool_headroom: int | None = None  #: CPUs of the pool that shared containers are kept off. None: worked out (auto).
    privileged_namespaces: frozenset[str] = frozenset({"kube-system"})
    groups: Mapping[str, GroupRule] = MappingProxyType({})
    honour: frozenset[HonouredKeys] = frozenset({HonouredKeys.CRANE})
    export: str = ""  #: "cmk": the variables CMK_CPUS_* for runc containers.
    grow_delay_seconds: float = 2.0  #: From the end of a pod to the growth of the pool by CRI.
    align_required: bool = False  #: `align` ends in "!": what does not lie so is refused.
