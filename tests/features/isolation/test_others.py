"""Who is found on exclusive CPUs, and who is at home there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.features.common.cpu_owner import CpuOwner
from vmpin.features.isolation.others import Judgement, Kind, judge, lasting, owners_of, sandboxes_of
from vmpin.features.isolation.process_pods import ProcessPods
from vmpin.features.isolation.usage import SampledProcess, SampledThread, container_of

A, B = "a" * 64, "b" * 64
MS = 1_000_000
PODS = "/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice"


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def task(tid: int, may: str, ran: Mapping[int, int] | None = None, alive: bool = True) -> SampledThread:
    return SampledThread(tid, f"t{tid}", cpus(may), {cpu: spent * MS for cpu, spent in (ran or {}).items()}, alive)


def process(*tasks: SampledThread, kernel: bool = False, cgroup: str = "", contained: bool = False) -> SampledProcess:
    return SampledProcess(tasks[0].tid, tasks[0].comm, kernel, cgroup, contained, tasks)


WEB = CpuOwner("vm-a", "web", cpus("2-3"), vm=True, label="tests/pod/web")
DB = CpuOwner("pod-b", B, cpus("4"), vm=False, init=500, label="tests/pod/db")


def only(found: Judgement) -> Any:
    (finding,) = found.findings
    return finding


# Who it is


@pytest.mark.parametrize(("cgroup", "container"), [
    ("", None), ("/", None), ("/sys/fs/cgroup/system.slice/kubelet.service", None),
    (f"{PODS}/cri-containerd-{A}.scope", A), (f"{PODS}/crio-{A}.scope", A), (f"{PODS}/{A}", A),
    (f"{PODS}/cri-containerd-{A}.scope/init/deeper", A), (f"/sys/fs/cgroup/cpuset/docker/{A}", A),
    (f"/machine.slice/libpod-{A}.scope", A), (f"/sys/fs/cgroup/kubepods-pod1.slice:cri-containerd:{A}", A),
    (f"{PODS}/web", "web"), ("/sys/fs/cgroup/kubepods/burstable/pod1/web", "web"),
    ("/sys/fs/cgroup/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1.slice/web", "web"),
    (f"/system.slice/crio-conmon-{A}.scope", None), (f"{PODS}/crio-conmon-{A}.scope", None),
    (f"{PODS}/crio-{A}.scope/container", A), (f"/machine.slice/libpod-conmon-{A}.scope", None),
    (f"{PODS}/crio-{A}.scope/crio-conmon-{B}.scope", A), (f"{PODS}/{A}/kubepods/pod2/{B}", A),  # that it has made
    (f"/docker/{A}/kubelet/kubepods/pod1/{B}", B), (f"/docker/{A}/docker/{B}", A),  # kind with cgroup v1; DinD
    (f"/x/{A[:63]}", None), (f"/x/{A}0", None), ("/sys/fs/cgroup/notkubepods/web", None),
])
def test_a_container_is_recognized_by_its_cgroup(cgroup: str, container: str | None) -> None:
    assert container_of(cgroup) == container


@pytest.mark.parametrize(("found", "kind", "whose"), [
    (process(task(9, "2")), Kind.HOST, None),
    (process(task(9, "0-7"), kernel=True), Kind.KERNEL, None),
    (process(task(9, "2"), cgroup=f"{PODS}/{A}"), Kind.CONTAINER, A),
    (process(task(9, "2"), cgroup="/sys/fs/cgroup/some/box", contained=True), Kind.CONTAINER, "box"),
    (process(task(10, "2"), task(11, "2")), Kind.VM, "vm-z"),
    (process(task(11, "2"), kernel=True), Kind.VM, "vm-z"),
])
def test_each_finding_has_its_class(found: SampledProcess, kind: Kind, whose: str | None) -> None:
    finding = only(judge([WEB], {11: "vm-z"}, [found]))
    assert (finding.kind, finding.sandbox or finding.container) == (kind, whose)


# Who is at home


def test_every_thread_of_the_owning_vm_is_at_home_on_all_its_cpus() -> None:
    qemu = process(task(10, "0-7", {2: 5}), task(11, "2", {2: 900}), task(12, "3"))
    worker = process(task(20, "0-7", {3: 1}), kernel=True)
    found = judge([WEB], {11: "vm-a", 20: "vm-a"}, [qemu, worker])
    assert found.alone
    assert [(use.cpu, use.owner, use.others) for use in found.uses] == [(2, 905 * MS, 0), (3, 1 * MS, 0)]


def test_a_thread_of_another_vm_is_a_finding_on_the_owners_cpus_only() -> None:
    other = CpuOwner("vm-b", "b", cpus("5"), vm=True)
    qemu = process(task(10, "2,5", {5: 70, 2: 3}), task(11, "5"))
    finding = only(judge([WEB, other], {10: "vm-b"}, [qemu]))
    assert (finding.kind, finding.sandbox, finding.may, finding.ran) == (Kind.VM, "vm-b", cpus("2"), {2: 3 * MS})
    assert [each.tid for each in finding.threads] == [10]
    assert finding.owners == (WEB,)


@pytest.mark.parametrize("owner", [
    CpuOwner("pod-b", "db", cpus("4"), vm=False, init=500),
    CpuOwner("pod-b", "db", cpus("4"), vm=False, cgroup="/cg/pod/db"),
    CpuOwner("pod-b", "db", cpus("4"), vm=False, init=500, cgroup="/cg/moved/away"),
])
def test_a_runc_owner_is_at_home_with_all_in_its_cgroup(owner: CpuOwner) -> None:
    processes = [process(task(500, "4", {4: 1}), cgroup="/cg/pod/db"), process(task(501, "4"), cgroup="/cg/pod/db"),
                 process(task(502, "4"), cgroup="/cg/pod/db/deeper")]
    assert judge([owner], {}, processes).alone
    stranger = process(task(503, "4"), cgroup="/cg/pod/dbase")
    assert only(judge([owner], {}, [*processes, stranger])).process == stranger


def test_without_any_report_a_runc_owner_is_named_by_its_containers_id() -> None:
    owner = CpuOwner("pod-b", B, cpus("4"), vm=False)
    inside, beside = (process(task(number, "4"), cgroup=f"{PODS}/cri-containerd-{name}.scope")
                      for number, name in ((500, B), (501, A)))
    assert only(judge([owner], {}, [inside, beside])).container == A


@pytest.mark.parametrize("owner", [DB, CpuOwner("", "group db", cpus("4"), vm=False, members=frozenset((B,)))])
def test_a_container_within_a_container_is_its_owners(owner: CpuOwner) -> None:
    """As of a docker in a container with systemd, whose first process has moved into `init.scope`."""
    top = f"{PODS}/cri-containerd-{B}.scope"
    processes = [process(task(number, "4", {4: 1}), cgroup=f"{top}/{below}", contained=True)
                 for number, below in ((500, "init.scope"), (501, "system.slice/x.service"), (502, f"docker/{A}"))]
    assert judge([owner], {}, processes).alone


@pytest.mark.parametrize("pod", ["kubepods.slice/kubepods-pod{}.slice", "kubepods/burstable/pod{}"])
def test_a_pod_that_only_the_kubelet_lists_is_named_by_its_outermost_cgroup(pod: str) -> None:
    mine, others = ("840d9dad-1111-2222-3333-444444444444", "950d9dad-1111-2222-3333-444444444444")
    owner = CpuOwner(mine, "", cpus("4"), vm=False, uid=mine)
    escape = str.replace if ".slice" in pod else lambda uid, *_: uid
    inside, forged = (process(task(500, "4"), cgroup=f"/sys/fs/cgroup/{pod.format(escape(uid, '-', '_'))}/{A}{below}")
                      for uid, below in ((mine, ""), (others, f"/pod{mine}")))
    assert judge([owner], {}, [inside]).alone
    assert only(judge([owner], {}, [forged])).kind is Kind.CONTAINER


def test_the_monitor_of_a_container_is_a_daemon_of_the_node() -> None:
    """conmon, of CRI-O and podman, is beside its container, and has no cpuset."""
    finding = only(found := judge([DB], {}, [process(task(500, "4"), cgroup=f"{PODS}/crio-{B}.scope/container"),
                                             process(task(9, "0-7"), cgroup=f"/system.slice/crio-conmon-{A}.scope")]))
    assert (finding.kind, finding.container, found.apart) == (Kind.HOST, None, True)


def test_an_init_in_the_topmost_cgroup_makes_no_other_owner() -> None:
    found = judge([DB], {}, [process(task(500, "4")), process(task(501, "4"))])
    assert only(found).process.pid == 501


def test_a_container_whose_init_has_ended_owns_nothing_by_a_cgroup_that_may_be_anyones() -> None:
    owner = CpuOwner("pod-b", "db", cpus("4"), vm=False, init=500, cgroup="/cg")
    assert only(judge([owner], {}, [process(task(501, "4"), cgroup="/cg/other")])).process.pid == 501


def test_the_cgroup_of_a_vmm_says_nothing_as_others_may_be_in_it() -> None:
    owner = CpuOwner("vm-a", "web", cpus("2-3"), vm=True, init=10, cgroup="/cg/kata_overhead")
    processes = [process(task(number, "2"), cgroup="/cg/kata_overhead") for number in (10, 40)]
    assert only(judge([owner], {10: "vm-a", 40: "vm-b"}, processes)).sandbox == "vm-b"


def test_kernel_threads_of_one_cpu_are_part_of_it_and_others_are_not() -> None:
    bound = process(task(20, "2", {2: 4}), kernel=True)
    unbound = process(task(21, "0-7"), kernel=True)
    daemon = process(task(22, "2"))
    found = judge([WEB], {}, [bound, unbound, daemon])
    assert [finding.process.pid for finding in found.findings] == [22, 21]
    assert [use.bound for use in found.uses] == [4 * MS, 0]


def test_a_kernel_thread_that_a_vm_has_is_never_part_of_the_cpu() -> None:
    assert only(judge([WEB], {20: "vm-b"}, [process(task(20, "2"), kernel=True)])).kind is Kind.VM


# What was measured


def test_a_thread_that_ended_may_no_longer_run_but_did() -> None:
    gone = process(task(30, "0-7", {2: 8}, alive=False))
    finding = only(judge([WEB], {}, [gone]))
    assert (finding.may, finding.ran) == (EMPTY, {2: 8 * MS})
    assert judge([WEB], {}, [process(task(30, "0-7", {0: 8}, alive=False))]).alone


def test_a_thread_that_moved_away_is_found_by_what_it_ran() -> None:
    finding = only(judge([WEB], {}, [process(task(30, "0-1", {0: 50, 3: 2}))]))
    assert (finding.may, finding.ran, finding.spent) == (EMPTY, {3: 2 * MS}, 2 * MS)


def test_what_no_thread_accounts_for_is_unseen_and_never_less_than_nothing() -> None:
    qemu = process(task(10, "2", {2: 900}), task(11, "3", {3: 500}))
    found = judge([WEB], {10: "vm-a"}, [qemu, process(task(30, "2", {2: 60}))], {2: 1000 * MS, 3: 490 * MS})
    assert [(use.cpu, use.unseen) for use in found.uses] == [(2, 40 * MS), (3, 0)]
    assert judge([WEB], {}, []).uses[0].unseen is None


def test_what_ran_longest_comes_first_then_the_gravest_that_may() -> None:
    found = judge([WEB], {40: "vm-b"}, [
        process(task(10, "0-7"), kernel=True), process(task(20, "3")), process(task(21, "2")),
        process(task(30, "2"), cgroup=f"/{A}"), process(task(40, "2")), process(task(50, "2", {2: 1})),
        process(task(51, "0-7", {2: 1, 3: 1}), kernel=True)])
    assert [finding.process.pid for finding in found.findings] == [51, 50, 40, 30, 21, 20, 10]


def test_ignored_classes_are_counted_and_are_no_findings() -> None:
    processes = [process(task(10, "0-7"), kernel=True), process(task(20, "3", {3: 5})), process(task(21, "3"))]
    found = judge([WEB], {}, processes, ignore=[Kind.HOST, Kind.KERNEL])
    assert found.alone
    assert found.ignored == {Kind.HOST: 2, Kind.KERNEL: 1}
    assert found.uses[1].others == 5 * MS, "it ran, whether or not it is asked for"


def test_a_cpu_of_two_owners_leaves_neither_alone() -> None:
    found = judge([WEB, CpuOwner("vm-b", "b", cpus("3"), vm=True)], {}, [])
    assert (found.findings, found.contested, found.alone) == ([], cpus("3"), False)


def test_cpus_that_containers_of_one_pod_share_are_that_pods() -> None:
    """As kubelet 1.36 lists them with pod-level resources: each process is at home on its own container's."""
    aux, log = (CpuOwner("pod-c", name, cpus("5-6"), vm=False, cgroup=f"/cg/c/{name}") for name in ("aux", "log"))
    found = judge([WEB, aux, log], {}, [process(task(70 + at, "5-6", {5: 3}), cgroup=f"/cg/c/{name}")
                                        for at, name in enumerate(("aux", "log"))])
    assert (found.contested, found.alone, found.apart) == (EMPTY, True, True)
    assert [use.owner for use in found.uses if use.cpu == 5] == [6 * MS]


