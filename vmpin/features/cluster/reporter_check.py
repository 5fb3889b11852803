"""The doctor's check of the connection between the node's reporter and the API server. Pure."""

from __future__ import annotations

from vmpin.domain.facts import NodeFacts
from vmpin.features.common.finding import Check, CheckResult, ok, warn


def reporter(facts: NodeFacts) -> CheckResult:
    for source in facts.watcher.about.get("sources", ()):
        if source["name"] == "reporter":
            if source["up"]:
                return ok("the reporter of this node reaches the API server")
            return warn(f"the reporter of this node does not reach the API server: {source['why']}",
                        "nothing that pins depends on it; the log of its pod: kubectl logs "
                        "-l app.kubernetes.io/component=reporter --prefix")
    return ok("no reporter has lately reported trouble with the API server: it reaches it, or none runs")


CHECKS = (Check("reporter", "whether this node's reporter reaches the API server", reporter),)
