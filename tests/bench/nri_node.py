"""A node's pods and containers as containerd reports them over NRI, in messages as long as real ones are."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench_node import container_of

from vmpin.wire.nri_enums import CREATED, RUNNING, Verb
from vmpin.wire.nri_messages import MESSAGES
from vmpin.wire.protos import Messages

#: ttrpc's longest message, and what a request has around the list.
_MAX_MESSAGE = (4 << 20) - 100

#: With the fields that vmpin does not look at, which make up most of the bytes.
_LONG = Messages("bench", """
    StateChangeEvent   event=1:int32 pod=2:PodSandbox container=3:Container
    SynchronizeRequest pods=1:PodSandbox* containers=2:Container* more=3:bool
    PodSandbox         id=1 name=2 uid=3 namespace=4 labels=5:map annotations=6:map runtime_handler=7 \
                       linux=8:LinuxPodSandbox pid=9:uint32
    LinuxPodSandbox    cgroup_parent=3
    Container          id=1 pod_sandbox_id=2 name=3 state=4:int32 labels=5:map annotations=6:map args=7:string* \
                       env=8:string* mounts=9:Mount* linux=11:LinuxContainer pid=12:uint32
    Mount              destination=1 type=2 source=3 options=4:string*
    LinuxContainer     namespaces=1:LinuxNamespace* resources=3:LinuxResources cgroups_path=5
    LinuxNamespace     type=1 path=2
    LinuxResources     cpu=2:LinuxCPU
    LinuxCPU           cpus=6 mems=7
""")


def pod(sandbox: str, pid: int, messages: Messages = MESSAGES) -> Any:
    uid = f"{sandbox[-8:]}-9f0e-4a7c-9d7c-3a7f7d1e2b10"
    name = f"server-{sandbox[-5:]}"
    made = _LONG["PodSandbox"](id=sandbox, name=name, namespace="shop", uid=uid, pid=pid, labels={
        "app.kubernetes.io/name": "server", "app.kubernetes.io/instance": "shop", "pod-template-hash": sandbox[-10:],
        "io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "shop",
        "io.kubernetes.pod.uid": uid}, annotations={
        "kubernetes.io/config.seen": "2025-11-20T08:14:55.127405921Z", "kubernetes.io/config.source": "api",
        "prometheus.io/port": "9090", "prometheus.io/scrape": "true"})
    made.linux.cgroup_parent = f"/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice"
    return _as(messages, made)


def container(sandbox: str, identity: str, pid: int, cpu_list: str, messages: Messages = MESSAGES) -> Any:
    """Some 9 kB, if `messages` has fields for all of it."""
    uid = f"{sandbox[-8:]}-9f0e-4a7c-9d7c-3a7f7d1e2b10"
    made = _LONG["Container"](id=identity, pod_sandbox_id=sandbox, name="server", state=RUNNING, pid=pid, labels={
        "io.kubernetes.container.name": "server", "io.kubernetes.pod.name": f"server-{sandbox[-5:]}",
        "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.uid": uid}, annotations={
        "io.kubernetes.container.hash": sandbox[-8:], "io.kubernetes.container.restartCount": "0",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.terminationGracePeriod": "30", "io.kubernetes.cri.container-name": "server",
        "io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": sandbox,
        "io.kubernetes.cri.image-name": "registry.example.org/shop/server:1.18.2",
        "io.kubernetes.cri.sandbox-name": f"server-{sandbox[-5:]}", "io.kubernetes.cri.sandbox-namespace": "shop",
        "io.kubernetes.cri.sandbox-uid": uid})
    made.linux.resources.cpu.cpus = cpu_list
    if messages is _LONG:
        made.linux.cgroups_path = f"kubepods-pod{uid.replace('-', '_')}.slice:cri-containerd:{identity}"
        made.args.extend(["/server", "--config=/etc/server/config.yaml", "--listen=0.0.0.0:8080"])
        made.env.extend(f"SHOP_SERVICE_{number}_PORT_8080_TCP_ADDR=10.96.{number}.17" for number in range(80))
        for number in range(20):
            made.mounts.add(destination=f"/var/run/secrets/volume-{number}", type="bind",
                            source=f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~projected/volume-{number}",
                            options=["rbind", "rprivate", "rw"])
        for kind in ("pid", "ipc", "uts", "mount", "network", "cgroup"):
            made.linux.namespaces.add(type=kind, path=f"/proc/{pid}/ns/{kind}")
    return _as(messages, made)


def _as(messages: Messages, made: Any) -> Any:
    """The same bytes as a message of another table, which keeps the fields that it does not have."""
    return messages[made.DESCRIPTOR.name].FromString(made.SerializeToString())


def update(sandbox: str, pid: int, cpu_list: str) -> bytes:
    """The StateChange that reports a container's update, which has been done."""
    event = _LONG["StateChangeEvent"](event=Verb.POST_UPDATE, pod=pod(sandbox, pid, _LONG),
                                      container=container(sandbox, container_of(sandbox), pid, cpu_list, _LONG))
    return bytes(event.SerializeToString())


def creation(sandbox: str, identity: str, pid: int, cpu_list: str) -> dict[str, bytes]:
    """The calls (NRI 0.12's; older ones have the second as a StateChange) that report a container's creation."""
    made = container(sandbox, identity, 0, cpu_list)
    made.state = CREATED
    raw = bytes(MESSAGES["EventRequest"](pod=pod(sandbox, pid), container=made).SerializeToString())
    return {"CreateContainer": raw, "PostCreateContainer": raw}


def parts(pods: Sequence[tuple[str, int]], pool: str, last: str) -> list[bytes]:
    """A list of pods (id, pid) and two containers of each, the payloads of Synchronize as containerd cuts them: all at
    once, and when that is too long, as many as should fit, of both.

    :param pool: the CPUs of all containers but the last pod's, which have `last`.
    """
    listed = [pod(sandbox, pid, _LONG) for sandbox, pid in pods]
    containers = [container(sandbox, name, pid, last if sandbox == pods[-1][0] else pool, _LONG)
                  for sandbox, pid in pods for name in (f"{sandbox[::-1]}2", container_of(sandbox))]
    found: list[bytes] = []
    pods_each, containers_each = len(listed), len(containers)
    while listed or containers:
        more = len(listed) > pods_each or len(containers) > containers_each
        raw = _LONG["SynchronizeRequest"](pods=listed[:pods_each], containers=containers[:containers_each],
                                          more=more).SerializeToString()
        if len(raw) > _MAX_MESSAGE:
            factor = min(0.9, _MAX_MESSAGE / len(raw))
            pods_each, containers_each = int(pods_each * factor), int(containers_each * factor)
            continue
        found.append(raw)
        listed, containers = listed[pods_each:], containers[containers_each:]
    return found


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """The runtime's socket, for one plugin. A plugin has two minutes to connect, however busy the machine is."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        try:
            listener.listen(1)
            listener.settimeout(120.0)
            yield listener
        finally:
            path.unlink()
