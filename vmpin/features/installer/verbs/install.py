"""`vmpin install service` and `vmpin install hook`."""

from vmpin.cli.verbs import HelpFormatter, Verbs, global_options
from vmpin.features.installer.verbs import install_hook, install_service

_EXAMPLES = """\
examples:
  vmpin install service --now
  vmpin install hook --hooks-dir /usr/share/containers/oci/hooks.d
"""


def add_parser(verbs: Verbs) -> None:
    summary = "install the watcher's service, or the OCI hook"
    parser = verbs.add_parser("install", help=summary, formatter_class=HelpFormatter, epilog=_EXAMPLES,
                              description=f"{summary[0].upper()}{summary[1:]}. `vmpin uninstall` undoes both.")
    global_options(parser)
    parts = parser.add_subparsers(metavar="PART", required=True, title="parts")
    for part in install_service, install_hook:
        part.add_parser(parts)
