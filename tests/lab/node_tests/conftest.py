"""Fixtures for tests in the node. Each test begins and ends with nothing of vmpin's or Kata's under /run."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from lab.boots import ALLOCATING
from lab.node_tests.machines import KATA_GO, KATA_RS, RUN, Kata, NestedVm, Vmpin, Watcher
from lab.variant import Cgroup, Kernel, Topology, Variant
from vmpin.host.sysfs import Sysfs

#: What is for another node: most tests count on all eight CPUs, the soak on cgroup v2. What a real
#: containerd reports is the same on every kernel, and takes two minutes.
_ELSEWHERE = (["test_few_cpus.py"] if os.environ["VMPIN_LAB_TOPOLOGY"] != Topology.NOSMT else
              [f"test_{each}.py" for each in (
                  *ALLOCATING, "changes", "clock", "drift_causes", "faults", "guest", "guest_chain", "hotplug",
                  "irqs", "memory", "no_leak", "nri", "places", "proved", "requests", "soak")])
if os.environ["VMPIN_LAB_TOPOLOGY"] != Topology.IOMMU:
    _ELSEWHERE.append("test_passed_through.py")
if os.environ["VMPIN_LAB_CGROUP"] != Cgroup.V2:
    # A CPU that comes back is the cgroup's again on v2 alone.
    _ELSEWHERE += ["test_soak.py", *(f"test_{each}.py" for each in ALLOCATING)]
if os.environ["VMPIN_LAB_KERNEL"] != Kernel.V6_12:
    _ELSEWHERE += ["test_clock.py", "test_nri.py", "test_requests.py", "test_guest.py", "test_guest_chain.py",
                   *(f"test_{each}.py" for each in ALLOCATING)]
#: Artefacts: what is put here comes back to the build machine.
RESULTS = Path("/results")


class StartsVms(Protocol):
    def __call__(self, sandbox: str = "", *, vhost_net: int = 0, vhost_vsock: bool = False, **more: Any) -> NestedVm:
        ...


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Not collect_ignore: that does not hold for a file that is named."""
    config.hook.pytest_deselected(items=[item for item in items if item.path.name in _ELSEWHERE])
    items[:] = [item for item in items if item.path.name not in _ELSEWHERE]


@pytest.fixture(scope="session")
def variant() -> Variant:
    """The node that was asked for."""
    return Variant(Kernel(os.environ["VMPIN_LAB_KERNEL"]), Cgroup(os.environ["VMPIN_LAB_CGROUP"]),
                   Topology(os.environ["VMPIN_LAB_TOPOLOGY"]))


@pytest.fixture
def online() -> list[int]:
    """The online CPUs, ascending: 0 to 7, or fewer."""
    return sorted(Sysfs().online())


@pytest.fixture(autouse=True)
def _clean_run() -> Iterator[None]:
    def clean() -> None:
        for path in (RUN, KATA_GO, KATA_RS):
            shutil.rmtree(path, ignore_errors=True)

    clean()
    yield
    clean()


@pytest.fixture
def nested_vm() -> Iterator[StartsVms]:
    """Starts VMs, which end with the test: `nested_vm(vcpus=2, iothreads=["io1"], vhost_net=1)`."""
    with contextlib.ExitStack() as stack:
        def start(sandbox: str = "", *, vhost_net: int = 0, vhost_vsock: bool = False, **more: Any) -> NestedVm:
            return stack.enter_context(NestedVm(sandbox, vhost_net=vhost_net, vhost_vsock=vhost_vsock, **more))

        yield start


@pytest.fixture
def kata() -> Kata:
    return Kata()


@pytest.fixture
def vmpin(tmp_path: Path) -> Vmpin:
    return Vmpin(tmp_path / "vmpin.yaml")


@pytest.fixture
def watcher(vmpin: Vmpin, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watcher]:
    """A watcher that is not started yet (`with watcher:` or `watcher.start()`). Its log is an artefact."""
    log = tmp_path / "watch.log"
    made = Watcher(vmpin, log)
    try:
        with contextlib.ExitStack() as stack:
            stack.push(made.__exit__)
            yield made
    finally:
        if log.exists():
            (RESULTS / "logs").mkdir(exist_ok=True)
            shutil.copy(log, RESULTS / "logs" / f"{request.node.name}.log")
