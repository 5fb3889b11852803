"""A node as its watcher would answer: two VMs, one of which is not as it should be, and what vmpin gave out."""

from __future__ import annotations

from typing import Any

SHOP, DB = "5f2c8e91d0b74a36" * 4, "77aa10e5c94f4d02" * 4
WEB, LOGS, MAIN = "c1e8a4b2" * 8, "c2f9b5c3" * 8, "c30ac6d4" * 8
NOW = "2026-01-02T03:04:05Z"
SHOP_POD = {"namespace": "shop", "name": "web-7d9f8c6b5-x2zkp", "uid": "0b1c2d3e-0000-4000-8000-000000000001"}
DB_POD = {"namespace": "shop", "name": "db-0", "uid": "0b1c2d3e-0000-4000-8000-000000000002"}


def thread(tid: int, role: str, name: str, wanted: str | None, actual: str | None = None,
           vcpu: int | None = None) -> dict[str, Any]:
    found = wanted or "0-63" if actual is None else actual
    return {"tid": tid, "role": role, "name": name, "vcpu": vcpu, "wanted": wanted, "actual": found,
            "ok": wanted in (None, found), "cgroup": None}


def container(id: str, name: str, cpuset: str, vcpus: str, exclusive: bool, guest: str) -> dict[str, Any]:
    since = "2026-01-02T02:57:55.120Z"
    return {"id": id, "name": name, "cpuset": cpuset, "own_cpus": cpuset if exclusive else None,
            "stale_cpuset": None, "exclusive": exclusive,
            "exclusive_by": "kubelet" if exclusive else None, "state": "running", "pause": False, "source": "nri",
            "since": since, "cpusets_by_source": {"nri": {"cpus": cpuset, "since": since}},
            "kubelet": cpuset if exclusive else None, "shared_with": [], "vcpus": vcpus, "disagreement": None,
            "guest": {"state": guest, "error": "", "cgroup": "/kubepods/pod1/web", "wanted": vcpus,
                      "effective": vcpus, "processes": 4, "threads": 31, "outside": [], "text": guest}}


def network() -> dict[str, Any]:
    path = [{"name": "tap0_kata", "kind": "tap", "namespace": "sandbox", "by": ""},
            {"name": "eth0", "kind": "veth", "namespace": "sandbox", "by": "redirect"},
            {"name": "ens1f0", "kind": "nic", "namespace": "node", "by": "bridge"}]
    return {"why": "", "disks": [], "warnings": [
                "vhost worker 4150 may run on CPUs 40-43, none of them on NUMA node 0 of ens1f0"],
            "devices": [{"name": "tap0_kata", "kind": "tap", "queues": 2, "vhost": 2, "workers": [4150, 4151],
                         "path": path, "nics": [{"name": "ens1f0", "device": "pci/0000:3b:00.0", "numa_node": 0}],
                         "numa_node": 0, "note": ""}]}


def sandbox(id: str, pod: dict[str, Any], pid: int, verdict: str, containers: list[dict[str, Any]],
            threads: list[dict[str, Any]], mask: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "guest": {"by": "vmpin-agent", "state": "vsock 3", "system": None, "connects": 1, "pushes": 2,
                                "answers": 2, "refused": 0, "last_error": ""},
            "runtime": "nri", "handler": "kata-qemu", "vmm": {"type": "qemu", "pid": pid, "starttime": 9},
            "near": None, "network": network(), "memory": {
                "source": "numa_maps", "why": "", "nodes": {"0": 123 << 20, "1": 3973 << 20}, "vcpu_nodes": [0],
                "away": 0.97},
            "pod": pod, "mask": mask,
            "verdict": verdict, "reasons": [], "found_by": "kvm_run", "containers": containers, "threads": threads,
            "cgroup": {"path": f"/sys/fs/cgroup/kata_overhead/{id}", "cpus": "0-63"},
            "new_threads": {"reported": 41, "inside": 39, "ended": 0, "outside": 2,
                            "outside_ms": {"sum": 1.25, "max": 0.8}, "placed": 12,
                            "placed_ms": {"mean": 0.31, "max": 0.9}},
            "drift": None, "proof": {"roles": {"vcpu": {
                "placed": 86123.25, "certain": 86001.5, "elsewhere": 0.125, "free": 0.0, "waited": 12.5,
                "migrations": 17}}, "unseen": 0.02}, "rivals": [], **more}


