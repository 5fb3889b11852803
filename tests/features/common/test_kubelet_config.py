"""The kubelet's own configuration: files, drop-ins and flags."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trees import make_tree

from vmpin.domain.facts import KubeletConfig
from vmpin.features.common.kubelet_config import (
    COMMAND_LINE,
    kubelet_config,
    kubelet_flags,
    last_value,
    running_kubelet,
)
from vmpin.host.daemons import Program
from vmpin.host.files import Files
from vmpin.host.procfs import Procfs

CONFIG = "kind: KubeletConfiguration\\n"


def found(tmp_path: Path, tree: str, *programs: Program) -> KubeletConfig:
    return kubelet_config(Files(make_tree(tmp_path, tree)), programs)


def values(config: KubeletConfig) -> dict[str, tuple[object, str]]:
    return {key: (setting.value, setting.file) for key, setting in config.settings.items()}


def test_flags_lie_over_drop_ins_and_these_over_the_file(tmp_path: Path) -> None:
    made = found(tmp_path, f"""
        etc/k.yaml = {CONFIG}cpuManagerPolicy: none\\ntopologyManagerPolicy: best-effort\\n\
cpuManagerPolicyOptions: {{full-pcpus-only: "true"}}\\nauthentication: {{x509: {{clientCAFile: /secret}}}}
        etc/k.d/10.conf = {CONFIG}cpuManagerPolicy: static\\ncpuManagerReconcilePeriod: 5s
        etc/k.d/20.conf = {CONFIG}cpuManagerReconcilePeriod: 7s
        etc/k.d/30.yaml = {CONFIG}cpuManagerPolicy: none
    """, Program(9, "kubelet", ["/usr/bin/kubelet", "--config=/etc/k.yaml", "--config-dir", "/etc/k.d",
                                "--topology-manager-policy=restricted", "--bootstrap-kubeconfig=/secret"]))
    assert (made.pid, made.files) == (9, ("/etc/k.yaml", "/etc/k.d/10.conf", "/etc/k.d/20.conf"))
    assert values(made) == {
        "cpuManagerPolicy": ("static", "/etc/k.d/10.conf"), "cpuManagerReconcilePeriod": ("7s", "/etc/k.d/20.conf"),
        "cpuManagerPolicyOptions": ({"full-pcpus-only": "true"}, "/etc/k.yaml"),
        "topologyManagerPolicy": ("restricted", "the command line")}


def test_options_given_as_a_flag_are_as_in_the_file(tmp_path: Path) -> None:
    made = found(tmp_path, "etc/\n", Program(9, "kubelet", [
        "kubelet", "--cpu-manager-policy-options=full-pcpus-only=true, align-by-socket = false"]))
    assert made.settings["cpuManagerPolicyOptions"].value == {"full-pcpus-only": "true", "align-by-socket": "false"}


def test_k3s_gives_its_kubelet_flags_on_its_own_command_line_and_in_its_configuration(tmp_path: Path) -> None:
    made = found(tmp_path, """
        etc/rancher/k3s/config.yaml = token: hush\\nkubelet-arg: ["cpu-manager-policy=static", "reserved-cpus=0"]
    """, Program(5, "k3s", ["/usr/local/bin/k3s server", "--token", "hush", "--kubelet-arg", "reserved-cpus=0-1"]))
    assert made.pid == 5
    assert values(made) == {"cpuManagerPolicy": ("static", "/etc/rancher/k3s/config.yaml"),
                            "reservedSystemCPUs": ("0-1", "the command line")}


def test_without_a_process_the_usual_files_are_read(tmp_path: Path) -> None:
    made = found(tmp_path, f"""
        var/lib/kubelet/config.yaml = {CONFIG}cpuManagerPolicy: static
        etc/kubernetes/kubelet.conf = kind: Config\\nusers: [{{name: x, user: {{token: hush}}}}]
    """)
    assert (made.pid, made.files, made.text("cpuManagerPolicy")) == (None, ("/var/lib/kubelet/config.yaml",), "static")
    assert (made.text("memoryManagerPolicy"), "hush" in repr(made)) == ("", False)


def test_a_running_kubelet_reads_only_what_its_command_line_names(tmp_path: Path) -> None:
    """A file at a usual place may be left from another installation."""
    tree = f"""
        var/lib/kubelet/config.yaml = {CONFIG}cpuManagerPolicy: static
        etc/k.d/1.conf = {CONFIG}cpuManagerPolicy: none
    """
    assert found(tmp_path, tree, Program(9, "kubelet", ["kubelet", "--v=2"])).files == ()
    made = found(tmp_path, tree, Program(9, "kubelet", ["kubelet", "--config-dir=/etc/k.d"]))
    assert (made.files, made.text("cpuManagerPolicy")) == (("/etc/k.d/1.conf",), "none")


@pytest.mark.parametrize("text", ["a: b: c", "kind: ["])
def test_a_file_that_is_no_yaml_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    made = found(tmp_path, f"var/lib/kubelet/config.yaml = {text}\n")
    assert (made.settings, len(made.trouble)) == ({}, 1)


@pytest.mark.parametrize("text", [
    f"{CONFIG}cpuManagerPolicy: none\\ncpuManagerPolicy: static", f"---\\n{CONFIG}cpuManagerPolicy: static\\n---",
    f"{CONFIG}cpuManagerPolicy: static\\n---\\n{CONFIG}cpuManagerPolicy: none",
    f"{CONFIG}cpuManagerPolicy: static\\n...\\njunk: ["])
def test_a_file_is_read_as_gos_parser_reads_it(tmp_path: Path, text: str) -> None:
    """sigs.k8s.io/yaml 1.6: of a key the last value, of several documents the first."""
    made = found(tmp_path, f"var/lib/kubelet/config.yaml = {text}\n")
    assert (made.text("cpuManagerPolicy"), made.trouble) == ("static", ())


@pytest.mark.parametrize("text", ["cpuManagerPolicy: \"\"", "cpuManagerPolicy: null"])
def test_a_policy_that_is_empty_is_the_default(tmp_path: Path, text: str) -> None:
    """pkg/kubelet/apis/config/v1beta1/defaults.go; a drop-in of a template may have it so."""
    kubelet = Program(5, "kubelet", ["kubelet", "--config=/k/config.yaml", "--config-dir=/k/d"])
    made = found(tmp_path, f"k/config.yaml = {CONFIG}cpuManagerPolicy: static\nk/d/1.conf = {CONFIG}{text}\n", kubelet)
    assert made.text("cpuManagerPolicy") == "none"


def test_of_a_key_that_k3s_has_twice_the_last_value_counts(tmp_path: Path) -> None:
    """pkg/configfilearg/parser.go: yaml.MapSlice keeps both."""
    text = "kubelet-arg: [cpu-manager-policy=none]\\nkubelet-arg: [cpu-manager-policy=static]"
    made = found(tmp_path, f"etc/rancher/k3s/config.yaml = {text}\n", Program(5, "k3s", ["k3s server"]))
    assert (made.text("cpuManagerPolicy"), made.trouble) == ("static", ())


def test_a_configuration_of_k3s_that_is_no_yaml_is_reported_once(tmp_path: Path) -> None:
    made = found(tmp_path, "etc/rancher/k3s/config.yaml = a: b: c\n", Program(5, "k3s", ["/usr/local/bin/k3s server"]))
    assert (made.settings, len(made.trouble)) == ({}, 1)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "var/lib/kubelet/config.yaml"
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    (trouble,) = kubelet_config(Files(tmp_path), []).trouble
    assert "is no regular file" in trouble


def test_a_node_without_a_kubelet_has_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, "etc/\n") == KubeletConfig()


def test_of_the_running_kubelet_what_concerns_zones_is_shown(tmp_path: Path) -> None:
    proc = Procfs(make_tree(tmp_path, f"""
        7/stat = 7 (kubelet) S 1 {"0 " * 50}
        1/root/var/lib/kubelet/config.yaml = {CONFIG}topologyManagerPolicy: restricted\\nreservedSystemCPUs: 0-1
    """))
    (tmp_path / "7/cmdline").write_bytes(
        b"kubelet\0--config=/var/lib/kubelet/config.yaml\0--topology-manager-scope=pod\0")
    assert running_kubelet(proc) == {"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod",
                                     "reservedSystemCPUs": "0-1"}
    (tmp_path / "1/root/var/lib/kubelet/config.yaml").write_text("a: [")
    assert running_kubelet(proc) == {}, "what cannot be read may set them"
    (tmp_path / "7/cmdline").write_bytes(b"other\0")
    assert running_kubelet(proc) == {}


def test_maps_of_drop_ins_are_merged_and_null_removes_as_the_kubelet_does(tmp_path: Path) -> None:
    """A JSON merge patch; directories in the directory count, and a flag replaces the whole map."""
    tree = f"""
        etc/k.yaml = {CONFIG}cpuManagerPolicy: static\\nreservedSystemCPUs: "0"\\n\
