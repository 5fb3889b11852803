"""What is put on a node and taken off it: the OCI hook with its registrations, the service's unit,
and the agent for guests as one file. docs/node.md, hooks/README.md and guest/README.md describe it."""

from __future__ import annotations

from vmpin.feature import Feature

_EXAMPLES = {"in service:\n": """\
in service:
  vmpin install hook --hooks-dir /usr/share/containers/oci/hooks.d
  vmpin install service      vmpin watch under systemd; --now starts it
"""}
FEATURE = Feature(name="installer", verbs={"install": "verbs.install", "uninstall": "verbs.uninstall",
                                          "guest": "verbs.guest"}, service_verbs=("guest",), examples=_EXAMPLES)
