"""Sentences about one container of a sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vmpin.domain.drift import WRITER_COMMAND
from vmpin.status.explain import container_sentences, sentences


def container(id: str, name: str, cpuset: str, vcpus: str) -> dict[str, Any]:
    return {"id": id, "name": name, "cpuset": cpuset, "own_cpus": cpuset, "stale_cpuset": None, "exclusive": True,
            "shared_with": [], "exclusive_by": "kubelet", "source": "nri", "since": None, "cpusets_by_source": {},
            "vcpus": vcpus, "guest": None, "disagreement": None, "pause": False}


def thread(tid: int, vcpu: int | None, wanted: str) -> dict[str, Any]:
    return {"tid": tid, "name": "t", "role": "emulator" if vcpu is None else "vcpu", "vcpu": vcpu, "wanted": wanted,
            "actual": wanted, "ok": True}


SANDBOX: dict[str, Any] = {
    "id": "a", "pod": None, "vmm": {"type": "qemu", "pid": 7}, "found_by": "names", "runtime": "kata-go",
    "verdict": "pinned", "reasons": [], "guest": None, "mask": "2-4",
    "containers": [container("c1", "web", "2-3", "0-1"), container("c2", "db", "4", "2")],
    "threads": [thread(10, 0, "2"), thread(11, 1, "3"), thread(12, 2, "4"), thread(13, None, "0")]}
DOCUMENT: dict[str, Any] = {"watcher": 1, "node": {"shared_pool": "0-1", "pool_known": True, "collisions": []},
                            "policy": {"vcpus": "auto", "emulator": "apart"}}


def test_a_container_has_its_cpus_and_the_threads_that_back_them() -> None:
    found = container_sentences(DOCUMENT, SANDBOX, "c1")
    assert found[0] == ("Container web (c1) has CPUs 2-3, exclusive (the kubelet's checkpoint assigns them), as the "
                        "runtime reported over NRI; in the guest it has vCPUs 0-1.")
    assert [sentence.split(" is ")[0] for sentence in found[1:]] == ["Thread 10 (t)", "Thread 11 (t)"]
    assert set(found) <= set(sentences(DOCUMENT, SANDBOX))


def test_the_command_that_finds_an_unknown_writer_of_masks_is_the_last_sentence_and_in_the_documentation() -> None:
    """The command itself was run once: the kernel's tracepoint and bpftrace's language are not vmpin's."""
    for repairs, named in ({"unknown program": 2, "tuned": 1}, True), ({"tuned": 1}, False), ({}, False):
        box = {**SANDBOX, "drift": {"repairs": repairs, "last": 1.0, "why": ""}}
        assert sentences(DOCUMENT, box)[-1].endswith(f": {WRITER_COMMAND}") is named
    page = Path(__file__).parents[3] / "docs" / "troubleshooting.md"
    assert f"    {WRITER_COMMAND}\n" in page.read_text()


def test_two_that_decide_on_a_sandboxs_cpus_are_named() -> None:
    rival = {"authorities": ["kubelet", "observed"], "cpus": "2", "sandboxes": ["a", "b"], "what": "another program"}
    node = {**DOCUMENT["node"], "rivals": [rival, {**rival, "sandboxes": ["b"], "cpus": "5"}]}
    assert [text for text in sentences({**DOCUMENT, "node": node}, SANDBOX) if text.startswith("Two")] == [
        "Two decide on CPUs 2, kubelet and observed: another program."]


def test_a_stale_cpuset_is_explained_by_the_authority_that_made_it_stale() -> None:
    """Not by the strongest on the node, which may be vmpin's ledger beside claims."""
    node = {**DOCUMENT["node"], "authorities": ["ledger", "dra"]}
    own = {**container("c1", "web", "2-3", "0-1"), "exclusive_by": "dra", "stale_cpuset": "2"}
    shared = {**container("c2", "db", "4", "2"), "exclusive": False, "exclusive_by": None, "stale_cpuset": "2,4"}
    box = {**SANDBOX, "containers": [own, shared]}
    assert [container_sentences({**DOCUMENT, "node": node}, box, id)[0] for id in ("c1", "c2")] == [
        "Container web (c1)'s cpuset is still 2, because the DRA driver has not rewritten it yet: its DRA claim has "
        "2-3 for it; in the guest it has vCPUs 0-1.",
        "Container db (c2)'s cpuset is still 2,4, because the DRA driver has not rewritten it yet: without other "
        "pods' exclusive CPUs it has 4; in the guest it has vCPU 2."]


def test_the_mask_of_a_pods_own_cpus_names_the_authority_that_gives_them() -> None:
    node = {**DOCUMENT["node"], "shared_pool": "", "authorities": ["ledger", "dra"],
            "owners": [{"sandbox": "uid-a", "cpus": "2-4"}]}
    pod = {"namespace": "shop", "name": "a", "uid": "uid-a"}
    found = sentences({**DOCUMENT, "node": node}, {**SANDBOX, "pod": pod, "containers": [], "threads": []})
    assert [text for text in found if "mask" in text] == [
        "The sandbox mask is 2-4: the CPUs that the DRA driver gives its pod, as the shared pool is empty and no "
        "container with CPUs is known."]


def test_of_mixed_cpus_only_its_own_are_called_exclusive() -> None:
    """CRI-O's mixed CPUs: 1 is shared with other pods."""
    mixed = {**container("c1", "web", "1-3", "1-2"), "own_cpus": "2-3"}
    found = container_sentences(DOCUMENT, {**SANDBOX, "containers": [mixed]}, "c1")
    assert found[0].startswith("Container web (c1) has CPUs 1-3, of which 2-3 are exclusive (the kubelet's checkpoint "
                               "assigns them), as the runtime reported over NRI")


def test_vhost_workers_that_are_near_name_their_nic() -> None:
    policy = {**DOCUMENT, "policy": {**DOCUMENT["policy"], "vhost": "near"}}
    worker = {**thread(14, None, "4"), "role": "vhost"}
    nic = {"numa_node": 1, "why": "veth5 leads to eno1"}
    found = sentences(policy, {**SANDBOX, "threads": [worker], "near": nic})
    (text,) = (sentence for sentence in found if sentence.startswith("Thread 14"))
    assert text == (
        "Thread 14 (t) is a vhost worker and belongs on 4: policy vhost: near puts it on the sandbox's CPUs that "
        "are not exclusive and are on NUMA node 1, that of its NIC (veth5 leads to eno1); if there are none, on the "
        "sandbox's CPUs that are not exclusive; if there are none, on the sandbox mask.")
    unknown = {"numa_node": None, "why": "the node has no NIC that its links show"}
    (text,) = (sentence for sentence in sentences(policy, {**SANDBOX, "threads": [worker], "near": unknown})
               if sentence.startswith("Thread 14"))
    assert ("the NUMA node of its NIC is not known (the node has no NIC that its links show), so policy vhost: near "
            "puts it on the sandbox's CPUs that are not exclusive") in text
