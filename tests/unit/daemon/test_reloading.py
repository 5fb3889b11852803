"""A configuration that is loaded again: what it changes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmpin.config import loading as settings
from vmpin.config.settings import Config
from vmpin.daemon import reloading
from vmpin.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "vmpin.yaml"
    monkeypatch.setattr(settings, "DEFAULT_FILE", path)
    return path


def load(file: Path, text: str | None, **environment: str) -> Config:
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    return settings.load(None, environment, {"paths.nri": "/x/nri.sock"})


def test_each_change_is_named_with_both_values(file: Path) -> None:
    old = load(file, "watch: {only: 'a*', qmp: no}\npolicy: {vhost: '0-1'}")
    new = load(file, "watch: {only: 'b*'}\npolicy: {vhost: 2, exclusive_annotation: x/y}\ndrift: {rest_seconds: 5}")
    assert reloading.changes(old, new) == [
        "policy.vhost: 0-1 -> 2", "policy.exclusive_annotation: unset -> x/y", "watch.only: a* -> b*",
        "watch.qmp: false -> true", "drift.rest_seconds: 300 -> 5"]
    assert reloading.changes(new, new) == []


@pytest.mark.parametrize("text", ["", "\n\n", "# cut off after its head\n", "{}", "watch:\n", None])
def test_a_file_that_set_keys_and_sets_none_now_is_refused(file: Path, text: str | None) -> None:
    old = load(file, "watch: {only: 'a*'}", VMPIN_LOG_LEVEL="debug")
    with pytest.raises(ConfigError) as caught:
        reloading.refuse_empty(old, load(file, text, VMPIN_LOG_LEVEL="debug"))
    assert str(caught.value) == f"{file}: no longer sets any key: it is empty, truncated or missing"
    assert "restart" in caught.value.hint


@pytest.mark.parametrize(("before", "after"), [
    ("# no key is in force", "# nor now"), ("watch: {qmp: no}", "log: {level: debug}"), ("", "watch: {qmp: no}")])
def test_any_other_file_is_taken(file: Path, before: str, after: str) -> None:
    reloading.refuse_empty(load(file, before), load(file, after))


def test_what_is_bound_or_open_stays_where_it_is(file: Path) -> None:
    old = load(file, "paths: {run: /x/run}\nwatch: {births: no, only: 'a*'}")
    new = load(file, "paths: {run: /y/run}\nwatch: {only: 'b*'}")
    taken = reloading.keep_fixed(old, new)
    assert reloading.changes(old, taken) == ["watch.only: a* -> b*"]
    assert reloading.changes(taken, new) == ["paths.run: /x/run -> /y/run", "watch.births: false -> true"]
