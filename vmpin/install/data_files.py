"""The paths of the files that are no Python modules: the hook, the guest's agent, configuration examples,
the documentation.

In a wheel they are under vmpin/data, in a checkout at the top of the repository (pyproject.toml moves them)."""

from pathlib import Path

from vmpin.errors import VmpinError

_PACKAGE = Path(__file__).resolve().parents[1]


def path(name: str, package: Path = _PACKAGE) -> Path:
    """The path of the file or directory `name`, as "hooks/vmpin-hook"; `package` is the directory of vmpin.
    :raises VmpinError: when this installation has no such file."""
    packed = package / "data" / name
    if packed.exists():
        return packed
    # The directory above an installed package is site-packages, where "hooks" or "config" would be another package's.
    checkout = package.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / name).exists():
        return checkout / name
    raise VmpinError(f"this installation of vmpin lacks {name} (looked for {packed})", "install vmpin again")
