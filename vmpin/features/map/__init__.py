"""The map of a node's CPUs, of this node or a planned one, as text or JSON.
docs/map.md describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmpin.feature import Document, Feature

if TYPE_CHECKING:
    from vmpin.domain.topology import Topology
    from vmpin.features.common.held_cpus import HeldCpus

_EXAMPLES = {"in service:\n": """\
  vmpin map                  a picture of the node's CPUs, their owners and the threads on them
in service:
"""}


def _show(document: Document, topology: Topology, held: HeldCpus | None, node: str, output: str) -> None:
    from vmpin.features.map.node_map import picture
    from vmpin.features.map.verbs import show

    show(picture(document, topology, held, node), output)


FEATURE = Feature(name="map", verbs={"map": "verbs"}, examples=_EXAMPLES, show_map=_show)
