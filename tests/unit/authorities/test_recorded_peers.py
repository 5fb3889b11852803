"""Histories of real programs that give out CPUs (tests/data/peers), replayed: what the runtime reported over NRI, as
bytes, the files of the kubelet and of dra-driver-cpu, and the cgroups of runc's containers."""

from __future__ import annotations

import json
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from dra_socket import listening
from nri_connected import Connected
from nri_peer import NriRuntime, NriRuntimes, container, pod
from trees import make_tree

from vmpin.authorities.observed_authority import SHARED_FOR, ObservedAuthority
from vmpin.config import loading
from vmpin.cpuset import CpuSet
from vmpin.domain.events import CpusetSeen, Source
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.host import boottime
from vmpin.placement.rulings import effective_containers, unreported_assignments
from vmpin.reconcile.intake import take_nri
from vmpin.reconcile.node_state import NodeState
from vmpin.reconcile.view import NodeView
from vmpin.sources.nri.nri_events import Synced
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES

pytest_plugins = ["given_nri"]
PEERS = Path(__file__).parents[2] / "data/peers"
#: The calls that have methods of their own in NRI 0.6 (containerd 1.7). The others come as StateChange.
OWN_METHODS = {Verb.CREATE: "CreateContainer", Verb.UPDATE: "UpdateContainer", Verb.STOP: "StopContainer"}


class Replay:
    """A node of eight CPUs, a connected plugin, and a clock for the authority `observed`.
    :param history: a file of tests/data/peers."""

    def __init__(self, path: Path, runtimes: NriRuntimes, connected: Connected, history: dict[str, Any]) -> None:
        self.pods, self.env = history["pods"], history["containers"]
        self.cdi, self.kubelet, self.registry = path / "cdi", path / "kubelet", path / "kubelet/plugins_registry"
        for directory in (self.cdi, self.registry, path / "run", path / "proc"):
            directory.mkdir(parents=True)
        make_tree(path / "sys", "qemu-2x2x2")
        paths = {f"paths.{name}": str(path / name) for name in (
            "run", "kata_go", "kata_rs", "kubelet", "proc", "sys", "cdi")}
        self.node = NodeState(loading.load(None, {}, paths))
        self.now = 0.0
        self.node.authorities._observed = ObservedAuthority(
            lambda: self.node.placement_cache.node.online, lambda: self.now)
        self.runtimes, self.connected, self.drivers = runtimes, connected, ExitStack()
        self.runtime: NriRuntime | None = None

    def step(self, kind: str, *values: Any) -> None:
        self.now += 1
        if kind == "file":
            self.write(*values)
        elif kind == "rest":
            self.rest(values[1])
        elif kind == "Configure":
            self.connect()
        else:
            self.call(kind, *values)
        self.node.authorities.read(self.node.config)
        self.node.placement_cache.follow_authorities(self.node.state)

    def write(self, name: str, text: str | None) -> None:
        """A file as the kubelet or the driver writes or removes it."""
        directory = (self.registry if name.endswith(".sock") else
                     self.kubelet if name == "dra_manager_state" else self.cdi)
        if text is None:
            (directory / name).unlink()
        elif name.endswith(".sock"):
            self.drivers.enter_context(listening(directory / name))
        else:
            (directory / "new").write_text(text)
            (directory / "new").rename(directory / name)

    def rest(self, cgroups: dict[str, str]) -> None:
        """Nothing happens for a while, and vmpin reads the cgroups of runc's containers."""
        self.now += SHARED_FOR
        self.node.apply_events(CpusetSeen(SandboxId(key.split("/")[0]), ContainerId(_id(key)), CpuSet.parse(cpus),
                                          Source.CGROUP, boottime.now()) for key, cpus in cgroups.items())

    def connect(self) -> None:
        """The first connection, or another one because vmpin wants a list."""
        if self.runtime is not None:
            self.connected.plugin.reconnect()
            take_nri(self.node, [self.connected.fact()])  # Disconnected
        self.runtime = self.runtimes.next()
        self.runtime.grant(self.runtime.request("RegisterPlugin"))
        self.runtime.configure()

    def call(self, kind: str, key: Any, *fields: Any) -> None:
        """A call of the runtime, until its events are in the state."""
        assert self.runtime is not None
        if kind == "Synchronize":
            self.runtime.synchronize([self.pod(name) for name in key],
                                     [self.container(own, *listed) for own, listed in fields[0].items()])
        else:
            verb, name = Verb[kind], key.partition("/")[0]
            subject = {"container": self.container(key, *fields[:2])} if "/" in key else {}
            if verb in OWN_METHODS:
                self.runtime.call(OWN_METHODS[verb], MESSAGES["EventRequest"](pod=self.pod(name), **subject))
            else:
                self.runtime.state_change(verb, self.pod(name), subject.get("container"))
        event = self.connected.fact()
        take_nri(self.node, [event])
        if isinstance(event, Synced):
            self.node.nri_list_came()

    def pod(self, name: str) -> Any:
        known = self.pods[name]
        return pod(name, name=name.split(".")[0], uid=known["uid"], runtime_handler=known.get("handler", ""),
                   annotations=known.get("annotations", {}))

    def container(self, key: str, state: int, cpus: str) -> Any:
        name, _, own = key.partition("/")
        return container(_id(key), name, cpus, state, name=own.split(".")[0].split()[0],
                         env=[entry.encode() for entry in self.env[key]])

    @property
    def by(self) -> str:
        """The weakest authority that decides; on these nodes all CPUs are owned by it."""
        return self.node.placement_cache.rulings.authorities[-1]

    def owners(self) -> dict[str, CpuSet]:
        """The CPUs of each container that owns some, and of each pod whose prepared claim no container uses."""
        state, rulings = self.node.state, self.node.placement_cache.rulings
        owners = {}
        for sandbox in state.sandboxes.values():
            for owner in effective_containers(sandbox, rulings):
                if owner.exclusive:
                    assert owner.ruled_by == self.by
                    owners[f"{sandbox.id}/{owner.name}"] = owner.own_cpus
        names = {known["uid"]: name for name, known in self.pods.items()}
        return owners | {names[uid]: cpus for (uid, _), cpus in unreported_assignments(state, rulings).items()}

    def decision(self) -> str:
        """The authority, the owners and the pool."""
        pool = self.node.placement_cache.rulings.pool
        owners = ", ".join(f"{owner} {cpus}" for owner, cpus in sorted(self.owners().items()))
        return f"{self.by}: {owners or '-'}" + ("" if pool is None else f"; pool {pool}")


