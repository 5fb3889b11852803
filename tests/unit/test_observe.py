"""What runs, on trees of /proc."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import make_tree

from vmpin.events import Claim
from vmpin.host.procfs import Procfs
from vmpin.model import SandboxId, ThreadId
from vmpin.observe import ROUNDS, YOUNG_PASSES, Observer

STAT = "({name}) S 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0"


def process(root: Path, pid: int, name: str, *argv: str, start: int = 100) -> None:
    stat = f"{pid} {STAT.format(name=name, start=start)}"
    make_tree(root, f"{pid}/stat = {stat}\n{pid}/task/{pid}/stat = {stat}\n")
    (root / str(pid) / "cmdline").write_text("\0".join(argv) + "\0")


@pytest.mark.parametrize("pid", range(4000, 4000 + ROUNDS))
def test_a_vmm_that_a_hook_names_is_seen_at_once_however_old_its_process(tmp_path: Path, pid: int) -> None:
    """A process may execute a VMM long after it came, when it is only looked at in its turn."""
    sandbox = SandboxId("a")
    process(tmp_path, pid, "sh", "sh", "-c", "sleep 60; exec qemu-system-x86_64")
    observer = Observer(Procfs(tmp_path))
    for _ in range(YOUNG_PASSES + 1):
        observer.scan({})
    process(tmp_path, pid, "qemu-system-x86", "qemu-system-x86_64", "-smp", "1")
    assert observer.scan({sandbox: Claim(pid, identity=ThreadId(pid, 100))}) == {sandbox}
    assert observer.vms[sandbox].vmm.pid == pid


@pytest.mark.parametrize(("spaces", "vms"), [("4000", {"a"}), ("4000\t1", set())])
def test_a_qemu_in_a_container_is_no_sandboxs_vmm(tmp_path: Path, spaces: str, vms: set[str]) -> None:
    process(tmp_path, 4000, "qemu-system-x86", "qemu-system-x86_64", "-name", "sandbox-a", "-smp", "1")
    (tmp_path / "4000" / "status").write_text(f"Name:\tqemu-system-x86\nNSpid:\t{spaces}\n")
    observer = Observer(Procfs(tmp_path))
    observer.scan({})
    assert set(observer.vms) == vms