cpuManagerPolicyOptions: {{full-pcpus-only: "true", align-by-socket: "true"}}
        etc/k.d/10.conf = {CONFIG}cpuManagerPolicyOptions: {{strict-cpu-reservation: "true", align-by-socket: null}}
        etc/k.d/20/a.conf = {CONFIG}reservedSystemCPUs: null
    """
    argv = ["/usr/bin/kubelet", "--config=/etc/k.yaml", "--config-dir=/etc/k.d"]
    made = found(tmp_path, tree, Program(9, "kubelet", argv))
    assert made.files == ("/etc/k.yaml", "/etc/k.d/10.conf", "/etc/k.d/20/a.conf")
    assert values(made) == {"cpuManagerPolicy": ("static", "/etc/k.yaml"), "cpuManagerPolicyOptions": (
        {"full-pcpus-only": "true", "strict-cpu-reservation": "true"}, "/etc/k.yaml, /etc/k.d/10.conf")}
    flagged = found(tmp_path, tree, Program(9, "kubelet", [
        *argv, "--cpu-manager-policy-options=a=1", "--cpu-manager-policy-options=b=2"]))
    assert flagged.settings["cpuManagerPolicyOptions"].value == {"a": "1", "b": "2"}


def test_a_kubelet_whose_configuration_names_no_policy_has_none(tmp_path: Path) -> None:
    """Its default; what it was started with is unknown without its file."""
    tree = f"etc/k.yaml = {CONFIG}reservedSystemCPUs: 0\netc/bad.yaml = [\n"
    kubelet = {file: Program(9, "kubelet", ["kubelet", f"--config=/etc/{file}.yaml"]) for file in ("k", "bad", "gone")}
    assert [found(tmp_path, tree, kubelet[file]).text("cpuManagerPolicy") for file in kubelet] == ["none", "", ""]
    flagged = kubelet["k"]._replace(argv=[*kubelet["k"].argv, "--cpu-manager-policy=static"])
    assert values(found(tmp_path, tree, flagged))["cpuManagerPolicy"] == ("static", "the command line")


@pytest.mark.parametrize(("directory", "policy"), [("/k/d", "none"), ("/k/d/", "static")])
def test_a_directory_of_drop_ins_that_is_a_link_is_not_entered(tmp_path: Path, directory: str, policy: str) -> None:
    """As NixOS may have it: filepath.WalkDir takes a link for a file, unless its path ends with a slash."""
    files = Files(make_tree(tmp_path, f"k/config.yaml = {CONFIG}\nstore/1.conf = {CONFIG}cpuManagerPolicy: static\n"))
    (tmp_path / "k/d").symlink_to("/store")
    argv = ["kubelet", "--config=/k/config.yaml", f"--config-dir={directory}"]
    assert kubelet_config(files, [Program(5, "kubelet", argv)]).text("cpuManagerPolicy") == policy


@pytest.mark.parametrize(("program", "tree", "policy"), [
    (Program(5, "k3s", ["k3s server"]), "etc/systemd/system/k3s.service = ExecStart=/opt/k3s server", "none"),
    (Program(5, "k3s", ["k3s server"]), "etc/rancher/k3s/config.yaml = kubelet-arg: v=2", ""),
    (Program(5, "k3s", ["k3s", "agent", "--debug"]), "etc/rancher/k3s/config.yaml = a: b: c", ""),
    (Program(5, "k3s", ["k3s", "agent", "--debug"]), "etc/rancher/k3s/config.yaml = kubelet-arg: config=/gone", ""),
    (Program(5, "k3s", ["k3s", "agent", "--debug"]), "etc/rancher/k3s/config.yaml = kubelet-arg: v=2", "none"),
    (Program(5, "kubelite", ["kubelite", "--kubelet-args-file=/a"]), "a = --root-dir=/k", "none"),
    (Program(5, "kubelite", ["kubelite", "--kubelet-args-file=/gone"]), "etc/", "")])
def test_a_kubelet_in_a_distribution_has_the_default_policy_where_all_is_known(
        tmp_path: Path, program: Program, tree: str, policy: str) -> None:
    """k3s' arguments are in its unit, and unknown without one."""
    assert found(tmp_path, f"{tree}\n", program).text("cpuManagerPolicy") == policy


