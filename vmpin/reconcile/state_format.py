"""The format of the state file: JSON with one entry per sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from operator import is_
from types import MappingProxyType
from typing import Any

from vmpin.bounded import MAX_INT64, MAX_PID, checked_whole
from vmpin.cpuset import MAX_CPU, CpuSet
from vmpin.domain.desired_state import ContainerRecord, CpusetReport, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId, ThreadId, VcpuId, VcpuThreads
from vmpin.domain.sandbox_placement import Previous
from vmpin.host import boottime
from vmpin.named_tuple import NamedTuple
from vmpin.pinning.original_masks import OriginalMasks, ProcessMasks

VERSION = 3


class SavedState(NamedTuple):
    """What is kept over a restart, by sandbox."""

    state: DesiredState = DesiredState()
    previous: Mapping[SandboxId, Previous] = MappingProxyType({})
    originals: Mapping[SandboxId, OriginalMasks] = MappingProxyType({})
    vcpus: Mapping[SandboxId, VcpuThreads] = MappingProxyType({})
    #: The kubelet's last good static checkpoint, in case its file is gone; None without one.
    kubelet: CpuManagerState | None = None


#: The saved state of one sandbox.
Parts = tuple[SandboxState | None, Previous | None, OriginalMasks | None, VcpuThreads | None]
#: The parts of each sandbox that were written last, and their text.
Written = dict[SandboxId, tuple[Parts, str]]


def text_of(boot_id: str, kept: SavedState, written: Written) -> str:
    """The text of a file, the same that json.dumps would produce, as the checksum depends on it. Parts that have not
    changed since `written` are not encoded again."""
    names = dict.fromkeys([*kept.state.sandboxes, *kept.previous, *kept.originals, *kept.vcpus])
    for gone in written.keys() - names.keys():
        del written[gone]
    texts = []
    states, previous = kept.state.sandboxes.get, kept.previous.get
    originals, vcpus = kept.originals.get, kept.vcpus.get
    for name in names:
        parts = states(name), previous(name), originals(name), vcpus(name)
        last = written.get(name)
        if last is None or not all(map(is_, last[0], parts)):
            last = written[name] = parts, f"{json.dumps(name)}:{dumps(_pack(parts))}"
        texts.append(last[1])
    kubelet = "" if kept.kubelet is None else f',"kubelet":{dumps(_pack_kubelet(kept.kubelet))}'
    head = f'"version":{VERSION},"boot_id":{json.dumps(boot_id)}{kubelet}'
    return f'{{{head},"sandboxes":{{{",".join(texts)}}}}}'


#: Encodes a named tuple as a list, and a CPU set as its text. json.dumps would create an encoder at each call.
dumps = json.JSONEncoder(separators=(",", ":"), default=CpuSet.__str__).encode


def _pack(parts: Parts) -> dict[str, object]:
    state, previous, originals, vcpus = parts
    packed: dict[str, object] = {}
    if state is not None:
        packed["state"] = {
            "runtime": state.runtime, "handler": state.handler, "pod": state.pod, "pod_by_nri": state.pod_by_nri,
            "suspended": state.suspended, "vmm": state.vmm,
            "containers": [_pack_record(record, record.container) for record in state.containers.values()]}
    if previous is not None:
        packed |= {"mask": previous.mask, "vcpus": [[vcpu, *place] for vcpu, place in previous.vcpus.items()],
                   "pairs": list(previous.pairs.items())}
    if originals is not None:
        packed["originals"] = [[*main, masks.main, [[*thread, cpus] for thread, cpus in masks.others.items()]]
                               for main, masks in originals.processes.items()]
    if vcpus is not None:
        packed["vcpu_threads"] = [vcpus.vmm, vcpus.found_by, sorted(vcpus.gone),
                                  [[*thread, vcpu] for thread, vcpu in vcpus.threads.items()]]
    return packed


def _pack_record(record: ContainerRecord, container: Container) -> dict[str, object]:
    # A report: source, CPUs, time, and the CPUs that it replaced, if any.
    pending = {"pending": [record.requested, container.creating, container.requested_cpuset]} if record.pending else {}
    return {"id": container.id, "name": container.name,
            "reports": [[source, *(report if report.replaced else report[:2])]
                        for source, report in record.reports.items()],
            "exclusive": container.exclusive, "state": container.state, "pause": container.pause,
            "source": record.source, "time": record.time, "bundle": record.bundle, "init": record.init,
            **pending}


def _unpack_report(moment: Callable[[int], int], cpus: str, since: int, replaced: Iterable[str] = ()) -> CpusetReport:
    return CpusetReport(CpuSet.parse(cpus), moment(_time(since)), tuple(map(CpuSet.parse, replaced)))


def _thread(tid: object, start: object) -> ThreadId:
    return ThreadId(checked_whole(tid, MAX_PID + 1), checked_whole(start, MAX_INT64))


def _time(value: object) -> int:
    """Nanoseconds of a clock; negative for a time before the clock began."""
    return checked_whole(value, MAX_INT64, -MAX_INT64)


def _vcpu(value: object) -> VcpuId:
    return VcpuId(checked_whole(value, MAX_CPU))


def unpack(body: dict[str, Any], moment: Callable[[int], int]) -> SavedState:
    """Decode a saved state. :param moment: limits a time in the file (CLOCK_BOOTTIME, ns) to what it can be."""
    states, previous, originals, vcpus = {}, {}, {}, {}
    for name, entry in body["sandboxes"].items():
        sandbox = SandboxId(name)
        if "state" in entry:
            states[sandbox] = _unpack_state(sandbox, entry["state"], moment)
        if "mask" in entry:
            places = {_vcpu(vcpu): (None if cpus is None else CpuSet.parse(cpus),
                                    None if container is None else ContainerId(container))
                      for vcpu, cpus, container in entry["vcpus"]}
            pairs = {_vcpu(vcpu): checked_whole(cpu, MAX_CPU) for vcpu, cpu in entry["pairs"]}
            previous[sandbox] = Previous(CpuSet.parse(entry["mask"] or ""), places, pairs)
        if "originals" in entry:
            originals[sandbox] = OriginalMasks({
                _thread(tid, start): ProcessMasks(CpuSet.parse(main), {
                    _thread(other, since): CpuSet.parse(cpus) for other, since, cpus in others})
                for tid, start, main, others in entry["originals"]})
        if "vcpu_threads" in entry:
            vmm, found_by, gone, threads = entry["vcpu_threads"]
            by_thread = {_thread(tid, start): _vcpu(vcpu) for tid, start, vcpu in threads}
            vcpus[sandbox] = VcpuThreads(_thread(*vmm), by_thread, frozenset(map(_vcpu, gone)), found_by)
    kubelet = body.get("kubelet")
    return SavedState(DesiredState(states), previous, originals, vcpus,
                      None if kubelet is None else _unpack_kubelet(kubelet))


def _pack_kubelet(kubelet: CpuManagerState) -> dict[str, object]:
    return {"policy": kubelet.policy, "default": kubelet.default, "version": kubelet.version,
            "written": kubelet.written, "pods": dict(kubelet.pods),
            "entries": [[*key, cpus, kubelet.since.get(key, 0)] for key, cpus in kubelet.entries.items()],
            **({"reserved": [*kubelet.reserved]} if kubelet.reserved else {})}


def _unpack_kubelet(packed: dict[str, Any]) -> CpuManagerState:
    return CpuManagerState(
        str(packed["policy"]), CpuSet.parse(packed["default"]),
        {(str(uid), str(name)): CpuSet.parse(cpus) for uid, name, cpus, _ in packed["entries"]},
        {uid: CpuSet.parse(cpus) for uid, cpus in packed["pods"].items()},
        checked_whole(packed["version"], MAX_INT64),
        since={(str(uid), str(name)): min(_time(since), boottime.now()) for uid, name, _, since in packed["entries"]},
        written=_time(packed["written"]), reserved=frozenset(map(CpuSet.parse, packed.get("reserved", ()))))


def _unpack_state(sandbox: SandboxId, entry: dict[str, Any], moment: Callable[[int], int]) -> SandboxState:
    containers = {}
    for item in entry["containers"]:
        reports = {Source(source): _unpack_report(moment, *report) for source, *report in item["reports"]}
        source = Source(item["source"])
        requested, creating, wanted = item.get("pending", (False, False, None))
        container = Container(ContainerId(item["id"]), item["name"], reports[source].cpuset if reports else None,
                              item["exclusive"], ContainerState(item["state"]), item["pause"],
                              creating=creating is True,
                              requested_cpuset=None if wanted is None else CpuSet.parse(wanted))
        containers[container.id] = ContainerRecord(
            container, source, moment(_time(item["time"])), item["bundle"], item["init"] and _thread(*item["init"]),
            reports, requested is True)
    return SandboxState(sandbox, entry["runtime"], entry["pod"] and Pod(*entry["pod"]), containers, entry["suspended"],
                        entry["vmm"] and _thread(*entry["vmm"]), entry["handler"], entry["pod_by_nri"] is True)
