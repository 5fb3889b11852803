"""What NRI has told and nobody has taken yet, bounded: when it is too much, all is dropped, as the runtime lists
everything anew to who connects again.
"""

from __future__ import annotations

import threading
from collections import deque

from vmpin.sources.nri.translation import ContainerEvent, Disconnected, NriEvent, PodEvent, Synced

#: A thousand updates in one second are a lot; a handler that is 16 s behind has other troubles.
MAX_WAITING = 16384
#: Of the peer's, about: annotations may be long.
MAX_WAITING_BYTES = 64 << 20


class NriQueue:
    """First in, first out, for one thread that puts and one that takes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[tuple[NriEvent, int]] = deque()
        self._size = 0
        self._ended = False

    def put(self, event: NriEvent) -> bool:
        """:returns: False when it was too much, and all is gone but what no list of the runtime's would tell."""
        size = _size(event)
        mine = isinstance(event, Disconnected)
        with self._changed:
            fits = mine or (len(self._events) < MAX_WAITING and self._size + size <= MAX_WAITING_BYTES)
            if fits:
                self._events.append((event, size))
                self._size += size
            else:
                self._events = deque(item for item in self._events if isinstance(item[0], Disconnected))
                self._size = 0
            self._changed.notify()
        return fits

    def take(self) -> NriEvent | None:
        """Waits for the next; None at the end, whatever is left."""
        with self._changed:
            while not self._events and not self._ended:
                self._changed.wait()
            if self._ended:
                return None
            event, size = self._events.popleft()
            self._size -= size
            return event

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()


def _size(event: NriEvent) -> int:
    """About how many bytes of the peer's it holds."""
    match event:
        case Synced():
            holders = [pod.annotations for pod in event.pods] + [item.annotations for item in event.containers]
        case PodEvent():
            holders = [event.pod.annotations]
        case ContainerEvent():
            holders = [event.container.annotations] + ([] if event.pod is None else [event.pod.annotations])
        case _:
            return 0
    return sum(1024 + sum(len(key) + len(value) for key, value in held.items()) for held in holders)
