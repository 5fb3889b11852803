"""What completes a value of the grammar: its metavar decides, so that a new verb's arguments are completed as they are
named."""

from enum import StrEnum
from typing import NamedTuple

from vmpin.cli.shell.grammar import Argument, Command, Option
from vmpin.cli.shell.names import CONTAINERS, NAMESPACES, SANDBOXES


class WordSource(StrEnum):
    """Where the words come from."""

    NOWHERE = "nowhere"
    #: The script holds them.
    WORDS = "words"
    #: The same, each before a value: no blank follows.
    KEYS = "keys"
    FILES = "files"
    DIRECTORIES = "directories"
    #: The hidden command prints them.
    SANDBOXES = SANDBOXES
    CONTAINERS = CONTAINERS
    NAMESPACES = NAMESPACES


class Completed(NamedTuple):
    source: WordSource
    words: tuple[str, ...] = ()


_BY_METAVAR = {
    "FILE": WordSource.FILES, "PATH": WordSource.FILES, "DIR": WordSource.DIRECTORIES, "SANDBOX": WordSource.SANDBOXES,
    "POD": WordSource.SANDBOXES, "POD[/CONTAINER]": WordSource.CONTAINERS, "NAMESPACE": WordSource.NAMESPACES}


def completed(one: Option | Argument) -> Completed:
    """Return what completes an option's value or an argument."""
    if one.choices:
        return Completed(WordSource.WORDS, one.choices)
    if one.metavar in _BY_METAVAR:
        return Completed(_BY_METAVAR[one.metavar])
    if one.metavar == "CHECK":
        from vmpin.doctor.checks import all_checks
        return Completed(WordSource.WORDS, tuple(check.name for check in all_checks()))
    if one.metavar == "TOPIC":
        from vmpin.cli.help import pages
        from vmpin.cli.verbs import verb_modules
        return Completed(WordSource.WORDS, tuple(dict.fromkeys((*verb_modules(), *pages()))))
    if one.metavar == "KEY=VALUE":
        return Completed(WordSource.KEYS, tuple(f"{key}=" for key in _keys(one)))
    return Completed(WordSource.NOWHERE)


def _keys(one: Option | Argument) -> tuple[str, ...]:
    """Return the keys that complete it: the configuration's for an option, those of `vmpin set` for an argument."""
    if isinstance(one, Option):
        from vmpin.config.settings import BY_KEY
        return tuple(BY_KEY)
    from vmpin.cli.allocator.set import KEYS
    return KEYS


def leaves(command: Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Command]]:
    """Every command below the program with the words that name it: (status,), (guest,), (guest, build)."""
    return [found for each in command.commands
            for found in [((*path, each.name), each), *leaves(each, (*path, each.name))]]
