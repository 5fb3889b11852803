"""Who owns what under a kubelet's static checkpoint, whatever the containers' cpusets are at that moment.

Searched for, and along what a real kubelet wrote (tests/data/kubelet-1.36-steps.json).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from need import lacking
from ruled import ruled

from vmpin.config import loading as config
from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.desired_state import ContainerRecord, CpusetReport, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId, ThreadId, ThreadRole, Vcpu, VcpuId, VmThread
from vmpin.domain.policy import Policy
from vmpin.domain.sandbox_placement import Placement, Previous
from vmpin.domain.topology import Topology
from vmpin.host import boottime
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs
from vmpin.placement.ownership import Node, Ownership, claims_of, find_collisions, ownership, with_unreported
from vmpin.placement.rules import PlacementRequest, place
from vmpin.placement.rulings import effective_containers, unreported_assignments
from vmpin.reconcile import state_file, state_format
from vmpin.reconcile.reconciler import Reconciler
from vmpin.status.document import ThreadStatus, node_data, sandbox_data
from vmpin.status.explain import sentences

STEPS = Path(__file__).parents[2] / "data/kubelet-1.36-steps.json"
ONLINE = CpuSet.parse("0-7")


@dataclass
class World:
    """A node as places.Places puts it together, without a machine: pods with their vCPUs, and a checkpoint."""

    kubelet: CpuManagerState
    pods: dict[str, dict[str, ContainerRecord]] = field(default_factory=dict)
    vcpus: dict[str, int] = field(default_factory=dict)
    before: dict[SandboxId, Previous] = field(default_factory=dict)

    def state(self) -> DesiredState:
        return DesiredState({SandboxId(f"sandbox-{uid}"): SandboxState(
            SandboxId(f"sandbox-{uid}"), "nri", Pod("ns", uid, uid), {each.container.id: each
                                                                      for each in containers.values()})
            for uid, containers in self.pods.items()})

    def node(self) -> Node:
        return Node(Topology.build(ONLINE), self.kubelet.default)

    def own(self) -> Ownership:
        state = self.state()
        found = {sandbox.id: claims_of(effective_containers(sandbox, ruled(self.kubelet)), self.node())
                 for sandbox in state.sandboxes.values()}
        return ownership(with_unreported(found, unreported_assignments(state, ruled(self.kubelet)), ONLINE),
                         self.node(),
                         {sandbox.id: sandbox.pod.uid for sandbox in state.sandboxes.values() if sandbox.pod})

    def place(self) -> Mapping[str, Placement]:
        state, own, placements = self.state(), self.own(), {}
        for uid, count in self.vcpus.items():
            sandbox = SandboxId(f"sandbox-{uid}")
            if sandbox not in state.sandboxes:
                continue
            request = PlacementRequest(sandbox, tuple(Vcpu(VcpuId(number)) for number in range(count)),
                              effective_containers(state.sandboxes[sandbox], ruled(self.kubelet)))
            placements[uid] = place(request, self.node(), own, Policy(), self.before.get(sandbox))
            self.before[sandbox] = placements[uid].as_previous(self.before.get(sandbox))
        return placements

    def given(self, uid: str) -> CpuSet:
        """What the checkpoint lists for a pod."""
        return union([self.kubelet.pods.get(uid, EMPTY),
                      *(cpus for (pod, _), cpus in self.kubelet.entries.items() if pod == uid)])


def reported(name: str, cpus: CpuSet | None, time: int = 10, exclusive: bool | None = None) -> ContainerRecord:
    words = {Source.NRI: CpusetReport(cpus, time)} if cpus else {}
    return ContainerRecord(Container(ContainerId(name), name, cpus, exclusive), Source.NRI, time, reports=words)


def check(world: World) -> None:
    """What holds at every moment."""
    own, placements = world.own(), world.place()
    for sandbox in world.state().sandboxes.values():
        assert sandbox.pod is not None
        for container, cpus in own.claims[sandbox.id].exclusive:
            name = sandbox.containers[container].container.name
            assert (sandbox.pod.uid, name) in world.kubelet.entries
            assert cpus <= world.kubelet.entries[sandbox.pod.uid, name]
    for uid, placement in placements.items():
        others = world.kubelet.exclusive - world.given(uid)
        mine = world.given(uid) | world.kubelet.default
        for mask in [*(vcpu.cpus for vcpu in placement.vcpus), *placement.others.values()]:
            assert mask is not None or not mine
            assert mask is None or (mask and mask.isdisjoint(others))


cpusets = st.sets(st.integers(0, 7), min_size=1, max_size=5).map(CpuSet)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A checkpoint that agrees with itself by pod, and containers whose cpusets and annotations say anything."""
    left = list(draw(st.permutations(range(8))))
    entries: dict[tuple[str, str], CpuSet] = {}
    pods: dict[str, CpuSet] = {}
    reported_: dict[str, dict[str, ContainerRecord]] = {}
    for number in range(draw(st.integers(1, 4))):
        uid = f"uid-{number}"
        size = draw(st.integers(0, 3))
        taken, left = left[:size], left[size:]
        containers = [f"c{number}-{at}" for at in range(draw(st.integers(1, 3)))]
        for name in containers:
            # All, some or none of the pod's: pod-level resources, init containers.
            mine = draw(st.sets(st.sampled_from(taken), max_size=len(taken))) if taken else set()
            if mine:
                entries[uid, name] = CpuSet(mine)
        whole = draw(st.booleans())
        if taken and whole:
            pods[uid] = CpuSet(taken)
        if draw(st.integers(0, 4)):  # else only the kubelet reports it
            reported_[uid] = {name: reported(name, draw(st.none() | cpusets), draw(st.integers(5, 15)),
                                             draw(st.sampled_from([None, True, False])))
                              for name in containers if draw(st.integers(0, 3))}
    given_out = union([*entries.values(), *pods.values()])
    pool = ONLINE - given_out - CpuSet(draw(st.sets(st.integers(0, 7), max_size=2)))  # reserved strictly
    kubelet = CpuManagerState("static", pool, entries, pods, version=3).dated(10, None)
    return World(kubelet, reported_, {uid: draw(st.integers(1, 6)) for uid in reported_})


