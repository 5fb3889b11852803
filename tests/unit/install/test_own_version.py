"""The version of the installed program, from the name of a directory, as importlib.metadata has it."""

from importlib import metadata
from pathlib import Path

from vmpin.install.own_version import installed_version


def test_it_is_that_of_the_installation() -> None:
    assert installed_version() == metadata.version("vmpin")


def test_the_first_directory_of_the_path_that_has_one_counts(tmp_path: Path) -> None:
    for directory, version in ("first", "1.2.3"), ("second", "0.1.0rc1"):
        (tmp_path / directory / f"vmpin-{version}.dist-info").mkdir(parents=True)
    path = [str(tmp_path / name) for name in ("absent", "first", "second")]
    assert installed_version(path) == "1.2.3"
    assert installed_version(path[2:]) == "0.1.0rc1"


def test_another_way_of_installing_counts_as_well(tmp_path: Path) -> None:
    egg = tmp_path / "vmpin.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: vmpin\nVersion: 0.9\n")
    assert installed_version([str(tmp_path)]) == "0.9"


def test_a_checkout_that_was_not_installed_has_none(tmp_path: Path) -> None:
    (tmp_path / "vmpin_tools-1.0.dist-info").mkdir()
    (tmp_path / "vmpin").mkdir()
    assert installed_version([str(tmp_path)]) is None
