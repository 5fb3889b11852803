"""What QEMU's command line says of the guest's CPUs and of the ways into it."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest
from effort import effort
from hypothesis import given
from hypothesis import strategies as st
from identified_threads import identified

from vmpin.domain.model import Vcpu, VcpuId
from vmpin.host.procfs import Procfs, Stat
from vmpin.vmm import qemu
from vmpin.vmm.qemu import (
    Smp,
    cpu_index,
    guest_cid,
    guest_vcpus,
    iothread_ids,
    parse_smp,
    qmp_sockets,
    serial_socket,
    vhost_user_vsock,
)

X86 = "qemu-system-x86_64"


@pytest.mark.parametrize(("device", "cid"), [
    ("vhost-vsock-pci,disable-modern=false,vhostfd=3,id=vsock-77,guest-cid=77,romfile=", 77),
    ("vhost-vsock-pci-non-transitional,guest-cid=3", 3),
    ('{"driver":"vhost-vsock-pci","id":"v","guest-cid":1234}', 1234),
    ("vhost-vsock-pci,guest-cid=2", None),
    ("vhost-vsock-pci,guest-cid=4294967295", None),
    ("vhost-vsock-pci,guest-cid=٣", None),
    ("vhost-vsock-pci", None),
    ("virtio-net-pci,guest-cid=7", None),
    ('{"driver":["vhost-vsock-pci"],"guest-cid":{}}', None),
    ('{"driver":', None),
    ("", None),
])
def test_the_guests_cid(device: str, cid: int | None) -> None:
    assert guest_cid([X86, "-device", device]) == cid


def test_a_virtio_serial_port_leads_to_its_socket() -> None:
    argv = [X86, "-chardev", "socket,id=c0,path=/run/a,,b.sock,server=on,wait=off", "-chardev",
            "socket,id=c1,path=/run/other.sock,server=on", "-device", "virtio-serial-pci", "-device",
            "virtserialport,chardev=c1,name=org.qemu.guest_agent.0", "-device",
            "virtserialport,chardev=c0,name=org.vmpin.agent.0"]
    assert serial_socket(argv, "org.vmpin.agent.0") == "/run/a,b.sock"
    assert serial_socket(argv, "org.other") is None


@pytest.mark.parametrize("chardev", [
    "socket,id=c0,path=/run/x", "socket,id=c0,fd=3,server=on", "socket,id=c0,path=/run/x,server=on,abstract=on",
    "pipe,id=c0,path=/run/x,server=on", "socket,id=c1,path=/run/x,server=on",
])
def test_no_socket_is_guessed(chardev: str) -> None:
    assert serial_socket([X86, "-chardev", chardev, "-device", "virtserialport,chardev=c0,name=p"], "p") is None


def test_a_vhost_user_vsock_leads_to_its_daemon() -> None:
    argv = [X86, "-chardev", "socket,id=vv,path=vd.sock", "-device", "vhost-user-vsock-pci,chardev=vv"]
    assert vhost_user_vsock(argv) == "vd.sock"


def smp(text: str) -> Smp:
    return parse_smp([X86, "-smp", text])


def topology(text: str) -> tuple[int, ...]:
    it = smp(text)
    return it.cpus, it.maxcpus, it.sockets, it.dies, it.cores, it.threads


@pytest.mark.parametrize(("text", "expected"), [
    # cpus, maxcpus, sockets, dies, cores, threads; as query-hotpluggable-cpus of QEMU 7.2 has them
    ("4", (4, 4, 1, 1, 4, 1)),
    ("cpus=4", (4, 4, 1, 1, 4, 1)),
    ("2,maxcpus=8", (2, 8, 1, 1, 8, 1)),
    ("1,cores=1,threads=1,sockets=8,maxcpus=8", (1, 8, 8, 1, 1, 1)),
    ("cores=2,threads=2", (4, 4, 1, 1, 2, 2)),
    ("8,threads=2", (8, 8, 1, 1, 4, 2)),
    ("8,sockets=2", (8, 8, 2, 1, 4, 1)),
    ("8,sockets=2,cores=2", (8, 8, 2, 1, 2, 2)),
    ("8,cores=2", (8, 8, 4, 1, 2, 1)),
    ("12,sockets=1,dies=2,cores=3,threads=2", (12, 12, 1, 2, 3, 2)),
    ("maxcpus=4", (4, 4, 1, 1, 4, 1)),
    # s390x since 8.2: by hw/core/machine-smp.c
    ("16,drawers=2,books=2,sockets=2,cores=2,threads=1", (16, 16, 8, 1, 2, 1)),
    ("8,drawers=2,books=2", (8, 8, 4, 1, 2, 1)), ("8,books=2,cores=2", (8, 8, 4, 1, 2, 1)),
])
def test_left_out_parts_of_smp_are_computed_as_qemu_does(text: str, expected: tuple[int, ...]) -> None:
    assert topology(text) == expected


@pytest.mark.parametrize("text", ["", "x", "cpus=", "cpus=-1", "0", "cpus=²", "cores=99999999999", "=,=,",
                                  "cpus=000000001999999999", "000000000000000000000000002", "maxcpus=" + "9" * 5000,
                                  "8193", "cpus=0x7fffffff", "cpus=1e9", "cpus=1_000"])
def test_senseless_smp_is_one_cpu(text: str) -> None:
    assert smp(text) == Smp()


def test_without_smp_there_is_one_cpu() -> None:
    assert parse_smp([X86]) == Smp()


def test_smp_that_does_not_add_up_keeps_the_cpus_and_no_topology() -> None:
    assert smp("6,sockets=2,cores=2,threads=2,maxcpus=6") == Smp(6, 6, sockets=6)


@pytest.mark.parametrize("text", ["sockets=8192,dies=8192,cores=8192,threads=8192", "threads=8192,cores=2"])
def test_parts_of_smp_make_no_greater_number_than_one_may_be(text: str) -> None:
    assert smp(text) == Smp(1, 8192, sockets=8192)


def test_repeated_smp_options_merge() -> None:
    assert parse_smp([X86, "-smp", "2", "--smp", "maxcpus=4,threads=2"]).threads == 2


@given(st.lists(st.text(max_size=40), max_size=12))
def test_no_command_line_breaks_the_parsers(words: list[str]) -> None:
    argv = [X86]
    for option, word in zip(("-smp", "-numa", "-object", "-qmp", "-chardev", "-mon") * 2, words, strict=False):
        argv += [option, word]
    guest_vcpus(argv, [VcpuId(0)])
    iothread_ids(argv)
    qmp_sockets(argv)
    cpu_index(argv, [0, 1])


@pytest.mark.parametrize("words", [
    ["-numa", "node" + ",cpus=0-8191" * 2000, "-object", "[" * 60000],
    ["-object", "memory-backend-ram,id=m,host-nodes=0-8191"] * 2000,
    ["-numa", "cpu,node-id=1,socket-id=8000,core-id=0,thread-id=0"] * 2000,
], ids=["lists of CPUs", "lists of host nodes", "CPUs"])
def test_a_long_command_line_costs_little(words: list[str]) -> None:
    def read() -> None:
        guest_vcpus([X86, "-smp", "8192", *words], map(VcpuId, range(100)))
        iothread_ids(words)

    assert effort(read, times=1) < 200  # the second time it is cached


@pytest.mark.parametrize(("text", "ids"), [
    # the ids of KVM's vcpu descriptors, seen with QEMU 7.2
    ("6,sockets=2,cores=3", [0, 1, 2, 4, 5, 6]),
    ("12,sockets=1,dies=2,cores=3,threads=2", [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]),
    ("cores=2,threads=2", [0, 1, 2, 3]),
    ("2,cores=1,threads=1,sockets=8,maxcpus=8", [0, 1, 2, 3, 4, 5, 6, 7]),
])
def test_kvm_ids_are_apic_ids_on_x86(text: str, ids: list[int]) -> None:
    assert cpu_index([X86, "-smp", text], ids) == {number: at for at, number in enumerate(ids)}
    assert [smp(text).apic_id(VcpuId(at)) for at in range(len(ids))] == ids


@pytest.mark.parametrize("text", ["8192", "8190,threads=3,cores=5", "8192,dies=2,threads=3,sockets=1365,maxcpus=8190"])
def test_no_loop_is_as_long_as_maxcpus(text: str) -> None:
    """Any user's process can have any command line."""
    argv = [X86, "-name", "sandbox-x", "-smp", text]
    parse_smp(argv)

    def read() -> None:
        assert cpu_index(argv, [0]) == {0: 0}

    assert effort(read) < 0.5
    threads = [(7, Stat("CPU 0/KVM", "S", 1, 0, 1, 0))]
    assert effort(lambda: identified(7, qemu.QEMU, argv, threads, Procfs("/nowhere"))) < 0.5


