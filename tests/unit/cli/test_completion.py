"""`vmpin completion`: real shells complete what the parsers take and what runs on the node, whatever its name is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from need import need_tool
from typed_shell import VMPIN, TypedShell, answering_watcher, pod, typed_shell

from vmpin.cli.shell.completed import leaves
from vmpin.cli.verbs import grammar, verb_modules
from vmpin.config.settings import BY_KEY
from vmpin.doctor.checks import all_checks

#: Each begins and ends in a way of its own, and would create the file `made` if a shell ran any of it.
HOSTILE = ("e1 $(touch made)end1", "e2`touch made`end2", "e3;touch made;end3", "e4'\"'$(touch made)end4",
           "e5\\*?[a]$HOME end5", "e6!x&touch made|<>~#{a,b}end6", "e7' touch made 'end7")
#: Not offered: nobody could type or see it.
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


def script(shell: str, to: Path) -> Path:
    made = to / f"vmpin.{shell}"
    made.write_text(subprocess.run([*VMPIN, "completion", shell], check=True, capture_output=True, text=True,
                                   timeout=120).stdout)
    return made


def ready(shell: str, typed: TypedShell, place: Path) -> None:
    """Completes vmpin, and shows instead what it would get."""
    made = script(shell, place)
    if shell == "zsh":
        typed.type("autoload -U compinit; compinit -D -u; zstyle ':completion:*' insert-tab false; echo on$((1+1))\n",
                   "on2")
    typed.type(f"source {made}; {SHOW[shell]}\n", "")
    typed.type("echo ready-$(echo yes)\n" if shell != "fish" else "echo ready-(echo yes)\n", "ready-yes")


@pytest.mark.parametrize("shell", START)
def test_a_real_shell_completes_it_as_it_is_typed(shell: str, environment: dict[str, str], tmp_path: Path) -> None:
    with typed_shell([need_tool(shell), *START[shell]], environment, tmp_path) as typed:
        ready(shell, typed, tmp_path)
        for text, arguments in (
                ("vmpin expl\tsho\t", "<explain><shop>"), ("vmpin status demo/st\t", "<status><demo/store>"),
                ("vmpin status -n test sto\t", "<status><-n><test><store>"),
                ("vmpin unpin -n te\tsto\t", "<unpin><-n><test><store>"),
                ("vmpin explain shop/w\t", "<explain><shop/web>"), ("vmpin map -o ht\t", "<map><-o><html>"),
                ("vmpin --set log.lev\tdebug config", "<--set><log.level=debug><config>"),
                ("vmpin guest bu\t", "<guest><build>")):
            typed.type(f"{text}\n", arguments)


@pytest.mark.parametrize("shell", START)
def test_hostile_names_are_one_argument_each_and_run_nothing(shell: str, environment: dict[str, str],
                                                            tmp_path: Path) -> None:
    with typed_shell([need_tool(shell), *START[shell]], environment, tmp_path) as typed:
        ready(shell, typed, tmp_path)
        for name in HOSTILE:
            typed.type(f"vmpin status {name[:2]}\t\n", f"<status><{name}>")
        typed.type("vmpin status h\t\t\n", "<status><h>")
        typed.type("vmpin explain 'e\t1'\n", "<explain>")
    assert not (tmp_path / "made").exists()


def names(environment: dict[str, str], *words: str) -> list[str]:
    ran = subprocess.run([*VMPIN, "__complete", *words], env=environment, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


def test_the_names_are_those_that_mean_one_thing(environment: dict[str, str]) -> None:
    assert set(names(environment, "sandboxes", "")) == {"shop", "demo/store", "test/store", *HOSTILE}
    assert names(environment, "sandboxes", "st", "status", "--namespace=demo") == ["store"]
    assert names(environment, "sandboxes", "demo/") == ["demo/shop", "demo/store"]
    assert names(environment, "containers", "shop/") == ["shop/logs", "shop/web"]
    assert names(environment, "namespaces", "", "status", "-n") == ["demo", "test", "x"]
    assert names(environment, "sandboxes", "0") == []
    assert names(environment, "no-such-kind-of-name", "shop") == ["shop"]


@pytest.mark.parametrize("words", [
    [], ["sandboxes"], ["sandboxes", "", "--config", "/nonexistent"],
    ["sandboxes", "", "--set", "nonsense"], ["sandboxes", "", "--set", "paths.run=relative"],
    ["sandboxes", "\udcff\x1b", "-n"], ["sandboxes", "no", "--set"], ["sandboxes", "no", "--config"]])
def test_the_names_are_never_an_error(words: list[str], environment: dict[str, str]) -> None:
    assert names(environment, *words) == []


def test_a_watcher_that_does_not_answer_holds_up_no_shell(tmp_path: Path) -> None:
    """It would be waited for without end: the command ends itself."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "vmpin.sock"))
        listener.listen()
        ran = subprocess.run([*VMPIN, "__complete", "sandboxes", ""], capture_output=True, timeout=120,
                             env={**os.environ, "VMPIN_PATHS_RUN": str(tmp_path)})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
    assert ran.returncode != -signal.SIGALRM


def in_bash(place: Path, *words: str) -> list[str]:
    """What bash is offered for the last word, by the script's own function."""
    ran = subprocess.run(
        ["bash", "--norc", "-c", 'compopt() { :; }; source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
         '_vmpin; printf "%s\\n" "${COMPREPLY[@]}"', "bash", place, *words],
        capture_output=True, text=True, timeout=120)
    assert ran.stderr == ""
    return [line for line in ran.stdout.splitlines() if line]


def in_fish(place: Path, *words: str) -> list[str]:
    line = " ".join(words)
    ran = subprocess.run([need_tool("fish"), "--no-config", "-c", f"source {place}; complete -C '{line}'"],
                         capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(place.parent)})
    assert ran.stderr == ""
    return [found.partition("\t")[0] for found in ran.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_every_verb_option_and_choice_of_the_parsers_is_offered(shell: str, tmp_path: Path) -> None:
    made, offered = script(shell, tmp_path), in_bash if shell == "bash" else in_fish
    assert offered(made, "vmpin", "") == list(verb_modules()) or shell == "fish"
    assert set(offered(made, "vmpin", "")) >= set(verb_modules())
    assert offered(made, "vmpin", "--config", "x", "comp") == ["completion"]
    assert set(offered(made, "vmpin", "--set", "")) == {f"{key}=" for key in BY_KEY}
    assert set(offered(made, "vmpin", "doctor", "")) == {check.name for check in all_checks()}
    assert {"placement", "status"} <= set(offered(made, "vmpin", "help", ""))
    for path, command in leaves(grammar()):
        whole = [name for option in command.options for name in option.names if name.startswith("--")]
        if shell == "bash" or path[0] in ("status", "guest", "unpin"):  # each start of fish takes long
            assert set(offered(made, "vmpin", *path, "--")) >= {*whole, "--config", "--set"}, path
            for option in command.options:
                if option.choices:
                    assert set(offered(made, "vmpin", *path, option.names[0], "")) == set(option.choices)
