"""Real machines' /sys from public test data (tests/data/sysfs), against what is known of these machines: the numbers
of cores and caches that their vendors name.

Each file has its source and licence: hwloc, nri-plugins, util-linux, ghw. kubernetes-sigs/dra-driver-cpu (de98098) has
recordings of two machines, but of these only `cpu/online` and the CPUs of the PCIe roots (pkg/pcie/testdata_*.go); its
topologies with cores, caches and nodes are made up in code. So nothing of it is here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from known_machines import MACHINES
from trees import DATA, make_tree

from vmpin.cpuset import EMPTY
from vmpin.host.sysfs import Sysfs


@pytest.mark.parametrize("name", MACHINES)
def test_a_public_machine_is_read_as_it_is_known(tmp_path: Path, name: str) -> None:
    sysfs = Sysfs(make_tree(tmp_path, name))
    assert sysfs.topology() == MACHINES[name]._replace(sockets=(), dies=(), kinds={}, memory_nodes=EMPTY)


@pytest.mark.parametrize("name", MACHINES)
def test_source_and_licence_stand_in_the_file(name: str) -> None:
    text = " ".join(line for line in (DATA / f"{name}.tree").read_text().splitlines()
                    if line.startswith("#"))
    assert "Source: github.com/" in text
    assert "Licence: " in text
