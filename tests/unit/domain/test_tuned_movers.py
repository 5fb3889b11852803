"""What of tuned's scheduler plugin moves VMMs' threads."""

from __future__ import annotations

import pytest

from vmpin.domain.facts import FoundSetting, Tuned
from vmpin.domain.tuned_movers import mask_options, movers

BESIDE = "virtiofsd;-shim"


def tuned(**options: str) -> Tuned:
    return Tuned("p", (), {key.replace("__", "."): FoundSetting(value, "/t") for key, value in options.items()})


@pytest.mark.parametrize(("options", "setting", "moving"), [
    ({"isolated_cores": "1"}, 1, 1), ({"isolated_cores": " "}, 0, 0), ({"isolated_cores": "${x}"}, 0, 0),
    ({"isolated_cores": "${f:cpulist_present:1}"}, 1, 1), ({"ps_blacklist": "x"}, 0, 0),
    ({"isolated_cores": "1", "ps_blacklist": ".*pmd.*;.*qemu.*"}, 1, 1),  # the VMM alone
    ({"isolated_cores": "1", "ps_blacklist": f".*pmd.*;.*qemu.*;{BESIDE}"}, 1, 0),
    # The kernel cuts the name of qemu-system-x86_64 to 15 characters.
    ({"isolated_cores": "1", "ps_blacklist": f"qemu-system-x86_64;{BESIDE}"}, 1, 1),
    ({"isolated_cores": "1", "ps_blacklist": f"^qemu-system-x86$;{BESIDE}"}, 1, 0),
    ({"isolated_cores": "1", "ps_blacklist": "(;"}, 1, 1), ({"isolated_cores": "1", "ps_blacklist": ""}, 1, 1),
    ({"isolated_cores": "1", "ps_whitelist": "^ovs"}, 1, 0), ({"isolated_cores": "1", "ps_whitelist": ".*"}, 1, 1),
    ({"isolated_cores": "1", "ps_whitelist": "qemu", "ps_blacklist": "system"}, 1, 0),
    # rule priority, scheduler, priority, affinity, pattern; * leaves the affinity as it is
    ({"group__a": "0:f:2:*:.*"}, 0, 0), ({"group__a": "0:f:2:ff:.*"}, 1, 1), ({"group__a": "0:f:2:ff:^ovs"}, 1, 0),
    ({"group__a": "0:f:2:ff"}, 0, 0), ({"group__a": "0:*:*:cgroup.rt:qemu-system-x86_64 -name"}, 1, 1),
    # A pattern that is not evaluated spares nothing, and may match anything.
    ({"isolated_cores": "1", "ps_blacklist": f"([a-z]*)*!;(?i)qemu;{BESIDE}"}, 1, 1),
    ({"group__a": "0:f:2:ff:(?i)x"}, 1, 1),
    ({"isolated_cores": "1", "ps_whitelist": "(?i)ovs"}, 1, 1), ({"group__a": "0:f:2:ff:([a-z/ -]*)*!"}, 1, 0),
    ({f"group__{number}": "0:f:2:ff:^ovs" for number in range(40)}, 40, 8),
    ({**{f"group__{number}": "0:f:2:ff:^ovs" for number in range(32)}, "group__a": "0:f:2:ff:qemu"}, 33, 1),
    ({"group__a": "0:f:2:ff:(qemu|x):y"}, 1, 0), ({"group__a": "0:f:2:ff:.*", "ps_blacklist": ".*"}, 1, 1)])
def test_options_of_tuned_that_set_masks(options: dict[str, str], setting: int, moving: int) -> None:
    assert (len(mask_options(tuned(**options))), len(movers(tuned(**options)))) == (setting, moving)


@pytest.mark.parametrize(("names", "spared"), [(("qemu-kvm",), True), (("qemu-kvm", "qemu-system-x86"), False)])
def test_the_names_of_the_nodes_vmms_count(names: tuple[str, ...], spared: bool) -> None:
    assert (movers(tuned(isolated_cores="1", ps_blacklist=".*qemu-kvm.*"), names) == []) is spared
