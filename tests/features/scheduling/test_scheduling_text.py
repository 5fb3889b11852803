"""The classes of vCPUs as sentences."""

from __future__ import annotations

from typing import Any

from vmpin.features.scheduling import FEATURE
from vmpin.features.scheduling.scheduling_text import compared_lines, misplaced, sentences


def vcpu(number: int, shown: str | None = "fifo:1", why: str = "", *, ok: bool = True) -> dict[str, Any]:
    return {"vcpu": number, "class": shown, "ok": ok, "why": why}


def sandbox(*vcpus: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"id": "s1", "pod": {"namespace": "demo", "name": "shop"},
            "scheduling": {"class": "fifo:1", "annotated": False, "ignored": "", "vcpus": [*vcpus], **more}}


def test_vcpus_with_the_same_class_and_reason_are_one_sentence() -> None:
    assert [*sentences(sandbox(vcpu(0, None, "it may run on CPUs 0-1"), vcpu(1), vcpu(2),
                               vcpu(3, "other", "refused", ok=False), vcpu(4, "rr:2", ok=False)))] == [
        "the class of vCPU 0 is not fifo:1: it may run on CPUs 0-1",
        "the class of vCPUs 1-2 is fifo:1 (scheduling.vcpu_class)",
        "the class of vCPU 3 is other, not fifo:1: refused", "the class of vCPU 4 is rr:2, not fifo:1"]


def test_a_choice_by_annotation_and_one_that_does_not_count_are_told_apart() -> None:
    assert [*sentences(sandbox(vcpu(1), annotated=True))] == ["the class of vCPU 1 is fifo:1 (its annotation)"]
    assert [*sentences(sandbox(ignored="its annotation x does not count: y"))] == [
        "its annotation x does not count: y"]


def test_the_parts_print_nothing_for_a_sandbox_without_the_feature() -> None:
    assert FEATURE.lines is not None
    assert FEATURE.sentences is not None
    assert [*FEATURE.lines({"id": "s1"}), *FEATURE.sentences({"id": "s1"})] == []
    assert [*FEATURE.lines(sandbox(vcpu(1)))] == ["scheduling: the class of vCPU 1 is fifo:1 (scheduling.vcpu_class)"]
    assert [*FEATURE.sentences(sandbox(vcpu(1)))] == ["The class of vCPU 1 is fifo:1 (scheduling.vcpu_class)."]


def test_vcpus_with_another_class_are_compared() -> None:
    document = [sandbox(vcpu(1), vcpu(2, "other", "refused", ok=False)), {"id": "s2", "pod": None}]
    wrong = misplaced(document)
    assert wrong == [{"sandbox": "s1", "vcpu": 2, "wanted": "fifo:1", "actual": "other", "why": "refused"}]
    assert compared_lines(document, wrong) == ["vCPU 2 of demo/shop has the class other, and not fifo:1: refused"]
    assert compared_lines(document, []) == ["each vCPU that is alone on an exclusive CPU has its scheduling class"]
