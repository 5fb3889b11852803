"""`vmpin verify --since`: only the watcher has the past."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmpin.cli import verify
from vmpin.cli.main import main

LOST = {"pod": "u-1", "cpus": "1", "here": False, "what": "no container of it is known"}
STATUS = {"version": 1, "watcher": 5, "sandboxes": [], "node": {
    "unknown_owners": [LOST], "collisions": [{"cpu": 3, "sandboxes": ["u-1", "b"], "what": "exclusive to x"}]}}


@pytest.mark.parametrize(("args", "code", "text"), [
    (["--direct", "--since", "1h"], 2, "--direct does not go with --since"),
    (["--since", "8d"], 2, "--since 8d: is not a duration"),
    (["--tolerate", "x"], 2, "--tolerate x: is not a percentage"),
    (["--tolerate", "1"], 2, "--tolerate goes with --since"), (["--tolerate", "0"], 2, "--tolerate goes with --since"),
    (["u-1", "--since", "1h"], 1, "COLLISION on CPU 3:"),  # a pod of which no container is known has no past
])
def test_it_is_of_known_pods_and_of_a_time(args: list[str], code: int, text: str, monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(verify, "status_document", lambda config, direct: STATUS)
    assert main(["verify", *args]) == code
    assert text in "".join(capsys.readouterr())


def test_without_a_watcher_nothing_is_known_of_the_past(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = {name: str(tmp_path / name) for name in ("run", "kata_go", "kata_rs", "kubelet", "nri")}
    flags = [word for name, path in paths.items() for word in ("--set", f"paths.{name}={path}")]
    assert main([*flags, "--set", "watch.only=none-of-this-machine's", "verify", "--since", "1h"]) == 3
    assert "no watcher runs" in capsys.readouterr().err
