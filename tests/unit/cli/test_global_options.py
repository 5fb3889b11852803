"""The program's own options, before a verb and after it; and an option that a verb does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmpin.cli.grammar import Command, read
from vmpin.cli.main import main
from vmpin.cli.verbs import load_config, verb_modules, verbs_parser
from vmpin.config.settings import BY_KEY

GRAMMAR = read(verbs_parser([]), "vmpin")
COMMANDS = {command.name: command for command in GRAMMAR.commands}


def words(command: Command) -> list[str]:
    """A verb with what it must be given."""
    given = [argument.choices[0] if argument.choices else "policy=fixed" if argument.metavar == "KEY=VALUE" else "x"
             for argument in command.arguments if not argument.optional]
    action = [word for subcommand in command.commands[:1] for word in [*words(subcommand), "-o", next(
        (option.choices[0] for option in subcommand.options if "-o" in option.names and option.choices), "x")]]
    return [command.name, *given, *action]


def test_the_grammar_has_every_verb_and_the_options_that_help_shows() -> None:
    assert list(COMMANDS) == list(verb_modules())
    assert [option.names for option in GRAMMAR.options] == [
        ("-h", "--help"), ("--version",), ("--config",), ("--set",)]
    status = COMMANDS["status"]
    output = next(option for option in status.options if "-o" in option.names)
    assert (output.metavar, output.choices) == ("FORMAT", ("table", "wide", "name", "json", "yaml"))
    assert not any("--config" in option.names for option in status.options), "the program's help has it"
    assert [(argument.metavar, argument.optional) for argument in status.arguments] == [("SANDBOX", True)]
    if "guest" in COMMANDS:
        assert [command.name for command in COMMANDS["guest"].commands] == ["build"]


@pytest.mark.parametrize("verb", verb_modules())
def test_every_option_of_the_program_may_stand_before_and_after_a_verb(verb: str, tmp_path: Path,
                                                                      capsys: pytest.CaptureFixture[str]) -> None:
    """All of them: where the program gets another option, this asks for it."""
    file, line = tmp_path / "vmpin.yaml", words(COMMANDS[verb])
    file.write_text("log: {level: debug}\n")
    given = {"--config": ["--config", str(file)], "--set": ["--set", "watch.qmp=off"], "--version": ["--version"],
             "--help": ["--help"]}
    assert {option.names[-1] for option in GRAMMAR.options} == set(given)
    for name in "--version", "--help":
        for typed in [name, *line], [*line, name]:
            with pytest.raises(SystemExit) as ending:
                main(typed)
            assert (ending.value.code, bool(capsys.readouterr().out)) == (0, True)
    for before, after in ((given["--config"], given["--set"]), (given["--set"], given["--config"]),
                          ([], given["--set"] + given["--config"]), (given["--config"] + given["--set"], [])):
        parsed = verbs_parser(line).parse_args([*before, *line, *after])
        if verb != "guest":  # which reads no configuration
            config = load_config(parsed)
            assert (config.log.level, config.watch.qmp) == ("debug", False)


def test_settings_before_and_after_the_verb_add_up_and_the_later_counts() -> None:
    keys = ("watch.births", "watch.kubelet", "watch.qmp")
    assert all(BY_KEY[key].default for key in keys)
    parsed = verbs_parser(["config"]).parse_args([
        "--set", "watch.births=off", "--set", "log.level=error", "config", "--set=watch.kubelet=off",
        "--set", "log.level=debug", "--set", "watch.qmp=off"])
    config = load_config(parsed)
    assert [config.values[key] for key in keys] == [False, False, False]
    assert config.log.level == "debug"


@pytest.mark.parametrize(("typed", "error", "hint"), [
    (["status", "--wacth"], "status has no option --wacth", "did you mean --watch? `vmpin status --help` lists"),
    (["status", "--ouptut=json"], "status has no option --ouptut", "did you mean --output?"),
    (["verify", "--frobnicate"], "verify has no option --frobnicate", "`vmpin verify --help` lists what it takes"),
    (["verify", "--hlp"], "verify has no option --hlp", "--hlp\n  `vmpin verify --help` lists what it takes"),
    (["plan", "--confg", "x"], "plan has no option --confg", "did you mean --config"),
    (["--set", "log.level=error", "status", "a", "b"], "status takes no argument 'b'", "`vmpin status --help`")])
def test_an_option_that_does_not_exist_gets_the_nearest_one(typed: list[str], error: str, hint: str,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()[0]) == ("", f"vmpin: {error}")
    assert hint in printed.err
