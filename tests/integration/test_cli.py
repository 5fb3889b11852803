"""Every verb as an operator types it: what it prints for people and for programs, and its exit codes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from cli_runs import VERBS, refused, run
from real_node import COMMAND


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_verb_has_help(verb: str, flag: str) -> None:
    done = run(verb, flag)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: vmpin {verb} ")
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_the_help_lists_every_verb() -> None:
    done = run("--help")
    assert done.returncode == 0
    for verb in VERBS:
        assert re.search(rf"^ +{verb} ", done.stdout, re.MULTILINE), verb


@pytest.mark.parametrize(("args", "why"), [
    ((), "usage: vmpin"), (("no-such-verb",), "there is no command 'no-such-verb'"),
    (("status", "--no-such-flag"), "status has no option --no-such-flag"), (("status", "-o", "xml"), "usage: vmpin"),
    (("config", "--example", "-o", "json"), "--example prints a file of YAML: it goes without -o"),
    (("status", "--explain"), "--explain is about one pod"), (("status", "a", "b"), "status takes no argument 'b'")])
def test_what_cannot_be_understood_is_exit_code_2(args: tuple[str, ...], why: str) -> None:
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_printed() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"vmpin [0-9]+\.[0-9]+\.[0-9]+\S*\n", done.stdout)


@pytest.mark.parametrize("verb", ["repin", "config", "watch", "reporter"])
def test_an_unknown_key_is_refused_by_name_and_file(tmp_path: Path, verb: str) -> None:
    file = tmp_path / "vmpin.yaml"
    file.write_text("node: {shared_poool: 0}\n")
    for args in (("--config", str(file), verb), (verb, "--config", str(file))):
        refused(run(*args), f"{file}: unknown key 'node.shared_poool'", "did you mean 'node.shared_pool'?")


@pytest.mark.parametrize(("text", "parts"), [
    ("nodes: {a: 1}\n", ["unknown section 'nodes'"]), ("node: {shared_pool: 3-1}\n", ["node.shared_pool", "3-1"]),
    ("- a\n", ["is not a mapping"]), ("node: [\n", ["vmpin.yaml:"]), ("watch: {resync_seconds: never}\n", ["never"]),
    ("policy: {vcpus: perhaps}\n", ["policy.vcpus", "perhaps"]), ("paths: {run: relative}\n", ["paths.run"]),
    ("log: {level: [}\n", ["vmpin.yaml:"]), ("watch: {only: 'a b'}\n", ["watch.only"]), ("\x00", ["vmpin.yaml"])])
def test_a_value_that_cannot_be_used_is_refused_with_its_place(tmp_path: Path, text: str, parts: list[str]) -> None:
    file = tmp_path / "vmpin.yaml"
    file.write_text(text)
    refused(run("--config", str(file), "config"), str(file), *parts)


def test_a_configuration_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    refused(run("--config", str(tmp_path / "no.yaml"), "status"), str(tmp_path / "no.yaml"))


def test_the_configuration_says_where_each_value_came_from(tmp_path: Path) -> None:
    file = tmp_path / "vmpin.yaml"
    file.write_text("node: {shared_pool: 0-1}\npolicy: {vcpus: union, vhost: 'off'}\n")
    args = ("--config", str(file), "--set", "policy.emulator=0", "config", "--set", "log.level=debug")
    done = run(*args, "-o", "json", env={"VMPIN_POLICY_VCPUS": "auto"})
    found = json.loads(done.stdout)
    assert found["node.shared_pool"] == {"value": "0-1", "from": str(file)}
    assert found["policy.vcpus"] == {"value": "auto", "from": "environment VMPIN_POLICY_VCPUS"}
    assert found["policy.vhost"] == {"value": "off", "from": str(file)}
    assert found["policy.emulator"] == {"value": "0", "from": "flag"}
    assert found["log.level"] == {"value": "debug", "from": "flag"}
    assert found["watch.resync_seconds"] == {"value": 10.0, "from": "default"}
    assert yaml.safe_load(run(*args, "-o", "yaml").stdout).keys() == found.keys()
    shown = run(*args).stdout
    assert re.search(rf"^node.shared_pool +0-1 +{re.escape(str(file))}$", shown, re.MULTILINE)
    refused(run("config", "--set", "nonsense"), "--set nonsense: is not KEY=VALUE")
    refused(run("config", "--set", "a.b=1"), "unknown key 'a.b'")
    refused(run("config", env={"VMPIN_POLICY_VCPUS": "x"}), "VMPIN_POLICY_VCPUS", "'x'")
    refused(run("config", env={"VMPIN_POLICY_VPCUS": "auto"}), "VMPIN_POLICY_VPCUS", "'VMPIN_POLICY_VCPUS'")


def test_an_output_without_a_reader_is_no_error() -> None:
    for args in ("config", "plan --help", "status --help"):
        done = subprocess.run(["sh", "-c", f'"$@" {args} | head -0', "sh", *COMMAND], capture_output=True, text=True,
                              timeout=120)
        assert done.stderr == ""
        assert done.stdout == ""


