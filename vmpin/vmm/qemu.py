"""QEMU by its command line: the guest's CPU topology, declared iothreads, QMP sockets, the ways into the guest.

Pure (qmp queries it over QMP). What cannot be parsed is left out, never guessed, because a process can have any
command line. The command line may also be out of date: QEMU can be reconfigured over QMP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from vmpin.bounded import parse_whole
from vmpin.cpuset import EMPTY, CpuSet, CpuSetError
from vmpin.domain.model import SandboxId, Vcpu, VcpuId
from vmpin.named_tuple import NamedTuple
from vmpin.vmm.arguments import (
    ON,
    chardev_sockets,
    keyvals,
    option_pairs,
    option_values,
    options_of,
    sandbox_id,
    vsock_cid,
)
from vmpin.vmm.vmm_type import MAX_VCPUS, GuestChannels, VmmType, VmStart, host_machine

#: QEMU's limit on NUMA nodes (include/system/numa.h, MAX_NODES).
_MAX_NODES = 128
_NODES = CpuSet(range(_MAX_NODES))
#: The most command lines of which something is cached, also of ended VMs: each has some 8 kB. A VM's threads are
#: identified several times soon after its start.
COMMAND_LINES = 64
_PROGRAM = r"qemu-(?:.+-)?system-((?:x86_64|i386)(?![^-_.])|aarch64|)"
_X86 = frozenset(("x86_64", "i386"))
_KATAS_OWN = r"/run/(?:vc/vm|kata)/[^/]+/qmp\.sock(?:et)?$"
_VSOCK = r"vhost-vsock-(?:pci|ccw|device)(?:-(?:non-)?transitional)?"
_VHOST_USER_VSOCK = r"vhost-user-vsock-(?:pci|device)(?:-(?:non-)?transitional)?"
#: The properties by which `-numa cpu` names slots (qapi/machine.json: CpuInstanceProperties), the smallest first.
_LEVELS = ("thread-id", "core-id", "module-id", "cluster-id", "die-id", "socket-id")


class Smp(NamedTuple):
    """`-smp`, with omitted values computed as QEMU does since 6.2 (hw/core/machine-smp.c). `sockets` are those of all
    drawers and books (s390x)."""

    cpus: int = 1
    maxcpus: int = 1
    sockets: int = 1
    dies: int = 1
    clusters: int = 1
    modules: int = 1
    cores: int = 1
    threads: int = 1

    def apic_id(self, cpu: VcpuId) -> int:
        """The x86 APIC id of a cpu-index, which is KVM's vcpu id and what the guest's /proc/cpuinfo shows. Each level
        takes a whole number of bits (include/hw/i386/topology.h), so with 3 cores per socket the first CPU of the
        second socket is 4."""
        apic, shift = 0, 0
        rest: int = cpu
        for count in (self.threads, self.cores, self.modules, self.dies):
            rest, place = divmod(rest, count)
            apic |= place << shift
            shift += (count - 1).bit_length()
        return apic | rest << shift

    def place(self, cpu: VcpuId) -> dict[str, int]:
        """The numbers of a cpu-index by which `-numa cpu` names its slot, each within the level above."""
        counts = self.threads, self.cores, self.modules, self.clusters, self.dies
        rest: int = cpu
        place = {}
        for level, count in zip(_LEVELS, counts, strict=False):
            rest, place[level] = divmod(rest, count)
        return place | {_LEVELS[-1]: rest}

    def cpu_of(self, apic: int) -> VcpuId | None:
        """The cpu-index of an APIC id; None if no CPU slot of this machine has it."""
        cpu, below, rest = 0, 1, apic
        for count in (self.threads, self.cores, self.modules, self.dies):
            width = (count - 1).bit_length()
            place, rest = rest & (1 << width) - 1, rest >> width
            if place >= count:
                return None
            cpu, below = cpu + place * below, below * count
        cpu += rest * below
        return VcpuId(cpu) if cpu < self.maxcpus else None


def parse_smp(argv: Sequence[str]) -> Smp:
    """The CPU topology of the command line; one CPU if it has none or an invalid one."""
    return _parse_smp(tuple(option_values(argv, "smp")))


@lru_cache(maxsize=256)
def _parse_smp(values: tuple[str, ...]) -> Smp:
    """Parse the values after -smp. Cached: it is called often, and a node's VMs have few different values."""
    counts: dict[str, int] = {}
    for value in values:
        for key, number in keyvals(value, "cpus"):
            if (count := parse_whole(number, MAX_VCPUS, 1)) is not None:
                counts[key] = count
    dies, clusters, modules, books, drawers = (
        counts.get(key, 1) for key in ("dies", "clusters", "modules", "books", "drawers"))
    cpus, maxcpus, sockets, cores, threads = (
        counts.get(key, 0) for key in ("cpus", "maxcpus", "sockets", "cores", "threads"))
    fixed = drawers * books * dies * clusters * modules
    if not cpus and not maxcpus:
        sockets, cores, threads = sockets or 1, cores or 1, threads or 1
    else:
        maxcpus = maxcpus or cpus
        if not cores:
            sockets, threads = sockets or 1, threads or 1
            cores = maxcpus // (sockets * fixed * threads)
        elif not sockets:
            threads = threads or 1
            sockets = maxcpus // (fixed * cores * threads)
        threads = threads or maxcpus // (sockets * fixed * cores) if sockets and cores else threads
    total = sockets * fixed * cores * threads
    maxcpus = maxcpus or total
    if not 0 < total == maxcpus <= MAX_VCPUS:
        most = min(max(cpus, maxcpus, 1), MAX_VCPUS)  # a product may exceed the limit of its factors
        return Smp(cpus or 1, most, sockets=most)
    return Smp(cpus or maxcpus, maxcpus, drawers * books * sockets, dies, clusters, modules, cores, threads)