def test_a_command_line_that_names_the_file_alone_has_no_drop_ins(tmp_path: Path) -> None:
    made = found(tmp_path, f"""
        etc/k.yaml = {CONFIG}cpuManagerPolicy: none
        etc/kubernetes/kubelet.conf.d/10.conf = {CONFIG}cpuManagerPolicy: static
        var/lib/kubelet/config.yaml = {CONFIG}cpuManagerPolicy: static
    """, Program(9, "kubelet", ["kubelet", "--config", "/etc/k.yaml"]))
    assert (made.files, made.text("cpuManagerPolicy")) == (("/etc/k.yaml",), "none")


@pytest.mark.parametrize(("program", "tree", "directory", "policy"), [
    (Program(1, "kubelet", ["/var/lib/k0s/bin/kubelet", "--root-dir", "/var/lib/k0s/kubelet"]), "etc/\n",
     "/var/lib/k0s/kubelet", ""),
    (Program(1, "k3s", ["k3s server"]), 'etc/rancher/k3s/config.yaml = data-dir: /data\\nkubelet-arg: root-dir=/d\n'
     f"data/agent/etc/kubelet.conf.d/9.conf = {CONFIG}cpuManagerPolicy: static\n", "/d", "static"),
    (Program(1, "rke2", ["rke2 agent"]), "etc/rancher/rke2/config.yaml = kubelet-arg: [config=/k.yaml]\n"
     f"k.yaml = {CONFIG}cpuManagerPolicy: none\n"
     f"var/lib/rancher/rke2/agent/etc/kubelet.conf.d/9.conf = {CONFIG}cpuManagerPolicy: static\n", "", "static"),
    (Program(1, "kubelite", ["kubelite"]), "var/snap/microk8s/current/args/kubelet = --root-dir=/r\\n"
     "--cpu-manager-policy=static\n", "/r", "static"),
    (Program(1, "microshift", ["microshift", "run"]), "var/lib/microshift/resources/kubelet/config/config.yaml = "
     f"{CONFIG}cpuManagerPolicy: static\n", "", "static"),
    (None, f"etc/kubernetes/kubelet.yaml = {CONFIG}cpuManagerPolicy: static\n", "", "static")])
