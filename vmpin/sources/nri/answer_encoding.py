"""What is sent to the runtime, as bytes: the answers to its calls, and the registration.

Sources: containerd/nri pkg/api/api.proto; pkg/adaptation/result.go (an empty CPU list means no change).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from vmpin.domain.runtime_call import Adjustment, SideUpdate
from vmpin.sources.nri.decider import CpuAnswer
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES

_RESPONSES: Final = {Verb.CREATE: "CreateContainerResponse", Verb.UPDATE: "UpdateContainerResponse",
                     Verb.STOP: "StopContainerResponse"}


def encode_registration(name: str, index: str) -> bytes:
    """The plugin's own call, RegisterPlugin."""
    return bytes(MESSAGES["RegisterPluginRequest"](plugin_name=name, plugin_idx=index).SerializeToString())


def encode_configured(events: int) -> bytes:
    """The answer to Configure. :param events: the mask of the events that are asked for."""
    return bytes(MESSAGES["ConfigureResponse"](events=events).SerializeToString())


def encode_list_answer(updates: Iterable[SideUpdate], more: bool) -> bytes:
    """The answer to a part of a list. :param more: that of the part: a plugin that does not echo it is taken for one
    that cannot do parts, and dropped."""
    return bytes(MESSAGES["SynchronizeResponse"](more=more, update=_updates(updates)).SerializeToString())


def encode_answer(verb: Verb, answer: CpuAnswer) -> bytes:
    """The answer to CREATE, UPDATE or STOP; without a byte where it changes nothing."""
    if answer.adjustment is None and not answer.updates:
        return b""
    message = MESSAGES[_RESPONSES[verb]](update=_updates(answer.updates))
    if verb is Verb.CREATE and answer.adjustment is not None:
        message.adjust.CopyFrom(_adjustment(answer.adjustment))
    return bytes(message.SerializeToString())


def _adjustment(adjustment: Adjustment) -> Any:
    message = MESSAGES["ContainerAdjustment"](
        annotations=dict(adjustment.annotations),
        env=[{"key": key, "value": value} for key, value in adjustment.env.items()])
    if adjustment.cpus:
        message.linux.resources.cpu.cpus = str(adjustment.cpus)
    if adjustment.mems:
        message.linux.resources.cpu.mems = str(adjustment.mems)
    return message


def _updates(updates: Iterable[SideUpdate]) -> Iterator[Any]:
    """CRI-O fails the whole call for one update that fails, unless that may be ignored (internal/nri/nri.go);
    containerd logs it only. An update to no CPU is left out: it would mean no change, where other CPUs are meant."""
    for container, cpus in updates:
        if cpus:
            message = MESSAGES["ContainerUpdate"](container_id=container, ignore_failure=True)
            message.linux.resources.cpu.cpus = str(cpus)
            yield message
