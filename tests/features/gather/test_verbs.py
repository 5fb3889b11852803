"""`vmpin gather`: where it may write, what it reads, and a configuration with a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmpin.cli.main import main


@pytest.mark.parametrize("name", ["", "..", "/", "none/", "."])
def test_a_directorys_name_is_no_archive(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gather", "--out", name]) == 2
    assert capsys.readouterr().err.startswith(f"vmpin: {name!r} names no file to write\n")


@pytest.mark.parametrize(("root", "why"), [("none", "No such file or directory"), ("empty", "is empty")])
def test_a_root_that_is_not_there_is_no_clean_node(root: str, why: str, tmp_path: Path,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["gather", "--dry-run", "--root", str(tmp_path / root)]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert why in written.err


def test_a_fault_in_the_configuration_is_printed_and_the_rest_is_gathered(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "vmpin.yaml"
    file.write_text("no_such_section: {key: 1}\n")
    paths = [f"--set=paths.{name}={tmp_path / name}" for name in ("run", "kata_go", "kata_rs", "kubelet", "nri")]
    assert main(["--config", str(file), *paths, "gather", "--dry-run"]) == 0
    written = capsys.readouterr()
    assert "vmpin/config.json" in written.out
    assert "going on without that" in written.err
