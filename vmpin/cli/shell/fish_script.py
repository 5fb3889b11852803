"""The completion script for fish. Pure."""

from collections.abc import Iterable, Sequence

from vmpin.cli.shell.completed import WordSource, completed, leaves
from vmpin.cli.shell.grammar import Argument, Command, Option
from vmpin.cli.shell.names import HIDDEN

_HEAD = r"""# fish completion for vmpin: vmpin completion fish | source

# The words that are neither options nor values of the program's own ones: the command, and its arguments.
function __vmpin_words
    set -l skip
    for word in (commandline -opc)[2..]
        if test -n "$skip"
            set skip
        else if contains -- $word @TAKING@
            set skip yes
        else if not string match -q -- '-*' $word
            printf '%s\n' $word
        end
    end
end

# Whether the command is $argv.
function __vmpin_is
    set -l words (__vmpin_words)
    set -l many (count $argv)
    test $many -eq 0; and return
    test (count $words) -ge $many; and test "$words[1..$many]" = "$argv"
end

function __vmpin_names
    @PROGRAM@ @HIDDEN@ $argv[1] (commandline -ct) (commandline -opc)[2..] 2>/dev/null </dev/null
end

complete -c vmpin -f
"""


def script(program: Command, own: Sequence[str]) -> str:
    """Return the completion script. :param own: the command that starts vmpin."""
    taking = " ".join(name for option in program.options if option.metavar for name in option.names)
    head = (_HEAD.replace("@TAKING@", taking).replace("@PROGRAM@", " ".join(map(_quoted, own)))
            .replace("@HIDDEN@", HIDDEN))
    lines = [line for path, each in [((), program), *leaves(program)] for line in _lines(path, each)]
    return head + "".join(f"complete -c vmpin{line}\n" for line in lines)


def _lines(path: Sequence[str], command: Command) -> Iterable[str]:
    """Options of the program have no condition: they may stand anywhere."""
    here = f"__vmpin_is {' '.join(path)}".rstrip()
    condition = f" -n {_quoted(here)}" if path else ""
    for option in command.options:
        yield condition + _option(option)
    if command.commands:
        level = f"test (count (__vmpin_words)) -eq {len(path)}; and {here}"
        for each in command.commands:
            yield f" -n {_quoted(level)} -a {_quoted(each.name)} -d {_quoted(each.summary)}"
    for argument in command.arguments:
        yield f"{condition}{_values(argument)} -d {_quoted(argument.metavar)}"


def _option(option: Option) -> str:
    names = "".join(f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in option.names)
    if not option.metavar:
        return f"{names} -d {_quoted(option.help)}"
    needed = " -x" if option.needs_value else ""
    return f"{names}{_values(option) or needed} -d {_quoted(option.help)}"


def _values(one: Option | Argument) -> str:
    value = completed(one)
    needed = " -x" if isinstance(one, Option) else ""
    if value.source in (WordSource.WORDS, WordSource.KEYS):
        return f"{needed} -a {_quoted(' '.join(value.words))}"
    if value.source is WordSource.FILES:
        return " -r -F" if needed else " -F"
    if value.source is WordSource.DIRECTORIES:
        return f"{needed} -a '(__fish_complete_directories)'"
    if value.source is WordSource.NOWHERE:
        return ""
    return f"{needed} -a '(__vmpin_names {value.source})'"


def _quoted(text: str) -> str:
    """Quote a text as fish reads it between single quotes."""
    for each in "\\'":
        text = text.replace(each, f"\\{each}")
    return f"'{text}'"
