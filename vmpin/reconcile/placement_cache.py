"""The placements of all sandboxes, and the ownership that they depend on; recomputed only for what changed."""

import logging
from collections.abc import Callable, Iterable, Mapping, Set

from vmpin.authorities.authority import Authorities
from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet, union
from vmpin.domain.assignments import Owner
from vmpin.domain.desired_state import DesiredState, SandboxState
from vmpin.domain.model import ContainerState, SandboxId, Vcpu, VcpuId
from vmpin.domain.sandbox_placement import Placement, Previous, Verdict
from vmpin.domain.topology import Topology
from vmpin.placement.ownership import CpuClaims, Node, Ownership, claims_of, ownership, with_unreported
from vmpin.placement.rules import UNLISTED, PlacementRequest, place, place_before_vm
from vmpin.placement.rulings import concerned, effective_containers, unreported_assignments
from vmpin.reconcile.runtime_waits import FirstList
from vmpin.vmm.virtual_machine import Vm

logger = logging.getLogger(__name__)


class PlacementCache:
    """Owns the ownership of CPUs and the placements: nothing else changes them.
    :param previous: the previous placements, from a state file.
    :param first_list: None if no list of the runtime's is awaited."""

    def __init__(self, config: Config, topology: Topology, authorities: Authorities, state: DesiredState,
                 previous: Mapping[SandboxId, Previous], first_list: FirstList | None = None) -> None:
        self.config = config
        self._first_list = first_list or FirstList()
        self._authorities = authorities
        self.rulings = authorities.rulings(state)
        self.node = self._node(topology)
        self._claims: dict[SandboxId, CpuClaims] = {}
        self._pods: dict[SandboxId, str] = {}  #: The pod uids of sandboxes.
        self._unreported: Mapping[Owner, CpuSet] = {}  #: The CPUs of containers that only an authority lists.
        #: Another object whenever an exclusive CPU, or the pool, may have changed. Its claims and pods are those of
        #: now: they are not copied for each container without CPUs of its own.
        self.own: Ownership = ownership(self._claims, self.node, self._pods)
        self.placements: dict[SandboxId, Placement] = {}
        #: What each sandbox was placed by: its own part, ownership, node and configuration.
        self._known: dict[SandboxId, tuple[object, Ownership, Node, Config]] = {}
        #: The parts of previous placements that the next ones keep to.
        self.previous: dict[SandboxId, Previous] = dict(previous)
        #: Whether `previous` has changed since this was last set to False.
        self.unsaved = False
        #: The sandboxes without a placement whose VMs keep their masks, with the reason.
        self.unmanaged: dict[SandboxId, str] = {}
        #: The sandboxes to place again in the next pass.
        self.dirty: set[SandboxId] = set()
        self.turns = 0  #: The number of passes in which some sandbox, or ownership, was due.
        #: Whether ownership has to be recomputed, even if no sandbox changed.
        self._node_changed = True

    def renew(self, config: Config, topology: Topology, state: DesiredState) -> None:
        """Use another configuration or topology. Every sandbox is placed again."""
        self.config, self.rulings = config, self._authorities.rulings(state)
        self.node = self._node(topology)
        self._node_changed = True
        self.dirty.update(state.sandboxes)

    def follow_authorities(self, state: DesiredState) -> None:
        """Recompute the rulings. The sandboxes that a change concerns are placed again."""
        before, now = self.rulings, self._authorities.rulings(state)
        if now != before:  # else the same object stays, by which others see that nothing has changed
            self.rulings = now
            self.dirty |= concerned(before, self.rulings, state)
            node = self._node(self.node.topology)
            # Else the claims of the sandboxes that are placed again show whether ownership has changed.
            self._node_changed |= node != self.node or self.rulings.complete != before.complete
            self.node = node

    def keep_only(self, vms: Set[SandboxId], sandboxes: Set[SandboxId]) -> bool:
        """Drop the placements of VMs that have ended. :param sandboxes: those whose previous placement is kept.
        :returns: whether the state file is out of date."""
        for known in self.placements, self._known:
            for gone in known.keys() - vms:
                del known[gone]
        for gone in self.unmanaged.keys() - vms:
            del self.unmanaged[gone]
        forgotten = self.previous.keys() - sandboxes
        for gone in forgotten:
            del self.previous[gone]
        return bool(forgotten)

    def _node(self, topology: Topology) -> Node:
        return Node(topology, self.rulings.pool, self.config.node.housekeeping, self.rulings.recent)

    def place_changed(self, state: DesiredState, vms: Mapping[SandboxId, Vm], moved: Callable[[SandboxId], None],
                      failed: Callable[[SandboxId, Exception], None]) -> set[SandboxId]:
        """Place the dirty sandboxes, and those that depend on them.
        :param moved: called at once for each sandbox whose placement changed, so that it is carried out even if a
        later step fails. :param failed: called for each sandbox that cannot be placed: it keeps its placement and
        stays dirty, and the others are placed. :returns: the sandboxes whose placement changed."""
        self.follow_authorities(state)
        dirty, self.dirty = self.dirty, set()
        if not dirty and not self._node_changed:
            return set()
        self.turns += 1
        node_changed, self._node_changed = self._node_changed, False
        exclusive_changed = False
        failed_claims: set[SandboxId] = set()
        for sandbox in dirty:
            try:
                exclusive_changed |= self._claim(sandbox, state.sandboxes.get(sandbox))
            except Exception as err:  # the other sandboxes are placed
                self.dirty.add(sandbox)
                failed_claims.add(sandbox)
                failed(sandbox, err)
        before = self.own
        if node_changed or exclusive_changed:
            placeable = DesiredState({sandbox: sandbox_state for sandbox, sandbox_state in state.sandboxes.items()
                                      if sandbox not in failed_claims}) if failed_claims else state
            self._unreported = unreported_assignments(placeable, self.rulings)
        claims = with_unreported(self._claims, self._unreported, self.node.online)
        if node_changed or exclusive_changed or claims is not before.claims:
            self.own = ownership(claims, self.node, self._pods)
        if exclusive_changed or (self.own is not before and any(getattr(self.own, cpus) != getattr(before, cpus)
                                                                for cpus in ("pool", "exclusive", "recent"))):
            dirty.update(self._affected(before, vms.keys()))
        changed = set()
        for sandbox in dirty - failed_claims:
            try:
                if self._place_again(sandbox, vms.get(sandbox), state.sandboxes.get(sandbox)):
                    moved(sandbox)
                    changed.add(sandbox)
            except Exception as err:
                self.dirty.add(sandbox)
                failed(sandbox, err)
        return changed

    def _claim(self, sandbox: SandboxId, sandbox_state: SandboxState | None) -> bool:
        """Recompute a sandbox's claims. :returns: whether its exclusive CPUs, or the pod that has them, changed."""
        new = sandbox_state and claims_of(effective_containers(sandbox_state, self.rulings), self.node)
        old, old_pod = self._claims.get(sandbox), self._pods.get(sandbox)
        if new is None:
            self._claims.pop(sandbox, None)
        else:
            self._claims[sandbox] = new
        if sandbox_state is not None and sandbox_state.pod is not None:
            self._pods[sandbox] = sandbox_state.pod.uid
        else:
            self._pods.pop(sandbox, None)
        before, after = old.exclusive if old else (), new.exclusive if new else ()
        return before != after or bool(after and old_pod != self._pods.get(sandbox))

    def _place_again(self, sandbox: SandboxId, vm: Vm | None, sandbox_state: SandboxState | None) -> bool:
        """Recompute a sandbox's placement. :returns: whether its masks may have changed; False also if there is none
        (any more)."""
        placement = None
        if vm is not None and sandbox_state is not None and not sandbox_state.suspended:
            if self._first_list.defers(sandbox, sandbox_state):
                self._leave_alone(sandbox, UNLISTED)
                return False
            inputs = (self._request(vm, sandbox_state, vm.vcpus), self._pods.get(sandbox),
                      self._first_list.waits(sandbox))
            known = self._known.get(sandbox)
            if known is not None and sandbox in self.placements and known[0] == inputs and (
                    known[1] is self.own and known[2] is self.node and known[3] is self.config):
                return False  # a container was started, for instance
            placement = self._of(inputs[0])
            self._known[sandbox] = inputs, self.own, self.node, self.config
        if placement is not None and placement.verdict is Verdict.UNMANAGED:
            self._leave_alone(sandbox, placement.reasons[0])
            return False
        self.unmanaged.pop(sandbox, None)
        if vm is None or placement is None:
            self.placements.pop(sandbox, None)
            return False
        before = self.placements.get(sandbox)
        if placement == before:
            return False
        self.placements[sandbox] = placement
        previous = placement.as_previous(self.previous.get(sandbox), vm.vcpus_identified)
        if previous != self.previous.get(sandbox):
            self.previous[sandbox] = previous
            self.unsaved = True
        logger.debug("placed sandbox=%s verdict=%s mask=%s", sandbox, placement.verdict, placement.mask)
        return before is None or before._replace(pending=placement.pending) != placement

    def _leave_alone(self, sandbox: SandboxId, why: str) -> None:
        if self.unmanaged.get(sandbox) != why:
            logger.info("unmanaged sandbox=%s: %s", sandbox, why)
        self.unmanaged[sandbox] = why
        self.placements.pop(sandbox, None)

    def at_exec(self, sandbox: SandboxId, state: DesiredState) -> Placement | None:
        """The placement of a sandbox's new processes; None if their masks are not to be set."""
        if self._first_list.defers(sandbox, state.sandboxes.get(sandbox)):
            return None
        return self.placements.get(sandbox) or place_before_vm(
            sandbox, state.sandboxes.get(sandbox), self.node, self.own, self.config.rules, self.rulings,
            self.previous.get(sandbox))

    def with_vcpu(self, vm: Vm, vcpu: VcpuId, state: DesiredState) -> Placement | None:
        """The placement of a VM with a new vCPU, ahead of the pass that will place it."""
        placement, sandbox_state = self.placements.get(vm.sandbox), state.sandboxes.get(vm.sandbox)
        if placement is None or sandbox_state is None or vcpu in placement.by_vcpu:
            return placement
        return self._of(self._request(vm, sandbox_state, vm.guest_vcpus(sorted({*vm.vcpu_threads.values(), vcpu}))))

    def _request(self, vm: Vm, sandbox_state: SandboxState, vcpus: tuple[Vcpu, ...]) -> PlacementRequest:
        """A created container is the same to a placement as a running one."""
        ended = any(record.stopped for record in sandbox_state.containers.values())
        containers = tuple(container._replace(state=ContainerState.RUNNING)
                           for container in effective_containers(sandbox_state, self.rulings))
        return PlacementRequest(vm.sandbox, vcpus, containers, vm.vcpu_state, ended,
                                None if vm.nic is None else vm.nic.numa_node)

    def _of(self, request: PlacementRequest) -> Placement:
        placement = place(request, self.node, self.own, self.config.rules, self.previous.get(request.id))
        waits = placement.waiting or self._first_list.waits(request.id)
        return placement if waits == placement.waiting else placement._replace(waiting=waits)

    def _affected(self, before: Ownership, vms: Set[SandboxId]) -> Iterable[SandboxId]:
        """The sandboxes whose placement may depend on the CPUs that changed their owner: not all of hundreds of
        sandboxes are placed again because of one container's exclusive CPUs. (`rulings.concerned` returns those whose
        containers may own other CPUs.)"""
        lists = [rule for rule in self.config.rules if isinstance(rule, CpuSet)]
        named = union([self.node.housekeeping, self.own.pool, *lists])
        moved = before.exclusive ^ self.own.exclusive
        if (self.own.pool, self.own.recent) != (before.pool, before.recent) or not moved.isdisjoint(named):
            return vms
        # A degraded sandbox may be able to use the CPUs that are free now.
        return {sandbox for sandbox in vms | self.placements.keys()
                if (placement := self.placements.get(sandbox)) is None
                or placement.reasons or placement.mask.bits & moved.bits}
