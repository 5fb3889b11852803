"""What a container asks for, and what the search is asked: plain values."""

from __future__ import annotations

import enum

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.named_tuple import NamedTuple


class CpuPolicy(enum.StrEnum):
    """`cpu-policy.vmpin.io`."""

    NONE = "none"  #: The pool.
    EXCLUSIVE = "exclusive"  #: CPUs of its own, which leave the pool.
    FIXED = "fixed"  #: CPUs of its own choice, which stay in the pool, but become exclusive to no container.
    NUMA = "numa"  #: The pool's CPUs of one NUMA node.
    INFRA = "infra"  #: The reserved CPUs.
    GROUP = "group"  #: One set for all containers of a group.


class Alignment(enum.StrEnum):
    """`cpu-align.vmpin.io`: what the CPUs should be within, or, for cores, be made of."""

    NODE = "node"
    CACHE = "cache"
    CORE = "core"
    SOCKET = "socket"


class SmtUse(enum.StrEnum):
    """`cpu-smt.vmpin.io`: whole cores where possible, whole cores or a refusal, or one thread of each core first."""

    PREFER = "prefer"
    REQUIRE = "require"
    SPREAD = "spread"


class CpuKind(enum.StrEnum):
    """`cpu-kind.vmpin.io`."""

    ANY = "any"
    PERFORMANCE = "performance"
    EFFICIENT = "efficient"
    ISOLATED = "isolated"


#: The short names of the annotations: `policy` is `cpu-policy.vmpin.io`.
WISH_KEYS = ("policy", "align", "smt", "kind", "near", "spare")


class CpuWish(NamedTuple):
    """What a container's annotations ask for. None: the configuration decides. `near` is "", "devices", a PCI address,
    a network device, or "nodes:" with NUMA nodes as a list. `spare` is "match", "own" or a number of CPUs."""

    policy: CpuPolicy | None = None
    group: str = ""
    align: Alignment | None = None
    align_required: bool = False
    smt: SmtUse | None = None
    kind: CpuKind = CpuKind.ANY
    near: str = ""
    spare: str = "match"
    exclude_reserved: bool = False  #: Crane's: on the pool without the reserved CPUs.


class CpuQuery(NamedTuple):
    """What the search is asked: `size` CPUs out of the free ones, `keep` among them (it is not free). `near`: NUMA
    nodes of devices. `spread_nodes`: where more than one node is needed, the same number of CPUs from each. `present`:
    of a container that moves, those of the free CPUs that it has: of sets that are as good for it (the cost as far as
    `partial_cores`) the one that holds the most of them."""

    size: int
    align: Alignment = Alignment.NODE
    align_required: bool = False
    smt: SmtUse = SmtUse.PREFER
    spread_nodes: bool = False
    near: frozenset[int] = frozenset()
    keep: CpuSet = EMPTY
    present: CpuSet = EMPTY


class CpuCost(NamedTuple):
    """The cost of a set of CPUs, each part smaller is better, compared in the order that `cost_order` gives by
    alignment. Equal costs: the lowest numbers win."""

    nodes: int  #: NUMA nodes touched.
    distance: int  #: Between the nodes, the sum over pairs, in the firmware's unit.
    away: int  #: CPUs on other nodes than the devices'.
    caches: int  #: Last-level caches touched.
    partial_cores: int  #: Cores of which it holds some threads and not all.
    broken_nodes: int  #: Nodes that were wholly free, and now are in part.
    broken_caches: int  #: Likewise, of last-level caches.
    broken_cores: int  #: Likewise, of cores.
    leftover: int  #: CPUs left free in the touched caches.
    node_left: int  #: Likewise, in the touched nodes.


class FoundCpus(NamedTuple):
    """The best set, with its cost. `least_distance`: None, or where the search ended before it was proven to be the
    best: no set that is as good in the parts before the distance has a smaller distance than this."""

    cpus: CpuSet
    cost: CpuCost
    least_distance: int | None = None


class RefusalKind(enum.StrEnum):
    """The values of the label `reason` of vmpin_allocation_refusals_total."""

    CPUS = "cpus"  #: Too few CPUs are free.
    ALIGNMENT = "alignment"  #: None are aligned as asked.
    REQUEST = "request"  #: The container may not have what it asks for.


class Refusal(NamedTuple):
    kind: RefusalKind
    reason: str
