"""A node for the tests of `vmpin top`: the status of three VMs and a pod of runc, and what ran in an interval."""

from __future__ import annotations

from typing import Any

from vmpin.features.isolation.top.node_description import NodeDescription, describe
from vmpin.features.isolation.top.pod_usage import NodeUsage, usage
from vmpin.features.isolation.top.thread_intervals import ProcessInterval, ThreadInterval, UsageInterval

MS = 1_000_000
SHOP, DB, BAD, RUNC = "a" * 64, "b" * 64, "c" * 64, "d" * 64
WEB, CACHE = "e" * 64, "f" * 64


def thread(tid: int, actual: str, vcpu: int | None = None, ok: bool = True) -> dict[str, Any]:
    return {"tid": tid, "role": "emulator" if vcpu is None else "vcpu", "vcpu": vcpu,
            "name": "qemu-system-x86" if vcpu is None else f"CPU {vcpu}/KVM", "wanted": actual if ok else "5",
            "actual": actual, "ok": ok, "cgroup": None}


def sandbox(id: str, name: str, pid: int, **more: object) -> dict[str, Any]:
    return {"id": id, "pod": {"namespace": "demo", "name": name, "uid": f"uid-{name}"}, "runtime": "kata-go",
            "vmm": {"type": "qemu", "pid": pid}, "mask": "0-1,5-6", "verdict": "pinned", "reasons": [], "drift": None,
            "found_by": "names", "guest": {"by": "vmpin-agent", "state": ""},
            "containers": [{"id": WEB if id == SHOP else f"{id[:8]}-c", "name": "web", "pause": False, "cpuset": "5-6",
                            "exclusive": True, "exclusive_by": "kubelet", "since": None, "source": "bundle",
                            "own_cpus": "5-6", "stale_cpuset": None, "shared_with": [], "vcpus": "1-2",
                            "disagreement": None,
                            "cpusets_by_source": {}, "kubelet": "5-6",
                            "guest": {"state": "applied", "error": "", "outside": []}}],
            "threads": [thread(pid, "0-1"), thread(pid + 1, "0-1", 0), thread(pid + 2, "5", 1),
                        thread(pid + 3, "6", 2)], **more}


def owner(id: str, container: str, cpus: str, kind: str = "vm", **more: object) -> dict[str, Any]:
    return {"sandbox": id, "container": container, "cpus": cpus, "kind": kind, "init": None, "cgroup": None,
            "name": "web", "pod": None, **more}


def document(**node: object) -> dict[str, Any]:
    bad = sandbox(BAD, "bad", 300, mask="0-1", verdict="degraded", reasons=["1 of 4 threads are misplaced"],
                  drift={"repairs": {"tuned": 2, "other": 1}, "last": 1.0, "why": "tuned set it"})
    bad["containers"][0] |= {"exclusive": False, "cpuset": "0-1", "guest": {"state": "no agent", "error": "",
                                                                            "outside": []}}
    bad["threads"][2] = thread(302, "0-7", 1, ok=False)
    db = sandbox(DB, "db", 200, mask="0-1", verdict="floating", guest=None)
    db["containers"][0] |= {"exclusive": False, "cpuset": "0-1", "guest": None}
    return {
        "version": 1, "time": "2026-01-01T00:00:00Z", "watcher": 7, "policy": {}, "sources": {},
        "node": {"online": "0-7", "shared_pool": "0-1", "pool_known": True, "unknown_owners": [],
                 "exclusive": "3,5-6", "housekeeping": "0", "collisions": [],
                 "disagreements": [],
                 "owners": [owner(SHOP, WEB, "5-6", pod={"namespace": "demo", "name": "shop"}),
                            owner(RUNC, CACHE, "3", "runc", init=500, cgroup="/sys/fs/cgroup/kubepods/" + CACHE,
                                  name="cache", pod={"namespace": "demo", "name": "cache"})], **node},
        "pods": [{"sandbox": RUNC, "pod": {"namespace": "demo", "name": "cache", "uid": "u1"},
                  "containers": [{"id": CACHE, "name": "cache", "pause": False}]},
                 {"sandbox": SHOP, "pod": {"namespace": "demo", "name": "shop", "uid": "u2"},
                  "containers": [{"id": WEB, "name": "web", "pause": False}]},
                 {"sandbox": "9" * 64, "pod": {"namespace": "kube-system", "name": "noisy", "uid": "u3"},
                  "containers": [{"id": "7" * 64, "name": "stress", "pause": False}]}],
        "sandboxes": [sandbox(SHOP, "shop", 100), db, bad]}


def ran(tid: int, milliseconds: float, cpu: int, comm: str = "x", bound: bool = False,
        waited: float = 0) -> ThreadInterval:
    return ThreadInterval(tid, comm, round(milliseconds * MS), round(waited * MS), cpu, bound)


def process(pid: int, comm: str, *threads: ThreadInterval, cgroup: str = "", kernel: bool = False) -> ProcessInterval:
    return ProcessInterval(pid, comm, kernel, cgroup, threads)


#: In three seconds: demo/shop ran on its CPUs, and others did on its CPU 5.
PROCESSES = (
    process(100, "qemu-system-x86", ran(101, 30, 0, "CPU 0/KVM", waited=6), ran(102, 1800, 5, "CPU 1/KVM", True, 90),
            ran(103, 2700, 6, "CPU 2/KVM", True)),
    process(200, "qemu-system-x86", ran(201, 600, 1, "CPU 0/KVM")),
    process(300, "qemu-system-x86", ran(302, 150, 5, "CPU 1/KVM")),
    process(500, "redis-server", ran(500, 900, 3, "redis-server"), cgroup="/sys/fs/cgroup/kubepods/" + CACHE),
    process(600, "stress-ng", ran(601, 93, 5, "stress-ng-cpu", True),
            cgroup="/sys/fs/cgroup/kubepods/pod1/cri-containerd-" + "7" * 64 + ".scope"),
    process(700, "node_exporter", ran(700, 0.6, 6, "node_exporter"), ran(701, 12, 0, "node_exporter"),
            cgroup="/sys/fs/cgroup/system.slice/node-exporter.service"),
    process(40, "ksoftirqd/5", ran(40, 3, 5, "ksoftirqd/5", True), kernel=True),
    process(41, "kworker/u8:1", ran(41, 6, 3, "kworker/u8:1"), kernel=True))
BUSY = {3: 920 * MS, 5: 2100 * MS, 6: 2710 * MS}


def described(**node: object) -> NodeDescription:
    return describe(document(**node))


def used(*processes: ProcessInterval, description: NodeDescription | None = None, seconds: float = 3.0,
         busy: dict[int, int] | None = None) -> NodeUsage:
    return usage(description or described(),
                 UsageInterval(seconds, processes or PROCESSES, BUSY if busy is None else busy))
