"""What `vmpin top` prints of a node, its pods and their threads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from top_given import MS, PROCESSES, SHOP, described, document, process, ran, used

from vmpin.domain.drift import NO_EVIDENCE
from vmpin.features.isolation.top.node_description import describe
from vmpin.features.isolation.top.pod_usage import usage
from vmpin.features.isolation.top.thread_intervals import UsageInterval
from vmpin.features.isolation.top.usage_text import (
    foreign_lines,
    foremost_program,
    percent,
    pod_lines,
    pod_row,
    rate,
    state_lines,
    thread_row,
)


@pytest.mark.parametrize(("spent", "text"), [(0, "0 ms"), (300_000, "<1 ms"), (93 * MS, "31 ms"),
                                             (3600 * MS, "1200 ms")])
def test_rates(spent: int, text: str) -> None:
    assert rate(spent, 3.0) == text
    assert rate(spent, 3.0, exact=False) == (f"~{text}" if spent else text)


@pytest.mark.parametrize(("spent", "text"), [(0, "0%"), (3 * MS, "<1%"), (1500 * MS, "50%"), (48_000 * MS, "1600%")])
def test_shares_of_a_cpu(spent: int, text: str) -> None:
    assert percent(spent, 3.0) == text


def test_the_first_lines_have_all_that_is_not_as_it_should_be() -> None:
    bare = replace(used(description=describe(document(collisions=[{"cpu": 5, "what": "both own it"}]))),
                   kernel_seen=False, precise=False)
    assert list(state_lines(bare)) == [
        "3.0 s; 4 pods; busy 206%; foreign ~83 ms a second on CPUs of 2 pods; 1 pod not in order; other PID "
        "namespace: kernel threads are hidden; run times in ticks only", "COLLISION on CPU 5: both own it"]
    assert "no foreign thread ran" in next(state_lines(used(process(1, "x", ran(1, 5, 0)))))
    unowned = describe({**document(owners=[]), "sandboxes": []})
    assert "no CPU is exclusive" in next(state_lines(usage(unowned, UsageInterval(3.0, ()))))


def test_the_rows_of_pods_and_threads() -> None:
    node = used()
    shop, db, bad, cache = node.pods
    assert [pod_row(row, node) for row in (shop, bad, cache)] == [
        ["demo/shop", "5-6+0-1", "151%", "~81 ms", "32 ms", "0", "pinned", "applied", "4/4", "VM"],
        ["demo/bad", "+0-1", "5%", "-", "0 ms", "3", "degraded", "no agent", "3/4", "VM"],
        ["demo/cache", "3", "30%", "~2 ms", "0 ms", "-", "-", "-", "-", "runc"]]
    assert thread_row(bad.threads()[2], node) == ["302", "vcpu 1", "CPU 1/KVM", "5", "0-7", "5%", "0 ms", "not on 5"]
    assert pod_row(db, replace(node, precise=False))[4] == "?"


def test_a_pod_in_full_has_its_reasons_and_the_use_of_its_cpus_with_notes_of_features() -> None:
    given = document()
    given["sandboxes"][0]["drift"] = {"repairs": {"unknown program": 2}, "last": 1.0, "why": NO_EVIDENCE}
    node = used(description=replace(describe(given), notes={5: ["CPU 5 took 3 interrupts"], 7: ["none of its CPUs"]}))
    assert list(pod_lines(node.pods[0], node)) == [
        "demo/shop: pinned, 4/4 in place; CPUs 5-6+0-1; guest applied",
        f"  put back 2 times, last: {NO_EVIDENCE} (`vmpin status POD --explain` has the command that finds the "
        "program)",
        "  CPU 5: busy 70%, its own 60%, foreign ~81 ms, kernel 1 ms, unseen ~18 ms", "    CPU 5 took 3 interrupts",
        "  CPU 6: busy 90%, its own 90%, foreign ~<1 ms, kernel 0 ms, unseen ~3 ms"]
    assert "  ! 1 of 4 threads are misplaced" in pod_lines(node.pods[2], node)


def test_the_foremost_foreign_program_is_named_with_what_keeps_it_off() -> None:
    assert list(foreign_lines(used()))[1:3] == [
        "FOREIGN 31 ms on CPU 5 of demo/shop by kube-system/noisy/stress: process 600 (stress-ng), thread 601 "
        "(stress-ng-cpu)", "FOREIGN ~2 ms on CPU 3 of demo/cache by kernel: process 41 (kworker/u8:1)"]
    assert list(foremost_program(used())) == [
        "most: qemu-system-x86 (process 300) of demo/bad had ~50 ms in each second on CPU 5",
        "what to do: run `vmpin verify`: it lists threads outside of their placement; vmpin keeps no VM off that it "
        "does not manage (watch.only), or that is unpinned"]
    assert list(foremost_program(usage(described(), UsageInterval(3.0, ())))) == []


def test_what_keeps_a_foreign_program_off_depends_on_its_kind() -> None:
    kinds = {thread.home: thread.kind for thread in used().foreign_threads}
    assert kinds == {"demo/bad": "vm", "kube-system/noisy/stress": "container", "kernel": "kernel",
                     "node-exporter.service": "host"}
    exporter = next(process for process in PROCESSES if process.comm == "node_exporter")
    assert any("systemctl edit node-exporter.service" in line for line in foremost_program(used(exporter)))


def test_a_program_of_many_threads_is_added_up() -> None:
    many = used(process(600, "stress", *(ran(600 + at, 30, 5, "w", True) for at in range(12))),
                process(700, "other", ran(700, 60, 5, "o", True)))
    lines = list(foreign_lines(many))
    assert lines[5] == "and 8 more: -o json lists them"
    assert lines[6].endswith(" had 120 ms in each second on CPU 5")
    assert {thread.owner for thread in many.foreign_threads} == {SHOP}