@given(worlds())
def test_only_what_is_listed_owns_and_no_vcpu_is_on_another_pods_cpus(world: World) -> None:
    check(world)
    check(world)  # nor with what is kept of the placement before


@given(worlds())
def test_within_a_checkpoint_that_agrees_with_itself_no_two_pods_contend_for_a_cpu(world: World) -> None:
    assert [collision for collision in find_collisions(world.own()) if "cpuset" not in collision.what] == []


@given(worlds())
def test_a_shared_sandbox_has_its_cpuset_without_other_pods_cpus_or_the_pool(world: World) -> None:
    """A cpuset outside the pool that is no pod's is kept as it is."""
    placements = world.place()
    for uid, placement in placements.items():
        names = {each.container.name: each.container.cpuset for each in world.pods[uid].values()}
        if any((uid, name) in world.kubelet.entries for name in names) or not names:
            continue
        others = world.kubelet.exclusive - world.given(uid)
        if world.kubelet.default:
            assert placement.mask == union(((cpus or EMPTY) - others) or world.kubelet.default
                                           for cpus in names.values())


@given(worlds())
def test_a_listed_container_shares_what_its_cpuset_has_beyond_the_entry_but_for_other_pods_cpus(world: World) -> None:
    own = world.own()
    for sandbox in world.state().sandboxes.values():
        assert sandbox.pod is not None
        uid = sandbox.pod.uid
        others = world.kubelet.exclusive - world.given(uid)
        shared = dict(own.claims[sandbox.id].shared)
        for record in sandbox.containers.values():
            entry = world.kubelet.entries.get((uid, record.container.name))
            if entry:
                surplus = (record.container.cpuset or EMPTY) - entry - others
                assert shared.get(record.container.id, EMPTY) == surplus


def test_a_sandbox_waits_only_for_cpus_that_its_cpusets_do_not_have() -> None:
    world = World(CpuManagerState("static", CpuSet.parse("0-1"), {("other", "db"): CpuSet.parse("4-7")}))
    world.vcpus = {"u": 2}
    world.pods = {"u": {"main": reported("main", CpuSet.parse("4-7"))}}
    assert world.place()["u"].waiting == "waits for the kubelet to rewrite the cpuset of main from 4-7 to 0-1"
    assert str(world.place()["u"].mask) == "0-1"
    world.pods = {"u": {"main": reported("main", CpuSet.parse("1,4-7"))}}  # what is left of it will do
    assert (world.place()["u"].waiting, str(world.place()["u"].mask)) == ("", "1")
    world.pods = {"u": {"main": reported("main", CpuSet.parse("0-1"))}}
    assert world.place()["u"].waiting == ""
    # A container that the kubelet gave others (its checkpoint was removed, and it admitted its pods anew).
    world.kubelet = world.kubelet._replace(entries={("u", "main"): CpuSet.parse("4-5")})
    found = world.place()["u"]
    assert found.waiting == "waits for the kubelet to rewrite the cpuset of main from 0-1 to 4-5"
    assert sorted(str(vcpu.cpus) for vcpu in found.vcpus) == ["4", "5"]


