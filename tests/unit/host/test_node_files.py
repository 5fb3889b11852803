"""Other programs' files below a root (host/files)."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from need import need_root, need_unshare
from trees import make_tree

from vmpin.errors import SourceError
from vmpin.host.files import MAX_BYTES, Files


def test_a_file_is_read_and_a_missing_one_is_none(tmp_path: Path) -> None:
    files = Files(make_tree(tmp_path, "etc/a.conf = x\n"))
    assert files.read("/etc/a.conf") == b"x\n"
    assert files.text("/etc/a.conf") == "x\n"
    assert files.read("/etc/b.conf") is None
    assert files.read("/etc/a.conf/below") is None
    assert (files.exists("/etc/a.conf"), files.exists("/etc/b.conf")) == (True, False)


@pytest.mark.parametrize(("link", "target"), [
    ("etc/link", "/opt/real.conf"), ("etc/link", "../opt/real.conf"), ("etc/link", "../../../../opt/real.conf"),
    ("etc/link", "/../../opt/./real.conf"), ("run", "/opt")])
def test_links_are_followed_as_the_node_would_and_not_out_of_the_root(tmp_path: Path, link: str, target: str) -> None:
    """A link to /opt means the node's, and not that of the container this runs in."""
    files = Files(make_tree(tmp_path, "etc/\nopt/real.conf = x\n"))
    (tmp_path / link).symlink_to(target)
    asked = "/run/real.conf" if link == "run" else f"/{link}"
    assert files.real(asked) == "/opt/real.conf"
    assert files.read(asked) == b"x\n"


def test_links_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/b")
    (tmp_path / "b").symlink_to("/a")
    files = Files(tmp_path)
    with pytest.raises(SourceError, match="/a"):
        files.read("/a")
    assert not files.exists("/a")


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    (tmp_path / "large").write_bytes(b"x" * (MAX_BYTES + 1))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    files = Files(tmp_path)
    found: list[str] = []

    def ask() -> None:
        for name, call in (("fifo", files.read), ("dir", files.read), ("large", files.read), ("bytes", files.text)):
            try:
                call(f"/{name}")
            except SourceError as err:
                found.append(str(err))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(120)  # a FIFO that is waited for would hang here
    assert [text.partition(" ")[0] for text in found] == ["/fifo:", "/dir:", "/large:", "/bytes:"]
    assert "no regular file" in found[0]


def test_a_name_that_is_none_is_missing(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert files.names("/a\0b") == []
    assert not files.exists("/a\0b")
    with pytest.raises(SourceError):
        files.read("/a\0b")


def test_patterns_find_files_below_links_too(tmp_path: Path) -> None:
    files = Files(make_tree(tmp_path, """
        opt/kata/b/x.toml = 1
        opt/kata/a/x.toml = 1
        opt/kata/a/x.txt = 1
    """))
    (tmp_path / "etc").symlink_to("/opt/kata")
    assert files.glob("/opt/kata/*/x.toml") == ["/opt/kata/a/x.toml", "/opt/kata/b/x.toml"]
    assert files.glob("/etc/*/x.toml") == ["/etc/a/x.toml", "/etc/b/x.toml"]
    assert files.glob("/none/*") == []
    assert files.names("/opt/kata/a") == ["x.toml", "x.txt"]


def test_without_a_root_it_is_the_machine(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").symlink_to("a")
    assert Files().real(tmp_path / "b") == os.path.realpath(tmp_path / "a")
    assert Files("/").read(tmp_path / "b") == b"x"


def test_a_root_behind_a_link_of_proc_is_that_processs_own() -> None:
    """`/proc/PID/root` reads as "/", and leads into another mount namespace all the same."""
    need_root()
    there = tempfile.gettempdir()
    script = f"mount -t tmpfs vmpin {there} && echo there > {there}/a && echo . && read x"
    with subprocess.Popen([*need_unshare("--mount"), "sh", "-c", script], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b".\n"
        assert Files(f"/proc/{other.pid}/root").text(f"{there}/a") == "there\n"
        other.communicate(b"\n")