@given(st.tuples(*[st.integers(1, 5)] * 4), st.integers(0, 300))
def test_an_apic_id_and_a_cpu_index_are_each_others(levels: tuple[int, ...], apic: int) -> None:
    sockets, dies, cores, threads = levels
    total = sockets * dies * cores * threads
    it = Smp(total, total, sockets, dies, 1, 1, cores, threads)
    apics = {it.apic_id(VcpuId(index)): index for index in range(total)}
    assert it.cpu_of(apic) == apics.get(apic)


def test_kvm_id_of_no_slot_is_left_out_and_arm_counts_straight() -> None:
    odd = ["-smp", "6,sockets=2,cores=3"]
    assert cpu_index([X86, *odd], [3, 4]) == {4: 3}
    assert cpu_index(["qemu-system-aarch64", *odd], [3, 4]) == {3: 3, 4: 4}


def vcpus(line: str, *ids: int) -> tuple[tuple[int, int | None, int | None], ...]:
    return tuple((v.id, v.core, v.node) for v in guest_vcpus([X86, *line.split()], map(VcpuId, ids)))


def test_core_is_set_only_where_a_core_has_siblings() -> None:
    assert vcpus("-smp 4", 1, 0) == ((0, None, None), (1, None, None))
    assert vcpus("-smp 8,sockets=2,cores=2,threads=2", 0, 1, 5, 7) == (
        (0, 0, None), (1, 0, None), (5, 2, None), (7, 3, None))


