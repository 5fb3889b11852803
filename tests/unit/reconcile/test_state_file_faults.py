"""State files that are cut short, spoilt, in the way or on a full disk."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from need import need_root, need_tool, need_unshare
from saved_states import BOOT, SAMPLE

from vmpin.errors import StateFileError
from vmpin.reconcile import state_file
from vmpin.reconcile.state_file import StateStore
from vmpin.reconcile.state_format import SavedState


def set_aside(tmp_path: Path, raw: bytes) -> str:
    """Load `raw`, which must not be used; what is said of it."""
    path, aside = tmp_path / "state.json", tmp_path / "state.json.bad"
    aside.unlink(missing_ok=True)
    path.write_bytes(raw)
    found, said = state_file.load(path, BOOT)
    assert found == SavedState()
    assert said.startswith(f"{path}: ")
    assert said.endswith("set aside as state.json.bad, the state is rebuilt from what runs")
    assert said.isprintable()
    assert not path.exists()
    assert aside.read_bytes() == raw
    return said


def saved(tmp_path: Path) -> bytes:
    path = tmp_path / "state.json"
    state_file.save(path, BOOT, SAMPLE)
    return path.read_bytes()


def test_a_file_cut_short_anywhere_is_set_aside(tmp_path: Path) -> None:
    raw = saved(tmp_path)
    assert raw.endswith(b"}\n")
    for length in range(len(raw) - 1):  # all but the last newline is needed
        set_aside(tmp_path, raw[:length])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.data())
def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path, data: st.DataObject) -> None:
    once = tmp_path / "once"
    if not once.exists():
        once.write_bytes(saved(tmp_path))
    raw = bytearray(once.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "state.json"
    path.write_bytes(raw)
    found, said = state_file.load(path, BOOT)
    assert (found == SAMPLE and not said) or (found == SavedState() and "set aside" in said)
    assert path.exists() == (not said)


def sealed(body: object) -> bytes:
    """`body` with a checksum that is right: written by another version, or by hand."""
    text = json.dumps(body, separators=(",", ":"))
    return json.dumps({"crc32": zlib.crc32(text.encode()), "body": body}).encode()


def entry(**state: object) -> dict[str, object]:
    return {"version": 3, "boot_id": BOOT, "sandboxes": {"pod": {"state": state}}}


@pytest.mark.parametrize(("raw", "why"), [
    (b"", "Expecting value"),
    (b"null", "not subscriptable"),
    (b"[]", "list indices"),
    (b"\xff", "codec can't decode"),
    (b"[" * 100_000, "recursion"),
    (b'{"body": {}}', "'crc32'"),
    (b'{"crc32": "x", "body": {}}', "the checksum is wrong"),
    (sealed({"version": 2, "boot_id": BOOT, "sandboxes": {}}), "version 2 is unknown"),
    (sealed({"boot_id": BOOT}), "'version'"),
    (sealed([1]), "list indices"),
    (sealed({"version": 3, "boot_id": BOOT}), "'sandboxes'"),
    (sealed({"version": 3, "boot_id": BOOT, "sandboxes": []}), "'items'"),
    (sealed(entry()), "'containers'"),
    (sealed({"version": 3, "boot_id": BOOT, "sandboxes": {"pod": {"mask": "9-1", "vcpus": [], "pairs": []}}}),
     "'9-1'"),
    (sealed({"version": 3, "boot_id": BOOT, "sandboxes": {"pod": {"originals": [[1, 2]]}}}), "not enough values"),
])
def test_what_was_not_written_by_this_version_is_set_aside(tmp_path: Path, raw: bytes, why: str) -> None:
    assert why in set_aside(tmp_path, raw)


def test_a_file_that_cannot_be_read_or_moved_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.mkdir()
    assert state_file.load(path, BOOT) == (SavedState(), f"{path}: cannot be read: Is a directory")
    path.rmdir()
    path.write_bytes(b"x")
    (tmp_path / "state.json.bad").mkdir()
    (tmp_path / "state.json.bad" / "full").touch()
    found, said = state_file.load(path, BOOT)
    assert found == SavedState()
    assert said.endswith("its content is not used")


def test_a_place_that_cannot_be_written_is_said_and_the_old_file_stays(tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "state.json", tmp_path / "file" / "state.json"):
        (tmp_path / "file").touch()
        with pytest.raises(StateFileError) as caught:
            state_file.save(path, BOOT, SAMPLE)
        assert str(caught.value).startswith(f"{path}: the state cannot be saved: ")
        assert caught.value.hint


def test_a_symlink_in_the_way_is_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "state.json"
    victim.write_text("precious")
    (tmp_path / ".state.json.new").symlink_to(victim)
    state_file.save(path, BOOT, SAMPLE)
    assert victim.read_text() == "precious"
    assert state_file.load(path, BOOT) == (SAMPLE, "")
    path.unlink()
    path.symlink_to(victim)
    assert state_file.load(path, BOOT) == (SavedState(), f"{path}: cannot be read: {os.strerror(errno.ELOOP)}")
    state_file.save(path, BOOT, SAMPLE)
    assert victim.read_text() == "precious"
    assert state_file.load(path, BOOT) == (SAMPLE, "")


FULL_DISK = """
import os, sys
from pathlib import Path
from test_state_file import BOOT, SAMPLE
from vmpin.reconcile import state_file, state_format
from vmpin.errors import StateFileError

