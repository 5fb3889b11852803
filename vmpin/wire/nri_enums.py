"""NRI's enums: its calls about pods and containers by number and name, and the states of containers.

Sources: containerd/nri pkg/api/api.proto (enum Event, enum ContainerState, service Plugin). Apart from the messages
(nri_messages), as these load the protobuf library.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

#: enum ContainerState.
UNKNOWN, CREATED, PAUSED, RUNNING, STOPPED = 0, 1, 2, 3, 4


class Verb(enum.IntEnum):
    """What is asked for or has been done: `enum Event`. A request (CREATE, START, UPDATE) may yet fail; POST_… reports
    that it has been done."""

    RUN_POD = 1
    STOP_POD = 2
    REMOVE_POD = 3
    CREATE = 4
    POST_CREATE = 5
    START = 6
    POST_START = 7
    UPDATE = 8
    POST_UPDATE = 9
    STOP = 10
    REMOVE = 11
    UPDATE_POD = 12
    POST_UPDATE_POD = 13
    VALIDATE = 14


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
    bits = 0
    for verb in verbs:
        bits |= 1 << (verb - 1)
    return bits