# --- what a real kubelet did -----------------------------------------------------------------------------------------

def steps() -> list[tuple[str, World]]:
    """The world after each recorded step."""
    recorded = json.loads(STEPS.read_text())
    containers = recorded["containers"]
    world = World(CpuManagerState("static", ONLINE))
    found = []
    for at, (what, kind, content) in enumerate(recorded["steps"]):
        if kind == "checkpoint":
            entries = {(uid, name): CpuSet.parse(cpus) for uid, names in content["entries"].items()
                       for name, cpus in names.items()}
            state = CpuManagerState("static", CpuSet.parse(content["default"]), entries,
                                    {uid: CpuSet.parse(cpus) for uid, cpus in content.get("pods", {}).items()})
            world.kubelet = state.dated(at, world.kubelet)
        else:
            for name, cpus in content.items():
                about = containers[name]
                if cpus is None:
                    world.pods[about["pod"]].pop(name)
                else:
                    world.pods.setdefault(about["pod"], {})[name] = reported(name, CpuSet.parse(cpus), at)._replace(
                        container=Container(ContainerId(name), about["name"], CpuSet.parse(cpus)))
                if about["vcpus"]:
                    world.vcpus[about["pod"]] = about["vcpus"]
        found.append((what, replace(world, pods={uid: dict(known) for uid, known in world.pods.items()},
                                    before=world.before)))
    return found


@pytest.mark.parametrize(("what", "world"), steps(), ids=[what.split()[0] for what, _ in steps()])
def test_along_what_a_real_kubelet_wrote(what: str, world: World) -> None:
    check(world)
    # runc containers and VMs that are not narrowed yet, and nothing else
    for collision in find_collisions(world.own()):
        assert "cpuset, which the kubelet has yet to rewrite," in collision.what, what
    for uid in ("a9245742", "608f63d0"):
        if world.pods.get(uid):
            assert world.own().claims[SandboxId(f"sandbox-{uid}")].exclusive == ()
            has = union(record.container.cpuset or EMPTY for record in world.pods[uid].values())
            assert world.place()[uid].mask <= (world.kubelet.default | has) - world.kubelet.exclusive


def test_containers_of_a_pod_that_have_the_same_cpus_both_get_their_vcpus() -> None:
    """plr2: web 6, aux and log 4-5, in one VM of four vCPUs."""
    world = next(world for what, world in steps() if what.startswith("13:49:28"))
    placement = world.place()["85868e94"]
    by_id = {vcpu.id: str(vcpu.cpus) for vcpu in placement.vcpus}
    assert sorted(by_id.values()) == ["4", "4-6", "5", "6"]
    behind = {container: sorted(by_id[vcpu] for vcpu in vcpus) for container, vcpus in placement.containers.items()}
    assert behind == {"vm-web": ["6"], "vm-aux": ["4", "5"], "vm-log": ["4", "5"]}
    assert find_collisions(world.own()) == []


def test_with_fewer_vcpus_they_share_a_share() -> None:
    world = next(world for what, world in steps() if what.startswith("13:49:28"))
    world.vcpus, world.before = {"85868e94": 2}, {}
    placement = world.place()["85868e94"]
    by_id = {vcpu.id: str(vcpu.cpus) for vcpu in placement.vcpus}
    assert sorted(by_id.values()) == ["4-5", "6"]
    behind = {container: [by_id[vcpu] for vcpu in vcpus] for container, vcpus in placement.containers.items()}
    assert behind == {"vm-web": ["6"], "vm-aux": ["4-5"], "vm-log": ["4-5"]}


def test_what_a_container_has_beyond_its_entry_is_for_the_other_threads() -> None:
    """CRI-O's mixed CPUs and the like: entry 4-5, cpuset 1,4-5."""
    world = World(CpuManagerState("static", CpuSet.parse("0-3,6-7"), {("u", "main"): CpuSet.parse("4-5")}),
                  {"u": {"main": reported("main", CpuSet.parse("1,4-5"))}}, {"u": 3})
    found = world.place()["u"]
    assert (str(found.mask), found.verdict, found.waiting) == ("1,4-5", "pinned", "")
    assert [str(vcpu.cpus) for vcpu in found.vcpus] == ["1", "4", "5"]
    assert {str(cpus) for cpus in found.others.values()} == {"1"}
    assert find_collisions(world.own()) == []
    # The CPU that it shares becomes another pod's.
    world.kubelet = world.kubelet._replace(entries={**world.kubelet.entries, ("v", "db"): CpuSet.parse("1")})
    found = world.place()["u"]
    assert [str(vcpu.cpus) for vcpu in found.vcpus] == ["4-5", "4", "5"]
    assert (str(found.mask), found.waiting) == ("4-5", "")


