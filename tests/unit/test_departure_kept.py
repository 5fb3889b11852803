"""What is kept when vmpin leaves and not everything could be given back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from strayed import spinners

from vmpin import departure


def test_what_threads_had_is_kept_until_they_have_it(tmp_path: Path) -> None:
    with spinners(tmp_path) as node:
        vm, other = node.vm(), node.vm("b")
        both = node.here | node.there
        for each in (vm, other):
            node.move(each, both)
            assert node.repair(each) == 1
        known = node.reconciler
        nonsense: Any = [None]
        vm.helpers = nonsense  # anything that goes wrong with one VM
        results = departure.give_all_back(known)
        assert [result.operation.sandbox for result in results] == [other.sandbox]
        assert not departure.forget(known.config, known)
        assert known.config.state_file.exists()
        vm.helpers = []
        departure.give_all_back(known)
        assert departure.forget(known.config, known)
        assert not known.config.run.exists()
        assert {frozenset(os.sched_getaffinity(each.vmm.pid)) for each in (vm, other)} == {both.frozen()}
