"""What ran in an interval, by pod: busy and waiting, and which threads ran on exclusive CPUs of others."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from top_given import BAD, CACHE, DB, MS, RUNC, SHOP, described, document, owner, process, ran, used

from vmpin.features.isolation.top.node_description import describe
from vmpin.features.isolation.top.pod_usage import NodeUsage, PodUsage, sorted_pods, usage, usage_data
from vmpin.features.isolation.top.thread_intervals import UsageInterval


def pod(found: NodeUsage, id: str) -> PodUsage:
    return next(row for row in found.pods if row.pod.id == id)


def test_each_pod_has_what_its_own_threads_ran_and_waited() -> None:
    found = used()
    assert {row.pod.title: (row.busy / MS, row.waited / MS) for row in found.pods} == {
        "demo/shop": (4530, 96), "demo/db": (600, 0), "demo/bad": (150, 0), "demo/cache": (900, 0)}


def test_foreign_time_is_what_others_ran_on_exclusive_cpus() -> None:
    """A vCPU of another VM, a container's thread and a daemon; not a kernel thread that is bound to the CPU."""
    found = used()
    assert pod(found, SHOP).foreign == round(243.6 * MS)
    assert not pod(found, SHOP).exact
    assert [(thread.cpu, thread.ran / MS, thread.exact, thread.tid, thread.process, thread.home)
            for thread in found.foreign_threads if thread.owner == SHOP] == [
        (5, 150, False, 302, "qemu-system-x86", "demo/bad"),
        (5, 93, True, 601, "stress-ng", "kube-system/noisy/stress"),
        (6, 0.6, False, 700, "node_exporter", "node-exporter.service")]
    assert found.foreign == pod(found, SHOP).foreign + pod(found, RUNC).foreign


def test_a_kernel_thread_that_may_run_elsewhere_takes_from_a_pod_of_runc() -> None:
    found = used()
    threads = [(thread.cpu, thread.name, thread.home) for thread in found.foreign_threads
               if thread.owner == RUNC]
    assert threads == [(3, "kworker/u8:1", "kernel")]
    assert (pod(found, DB).foreign, pod(found, BAD).foreign) == (0, 0)


def test_each_exclusive_cpu_is_accounted_for() -> None:
    found = used()
    assert {use.cpu: (use.own / MS, use.kernel / MS, use.foreign / MS, use.unseen / MS) for use in found.cpus} == {
        3: (900, 0, 6, 14), 5: (1800, 3, 243, 54), 6: (2700, 0, 0.6, 9.4)}
    assert [use.cpu for use in found.cpus_of(pod(found, SHOP).pod)] == [5, 6]


def test_a_cpu_that_changed_owners_says_nothing_of_the_new_one() -> None:
    before = described(owners=[owner(RUNC, CACHE, "3,5-6", "runc")])
    after = describe(document(), before)
    assert str(after.changed) == "5-6"
    found = used(description=after)
    assert pod(found, SHOP).foreign == 0
    assert [use.cpu for use in found.cpus] == [3]
    assert not describe(document(), after).changed


def test_estimates_of_a_cpu_are_cut_to_the_time_that_it_had_left() -> None:
    """Two threads that came at the end of the interval brought the run time of other CPUs with them."""
    found = used(process(102, "qemu", ran(102, 500, 5, bound=True)), process(8, "a", ran(8, 900, 5)),
                 process(9, "b", ran(9, 300, 5)), process(10, "c", ran(10, 100, 5, bound=True)), seconds=1.0, busy={})
    assert [(thread.tid, thread.ran / MS, thread.exact) for thread in found.foreign_threads] == [
        (8, 300, False), (9, 100, False), (10, 100, True)]
    assert pod(found, SHOP).foreign == 500 * MS


def test_threads_of_a_vm_are_all_there_and_those_of_another_pod_if_they_ran() -> None:
    found = used()
    assert [(row.tid, row.role, row.cpu, row.mask, row.ok, row.busy / MS) for row in pod(found, BAD).threads()] == [
        (300, "emulator", None, "0-1", True, 0), (301, "vcpu 0", None, "0-1", True, 0),
        (302, "vcpu 1", 5, "0-7", False, 150), (303, "vcpu 2", None, "6", True, 0)]
    assert [(row.tid, row.name, row.busy / MS) for row in pod(found, RUNC).threads()] == [(500, "redis-server", 900)]


def test_a_new_thread_of_a_vm_is_its_own_before_the_watcher_lists_it() -> None:
    found = used(process(100, "qemu-system-x86", ran(199, 50, 5, "worker")))
    assert pod(found, SHOP).foreign == 0
    assert [row.name for row in pod(found, SHOP).threads()][-1] == "worker"


