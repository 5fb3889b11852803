"""The requests of the control and the status socket: JSON objects that the command line sends to the watcher."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any

from vmpin import log
from vmpin.bounded import load_json
from vmpin.domain.model import SandboxId
from vmpin.errors import VmpinError, WatcherError
from vmpin.feature import SocketRequest, present, status_of
from vmpin.host.sockets import Stream
from vmpin.reconcile.teardown import all_done
from vmpin.status import collector
from vmpin.status.collector import WatcherStatus, encoded

if TYPE_CHECKING:
    from vmpin.daemon.watcher import Watcher

logger = logging.getLogger(__name__)

_OTHER_VERSION = "are vmpin and its watcher the same version?"

#: The most bytes of a request.
MAX_REQUEST = 65536
#: Lines about requests that failed: so many at once, and one more for every so many seconds.
LINES = 16, 60.0
#: Operations that change nothing: members of watch.status_group may ask for them.
READING = ("status",)


class Control:
    """The operations of the core and of features.
    :param reading: the status socket: refuse operations that change something, also to root, but for those of features
        that come there alone (`SocketRequest.handed`)."""

    def __init__(self, watcher: Watcher, reading: bool = False) -> None:
        self._watcher = watcher
        self._reading = reading
        self._lines = log.LineLimit(*LINES)
        self._of_features = {name: request for part in watcher.parts.values()
                             for name, request in part.requests.items()}

    async def answer(self, raw: bytes, uid: int) -> bytes | Stream:
        """Answer one request: `op`, `sandbox` where it is about a single one, and what the operation needs."""
        try:
            request = load_json(raw)
            operation = request["op"]
            of_feature = self._of_features.get(operation)
            self._permit(operation, of_feature, uid)
            if of_feature is not None and of_feature.admit is not None:
                of_feature.admit()
            name = request.get("sandbox")
            only = None if name is None else SandboxId(str(name))
            if only is not None and only not in self._watcher.view.sandboxes:
                raise WatcherError(f"no sandbox {only!r} is known", "`vmpin status` lists them")
            if of_feature is not None:
                return await _answered(of_feature.answer(request, only))
        except (ValueError, KeyError, TypeError, RecursionError):
            answer = {"error": "the request is not understood", "hint": _OTHER_VERSION}
        except VmpinError as err:
            answer = {"error": str(err), "hint": err.hint}
        else:
            return await self._carry_out(str(operation), request, only)
        return encoded(answer) + b"\n"

    async def _carry_out(self, operation: str, request: dict[str, object], only: SandboxId | None) -> bytes:
        """Answer a request of the core. An error other than vmpin's own is no fault of the request."""
        try:
            if operation == "status":
                return self._status(request, only)
            answer = self._answer(operation, only)
            if operation == "unpin":
                wanted = list(self._watcher.view.sandboxes) if only is None else [only]
                answer["guests"] = await self._watcher.guests.unpin_results(wanted)
        except VmpinError as err:
            answer = {"error": str(err), "hint": err.hint}
        except Exception as err:
            logger.log(self._lines.spend(logging.ERROR), "request failed request=%s sandbox=%s: in %s: %r", operation,
                       only or "all", log.raised_at(err), err)
            logger.debug("request", exc_info=True)
            answer = {"error": f"{operation}: {err!r}", "hint": "the watcher's log has more"}
        return encoded(answer) + b"\n"

    def _permit(self, operation: str, of_feature: SocketRequest | None, uid: int) -> None:
        """Check the socket and the user. :raises WatcherError: if that socket or user gets no answer."""
        handed = of_feature is not None and of_feature.handed
        if (handed and self._reading) or operation in READING or (of_feature is not None and of_feature.reading):
            return
        if self._reading:
            raise WatcherError(f"{operation}: not answered on this socket", "ask root on the control socket")
        if uid not in (0, os.geteuid()):
            raise WatcherError(f"{operation}: not permitted to uid {uid}", "ask root")
        if handed:
            raise WatcherError(f"{operation}: not answered on this socket", "send it to the status socket")

    def _status(self, request: dict[str, object], only: SandboxId | None) -> bytes:
        """The document as JSON. Each sandbox's entry is encoded at once: those of a thousand sandboxes take 20 MB as
        objects, and 3 MB as text."""
        self._watcher.reconciler.refresh()
        parts, wide = self._watcher.parts, request.get("wide") is True
        members = [*present(part.members for part in parts.values())]
        members += present(part.wide_members for part in parts.values()) if wide or only is not None else ()
        watcher = WatcherStatus(os.getpid(), *self._watcher.feeds(), self._watcher.guests.data, members,
                                status_of(parts))
        document = collector.document(self._watcher.view, watcher, only, wide, request.get("pods") is True, encoded)
        entries: list[bytes] = document.pop("sandboxes")  # type: ignore[assignment]
        return b"".join((encoded(document)[:-1], b',"sandboxes":[', b",".join(entries), b"]}\n"))

    def _answer(self, operation: str, only: SandboxId | None) -> dict[str, object]:
        watcher, reconciler, view = self._watcher, self._watcher.reconciler, self._watcher.view
        if operation == "about" and watcher.about is not None:
            return watcher.about.data(view, watcher.resynced, watcher.source_health())
        if watcher.stopping and operation in ("reconcile", "unpin"):
            raise WatcherError(f"{operation}: the watcher is about to end", "repeat the command when it has ended")
        if operation == "plan":
            others = present(part.planned for part in watcher.parts.values())
            return collector.planned(view, reconciler.resync(act=False), [text for plan in others for text in plan()])
        if operation == "reconcile":
            reconciler.take_back(view.sandboxes if only is None else [only])
            for retry in present(part.retry for part in watcher.parts.values()):
                retry()
            return collector.outcome(watcher.refresh_everything())
        if operation == "unpin":
            touched = view.all_sandboxes() if only is None else [only]
            results = reconciler.unpin(touched)
            watcher.guests.update(view)
            settled = all_done("not given back", ((name, partial(part.settle, touched))
                                                  for name, part in watcher.parts.items() if part.settle is not None))
            return collector.unpinned(results, view.originals.keys() & touched, settled)
        if operation == "unpinning":
            touched = view.all_sandboxes() if only is None else [only]
            return collector.unpinning(view, touched, reconciler.restoring(touched), watcher.guests.managed(touched))
        raise WatcherError(f"unknown request {operation[:40]!r}", _OTHER_VERSION)


async def _answered(answer: dict[str, Any] | Awaitable[dict[str, Any]] | Stream) -> bytes | Stream:
    """A feature's answer as it is sent."""
    if isinstance(answer, AsyncGenerator):
        return answer
    return encoded(answer if isinstance(answer, dict) else await answer) + b"\n"
