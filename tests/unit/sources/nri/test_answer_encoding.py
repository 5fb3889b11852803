"""Answers to NRI's calls as bytes."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.domain.runtime_call import Adjustment, SideUpdate
from vmpin.sources.nri.answer_encoding import encode_answer, encode_list_answer
from vmpin.sources.nri.decider import CpuAnswer
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES

C7, C8 = ContainerId("c7"), ContainerId("c8")


def test_an_answer_that_changes_nothing_has_no_byte() -> None:
    for verb in (Verb.CREATE, Verb.UPDATE, Verb.STOP):
        assert encode_answer(verb, CpuAnswer()) == b""
        assert encode_answer(verb, CpuAnswer(updates=(SideUpdate(C7, CpuSet()),))) == b""


def test_a_creations_answer_alone_has_an_adjustment() -> None:
    answer = CpuAnswer(Adjustment(CpuSet((2, 3)), None, {"a": "b"}, {}), (SideUpdate(C7, CpuSet((0,))),))
    created = MESSAGES.decode("CreateContainerResponse", encode_answer(Verb.CREATE, answer))
    assert (created.adjust.linux.resources.cpu.cpus, dict(created.adjust.annotations)) == ("2-3", {"a": "b"})
    for verb in (Verb.UPDATE, Verb.STOP):
        assert encode_answer(verb, answer) == encode_answer(verb, answer._replace(adjustment=None)) != b""


def test_a_lists_answer_echoes_more_and_leaves_out_empty_updates() -> None:
    assert MESSAGES.decode("SynchronizeResponse", encode_list_answer((), more=True)).more
    last = MESSAGES.decode("SynchronizeResponse", encode_list_answer(
        [SideUpdate(C7, CpuSet((1,))), SideUpdate(C8, CpuSet())], more=False))
    assert (last.more, [each.container_id for each in last.update]) == (False, ["c7"])
