"""`vmpin map`: the node's CPUs, their owners, and the threads on them. What stays out: the drawing (reports.map)."""

import argparse
import shutil
import sys
from pathlib import Path

from vmpin.cli.common import Verbs, direct_flag, load_config, new_file, output_flag, verb
from vmpin.cli.control_client import status_document
from vmpin.cli.output import plain_lines, print_styled
from vmpin.domain.terminal import printable
from vmpin.errors import UsageError

_ABOUT = """\
The node's CPUs by NUMA node, cache and core: which are exclusive to a container, which are shared, and the vCPUs and
other threads of VMs on them, by their current masks in the kernel. As text (in colour at a terminal), as an SVG, or as
an HTML page that loads no other resource.
"""

_EXAMPLES = """\
examples:
  vmpin map
  vmpin map -o html > node.html
  vmpin map -o svg --file node.svg
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "map", "draw the node's CPUs, their owners and the threads on them", run, about=_ABOUT,
                  epilog=_EXAMPLES)
    direct_flag(parser)
    output_flag(parser, ("text", "svg", "html"))
    parser.add_argument("--file", type=new_file, metavar="FILE", help="write it there instead of printing it")


def run(args: argparse.Namespace) -> int:
    from vmpin.host.sysfs import Sysfs
    from vmpin.reports.map import picture
    config = load_config(args)
    found = picture(status_document(config, None, direct=args.direct), Sysfs(config.paths.sys).topology())
    if args.output == "text":
        from vmpin.reports.map.text import lines
        made = [[(printable(text), style) for text, style in line]
                for line in lines(found, 110 if args.file else shutil.get_terminal_size((110, 24)).columns)]
        if args.file is None:
            print_styled(made)
            return 0
        text = "".join(f"{line}\n" for line in plain_lines(made))
    else:
        from vmpin.reports.map import svg
        text = svg.svg(found) if args.output == "svg" else svg.html(found)
    if args.file is None:
        sys.stdout.write(text)
    else:
        try:
            Path(args.file).write_text(text, encoding="utf-8")
        except OSError as err:
            raise UsageError(f"cannot write {args.file}: {err.strerror}", "give another place: --file FILE") from err
    return 0
