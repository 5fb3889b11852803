"""The numbers of annotations: what is made of absurd ones is within bounds."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from absurd_numbers import Parser, check_bound, reads

from vmpin.cpuset import MAX_CPU
from vmpin.domain.model import SandboxId
from vmpin.features.allocator.grants.cpu_request import CpuWish
from vmpin.features.allocator.texts.annotations import with_changes
from vmpin.features.allocator.vm_size import vm_size_of
from vmpin.host.procfs import Procfs
from vmpin.sources.nri.nri_events import NriPod
from vmpin.vmm.vmm_type import MAX_VCPUS


def annotated(text: str) -> Iterable[int | None]:
    pod = NriPod(SandboxId("a"), "p", "n", "u", "kata", 0,
                 {"io.katacontainers.config.hypervisor.default_vcpus": text}, "")
    return vm_size_of(pod, Procfs("/nowhere"), lambda handler: 1)[1:]


def spare(text: str) -> Iterable[int]:
    found = with_changes(CpuWish(), {"spare": text}).spare or ""
    return [int(found)] if found.isdigit() else []


PARSERS = (Parser("pod's annotation of a VM's size", annotated, MAX_VCPUS),
           Parser("pod's annotation of spare CPUs", spare, MAX_CPU))


@pytest.mark.parametrize("parser", PARSERS, ids=[parser.name for parser in PARSERS])
def test_an_absurd_number_is_refused_or_within_its_bound(parser: Parser) -> None:
    check_bound(parser)
    assert reads(parser, "5"), "else this would prove nothing"