def _id(key: str) -> str:
    return key.replace("/", "-").replace(" ", "-")


def _subject(kind: str, values: list[Any]) -> str:
    """What a step is about, for the list of decisions."""
    if kind == "file":
        name = str(values[0]).removeprefix("dra.k8s.io-cpu_claim-")
        return f"{name[:8] if name.endswith('.json') else name}{'' if values[1] is not None else ' removed'}"
    return values[0] if isinstance(values[0], str) and kind != "Configure" else ""


def history_of(name: str) -> dict[str, Any]:
    return json.loads((PEERS / f"{name}.json").read_text())  # type: ignore[no-any-return]


#: The decisions as the recorded history has them: after which step, by which authority, which owners and pool.
DECISIONS = {
    "dra-individual": """
file dra_manager_state
    declared: -
Synchronize
    observed: -
file dra.cpu-reg.sock
    dra: -
CREATE plain/main
    dra: -; pool 1-7
file fb338902
    dra: vm-own 1-2; pool 3-7
CREATE vm-own/main
    dra: vm-own/main 1-2; pool 3-7
file 40dceedc
    dra: two 3, vm-own/main 1-2; pool 4-7
CREATE two/one
    dra: two/one 3, vm-own/main 1-2; pool 4-7
STOP two/one
    dra: two 3, vm-own/main 1-2; pool 4-7
file 40dceedc removed
    dra: vm-own/main 1-2; pool 4-7
file f4518dd2
    dra: late 3, vm-own/main 1-2; pool 4-7
file f4518dd2 removed
    dra: vm-own/main 1-2; pool 3-7
STOP vm-own/main
    dra: vm-own 1-2; pool 3-7
file fb338902 removed
    dra: -; pool 3-7
CREATE vm-new/main
    dra: -; pool 1-7
""",
    "dra-grouped": """
file dra_manager_state
    declared: -
file dra.cpu-reg.sock
    dra: -
CREATE plain/main
    dra: -; pool 1-7
file e9edfe5f
    dra: vm-g 1-2; pool 3-7
CREATE vm-g/main
    dra: vm-g/main 1-2; pool 3-7
file 0db24fb9
    dra: pair 3, vm-g/main 1-2; pool 4-7
file 358ed49a
    dra: pair 3-4, vm-g/main 1-2; pool 5-7
file 36f38ba5
    dra: pair 3-5, vm-g/main 1-2; pool 6-7
CREATE pair/a
    dra: pair 4-5, pair/a 3, vm-g/main 1-2; pool 6-7
CREATE pair/b
    dra: pair/a 3, pair/b 4-5, vm-g/main 1-2; pool 6-7
STOP pair/a
    dra: pair 3, pair/b 4-5, vm-g/main 1-2; pool 6-7
CREATE pair/a.2
    dra: pair/a 3, pair/b 4-5, vm-g/main 1-2; pool 6-7
STOP pair/b
    dra: pair 4-5, pair/a 3, vm-g/main 1-2; pool 6-7
STOP pair/a.2
    dra: pair 3-5, vm-g/main 1-2; pool 6-7
STOP vm-g/main
    dra: pair 3-5, vm-g 1-2; pool 6-7
file 0db24fb9 removed
    dra: pair 4-5, vm-g 1-2; pool 6-7
file 358ed49a removed
    dra: pair 5, vm-g 1-2; pool 6-7
file 36f38ba5 removed
    dra: vm-g 1-2; pool 6-7
file e9edfe5f removed
    dra: -; pool 6-7
CREATE vm-new/main
    dra: -; pool 1-7
file dra.cpu-reg.sock removed
    observed: vm-new/main 1-5
STOP vm-new/main
    observed: -
""",
    "balloons": """
Configure
    declared: -
Synchronize
    observed: -
POST_CREATE plain/main
    observed: plain/main 1
POST_CREATE vm-own/main
    observed: plain/main 1, vm-own/main 4-5
POST_CREATE vm-two/one
    observed: plain/main 1, vm-own/main 4-5, vm-two/one 6
POST_CREATE vm-two/two
    observed: plain/main 1, vm-own/main 4-5, vm-two/one 6, vm-two/two 6-7
Synchronize
    observed: plain/main 1, vm-own/main 4-5, vm-two/one 6-7, vm-two/two 6-7
POST_CREATE team-runc/main
    observed: plain/main 1, team-runc/main 2-3, vm-own/main 4-5, vm-two/one 6-7, vm-two/two 6-7
POST_CREATE team-vm/main
    observed: plain/main 1, vm-own/main 4-5, vm-two/one 6-7, vm-two/two 6-7
rest the other pod of the balloon is gone
    observed: plain/main 1, team-vm.2/main 2-3, vm-own/main 4-5, vm-two/one 6-7, vm-two/two 6-7
STOP vm-own/main
    observed: plain/main 1, team-vm.2/main 2-3, vm-two/one 6-7, vm-two/two 6-7
Synchronize
    observed: plain/main 1, team-vm.2/main 2-3, vm-two/one 4-5, vm-two/two 4-5
STOP plain/main
    observed: team-vm.2/main 2-3, vm-two/one 4-5, vm-two/two 4-5
STOP team-vm.2/main
    observed: vm-two/one 4-5, vm-two/two 4-5
STOP vm-two/one
    observed: vm-two/two 4-5
STOP vm-two/two
    observed: -
""",
    "topology-aware": """
Configure
    declared: -
Synchronize
    observed: -
POST_CREATE plain/main
    observed: plain/main 4-7
POST_CREATE vm-excl/main
    observed: plain/main 6-7
POST_CREATE vm-mixed/main
    observed: plain/main 6-7, vm-mixed/main 1-3
rest a VM with an exclusive and a shared part
    observed: plain/main 6-7, vm-excl/main 4-5, vm-mixed/main 1-3
POST_CREATE vm-shared/main
    observed: plain/main 6-7, vm-excl/main 4-5, vm-mixed/main 1
STOP vm-excl/main
    observed: plain/main 6-7, vm-mixed/main 1
Synchronize
    observed: plain/main 4-7, vm-mixed/main 1
Synchronize
    observed: vm-mixed/main 6, vm-shared/main 1
rest topology-aware restarted
    observed: vm-mixed/main 6, vm-shared/main 1-3
STOP vm-mixed/main
    observed: vm-shared/main 1-3
STOP vm-shared/main
    observed: -
"""}