def cpu_index(argv: Sequence[str], kvm_ids: Iterable[int]) -> dict[int, VcpuId]:
    """Convert KVM's vcpu ids to cpu-indices: on x86 they are APIC ids, elsewhere equal to the index. Ids that no CPU
    slot of this machine has are left out."""
    smp = parse_smp(argv)
    last = VcpuId(smp.maxcpus - 1)
    if architecture(argv) not in _X86 or smp.maxcpus == smp.sockets or smp.apic_id(last) == last:
        return {number: VcpuId(number) for number in kvm_ids}
    indices = {number: smp.cpu_of(number) for number in kvm_ids}
    return {number: index for number, index in indices.items() if index is not None}


def kvm_ids(argv: Sequence[str], indices: Iterable[VcpuId]) -> dict[VcpuId, int]:
    """Convert cpu-indices to KVM's vcpu ids."""
    smp, x86 = parse_smp(argv), architecture(argv) in _X86
    return {index: smp.apic_id(index) if x86 else index for index in indices}


def architecture(argv: Sequence[str]) -> str:
    """The guest's architecture by the name of QEMU's program, "" for an unknown one. For a name without an
    architecture (qemu-kvm) it is the host's."""
    named = re.match(_PROGRAM, argv[0].rpartition("/")[2] if argv else "")
    if named is not None:
        return named[1]
    return host_machine(argv)


def guest_vcpus(argv: Sequence[str], ids: Iterable[VcpuId]) -> tuple[Vcpu, ...]:
    """The given vCPUs with the guest's core (where a core has siblings), its node (where -numa lists CPUs), and the
    host nodes to which the memory of that node, or of the whole guest, is bound."""
    return _guest_vcpus(*_cpu_options(tuple(argv)), tuple(sorted(ids)))