def test_a_kubelet_inside_a_distribution_is_read_as_that_starts_it(
        tmp_path: Path, program: Program | None, tree: str, directory: str, policy: str) -> None:
    made = found(tmp_path, tree, *(() if program is None else (program,)))
    assert (made.directory, made.text("cpuManagerPolicy"), made.trouble) == (directory, policy, ())


@pytest.mark.parametrize("flag", ["--version", "--help", "version"])
@pytest.mark.parametrize("program", [
    Program(5, "kubelet", ["kubelet", "--cpu-manager-policy=static"]),
    Program(5, "k3s", ["k3s", "server", "--kubelet-arg=cpu-manager-policy=static"])])
def test_a_kubelet_that_prints_its_version_is_none(tmp_path: Path, flag: str, program: Program) -> None:
    made = found(tmp_path, "etc/\n", Program(3, "kubelet", ["/usr/bin/kubelet", flag]), program)
    assert (made.pid, made.text("cpuManagerPolicy")) == (5, "static")


@pytest.mark.parametrize("argv", [["/usr/local/bin/k3s", "etcd-snapshot", "save"], ["k3s", "check-config"]])
def test_another_command_of_k3s_is_no_kubelet(tmp_path: Path, argv: list[str]) -> None:
    other, server = Program(3, "k3s", argv), Program(5, "k3s", ["k3s", "--debug", "server"])
    assert found(tmp_path, "etc/\n", other, server).pid == 5
    assert found(tmp_path, "etc/\n", other).pid is None


def test_another_command_of_microshift_is_no_kubelet(tmp_path: Path) -> None:
    """greenboot runs its health check beside the server for minutes."""
    other, server = Program(3, "microshift", ["microshift", "healthcheck"]), Program(5, "microshift", ["x", "run"])
    assert (found(tmp_path, "etc/\n", other, server).pid, found(tmp_path, "etc/\n", other).pid) == (5, None)


def test_the_kubelet_that_rke2_starts_counts_and_not_rke2(tmp_path: Path) -> None:
    """pkg/executor/staticpod: it is a process of its own, with all of its flags."""
    made = found(tmp_path, "etc/rancher/rke2/config.yaml = kubelet-arg: [cpu-manager-policy=none]\n",
                 Program(5, "rke2", ["/usr/local/bin/rke2", "server"]),
                 Program(9, "kubelet", ["kubelet", "--root-dir=/data", "--cpu-manager-policy=static"]))
    assert (made.pid, made.directory, values(made)) == (9, "/data", {"cpuManagerPolicy": ("static", COMMAND_LINE)})


K3S = Program(5, "k3s", ["/usr/local/bin/k3s server"])
K3S_CONFIG, DROPINS = "/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/config.yaml.d"


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
    found = flags(tmp_path, f"{K3S_CONFIG[1:]} = {text}\n", K3S)
    assert [(name, value) for name, value, _ in found] == expected
    assert {where for *_, where in found} <= {K3S_CONFIG}


def test_a_drop_in_of_k3s_replaces_a_key_or_adds_to_it(tmp_path: Path) -> None:
    tree = f"""
        {K3S_CONFIG[1:]} = kubelet-arg: [a=1]
        {DROPINS[1:]}/10.yaml = kubelet-arg+: b=2
        {DROPINS[1:]}/20.yml = kubelet-arg+: [c=3]
        {DROPINS[1:]}/30.txt = kubelet-arg: [d=4]
    """
    assert flags(tmp_path, tree, K3S) == [("a", "1", K3S_CONFIG), ("b", "2", f"{DROPINS}/10.yaml"),
                                          ("c", "3", f"{DROPINS}/20.yml")]
    over = f"{DROPINS[1:]}/40.YAML = kubelet-arg: [e=5]\n"
    assert flags(tmp_path, over, K3S) == [("e", "5", f"{DROPINS}/40.YAML")]