# Pods by name

PODS_OF_NODE = ProcessPods.of([
    {"sandbox": A, "pod": {"namespace": "shop", "name": "web", "uid": "840d9dad-1111-2222-3333-444444444444"},
     "containers": [{"id": B, "name": "app", "pause": False}, {"id": "p" * 64, "name": "", "pause": True}]},
    {"sandbox": "vm-z", "pod": {"namespace": "shop", "name": "db", "uid": "u-2"}, "containers": []},
    {"sandbox": "bare", "pod": None, "containers": [{"id": "d" * 64, "name": "x", "pause": False}]}])
BY_UID = "/sys/fs/cgroup/kubepods.slice/kubepods-burstable-pod840d9dad_1111_2222_3333_444444444444.slice"


@pytest.mark.parametrize(("found", "name"), [
    (process(task(9, "2"), cgroup=f"{PODS}/cri-containerd-{B}.scope"), "shop/web/app"),
    (process(task(9, "2"), cgroup=f"{PODS}/cri-containerd-{A}.scope"), "shop/web"),
    (process(task(9, "2"), cgroup=f"{BY_UID}/cri-containerd-{'c' * 64}.scope"), "shop/web"),
    (process(task(9, "2"), cgroup=f"/kubepods/pod840d9dad-1111-2222-3333-444444444444/{'c' * 64}"), "shop/web"),
    (process(task(9, "2"), cgroup=f"{PODS}/cri-containerd-{'c' * 64}.scope"), ""),
    (process(task(11, "2")), "shop/db"),
    (process(task(9, "2")), ""),
])
def test_a_finding_names_pod_and_container(found: SampledProcess, name: str) -> None:
    finding = only(judge([WEB], {11: "vm-z"}, [found], names=PODS_OF_NODE))
    assert finding.label == finding.data()["name"] == name


