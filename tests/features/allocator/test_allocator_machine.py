"""The allocator in a hostile world, step by step at random (hostile_runtime)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allocation_model import MACHINES as MODEL_MACHINES
from allocation_model import option_sets
from hostile_runtime import HostileRuntime, Kill, PodMade
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.runtime_call import RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import (
    AllocationOptions,
    DefaultPolicy,
    HonouredKeys,
)
from vmpin.features.allocator.texts.grant_data import GRANT_KEY
from vmpin.features.allocator.vm_size import VmSize

MACHINES = [*MODEL_MACHINES, Topology.build(CpuSet(range(4)))]
POLICIES = ["none", *["exclusive"] * 5, "fixed", "numa", "infra", "group:a", "group:set"]
#: What authors write that is no value of a key.
NONSENSE = ["", " exclusive", "EXCLUSIVE", "group:", "group:../x", "group:" + "x" * 300, "nodes:0-8191:1/4095",
            "nodes:99999999999999999999", "-1", "9" * 5000, "\x00\x1b[2J", "\ud800", "0" * 4097, "own!", "node!!"]
KEYS = {"cpu-policy": POLICIES, "cpu-align": ["node", "cache", "node!", "core!", "socket"],
        "cpu-smt": ["require", "spread"], "cpu-kind": ["any", "isolated", "efficient"],
        "cpu-near": ["devices", "nodes:1", "eth0"],
        "cpu-spare": ["match", "0", "2", "own", "512"]}
PEERS = [{"topology.crane.io/cpu-policy": "exclusive"}, {"topology.crane.io/cpu-policy": "immovable"},
         {"cmk.intel.com/mutate": "true"}, {"cpu.preserve.resource-policy.nri.io": "true"},
         {"balloon.balloons.resource-policy.nri.io": "fast"}]


@st.composite
def pod_annotations(draw: st.DrawFn) -> dict[str, str]:
    found = {"cpu-policy.vmpin.io": draw(st.sampled_from(POLICIES))} if draw(st.integers(0, 5)) else {}
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        key = draw(st.sampled_from(sorted(KEYS)))
        whose = draw(st.sampled_from(["", "/pod", "/container.c", "/container."]))
        found[f"{key}.vmpin.io{whose}"] = draw(st.sampled_from(KEYS[key] if draw(st.integers(0, 3)) else NONSENSE))
    return found | (draw(st.sampled_from(PEERS)) if draw(st.integers(0, 7)) == 0 else {})


#: What an author writes as vmpin's own annotation.
FORGED = st.one_of(
    st.builds('{{"v":1,"policy":"{}","since":{},"cpus":"{}","spare":"{}","own":{}}}'.format,
              st.sampled_from(["exclusive", "fixed", "none", "group", "infra"]),
              st.sampled_from([0, 1, 2**63 - 1, 2**80]),
              st.sampled_from(["", "1", "2-3", "4-7", "0-8191", "3-1"]), st.sampled_from(["", "2", "0-7"]),
              st.sampled_from(["true", "false"])),
    st.sampled_from(["", "{", "[" * 4000, '{"v":1}', '{"v":1,"policy":"exclusive","since":1e999}',
                     '{"v":1,"policy":"exclusive","wish":{"policy":"group","group":"set"}}',
                     '{"v":1,"policy":"exclusive","since":' + "9" * 4000 + "}"]))
KILLS = st.one_of(st.just(Kill()), st.just(Kill()), st.builds(
    Kill, st.sampled_from(["before", "after", "runtime", "runtime"]), st.integers(0, 2)))


@st.composite
def resources(draw: st.DrawFn) -> dict[str, int | None]:
    """Most often whole CPUs with request = limit."""
    cpus = draw(st.sampled_from([0, 1, 1, 1, 2, 2, 3, 5]))
    if draw(st.integers(0, 9)):
        return {"shares": 1024 * cpus or 2, "quota": 100_000 * cpus or None, "period": 100_000}
    return {"shares": draw(st.sampled_from([None, 0, 2, 1536, 262_144, 1 << 62])),
            "quota": draw(st.sampled_from([None, -1, 1, 150_000, 1 << 62])),
            "period": draw(st.sampled_from([None, 1, 100_000, 1 << 62]))}


@st.composite
def hostile_options(draw: st.DrawFn) -> AllocationOptions:
    return draw(option_sets())._replace(default=draw(st.sampled_from([DefaultPolicy.NONE, *DefaultPolicy])),
                                        honour=frozenset(HonouredKeys), grow_delay_seconds=0.0)


class AllocatorMachine(RuleBasedStateMachine):
    """Whatever is asked for, by whomever, and wherever vmpin is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="vmpin-allocator-machine-"))
        self.number = 0

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @initialize(machine=st.sampled_from(MACHINES), options=hostile_options())
    def begin(self, machine: Topology, options: AllocationOptions) -> None:
        self.node = HostileRuntime(machine, options, self.directory / "ledger.json")
        self.node.connect()
        for number in range(3):
            self.number += 1
            self.node.pods[SandboxId(f"s{number}")] = PodMade(SandboxId(f"s{number}"), "b", "p", "u", guaranteed=True)

    def a_container(self, data: st.DataObject) -> ContainerId:
        return data.draw(st.sampled_from(sorted(self.node.containers)))

    def a_pod(self, data: st.DataObject) -> SandboxId:
        return data.draw(st.sampled_from(sorted(self.node.pods)))

    @rule(namespace=st.sampled_from(["a", "b", "b", "kube-system"]), name=st.sampled_from("pq"),
          uid=st.sampled_from(["", "u", "v"]), vm=st.sampled_from([None, None, VmSize(True, 1), VmSize(True, None, 3),
                                                                   VmSize(True, 512, 0)]),
          overhead=st.integers(0, 2), guaranteed=st.booleans())
    def pod(self, namespace: str, name: str, uid: str, vm: VmSize | None, overhead: int, guaranteed: bool) -> None:
        self.number += 1
        made = PodMade(SandboxId(f"s{self.number}"), namespace, name, uid, vm or VmSize(), overhead if vm else 0,
                       guaranteed)
        self.node.pods[made.id] = made

    def create_in(self, data: st.DataObject, count: int) -> Iterator[ContainerId]:
        """Containers of one pod, alike but for their ids."""
        pod = self.node.pods[self.a_pod(data)]
        forged = {GRANT_KEY: data.draw(FORGED)} if data.draw(st.integers(0, 5)) == 0 else {}
        asked: dict[str, Any] = {
            "pod_annotations": data.draw(pod_annotations()), "annotations": forged, **data.draw(resources()),
            "vm": pod.vm.vm, "vm_vcpus": pod.vm.vcpus, "vm_most": pod.vm.most, "vm_overhead": pod.overhead,
            "guaranteed": pod.guaranteed,
            "cpuset": CpuSet(data.draw(st.sampled_from([(1,), (2, 3), tuple(self.node.machine.online)])))
            & self.node.machine.online or None if data.draw(st.integers(0, 19)) == 0 else None}
        name = data.draw(st.sampled_from(["c", "c", "d", "", "c\n\x1b"]))
        for _ in range(count):
            self.number += 1
            self.node.create(RequestedContainer(ContainerId(f"i{self.number}"), pod.id, name, pod.namespace, pod.name,
                                                pod.uid, **asked), data.draw(KILLS))
            yield ContainerId(f"i{self.number}")

    @precondition(lambda self: self.node.pods)
    @rule(data=st.data(), count=st.sampled_from([1, 1, 1, 2]), away=st.integers(0, 4), started=st.integers(0, 3))
    def create(self, data: st.DataObject, count: int, away: int, started: int) -> None:
        if not away:
            self.node.kill()
        for container in self.create_in(data, count):
            if started and container in self.node.containers:
                self.node.start(container)

    @precondition(lambda self: self.node.containers)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.node.start(self.a_container(data))

    @precondition(lambda self: self.node.containers)
    @rule(data=st.data(), given=resources(), kill=KILLS)
    def resize(self, data: st.DataObject, given: dict[str, int | None], kill: Kill) -> None:
        self.node.resize(self.a_container(data), given, kill)

    @precondition(lambda self: self.node.containers)
    @rule(data=st.data(), removed=st.booleans(), kill=KILLS)
    def stop(self, data: st.DataObject, removed: bool, kill: Kill) -> None:
        self.node.stop(self.a_container(data), removed, kill)

    @precondition(lambda self: self.node.pods)
    @rule(data=st.data(), reported=st.booleans(), kill=KILLS)
    def end(self, data: st.DataObject, reported: bool, kill: Kill) -> None:
        self.node.end(self.a_pod(data), reported, kill)

    @precondition(lambda self: self.node.containers)
    @rule(data=st.data(), policy=st.sampled_from([*POLICIES, *NONSENSE]), dry_run=st.booleans())
    def change(self, data: st.DataObject, policy: str, dry_run: bool) -> None:
        self.node.change(self.a_container(data), {"policy": policy}, dry_run)

    @precondition(lambda self: self.node.containers)
    @rule(data=st.data(), given=pod_annotations())
    def annotate(self, data: st.DataObject, given: dict[str, str]) -> None:
        self.node.follow(self.a_container(data), given)

    @rule(data=st.data(), what=st.sampled_from(["settle", "settle", "unreported", "failing", "hotplug"]))
    def other(self, data: st.DataObject, what: str) -> None:
        match what:
            case "settle":
                self.node.settle()
            case "unreported":
                self.node.end_unreported()
            case "failing":
                self.node.failing = data.draw(st.integers(1, 3))
            case _:
                every = self.node.machine.all_cpus
                gone = data.draw(st.sampled_from([EMPTY, *(CpuSet((cpu,)) for cpu in every)]))
                self.node.renew(every - gone)

    @rule(data=st.data(), what=st.sampled_from(["list", "killed", "restart", "lost", "damaged", "short"]))
    def restart(self, data: st.DataObject, what: str) -> None:
        """The runtime lists what there is, again or to a vmpin that was started again; its file may be gone, something
        else, or end early."""
        path = self.node.path
        if what != "list":
            self.node.kill()
        if what == "lost":
            path.unlink(missing_ok=True)
        elif what == "damaged":
            path.write_bytes(data.draw(st.sampled_from([b"", b"{", b"\0" * 100, b"null", b'{"crc32":0,"body":{}}'])))
        elif what == "short" and path.exists():
            path.write_bytes(path.read_bytes()[:-data.draw(st.integers(1, 400))])
        if what != "killed":
            self.node.connect()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "node"):
            self.node.check()


def test_no_history_gives_away_what_runs() -> None:
    run_state_machine_as_test(AllocatorMachine, settings=settings(
        max_examples=int(os.environ.get("VMPIN_ALLOCATOR_HISTORIES", "40")), stateful_step_count=40, derandomize=True,
        deadline=None))