def test_k3s_may_have_drop_ins_alone_or_another_configuration(tmp_path: Path) -> None:
    tree = f"{DROPINS[1:]}/1.yaml = kubelet-arg: [a=1]\nsrv/own.yaml = kubelet-arg: [b=2]\n"
    assert flags(tmp_path, tree, K3S) == [("a", "1", f"{DROPINS}/1.yaml")]
    other = Program(5, "rke2", ["/usr/bin/rke2", "agent", "--config", "/srv/own.yaml", "--kubelet-arg=b=3"])
    assert flags(tmp_path, tree, other) == [("b", "2", "/srv/own.yaml"), ("b", "3", COMMAND_LINE)]


UNIT = r"""[Service]
Environment=X=ExecStart=/bin/false
ExecStartPre=/bin/true
ExecStart=-/usr/local/bin/k3s \
    server \
    '--kubelet-arg=a=1' \
    '--kubelet-arg' \
    'b=2' "--data-dir" '/da ta'

"""


def unit(tmp_path: Path, path: str, text: str) -> None:
    place = tmp_path / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


@pytest.mark.parametrize("argv", [["/usr/local/bin/k3s", "server"], ["/usr/local/bin/k3s server"]])
def test_k3s_hides_its_arguments_and_its_unit_has_them(tmp_path: Path, argv: list[str]) -> None:
    """Its title replaces them."""
    unit(tmp_path, "etc/systemd/system/k3s-agent.service", "ExecStart=/usr/local/bin/k3s agent --kubelet-arg=c=3\n")
    unit(tmp_path, "etc/systemd/system/k3s.service", UNIT)
    where, tree = "/etc/systemd/system/k3s.service", "etc/\n"
    program = Program(5, "k3s", argv)
    assert flags(tmp_path, tree, program) == [("a", "1", where), ("b", "2", where)]
    made = found(tmp_path, f"da ta/agent/etc/kubelet.conf.d/1.conf = {CONFIG}cpuManagerPolicy: static\n", program)
    assert made.text("cpuManagerPolicy") == "static"
    unit(tmp_path, "etc/systemd/system/k3s.service.d/x.conf", "ExecStart=\nExecStart=/usr/local/bin/k3s server "
         "--kubelet-arg=d=4\n")
    assert flags(tmp_path, tree, program) == [("d", "4", where)]
    shown = Program(5, "k3s", ["k3s", "server", "--kubelet-arg=e=5"])
    assert flags(tmp_path, tree, shown) == [("e", "5", COMMAND_LINE)]


KUBEADM = """[Service]
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml" X=1
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
EnvironmentFile=-/gone
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS --hostname=${X}.node $NONE
"""


def test_without_a_process_the_kubelets_unit_is_read(tmp_path: Path) -> None:
    """As kubeadm writes it, with files of the environment."""
    unit(tmp_path, "lib/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n")
    unit(tmp_path, "lib/systemd/system/kubelet.service.d/10-kubeadm.conf", KUBEADM)
    unit(tmp_path, "var/lib/kubelet/kubeadm-flags.env", 'KUBELET_KUBEADM_ARGS="--root-dir=/data/kubelet --v=2"\n')
    unit(tmp_path, "etc/default/kubelet", "# why\n\nKUBELET_EXTRA_ARGS=--cpu-manager-policy=static\n")
    where, tree = "/lib/systemd/system/kubelet.service", f"var/lib/kubelet/config.yaml = {CONFIG}maxPods: 9\n"
    assert flags(tmp_path, tree, None) == [
        ("config", "/var/lib/kubelet/config.yaml", where), ("root-dir", "/data/kubelet", where), ("v", "2", where),
        ("cpu-manager-policy", "static", where), ("hostname", "1.node", where)]
    made = found(tmp_path, tree)
    assert (made.pid, made.directory, made.text("cpuManagerPolicy")) == (None, "/data/kubelet", "static")


@pytest.mark.parametrize("comment", ["# --root-dir=/b", "  ; --b \\"])
def test_a_comment_between_the_lines_of_a_command_ends_it_not(tmp_path: Path, comment: str) -> None:
    """systemd.syntax(7)."""
    unit(tmp_path, "etc/systemd/system/kubelet.service",
         f"[Service]\nExecStart=/usr/bin/kubelet \\\n{comment}\n  --root-dir=/a \\\n{comment}\n  --v=2\nRestart=no\n")
    where = "/etc/systemd/system/kubelet.service"
    assert flags(tmp_path, "etc/\n", None) == [("root-dir", "/a", where), ("v", "2", where)]


@pytest.mark.parametrize(("shell", "value"), [
    ("/bin/bash -c '/opt/k3s server --node-ip $(hostname -I) --kubelet-arg=a=1'", "1"),
    ('-/bin/sh -ec "exec /opt/k3s server --kubelet-arg=a=1"', "1"), ("/opt/k3s --debug server --kubelet-arg a=1", "1"),
    ("/bin/sh -c '/opt/k3s agent --kubelet-arg=a=1'", None), ("/bin/sh -c", None), ("/bin/sh '", None),
    ("/bin/sh -c \"exec '\"", None)])
