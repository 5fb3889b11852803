"""The kubelet's flags, and the files that have them (sources/kubelet_flags)."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import make_tree

from vmpin.host.daemons import Program
from vmpin.host.files import Files
from vmpin.sources.kubelet_flags import COMMAND_LINE, kubelet_flags, last

K3S = Program(5, "k3s", ["/usr/local/bin/k3s server"])
CONFIG, DROPINS = "/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/config.yaml.d"


def flags(tmp_path: Path, tree: str, program: Program | None) -> list[tuple[str, str, str]]:
    trouble: list[str] = []
    found = kubelet_flags(Files(make_tree(tmp_path, tree)), program, trouble)
    assert trouble == []
    return [(each.name, each.value, each.where) for each in found]


def test_each_of_gos_ways_to_write_a_flag_is_read(tmp_path: Path) -> None:
    argv = ["/usr/bin/kubelet", "--config=/a", "--root-dir", "/b", "-v=2", "--cpu_manager_policy=static", "--x", "--y"]
    assert flags(tmp_path, "etc/\n", Program(1, "kubelet", argv)) == [
        ("config", "/a", COMMAND_LINE), ("root-dir", "/b", COMMAND_LINE), ("v", "2", COMMAND_LINE),
        ("cpu-manager-policy", "static", COMMAND_LINE), ("x", "true", COMMAND_LINE), ("y", "true", COMMAND_LINE)]


@pytest.mark.parametrize(("text", "expected"), [
    ('kubelet-arg: "a=1"', [("a", "1")]), ("kubelet-arg: [a=1, --b=2, c]", [("a", "1"), ("b", "2"), ("c", "true")]),
    ("kubelet-arg: [a=1, a=2]", [("a", "1"), ("a", "2")]), ("kubelet-arg+: [a=1]", [("a", "1")]),
    ("kubelet-arg: [a=1, a+=2, a-=0]", [("a", "0"), ("a", "1"), ("a", "2")]),
    ("kubelet-arg: [a=b=c]", [("a", "b=c")]), ("kubelet-arg:", []), ("kubelet-arg: {a: 1}", [("{'a': 1}", "true")]),
    ("token: hush", []), ("- a", [])])
def test_k3s_takes_a_scalar_a_list_and_repeated_flags(
        tmp_path: Path, text: str, expected: list[tuple[str, str]]) -> None:
    found = flags(tmp_path, f"{CONFIG[1:]} = {text}\n", K3S)
    assert [(name, value) for name, value, _ in found] == expected
    assert {where for *_, where in found} <= {CONFIG}


def test_a_drop_in_of_k3s_replaces_a_key_or_adds_to_it(tmp_path: Path) -> None:
    tree = f"""
        {CONFIG[1:]} = kubelet-arg: [a=1]
        {DROPINS[1:]}/10.yaml = kubelet-arg+: b=2
        {DROPINS[1:]}/20.yml = kubelet-arg+: [c=3]
        {DROPINS[1:]}/30.txt = kubelet-arg: [d=4]
    """
    assert flags(tmp_path, tree, K3S) == [("a", "1", CONFIG), ("b", "2", f"{DROPINS}/10.yaml"),
                                          ("c", "3", f"{DROPINS}/20.yml")]
    over = f"{DROPINS[1:]}/40.YAML = kubelet-arg: [e=5]\n"
    assert flags(tmp_path, over, K3S) == [("e", "5", f"{DROPINS}/40.YAML")]


def test_k3s_may_have_drop_ins_alone_or_another_configuration(tmp_path: Path) -> None:
    tree = f"{DROPINS[1:]}/1.yaml = kubelet-arg: [a=1]\nsrv/own.yaml = kubelet-arg: [b=2]\n"
    assert flags(tmp_path, tree, K3S) == [("a", "1", f"{DROPINS}/1.yaml")]
    other = Program(5, "rke2", ["/usr/bin/rke2", "agent", "--config", "/srv/own.yaml", "--kubelet-arg=b=3"])
    assert flags(tmp_path, tree, other) == [("b", "2", "/srv/own.yaml"), ("b", "3", COMMAND_LINE)]


@pytest.mark.parametrize("named", ["/var/snap/microk8s/7180/args/kubelet", "/var/snap/microk8s/current/args/kubelet"])
def test_kubelites_file_is_read_with_the_snaps_variables(tmp_path: Path, named: str) -> None:
    """A revision that has been removed is replaced by the current one."""
    found = flags(tmp_path, """
        var/snap/microk8s/current/args/kubelet = # a comment\\n--root-dir=${SNAP_COMMON}/var/lib/kubelet\\n\
--config=$SNAP_DATA/args/k.yaml --v 2\\n--node-labels="a=1,b=2"
    """, Program(3, "kubelite", ["/snap/microk8s/7180/kubelite", f"--kubelet-args-file={named}"]))
    path = "/var/snap/microk8s/current/args/kubelet"
    assert found == [("root-dir", "/var/snap/microk8s/common/var/lib/kubelet", path),
                     ("config", "/var/snap/microk8s/current/args/k.yaml", path), ("v", "2", path),
                     ("node-labels", "a=1,b=2", path)]


@pytest.mark.parametrize("tree", ["etc/\n", 'var/snap/microk8s/current/args/kubelet = --a="\n'])
def test_flags_of_kubelite_that_cannot_be_read_are_trouble(tmp_path: Path, tree: str) -> None:
    trouble: list[str] = []
    assert kubelet_flags(Files(make_tree(tmp_path, tree)), Program(3, "kubelite", ["kubelite"]), trouble) == []
    assert len(trouble) == 1


def test_the_last_of_repeated_flags_counts() -> None:
    assert last([], "a") == ""
    assert last(kubelet_flags(Files("/nowhere"), Program(1, "kubelet", ["k", "--a=1", "--a=2"]), []), "a") == "2"
