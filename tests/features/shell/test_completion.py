"""`vmpin completion`: real shells complete what the parsers take and what runs on the node, whatever its name is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from need import need_tool
from typed_shell import PATIENT, VMPIN, TypedShell, answering_watcher, offered, pod, typed_shell

from vmpin.cli.grammar import Command
from vmpin.cli.verbs import grammar, verb_modules
from vmpin.config.settings import BY_KEY

#: Each begins and ends in a way of its own, and would create the file `made` if a shell ran any of it.
HOSTILE = ("e1 $(touch made)end1", "e2`touch made`end2", "e3;touch made;end3", "e4'\"'$(touch made)end4",
           "e5\\*?[a]$HOME end5", "e6!x&touch made|<>~#{a,b}end6", "e7' touch made 'end7")
#: Not offered: it cannot be typed or seen.
HIDDEN = ("h1\x1b[2Jend", "-h2", "h3\nend", "h4\tend")
START = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"], "fish": ["--no-config", "-i"]}
#: Prints its arguments in the place of vmpin, so that they are seen as the program gets them.
SHOW = {"bash": r"vmpin() { printf '<%s>' \"$@\"; echo; }".replace('\\"', '"'),
        "zsh": "vmpin() { printf '<%s>' \"$@\"; echo }",
        "fish": "function vmpin; printf '<%s>' $argv; echo; end"}


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """With a watcher that reports pods."""
    pods = [pod(0xa1, "demo", "shop", "web", "logs"), pod(0xa2, "demo", "store"), pod(0xa3, "test", "store"),
            *(pod(0xb0 + at, "x", name, f"c-{name}") for at, name in enumerate((*HOSTILE, *HIDDEN)))]
    with answering_watcher(tmp_path / "run", pods):
        clean = {key: value for key, value in os.environ.items()
                 if not key.startswith(("VMPIN_", "LINES", "COLUMNS", "PS1", "PROMPT"))}
        yield {**clean, "VMPIN_PATHS_RUN": str(tmp_path / "run"), "LC_ALL": "C.UTF-8",
               "VMPIN_COMPLETION_DEADLINE": "120"}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """vmpin, as an installation has it: the shells' scripts start it by its path."""
    path = tmp_path / "bin" / "vmpin"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\nimport sys\nfrom vmpin.cli.__main__ import main\nsys.exit(main())\n")
    path.chmod(0o755)
    return path


def script(shell: str, program: Path) -> Path:
    path = program.with_suffix(f".{shell}")
    path.write_text(subprocess.run([program, "completion", shell], check=True, capture_output=True, text=True,
                                   timeout=120).stdout)
    return path


def ready(shell: str, typed: TypedShell, program: Path) -> None:
    """Completes vmpin, and shows instead what it would get."""
    made = script(shell, program)
    if shell == "zsh":
        typed.type("autoload -U compinit; compinit -D -u; zstyle ':completion:*' insert-tab false; echo on$((1+1))\n",
                   "on2")
    typed.type(f"source {made}; {SHOW[shell]}\n", "")
    typed.type("echo ready-$(echo yes)\n" if shell != "fish" else "echo ready-(echo yes)\n", "ready-yes")


@pytest.mark.parametrize("shell", START)
def test_a_real_shell_completes_it_as_it_is_typed(shell: str, environment: dict[str, str], program: Path,
                                                  tmp_path: Path) -> None:
    with typed_shell([need_tool(shell), *START[shell]], environment, tmp_path) as typed:
        ready(shell, typed, program)
        for text, arguments in (
                ("vmpin stat\tsho\t", "<status><shop>"), ("vmpin status demo/st\t", "<status><demo/store>"),
                ("vmpin status -n test sto\t", "<status><-n><test><store>"),
                ("vmpin unpin -n te\tsto\t", "<unpin><-n><test><store>"),
                ("vmpin status --exp\tshop/w\t", "<status><--explain><shop/web>"),
                ("vmpin plan -o js\t", "<plan><-o><json>"),
                ("vmpin --set log.lev\tdebug config", "<--set><log.level=debug><config>"),
                ("vmpin guest bu\t", "<guest><build>")):
            typed.type(f"{text}\n", arguments)