def test_a_unit_may_start_k3s_by_a_shell_or_with_flags_of_k3s_itself(
        tmp_path: Path, shell: str, value: str | None) -> None:
    """By a shell, an option has what a command prints."""
    unit(tmp_path, "etc/systemd/system/k3s.service", f"[Service]\nExecStart={shell}\n")
    expected = [] if value is None else [("a", value, "/etc/systemd/system/k3s.service")]
    assert flags(tmp_path, "etc/\n", Program(5, "k3s", ["k3s server"])) == expected


def test_without_systemd_a_kubelets_flags_are_in_openrcs_script(tmp_path: Path) -> None:
    """As Alpine's package has them."""
    unit(tmp_path, "etc/init.d/kubelet", '#!/sbin/openrc-run\ncommand="/usr/bin/kubelet"\n'
         'command_args="${command_args} ${KUBELET_KUBEADM_ARGS}"\n')
    unit(tmp_path, "etc/conf.d/kubelet", 'command_args="--root-dir=/data/kubelet --cpu-manager-policy=static"\n')
    made = found(tmp_path, "etc/\n")
    assert (made.pid, made.directory, made.text("cpuManagerPolicy")) == (None, "/data/kubelet", "static")


@pytest.mark.parametrize(("line", "value"), [
    ("X=--a=1 --b=2", "1"), ('X="--a=1 --b=2"', "1"), ("X = '--a=1' ", "1"), ("; X=--a=3", "0"), ("# X=--a=3", "0"),
    ("X=", ""), ("X=--b=2 --a='1'", "1"), ("Y=--a=3", "0")])
def test_a_file_of_the_environment_is_read_as_systemd_reads_it(tmp_path: Path, line: str, value: str) -> None:
    """A value without quotes has all words of its line, and precedes that of Environment=."""
    unit(tmp_path, "etc/default/kubelet", f"{line}\n")
    unit(tmp_path, "etc/systemd/system/kubelet.service",
         "EnvironmentFile=-/etc/default/kubelet\nEnvironment=X=--a=0\nExecStart=/usr/bin/kubelet $X\n")
    assert {name: text for name, text, _ in flags(tmp_path, "etc/\n", None)}.get("a", "") == value


@pytest.mark.parametrize("line", ["EnvironmentFile=-/etc/default/%N", "EnvironmentFile=-/etc/default/%p",
                                  "EnvironmentFile=-/etc/%n/x", "Environment=A=--kubelet-arg=a=1%%1",
                                  "EnvironmentFile=-/etc/def*/rke2-[r-t]*",
                                  "EnvironmentFile=/etc/other\nEnvironmentFile=\nEnvironmentFile=/etc/default/%N",
                                  "EnvironmentFile=/etc/other\nEnvironmentFile=\nEnvironment=A=--kubelet-arg=a=1%%1",
                                  "Environment=A=2 B=2\nEnvironment=\nEnvironment=A=--kubelet-arg=a=1%%1"])
def test_the_environment_of_a_unit_is_read_as_systemd_reads_it(tmp_path: Path, line: str) -> None:
    """With the unit's names (RKE2's own units have them), patterns, and lines that drop those before."""
    unit(tmp_path, "etc/other", "A=--kubelet-arg=a=2\n")
    for place in ("etc/default/rke2-server", "etc/rke2-server.service/x"):
        unit(tmp_path, place, "A=--kubelet-arg=a=1%1\n")
    where = "usr/lib/systemd/system/rke2-server.service"
    unit(tmp_path, where, f"{line}\nExecStart=/usr/bin/rke2 server $A\n")
    assert flags(tmp_path, "etc/\n", Program(5, "rke2", ["rke2 server"])) == [("a", "1%1", f"/{where}")]


@pytest.mark.parametrize(("arguments", "value"), [
    ("server \\\n\t'--kubelet-arg' \\\n\t'a=1 2' \\\n\n    >>/var/log/k3s.log 2>&1", "1 2"),
    ("server --kubelet-arg \\\"a=\\$1\\\" ", "$1"), ("agent --kubelet-arg=a=1", None), ("server '", None)])
def test_without_systemd_k3s_has_its_arguments_in_openrcs_script(
        tmp_path: Path, arguments: str, value: str | None) -> None:
    """As its installer writes them."""
    unit(tmp_path, "etc/init.d/k3s", f'#!/sbin/openrc-run\nname=k3s\ncommand="/usr/local/bin/k3s"\n'
         f'command_args="{arguments}"\nrespawn_delay=5\n')
    expected = [] if value is None else [("a", value, "/etc/init.d/k3s")]
    assert flags(tmp_path, "etc/\n", Program(5, "k3s", ["k3s server"])) == expected