def pause(container: str, ran: Mapping[int, int] | None = None, comm: str = "pause",
          threads: int = 1) -> SampledProcess:
    cgroup = f"{PODS}/cri-containerd-{container}.scope"
    return replace(process(*(task(80 + at, "0-7", ran) for at in range(threads)), cgroup=cgroup), comm=comm)


@pytest.mark.parametrize(("found", "kind"), [
    (pause(A), Kind.PAUSE),             # of that sandbox
    (pause("p" * 64), Kind.PAUSE),
    (pause("c" * 64), Kind.PAUSE),      # of a pod that no source names
    (pause(B), Kind.CONTAINER),         # a container's process may call itself so
    (pause(A, {2: 1}), Kind.CONTAINER),  # one that runs is none
    (pause(A, comm="sleep"), Kind.PAUSE),  # whatever program the runtime is configured for
    (pause("c" * 64, comm="sleep"), Kind.CONTAINER),
    (pause(A, threads=2), Kind.CONTAINER),
    (replace(process(task(9, "2")), comm="pause"), Kind.HOST),
])
def test_a_pause_process_is_a_class_of_its_own_as_long_as_it_sleeps(found: SampledProcess, kind: Kind) -> None:
    finding = only(judge([WEB], {}, [found], names=PODS_OF_NODE))
    assert finding.kind is kind
    without = judge([WEB], {}, [found], names=PODS_OF_NODE, ignore=[Kind.PAUSE])
    assert without.apart == (kind is not Kind.CONTAINER)


