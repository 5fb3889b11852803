"""What a guest is sent, from a placement."""

from __future__ import annotations

from ruled import claims

from vmpin.cpuset import CpuSet
from vmpin.domain.model import Container, ContainerId, SandboxId, Vcpu, VcpuId
from vmpin.domain.topology import Topology
from vmpin.guests.vcpu_map import guest_map
from vmpin.placement.ownership import Node, ownership
from vmpin.placement.policy import Policy, VcpuRule
from vmpin.placement.rules import Placement, PlacementRequest, place
from vmpin.protocol.frames import FrameDecoder, encode, format_ids
from vmpin.protocol.messages import VcpuMap, as_json
from vmpin.protocol.parsing import parse_request

NODE = Node(Topology.build(CpuSet.parse("0-7")), CpuSet.parse("0-1"))
POD = SandboxId("pod-a")
IDS = {VcpuId(number): number for number in range(8)}


def box(name: str, cpus: str = "", pause: bool = False) -> Container:
    return Container(ContainerId(name), name, CpuSet.parse(cpus) or None, pause=pause)


def decide(vcpus: int, *containers: Container, ids: list[int] | None = None) -> Placement:
    cpus = tuple(Vcpu(VcpuId(number)) for number in ids or range(vcpus))
    return place(PlacementRequest(POD, cpus, containers), NODE, ownership({POD: claims(containers, NODE)}, NODE),
                 Policy())


def sent_vcpus(placement: Placement, system: str = "spare") -> dict[str, str]:
    found = guest_map(placement, IDS, system=system)
    assert found is not None
    return {cid: format_ids(share.hw) + ("!" if share.exclusive else "")
            for cid, share in found.containers.items()} | {
                "system": "-" if found.system is None else format_ids(found.system)}


def test_an_exclusive_container_has_the_vcpus_that_back_it_and_the_others_the_floating_ones() -> None:
    placement = decide(4, box("own", "2-3"), box("shared", "0-1"), box("pause", pause=True))
    assert sent_vcpus(placement) == {"own": "2-3!", "shared": "0-1", "pause": "0-1", "system": "0-1"}


def test_without_exclusive_cpus_each_container_has_every_vcpu() -> None:
    assert sent_vcpus(decide(2, box("a", "0"), box("b"))) == {"a": "0-1", "b": "0-1", "system": "0-1"}


def test_where_no_vcpu_floats_the_shared_container_has_all_and_none_for_itself() -> None:
    assert sent_vcpus(decide(2, box("own", "2-3"), box("shared", "0-1"))) == {
        "own": "0-1!", "shared": "0-1", "system": "0-1"}


def test_fewer_vcpus_than_cpus_are_shared_out() -> None:
    assert sent_vcpus(decide(3, box("a", "2-4"), box("b", "5-7"), box("c"))) == {
        "a": "1!", "b": "2!", "c": "0", "system": "0"}


def test_the_guests_own_processes_are_left_alone_by_policy() -> None:
    assert sent_vcpus(decide(3, box("own", "2-3")), system="off")["system"] == "-"


def test_the_numbers_are_the_hardwares() -> None:
    placement = decide(0, box("own", "2-3"), box("shared", "0-1"), ids=[0, 1, 7])
    found = guest_map(placement, {VcpuId(0): 0, VcpuId(1): 4, VcpuId(7): 0x10000}, export=True)
    assert found is not None
    assert found.containers["own"].hw == (4, 0x10000)
    assert (found.system, found.generation, found.export, found.sandbox) == ((0,), 0, True, "pod-a")


def test_nothing_is_sent_where_a_vcpus_number_is_not_known() -> None:
    assert guest_map(decide(2, box("own", "2")), {VcpuId(0): 0}) is None
    assert guest_map(decide(0, box("own", "2")), IDS) is None


def test_an_id_that_the_protocol_does_not_take_is_left_out() -> None:
    assert sent_vcpus(decide(2, box("../x", "2"), box("b"))) == {"b": "0", "system": "0"}


def test_a_map_can_be_sent_and_holds_no_cpu_of_the_hosts() -> None:
    found = guest_map(decide(4, box("own", "6-7"), box("shared", "0-1")), IDS)
    assert found is not None
    (message,) = FrameDecoder().feed(encode(as_json(found)))
    read = parse_request(message)
    assert isinstance(read, VcpuMap)
    assert read == found
    assert "6" not in str(message["containers"])


def test_the_hosts_cpus_are_sent_where_asked_for() -> None:
    placement = decide(4, box("own", "6-7"), box("shared", "0-1"))
    found = guest_map(placement, IDS, host_cpus=True)
    assert found is not None
    assert {cid: str(share.host) for cid, share in found.containers.items()} == {"own": "6-7", "shared": "0-1"}
    alone = place(PlacementRequest(POD, (Vcpu(VcpuId(0)),), (box("own", "6"),)), NODE,
                  ownership({POD: claims([box("own", "6")], NODE)}, NODE), Policy(vcpus=VcpuRule.OFF))
    left_alone = guest_map(alone, IDS, host_cpus=True)
    assert left_alone is not None
    assert str(left_alone.containers["own"].host) == ""
