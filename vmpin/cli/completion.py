"""`vmpin completion`: a script with which a shell completes vmpin's verbs, options, pods and sandboxes.

It holds the grammar, which is read from the parsers that also make the help, and asks for pods and sandboxes when they
are to be completed (names).
"""

import argparse

from vmpin.cli.verb_options import Verbs, verb

SHELLS = ("bash", "zsh", "fish")

_ABOUT = """\
Print a script with which a shell completes vmpin's commands, options, their values, pods and sandboxes. Print it again
after an update: it holds the options of this version.
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

The names of pods and sandboxes are the watcher's answer; without a watcher, root's command reads the node.
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "completion", "print a script that completes commands and pods in bash, zsh or fish", run,
                  about=_ABOUT, epilog=_EXAMPLES)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    import importlib

    from vmpin.cli.this_program import own_program
    from vmpin.cli.verbs import grammar
    script = importlib.import_module(f"vmpin.cli.shell.{args.shell}_script")
    print(script.script(grammar(), own_program()), end="")
    return 0
