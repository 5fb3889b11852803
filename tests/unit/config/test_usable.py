"""A configuration with faults, for commands that set no masks by it: the valid rest is used, each fault is kept."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from vmpin.cli.verbs import usable_config
from vmpin.config import loading as settings
from vmpin.errors import ConfigError

GOOD = "paths: {run: /run/other}\nwatch: {resync_seconds: 5}\n"


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "vmpin.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(("more", "why"), [
    ("polcy: {vcpus: union}\n", "unknown section 'polcy'"),
    ("policy: {vcpsu: union}\n", "unknown key 'policy.vcpsu'"),
    ("policy: {vcpus: 7}\n", "policy.vcpus: 7: "),
    ("policy: 7\n", "policy: 7 is not a mapping"),
    ("7: {a: b}\n", "unknown section 7"),
    ("policy: {7: 8}\n", "unknown key 'policy.7'"),
    ("policy: [\n", "expected the node content"),
    ("policy: {vcpus: union\nlog: }{\n", "vmpin.yaml:"),
    ("watch: {qmp: off}\n", "key 'watch' cannot be used or is there twice"),
    ("\tx\n", "cannot start any token")])
def test_the_valid_rest_is_used(tmp_path: Path, more: str, why: str) -> None:
    path = write(tmp_path, GOOD + more)
    with pytest.raises(ConfigError) as refused:
        settings.load(path, {}, {})
    assert why in str(refused.value)
    found = settings.load_usable(path, {}, {})
    assert [str(err) for err in found.errors] == [str(refused.value)]
    assert (str(found.paths.run), found.watch.resync_seconds, found.policy.vcpus) == ("/run/other", 5.0, "auto")
    assert found.values | {} == settings.load(write(tmp_path, GOOD), {}, {}).values


@pytest.mark.parametrize("how", ["a directory", "garbage", "not a mapping", "nul bytes"])
def test_of_a_file_that_cannot_be_read_nothing_is_used(tmp_path: Path, how: str) -> None:
    path = tmp_path / "vmpin.yaml"
    match how:
        case "a directory":
            path.mkdir()
        case "garbage":
            path.write_bytes(bytes(range(256)) * 16)
        case "not a mapping":
            path.write_text("- 1\n- 2\n")
        case "nul bytes":
            path.write_bytes(b"\0" * 100)
    with pytest.raises(ConfigError) as refused:
        settings.load(path, {}, {})
    found = settings.load_usable(path, {"VMPIN_LOG_LEVEL": "debug"}, {"paths.run": "/run/mine"})
    assert [str(err) for err in found.errors] == [str(refused.value)]
    assert (str(found.paths.run), found.log.level, found.watch.resync_seconds) == ("/run/mine", "debug", 10.0)


def test_a_file_that_was_named_and_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        settings.load_usable(tmp_path / "vmpin.yaml", {}, {})


def test_each_fault_is_kept_and_the_next_weaker_value_counts(tmp_path: Path) -> None:
    path = write(tmp_path, "log: {level: error}\nwatch: {births: maybe, qmp: off}\nnoed: {a: 1}\n")
    found = settings.load_usable(path, {"VMPIN_LOG_LEVEL": "loud", "VMPIN_NO_KEY": "1"}, {})
    assert sorted(str(err).removeprefix(f"{path}: ").partition(":")[0] for err in found.errors) == [
        "environment VMPIN_LOG_LEVEL", "environment VMPIN_NO_KEY", "unknown section 'noed'", "watch.births"]
    assert (found.log.level, found.watch.births, found.watch.qmp) == ("error", True, False)


@pytest.mark.parametrize("flags", [{"log.level": "loud"}, {"no.key": "1"}])
def test_a_wrong_flag_is_refused(flags: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        settings.load_usable(None, {}, flags)


def test_the_running_watchers_values_count_but_for_flags_and_the_environment(tmp_path: Path) -> None:
    its = settings.load(write(tmp_path, "log: {level: error}\npolicy: {vcpus: union}\ndrift: {rest_seconds: 7}\n"),
                        {}, {}).data() | {"old.key": {"value": 1, "from": ""}}
    path = write(tmp_path, "log: {levle: debug}\n")
    found = settings.of_watcher(settings.load_usable(
        path, {"VMPIN_POLICY_VCPUS": "off"}, {"drift.rest_seconds": "9"}), its)
    assert (found.log.level, found.policy.vcpus, found.drift.rest_seconds) == ("error", "off", 9.0)
    assert found.rules.vcpus == "off"
    assert found.origin["log.level"] == f"watcher: {path}"
    assert len(found.errors) == 1
    assert settings.of_watcher(found, settings.load(None, {}, {}).data()).values.keys() == found.values.keys()


def test_faults_are_printed_once_however_often_the_output_is_repeated(tmp_path: Path,
                                                                     capsys: pytest.CaptureFixture[str]) -> None:
    args = argparse.Namespace(config=str(write(tmp_path, "log: {levle: debug}\n")), set=[],
                              set_here=[f"paths.run={tmp_path}/run"])
    for _ in range(3):
        assert len(usable_config(args).errors) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"vmpin: {args.config}: unknown key 'log.levle'", "  did you mean 'log.level'?",
        f"vmpin: going on without that: the rest of the configuration is used, with paths.run {tmp_path}/run"]
