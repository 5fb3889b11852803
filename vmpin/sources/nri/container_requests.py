"""NRI's messages as the allocator takes them, and its answers as NRI's messages.

Sources: containerd/nri pkg/api/api.proto; pkg/adaptation/result.go (an empty CPU list means no change).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.domain.model import ContainerId, ContainerState
from vmpin.domain.runtime_call import Adjustment, RequestedContainer, SideUpdate, VmSize
from vmpin.sources.nri.container_devices import DeviceNode, container_devices
from vmpin.sources.nri.nri_events import NriContainer, NriPod
from vmpin.wire import nri_enums
from vmpin.wire.nri_messages import MESSAGES

_STATES = {nri_enums.CREATED: ContainerState.CREATED, nri_enums.STOPPED: ContainerState.STOPPED}


def requested(container: NriContainer, message: Any, pod: NriPod | None, vm: VmSize,
              resources: Any = None) -> RequestedContainer:
    """Return the request for CPUs in a container of NRI's messages.
    :param message: NRI's Container. :param vm: as `CpuDecisions.vcpus_of` returns.
    :param resources: those of an update, LinuxResources, in place of the container's own."""
    cpu = (message.linux.resources if resources is None else resources).cpu
    found = RequestedContainer(
        container.id, container.pod, container.name, annotations=container.annotations, shares=_value(cpu, "shares"),
        quota=_value(cpu, "quota"), period=_value(cpu, "period"), cpuset=cpu_list(cpu.cpus), mems=cpu_list(cpu.mems),
        devices=container_devices(map(_device, message.linux.devices), (_text(entry) for entry in message.env)),
        vm=vm.vm, vm_vcpus=vm.vcpus, vm_most=vm.most, vm_part=vm.part,
        state=_STATES.get(container.state, ContainerState.RUNNING), time_ns=time.time_ns())
    if pod is None:
        return found
    return found._replace(namespace=pod.namespace, pod=pod.name, pod_uid=pod.uid, pod_annotations=pod.annotations,
                          vm_overhead=pod.overhead,
                          guaranteed=not any(qos in pod.cgroup_parent for qos in ("burstable", "besteffort")))


def _device(message: Any) -> DeviceNode:
    return DeviceNode(_text(message.path), _text(message.type), message.major, message.minor)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _value(cpu: Any, name: str) -> int | None:
    """CRI's 0 means that it is not set."""
    return int(getattr(cpu, name).value) or None if cpu.HasField(name) else None


def whole_cpus(resources: Any) -> int:
    """The whole CPUs of a LinuxResources: of its quota, else of its shares."""
    quota, period = _value(resources.cpu, "quota") or 0, _value(resources.cpu, "period") or 0
    if quota > 0 and period:
        return quota // period
    return (_value(resources.cpu, "shares") or 0) // 1024


def cpu_list(text: str) -> CpuSet | None:
    """None for no CPU, and for what is no list: the session counts that."""
    try:
        return CpuSet.parse(text) or None
    except CpuSetError:
        return None


def adjustment_of(made: Adjustment) -> Any:
    """NRI's ContainerAdjustment."""
    message = MESSAGES["ContainerAdjustment"](
        annotations=dict(made.annotations), env=[{"key": key, "value": value} for key, value in made.env.items()])
    if made.cpus:
        message.linux.resources.cpu.cpus = str(made.cpus)
    if made.mems:
        message.linux.resources.cpu.mems = str(made.mems)
    return message


def updates_of(updates: Iterable[SideUpdate]) -> list[Any]:
    """NRI's ContainerUpdates. CRI-O fails the whole call for one update that fails, unless that may be ignored
    (internal/nri/nri.go); containerd logs it only."""
    found = []
    for container, cpus in updates:
        if not cpus:
            continue  # it would mean no change, where some other CPUs are meant
        made = MESSAGES["ContainerUpdate"](container_id=container, ignore_failure=True)
        made.linux.resources.cpu.cpus = str(cpus)
        found.append(made)
    return found


def given(updates: Iterable[SideUpdate]) -> dict[ContainerId, CpuSet]:
    """The CPUs by container."""
    return {container: cpus for container, cpus in updates if cpus}
