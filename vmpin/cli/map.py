"""`vmpin map`: the node's CPUs, their owners, and the threads on them."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vmpin.cli.control_client import status_document
from vmpin.cli.map_output import show
from vmpin.cli.this_program import about_this_node
from vmpin.cli.verbs import (
    Verbs,
    direct_flag,
    new_file,
    output_flag,
    usable_config,
    verb,
    watch_flag,
)
from vmpin.errors import UsageError
from vmpin.feature import features, inspect_vms, present

if TYPE_CHECKING:
    from vmpin.config.settings import Config
    from vmpin.reports.map.node_map import Picture

_ABOUT = """\
The node's CPUs by NUMA node, cache and core: which are exclusive to a container, which are shared, and the vCPUs and
other threads of VMs on them, by their current masks in the kernel. As text (in colour at a terminal), as an SVG, as an
HTML page that loads no other resource, or as JSON with the same data.
"""

_EXAMPLES = """\
examples:
  vmpin map
  vmpin map -o html > node.html
  vmpin map -o html --file node.html --watch 10     a page that a browser loads again every ten seconds
  vmpin map --scenario node.yaml      as vmpin would place it: `vmpin plan --help` has the format
  vmpin map -o svg --file node.svg
  vmpin map -o json | jq -r '.owners[] | [.letter, .title, .cpus] | @tsv'
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "map", "draw the node's CPUs, their owners and the threads on them", run, about=_ABOUT,
                  epilog=_EXAMPLES)
    direct_flag(parser)
    parser.add_argument("--scenario", metavar="FILE", help=about_this_node(
        "draw the node described in this YAML file, as vmpin would place it"))
    watch_flag(parser)
    output_flag(parser, ("text", "svg", "html", "json"))
    parser.add_argument("--file", type=new_file, metavar="FILE", help="write it there instead of printing it")


def run(args: argparse.Namespace) -> int:
    if args.watch and args.output != "text" and args.file is None:
        raise UsageError(f"-o {args.output} is drawn once", "--watch goes with --file FILE, which it writes again")
    if args.scenario is not None:
        from vmpin.cli.scenario_file import planned_picture
        show(planned_picture(Path(args.scenario)), args)
        return 0
    config = usable_config(args)
    found = status_document(config, None, direct=args.direct)
    inspect_vms(config, found["sandboxes"])
    show(picture_of(config, found, args.direct, os.uname().nodename), args)
    return 0


def picture_of(config: "Config", document: Mapping[str, Any], direct: bool, node_name: str = "") -> "Picture":
    """The picture of this node by its status document. :param direct: without the watcher."""
    from vmpin.host.sysfs import Sysfs
    from vmpin.reports.map.node_map import picture
    asked = () if direct else present(feature.held_cpus for feature in features())
    held = next(present(held_cpus(config) for held_cpus in asked), None)
    return picture(document, Sysfs(config.paths.sys).topology(), held, node_name)