@pytest.mark.parametrize("options", [
    '"--kubelet-arg=a=1"', "--kubelet-arg=a=1", '"--kubelet-arg=a=1"  # none', '"--kubelet-arg=a=1\n"\nX="'])
@pytest.mark.parametrize("action", ["server", "agent"])
def test_a_package_or_an_agent_has_its_arguments_beside_openrcs_scripts(
        tmp_path: Path, action: str, options: str) -> None:
    """Alpine's package, with variables in conf.d; and an agent's script, which has a name of its own."""
    unit(tmp_path, "etc/init.d/k3s", 'command_args="${K3S_EXEC:-server} $K3S_OPTS >>${K3S_LOGFILE} 2>&1"\n')
    unit(tmp_path, "etc/conf.d/k3s", f"# k3s options\nexport  K3S_OPTS={options}\n")
    unit(tmp_path, "etc/init.d/k3s-agent", 'command_args="agent --kubelet-arg=a=1 >>/var/log/k3s-agent.log 2>&1"\n')
    where = "/etc/init.d/k3s" if action == "server" else "/etc/init.d/k3s-agent"
    assert flags(tmp_path, "etc/\n", Program(5, "k3s", [f"k3s {action}"])) == [("a", "1", where)]


def test_a_file_of_conf_d_that_ends_within_quotes_hides_no_script(tmp_path: Path) -> None:
    unit(tmp_path, "etc/init.d/k3s", 'command_args="server --kubelet-arg=a=1"\n')
    unit(tmp_path, "etc/conf.d/k3s", 'K3S_OPTS="--kubelet-arg=b=1\n')
    assert flags(tmp_path, "etc/\n", Program(5, "k3s", ["k3s server"])) == [("a", "1", "/etc/init.d/k3s")]


def test_the_default_policy_is_none_only_where_the_named_file_was_read(tmp_path: Path) -> None:
    kubelet = Program(5, "kubelet", ["kubelet", "--config=/k/config.yaml", "--config-dir=/k/d"])
    dropin = "k/d/1.conf = {kind: KubeletConfiguration, reservedSystemCPUs: 0-1}\n"
    assert found(tmp_path / "a", dropin, kubelet).text("cpuManagerPolicy") == ""
    whole = dropin + "k/config.yaml = {kind: KubeletConfiguration}\n"
    assert found(tmp_path / "b", whole, kubelet).text("cpuManagerPolicy") == "none"


def test_edgecores_file_names_no_directory_of_a_kubelet_that_does_not_run(tmp_path: Path) -> None:
    made = found(tmp_path, "etc/kubeedge/config/edgecore.yaml = {kind: EdgeCore, modules: {edged: {rootDirectory: "
                 "/var/lib/edged}}}\n")
    assert made.directory == ""


@pytest.mark.parametrize("place", ["etc/kubeedge/config/edgecore.yaml", "own.yaml"])
def test_the_kubelet_of_kubeedge_is_configured_in_edgecores_file(tmp_path: Path, place: str) -> None:
    argv = ["/usr/local/bin/edgecore", *(["--config=/own.yaml"] if place == "own.yaml" else [])]
    made = found(tmp_path, f"{place} = {{kind: EdgeCore, modules: {{edged: {{rootDirectory: /var/lib/edged, "
                 "tailoredKubeletConfig: {cpuManagerPolicy: static, reservedSystemCPUs: 0-1}}}}\n",
                 Program(5, "edgecore", argv))
    assert (made.pid, made.text("cpuManagerPolicy"), made.text("reservedSystemCPUs")) == (5, "static", "0-1")
    assert made.directory == "/var/lib/edged"


def test_an_edgecore_without_these_parts_names_nothing(tmp_path: Path) -> None:
    made = found(tmp_path, "etc/kubeedge/config/edgecore.yaml = {kind: EdgeCore, modules: {edged: "
                 "{tailoredKubeletConfig: [static]}}}\n", Program(5, "edgecore", ["edgecore"]))
    assert (made.directory, made.settings, made.trouble) == ("", {}, ())


def test_json_that_tabs_indent_is_read(tmp_path: Path) -> None:
    unit(tmp_path, "etc/k", '{\n\t"kind": "KubeletConfiguration",\n\t"cpuManagerPolicy": "static"\n}')
    made = found(tmp_path, "etc/\n", Program(9, "kubelet", ["kubelet", "--config=/etc/k"]))
    assert (made.text("cpuManagerPolicy"), made.trouble) == ("static", ())


