"""`vmpin map`: the node's CPUs, their owners, and the threads on them; as text or JSON."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vmpin.cli.control_client import Document, status_document
from vmpin.cli.output import print_data, print_styled
from vmpin.cli.verbs import Verbs, direct_flag, namespace_flag, output_flag, usable_config, verb, watch_flag
from vmpin.domain.terminal import printable
from vmpin.feature import features, inspect_vms, present
from vmpin.features.map.node_map import Picture, picture
from vmpin.host.sysfs import Sysfs

if TYPE_CHECKING:
    from vmpin.config.settings import Config

_ABOUT = """\
The node's CPUs by NUMA node, cache and core: which are exclusive to a container, which are shared, and the vCPUs and
other threads of VMs on them, by their current masks in the kernel. As text (in colour at a terminal), or as JSON with
the same data.
"""

_EXAMPLES = """\
examples:
  vmpin map
  vmpin map -n demo                   only the VMs of one namespace
  vmpin map -o json | jq -r '.owners[] | [.letter, .title, .cpus] | @tsv'
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "map", "draw the node's CPUs, their owners and the threads on them", run, about=_ABOUT,
                  epilog=_EXAMPLES)
    namespace_flag(parser, only=True)
    direct_flag(parser)
    watch_flag(parser)
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    config = usable_config(args)
    document = status_document(config, direct=args.direct)
    if args.namespace:
        _choose(document, args.namespace)
    inspect_vms(config, document["sandboxes"])
    show(picture_of(config, document, args.direct, os.uname().nodename), args.output)
    return 0


def _choose(document: Document, namespace: str) -> None:
    """Leave out the VMs of other namespaces. The owners of CPUs and the collisions stay: they are the node's."""
    from vmpin.domain.pod_names import names_of, with_names
    from vmpin.status.selection import Selection
    names = names_of(document)
    for collision in document["node"]["collisions"]:
        collision["what"] = with_names(collision["what"], names)
    document["sandboxes"] = Selection(namespace=namespace).of(document)


def picture_of(config: Config, document: Mapping[str, Any], direct: bool, node_name: str) -> Picture:
    """The picture of this node by its status document. :param direct: without the watcher."""
    answers = () if direct else present(feature.held_cpus for feature in features())
    held = next(present(held_cpus(config) for held_cpus in answers), None)
    return picture(document, Sysfs(config.paths.sys).topology(), held, node_name)


def show(picture: Picture, output: str) -> None:
    """Print it. :param output: text or json."""
    if output == "json":
        from vmpin.features.map.node_map import map_document
        print_data(map_document(picture), "json")
        return
    from vmpin.features.map.text import lines
    width = min(shutil.get_terminal_size((110, 24)).columns, 10_000)  # COLUMNS may have any number
    print_styled([[(printable(text), style) for text, style in line] for line in lines(picture, width)])
