"""How many requests the reporter makes, by the API server's own audit log: none at rest, and few where the server is
away, forgets, hangs or does not accept the token. Of both generations of the package kubernetes, at once.

Steps are counted and not seconds: that the pauses between them are as long as they should be is read from the log."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from cluster.build import Programs
from cluster.reporter_node import CLIENTS, NODES, ReporterNode, client, prepare, until
from cluster.server import MERGE, ApiServer
from vmpin.features.cluster.kube.node_pinning import REFRESH
from vmpin.features.cluster.reporter.loop_pauses import FIRST, LONGEST
from vmpin.features.cluster.reporter.pod_watch import WATCH_SECONDS

pytestmark = pytest.mark.cluster

_numbers = itertools.count()
PODS = "/api/v1/namespaces/default/pods"
KEPT_ALIVE = "02"


class Both:
    """A node for each client at one server, with running reporters and three pods each; and what the server had
    served of them at the last `mark`."""

    def __init__(self, server: ApiServer, stack: ExitStack) -> None:
        self.server = server
        prepare(server)
        self.nodes: list[ReporterNode] = []
        self._floating: set[str] = set()
        for version in CLIENTS:
            package = stack.enter_context(client(version))
            name = f"node-{next(_numbers)}"
            token = server.service_account("vmpin", "reporter", node=name)
            self.nodes.append(stack.enter_context(ReporterNode(server, name, package, token)))
        for node in self.nodes:
            names = [f"{node.name}-{number}" for number in range(3)]
            for name in names:
                node.pod(name)
            node.peer.report(*map(node.entry, names))
            node.start()
        for node in self.nodes:
            for number in range(3):
                self.until(node, lambda: node.events(f"{node.name}-{number}") == ["Pinned"])  # noqa: B023
            self.until(node, node.pinning)
        self.mark()

    @staticmethod
    def until(node: ReporterNode, holds: Callable[[], object]) -> None:
        until(holds, node.log()[-3000:])

    def mark(self) -> None:
        self._marked, self._at = len(self.server.served()), time.monotonic()

    def since(self, node: ReporterNode) -> Counter[str]:
        """Requests of a node that came after the mark; without those that a server refuses as long as it starts (403
        before it has read its roles). Where this took so long that a refresh or the end of a watch was due, those are
        left out."""
        found = Counter(each.short for each in self.server.served()[self._marked:]
                        if each.node == node.name and each.code not in (403, 429) and each.code < 500)
        seconds = time.monotonic() - self._at
        for short, every in (("get nodes", REFRESH), ("patch nodepinnings", REFRESH), ("watch pods",
                                                                                      WATCH_SECONDS // 2)):
            found[short] -= min(found[short], int(seconds // every))
        return +found

    def events(self, node: ReporterNode) -> int:
        """Events since the mark: one that was there before has its count raised."""
        found = self.since(node)
        return found["create events"] + found["patch events"]

    def refusals(self, node: ReporterNode) -> list[int]:
        """Why conditions were refused."""
        return [each.code for each in self.server.served()[self._marked:]
                if (each.node, each.short) == (node.name, "patch pods/status") and each.code >= 400]

    def refused(self) -> int:
        """Requests since the mark whose token was not accepted."""
        return sum(each.code == 401 for each in self.server.served()[self._marked:])

    def change(self, node: ReporterNode) -> str:
        """Another state of the first pod. :returns: the reason that its condition is to have."""
        self._floating ^= {node.name}
        verdict, reason = ("floating", "NoExclusiveCPUs") if node.name in self._floating else ("pinned", "Pinned")
        node.peer.report(node.entry(f"{node.name}-0", verdict=verdict))
        return reason

    def shown(self, node: ReporterNode, reason: str) -> None:
        self.until(node, lambda: node.shows(f"{node.name}-0", reason))

    def new_pod(self, node: ReporterNode) -> None:
        """The watch is well: a new pod gets its condition."""
        name = f"{node.name}-new-{next(_numbers)}"
        node.pod(name)
        node.peer.report(node.entry(name))
        self.until(node, lambda: node.shows(name, "Pinned"))


@pytest.fixture(scope="module")
def both(built: Programs) -> Iterator[Both]:
    with ExitStack() as stack:
        yield Both(stack.enter_context(ApiServer(built)), stack)


@pytest.fixture
def own(built: Programs) -> Iterator[Both]:
    """For one test alone: pauses that have grown would take longer in the next one."""
    with ExitStack() as stack:
        yield Both(stack.enter_context(ApiServer(built)), stack)


@pytest.fixture(scope="module", autouse=True)
def frozen(built: Programs) -> Iterator[tuple[Both, list[str]]]:
    """A server that hangs since before the first test of this file, each reporter with something to write; and the
    reasons that its condition is to show."""
    with ExitStack() as stack:
        both = Both(stack.enter_context(ApiServer(built)), stack)
        both.server.freeze()
        yield both, [both.change(node) for node in both.nodes]


def timers(pid: int, port: int) -> set[str]:
    """Of a process's connections to a port, as /proc/net/tcp has them (kernel, net/ipv4/tcp_ipv4.c)."""
    own = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            own.add(os.readlink(file))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {each[5].partition(":")[0] for each in lines
            if each[2].endswith(f":{port:04X}") and f"socket:[{each[9]}]" in own}


def doubling(pauses: list[float]) -> bool:
    """Each at least twice the one before, up to the longest, but for the quarter that is left to chance."""
    return all(each >= 0.74 * min(FIRST * 2 ** step, LONGEST) for step, each in enumerate(pauses))


