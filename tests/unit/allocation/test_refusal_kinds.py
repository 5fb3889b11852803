"""Refusals are counted by their kind."""

from __future__ import annotations

import pytest

from vmpin.allocation.refusal_kinds import refusal_kind


@pytest.mark.parametrize(("reason", "kind"), [
    ("needs 4 CPUs, 3 are free", "cpus"),
    ("2 CPUs are asked for: the pool has 2 (0-1), and must keep one", "cpus"),
    ("no node has 6 free CPUs: node 0 has 4, node 1 has 5", "alignment"),
    ("needs whole cores of 2 threads: 3 CPUs are no multiple", "alignment"),
    ("needs 4 CPUs in whole cores, 2 are in cores that are wholly free", "alignment"),
    ("cpu-policy.vmpin.io=exclusive needs request = limit in whole CPUs: the request is 1.5 CPUs, the limit none",
     "request"),
    ("cpu-policy.vmpin.io='mine': is none of none, exclusive", "request")])
def test_a_refusal_is_counted_by_its_kind(reason: str, kind: str) -> None:
    assert refusal_kind(reason) == kind
