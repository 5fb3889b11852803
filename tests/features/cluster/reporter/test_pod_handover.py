"""What the API server has of pods, handed to the watcher: after a change, to a new watcher, and again."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from kube_given import entry, reported

from vmpin.features.cluster.kube.asked_annotations import decoded_member
from vmpin.features.cluster.kube.pod_record import Pods, record_of
from vmpin.features.cluster.kube.untrusted_pod import UntrustedPod, decode
from vmpin.features.cluster.reporter.loop_pauses import Pauses
from vmpin.features.cluster.reporter.pod_handover import PodHandover
from vmpin.features.cluster.reporter.pod_watch import PodWatch
from vmpin.features.cluster.reporter.status_stream import StatusStream

DEADLINE = 120


def item(name: str, **annotations: str) -> Mapping[str, Any]:
    return {"metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}", "annotations": annotations},
            "status": {"qosClass": "Burstable"}}


class Given:
    """A reporter's stream and watch, as they are after some time, and a watcher's socket."""

    def __init__(self, path: Path, again: float) -> None:
        self.up, self.connections, self.listed = True, 1, True
        self.reported = reported(entry("web"))
        self.items = [item("web"), item("runc")]
        self.answer = b'{"pods":1}\n'
        self.requests: queue.Queue[dict[str, UntrustedPod]] = queue.Queue()
        self.asks: Callable[[str], bool] | None = None
        self.asked: Mapping[str, Mapping[str, str]] = {}  #: Of the request before `next`.
        self.stopping = threading.Event()
        self.made = socket.socket(socket.AF_UNIX)
        self.made.bind(os.fspath(path))
        self.made.listen()
        self.handover = PodHandover(path, cast(StatusStream, self), cast(PodWatch, self), self.stopping, 0.001, again,
                                    Pauses(self.stopping, 0.001, 0.002))
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self._serve, self.handover.run)]

    def pods(self) -> Pods:
        return Pods(pod for each in self.items
                    if (pod := record_of(each, untrusted=True, asks=self.asks)) is not None)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.made.accept()
            except OSError:
                return
            with connection:
                request = json.loads(connection.makefile().readline())
                assert request["op"] == "pods"
                connection.sendall(self.answer)
                self.asked = decoded_member(request)
                self.requests.put(decode(request))

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def next(self) -> dict[str, UntrustedPod]:
        return self.requests.get(timeout=DEADLINE)

    def end(self) -> None:
        self.stopping.set()
        self.handover.wake()
        self.threads[1].join(DEADLINE)
        self.made.shutdown(socket.SHUT_RDWR)
        self.made.close()
        self.threads[0].join(DEADLINE)
        assert not any(thread.is_alive() for thread in self.threads)


@pytest.fixture
def given(tmp_path: Path, again: float) -> Iterator[Given]:
    made = Given(tmp_path / "s", again)
    made.start()
    yield made
    made.end()


@pytest.mark.parametrize("again", [600.0])
def test_pods_in_vms_are_handed_over_after_each_change_and_to_a_new_watcher(given: Given) -> None:
    assert given.next() == {"uid-web": UntrustedPod("Burstable", "", (), {}, 0)}
    given.items[0] = item("web", a="b")
    given.handover.wake()
    assert given.next()["uid-web"].annotations == {"a": "b"}
    given.reported = reported(entry("web"), entry("runc"))
    given.handover.wake()
    assert set(given.next()) == {"uid-web", "uid-runc"}
    # Which claims to be the other's mirror.
    given.items.append(item("rival", **{"kubernetes.io/config.mirror": "uid-web", "a": "of the rival"}))
    given.items[1] = item("runc", c="d")
    given.handover.wake()
    found = given.next()
    assert (found["uid-web"].annotations, found["uid-runc"].annotations) == ({"a": "b"}, {"c": "d"})
    given.connections = 2
    given.handover.wake()
    assert set(given.next()) == {"uid-web", "uid-runc"}
    given.items.clear()
    given.handover.wake()
    assert given.next() == {}
    assert given.requests.empty()


@pytest.mark.parametrize("again", [600.0])
def test_what_asks_for_cpus_is_handed_over_of_all_pods_if_it_is_followed(given: Given) -> None:
    policy = {"cpu-policy.vmpin.io": "exclusive"}
    given.items[1] = item("runc", **policy, other="x" * 5000)
    given.handover.wake()
    given.next()
    assert given.asked == {}
    given.asks = lambda key: key.startswith("cpu-")
    # A static pod's uid is an annotation, and a pod that ends is not changed.
    given.items.append(item("rival", **policy, **{"kubernetes.io/config.mirror": "uid-runc"}))
    given.items.append({**item("done", **policy), "status": {"phase": "Succeeded"}})
    given.items.append(item("long", **{"cpu-policy.vmpin.io": "x" * 5000}))
    given.handover.wake()
    assert set(given.next()) == {"uid-web"}
    assert given.asked == {"uid-web": {}, "uid-runc": policy}
    given.items[1] = item("runc")
    given.handover.wake()
    given.next()
    assert given.asked == {"uid-web": {}, "uid-runc": {}}


@pytest.mark.parametrize("again", [0.01])
def test_it_is_repeated(given: Given) -> None:
    assert given.next() == given.next() == given.next()


@pytest.mark.parametrize("again", [600.0])
@pytest.mark.parametrize("refusal", [b'{"error":"pods: not answered on this socket"}\n', b"", b"garbage\n", b"[]\n"])
def test_what_was_not_taken_is_sent_again(given: Given, refusal: bytes) -> None:
    given.next()
    given.answer = refusal
    given.items[0] = item("web", a="b")
    given.handover.wake()
    for _ in range(3):
        assert given.next()["uid-web"].annotations == {"a": "b"}
