"""The completion script for zsh: a function for each command. Pure."""

from collections.abc import Sequence
from shlex import join, quote

from vmpin.cli.shell.completed import WordSource, completed
from vmpin.cli.shell.grammar import Argument, Command, Option
from vmpin.cli.shell.names import HIDDEN

_HEAD = r"""#compdef vmpin
# zsh completion for vmpin: source <(vmpin completion zsh), below compinit; or as _vmpin in a directory of $fpath

# The names of this node that $1 are; compadd quotes them.
__vmpin_names() {
    local -a names
    names=("${(@f)$(@PROGRAM@ @HIDDEN@ "$1" "${(Q)PREFIX}" "${__vmpin_before[@]}" 2>/dev/null </dev/null)}")
    compadd -- "${(@)names:#}"
}

__vmpin_keys() {
    compadd -S = -- "$@"
}
"""

_TAIL = r"""
_vmpin() {
    local -a __vmpin_before=("${(@Q)words[2,CURRENT-1]}")
    _vmpin_0
}

if [[ $funcstack[1] == _vmpin ]]; then
    _vmpin "$@"
else
    compdef _vmpin vmpin
fi
"""


def script(program: Command, own: Sequence[str]) -> str:
    """Return the completion script. :param own: the command that starts vmpin."""
    return (_HEAD.replace("@PROGRAM@", join(own)).replace("@HIDDEN@", HIDDEN)
            + "".join(_functions(program, "_vmpin_0", program.options)) + _TAIL)


def _functions(command: Command, name: str, everywhere: Sequence[Option]) -> list[str]:
    """Its function, after those of its commands. :param everywhere: the program's own options."""
    names = {each for option in command.options for each in option.names}
    options = [*command.options, *(each for each in everywhere if not names & set(each.names))]
    specs = [spec for option in options for spec in _option(option)] + [_argument(each) for each in command.arguments]
    if not command.commands:
        return [_function(name, [_arguments(specs)])]
    verbs = [quote(f"{each.name}:{_colons(each.summary)}") for each in command.commands]
    body = [_arguments(["': :->command'", "'*:: :->words'", *specs], "-C "),
            "    case $state in",
            f"    command) local -a verbs=({' '.join(verbs)}); _describe command verbs ;;",
            "    words)",
            "        case $words[1] in",
            *(f"        {each.name}) {name}_{at} ;;" for at, each in enumerate(command.commands)),
            "        esac",
            "        ;;",
            "    esac"]
    return [*(text for at, each in enumerate(command.commands)
              for text in _functions(each, f"{name}_{at}", everywhere)), _function(name, body)]


def _function(name: str, body: Sequence[str]) -> str:
    head = [f"\n{name}() {{", "    local state line context curcontext=$curcontext", "    typeset -A opt_args"]
    return "\n".join([*head, *body, "}", ""])


def _arguments(specs: Sequence[str], more: str = "") -> str:
    return f"    _arguments {more}-s " + " \\\n        ".join(specs)


def _option(option: Option) -> list[str]:
    """A specification for each of its names."""
    excluded = "*" if option.repeatable else f"({' '.join(option.names)})"
    found = []
    for name in option.names:
        value = ""
        if option.metavar:
            name += "=" if name.startswith("--") else "+"
            value = f"{':' if option.needs_value else '::'}{_colons(option.metavar)}:{_action(option)}"
        found.append(quote(f"{excluded}{name}[{_explained(option.help)}]{value}"))
    return found


def _argument(argument: Argument) -> str:
    head = "*:" if argument.many else "::" if argument.optional else ":"
    return quote(f"{head}{_colons(argument.metavar)}:{_action(argument)}")


def _action(one: Option | Argument) -> str:
    value = completed(one)
    if value.source is WordSource.WORDS:
        return f"({' '.join(value.words)})"
    if value.source is WordSource.KEYS:
        return f" __vmpin_keys {' '.join(each.removesuffix('=') for each in value.words)}"
    return {WordSource.FILES: "_files", WordSource.DIRECTORIES: "_files -/", WordSource.NOWHERE: " "}.get(
        value.source, f" __vmpin_names {value.source}")


def _explained(text: str) -> str:
    for each in "\\[]":
        text = text.replace(each, f"\\{each}")
    return _colons(text)


def _colons(text: str) -> str:
    return text.replace(":", "\\:")
