"""config/kubernetes/daemonset.yaml: its configuration is one of vmpin's, and its probes ask where that answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from vmpin.config import loading as settings
from vmpin.config.settings import Config
from vmpin.daemon.exporter import ExportedWatcher, Exporter
from vmpin.install import data_files
from vmpin.status.health import SourceHealth

MANIFEST = list(yaml.safe_load_all(data_files.path("config/kubernetes/daemonset.yaml").read_text()))
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def document(kind: str) -> dict[str, Any]:
    (found,) = [each for each in MANIFEST if each["kind"] == kind]
    assert isinstance(found, dict)
    return found


def pod() -> dict[str, Any]:
    found = document("DaemonSet")["spec"]["template"]["spec"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def loaded(tmp_path: Path) -> Config:
    file = tmp_path / "vmpin.yaml"
    file.write_text(document("ConfigMap")["data"]["vmpin.yaml"])
    return settings.load(file, {}, {})


@pytest.mark.parametrize("probe", PROBES)
def test_a_probe_asks_the_watcher_and_starts_no_program(probe: str, loaded: Config) -> None:
    (container,) = pod()["containers"]
    asks = container[probe]
    assert not asks.keys() & {"exec", "tcpSocket", "grpc"}
    assert loaded.metrics.address is not None
    assert (asks["httpGet"]["host"], asks["httpGet"]["port"]) == (loaded.metrics.address.host,
                                                                  loaded.metrics.address.port)
    assert pod()["hostNetwork"] is True, "the kubelet asks at the node's own address"


@pytest.mark.parametrize(("probe", "names"), [
    ("startupProbe", {"passes"}), ("livenessProbe", {"passes"}), ("readinessProbe", {"passes", "nri"})])
def test_each_probes_path_is_answered(probe: str, names: set[str], loaded: Config) -> None:
    watched = SimpleNamespace(view=SimpleNamespace(config=loaded), resynced=float("-inf"),
                              source_health=lambda: [SourceHealth("nri", True, True)])
    path = pod()["containers"][0][probe]["httpGet"]["path"]
    reply = asyncio.run(Exporter(cast(ExportedWatcher, watched)).answer(path))
    assert reply.status == 503, "no pass was made for too long"
    assert {line[3:].split()[0] for line in reply.body.decode().splitlines() if line.startswith("[")} == names


def test_a_service_of_vmpins_gives_the_pod_no_variables() -> None:
    assert pod()["enableServiceLinks"] is False
