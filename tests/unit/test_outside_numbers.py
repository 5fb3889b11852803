"""Every kind of parser of numbers from outside, fed with absurd ones: what it makes of them is within bounds, and no
set, list or loop is as large as one of them. That no other place makes numbers of texts is in test_floors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pytest
from absurd_numbers import Parser, check_bound, reads
from identified_threads import identified, vcpus_of

from vmpin.bounded import load_json
from vmpin.cli import verbs
from vmpin.config import values
from vmpin.cpuset import MAX_CPU, CpuSet
from vmpin.domain.model import SandboxId, VcpuId
from vmpin.features.cluster.fleet.node_record import record_of_pinning
from vmpin.features.common.option_values import duration
from vmpin.features.proof.residency_ledger import _parsed
from vmpin.features.proof.verbs.run_times import percent
from vmpin.host.procfs import Procfs, Stat
from vmpin.protocol.frames import MAX_HW, ProtocolError, parse_ids
from vmpin.protocol.parsing import MAX_NUMBER, parse_answer
from vmpin.reconcile.state_format import unpack
from vmpin.runtime.kata import parse_go
from vmpin.runtime.kubelet import parse_checkpoint
from vmpin.runtime.oci import split_message
from vmpin.vmm import cloud_hypervisor, dragonball, firecracker, qemu
from vmpin.vmm.qemu import cpu_index, guest_vcpus, parse_smp
from vmpin.vmm.recognition import kernel_thread_owner
from vmpin.vmm.threads import read_name
from vmpin.vmm.vmm_type import MAX_VCPUS

QEMU = "qemu-system-x86_64"

def smp(text: str) -> Iterable[int]:
    return [number for key in ("cpus", "maxcpus", "sockets", "cores", "threads", "dies")
            for number in parse_smp([QEMU, "-smp", f"2,{key}={text}"])]


def numa(text: str) -> Iterable[int | None]:
    argv = [QEMU, "-smp", "4"]
    for option in (f"node,nodeid={text},cpus=0-3", f"node,cpus={text}", f"cpu,node-id={text}",
                   f"cpu,node-id=1,socket-id={text}", f'{{"type":"node","cpus":[{text}],"nodeid":{text}}}'):
        argv += ["-numa", option]
    argv += ["-object", f"memory-backend-ram,id=m,host-nodes={text}", "-numa", f"node,nodeid={text},memdev=m"]
    return [number for vcpu in guest_vcpus(argv, [VcpuId(number) for number in range(4)])
            for number in (vcpu.core, vcpu.node, *vcpu.memory)]


def by_names(text: str) -> Iterable[int]:
    argv = [QEMU, "-smp", f"cpus={text},maxcpus={text}"]
    found = identified(7, qemu.QEMU, argv, [(7, Stat(f"CPU {text}/KVM", "S", 1, 0, 1, 0))], Procfs("/nowhere"))
    return [*vcpus_of(found).values(), *cpu_index(argv, [0, 1]).values()]


def named(text: str) -> Iterable[int]:
    return [vcpu for vmm, name in (
        (qemu.QEMU, f"CPU {text}/KVM"), (cloud_hypervisor.CLOUD_HYPERVISOR, f"vcpu{text}"),
        (firecracker.FIRECRACKER, f"fc_vcpu {text}"), (dragonball.DRAGONBALL, f"db_vcpu{text}"))
            if (vcpu := read_name(vmm.thread_names, name)[2]) is not None]


def frame(text: str) -> Iterable[float]:
    pong = parse_answer(load_json(f'{{"v":1,"type":"pong","id":{text},"version":""}}'))
    return [number for number in pong if isinstance(number, int | float)]


def persist(text: str) -> Iterable[int]:
    return [parse_go(SandboxId("a"), f'{{"HypervisorState":{{"Pid":{text}}}}}'.encode(), 1).vmm_pid]


def checkpoint(text: str) -> Iterable[int]:
    found = parse_checkpoint(json.dumps({"policyName": "static", "defaultCpuSet": text,
                                         "entries": {"u": {"c": text}}, "checksum": 1}).encode())
    return [*found.default, *(cpu for cpus in found.entries.values() for cpu in cpus)]


def state(text: str) -> Iterable[int]:
    saved = unpack(load_json(f'{{"sandboxes":{{"a":{{"vcpu_threads":[[{text},{text}],"names",[{text}],'
                             f'[[{text},{text},{text}]]]}}}}}}'), lambda moment: moment)
    found = saved.vcpus[SandboxId("a")]
    return [*found.vmm, *found.gone, *(number for thread, vcpu in found.threads.items() for number in (*thread, vcpu))]


def record(text: str) -> Iterable[float]:
    found = record_of_pinning(load_json(
        f'{{"metadata":{{"name":"n"}},"status":{{"observedAt":"2026-11-26T00:00:00Z","ready":true,"refreshSeconds":{text},'
        f'"total":{text},"pinned":{text},"sandboxes":[],"topology":{{"nodes":{{"{text}":"0"}}}}}}}}'))
    return [found.refresh, found.total, found.pinned, *found.layout.nodes]


def books(text: str) -> Iterable[float]:
    found = _parsed(f'{{"watched":{text},"drift":{{"x":{text}}},"ended":[{text},{{}}],"sandboxes":{{}}}}')
    return [found.watched, *found.drift.values(), found.ended.unseen]


def hook(text: str) -> Iterable[int | None]:
    found = split_message(f"vmpin-hook/1 stage=createRuntime boot={text}\n{{}}".encode())
    return [found[1]]


def whole_of(value: object) -> Iterable[float | None]:
    return [value if isinstance(value, int | float) else None]


def flag(parse: Callable[[str], object]) -> Callable[[str], Iterable[float | None]]:
    return lambda text: whole_of(parse(text))


def both(parse: Callable[[object], object]) -> Callable[[str], Iterable[float | None]]:
    """A parser of the configuration, by the text and by the number that YAML may make of it."""
    def numbers(text: str) -> Iterable[float | None]:
        for value in (text, *((float(text),) if text in ("inf", "nan", "1e999", "1e308", "3.999") else ())):
            try:
                yield from whole_of(parse(value))
            except ValueError:
                continue
    return numbers


PARSERS = [
    Parser("-smp", smp, MAX_VCPUS), Parser("-numa", numa, MAX_VCPUS),
    Parser("threads of a QEMU", by_names, MAX_VCPUS),
    Parser("names of threads", named, MAX_VCPUS),
    Parser("-device vhost-vsock",
           lambda text: [qemu.guest_cid([QEMU, "-device", f"vhost-vsock-pci,guest-cid={text}"])], 0xFFFFFFFE),
    Parser("kernel threads", lambda text: [(kernel_thread_owner(f"vhost-{text}") or (None, None))[1]], 1 << 22),
    Parser("CPU lists", lambda text: [cpu for form in ("{}", "0-{}", "{}-{}", "0-7:1/{}")
                                      for cpu in _cpus(form.format(text, text))], MAX_CPU),
    Parser("hardware ids", lambda text: [number for form in ("{}", "0-{}") for number in _ids(form.format(text))],
           MAX_HW),
    Parser("guest's messages", frame, MAX_NUMBER), Parser("hook's header", hook, (1 << 64) - 1),
    Parser("persist.json", persist, 1 << 22), Parser("checkpoint", checkpoint, MAX_CPU),
    Parser("state file", state, (1 << 63) - 1), Parser("books of run times", books, (1 << 63) - 1),
    Parser("NodePinning", record, 1 << 32),
    Parser("configuration: seconds", both(values.seconds), 86400),
    Parser("configuration: count", both(values.count), 999999),
    Parser("configuration: port", both(values.port), 0xFFFFFFFE),
    Parser("--since", flag(duration), 7 * 86400), Parser("--tolerate", flag(percent), 100),
    Parser("--watch", flag(verbs.seconds_from(0.1)), 86400), Parser("--seconds", flag(verbs.seconds_from(0)), 86400),
]


def _cpus(text: str) -> Iterable[int]:
    try:
        return CpuSet.parse(text)
    except ValueError:
        return ()


def _ids(text: str) -> Iterable[int]:
    try:
        return parse_ids(text)
    except ProtocolError:
        return ()


@pytest.mark.parametrize("parser", PARSERS, ids=[parser.name for parser in PARSERS])
def test_an_absurd_number_is_refused_or_within_its_bound(parser: Parser) -> None:
    check_bound(parser)


def test_each_parser_reads_a_plain_number() -> None:
    """Else the table above would prove nothing."""
    for parser in PARSERS:
        assert reads(parser, "90s" if parser.name == "--since" else "5"), parser.name
