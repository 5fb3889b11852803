"""The state file: what cannot be read back from the machine, checksummed and replaced as a whole.

Carries the containers that only hooks told of, the masks from before vmpin, the previous one-to-one pairs, which
nameless thread is which vCPU, the kubelet's last good checkpoint, and which sandboxes the operator took out of
vmpin's hands. It lies in /run and speaks
of one boot. A bad one is set aside and everything is rebuilt from what runs. What stays out: when it is written.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.desired_state import ContainerRecord, CpusetReport, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId, ThreadId, VcpuId, VcpuThreads
from vmpin.errors import StateFileError
from vmpin.host import boottime
from vmpin.host.regular import open_regular, read_regular
from vmpin.pinning.original_masks import OriginalMasks, ProcessMasks
from vmpin.placement.vcpus import Previous

VERSION = 2
#: What times are of; a file that does not name it, of an older vmpin, has those of the wall clock.
CLOCK = "boottime"
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class SavedState:
    """What is carried over a restart."""

    state: DesiredState = field(default_factory=DesiredState)
    previous: Mapping[SandboxId, Previous] = field(default_factory=dict)
    before: Mapping[SandboxId, OriginalMasks] = field(default_factory=dict)
    vcpus: Mapping[SandboxId, VcpuThreads] = field(default_factory=dict)
    #: The kubelet's last good static checkpoint, should its file be gone; None for none (also in files of before).
    kubelet: CpuManagerState | None = None


#: What was written of a sandbox, and the text it became.
Written = dict[SandboxId, tuple[
    tuple[SandboxState | None, Previous | None, OriginalMasks | None, VcpuThreads | None], str]]


def save(path: Path, boot_id: str, kept: SavedState, written: Written | None = None) -> None:
    """Replace the file. :raises StateFileError: the old file is then still whole.

    :param written: handed in again the next time, so that only sandboxes that have changed are put into words again:
        for hundreds of them that takes eight milliseconds, in which no newborn thread is placed.
    """
    body = _text_of(boot_id, kept, {} if written is None else written)
    sealed = f'{{"crc32":{_digest(body)},"body":{body}}}\n'.encode()
    try:
        replace(path, sealed)
    except OSError as err:
        raise StateFileError(f"{path}: the state cannot be saved: {err.strerror}",
                             "free space or inodes there; until then a restart forgets what only hooks told "
                             "and the masks from before vmpin") from err


def note(path: Path, boot_id: str, sandbox: SandboxId, main: ThreadId, mask: CpuSet) -> None:
    """Append a process's mask from before to the notes, in a hundredth of the time that the whole file takes: it is to
    outlive this process, and the next whole file will hold it. :raises StateFileError:"""
    text = json.dumps([boot_id, sandbox, main.tid, main.starttime, str(mask)])
    left = f"\n{text}\n".encode()  # a line of its own, whatever a full disk left of the one before
    try:
        fd = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while left:  # a disk with little room takes a part, and says nothing
                left = left[os.write(fd, left):]
        finally:
            os.close(fd)
    except OSError as err:
        raise StateFileError(f"{path}: a mask from before cannot be noted: {err.strerror}",
                             "free space or inodes there") from err


def with_notes(path: Path, boot_id: str, kept: SavedState) -> SavedState:
    """With what the notes have that the file has not. A line that is none, as the last may be, is left out."""
    try:
        raw, _ = read_regular(path, MAX_BYTES)
    except OSError:
        return kept
    before = dict(kept.before)
    for line in raw.splitlines():
        try:
            boot, name, tid, starttime, mask = json.loads(line)
            if boot != boot_id or not all(isinstance(each, int) for each in (tid, starttime)):
                continue
            main, sandbox = ThreadId(tid, starttime), SandboxId(str(name))
            known = before.get(sandbox, OriginalMasks())
            cpus = CpuSet.parse(mask)
            if cpus and main not in known.processes:
                before[sandbox] = OriginalMasks({**known.processes, main: ProcessMasks(cpus)})
        except (ValueError, TypeError, RecursionError):
            continue
    return kept if before == kept.before else dataclasses.replace(kept, before=before)


def replace(path: Path, content: bytes) -> None:
    """Temporary file, fsync, rename. :raises OSError: the old file is then still whole, and nothing is left beside."""
    made = path.with_name(f".{path.name}.new")
    try:
        with suppress(FileNotFoundError):
            made.unlink()  # left by a kill, or put there
        fd = open_regular(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        os.rename(made, path)
    except OSError:
        with suppress(OSError):
            made.unlink()
        raise


def beside(path: Path) -> tuple[Path, Path]:
    """What may lie beside a file that was kept here: one that was never finished, and one that was set aside."""
    return path.with_name(f".{path.name}.new"), path.with_name(f"{path.name}.bad")


def load(path: Path, boot_id: str, set_aside: bool = True) -> tuple[SavedState, str]:
    """Read the file. :returns: what it holds, and what was wrong with it ("" if nothing): a file that cannot be
    believed counts as empty, as does one from another boot.

    :param set_aside: whether to rename such a file to `NAME.bad`; only for who holds the lock.
    """
    try:
        raw, _ = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        return SavedState(), ""
    except OSError as err:
        return SavedState(), f"{path}: cannot be read: {err.strerror}"
    try:
        sealed = json.loads(raw)
        body = sealed["body"]
        if sealed["crc32"] != _digest(_dumps(body)):
            raise ValueError("the checksum is wrong")
        if body["version"] != VERSION:
            raise ValueError(f"version {body['version']!r} is unknown")
        if body["boot_id"] != boot_id:
            return SavedState(), ""
        # A time that is yet to come is now, else no report would ever be later.
        now, ahead = boottime.now(), 0 if body.get("clock") == CLOCK else boottime.wall_offset()
        return _unpack(body, lambda kept: max(0, min(now, kept - ahead))), ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        if not set_aside:
            return SavedState(), f"{path}: {err}: its content is not used"
        aside = path.with_name(f"{path.name}.bad")
        try:
            os.replace(path, aside)
        except OSError:
            return SavedState(), f"{path}: {err}: its content is not used"
        return SavedState(), f"{path}: {err}: set aside as {aside.name}, the state is rebuilt from what runs"


def _digest(body: str) -> int:
    """Against torn and rotten files, not against people: the file is root's own."""
    return zlib.crc32(body.encode())