def test_the_pods_of_mixed_cpus_may_have_the_same_shared_ones() -> None:
    entries = {("u", "main"): CpuSet.parse("4-5"), ("v", "main"): CpuSet.parse("6"), ("v", "log"): CpuSet.parse("7")}
    world = World(CpuManagerState("static", CpuSet.parse("0-3"), entries), {
        "u": {"main": reported("main", CpuSet.parse("1,4-5"))},
        "v": {"main": reported("main", CpuSet.parse("1,6")),
              "log": reported("log", CpuSet.parse("1,7"))}}, {"u": 3, "v": 3})
    found = world.place()
    assert [str(vcpu.cpus) for vcpu in found["u"].vcpus] == ["1", "4", "5"]
    assert [str(vcpu.cpus) for vcpu in found["v"].vcpus] == ["1", "6", "7"]
    assert find_collisions(world.own()) == []


def test_a_vm_stays_on_reserved_cpus_that_its_runtime_gave_it() -> None:
    """CRI-O's workloads, an NRI plugin, an annotation: cpuset 0, strict reservation, and 0 is no pod's."""
    world = World(CpuManagerState("static", CpuSet.parse("1-7")), {"u": {"main": reported("main", CpuSet.parse("0"))}},
                  {"u": 2})
    found = world.place()["u"]
    assert (str(found.mask), found.waiting, found.verdict) == ("0", "", "floating")


@pytest.mark.parametrize(("pods", "entries"), [
    ({"u": CpuSet.parse("4-5")}, {}),  # pod-level resources: the pod has them as a whole
    ({}, {("u", "main"): CpuSet.parse("4-5")}),  # its container is yet to be created
])
@pytest.mark.parametrize("known", [{}, {"sidecar": reported("sidecar", None)}])
def test_with_an_empty_pool_a_vm_is_on_the_cpus_of_its_pod(
        pods: dict[str, CpuSet], entries: dict[tuple[str, str], CpuSet], known: dict[str, ContainerRecord]) -> None:
    """Its threads would keep masks that may reach other pods' CPUs, and no other pod has its own CPUs."""
    theirs = {("v", "db"): CpuSet.parse("1-3,6-7")}
    world = World(CpuManagerState("static", EMPTY, {**entries, **theirs}, pods), {"u": known}, {"u": 3})
    found = world.place()["u"]
    assert (str(found.mask), found.verdict, found.reasons) == ("4-5", "floating", ())
    assert {str(cpus) for cpus in (*found.others.values(), *(vcpu.cpus for vcpu in found.vcpus))} == {"4-5"}
    assert find_collisions(world.own()) == []
    _, text = shown(world, "u", [])
    assert ("The sandbox mask is 4-5: the CPUs that the kubelet gives its pod, as the shared pool is empty and no "
            "container with CPUs is known.") in text
    # A mask from before gives way to them, and with a pool the VM is on that until its container is known.
    world.before[SandboxId("sandbox-u")] = Previous(CpuSet((0,)), {}, {})
    assert str(world.place()["u"].mask) == "4-5"
    world.kubelet = world.kubelet._replace(default=CpuSet((0,)))
    assert str(world.place()["u"].mask) == "0"
    _, text = shown(world, "u", [])
    assert "gives its pod" not in text


# --- what is shown of it ---------------------------------------------------------------------------------------------

def shown(world: World, uid: str, threads: list[ThreadStatus]) -> tuple[dict[str, Any], str]:
    """A sandbox in the status document, and what `vmpin status --explain` makes of it."""
    state = world.state().sandboxes[SandboxId(f"sandbox-{uid}")]
    found: dict[str, Any] = sandbox_data(state, world.place().get(uid), {"type": "qemu", "pid": 1}, "names", threads,
                                         rulings=ruled(world.kubelet))
    node = node_data(world.node(), world.own(), [], authorities=ruled(world.kubelet).authorities)
    text = sentences({"watcher": None, "node": node, "policy": Policy().as_text()}, found)
    return found, "\n".join(text)


