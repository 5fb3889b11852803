"""What is put on a node and taken off it: the OCI hook with its registrations, the service's unit,
and the agent for guests as one file. docs/node.md, hooks/README.md and guest/README.md describe it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmpin.feature import Feature

if TYPE_CHECKING:
    from argparse import ArgumentParser

#: Examples for the help of the program.
_EXAMPLES = """\
  vmpin install hook --hooks-dir /usr/share/containers/oci/hooks.d
  vmpin install service      vmpin watch under systemd; --now starts it
"""


def _options(verb: str, parser: ArgumentParser) -> None:
    if not verb and parser.epilog is not None:
        parser.epilog = parser.epilog.replace("in service:\n", f"in service:\n{_EXAMPLES}", 1)


_VERBS = "vmpin.features.installer.verbs"

FEATURE = Feature(name="installer", verbs={"install": f"{_VERBS}.install", "uninstall": f"{_VERBS}.uninstall",
                                          "guest": f"{_VERBS}.guest"}, service_verbs=("guest",),
                  options=_options)