def test_drop_ins_of_a_unit_may_be_in_any_of_systemds_directories(tmp_path: Path) -> None:
    """As `systemctl edit` writes them; their names alone order them, and one in /etc replaces its namesake."""
    for place, name, value in (("usr/lib", "20-b", "x"), ("usr/lib", "30-c", "2"), ("etc", "20-b", "1"),
                               ("run", "10-a", "0")):
        unit(tmp_path, f"{place}/systemd/system/rke2-server.service.d/{name}.conf",
             f"Environment=V{name[-1]}={value}\n")
    unit(tmp_path, "usr/lib/systemd/system/rke2-server.service", "ExecStart=/usr/bin/rke2 server\n")
    unit(tmp_path, "etc/systemd/system/rke2-server.service.d/25-x.conf",
         "ExecStart=\nExecStart=/usr/bin/rke2 server --kubelet-arg=n=${Va}${Vb}${Vc}\n")
    where = "/usr/lib/systemd/system/rke2-server.service"
    assert flags(tmp_path, "etc/\n", Program(5, "rke2", ["rke2 server"])) == [("n", "012", where)]


def test_a_unit_in_etc_replaces_the_packages(tmp_path: Path) -> None:
    """Also where it is masked by a link to /dev/null."""
    unit(tmp_path, "usr/lib/systemd/system/k3s.service", "ExecStart=/usr/bin/k3s server --kubelet-arg=a=1\n")
    unit(tmp_path, "etc/systemd/system/k3s.service", "ExecStart=/usr/bin/k3s server --kubelet-arg=a=2\n")
    program = Program(5, "k3s", ["k3s server"])
    assert flags(tmp_path, "etc/\n", program) == [("a", "2", "/etc/systemd/system/k3s.service")]
    unit(tmp_path, "dev/null", "")
    (tmp_path / "etc/systemd/system/k3s.service").unlink()
    (tmp_path / "etc/systemd/system/k3s.service").symlink_to("/dev/null")
    assert flags(tmp_path, "etc/\n", program) == []


def test_without_a_process_the_unit_of_k3s_is_read(tmp_path: Path) -> None:
    unit(tmp_path, "etc/systemd/system/k3s-agent.service", "ExecStart=/usr/local/bin/k3s agent --kubelet-arg=a=1\n")
    assert flags(tmp_path, "etc/\n", None) == [("a", "1", "/etc/systemd/system/k3s-agent.service")]


@pytest.mark.parametrize("text", ["", "ExecStart=", "ExecStart=\"k3s server", "ExecStart=/usr/bin/k3s etcd-snapshot"])
def test_a_unit_without_the_service_says_nothing(tmp_path: Path, text: str) -> None:
    unit(tmp_path, "usr/lib/systemd/system/k3s.service", text)
    assert flags(tmp_path, "etc/\n", Program(5, "k3s", ["k3s server"])) == []


@pytest.mark.parametrize("data", ["/data", f"/data/data/{'0f' * 32}"])
def test_the_environment_of_k3s_names_its_configuration(tmp_path: Path, data: str) -> None:
    program = Program(5, "rke2", ["rke2", "agent", "--config=/srv/other.yaml"], {
        "RKE2_CONFIG_FILE": "/srv/own.yaml", "RKE2_DATA_DIR": data, "K3S_DATA_DIR": "/gone"})
    tree = f"""
        srv/own.yaml = kubelet-arg: [a=1]
        srv/other.yaml = kubelet-arg: [a=2]
        data/agent/etc/kubelet.conf.d/1.conf = {CONFIG}cpuManagerPolicy: static
    """
    assert flags(tmp_path, tree, program) == [("a", "1", "/srv/own.yaml")]
    assert found(tmp_path, tree, program).text("cpuManagerPolicy") == "static"


def test_k3s_merges_named_files_into_its_own_drop_ins(tmp_path: Path) -> None:
    """A copy of them is at a fixed place among these."""
    managed = "var/lib/rancher/k3s/agent/etc/kubelet.conf.d"
    made = found(tmp_path, f"""
        etc/rancher/k3s/config.yaml = kubelet-arg: [config=/etc/k.yaml, config-dir=/etc/k.d]
        etc/k.yaml = {CONFIG}cpuManagerPolicy: static\\nreservedSystemCPUs: "0"\\ntopologyManagerScope: pod
        etc/k.d/9.conf = {CONFIG}reservedSystemCPUs: "1"\\nmemoryManagerPolicy: Static
        {managed}/00-k3s-defaults.conf = {CONFIG}cpuManagerPolicy: none
        {managed}/50-own.conf = {CONFIG}memoryManagerPolicy: None
    """, Program(5, "k3s", ["k3s", "server"]))
    assert {key: value for key, (value, _) in values(made).items()} == {
        "cpuManagerPolicy": "static", "reservedSystemCPUs": "1", "topologyManagerScope": "pod",
        "memoryManagerPolicy": "None"}


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
    assert last_value([], "a") == ""
    assert last_value(kubelet_flags(Files("/nowhere"), Program(1, "kubelet", ["k", "--a=1", "--a=2"]), []), "a") == "2"
