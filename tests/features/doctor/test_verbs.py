"""`vmpin gather`: where it may write, what it reads, and a configuration with a fault. `vmpin doctor`: its arguments,
and its page."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_shell import offered

from vmpin.cli.grammar import read
from vmpin.cli.main import main
from vmpin.cli.verbs import verbs_parser
from vmpin.features.doctor.checks import all_checks
from vmpin.features.doctor.verbs.doctor import node_root

pytest_plugins = ["given_unit"]


@pytest.mark.parametrize("name", ["", "..", "/", "none/", "."])
def test_a_directorys_name_is_no_archive(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gather", "--out", name]) == 2
    assert capsys.readouterr().err.startswith(f"vmpin: {name!r} names no file to write\n")


def test_a_fault_in_the_configuration_is_printed_and_the_rest_is_gathered(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "vmpin.yaml"
    file.write_text("no_such_section: {key: 1}\n")
    paths = [f"--set=paths.{name}={tmp_path / name}" for name in ("run", "kata_go", "kata_rs", "kubelet", "nri")]
    assert main(["--config", str(file), *paths, "gather", "--dry-run"]) == 0
    written = capsys.readouterr()
    assert "vmpin/config.json" in written.out
    assert "going on without that" in written.err


@pytest.mark.parametrize("verb", [["doctor", "kata"], ["gather", "--dry-run"]])
@pytest.mark.parametrize(("root", "why"), [
    ("none", "No such file or directory"), ("other/below", "is empty"), ("spec.json", "Not a directory"),
    ("none/", "No such file or directory"), ("../none", "No such file or directory"), ("", "names no directory")])
def test_a_root_that_is_not_there_is_no_clean_node(here: Path, capsys: pytest.CaptureFixture[str], root: str,
                                                   why: str, verb: list[str]) -> None:
    assert main([*verb, "--root", root]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert why in printed.err


def test_a_root_that_is_there_is_taken(here: Path) -> None:
    assert node_root("other/") == node_root("link/..") == here / "other"
    assert node_root("/") == Path("/")
    assert node_root("/proc/self/root") == Path("/proc/self/root"), "its text is another namespace's"


def test_the_names_of_checks_are_completed(tmp_path: Path) -> None:
    assert set(offered(tmp_path, "vmpin doctor ")) == {check.name for check in all_checks()}


def test_doctor_repeats_itself_with_watch() -> None:
    (page,) = [verb for verb in read(verbs_parser([]), "vmpin").commands if verb.name == "doctor"]
    assert any("--watch" in option.names for option in page.options)


def test_help_prints_the_page_of_the_commands_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "doctor"]) == 0
    assert capsys.readouterr().out == (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()
