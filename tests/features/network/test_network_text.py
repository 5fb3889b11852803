from __future__ import annotations

from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.features.network.network_text import network_sentences, rows, summary, warnings
from vmpin.features.network.vm_network import Hop, Nic, NicPath, VmNetDevice, VmNetwork

NODES = {0: CpuSet.parse("0-3"), 1: CpuSet.parse("4-7")}
PATH = NicPath((Hop("tap0_kata", "tap", "sandbox"), Hop("eth0", "veth", "sandbox", "redirect"),
                Hop("veth1", "veth", "node", "peer"), Hop("eno1", "nic", "node", "route")),
               (Nic("eno1", "pci/0000:3b:00.0", 1),))


def network(*devices: VmNetwork, why: str = "", disks: tuple[int | None, ...] = ()) -> dict[str, Any]:
    return {"why": why, "devices": [device.data() for device in devices], "warnings": [],
            "disks": [{"device": f"259:{at}", "numa_node": node} for at, node in enumerate(disks)]}


def thread(tid: int, role: str, actual: str) -> dict[str, Any]:
    return {"tid": tid, "role": role, "actual": actual}


KATA = VmNetwork(VmNetDevice("tap", "tap0_kata", 2, 2), (11, 12), PATH)


def test_a_row_has_the_queues_workers_path_and_node() -> None:
    assert rows(network(KATA)) == [["tap0_kata", "tap", 2, "11, 12",
                                    "eth0 (veth, tc mirred) → node: veth1 (veth) → eno1 (nic, default route)", 1]]
    bare = VmNetwork(VmNetDevice("macvtap", "", 1, 1, 5), (), NicPath(note="not inspected: needs CAP_SYS_ADMIN"))
    assert rows(network(bare)) == [["-", "macvtap", 1, "1, which is not known",
                                    "not inspected: needs CAP_SYS_ADMIN", "-"]]


def test_sentences_name_the_way_and_that_workers_are_inferred() -> None:
    assert list(network_sentences(network(KATA))) == [
        "Its network device tap tap0_kata (2 queues) reaches eno1 on NUMA node 1: tap0_kata (tap) → "
        "eth0 (veth, tc mirred) → node: veth1 (veth) → eno1 (nic, default route).",
        "vhost worker 11 serves queue 0, 12 serves queue 1 (inferred from the order in which they were created)."]
    lost = VmNetwork(VmNetDevice("tap", "t", 1), (), NicPath((), (), "it is lost"))
    assert list(network_sentences(network(lost))) == [
        "Its network device tap t (1 queue) leads to no NIC that was found: it is lost."]
    assert list(network_sentences(network(why="not inspected: needs root"))) == [
        "Its network was not inspected: needs root."]
    assert list(network_sentences(None)) == []


def test_the_summary_is_for_one_line() -> None:
    assert summary(network(KATA)) == "tap0_kata (2 queues) → eno1 on NUMA node 1"
    assert summary(None) == summary(network()) == ""


def test_vhost_workers_without_a_cpu_of_the_nics_node_are_far() -> None:
    threads = [thread(11, "vhost", "0-1"), thread(12, "vhost", "1,4"), *(thread(n, "vcpu", "4") for n in (1, 2))]
    assert warnings(network(KATA), threads, NODES) == [
        "Vhost worker 11 may run on CPUs 0-1, none of them on NUMA node 1 of eno1"]
    assert warnings(network(KATA), threads, {}) == []


def test_workers_that_are_not_assigned_count_where_all_devices_lead_to_one_node() -> None:
    threads = [thread(11, "vhost", "0"), thread(12, "vhost", "0"), thread(13, "vhost", "0")]
    unknown = KATA._replace(workers=())
    (text,) = warnings(network(unknown), threads, NODES)
    assert text.startswith("Vhost workers 11, 12, 13 may run on CPUs 0,")
    other = unknown._replace(path=NicPath(PATH.hops, (Nic("eno2", "pci/b", 0),)))
    assert warnings(network(unknown, other), threads, NODES) == []


def test_iothreads_are_compared_with_the_node_of_all_disks() -> None:
    threads = [thread(21, "iothread", "0"), thread(22, "iothread", "5")]
    assert warnings(network(disks=(1, 1)), threads, NODES) == [
        "Iothread 21 may run on CPUs 0, none of them on NUMA node 1 of its disks"]
    assert warnings(network(disks=(0, 1)), threads, NODES) == []
    assert warnings(network(disks=(None,)), threads, NODES) == []


def test_more_queues_than_vcpus_are_named() -> None:
    threads = [thread(1, "vcpu", "4")]
    assert warnings(network(KATA), threads, NODES) == ["tap0_kata has 2 queues for 1 vCPU"]
    assert warnings(network(KATA), [*threads, thread(2, "vcpu", "5")], NODES) == []
    assert warnings(network(KATA), [], NODES) == []  # its vCPUs are not identified


def test_what_was_found_of_its_network_is_in_sentences() -> None:
    unseen = {**network(why="not inspected: needs CAP_SYS_ADMIN"), "warnings": ["It is far"]}
    assert list(network_sentences(unseen)) == ["Its network was not inspected: needs CAP_SYS_ADMIN.", "It is far."]
    assert list(network_sentences(None)) == []