def _text(cpus: CpuSet | None) -> str | None:
    return None if cpus is None else str(cpus)


def _cpus(text: str | None) -> CpuSet | None:
    return None if text is None else CpuSet.parse(text)


def _text_of(boot_id: str, kept: SavedState, written: Written) -> str:
    """What json.dumps would make of all of it: the checksum is of that."""
    names = dict.fromkeys([*kept.state.sandboxes, *kept.previous, *kept.before, *kept.vcpus])
    for gone in written.keys() - names.keys():
        del written[gone]
    texts = []
    for name in names:
        parts = (kept.state.sandboxes.get(name), kept.previous.get(name), kept.before.get(name),
                 kept.vcpus.get(name))
        known = written.get(name)
        if known is None or any(one is not other for one, other in zip(known[0], parts, strict=True)):
            state, previous, before, vcpus = parts
            packed = {**_pack_state(state), **_pack_previous(previous), **_pack_before(before), **_pack_vcpus(vcpus)}
            known = written[name] = parts, f"{json.dumps(name)}:{_dumps(packed)}"
        texts.append(known[1])
    kubelet = "" if kept.kubelet is None else f',"kubelet":{_dumps(_pack_kubelet(kept.kubelet))}'
    head = f'"version":{VERSION},"boot_id":{json.dumps(boot_id)},"clock":"{CLOCK}"{kubelet}'
    return f'{{{head},"sandboxes":{{{",".join(texts)}}}}}'


def _dumps(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))


def _pack_state(state: SandboxState | None) -> dict[str, object]:
    if state is None:
        return {}
    pod = state.pod and [state.pod.namespace, state.pod.name, state.pod.uid]
    return {"state": {"runtime": state.runtime, "handler": state.handler, "pod": pod,
                      "pod_by_nri": state.pod_by_nri, "held": state.suspended,
                      "vmm": _pack_thread(state.vmm), "containers": [
        {"id": known.container.id, "name": known.container.name,
         "words": [_pack_word(source, word) for source, word in known.reports.items()],
         "exclusive": known.container.exclusive, "state": str(known.container.state), "pause": known.container.pause,
         "source": int(known.source), "time": known.time, "bundle": known.bundle,
         "init": _pack_thread(known.init)}
        for known in state.containers.values()]}}


def _pack_word(source: Source, word: CpusetReport) -> list[object]:
    packed = [int(source), str(word.cpuset), word.time]
    return [*packed, [str(cpuset) for cpuset in word.replaced]] if word.replaced else packed


def _unpack_word(moment: Callable[[int], int], cpus: str, since: int, replaced: Iterable[str] = ()) -> CpusetReport:
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


def _unpack(body: dict[str, Any], moment: Callable[[int], int]) -> SavedState:
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
        words = {Source(source): _unpack_word(moment, *word) for source, *word in item["words"]}
        source = Source(item["source"])
        container = Container(ContainerId(item["id"]), item["name"], words[source].cpuset if words else None,
                              item["exclusive"], ContainerState(item["state"]), item["pause"])
        containers[container.id] = ContainerRecord(container, source, moment(item["time"]), item["bundle"],
                                         item["init"] and ThreadId(*item["init"]), words)
    return SandboxState(sandbox, entry["runtime"], entry["pod"] and Pod(*entry["pod"]), containers, entry["held"],
                        entry["vmm"] and ThreadId(*entry["vmm"]), entry["handler"], entry.get("pod_by_nri") is True)