def test_a_workers_kernel_thread_belongs_to_its_vm() -> None:
    """vhost workers were kernel threads before Linux 6.4: each is a process of its own, which the document lists."""
    found = used(process(102, "vhost-100", ran(102, 50, 5, bound=True), kernel=True))
    assert (pod(found, SHOP).foreign, pod(found, SHOP).busy) == (0, 50 * MS)


def test_another_container_of_the_pod_takes_from_the_one_that_owns_the_cpu() -> None:
    given = document()
    given["pods"][0]["containers"].append({"id": "8" * 64, "name": "side", "pause": False})
    found = used(process(501, "side", ran(501, 30, 3), cgroup="/sys/fs/cgroup/kubepods/" + "8" * 64),
                 description=describe(given))
    assert (pod(found, RUNC).busy, pod(found, RUNC).foreign) == (30 * MS, 30 * MS)
    assert found.foreign_threads[0].home == "demo/cache/side"


def test_no_thread_of_either_pod_is_foreign_on_a_cpu_of_both() -> None:
    both = described(owners=[owner(SHOP, "c1", "5"), owner(BAD, "c2", "5")])
    found = used(description=both)
    assert {thread.tid for thread in found.foreign_threads} == {601}
    assert pod(found, SHOP).foreign == pod(found, BAD).foreign == 93 * MS


def test_the_description_has_what_is_not_in_order() -> None:
    shop, _, bad, cache = described().pods
    assert (str(shop.exclusive), str(shop.shared), shop.guest, shop.calm) == ("5-6", "0-1", "applied", True)
    assert (bad.drift, bad.why, bad.guest, bad.calm, bad.in_place) == (3, "tuned set it", "no agent", False, (3, 4))
    assert (cache.kind, str(cache.exclusive), cache.verdict, cache.calm) == ("runc", "3", "", True)


def test_pods_of_one_name_are_told_apart_by_their_ids() -> None:
    given = document()
    given["sandboxes"][1]["pod"] = given["sandboxes"][0]["pod"]
    assert [each.title for each in describe(given).pods][:2] == [
        "demo/shop (aaaaaaaaaaaa)", "demo/shop (bbbbbbbbbbbb)"]


@pytest.mark.parametrize(("order", "first"), [("foreign", "demo/shop"), ("busy", "demo/shop"), ("waited", "demo/shop"),
                                              ("drift", "demo/bad"), ("name", "demo/bad")])
def test_pods_are_sorted(order: str, first: str) -> None:
    assert sorted_pods(used().pods, order)[0].pod.title == first


def test_without_foreign_time_what_is_not_in_order_comes_first() -> None:
    assert [row.pod.title for row in sorted_pods(usage(described(), UsageInterval(3.0, ())).pods, "foreign")] == [
        "demo/bad", "demo/cache", "demo/db", "demo/shop"]


def test_the_document_has_seconds() -> None:
    data = usage_data(used(), "2026-01-01T00:00:03Z", "foreign")
    assert json.loads(json.dumps(data)) == data
    assert (data["version"], data["seconds"]) == (1, 3.0)
    assert [each["pod"] for each in data["pods"]] == ["shop", "cache", "bad", "db"]
    shop = data["pods"][0]
    assert (shop["busy"], shop["foreign"], shop["exact"], shop["exclusive"]) == (4.53, 0.2436, False, "5-6")
    assert shop["cpus"][0] == {"cpu": 5, "busy": 2.1, "own": 1.8, "kernel": 0.003, "foreign": 0.243, "unseen": 0.054}
    assert {thread["sandbox"] for thread in data["foreign_threads"]} == {SHOP, RUNC}


@given(st.lists(st.tuples(st.integers(1, 700), st.integers(0, 3000), st.integers(0, 7), st.booleans()), max_size=20))
def test_no_cpu_is_used_for_longer_than_the_interval_by_estimates(given_: list[tuple[int, int, int, bool]]) -> None:
    found = used(*(process(pid, "p", ran(pid, spent, cpu, bound=bound)) for pid, spent, cpu, bound in given_), busy={})
    for use in found.cpus:
        exact = sum(spent for pid, spent, cpu, bound in given_ if cpu == use.cpu and (bound or use.own)) * MS
        assert use.foreign <= max(3000 * MS + 1000, exact)
    assert sum(row.foreign for row in found.pods) == sum(thread.ran for thread in found.foreign_threads)


def test_an_interval_of_nothing_is_calm() -> None:
    found = usage(described(), UsageInterval(3.0, ()))
    assert (found.foreign, found.foreign_threads, [use.busy for use in found.cpus]) == (0, (), [None, None, None])
