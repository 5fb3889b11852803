"""The machine of a story with an API server and a reporter beside the watcher, both killed and started at any time.

Masks must hold at each rest whichever of the two is there. In the end both are, and the API server has to show what is
so."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from cluster.build import programs
from cluster.reporter_node import CLIENTS, ReporterNode, client, prepare
from cluster.server import ApiServer

from soak import oracle
from soak.trouble import TroubledWorld
from soak.world import Guest

_PODS = "/api/v1/namespaces/default/pods"
#: By the oracle's verdict, the condition's reason.
_REASONS = {"pinned": "Pinned", "floating": "NoExclusiveCPUs", "degraded": "PinningDegraded"}


class ClusterWorld(TroubledWorld):
    """`uids` are those of the pods by sandbox; one that was made while there was no API server is not known to it."""

    cluster = True

    def __enter__(self) -> Self:
        super().__enter__()
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(ApiServer(stack.enter_context(programs())))
            self.server = server
            prepare(server)
            token = server.service_account("vmpin", "reporter", node=self.id("node"))
            self.reporter = stack.enter_context(ReporterNode(
                server, self.id("node"), stack.enter_context(client(CLIENTS[-1])), token, run=self.run))
            self.uids: dict[str, str] = {}
            self.server_up, self.reporter_up = True, False
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *failed: Any) -> None:
        self._stack.close()
        super().__exit__(*failed)

    def uid(self, sandbox: str) -> str:
        """Of its pod, which is made."""
        if sandbox not in self.uids:
            self.uids[sandbox] = (self.reporter.pod(sandbox) if self.server_up else secrets.token_hex(16))
        return self.uids[sandbox]

    def _pod_uid(self, guest: Guest) -> str:
        return self.uid(guest.id)

    def state(self, sandbox: str, container: str, bundle: Path, pid: int = 0, **more: object) -> dict[str, object]:
        found = super().state(sandbox, container, bundle, pid, **more)
        annotations = found["annotations"]
        assert isinstance(annotations, dict)
        found["annotations"] = {**annotations, "io.kubernetes.cri.sandbox-uid": self.uid(sandbox)}
        return found

    def remove(self, guest: Guest) -> bool | None:
        done = super().remove(guest)
        if self.server_up:
            self.server.request("DELETE", f"{_PODS}/{guest.id}", {
                "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})
        return done

    # What happens

    def calm(self) -> None:
        super().calm()  # which starts neither the API server nor the reporter
        self.made["rests without an API server"] += not self.server_up
        self.made["rests without a reporter"] += not self.reporter_up

    def turn_server(self) -> None:
        """Kill the API server, or start it again."""
        self.server_up = not self.server_up
        if self.server_up:
            self.server.start()
        else:
            self.server.kill()

    def turn_reporter(self) -> None:
        """Kill the reporter, or start it again."""
        self.reporter_up = not self.reporter_up
        if self.reporter_up:
            self.reporter.start()
        else:
            self.reporter.kill()

    def unreported(self) -> Iterator[str]:
        """Start both where they are not there. What the API server then does not show."""
        if not self.server_up:
            self.turn_server()
        if not self.reporter_up:
            self.turn_reporter()
        held = any(guest.expected.held for guest in self.guests.values())
        for guest in self.running():
            if guest.machine is None or self.server.get(f"{_PODS}/{guest.id}").code != 200:
                continue
            wanted = {"PinningSuspended"} if guest.expected.held else {
                _REASONS[oracle.verdict(guest.expected, guest.machine.vcpus, self.pool)]}
            if held:  # an unpinned VM runs on all CPUs
                wanted.add("CPUCollision")
            if not self.reporter.comes_to(guest.id, wanted):
                yield (f"{guest.id} is {self.reporter.condition(guest.id)} and not {wanted}; the reporter:\n"
                       f"{self.reporter.log()[-3000:]}")
        assert self.reporter.ended() is None, self.reporter.log()
        self.turn_reporter()
