"""NRI's enums: its calls about pods and containers by number and name, and the states of containers.

Sources: containerd/nri pkg/api/api.proto (enum Event, enum ContainerState, service Plugin). Apart from the messages
(nri_messages), as these load the protobuf library."""

import enum
from collections.abc import Mapping
from typing import Final

#: enum ContainerState.
UNKNOWN, CREATED, PAUSED, RUNNING, STOPPED = 0, 1, 2, 3, 4


class Verb(enum.IntEnum):
    """`enum Event`: a request (CREATE, START, UPDATE), which may yet fail, or (POST_…) that it has been done."""

    RUN_POD, STOP_POD, REMOVE_POD = 1, 2, 3
    CREATE, POST_CREATE, START, POST_START = 4, 5, 6, 7
    UPDATE, POST_UPDATE, STOP, REMOVE = 8, 9, 10, 11
    UPDATE_POD, POST_UPDATE_POD, VALIDATE = 12, 13, 14


#: The calls about one event each, all with the pod as field 1 and the container as field 2. Until 0.11 most came as
#: StateChange; 0.12 tries a call of its own first.
METHODS: Final[Mapping[str, Verb]] = {
    "RunPodSandbox": Verb.RUN_POD, "StopPodSandbox": Verb.STOP_POD, "RemovePodSandbox": Verb.REMOVE_POD,
    "CreateContainer": Verb.CREATE, "PostCreateContainer": Verb.POST_CREATE, "StartContainer": Verb.START,
    "PostStartContainer": Verb.POST_START, "UpdateContainer": Verb.UPDATE, "PostUpdateContainer": Verb.POST_UPDATE,
    "StopContainer": Verb.STOP, "RemoveContainer": Verb.REMOVE, "UpdatePodSandbox": Verb.UPDATE_POD,
    "PostUpdatePodSandbox": Verb.POST_UPDATE_POD, "ValidateContainerAdjustment": Verb.VALIDATE,
}


def mask(*verbs: int) -> int:
    """The bits by which a plugin asks for `verbs`, in its reply to Configure.

    >>> hex(mask(Verb.RUN_POD, Verb.STOP_POD, Verb.REMOVE_POD, Verb.POST_START))
    '0x47'
    """
    return sum(1 << (verb - 1) for verb in set(verbs))
