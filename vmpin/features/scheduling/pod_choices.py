"""The classes that pods choose by annotation, from NRI. Pure.

Only pods of privileged namespaces may: a pod's namespace is the one that the kubelet gave the runtime, which no author
of a pod can forge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from vmpin.domain.model import SandboxId
from vmpin.domain.terminal import excerpt
from vmpin.features.scheduling.sched_class import SchedClass, parse_class
from vmpin.named_tuple import NamedTuple
from vmpin.sources.nri.nri_events import NriEvent, NriPod, PodEvent, Synced
from vmpin.wire.nri_enums import Verb

ANNOTATION = "vcpu-class.vmpin.io"


class PodChoice(NamedTuple):
    """The class that a pod's annotation chose, None for other. `ignored`: why it does not count, "" if it does."""

    wanted: SchedClass | None
    ignored: str = ""


def choice_of(pod: NriPod, privileged: frozenset[str]) -> PodChoice | None:
    """Read a pod's annotation; None without it."""
    if (value := pod.annotations.get(ANNOTATION)) is None:
        return None
    quoted = f"its annotation {ANNOTATION}={excerpt(value, 40)} does not count"
    if pod.namespace not in privileged:
        return PodChoice(None, f"{quoted}: scheduling.privileged_namespaces lacks {excerpt(pod.namespace, 63)}")
    try:
        return PodChoice(parse_class(value))
    except ValueError as err:
        return PodChoice(None, f"{quoted}: it {err}")


class PodChoices:
    """The choices of the pods that there are, by sandbox. :param default: the class of all others."""

    def __init__(self, default: SchedClass | None, privileged: frozenset[str],
                 choices: Mapping[SandboxId, PodChoice] = MappingProxyType({})) -> None:
        self._default, self._privileged = default, privileged
        self._choices = dict(choices)

    def by_classes(self, classes: Mapping[SandboxId, SchedClass]) -> PodChoices:
        """The choices where pods' annotations are not known, given the classes that vmpin has set."""
        return PodChoices(None if self._privileged else self._default, self._privileged, {
            sandbox: PodChoice(its) for sandbox, its in classes.items()})

    def take(self, events: Sequence[NriEvent]) -> None:
        """Follow events of NRI."""
        for event in events:
            match event:
                case Synced():
                    self._choices = {pod.id: choice for pod in event.pods
                                     if (choice := choice_of(pod, self._privileged)) is not None}
                case PodEvent(verb=Verb.RUN_POD):
                    if (choice := choice_of(event.pod, self._privileged)) is not None:
                        self._choices[event.pod.id] = choice
                case PodEvent(verb=Verb.REMOVE_POD):
                    self._choices.pop(event.pod.id, None)

    def of(self, sandbox: SandboxId) -> PodChoice:
        """The choice of a pod; one without an annotation that counts has the default."""
        choice = self._choices.get(sandbox)
        if choice is None:
            return PodChoice(self._default)
        return choice._replace(wanted=self._default) if choice.ignored else choice

    def annotated(self, sandbox: SandboxId) -> bool:
        """Whether a pod has an annotation that counts."""
        choice = self._choices.get(sandbox)
        return choice is not None and not choice.ignored