@pytest.mark.parametrize("shell", START)
def test_hostile_names_are_one_argument_each_and_run_nothing(shell: str, environment: dict[str, str], program: Path,
                                                             tmp_path: Path) -> None:
    with typed_shell([need_tool(shell), *START[shell]], environment, tmp_path) as typed:
        ready(shell, typed, program)
        for name in HOSTILE:
            typed.type(f"vmpin status {name[:2]}\t\n", f"<status><{name}>")
        typed.type("vmpin status h\t\t\n", "<status><h>")
        typed.type("vmpin status 'e\t1'\n", "<status>")
    assert not (tmp_path / "made").exists()


def test_the_names_are_those_that_mean_one_thing(environment: dict[str, str], tmp_path: Path) -> None:
    def names(line: str) -> list[str]:
        return offered(tmp_path, f"vmpin {line}", environment)

    assert set(names("status ")) == {"shop", "demo/store", "test/store", *HOSTILE}
    assert names("status --namespace=demo st") == ["store"]
    assert names("unpin demo/") == ["demo/shop", "demo/store"]
    assert names("status --explain shop/") == ["shop/logs", "shop/web"]
    assert names("status -n ") == ["demo", "test", "x"]
    assert (names("status --pro"), names("status -o na"), names("status --all-na")) == (
        ["--problems"], ["name"], ["--all-namespaces"])
    assert names("status 0") == []


@pytest.mark.parametrize("line", [
    "vmpin --config /nonexistent status ", "vmpin --set nonsense status ", "vmpin no-such-verb ",
    "vmpin --set paths.run=relative status ", "vmpin status \udcff\x1b", "vmpin status 'no", "vmpin status no -n "])
def test_nothing_is_offered_rather_than_an_error_shown(line: str, environment: dict[str, str],
                                                       tmp_path: Path) -> None:
    names = [] if not line.endswith("-n ") else ["demo", "test", "x"]
    assert offered(tmp_path, line, environment) == names


def test_a_watcher_that_does_not_answer_holds_up_no_shell(tmp_path: Path) -> None:
    """It would be waited for without end: the command ends itself."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "vmpin.sock"))
        listener.listen()
        assert offered(tmp_path, "vmpin status ", {**os.environ, "VMPIN_PATHS_RUN": str(tmp_path)}) == []


def leaves(command: Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Command]]:
    """Every command below the program with the words that name it: (status,), (guest,), (guest, build)."""
    return [leaf for below in command.commands
            for leaf in [((*path, below.name), below), *leaves(below, (*path, below.name))]]


def test_every_verb_option_and_choice_of_the_parsers_is_offered(tmp_path: Path) -> None:
    assert set(offered(tmp_path, "vmpin ")) >= {*verb_modules()}
    assert offered(tmp_path, "vmpin --config x comp") == ["completion"]
    assert set(offered(tmp_path, "vmpin --set ")) == {f"{key}=" for key in BY_KEY}
    assert set(offered(tmp_path, "vmpin status --set ")) == {f"{key}=" for key in BY_KEY}
    assert {"placement", "status"} <= set(offered(tmp_path, "vmpin help "))
    for path, command in leaves(grammar()):
        whole = [name for option in command.options for name in option.names if name.startswith("--")]
        assert set(offered(tmp_path, f"vmpin {' '.join(path)} --")) >= {*whole, "--config", "--set"}, path
        for option in command.options:
            if option.choices:
                assert set(offered(tmp_path, f"vmpin {' '.join(path)} {option.names[0]} ")) == set(option.choices)


def test_a_tab_loads_one_verb_and_nothing_of_the_others(tmp_path: Path) -> None:
    """All of them take three times as long."""
    ran = subprocess.run([sys.executable, "-X", "importtime", *VMPIN[1:]], timeout=120, capture_output=True, text=True,
                         stdin=subprocess.DEVNULL, env={
                             **PATIENT, "_ARGCOMPLETE": "1",
                             "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "x"),
                             "COMP_LINE": "vmpin status --", "COMP_POINT": "15"})
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert {"argcomplete", "vmpin.cli.control_client"} <= loaded
    assert not {"vmpin.features.proof.verbs.run_times", "rich", "yaml", "asyncio"} & loaded