here = Path(sys.argv[1])
state_file.save(here / "state.json", BOOT, SAMPLE)
(here / "filler").write_bytes(bytes(os.statvfs(here).f_bavail * os.statvfs(here).f_bsize))
assert os.statvfs(here).f_bavail == 0
try:
    state_file.save(here / "state.json", BOOT, state_format.SavedState())
except StateFileError as err:
    print(err)
assert state_file.load(here / "state.json", BOOT) == (SAMPLE, "")
assert sorted(os.listdir(here)) == ["filler", "state.json"]
(here / "filler").unlink()
state_file.save(here / "state.json", BOOT, state_format.SavedState())
assert state_file.load(here / "state.json", BOOT) == (state_format.SavedState(), "")
"""

FULL_NOTES = """
import os, sys
from pathlib import Path
from test_state_file import BOOT
from vmpin.reconcile import state_file, state_format
from vmpin.cpuset import CpuSet
from vmpin.errors import StateFileError
from vmpin.domain.model import SandboxId, ThreadId

here, noted = Path(sys.argv[1]), []

def note(number):
    state_file.note(here / "notes", BOOT, SandboxId(f"pod-{number}"), ThreadId(number, 1), CpuSet.parse("0-3"))
    noted.append(f"pod-{number}")

note(1)
(here / "filler").write_bytes(bytes(os.statvfs(here).f_bavail * os.statvfs(here).f_bsize))
try:
    for number in range(2, 1000):
        note(number)
except StateFileError as err:
    print(err)
assert (here / "notes").stat().st_size % os.statvfs(here).f_bsize == 0  # the last one was torn
(here / "filler").unlink()
note(1000)
assert sorted(state_file.with_notes(here / "notes", BOOT, state_format.SavedState()).originals) == sorted(noted)
"""


@pytest.mark.parametrize(("script", "said"), [
    (FULL_DISK, "state.json: the state cannot be saved"), (FULL_NOTES, "notes: an original mask cannot be noted")])
def test_on_a_full_disk_what_was_kept_stays_and_the_next_is_kept_too(tmp_path: Path, script: str, said: str) -> None:
    need_root()
    mount = need_tool("mount")
    # A mount namespace of its own, so that nothing is left behind whatever happens.
    mounted = f'{mount} -t tmpfs -o size=32k vmpin-test "$1" && exec "$2" -c "$3" "$1"'
    found = subprocess.run(
        [*need_unshare("--mount", "--propagation", "private"), "sh", "-ec", mounted, "sh", tmp_path, sys.executable,
         script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True,
        timeout=120, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == f"{tmp_path}/{said}: No space left on device\n"


def test_a_directory_in_the_place_of_the_notes_does_not_stop_a_pass(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    store = StateStore(tmp_path / "state", tmp_path / "notes", BOOT, tmp_path / "originals")
    assert store.save(SAMPLE)
    assert store.load(set_aside=False) == SAMPLE