@lru_cache(maxsize=COMMAND_LINES)
def _cpu_options(argv: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The values of -smp and -numa, of memory backends and of a machine with one. Cached for the vCPUs that are
    plugged in one by one."""
    return (tuple(option_values(argv, "smp")), tuple(option_values(argv, "numa")),
            tuple(value for value in option_values(argv, "object") if "memory-backend-" in value),
            tuple(value for value in option_values(argv, "machine", "M") if "memory-backend" in value))


@lru_cache(maxsize=256)
def _guest_vcpus(smp: tuple[str, ...], numa: tuple[str, ...], backends: tuple[str, ...], machine: tuple[str, ...],
                 ids: tuple[VcpuId, ...]) -> tuple[Vcpu, ...]:
    """Compute `guest_vcpus` from the values of options. Cached: a node's VMs have few different ones."""
    topology = _parse_smp(smp)
    threads, memory = topology.threads, _memory_nodes(numa, backends, machine)
    node_of = _parse_numa(numa).nodes_of(ids, topology)
    return tuple(Vcpu(vcpu, vcpu // threads if threads > 1 else None, node_of.get(vcpu),
                      memory.get(node_of.get(vcpu), frozenset())) for vcpu in ids)


@lru_cache(maxsize=256)
def _memory_nodes(numa: tuple[str, ...], backends: tuple[str, ...], machine: tuple[str, ...]) -> Mapping[
        int | None, frozenset[int]]:
    """The host nodes to which guest nodes' memory is bound, by `host-nodes=` of their memory backends; by None for a
    guest without nodes (-machine memory-backend=). Invalid options are left out."""
    bound: dict[str, frozenset[int]] = {}
    for value in backends:
        pairs = option_pairs(value, "qom-type")
        options = dict(pairs)
        # The policy is `default` without host-nodes; with it QEMU wants bind, preferred or interleave.
        if options.get("qom-type", "").startswith("memory-backend-") and options.get("policy") != "default":
            # QEMU refuses a host node from MAX_NODES on (backends/hostmem.c).
            bound[options.get("id", "")] = frozenset(_numbers(pairs, "host-nodes") & _NODES)
    nodes: dict[int | None, frozenset[int]] = {
        number: bound.get(dict(pairs).get("memdev", ""), frozenset()) for number, pairs in _numa_nodes(numa)}
    if not nodes:
        for value in machine:
            nodes[None] = bound.get(dict(keyvals(value, "type")).get("memory-backend", ""), frozenset())
    return nodes


class _NumaCpus(NamedTuple):
    """The guest's NUMA nodes with their CPUs; of several options for a CPU the first counts, `cpus=` before places."""

    listed: Sequence[tuple[int, CpuSet]]  #: Nodes with their cpu-indices.
    #: By the levels that an option gives: numbers at these levels → the option's place among all, and its node.
    placed: Mapping[tuple[str, ...], Mapping[tuple[int, ...], tuple[int, int]]]

    def nodes_of(self, ids: Sequence[VcpuId], smp: Smp) -> dict[VcpuId, int]:
        """The node of each CPU that has one. A CPU takes a look-up for each combination of levels, however many
        options there are: large guests have an option for each CPU."""
        if len(self.listed) == 1 and not self.listed[0][1] and not self.placed:  # a single node has all CPUs
            return dict.fromkeys(ids, self.listed[0][0])
        nodes: dict[VcpuId, int] = {}
        left = CpuSet(cpu for cpu in ids if cpu < MAX_VCPUS)
        for node, cpus in self.listed:
            nodes |= {VcpuId(cpu): node for cpu in cpus & left}
            left -= cpus
        for cpu in left if self.placed else ():
            place = smp.place(VcpuId(cpu))
            options = [option for levels, places in self.placed.items()
                       if (option := places.get(tuple(place[level] for level in levels))) is not None]
            if options:
                nodes[VcpuId(cpu)] = min(options)[1]
        return nodes


@lru_cache(maxsize=256)
def _parse_numa(numa: tuple[str, ...]) -> _NumaCpus:
    """Parse `-numa node,cpus=` and `-numa cpu,node-id=` options, plain or JSON; invalid ones are left out. Cached for
    the vCPUs that are plugged in one by one."""
    placed: dict[tuple[str, ...], dict[tuple[int, ...], tuple[int, int]]] = {}
    for order, value in enumerate(numa):
        pairs = option_pairs(value, "type")
        options = dict(pairs)
        if options.get("type") == "cpu":
            node = parse_whole(options.get("node-id", ""), _MAX_NODES - 1)
            places = {key: parse_whole(text, MAX_VCPUS) for key, text in pairs if key not in ("type", "node-id")}
            numbers = {level: place for level in _LEVELS if (place := places.get(level)) is not None}
            if node is not None and len(numbers) == len(places):
                placed.setdefault(tuple(numbers), {}).setdefault(tuple(numbers.values()), (order, node))
    return _NumaCpus([(node, _numbers(pairs, "cpus")) for node, pairs in _numa_nodes(numa)], placed)


def _numa_nodes(numa: tuple[str, ...]) -> list[tuple[int, list[tuple[str, str]]]]:
    """The guest's nodes by `-numa node`, with their options. Without nodeid= they are numbered in order."""
    nodes = [pairs for pairs in (option_pairs(value, "type") for value in numa) if ("type", "node") in pairs]
    numbers = [parse_whole(dict(pairs).get("nodeid", str(place)), _MAX_NODES - 1) for place, pairs in enumerate(nodes)]
    return [(number, pairs) for number, pairs in zip(numbers, nodes, strict=True) if number is not None]


def _numbers(pairs: Iterable[tuple[str, str]], wanted: str) -> CpuSet:
    """The numbers that the options of this key list; invalid lists are left out."""
    numbers = EMPTY
    for key, listed in pairs:
        if key == wanted:
            try:
                numbers |= CpuSet.parse(listed)
            except CpuSetError:
                continue
    return numbers


def _sandbox(argv: Sequence[str]) -> SandboxId | None:
    # By name only: a QEMU that is not Kata's may have a file below /run/kata among its arguments.
    name = ""
    for value in option_values(argv, "name"):
        name = dict(keyvals(value, "guest")).get("guest", name)
    return sandbox_id(name.removeprefix("sandbox-")) if name.startswith("sandbox-") else None


def _uuid(argv: Sequence[str]) -> str:
    uuids = option_values(argv, "uuid")
    return uuids[0] if len(uuids) == 1 else ""


@lru_cache(maxsize=COMMAND_LINES)
def _start(argv: tuple[str, ...]) -> VmStart:
    values, iothreads = tuple(option_values(argv, "smp")), iothread_ids(argv)
    smp = _parse_smp(values)
    return VmStart(smp.cpus, smp.maxcpus if values else 0, iothreads, bool(iothreads) and has_qmp(argv))


def iothread_ids(argv: Sequence[str]) -> tuple[str, ...]:
    """The ids of `-object iothread,id=…`, plain or JSON, in order."""
    objects = (options_of(value, "qom-type") for value in option_values(argv, "object"))
    # util/id.c, id_wellformed: an id begins with a letter.
    return tuple(properties["id"] for properties in objects
                 if properties.get("qom-type") == "iothread" and properties.get("id", "")[:1].isalpha())


def has_qmp(argv: Sequence[str]) -> bool:
    """Whether QEMU has a QMP monitor, including Kata's: then it has a thread for monitors."""
    return bool(option_values(argv, "qmp", "qmp-pretty")) or any(
        ("mode", "control") in keyvals(value, "chardev") for value in option_values(argv, "mon"))


def qmp_sockets(argv: Sequence[str]) -> tuple[str, ...]:
    """The paths of the QMP sockets on which QEMU listens, as written; relative paths start at QEMU's working
    directory. Kata's own sockets are left out: `unix:fd=N`, and `qmp.sock` in Kata's directory (older versions). QMP
    serves one client at a time, and Kata would lose its VM if it could not connect."""
    paths: list[str] = []
    for value in option_values(argv, "qmp", "qmp-pretty"):
        if value.startswith("unix:"):
            paths += _listening(dict(keyvals(value.removeprefix("unix:"), "path")))
    chardevs = chardev_sockets(argv)
    for value in option_values(argv, "mon"):
        monitor = dict(keyvals(value, "chardev"))
        if monitor.get("mode") == "control":
            paths += _listening(chardevs.get(monitor.get("chardev", ""), {}))
    return tuple(dict.fromkeys(paths))


def _listening(socket: dict[str, str]) -> list[str]:
    path = socket.get("path", "")
    if not path or "fd" in socket or socket.get("abstract") in ON or re.search(_KATAS_OWN, path):
        return []
    return [path] if socket.get("server") in ON else []


def guest_cid(argv: Sequence[str]) -> int | None:
    """The guest's vsock address, from `-device vhost-vsock-…,guest-cid=N`."""
    for device in _devices(argv):
        cid = vsock_cid(device.get("guest-cid", ""))
        if cid is not None and re.fullmatch(_VSOCK, device.get("driver", "")):
            return cid
    return None


def vhost_user_vsock(argv: Sequence[str]) -> str | None:
    """The socket between QEMU and its vhost-user vsock daemon. (The guest is reached over another socket of the
    daemon.)"""
    chardevs = chardev_sockets(argv)
    for device in _devices(argv):
        path = chardevs.get(device.get("chardev", ""), {}).get("path")
        if path and re.fullmatch(_VHOST_USER_VSOCK, device.get("driver", "")):
            return path
    return None


def serial_socket(argv: Sequence[str], name: str) -> str | None:
    """The Unix socket on which QEMU offers the virtio-serial port `name`."""
    chardevs = chardev_sockets(argv)
    for device in _devices(argv):
        if device.get("driver") == "virtserialport" and device.get("name") == name:
            options = chardevs.get(device.get("chardev", ""), {})
            if options.get("path") and options.get("server") in ON and "fd" not in options:
                return options["path"]
    return None


def _devices(argv: Sequence[str]) -> list[dict[str, str]]:
    return [options_of(value, "driver") for value in option_values(argv, "device")]


QEMU = VmmType(
    name="qemu",
    kata_name="qemu",
    # Names of QEMU builds: qemu-kiwi (RHEL), qemu-lite-, qemu-vanilla-, qemu-virtiofs-system-ARCH.
    program=r"qemu-(?:.+-)?system-.+|qemu-(?:kvm|kiwi)(?:[-_.].*)?|kvm(?:-spice)?",
    beginnings=("qemu-", "kvm"),
    # `mon_iothread` runs its own monitors. For libvirt, and here, iothreads are the declared ones.
    thread_names=r"CPU (?P<vcpu>[0-9]{1,5})/[A-Z]+$|IO (?P<monitor>mon_iothread)$|IO (?P<io>.+)",
    sandbox=_sandbox,
    sandbox_by_arguments=_sandbox,
    uuid=_uuid,
    start=_start,
    vcpus_of_kvm_ids=cpu_index,
    kvm_ids=kvm_ids,
    guest_vcpus=guest_vcpus,
    machine=architecture,
    qmp_sockets=qmp_sockets,
    channels=GuestChannels(cid=guest_cid, vsock_daemon=vhost_user_vsock, serial=serial_socket),
    mask_options=r"(?:cpu|node)-affinity=",  # since 7.2, for its memory's threads
)
