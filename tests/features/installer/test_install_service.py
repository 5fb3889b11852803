"""`vmpin install service`: the unit of this vmpin, written once, kept where it was changed, and taken away again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vmpin.cli.main import main
from vmpin.errors import UsageError
from vmpin.features.installer.verbs import install_service
from vmpin.features.installer.verbs.install_service import is_untouched, unit_text
from vmpin.install import data_files

SHIPPED = data_files.path("config/vmpin.service").read_text()


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a machine's units, with a systemd that runs; its systemctl writes down what it is asked."""
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/systemctl"
    tool.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n'
                    f"[ ! -e {tmp_path}/broken ] || {{ echo no >&2; exit 1; }}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (tmp_path / "units").mkdir()
    monkeypatch.setattr(install_service, "UNITS", tmp_path / "units")
    monkeypatch.setattr(install_service, "RUNNING", tmp_path / "units")
    return tmp_path / "units"


def calls(units: Path) -> list[str]:
    """The calls of systemctl since the last time."""
    log = units.parent / "calls"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


def test_it_is_written_once_and_started_when_that_is_asked(units: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "service", "--dry-run", "--now"]) == 0
    assert "would write" in capsys.readouterr().out
    assert (list(units.iterdir()), calls(units)) == ([], [])
    assert main(["install", "service"]) == 0
    assert calls(units) == ["daemon-reload"]
    assert "next: systemctl enable --now vmpin" in capsys.readouterr().out
    written = (units / "vmpin.service").read_bytes()
    assert main(["install", "service"]) == 0
    assert calls(units) == []
    assert capsys.readouterr().out.startswith("nothing to do\n")
    assert main(["install", "service", "--now"]) == 0
    assert calls(units) == ["enable vmpin", "start vmpin"], "one that runs goes on"
    assert (units / "vmpin.service").read_bytes() == written
    assert main(["--config", "other.yaml", "install", "service", "--now"]) == 0
    assert calls(units) == ["daemon-reload", "enable vmpin", "restart vmpin"]
    assert f"--config {os.getcwd()}/other.yaml watch\n" in (units / "vmpin.service").read_text()


def test_it_is_removed_and_then_there_is_nothing_to_do(units: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "service"]) == 0
    calls(units)
    assert main(["install", "service", "--remove", "--dry-run"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("would")] == [
        "would systemctl disable --now vmpin", f"would remove {units}/vmpin.service", "would systemctl daemon-reload"]
    assert calls(units) == []
    assert main(["install", "service", "--remove"]) == 0
    assert calls(units) == ["disable --now vmpin", "daemon-reload"]
    assert list(units.iterdir()) == []
    assert "vmpin unpin --all" in capsys.readouterr().out
    assert main(["install", "service", "--remove"]) == 0
    assert calls(units) == []


@pytest.mark.parametrize("more", [[], ["--remove"]])
def test_a_unit_that_was_changed_stays_unless_forced(units: Path, more: list[str],
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "service"]) == 0
    file = units / "vmpin.service"
    changed = file.read_text().replace("Nice=-10", "Nice=-5")
    file.write_text(changed)
    calls(units)
    assert main(["install", "service", *more]) == 2
    assert "was changed by hand" in capsys.readouterr().err
    assert (file.read_text(), calls(units)) == (changed, [])
    assert main(["install", "service", "--force", *more]) == 0
    assert file.exists() is not bool(more)
    assert not more or calls(units)[0] == "disable --now vmpin"


def test_a_masked_service_is_left_so(units: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (units / "vmpin.service").symlink_to(os.devnull)
    assert main(["install", "service", "--force"]) == 2
    assert "systemctl unmask vmpin" in capsys.readouterr().err


def test_what_systemd_refuses_is_shown_with_its_reason(units: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (units.parent / "broken").touch()
    assert main(["install", "service"]) == 1
    assert "vmpin: systemctl daemon-reload: no\n" in capsys.readouterr().err


def test_without_systemd_the_file_is_written_and_that_is_said(units: Path, tmp_path: Path,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "service", "--dir", str(tmp_path / "image"), "--now"]) == 0
    assert "systemd does not run here" in capsys.readouterr().out
    assert (tmp_path / "image/vmpin.service").exists()
    assert calls(units) == []
    assert main(["install", "service", "--dir", str(tmp_path / "image"), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["version"], document["dry_run"], document["done"]) == (1, False, [])


@pytest.mark.parametrize("words", [["--set", "log.level=debug"], ["--remove", "--now"], ["--remove", "--print"],
                                   ["--print", "-o", "json"]])
def test_what_does_not_go_together_is_refused(units: Path, words: list[str]) -> None:
    assert main(["install", "service", *words]) == 2
    assert list(units.iterdir()) == []


def test_the_unit_is_the_shipped_one_with_this_program(units: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "service", "--print"]) == 0
    printed = capsys.readouterr().out
    ours = [line for line in printed.splitlines() if not line.startswith(("ExecStart=", "#"))]
    assert ours == [line for line in SHIPPED.splitlines() if not line.startswith(("ExecStart=", "#"))]
    (start,) = [line for line in printed.splitlines() if line.startswith("ExecStart=/")]
    assert os.access(start.removeprefix("ExecStart=").split()[0], os.X_OK)
    assert not list(units.iterdir())


@pytest.mark.parametrize(("command", "line"), [
    (["/opt/vmpin/bin/vmpin", "watch"], "/opt/vmpin/bin/vmpin watch"),
    (["/a b/vmpin", "watch"], '"/a b/vmpin" watch'), (["/50%/$x/v", "watch"], "/50%%/$x/v watch"),
    (["/v", "--config", '/$x/a"\\b', "watch"], '/v --config "/$$x/a\\"\\\\b" watch')])
def test_the_path_is_quoted_as_systemd_reads_it(command: list[str], line: str) -> None:
    text = unit_text(SHIPPED, command)
    assert f"\nExecStart={line}\n" in text
    assert is_untouched(text, "another version's")
    assert not is_untouched(text + "\n# mine", "another version's")


@pytest.mark.parametrize("command", [
    ['/a"b/v', "watch"], ["/a'b/v", "watch"], ["/a\\b/v", "watch"], ["/a\tb/v", "watch"], ["/a\x7fb/v", "watch"],
    ["/v", "--config", "/a\nExecStartPre=x", "watch"]])
def test_a_command_that_systemd_refuses_is_refused(command: list[str]) -> None:
    """systemd 252: "Executable name contains special characters", "Unbalanced quoting"."""
    with pytest.raises(UsageError, match="systemd cannot start"):
        unit_text(SHIPPED, command)


def test_a_copy_of_the_shipped_file_is_no_change() -> None:
    assert is_untouched(SHIPPED.replace("/usr/local/bin/vmpin", "/opt/vmpin/bin/vmpin"), SHIPPED)
    assert not is_untouched(SHIPPED.replace("Nice=-10", "Nice=0"), SHIPPED)
