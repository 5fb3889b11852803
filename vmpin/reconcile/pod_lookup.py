"""The pods of sandboxes and containers, by which log lines name them (`log.name_pods`)."""

from collections.abc import Callable, Collection, Iterator, Mapping

from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import SandboxId, uid_of

#: Sandboxes that are remembered after their end: lines about it follow.
ENDED = 256


class PodLookup:
    """Called only for a line that is shown, in any thread. :param sandboxes: returns the sandboxes that are known.
    :param claims: returns the uids of pods by claim uid, None if they are unknown."""

    def __init__(self, sandboxes: Callable[[], Mapping[SandboxId, SandboxState]],
                 claims: Callable[[], Mapping[str, Collection[str]] | None]) -> None:
        self._sandboxes, self._claims = sandboxes, claims
        self._ended: dict[SandboxId, SandboxState] = {}

    def keep(self, ended: SandboxState) -> None:
        """Remember a sandbox that is removed from the state."""
        self._ended.pop(ended.id, None)
        self._ended[ended.id] = ended
        if len(self._ended) > ENDED:
            del self._ended[next(iter(self._ended))]

    def pod_of(self, text: str) -> str:
        """`namespace/name` of the pod that an id names, or a path that has an id; "" if it is unknown."""
        return next((f"{state.pod.namespace}/{state.pod.name}" for name in _names_in(text)
                     for state in self._states_of(name) if state.pod is not None), "")

    def _states_of(self, name: str) -> Iterator[SandboxState]:
        """The sandbox that is known now, then the ended one: a VM that outlives its pod's end comes back nameless."""
        uids = (self._claims() or {}).get(name, ())
        for states in self._sandboxes(), dict(self._ended):
            if (state := states.get(SandboxId(name))) is not None:
                yield state
            else:
                yield from (other for other in states.values()
                            if name in other.containers or (uids and uid_of(other.pod) in uids))


def _names_in(text: str) -> Iterator[str]:
    """The text itself; of a path, up to `: `, what can be an id: its parts, and those of systemd's and Kata's cgroups
    (cri-containerd-ID.scope, kata_ID) and of the CDI specs of claims (…claim-UID.json) without what is around it."""
    path = text.partition(": ")[0]
    if "/" not in path:
        yield text
        return
    for part in reversed(path.split("/")):
        stem = part.removesuffix(".scope").removesuffix(".json").removeprefix("kata_")
        yield from (stem, stem.rpartition("-")[2], stem.partition("claim-")[2])
