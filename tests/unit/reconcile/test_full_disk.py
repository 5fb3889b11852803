"""A disk that is full when the first mask of a new VM is set."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator

from newcomers import Machine, sandbox

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId
from vmpin.host.lock import Lock
from vmpin.reconcile.reconciler import Reconciler

pytest_plugins = ["given_unit"]


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Nothing can be written; files can be cut, renamed and removed, as on a full file system."""
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_masks_that_could_not_be_recorded_are_unknown_to_the_next_watcher(machine: Machine) -> None:
    """And not taken for the original ones; those that were recorded before are known."""
    first, second = (SandboxId(sandbox(name)) for name in "ab")
    known = machine.vmm("a")
    lock_file = machine.node_state.config.paths.lock_file
    with Lock(lock_file):
        machine.reconciler.resync(full=True)
        machine.node_state.save()
        new = machine.vmm("b")
        with full_disk():
            machine.reconciler.resync(full=True)
        assert machine.node_state.originals[second]
        assert os.sched_getaffinity(new.pid) == machine.pool.frozen()
    assert b"no mask" not in lock_file.read_bytes()
    lock_file.write_text("1\n")  # that of another process
    with Lock(lock_file) as lock:
        after = Reconciler(machine.node_state.config, used=lock.used)
        after.resync(full=True)
        masks = {name: [kept.main for kept in after.node_state.originals[name].processes.values()]
                 for name in (first, second)}
        assert masks == {first: [machine.both], second: [CpuSet()]}
        assert after.view.unknown_originals == 1
        after.node_state.save()
        again = Reconciler(machine.node_state.config, used=lock.used)
        again.resync(full=True)
        assert again.view.unknown_originals == 1, "it is on record as unknown, and no later VM is"
        assert {path.stat().st_mode & 0o777 for path in lock_file.parent.glob("*.json")} == {0o600}
    assert known.poll() is None


def test_the_mark_outlives_a_damaged_state_file_and_one_that_was_never_written(machine: Machine) -> None:
    config = machine.node_state.config
    state, lock_file = config.paths.state_file, config.paths.lock_file
    first = SandboxId(sandbox("a"))
    vmm = machine.vmm("a")
    with Lock(lock_file):
        machine.reconciler.resync(full=True)
        machine.node_state.save()
        with full_disk():
            machine.node_state.changed = True
            machine.node_state.save()
    machine.vmm("b")  # before the next watcher
    lock_file.write_text("1\n")  # that of another process
    for damage in (lambda: state.write_text("x"), lambda: state.unlink()):
        damage()
        config.paths.originals_file.chmod(0o400)
        with Lock(lock_file) as lock:
            after = Reconciler(config, used=lock.used)
            assert after.node_state.originals[first] == machine.node_state.originals[first]
            after.resync(full=True)
            assert after.view.unknown_originals == 1
    assert vmm.poll() is None


def test_no_mask_is_unknown_while_the_second_file_has_all_of_them(machine: Machine) -> None:
    """The state file alone could not be written, after masks were restored: a later `vmpin unpin --all` would give
    their threads all CPUs."""
    config = machine.node_state.config
    lock_file = config.paths.lock_file
    vmm = machine.vmm("a")
    with Lock(lock_file):
        machine.reconciler.resync(full=True)
        assert machine.node_state.save()
        config.paths.state_file.with_name(".state.json.new").mkdir()
        machine.reconciler.unpin(machine.reconciler.view.all_sandboxes())
        machine.node_state.changed = True
        assert not machine.node_state.save()
    lock_file.write_text("1\n")  # that of another process
    with Lock(lock_file) as lock:
        after = Reconciler(config, used=lock.used)
        after.resync(full=True)
        assert after.view.unknown_originals == 0
    assert vmm.poll() is None
