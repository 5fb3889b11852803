"""`vmpin completion`: a script with which a shell completes vmpin's verbs, options, pods and sandboxes; and, as the
script starts vmpin at each TAB, the words that complete a line (argcomplete).

Names of pods are hostile: what a terminal cannot show, or what would be an option, is left out; argcomplete quotes the
rest. Whatever fails, nothing is offered, after two seconds at the latest.
"""

import argparse
import contextlib
import os
import signal
from collections.abc import Iterable, Sequence
from typing import Any

from vmpin.cli.this_program import own_program
from vmpin.cli.verbs import Verbs, named_verb, program_parser, verb, verb_modules, verbs_parser

SHELLS = ("bash", "zsh", "fish")

_ABOUT = """\
Print a script with which a shell completes vmpin's commands, options, their values, pods and sandboxes. It starts
vmpin at each TAB.
"""

_EXAMPLES = """\
for this shell, or for every one if the line is in ~/.bashrc or (below compinit) ~/.zshrc:
  source <(vmpin completion bash)
  source <(vmpin completion zsh)
  vmpin completion fish | source
for all users:
  vmpin completion bash > /usr/share/bash-completion/completions/vmpin      (with the package bash-completion)
  vmpin completion zsh > /usr/local/share/zsh/site-functions/_vmpin
  vmpin completion fish > /etc/fish/completions/vmpin.fish

The watcher has the names of pods and sandboxes; without a watcher, root's command reads the node.
"""

#: What completes a value, by its metavar, so that a new verb's arguments are completed as they are named.
_NAMES = {"SANDBOX": "sandboxes", "POD": "sandboxes", "POD[/CONTAINER]": "containers", "NAMESPACE": "namespaces"}
#: Seconds; a variable of the environment names others. A watcher answers in milliseconds.
_DEADLINE, _VARIABLE = "2", "VMPIN_COMPLETION_DEADLINE"


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "completion", "print a script that completes commands and pods in bash, zsh or fish", run,
                  about=_ABOUT, epilog=_EXAMPLES)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode
    program = own_program()
    # Started as a module, it is completed by the program that is typed.
    path = program[0] if len(program) == 1 else None
    print(shellcode(["vmpin"], use_defaults=False, shell=args.shell, argcomplete_script=path), end="")
    return 0


def complete_line() -> None:
    """Answer the shell's script with what completes the line in COMP_LINE, and end the process."""
    signal.signal(signal.SIGALRM, lambda number, frame: os._exit(1))
    with contextlib.suppress(Exception):
        # No key of the configuration, which refuses unknown variables.
        signal.setitimer(signal.ITIMER_REAL, float(os.environ.pop(_VARIABLE, _DEADLINE)))
        from argcomplete import autocomplete
        from argcomplete.completers import SuppressCompleter
        from argcomplete.lexers import split_line
        words = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))[3][1:]
        # All verbs' modules would take three times as long as all that a TAB takes with one.
        parser = _names_parser() if named_verb(words) is None else verbs_parser(words)
        _prepare(parser, words)
        autocomplete(parser, always_complete_options=False, default_completer=SuppressCompleter(),
                     print_suppressed=True)
    os._exit(1)


def _names_parser() -> argparse.ArgumentParser:
    """A parser of the verbs' names alone, which loads none of their modules."""
    parser, verbs = program_parser()
    for name in verb_modules():
        verbs.add_parser(name)
    return parser


def _prepare(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Give each value without a completer of its own one by its metavar. :param words: before the one to complete."""
    from argcomplete.completers import DirectoriesCompleter, FilesCompleter
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _prepare(command, words)
        elif action.help == argparse.SUPPRESS and action.nargs != 0:
            action.help = ""  # --config and --set after a verb: argcomplete shows no word SUPPRESS
        if action.choices or hasattr(action, "completer"):
            continue
        if action.metavar in ("FILE", "PATH") or action.dest == "config":
            vars(action)["completer"] = FilesCompleter()
        elif action.metavar == "DIR":
            vars(action)["completer"] = DirectoriesCompleter()
        elif action.metavar in _NAMES:
            kind = _NAMES[str(action.metavar)]
            vars(action)["completer"] = _Names(
                "containers" if kind == "sandboxes" and "--explain" in words else kind, words)


class _Names:
    """Completes names of this node."""

    def __init__(self, kind: str, words: Sequence[str]) -> None:
        self._kind, self._words = kind, words

    def __call__(self, prefix: str, **_: Any) -> Iterable[str]:
        return [name for name in names(self._kind, prefix, self._words)
                if name.isprintable() and not name.startswith("-")]


def names(kind: str, text: str, words: Sequence[str]) -> list[str]:
    """The names on this node that complete an argument. :param kind: sandboxes, containers or namespaces.
    :param text: what was typed of the name. :param words: those of the command line before it."""
    from vmpin.cli.control_client import named_sandboxes, status_document
    from vmpin.cli.verbs import load_config
    from vmpin.features.shell.pod_words import completions
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    # The value of the last may be what is being typed.
    parser.add_argument("--config", nargs="?")
    parser.add_argument("--set", action="append", nargs="?", const="log.level=error", default=[])
    parser.add_argument("-n", "--namespace", nargs="?", const="", default="")
    args = parser.parse_known_args(words, argparse.Namespace(set_here=[]))[0]
    config = load_config(args)
    sandboxes = named_sandboxes(status_document(config))
    if kind == "containers":
        from vmpin.feature import explained_pods
        from vmpin.status.pod_arguments import joined
        sandboxes = joined(sandboxes, [pod for explained in explained_pods(config) for pod in explained.pods])
    if kind == "namespaces":
        return sorted({sandbox.namespace for sandbox in sandboxes if sandbox.namespace.startswith(text)})
    return completions(text, args.namespace, sandboxes, containers=kind == "containers")
