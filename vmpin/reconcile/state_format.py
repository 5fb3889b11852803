"""The text of a state file: JSON, one entry a sandbox, and what it carries over a restart.

Pure but for the clock. The keys are those of 0.1.0 and stay (`words`: reports, `held`: suspended, `before`: original
masks). Used by state_file alone. What stays out: the file, its checksum, and one that is damaged (state_file).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.desired_state import ContainerRecord, CpusetReport, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId, ThreadId, VcpuId, VcpuThreads
from vmpin.host import boottime
from vmpin.pinning.original_masks import OriginalMasks, ProcessMasks
from vmpin.placement.vcpus import Previous

VERSION = 2
#: What times are of; a file that does not name it, of an older vmpin, has those of the wall clock.
CLOCK = "boottime"


class SavedState(NamedTuple):
    """What is carried over a restart, by sandbox."""

    state: DesiredState = DesiredState()
    previous: Mapping[SandboxId, Previous] = MappingProxyType({})
    originals: Mapping[SandboxId, OriginalMasks] = MappingProxyType({})
    vcpus: Mapping[SandboxId, VcpuThreads] = MappingProxyType({})
    #: The kubelet's last good static checkpoint, should its file be gone; None for none (also in files of before).
    kubelet: CpuManagerState | None = None


#: What was written of a sandbox, and the text it became.
Written = dict[SandboxId, tuple[
    tuple[SandboxState | None, Previous | None, OriginalMasks | None, VcpuThreads | None], str]]


def _text(cpus: CpuSet | None) -> str | None:
    return None if cpus is None else str(cpus)


def _cpus(text: str | None) -> CpuSet | None:
    return None if text is None else CpuSet.parse(text)


def text_of(boot_id: str, kept: SavedState, written: Written) -> str:
    """What json.dumps would make of all of it: the checksum is of that."""
    names = dict.fromkeys([*kept.state.sandboxes, *kept.previous, *kept.originals, *kept.vcpus])
    for gone in written.keys() - names.keys():
        del written[gone]
    texts = []
    for name in names:
        parts = (kept.state.sandboxes.get(name), kept.previous.get(name), kept.originals.get(name),
                 kept.vcpus.get(name))
        last = written.get(name)
        if last is None or any(one is not other for one, other in zip(last[0], parts, strict=True)):
            state, previous, before, vcpus = parts
            packed = {**_pack_state(state), **_pack_previous(previous), **_pack_before(before), **_pack_vcpus(vcpus)}
            last = written[name] = parts, f"{json.dumps(name)}:{dumps(packed)}"
        texts.append(last[1])
    kubelet = "" if kept.kubelet is None else f',"kubelet":{dumps(_pack_kubelet(kept.kubelet))}'
    head = f'"version":{VERSION},"boot_id":{json.dumps(boot_id)},"clock":"{CLOCK}"{kubelet}'
    return f'{{{head},"sandboxes":{{{",".join(texts)}}}}}'


def dumps(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))


def _pack_state(state: SandboxState | None) -> dict[str, object]:
    if state is None:
        return {}
    pod = state.pod and [state.pod.namespace, state.pod.name, state.pod.uid]
    return {"state": {"runtime": state.runtime, "handler": state.handler, "pod": pod,
                      "pod_by_nri": state.pod_by_nri, "held": state.suspended,
                      "vmm": _pack_thread(state.vmm), "containers": [
        {"id": record.container.id, "name": record.container.name,
         "words": [_pack_report(source, report) for source, report in record.reports.items()],
         "exclusive": record.container.exclusive, "state": str(record.container.state),
         "pause": record.container.pause,
         "source": int(record.source), "time": record.time, "bundle": record.bundle,
         "init": _pack_thread(record.init)}
        for record in state.containers.values()]}}


def _pack_report(source: Source, report: CpusetReport) -> list[object]:
    packed = [int(source), str(report.cpuset), report.time]
    return [*packed, [str(cpuset) for cpuset in report.replaced]] if report.replaced else packed


def _unpack_report(moment: Callable[[int], int], cpus: str, since: int, replaced: Iterable[str] = ()) -> CpusetReport:
    return CpusetReport(CpuSet.parse(cpus), moment(since), tuple(CpuSet.parse(each) for each in replaced))


def _pack_thread(thread: ThreadId | None) -> list[int] | None:
    return None if thread is None else [thread.tid, thread.starttime]


def _pack_previous(previous: Previous | None) -> dict[str, object]:
    if previous is None:
        return {}
    return {"mask": str(previous.mask),
            "vcpus": [[vcpu, _text(cpus), container] for vcpu, (cpus, container) in previous.vcpus.items()],
            "pairs": list(previous.pairs.items())}


def _pack_before(before: OriginalMasks | None) -> dict[str, object]:
    if before is None:
        return {}
    return {"before": [
        [main.tid, main.starttime, str(masks.main),
         [[thread.tid, thread.starttime, str(cpus)] for thread, cpus in masks.others.items()]]
        for main, masks in before.processes.items()]}


def _pack_vcpus(vcpus: VcpuThreads | None) -> dict[str, object]:
    if vcpus is None:
        return {}
    return {"threads": [_pack_thread(vcpus.vmm), vcpus.found_by, sorted(vcpus.gone),
                        [[thread.tid, thread.starttime, vcpu] for thread, vcpu in vcpus.threads.items()]]}


def unpack(body: dict[str, Any], moment: Callable[[int], int]) -> SavedState:
    """:param moment: what becomes of each time."""
    states, previous, before, vcpus = {}, {}, {}, {}
    for name, entry in body["sandboxes"].items():
        sandbox = SandboxId(name)
        if "state" in entry:
            states[sandbox] = _unpack_state(sandbox, entry["state"], moment)
        if "mask" in entry:
            previous[sandbox] = Previous(_cpus(entry["mask"]) or EMPTY, {
                VcpuId(vcpu): (_cpus(cpus), None if container is None else ContainerId(container))
                for vcpu, cpus, container in entry["vcpus"]},
                {VcpuId(vcpu): cpu for vcpu, cpu in entry.get("pairs", ())})
        if "before" in entry:
            before[sandbox] = OriginalMasks({
                ThreadId(tid, start): ProcessMasks(CpuSet.parse(main), {
                    ThreadId(other, since): CpuSet.parse(cpus) for other, since, cpus in others})
                for tid, start, main, others in entry["before"]})
        if "threads" in entry:
            vmm, found_by, gone, threads = entry["threads"]
            vcpus[sandbox] = VcpuThreads(ThreadId(*vmm), {ThreadId(tid, start): VcpuId(vcpu)
                                                          for tid, start, vcpu in threads},
                                         frozenset(VcpuId(vcpu) for vcpu in gone), found_by)
    kubelet = body.get("kubelet")
    return SavedState(DesiredState(states), previous, before, vcpus,
                      None if kubelet is None else _unpack_kubelet(kubelet))


def _pack_kubelet(kubelet: CpuManagerState) -> dict[str, object]:
    return {"policy": kubelet.policy, "default": str(kubelet.default), "version": kubelet.version,
            "written": kubelet.written, "pods": {uid: str(cpus) for uid, cpus in kubelet.pods.items()},
            "by_id": {container: str(cpus) for container, cpus in kubelet.by_id.items()},
            "entries": [[*key, str(cpus), kubelet.since.get(key, 0)]
                        for key, cpus in kubelet.entries.items()]}


def _unpack_kubelet(packed: dict[str, Any]) -> CpuManagerState:
    return CpuManagerState(
        str(packed["policy"]), CpuSet.parse(packed["default"]),
        {(str(uid), str(name)): CpuSet.parse(cpus) for uid, name, cpus, _ in packed["entries"]},
        {uid: CpuSet.parse(cpus) for uid, cpus in packed["pods"].items()},
        {container: CpuSet.parse(cpus) for container, cpus in packed["by_id"].items()}, int(packed["version"]),
        since={(str(uid), str(name)): min(int(since), boottime.now()) for uid, name, _, since in packed["entries"]},
        written=int(packed["written"]))


def _unpack_state(sandbox: SandboxId, entry: dict[str, Any], moment: Callable[[int], int]) -> SandboxState:
    containers = {}
    for item in entry["containers"]:
        reports = {Source(source): _unpack_report(moment, *report) for source, *report in item["words"]}
        source = Source(item["source"])
        container = Container(ContainerId(item["id"]), item["name"], reports[source].cpuset if reports else None,
                              item["exclusive"], ContainerState(item["state"]), item["pause"])
        containers[container.id] = ContainerRecord(container, source, moment(item["time"]), item["bundle"],
                                         item["init"] and ThreadId(*item["init"]), reports)
    return SandboxState(sandbox, entry["runtime"], entry["pod"] and Pod(*entry["pod"]), containers, entry["held"],
                        entry["vmm"] and ThreadId(*entry["vmm"]), entry["handler"], entry.get("pod_by_nri") is True)
