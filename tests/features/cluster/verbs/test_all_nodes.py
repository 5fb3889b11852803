"""`--all-nodes` and the kubectl plugin: what they are called, which options they refuse, and what is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vmpin.cli.main import main

PLUGIN = "/usr/local/bin/kubectl-vmpin"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [PLUGIN])


@pytest.mark.parametrize("verb", ["status", "verify"])
def test_help_names_the_command_that_is_typed(verb: str, plugin: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: kubectl vmpin {verb} ")
    assert "\n  kubectl vmpin " in printed
    assert "\n  vmpin " not in printed
    assert "SANDBOX" not in printed
    listed = re.findall(r"^  (?:-\w(?: [A-Z]+)?, )?(--[a-z-]+)", printed, flags=re.MULTILINE)
    assert {"--help", "--all-nodes", "--node"} <= set(listed)
    assert set(re.findall(r"--[a-z][a-z-]*", printed)) == set(listed)


def test_help_of_the_plugin_begins_with_the_cluster(plugin: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert printed.startswith("usage: kubectl vmpin ")
    assert "kubectl vmpin status --node NAME" in printed
    assert "install hook --hooks-dir" not in printed


def test_help_of_the_program_itself_is_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert printed.startswith("usage: vmpin ")
    assert "install hook --hooks-dir" in printed
    assert "kubectl" not in printed


@pytest.mark.parametrize("words", [
    ["status", "5f2c"], ["status", "--direct"], ["status", "--inspect"], ["status", "--watch"],
    ["status", "--problems"], ["status", "--no-headers"], ["status", "-o", "name"], ["status", "demo/*"],
    ["verify", "5f2c"], ["verify", "--since", "1h"], ["verify", "--tolerate", "0"],
    ["verify", "-w"], ["verify", "--direct"]])
@pytest.mark.parametrize("more", [["--all-nodes"], ["--node", "a"], ["-n", "shop", "--all-nodes"],
                                  ["-l", "vmpin.io/pool=a"], ["--context", "x"], ["--kubeconfig", "x"]])
def test_what_is_about_this_node_does_not_go_with_all(words: list[str], more: list[str],
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, *more]) == 2
    assert "is about this node" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["status", "verify"])
def test_the_namespace_of_a_pod_is_about_this_node(verb: str, tmp_path: Path,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = [word for name in ("run", "kata_go", "kata_rs", "kubelet", "nri")
               for word in ("--set", f"paths.{name}={tmp_path / name}")]
    assert main([*nowhere, "--set", "watch.only=none-of-this-machine's", verb, "web", "-n", "shop"]) == 2
    assert "no VM sandbox 'web' is on this node in namespace 'shop'" in capsys.readouterr().err
    assert main([*nowhere, "--set", "watch.only=none-of-this-machine's", verb, "-n", "shop"]) == 0
    assert "namespace 'shop'" in capsys.readouterr().out


def test_the_plugin_is_about_all_nodes(plugin: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "5f2c"]) == 2
    assert "is about this node" in capsys.readouterr().err


#: A module of that name that cannot be imported: as without the extra, also where it is installed.
_WITHOUT = """\
import sys
sys.modules["kubernetes"] = None
from vmpin.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("verb", ["status", "verify"])
def test_without_the_extra_the_error_says_what_to_install(verb: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT, verb, "--all-nodes"], capture_output=True, text=True,
                          env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'vmpin[kubernetes]'" in done.stderr


def test_an_option_that_does_not_exist_gets_the_nearest_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--confg", "x"]) == 2
    assert "did you mean --config or --kubeconfig?" in capsys.readouterr().err