def status() -> dict[str, Any]:
    """As `vmpin status -o json` prints it."""
    vcpus = [thread(4123 + place, "vcpu", f"CPU {place}/KVM", str(40 + place), vcpu=place) for place in range(4)]
    vcpus[2] = thread(4125, "vcpu", "CPU 2/KVM", "42", "0-63", 2)
    shop = sandbox(SHOP, SHOP_POD, 4121, "degraded", [
        container(WEB, "web", "40-43", "0-3", True, "applied"), container(LOGS, "logs", "0-7,32-39,44-47,56-63", "4",
                                                                         False, "pending")],
        [*vcpus, thread(4127, "vcpu", "CPU 4/KVM", "0-7,32-39,44-47,56-63", vcpu=4),
         thread(4121, "emulator", "qemu-system-x86", "0-7,32-39,44-47,56-63"),
         thread(4131, "iothread", "IO iothread0", "0-7,32-39,44-47,56-63"),
         thread(4140, "virtiofsd", "virtiofsd", "0-7,32-39,44-47,56-63", "8")], "0-7,32-47,56-63",
        reasons=["2 of 8 threads are misplaced"], drift={
            "repairs": {"tuned": 3, "other": 1}, "last": 81234.5,
            "why": "tuned runs with its scheduler plugin, and its profile has group.qemu"})
    db = sandbox(DB, DB_POD, 5121, "pinned", [container(MAIN, "main", "48-51", "0-3", True, "applied")], [
        *(thread(5123 + place, "vcpu", f"CPU {place}/KVM", str(48 + place), vcpu=place) for place in range(4)),
        thread(5121, "emulator", "qemu-system-x86", "48-51")], "48-51")
    return {"version": 1, "time": NOW, "watcher": 812,
            "policy": {"vcpus": "auto", "spare_vcpus": "sandbox", **dict.fromkeys(
                ("iothreads", "vhost", "emulator", "virtiofsd", "shim"), "apart")},
            "node": {"online": "0-63", "shared_pool": "0-7,32-39,44-47,56-63", "pool_known": True,
                     "unknown_owners": [], "exclusive": "40-43,48-51",
                     "housekeeping": "0-1", "authorities": ["kubelet"], "rivals": [{
                         "authorities": ["kubelet", "observed"], "cpus": "48", "sandboxes": [DB, SHOP],
                         "what": f"CPUs 48 are given to main of {DB} by kubelet, and another program lets web of "
                                 f"{SHOP} use them"}], "owners": [
                         {"sandbox": id, "container": name, "cpus": cpus, "kind": "vm", "pod": pod, "name": title,
                          "init": None, "cgroup": None}
                         for id, name, cpus, pod, title in ((SHOP, WEB, "40-43", SHOP_POD, "web"),
                                                            (DB, MAIN, "48-51", DB_POD, "main"))],
                     "impostors": [], "disagreements": [], "collisions": [{
                         "cpu": 48, "sandboxes": [DB, SHOP],
                         "what": f"exclusive to {MAIN} of {DB}, but 1 thread of {SHOP} may run there (thread 4125, "
                                 "vcpu)"}], "names": {}},
            "features": {}, "state_file": {"save_trouble": "", "load_trouble": "", "unknown_originals": 0},
            "sources": {"nri": {"state": "connected", "connects": 1, "syncs": 1, "events": 31, "refused": 0,
                                "dropped": 0, "unknown": 0, "overflows": 0, "last_error": ""},
                        "kubelet": {"policy": "static", "shared_pool": "0-7,32-39,44-47,56-63",
                                    "exclusive": "40-43,48-51", "version": 3, "checksum_ok": True, "trouble": "",
                                    "bad": 0, "pod_resources": True, "stale": False,
                                    "written": "2026-01-02T02:57:54Z", "second_witness": None},
                        "new_threads": {"state": "connected", "events": {"fork": 410, "exec": 7}, "overruns": 0},
                        "hooks": {"applied": 3, "refused": 0, "disputed": 0, "last": "2026-01-02T02:57:55Z"}},
            "sandboxes": [db, shop]}