def test_node_is_set_only_where_numa_lists_cpus() -> None:
    line = "-smp 8 -numa node,nodeid=0,memdev=m0 -numa cpu,node-id=0,socket-id=1"
    assert vcpus(line, 0) == ((0, None, None),), "that machine has one socket, 0"
    line = "-smp 8 -numa node,nodeid=1,cpus=0-1,cpus=4 -numa node,nodeid=0,cpus=2-3 -numa dist,src=0,dst=1,val=20"
    assert vcpus(line, 0, 2, 4, 7) == ((0, None, 1), (2, None, 0), (4, None, 1), (7, None, None))
    assert vcpus("-smp 4 -numa node,cpus=0-1 -numa node,cpus=2-3", 1, 3) == ((1, None, 0), (3, None, 1))


def test_bad_numa_is_passed_over() -> None:
    assert vcpus("-smp 2 -numa node,nodeid=x,cpus=0 -numa node,nodeid=1,cpus=3-1 -numa node", 0) == ((0, None, None),)


@pytest.mark.parametrize(("line", "nodes"), [
    # As query-hotpluggable-cpus of QEMU shows them: the numbers are within the level above.
    ("-smp 4,sockets=2,cores=2 -numa node -numa node -numa cpu,node-id=0,socket-id=0 -numa cpu,node-id=1,socket-id=1",
     [0, 0, 1, 1]),
    ("-smp 4,sockets=1,cores=2,threads=2 -numa cpu,node-id=1,socket-id=0,core-id=1 -numa cpu,node-id=0,core-id=0",
     [0, 0, 1, 1]),
    ("-smp 4,cores=2,threads=2 -numa cpu,node-id=3,core-id=0,thread-id=1", [None, 3, None, None]),
    ("-smp 4,dies=2,cores=2 -numa cpu,node-id=1,die-id=1 -numa cpu,node-id=0", [0, 0, 1, 1]),
    ("-smp 4,clusters=2,cores=2 -numa cpu,node-id=1,cluster-id=1", [None, None, 1, 1]),
    ("-smp 2 -numa node,cpus=0 -numa cpu,node-id=1,core-id=1", [0, 1]),
    # Not read whole: left out.
    ("-smp 2 -numa cpu,node-id=1,book-id=0 -numa cpu,node-id=x -numa cpu,node-id=1,core-id=-1 -numa cpu", [None] * 2),
    ("-smp 2 -numa cpu,node-id=128 -numa node,nodeid=99999999999999999999,cpus=0", [None] * 2),
    ('-smp 4 -numa {"type":"node","nodeid":1,"cpus":[0,2]} -numa {"type":"node","cpus":[1]}', [1, 1, 1, None]),
    ('-smp 4,sockets=2 -numa {"type":"cpu","node-id":1,"socket-id":1}', [None, None, 1, 1]),
    ('-smp 2 -numa {"type":"cpu","node-id":Infinity} -numa {"type":"node","cpus":[1e999]} -numa {"type" -numa {}',
     [None] * 2),
])
def test_the_guests_numa_nodes_have_their_cpus_in_every_form(line: str, nodes: list[int | None]) -> None:
    assert [node for _, _, node in vcpus(line, *range(len(nodes)))] == nodes


