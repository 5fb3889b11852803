"""The untrusted text about pods that a reporter handed over last, until it is silent for too long.

Kept for the status alone: control puts it here and has it shown, and nothing else of the watcher reads it
(tests/unit/test_floors.py). A sender costs a bounded request now and then, and the memory of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.domain.desired_state import SandboxState
from vmpin.errors import WatcherError
from vmpin.features.cluster.kube.untrusted_pod import OPERATION, UntrustedPod, decode


class HandedPods:
    """Replaced as a whole by each request. :param clock: a steady one, in seconds."""

    def __init__(self, timeouts: Timeouts = TIMEOUTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeouts, self._clock = timeouts, clock
        self._pods: Mapping[str, UntrustedPod] = {}
        self._admitted = self._taken = float("-inf")  #: By the clock.

    def admit(self) -> None:
        """Count a request, before its work. :raises WatcherError: when another one came just now."""
        now = self._clock()
        if now - self._admitted < self._timeouts.handed_pause:
            raise WatcherError(f"{OPERATION}: came less than {self._timeouts.handed_pause:g} s after another",
                               "send it again later")
        self._admitted = now

    def take(self, request: Mapping[str, Any]) -> int:
        """Replace the pods by those of a request. Returns their number. :raises WireError: then those before stay."""
        self._pods = decode(request)
        self._taken = self._clock()
        return len(self._pods)

    def members(self, sandbox: SandboxState) -> dict[str, object]:
        """The member `untrusted` of a sandbox's entry in the status; None where nothing is known, or not any more."""
        if self._clock() - self._taken >= self._timeouts.handed_kept:
            self._pods = {}
        handed = None if sandbox.pod is None else self._pods.get(sandbox.pod.uid)
        return {"untrusted": None if handed is None else handed.data()}
