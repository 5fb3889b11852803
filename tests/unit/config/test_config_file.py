"""config/vmpin.yaml: documents every key with its default, and changes nothing as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from vmpin.cli.main import main
from vmpin.config import loading as settings
from vmpin.config.settings import SECTIONS, SETTINGS
from vmpin.config.values import Setting
from vmpin.install import data_files

FILE = data_files.path("config/vmpin.yaml")
#: `  #key: value` is a setting that is commented out, `  # text` is prose.
COMMENTED_OUT = re.compile(r"^( *)#(?=[a-z])", re.MULTILINE)


def everything(tmp_path: Path) -> Path:
    """The file with every key in force."""
    made = tmp_path / "vmpin.yaml"
    made.write_text(COMMENTED_OUT.sub(r"\1", FILE.read_text()))
    return made


def test_loading_the_file_changes_nothing() -> None:
    loaded = settings.load(FILE, {}, {})
    assert set(loaded.origin.values()) == {"default"}
    assert loaded.values == {setting.key: setting.default for setting in SETTINGS}


def test_an_older_version_accepts_the_unchanged_file_of_a_newer_one(tmp_path: Path) -> None:
    """A section that this version lacks has comments alone in the newer file, as each section of this one has."""
    newer = tmp_path / "newer.yaml"
    newer.write_text(re.sub("^([a-z]+:)$", r"new_\1", FILE.read_text(), flags=re.MULTILINE))
    loaded = settings.load(newer, {}, {})
    assert len(loaded.warnings) == len(SECTIONS)
    assert loaded.values == {setting.key: setting.default for setting in SETTINGS}


def test_every_key_is_there_and_no_other(tmp_path: Path) -> None:
    document = yaml.safe_load(everything(tmp_path).read_text())
    assert {f"{section}.{key}" for section, keys in document.items() for key in keys} == {
        setting.key for setting in SETTINGS}


def test_every_key_stands_at_its_default(tmp_path: Path) -> None:
    made = everything(tmp_path)
    loaded = settings.load(made, {}, {})
    assert set(loaded.origin.values()) == {str(made)}
    assert loaded.values == {setting.key: setting.default for setting in SETTINGS}


def test_the_command_prints_each_value_as_the_file_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = everything(tmp_path)
    assert main(["--config", str(made), "config"]) == 0
    printed = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:])
    written = re.findall(r"^  (\w+): (.*)$", made.read_text(), re.MULTILINE)
    assert sorted((key.partition(".")[2], value) for key, value in printed.items()) == sorted(
        (key, value.strip('"') or "unset") for key, value in written)


def test_the_command_prints_the_file_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--example"]) == 0
    assert capsys.readouterr().out == FILE.read_text()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_key_is_explained(setting: Setting) -> None:
    """Prose right above the key, or above the run of keys it stands in."""
    section, _, name = setting.key.partition(".")
    sections = re.split(r"^(?=[a-z])", FILE.read_text(), flags=re.MULTILINE)
    text = next(part for part in sections if part.startswith(f"{section}:"))
    prose = r"^  # \S.*\n"
    assert re.search(rf"(?:{prose})(?:  #[a-z].*\n)*  #{name}: ", text, re.MULTILINE)