NUMA_CPU = st.fixed_dictionaries({}, optional={level: st.integers(0, 2) for level in (
    "thread-id", "core-id", "die-id", "socket-id")})


@given(st.lists(NUMA_CPU, max_size=8), st.lists(st.lists(st.integers(0, 11), max_size=3), max_size=2))
def test_the_first_option_that_has_a_cpu_decides_its_node(places: list[dict[str, int]],
                                                          lists: list[list[int]]) -> None:
    """Each option compared with each CPU; its node is its number among the options."""
    topology, expected = smp("12,sockets=1,dies=2,cores=3,threads=2"), []
    line = ["-smp 12,sockets=1,dies=2,cores=3,threads=2"]
    line += ["-numa node" + "".join(f",cpus={cpu}" for cpu in cpus) for cpus in lists]
    line += [f"-numa cpu,node-id={node}" + "".join(f",{level}={number}" for level, number in place.items())
             for node, place in enumerate(places, len(lists))]
    for cpu in range(12):
        slot = topology.place(VcpuId(cpu))
        nodes = [node for node, cpus in enumerate(lists) if cpu in cpus]
        nodes += [node for node, place in enumerate(places, len(lists))
                  if all(slot[level] == number for level, number in place.items())]
        expected.append(nodes[0] if nodes else 0 if len(lists) == 1 and not lists[0] and not places else None)
    assert [node for _, _, node in vcpus(" ".join(line), *range(12))] == expected


def test_the_nodes_of_a_large_guest_take_steps_in_proportion_to_its_cpus() -> None:
    """With an option for each CPU, as libvirt and Kata write them."""
    def calls(count: int) -> int:
        argv = [X86, "-smp", f"{count},sockets={count}"]
        for cpu in range(count):
            argv += ["-numa", f"cpu,node-id={cpu % 2},socket-id={cpu},core-id=0,thread-id=0"]
        counted = Counter[str]()
        sys.setprofile(lambda _, event, __: counted.update((event,)))
        try:
            read = guest_vcpus(argv, map(VcpuId, range(count)))
        finally:
            sys.setprofile(None)
        assert [vcpu.node for vcpu in read] == [cpu % 2 for cpu in range(count)]
        return counted.total()

    assert calls(512) < 10 * calls(64)


HOST_NODE_1 = "memory-backend-ram,id=m1,size=1G,host-nodes=1,policy=bind"
TWO_NODES = "-smp 4 -numa node,cpus=0-1,memdev=m0 -numa node,cpus=2-3,memdev=m1"


@pytest.mark.parametrize(("line", "memory"), [
    # As Kata 4 with enable_numa writes it.
    (f"{TWO_NODES} -object memory-backend-file,id=m0,host-nodes=0,policy=bind -object {HOST_NODE_1}", [0, 0, 1, 1]),
    (f"{TWO_NODES} -object {HOST_NODE_1}", [None, None, 1, 1]),
    ("-smp 2 -numa node,nodeid=1,memdev=m1 -numa cpu,node-id=1,core-id=1 -object " + HOST_NODE_1, [None, 1]),
    (f"-smp 2 -numa node,memdev=m1 -object {HOST_NODE_1}", [1, 1]),  # a single node has all CPUs
    (f"-smp 2 -machine q35,accel=kvm,memory-backend=m1 -object {HOST_NODE_1}", [1, 1]),
    (f"-smp 2 -M q35,memory-backend=other -object {HOST_NODE_1}", [None, None]),
    ('-smp 1 -numa {"type":"node","cpus":[0],"memdev":"m1"} -object '
     '{"qom-type":"memory-backend-memfd","id":"m1","host-nodes":[1],"policy":"preferred"}', [1]),
    # Not bound, or not to be read.
    ("-smp 1 -numa node,cpus=0,memdev=m1 -object memory-backend-ram,id=m1,host-nodes=1,policy=default", [None]),
    ("-smp 1 -numa node,cpus=0,memdev=m1 -object memory-backend-ram,id=m1,host-nodes=x", [None]),
    ("-smp 1 -numa node,cpus=0,memdev=m1 -object iothread,id=m1,host-nodes=1 -object {}", [None]),
    ("-smp 1 -numa node,cpus=0,memdev=m1 -object memory-backend-ram,id=m1,host-nodes=99999999999", [None]),
    (f"-smp 1 -numa node,cpus=0,memdev=m1 -object {HOST_NODE_1},host-nodes=0-4294967295", [1]),
    ("-smp 1 -numa node,cpus=0,memdev=m1 -object memory-backend-ram,id=m1,host-nodes=128-8191", [None]),
])
def test_a_guest_nodes_memory_is_on_the_host_nodes_of_its_backend(line: str, memory: list[int | None]) -> None:
    found = guest_vcpus([X86, *line.split()], [VcpuId(number) for number in range(len(memory))])
    assert [min(vcpu.memory, default=None) for vcpu in found] == memory


