"""What a test needs and the machine has not is a skip with the reason, and a failure in CI."""

from __future__ import annotations

import pytest
from need import need_tool, need_unshare


@pytest.mark.parametrize("ci", ["", "true"])
def test_what_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    outcome = pytest.fail.Exception if ci else pytest.skip.Exception
    missing = "no-such-program"  # no constant: test_packaging would want its package
    with pytest.raises(outcome, match=f"needs {missing}"):
        need_tool(missing)
    with pytest.raises(outcome, match=r"needs .*unshare --no-such-namespace: .*no-such-namespace"):
        need_unshare("--no-such-namespace")


def test_what_works_is_put_before_a_command() -> None:
    assert need_unshare("--help")[1:] == ["--help"]
