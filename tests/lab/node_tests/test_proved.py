"""Where the threads of true KVM guests ran, by the watcher's books."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from real_node import talk

from lab.node_tests.conftest import StartsVms
from lab.node_tests.guest import Guest
from lab.node_tests.machines import RUN, Kata, Vmpin, Watcher, mask, until
from vmpin.cpuset import CpuSet


@pytest.mark.release
def test_a_busy_vcpu_that_is_pinned_is_proved_to_have_stayed_and_one_that_was_moved_not(
        nested_vm: StartsVms, kata: Kata, vmpin: Vmpin, watcher: Watcher) -> None:
    vmpin.configure(node__shared_pool="0-1", watch__resync_seconds=600, watch__births=False,
                    proof__sample_seconds=0.5)
    vm = nested_vm(vcpus=1, vhost_net=1, iothreads=["io1"], guest=Guest.BUSY)
    kata.write(vm, {"pinned": "5"})

    def account(code: int) -> Any:
        (found,) = vmpin.json("verify", "--since", "1h", code=code)["proof"]["sandboxes"]
        return found["roles"].get("vcpu", {"placed": 0.0})

    def sampled() -> Any:
        """The same by the watcher's own answer, whatever it is."""
        (found,) = json.loads(talk(RUN / "vmpin.sock", b'{"op":"proof","since":3600}\n'))["sandboxes"]
        return found["roles"].get("vcpu", {"placed": 0.0})

    with watcher:
        (tid,) = vm.vcpu_tids().values()
        until(lambda: mask(tid) == CpuSet((5,)), "the vCPU to be pinned")
        # The first sample may have been of the moments in which it was placed; on a busy machine those are long.
        until(lambda: sampled()["placed"] > 0, "a sample of the guest")
        first = sampled()
        until(lambda: sampled()["placed"] > first["placed"] + 3, "the guest to run")
        found = account(0)
        assert found["certain"] - first["certain"] > found["placed"] - first["placed"] - 1.5
        assert found["elsewhere"] == 0

        os.sched_setaffinity(tid, {4})
        # Not by `verify`: its exit code is 0 as long as nothing ran elsewhere.
        until(lambda: sampled()["elsewhere"] > 1, "the guest to run elsewhere")
        assert account(1)["elsewhere"] > 1
        vmpin("repin")
        moved = sampled()
        until(lambda: sampled()["placed"] > moved["placed"] + 1, "the guest to run in its place again")
        proof = vmpin.json("verify", "--since", "1h", code=1)["proof"]
        assert {(finding["tid"], finding["cpu"], finding["place"]) for finding in proof["findings"]} == {(tid, 4, "5")}
        assert proof["drift"] == {"unknown program": 1}