def test_memory_may_be_bound_to_several_host_nodes() -> None:
    line = ("-smp 1 -numa node,cpus=0,memdev=m "
            "-object memory-backend-ram,id=m,host-nodes=0-1,host-nodes=3,policy=interleave")
    (vcpu,) = guest_vcpus([X86, *line.split()], [VcpuId(0)])
    assert vcpu.memory == {0, 1, 3}


def test_vcpu_is_the_models_type() -> None:
    assert guest_vcpus([X86], [VcpuId(0)]) == (Vcpu(VcpuId(0)),)


def test_iothreads_are_the_declared_objects() -> None:
    argv = [X86, "-object", "iothread,id=io1", "-object", "memory-backend-ram,id=m,size=1G",
            "-object", json.dumps({"qom-type": "iothread", "id": "io2"}), "--object", "iothread,poll-max-ns=0,id=a,,b",
            "-object", '{"qom-type":"iothread"', "-object", '{"qom-type":"iothread","id":3}', "-object", "iothread"]
    assert iothread_ids(argv) == ("io1", "io2", "a,b")


@pytest.mark.parametrize(("line", "paths"), [
    ("-qmp unix:/run/x/extra.sock,server=on,wait=off", ("/run/x/extra.sock",)),
    ("-qmp unix:/run/x/a,,b,server,nowait", ("/run/x/a,b",)),
    ("-qmp-pretty unix:rel.sock,server=on", ("rel.sock",)),
    ("-qmp unix:path=/x,server=on", ("/x",)),
    ("-chardev socket,id=c,path=/x,server=on,wait=off -mon chardev=c,mode=control", ("/x",)),
    ("-mon c,mode=control,pretty=on -chardev socket,path=/x,server=on,id=c", ("/x",)),
    ("-qmp unix:/x,server=on -qmp unix:/x,server=on -qmp unix:/y,server=on", ("/x", "/y")),
    # Kata's own connection
    ("-qmp unix:fd=3,server=on,wait=off", ()),
    ("-chardev socket,id=c,fd=4,server=on -mon chardev=c,mode=control", ()),
    ("-qmp unix:/run/vc/vm/a1/qmp.sock,server=on,wait=off", ()),
    ("-qmp unix:/run/vc/vm/a1/qmp.socket,server,nowait", ()),
    ("-qmp unix:/run/vc/vm/a1/extra-monitor.sock,server=on,wait=off", ("/run/vc/vm/a1/extra-monitor.sock",)),
    # no QMP, not a unix socket, or QEMU is the client
    ("-monitor unix:/x,server=on", ()),
    ("-chardev socket,id=c,path=/x,server=on -mon chardev=c,mode=readline", ()),
    ("-chardev socket,id=c,host=127.0.0.1,port=4444,server=on -mon chardev=c,mode=control", ()),
    ("-qmp tcp:localhost:4444,server=on", ()),
    ("-qmp stdio -mon chardev=absent,mode=control", ()),
    ("-qmp unix:/x", ()),
    ("-qmp unix:/x,server=off", ()),
    ("-chardev socket,id=c,path=x,abstract=on,server=on -mon chardev=c,mode=control", ()),
    ("-qmp", ()),
])
def test_qmp_sockets_are_those_another_client_may_use(line: str, paths: tuple[str, ...]) -> None:
    assert qmp_sockets([X86, *line.split()]) == paths


def test_few_command_lines_of_former_vms_are_kept() -> None:
    for number in range(200):
        argv = ("qemu-system-x86_64", "-name", f"sandbox-{number}", "-smp", "2")
        qemu.QEMU.start(argv)
        qemu.QEMU.guest_vcpus(argv, [VcpuId(0)])
    assert {cache.cache_info().currsize for cache in (qemu._start, qemu._cpu_options)} == {qemu.COMMAND_LINES}
