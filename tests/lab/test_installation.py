"""An operator's second day, in a node with systemd as its init (operate.py): installed, upgraded and downgraded from
two builds, uninstalled, and nothing is left."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from need import lacking, need_tool

from lab import node
from lab.boots import RESULTS
from lab.debian import debian
from lab.installation import builds, wheels, write_layer
from lab.kernel import kernel
from lab.rootfs import rootfs
from lab.test_lab import machine
from lab.variant import Kernel, Variant

__all__ = ["machine"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two builds and the packages of the lock file."""
    need_tool("dpkg-deb")
    if sys.version_info[:2] != (3, 11):
        lacking("needs the Python of Debian 12: the package is for the Python that builds it")
    work = tmp_path_factory.mktemp("builds")
    builds(work)
    wheels(node.REPOSITORY / "config/requirements.txt", work / "wheels")
    return work


@pytest.mark.lab
@pytest.mark.root
@pytest.mark.release
@pytest.mark.timeout(7200)
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("way", ["Deb", "Wheel"])
def test_two_builds_are_installed_operated_and_removed_without_a_trace(way: str, made: Path) -> None:
    results = RESULTS / f"installation-{way}"
    with debian() as root, rootfs() as emulator, kernel(Kernel.V6_1, emulator) as built:
        status = node.run_job(Variant(Kernel.V6_1), root, dataclasses.replace(built, emulator=emulator), results,
                              lambda layer: write_layer(layer, way, made), 5400)
    assert status == 0, (results / "console.log").read_text(errors="replace")[-6000:]