@pytest.mark.parametrize("name", DECISIONS)
def test_each_decision_follows_from_what_the_program_did(
        tmp_path: Path, runtimes: NriRuntimes, connected: Connected, name: str) -> None:
    """After every step, no CPU has owners of two pods."""
    history, decisions = history_of(name), [""]
    replay = Replay(tmp_path, runtimes, connected, history)
    for kind, *values in history["steps"]:
        replay.step(kind, *values)
        of_pods = [(owner.partition("/")[0], cpus) for owner, cpus in replay.owners().items()]
        assert all(owner == other or cpus.isdisjoint(others)
                   for (owner, cpus), (other, others) in combinations(of_pods, 2))
        if (decision := f"    {replay.decision()}") != decisions[-1]:
            decisions += [f"{kind} {_subject(kind, values)}".rstrip(), decision]
    assert decisions[1:] == DECISIONS[name].strip().splitlines()


def test_containers_that_another_program_changed_for_one_beside_them_are_listed_again(
        tmp_path: Path, runtimes: NriRuntimes, connected: Connected) -> None:
    history = history_of("balloons")
    replay = Replay(tmp_path, runtimes, connected, history)
    joined = []
    for kind, *values in history["steps"]:
        replay.step(kind, *values)
        if kind == "POST_START":
            joined += [(values[0], *NodeView(replay.node).pods_of_others([SandboxId(values[0].partition("/")[0])]))]
    assert [names for names in joined if len(names) > 1] == [("vm-two/two", "vm-two")]