def test_what_the_kubelet_does_not_keep_apart_leaves_pods_apart() -> None:
    own = [process(task(10, "0-7", {2: 1}), kernel=True), process(task(20, "3", {3: 5}))]
    found = judge([WEB], {}, own)
    assert (found.alone, found.apart, len(found.findings)) == (False, True, 2)
    assert not judge([WEB], {40: "vm-b"}, [*own, process(task(40, "2"))]).apart
    assert not judge([WEB], {}, [process(task(30, "2"), cgroup=f"/{A}")]).apart


def test_cpus_that_changed_hands_are_left_out() -> None:
    moved = CpuOwner(DB.sandbox, DB.container, cpus("4-5"), vm=False)
    assert lasting([WEB, DB], [WEB, moved]) == ((WEB, CpuOwner(DB.sandbox, DB.container, cpus("4"), vm=False)),
                                                cpus("5"))
    assert lasting([WEB, DB], [DB]) == ((DB,), cpus("2-3"))
    assert lasting([WEB], [WEB, DB]) == ((WEB,), cpus("4"))
    assert lasting([WEB], [CpuOwner("vm-b", "web", WEB.cpus, vm=True)]) == ((), WEB.cpus)


# The document


def document(owners: list[dict[str, Any]], pod: dict[str, str] | None = None) -> dict[str, Any]:
    return {"node": {"owners": owners}, "sandboxes": [{
        "id": "vm-a", "pod": pod, "vmm": {"type": "qemu", "pid": 10},
        "containers": [{"id": A, "name": "web"}], "threads": [{"tid": 11}, {"tid": 20}]}, {
        "id": "vm-off", "pod": None, "vmm": None, "containers": [], "threads": []}]}


