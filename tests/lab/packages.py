"""Debian packages of any release, fetched with apt: it knows proxies and checks signatures.

Lists and sources are of a directory's own, as the machine may run another release. Nothing is installed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from lab import cache
from lab.rootfs import apt_environment

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Packages:
    """What a mirror has of one release.

    :param work: a directory for lists and downloads; the caller's to remove.
    :raises LabError: from everything that cannot be fetched.
    """

    def __init__(self, work: Path, suite: str, mirror: str, log: Path) -> None:
        self.work = work
        self.log = log
        for directory in ("lists/partial", "cache/archives/partial", "etc"):
            (work / directory).mkdir(parents=True)
        (work / "status").touch()
        signed = f"[signed-by={_KEYRING}] " if os.path.exists(_KEYRING) else ""
        (work / "etc/sources.list").write_text(f"deb {signed}{mirror} {suite} main\n")
        options = [
            f"Dir::State::lists={work}/lists", f"Dir::State::status={work}/status", f"Dir::Cache={work}/cache",
            f"Dir::Etc::sourcelist={work}/etc/sources.list", "Dir::Etc::sourceparts=/dev/null",
            "Dir::Etc::preferences=/dev/null", "Dir::Etc::preferencesparts=/dev/null", "APT::Architecture=amd64",
            "APT::Architectures=amd64", "APT::Sandbox::User=root", "Acquire::Languages=none", "Acquire::Retries=3",
        ]
        self._flags = [word for option in options for word in ("-o", option)]
        cache.run(["apt-get", *self._flags, "update", "--error-on=any"], log, apt_environment())

    def depends(self, package: str) -> list[str]:
        """What a package depends on."""
        shown = subprocess.run(["apt-cache", *self._flags, "depends", "--important", package], capture_output=True,
                               text=True, check=True).stdout
        return [line.partition("Depends:")[2].strip() for line in shown.splitlines() if "Depends:" in line]

    def download(self, package: str) -> Path:
        """The .deb file, in `work`."""
        cache.run(["sh", "-c", 'cd "$1" && shift && exec apt-get "$@"', "sh", str(self.work), *self._flags,
                   "download", package], self.log, apt_environment())
        (deb,) = self.work.glob(f"{package}_*.deb")
        return deb


def unpack(deb: Path, target: Path, log: Path, without: Iterable[str] = ()) -> None:
    """:param without: tar's patterns of what to leave out."""
    excludes = " ".join(f"--exclude='{pattern}'" for pattern in without)
    cache.run(["sh", "-c", f'dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" {excludes}', "sh", str(deb), str(target)],
              log)
