"""Classes that pods choose by annotation, as a real containerd reports it over NRI."""

from __future__ import annotations

import given_containerd
import pytest
from cri_node import CriNode
from own_threads import OTHER, need_real_time, rt
from process_masks import seen
from real_containerd import VM
from waiting import wait

from vmpin.features.scheduling.pod_choices import ANNOTATION
from vmpin.features.scheduling.thread_class import class_of

pytest_plugins = ["given"]
containerd, node = given_containerd.containerd, given_containerd.node
pytestmark = pytest.mark.root


@pytest.mark.parametrize("privileged", [True, False])
def test_a_pod_of_a_privileged_namespace_has_the_class_that_it_chose(node: CriNode, cpus: tuple[str, str],
                                                                     privileged: bool) -> None:
    need_real_time()
    node.configure(scheduling={"privileged_namespaces": "telecom,tests" if privileged else "telecom",
                               "without_throttling": True})
    node.connect()
    vm = node.containerd.pod("vm", VM, vcpus=2, annotations={ANNOTATION: "fifo:2"})
    vm.container("main", cpus=cpus[1])
    vm.container("side", cpus=cpus[0])
    node.wait_for_vcpus(vm.pid, {0: cpus[0], 1: cpus[1]}, cpus[0])
    entry = node.sandbox(vm.id)["scheduling"]
    # Not from the status, whose thread ids are those of containerd's pid namespace.
    tid = next(tid for tid, name in seen(vm.pid).names.items() if name.startswith("CPU 1/"))
    if privileged:
        wait(lambda: class_of(tid) == rt("fifo:2"), lambda: (class_of(tid), node.sandbox(vm.id)["scheduling"]))
        assert (entry["class"], entry["annotated"], entry["ignored"]) == ("fifo:2", True, "")
    else:
        assert node.cli("repin").returncode == 0
        assert class_of(tid) == OTHER
        assert (entry["class"], entry["annotated"]) == ("other", False)
        assert entry["ignored"] == (f"its annotation {ANNOTATION}=fifo:2 does not count: "
                                    "scheduling.privileged_namespaces lacks tests")
