"""`vmpin reconcile`: places every thread now, through the watcher or without one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vmpin.cli.control_client import Document, ask, quiet_log
from vmpin.cli.mask_changes import finish, named_sandbox, names_for_text
from vmpin.cli.verbs import Verbs, load_config, namespace_flag, output_flag, sandbox_argument, verb
from vmpin.config.settings import Config
from vmpin.domain.terminal import number_of

if TYPE_CHECKING:
    from vmpin.domain.model import SandboxId

_ABOUT = """\
One full pass: read everything again and place every thread. Through the watcher if one runs, else without one.
Sandboxes that `vmpin unpin` suspended are managed again (all of them, or the named one).
"""

_EXAMPLES = """\
examples:
  vmpin reconcile                   every thread of the node
  vmpin reconcile demo/shop         one pod, also after `vmpin unpin demo/shop`
"""

_EXITS = "exit codes: 0 done, 1 a part failed, or the watcher does not answer, 2 the command cannot be used\n"


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "reconcile", "place every thread now", run, about=_ABOUT, epilog=f"{_EXAMPLES}\n{_EXITS}")
    sandbox_argument(parser, "only this one (default: all)")
    namespace_flag(parser)
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    config = load_config(args)
    sandbox = named_sandbox(config, args)
    names = names_for_text(config, args)
    outcome = reconciled(config, sandbox)
    return finish(args, outcome, f"{number_of(outcome['vms'], 'VM')}, nothing to change", names)


def reconciled(config: Config, sandbox: SandboxId | None) -> Document:
    """The operations of a pass over one sandbox, or all (None), through the watcher if one runs."""
    return ask(config, {"op": "reconcile", "sandbox": sandbox}) or _reconcile_alone(config, sandbox)


def _reconcile_alone(config: Config, sandbox: SandboxId | None) -> Document:
    """One pass without a watcher."""
    from vmpin.reconcile import one_pass
    from vmpin.status import collector
    quiet_log(config)
    return collector.outcome(one_pass.reconcile(config, None if sandbox is None else [sandbox])[1])
