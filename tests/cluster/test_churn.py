"""110 pods that come, change, go and come again under their names: the conditions are right in the end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cluster.build import Programs
from cluster.reporter_node import CLIENTS, ReporterNode, client, prepare, until
from cluster.server import ApiServer

pytestmark = pytest.mark.cluster

PODS = 110
#: Verdicts, and the reasons that conditions show for them.
REASONS = {"pinned": "Pinned", "floating": "NoExclusiveCPUs", "degraded": "PinningDegraded"}


class Story:
    """What happens to the pods, by chance. `verdicts` is what their sandboxes have, without a VM none."""

    def __init__(self, node: ReporterNode, seed: int) -> None:
        self.node, self.random = node, random.Random(seed)
        self.verdicts: dict[str, str] = {}
        self.uids: dict[str, str] = {}
        self.reports = self.made = 0
        for _ in range(PODS):
            self.make()

    def make(self, name: str = "") -> None:
        """Nine in ten run in a VM."""
        self.made += 1
        name = name or f"pod-{self.made}"
        self.uids[name] = self.node.pod(name)
        if self.random.random() < 0.9:
            self.report(name)
        else:
            self.end(name)

    def end(self, name: str) -> None:
        """Of a sandbox."""
        if self.verdicts.pop(name, None) is not None:
            self.node.peer.report(gone=(f"sandbox-{name}",))
            self.reports += 1

    def report(self, name: str) -> None:
        self.verdicts[name] = self.random.choice(list(REASONS))
        self.node.peer.report(self.node.entry(name, verdict=self.verdicts[name]))
        self.reports += 1

    def step(self) -> None:
        name = self.random.choice(list(self.uids))
        kind = self.random.randrange(4)
        if kind <= 1:
            self.report(name)
            return
        if self.random.random() < 0.5:  # before the pod, or after it
            self.end(name)
        self.node.delete_pod(name)
        if kind == 2:  # the same name at once: what is reported may be of the pod before
            self.make(name)
        else:
            self.end(name)
            del self.uids[name]
            self.make()


def conditions(server: ApiServer, node: str) -> dict[str, str]:
    """Reasons by uid."""
    items: list[dict[str, Any]] = server.get("/api/v1/pods", fieldSelector=f"spec.nodeName={node}").body["items"]
    return {each["metadata"]["uid"]: condition["reason"] for each in items
            for condition in each["status"].get("conditions") or () if condition["type"] == "vmpin.io/CPUsPinned"}


def test_110_pods_that_come_and_go_have_the_right_conditions_in_the_end(built: Programs) -> None:
    with ApiServer(built) as server, client(CLIENTS[-1]) as package:
        prepare(server)
        token = server.service_account("vmpin", "reporter", node="full")
        with ReporterNode(server, "full", package, token) as node:
            story = Story(node, 7)
            node.start()
            until(lambda: conditions(server, "full"), node.log())
            for _ in range(150):
                story.step()
            wanted = {story.uids[name]: REASONS[verdict] for name, verdict in story.verdicts.items()}
            until(lambda: conditions(server, "full") == wanted, node.log()[-3000:])
            until(lambda: (node.pinning() or {}).get("status", {}).get("total") == len(wanted), node.log()[-3000:])
            served = [each for each in server.served() if each.node == "full"]
            assert {each.code for each in served} <= {200, 201, 404, 409, 422}
            # A change that the next one overtakes may be left out; none is written twice.
            patched = sum(each.short == "patch pods/status" and each.code == 200 for each in served)
            assert len(wanted) <= patched <= story.reports
            assert [each.short for each in served].count("list pods") == 1
