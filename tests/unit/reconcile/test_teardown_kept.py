"""What is kept when vmpin leaves and not everything could be given back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from strayed import spinners

from vmpin.config.settings import Config
from vmpin.errors import SourceError
from vmpin.feature import Feature
from vmpin.host.lock import Lock, note_use
from vmpin.reconcile import teardown


def test_what_threads_had_is_kept_until_they_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Config] = []

    def give_back(config: Config) -> bool:
        left.append(config)
        return True

    monkeypatch.setattr(teardown, "features", lambda: [Feature(name="gives", give_back=give_back)])
    with spinners(tmp_path) as node:
        vm, other = node.vm(), node.vm("b")
        both = node.here | node.there
        for each in (vm, other):
            node.move(each, both)
            assert node.repair(each) == 1
        reconciler = node.reconciler
        nonsense: Any = [None]
        vm.helpers = nonsense  # anything that goes wrong with one VM
        results = teardown.give_all_back(reconciler)
        assert [result.operation.sandbox for result in results] == [other.sandbox]
        assert not teardown.forget(reconciler.node_state.config, reconciler)
        assert len(left) == 1, "features give back what they can, whatever became of the masks"
        assert reconciler.node_state.config.paths.state_file.exists()
        vm.helpers = []
        teardown.give_all_back(reconciler)
        assert teardown.forget(reconciler.node_state.config, reconciler)
        assert not reconciler.node_state.config.paths.run.exists()
        assert {frozenset(os.sched_getaffinity(each.vmm.pid)) for each in (vm, other)} == {both.frozen()}


@pytest.mark.parametrize(("error", "text"), [
    (OSError(24, "Too many open files"), "OSError: [Errno 24] Too many open files"),
    (SourceError("/sys", "cannot be read"), "SourceError: /sys: cannot be read"),
    (RuntimeError("can't start new thread"), "RuntimeError: can't start new thread")])
def test_a_feature_that_fails_keeps_nothing_else_from_being_given_back(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception,
        text: str) -> None:
    """With the masks restored, no record of them is missing either, if it could not be written at last."""
    called: list[str] = []

    def failing(*given: object) -> bool:
        called.append("failing")
        raise error

    def giving(*given: object) -> bool:
        called.append("giving")
        return True

    monkeypatch.setattr("vmpin.feature.features", lambda: [Feature(name="a", settle=failing),
                                                           Feature(name="b", settle=giving)])
    monkeypatch.setattr(teardown, "features", lambda: [Feature(name="a", give_back=failing),
                                                       Feature(name="b", give_back=giving)])
    with spinners(tmp_path) as node:
        vm = node.vm()
        both = node.here | node.there
        node.move(vm, both)
        assert node.repair(vm) == 1
        config, reconciler = node.reconciler.node_state.config, node.reconciler
        with Lock(config.paths.lock_file):
            note_use(config.paths.lock_file)
            teardown.give_all_back(reconciler)
            assert not teardown.forget(config, reconciler)
            assert config.paths.state_file.exists()
        assert called == ["failing", "giving"] * 2
        assert caplog.text.count(f"not given back feature=a: {text}\n") == 2
        assert frozenset(os.sched_getaffinity(vm.vmm.pid)) == both.frozen()
        with Lock(config.paths.lock_file) as lock:
            assert not lock.used


def test_what_threads_had_is_kept_while_they_live_whatever_they_are_taken_for(tmp_path: Path) -> None:
    with spinners(tmp_path) as node:
        vm, reconciler = node.vm(), node.reconciler
        both = node.here | node.there
        node.move(vm, both)
        assert node.repair(vm) == 1
        reconciler.resync()  # a shell is no VMM
        assert vm.sandbox not in reconciler.node_state.inventory.vms
        assert reconciler.view.all_sandboxes() == [vm.sandbox]
        assert len(reconciler.unpin(reconciler.view.all_sandboxes())) == 1
        assert frozenset(os.sched_getaffinity(vm.vmm.pid)) == both.frozen()
        assert reconciler.view.all_sandboxes() == []


def test_what_a_process_had_is_forgotten_with_it(tmp_path: Path) -> None:
    with spinners(tmp_path) as node:
        vm, reconciler = node.vm(), node.reconciler
        assert node.repair(vm) == 0
        assert reconciler.view.all_sandboxes() == [vm.sandbox]
        node.end(vm)
        reconciler.resync()
        assert reconciler.view.all_sandboxes() == []
