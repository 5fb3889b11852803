"""The places of distributions, in the code and in the documentation."""

from __future__ import annotations

from pathlib import Path

from vmpin.config import loading
from vmpin.domain.distributions import DISTRIBUTIONS, with_program
from vmpin.features.common import cri
from vmpin.host.daemons import CONFIGURED

PAGE = Path(__file__).parents[3] / "docs/kubernetes.md"


def test_the_table_of_the_documentation_has_the_places_of_the_code() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    for each in DISTRIBUTIONS:
        (row,) = [line for line in rows if line.startswith(f"| {each.name} |")]
        for place in (each.directory, each.engine, each.socket, each.kata):
            assert f"`{place}`" in row


def test_the_defaults_of_the_configuration_are_upstreams_places() -> None:
    upstream, paths = DISTRIBUTIONS[0], loading.load(None, {}, {}).paths
    assert (str(paths.kubelet), str(paths.nri)) == (upstream.directory, upstream.nri)
    assert {each.nri for each in DISTRIBUTIONS} == {upstream.nri}
    assert str(cri.DEFAULTS[0]) == upstream.socket


def test_programs_with_a_kubelet_inside_are_looked_for() -> None:
    programs = {each.program for each in DISTRIBUTIONS if each.program}
    assert programs <= set(CONFIGURED)
    assert with_program("kubelet") is None
    assert {found.name for program in programs if (found := with_program(program))} == {
        "k3s", "RKE2", "MicroK8s", "MicroShift", "KubeEdge"}