def test_cpus_that_two_containers_of_a_pod_have_are_called_the_pods() -> None:
    world = next(world for what, world in steps() if what.startswith("13:49:28"))
    found, text = shown(world, "85868e94", [])
    with_whom = {container["name"]: container["shared_with"] for container in found["containers"]}
    assert with_whom == {"web": [], "aux": ["vm-log"], "log": ["vm-aux"]}
    assert "web (vm-web) has CPUs 6, exclusive (the kubelet's checkpoint assigns them)" in text
    assert "aux (vm-aux) has CPUs 4-5, exclusive to its pod, some of them shared with log (vm-log)" in text


def test_a_sandbox_that_waits_is_called_so_while_its_threads_are_elsewhere() -> None:
    world = World(CpuManagerState("static", CpuSet.parse("0-1"), {("other", "db"): CpuSet.parse("4-7")}),
                  {"u": {"main": reported("main", CpuSet.parse("4-7"))}}, {"u": 1})
    thread = VmThread(ThreadId(7, 1), ThreadRole.VCPU, "CPU 0/KVM", 1, VcpuId(0))
    found, text = shown(world, "u", [ThreadStatus(thread, CpuSet.parse("0-1"), CpuSet.parse("4-7"))])
    assert found["verdict"] == "waiting"
    assert found["reasons"] == ["waits for the kubelet to rewrite the cpuset of main from 4-7 to 0-1: until then "
                                "1 of 1 thread is not moved"]
    assert (found["containers"][0]["cpuset"], found["containers"][0]["stale_cpuset"]) == (None, "4-7")
    assert ("main (main)'s cpuset is still 4-7, because the kubelet has not rewritten it yet: other pods own all of "
            "these CPUs, so it belongs on the shared pool (0-1)") in text
    found, _ = shown(world, "u", [ThreadStatus(thread, CpuSet.parse("0-1"), CpuSet.parse("0-1"))])
    assert (found["verdict"], found["reasons"]) == ("floating", [])


# --- over a restart of the watcher -----------------------------------------------------------------------------------

def test_a_report_in_the_state_file_that_is_older_than_the_checkpoint_gives_nothing(tmp_path: Path) -> None:
    """The watcher was away while the kubelet gave the CPUs to another pod, and NRI has yet to connect."""
    paths = {f"paths.{name}": str(tmp_path / name) for name in ("run", "kata_go", "kata_rs", "kubelet", "nri")}
    (tmp_path / "run").mkdir()
    (tmp_path / "kubelet").mkdir()
    settings = config.load(None, {}, {**paths, "watch.only": "sandbox-*"})
    online = Sysfs().topology().online
    first, second = CpuSet(list(online)[:1]), CpuSet(list(online)[1:2])
    if not second:
        lacking("needs two CPUs")
    shared, grown = (SandboxState(
        SandboxId(f"sandbox-{uid}"), "nri", Pod("ns", uid, uid), {
            ContainerId(uid): reported(uid, second, boottime.now())})
        for uid in ("shared", "grown"))
    kept = state_format.SavedState(DesiredState({each.id: each for each in (shared, grown)}))
    state_file.save(settings.paths.state_file, Procfs().boot_id(), kept)
    checkpoint = tmp_path / "kubelet/cpu_manager_state"
    checkpoint.write_text(json.dumps({"policyName": "static", "defaultCpuSet": str(first), "checksum": 0,
                                      "entries": {"other": {"db": str(second)}}}))
    reconciler = Reconciler(settings)
    reconciler.reconcile([], act=False)
    own = reconciler.node_state.placement_cache.own
    assert (own.claims[shared.id].exclusive, own.claims[grown.id].exclusive) == ((), ())
    assert own.owner_names(second.first) == "db of other"
    reconciler.node_state.save()
    # Away once more: now one of them is listed with CPUs that are not those of the report, and then the file is gone.
    checkpoint.write_text(json.dumps({"policyName": "static", "defaultCpuSet": "", "checksum": 0,
                                      "entries": {"grown": {"grown": str(first)}}}))
    again = Reconciler(settings)
    again.reconcile([], act=False)
    assert again.node_state.placement_cache.own.claims[grown.id].exclusive == ((ContainerId("grown"), first),)
    again.node_state.save()
    checkpoint.unlink()
    third = Reconciler(settings)
    third.reconcile([], act=False)
    assert third.view.checkpoint.stale
    assert third.node_state.placement_cache.own.claims == again.node_state.placement_cache.own.claims