def test_at_rest_there_is_no_request_but_the_watch(both: Both) -> None:
    """Whatever is reported again, and whatever changes of pods and the node that is not the reporter's."""
    server = both.server
    for node in both.nodes:
        for beat in range(100):
            node.peer.report()
            if beat % 10 == 0:
                for number in range(3):
                    status = {"status": {"phase": "Running", "conditions": [
                        {"type": "Ready", "status": "True" if beat % 20 else "False"}]}}
                    kind = "application/strategic-merge-patch+json"  # it leaves the other conditions
                    path = f"{PODS}/{node.name}-{number}/status"
                    assert server.request("PATCH", path, status, kind=kind).code == 200
                server.request("PATCH", f"{NODES}/{node.name}", {"metadata": {"labels": {"a": str(beat)}}}, kind=MERGE)
    for node in both.nodes:
        both.shown(node, both.change(node))
    for node in both.nodes:
        both.until(node, lambda: both.since(node)["create events"])  # noqa: B023
        found = both.since(node)
        # Of the change, the object of the node may be written by now, and may not.
        found.pop("patch nodepinnings", None)
        assert found == {"patch pods/status": 1, "create events": 1}
        assert {each.agent for each in server.served() if each.node == node.name} == {"vmpin-reporter"}
        # A watch whose other end is gone without a word would be silent for as long as it lasts.
        both.until(node, lambda: timers(node.pid, server.port) == {KEPT_ALIVE})  # noqa: B023


def test_a_server_that_is_away_is_asked_once_a_step(both: Both) -> None:
    server = both.server
    server.kill()
    reasons = [both.change(node) for node in both.nodes]
    for node in both.nodes:
        both.until(node, lambda: min(len(node.pauses("watch pods")), len(node.pauses("PATCH"))) >= 3)  # noqa: B023
        assert doubling(node.pauses("watch pods"))
        assert doubling(node.pauses("PATCH"))
    both.mark()  # while it is away: a node writes its change as soon as the server answers
    server.start()
    for node, reason in zip(both.nodes, reasons, strict=True):
        both.shown(node, reason)
        both.new_pod(node)
    for node in both.nodes:
        both.until(node, lambda: both.events(node) == 2)  # noqa: B023
        found = both.since(node)
        assert found["patch pods/status"] == 2
        # Its version may be older than what the server has at hand after its start.
        assert (found["list pods"], found["watch pods"]) in ((0, 1), (1, 2), (1, 1))
        assert found.keys() <= {"patch pods/status", "patch events", "create events", "list pods", "watch pods",
                                "patch nodepinnings"}


def test_a_token_and_a_ca_that_are_not_accepted_are_tried_once_a_step(own: Both) -> None:
    both, server = own, own.server
    for node in both.nodes:
        server.expire(node.token)
    server.restart(new_ca=True)  # so that the watches begin again, too
    reasons = [both.change(node) for node in both.nodes]

    for node in both.nodes:
        for what in "(?:watch|list) pods: Unauthorized", "PATCH .*: Unauthorized":
            both.until(node, lambda: len(node.pauses(what)) >= 2)  # noqa: B023
    for node in both.nodes:
        node.set_token(server.service_account("vmpin", "reporter", node=node.name))
    for node, reason in zip(both.nodes, reasons, strict=True):
        both.shown(node, reason)
        both.new_pod(node)
    assert both.refused() == sum(len(node.pauses(".*: Unauthorized")) for node in both.nodes)


def test_a_past_that_is_forgotten_takes_one_list(built: Programs) -> None:
    """And a pod that was made again meanwhile, which the reporter cannot know, does not get the other's condition."""
    with ExitStack() as stack:
        both = Both(stack.enter_context(ApiServer(built, watch_cache=False)), stack)
        server = both.server
        server.faults({"code": 503, "reason": "ServiceUnavailable", "verbs": ["watch"], "resources": ["pods"]})
        server.restart()
        for node in both.nodes:
            both.until(node, lambda: node.pauses("faults.json"))  # noqa: B023
            name = f"{node.name}-0"
            of_the_old = node.entry(name, verdict="floating")
            node.delete_pod(name)
            node.pod(name)
            node.peer.report(of_the_old)
            both.until(node, lambda: both.refusals(node))  # noqa: B023
            assert both.refusals(node) == [422]  # which is a conflict here
            assert node.condition(name) is None
            assert "ERROR" not in node.log()
        server.compact()
        both.mark()
        server.faults()
        for node in both.nodes:
            both.new_pod(node)
        for node in both.nodes:
            assert both.since(node)["list pods"] == 1
            name = f"{node.name}-0"
            assert node.condition(name) is None
            node.peer.report(node.entry(name))
            both.until(node, lambda: node.shows(name, "Pinned"))  # noqa: B023


def test_a_server_that_was_frozen_for_half_a_minute_loses_nothing(frozen: tuple[Both, list[str]]) -> None:
    both, reasons = frozen
    for node in both.nodes:  # ten seconds for the answer, and five each to connect
        both.until(node, lambda: len(node.pauses("imed out")) >= 4)  # noqa: B023
    both.server.thaw()
    for node, reason in zip(both.nodes, reasons, strict=True):
        both.shown(node, reason)
        both.new_pod(node)
    for node in both.nodes:
        found = both.since(node)
        assert doubling(node.pauses("PATCH"))
        # At most one for each attempt, and that of the new pod; the watches have gone on.
        assert found["patch pods/status"] <= len(node.pauses("imed out")) + 2
        assert (found["list pods"], found["watch pods"]) == (0, 0)