def test_owners_are_read_from_the_status_with_and_without_what_newer_ones_say() -> None:
    old: list[dict[str, Any]] = [{"sandbox": "vm-a", "container": A, "cpus": "2-3"},
                                 {"sandbox": "pod-b", "container": B, "cpus": "4"}]
    vm, runc = owners_of(document(old))
    assert (vm.vm, vm.cpus, vm.init, vm.cgroup) == (True, cpus("2-3"), None, "")
    assert (runc.vm, runc.cpus, runc.init, runc.cgroup) == (False, cpus("4"), None, "")
    assert (vm.label, runc.label) == ("web of vm-a", f"{B[:12]} of pod-b")
    new = [{**old[0], "kind": "vm", "init": None, "cgroup": None},
           {**old[1], "kind": "runc", "init": 500, "cgroup": "/cg/b"}]
    vm, runc = owners_of(document(new, {"namespace": "tests", "name": "pod"}))
    assert (runc.vm, runc.init, runc.cgroup) == (False, 500, "/cg/b")
    assert vm.label == "tests/pod/web"


def test_threads_and_vmms_of_the_status_belong_to_their_sandbox() -> None:
    assert sandboxes_of(document([])) == {10: "vm-a", 11: "vm-a", 20: "vm-a"}


def test_the_json_has_stable_keys() -> None:
    found = process(task(30, "0-3", {2: 5, 1: 9}), task(31, "3"), cgroup="/cg/x")
    data = judge([WEB], {}, [found], {2: 7 * MS}).data()
    assert list(data) == ["alone", "exclusive", "contested", "findings", "cpus", "ignored"]
    assert data["findings"] == [{
        "pid": 30, "comm": "t30", "class": "host", "sandbox": None, "container": None, "name": "",
        "cgroup": "/cg/x", "may": "2-3", "seconds": 0.005, "ran": [{"cpu": 2, "seconds": 0.005}],
        "owners": ["tests/pod/web"],
        "threads": [{"tid": 30, "comm": "t30", "may": "2-3", "ran": [{"cpu": 2, "seconds": 0.005}]},
                    {"tid": 31, "comm": "t31", "may": "3", "ran": []}]}]
    assert data["cpus"] == [
        {"cpu": 2, "owners": ["tests/pod/web"], "busy": 0.007, "owner": 0.0, "kernel_bound": 0.0, "others": 0.005,
         "unseen": 0.002},
        {"cpu": 3, "owners": ["tests/pod/web"], "busy": None, "owner": 0.0, "kernel_bound": 0.0, "others": 0.0,
         "unseen": None}]


_SETS = st.frozensets(st.integers(0, 5)).map(CpuSet)
_TASKS = st.builds(SampledThread, st.integers(1, 40), st.just("x"), _SETS,
                   st.dictionaries(st.integers(0, 5), st.integers(1, 9)), st.booleans())
_PROCESSES = st.builds(SampledProcess, st.integers(1, 40), st.just("x"), st.booleans(),
                       st.sampled_from(["", "/cg/a", "/cg/b"]), st.booleans(),
                       st.lists(_TASKS, min_size=1, max_size=3).map(tuple))
_OWNERS = st.builds(CpuOwner, st.sampled_from(["vm-a", "vm-b"]), st.just("c"), _SETS, st.booleans(),
                    st.none() | st.integers(1, 40), st.sampled_from(["", "/cg/a"]))


@given(st.lists(_OWNERS, max_size=3), st.dictionaries(st.integers(1, 40), st.sampled_from(["vm-a", "vm-b"])),
       st.lists(_PROCESSES, max_size=6, unique_by=lambda each: each.pid))
def test_time_is_booked_once_and_findings_are_on_exclusive_cpus(owners: list[CpuOwner], sandboxes: dict[int, str],
                                                                processes: list[SampledProcess]) -> None:
    found = judge(owners, sandboxes, processes)
    for use in found.uses:
        assert use.owner + use.bound + use.others == sum(
            task.ran.get(use.cpu, 0) for process in processes for task in process.tasks)
    for finding in found.findings:
        assert finding.may or finding.spent
        assert finding.may <= found.exclusive
        assert set(finding.ran) <= set(found.exclusive)
    assert sum(finding.spent for finding in found.findings) == sum(use.others for use in found.uses)
