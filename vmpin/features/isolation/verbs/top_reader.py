"""Reads the node for `vmpin top`: the watcher's status, for what `vmpin status` asks, and samples of all threads."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace

from vmpin.cli.control_client import DEADLINE, Document, ask_raw, read_status
from vmpin.config.settings import Config
from vmpin.cpuset import EMPTY
from vmpin.errors import VmpinError
from vmpin.features.isolation.top.interval_sampler import IntervalSampler
from vmpin.features.isolation.top.node_description import NodeDescription, describe
from vmpin.features.isolation.top.pod_usage import NodeUsage, usage
from vmpin.features.isolation.top.thread_intervals import UsageInterval
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.status.pod_arguments import NamedSandbox, matches_of, only_match

#: Seconds that a watcher has for an answer once it has given one: the last answer is used meanwhile.
_LATER = 5.0
#: However short the delay, the watcher is asked no more often than at the default one (seconds, less a little, as no
#: refresh comes on time); and read directly, the node at most this share of the time.
_ASK, _SHARE = 2.5, 0.05


class NodeReader:
    """:param pods: the arguments POD; [] for all. :param namespace: of these pods; "" for any."""

    def __init__(self, config: Config, direct: bool, pods: Sequence[str], namespace: str) -> None:
        self._config, self._direct = config, direct
        self._pods, self._namespace = pods, namespace
        proc = Procfs(config.paths.proc)
        self._sampler = IntervalSampler(proc, Cgroups(config.paths.cgroup, proc))
        self._described: NodeDescription | None = None
        self._chosen: frozenset[str] | None = None
        self._answer = b""
        self._next = 0.0
        #: What is amiss with the watcher, "" for nothing.
        self.trouble = ""

    def first(self) -> None:
        """Take the first sample. :raises UsageError: for an argument that names no pod."""
        self._describe(self._document(DEADLINE))
        named = self._named()
        for text in self._pods:
            only_match(text, self._namespace, named, noun="pod of a VM, or with exclusive CPUs,")
        self._sample()

    def read(self) -> NodeUsage:
        """The usage since the last call."""
        self._refresh()
        interval = self._sample()
        assert self._described is not None
        assert interval is not None
        result = usage(self._described, interval)
        if self._described.changed:
            self._described = replace(self._described, changed=EMPTY)
        return self._only(result)

    def _only(self, usage: NodeUsage) -> NodeUsage:
        """The chosen pods alone."""
        chosen = self._chosen
        if chosen is None:
            return usage
        return replace(usage, pods=tuple(row for row in usage.pods if row.pod.id in chosen),
                       foreign_threads=tuple(thread for thread in usage.foreign_threads if thread.owner in chosen))

    def _sample(self) -> UsageInterval | None:
        description = self._described
        assert description is not None
        return self._sampler.sample(description.owned, description.by_tid)

    def _refresh(self) -> None:
        if time.monotonic() < self._next:
            return
        try:
            self._describe(self._document(_LATER))
        except VmpinError as err:
            if not self.trouble.startswith("since"):
                hint = f"; {err.hint}" if err.hint else ""
                self.trouble = f"since {time.strftime('%H:%M:%SZ', time.gmtime())} {err}{hint}"

    def _document(self, deadline: float) -> bytes | Document:
        """The watcher's answer, or without one what this process reads."""
        began = time.monotonic()
        self._next = began + _ASK
        request: Document = {"op": "status", "wide": False, "pods": True}
        raw = None if self._direct else ask_raw(self._config, request, has_direct=True, deadline=deadline)
        self.trouble = "" if raw is not None or self._direct else "no watcher runs"
        if raw is not None:
            return raw
        self._answer = b""
        document = read_status(self._config, pods=True)
        self._next = max(self._next, began + (time.monotonic() - began) / _SHARE)
        return document

    def _describe(self, answer: bytes | Document) -> None:
        if isinstance(answer, bytes):
            lasting = _lasting(answer)
            if lasting and lasting == self._answer:
                return
            self._answer, answer = lasting, json.loads(answer)
        self._described = describe(answer, self._described)  # type: ignore[arg-type]
        named = self._named()
        if self._pods:
            self._chosen = frozenset(pod.sandbox.id for text in self._pods
                                     for pod in matches_of(text, self._namespace, named))
        elif self._namespace:
            self._chosen = frozenset(pod.id for pod in named if pod.namespace == self._namespace)

    def _named(self) -> list[NamedSandbox]:
        assert self._described is not None
        return [NamedSandbox(pod.id, pod.namespace, pod.name) for pod in self._described.pods]


def _lasting(answer: bytes) -> bytes:
    """Return the part of an answer that a node at rest repeats: all but the time and the counters of its sources. b""
    where that is not found. Within a string of JSON no quote stands alone, so no name can look like a key."""
    head, _, rest = answer.partition(b',"sources":')
    node, others = head.partition(b'"watcher":')[2], rest.partition(b',"features":')[2]
    return node + others if node and others else b""