def operation(tid: int, role: str, vcpu: int | None, cpus: str, was: str) -> dict[str, Any]:
    name = role if vcpu is None else f"{role} {vcpu}"
    return {"sandbox": SHOP, "tid": tid, "role": role, "vcpu": vcpu, "cpus": cpus, "was": was,
            "what": f"sandbox {SHOP}: set {name} (thread {tid}, CPU 2/KVM) to CPUs {cpus}, was {was}"}


def proof() -> dict[str, Any]:
    account = {"placed": 86123.25, "certain": 86001.5, "elsewhere": 0.125, "free": 0.0, "waited": 12.5,
               "migrations": 17}
    idle = {**account, "placed": 3.5, "certain": 3.25, "elsewhere": 0.0}
    return {"version": 1, "since": "2026-01-01T03:04:00Z", "until": NOW, "seconds": 86405.0, "watched": 86400.0,
            "drift": {"tuned": 3}, "ended": None, "sandboxes": [
                {"id": each["id"], "pod": each["pod"], "roles": {"vcpu": account, "emulator": idle},
                 "unseen": 0.02} for each in status()["sandboxes"]],
            "findings": [{"sandbox": SHOP, "role": "vcpu", "vcpu": 2, "tid": 4125, "cpu": 48, "place": "42",
                          "first": "2026-01-02T02:59:00Z", "last": "2026-01-02T03:04:01Z", "seconds": 0.125}]}


def allocations() -> dict[str, Any]:
    def grant(name: str, policy: str, cpus: str, **more: Any) -> dict[str, Any]:
        return {"namespace": "shop", "pod": f"{name}-7d9f8c6b5-x2zkp", "container": name, "id": WEB, "sandbox": SHOP,
                "vm": True, "policy": policy, "group": "", "state": "running", "cpus": cpus, "spare": "", "node": None,
                "cpuset": cpus, "left_alone": False, "request": 4.0, "limit": 4.0,
                "asked": {"policy": policy, "align": "cache!"}, "near": "", "least_distance": None,
                "since": "2026-01-02T02:57:55Z", **more}

    pool = "0-7,32-39,44-47,56-63"
    return {"version": 1, "mode": "on", "why": "", "online": "0-63", "reserved": "0", "pool": pool, "shared": pool,
            "groups": {}, "free": {"cpus": "1-7,32-39,44-47,56-63", "largest": 27, "largest_in_node": 19,
                                   "largest_in_cache": 8, "nodes": {"0": "1-7", "1": "32-39,44-47,56-63"},
                                   "caches": [{"cpus": "0-7", "free": "1-7"}]},
            "grants": [grant("web", "exclusive", "40-43", spare="0-7"), grant("db", "fixed", "48-51")],
            "refused": [{"namespace": "shop", "pod": "cache-0", "container": "main", "time": NOW,
                         "reason": "32 CPUs are asked for, and of the 27 that are free no set is within one cache"}]}


def answers() -> dict[str, Any]:
    """By the operation of the control socket."""
    set_again = [operation(4125, "vcpu", 2, "42", "0-63"),
                 operation(4140, "virtiofsd", None, "0-7,32-39,44-47,56-63", "8")]
    return {"status": status(), "proof": proof(), "allocations": allocations(),
            "plan": {"version": 1, "operations": set_again, "unmanaged": [DB], "of_features": []},
            "unpinning": {"version": 1, "dry_run": True, "operations": set_again, "suspended": [SHOP],
                          "guests": [SHOP]},
            "reconcile": {"version": 1, "vms": 2, "seconds": 0.01, "operations": [
                {**set_again[0], "outcome": "done", "got": "42", "why": ""},
                {**set_again[1], "outcome": "refused", "got": None, "why": "Operation not permitted"}]}}
