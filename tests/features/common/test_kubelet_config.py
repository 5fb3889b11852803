"""The kubelet's own configuration: files and drop-ins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trees import make_tree

from vmpin.domain.facts import KubeletConfig
from vmpin.features.common.kubelet_config import COMMAND_LINE, kubelet_config, running_kubelet
from vmpin.host.daemons import Program
from vmpin.host.files import Files
from vmpin.host.procfs import Procfs

CONFIG = "kind: KubeletConfiguration\\n"


def config_in(tmp_path: Path, tree: str, *programs: Program) -> KubeletConfig:
    return kubelet_config(Files(make_tree(tmp_path, tree)), programs)


def values(config: KubeletConfig) -> dict[str, tuple[object, str]]:
    return {key: (setting.value, setting.file) for key, setting in config.settings.items()}


def test_flags_lie_over_drop_ins_and_these_over_the_file(tmp_path: Path) -> None:
    made = config_in(tmp_path, f"""
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
    made = config_in(tmp_path, "etc/\n", Program(9, "kubelet", [
        "kubelet", "--cpu-manager-policy-options=full-pcpus-only=true, align-by-socket = false"]))
    assert made.settings["cpuManagerPolicyOptions"].value == {"full-pcpus-only": "true", "align-by-socket": "false"}


def test_k3s_gives_its_kubelet_flags_on_its_own_command_line_and_in_its_configuration(tmp_path: Path) -> None:
    made = config_in(tmp_path, """
        etc/rancher/k3s/config.yaml = token: hush\\nkubelet-arg: ["cpu-manager-policy=static", "reserved-cpus=0"]
    """, Program(5, "k3s", ["/usr/local/bin/k3s server", "--token", "hush", "--kubelet-arg", "reserved-cpus=0-1"]))
    assert made.pid == 5
    assert values(made) == {"cpuManagerPolicy": ("static", "/etc/rancher/k3s/config.yaml"),
                            "reservedSystemCPUs": ("0-1", "the command line")}


def test_without_a_process_the_usual_files_are_read(tmp_path: Path) -> None:
    made = config_in(tmp_path, f"""
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
    assert config_in(tmp_path, tree, Program(9, "kubelet", ["kubelet", "--v=2"])).files == ()
    made = config_in(tmp_path, tree, Program(9, "kubelet", ["kubelet", "--config-dir=/etc/k.d"]))
    assert (made.files, made.text("cpuManagerPolicy")) == (("/etc/k.d/1.conf",), "none")


@pytest.mark.parametrize("text", ["a: b: c", "kind: ["])
def test_a_file_that_is_no_yaml_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    made = config_in(tmp_path, f"var/lib/kubelet/config.yaml = {text}\n")
    assert (made.settings, len(made.trouble)) == ({}, 1)


@pytest.mark.parametrize("text", [
    f"{CONFIG}cpuManagerPolicy: none\\ncpuManagerPolicy: static", f"---\\n{CONFIG}cpuManagerPolicy: static\\n---",
    f"{CONFIG}cpuManagerPolicy: static\\n---\\n{CONFIG}cpuManagerPolicy: none",
    f"{CONFIG}cpuManagerPolicy: static\\n...\\njunk: ["])
def test_a_file_is_read_as_gos_parser_reads_it(tmp_path: Path, text: str) -> None:
    """sigs.k8s.io/yaml 1.6: of a key the last value, of several documents the first."""
    made = config_in(tmp_path, f"var/lib/kubelet/config.yaml = {text}\n")
    assert (made.text("cpuManagerPolicy"), made.trouble) == ("static", ())


@pytest.mark.parametrize("text", ["cpuManagerPolicy: \"\"", "cpuManagerPolicy: null"])
def test_a_policy_that_is_empty_is_the_default(tmp_path: Path, text: str) -> None:
    """pkg/kubelet/apis/config/v1beta1/defaults.go; a drop-in of a template may have it so."""
    kubelet = Program(5, "kubelet", ["kubelet", "--config=/k/config.yaml", "--config-dir=/k/d"])
    tree = f"k/config.yaml = {CONFIG}cpuManagerPolicy: static\nk/d/1.conf = {CONFIG}{text}\n"
    made = config_in(tmp_path, tree, kubelet)
    assert made.text("cpuManagerPolicy") == "none"


def test_of_a_key_that_k3s_has_twice_the_last_value_counts(tmp_path: Path) -> None:
    """pkg/configfilearg/parser.go: yaml.MapSlice keeps both."""
    text = "kubelet-arg: [cpu-manager-policy=none]\\nkubelet-arg: [cpu-manager-policy=static]"
    made = config_in(tmp_path, f"etc/rancher/k3s/config.yaml = {text}\n", Program(5, "k3s", ["k3s server"]))
    assert (made.text("cpuManagerPolicy"), made.trouble) == ("static", ())


def test_a_configuration_of_k3s_that_is_no_yaml_is_reported_once(tmp_path: Path) -> None:
    k3s = Program(5, "k3s", ["/usr/local/bin/k3s server"])
    made = config_in(tmp_path, "etc/rancher/k3s/config.yaml = a: b: c\n", k3s)
    assert (made.settings, len(made.trouble)) == ({}, 1)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "var/lib/kubelet/config.yaml"
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    (trouble,) = kubelet_config(Files(tmp_path), []).trouble
    assert "is no regular file" in trouble


def test_a_node_without_a_kubelet_has_nothing(tmp_path: Path) -> None:
    assert config_in(tmp_path, "etc/\n") == KubeletConfig()


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
    made = config_in(tmp_path, tree, Program(9, "kubelet", argv))
    assert made.files == ("/etc/k.yaml", "/etc/k.d/10.conf", "/etc/k.d/20/a.conf")
    assert values(made) == {"cpuManagerPolicy": ("static", "/etc/k.yaml"), "cpuManagerPolicyOptions": (
        {"full-pcpus-only": "true", "strict-cpu-reservation": "true"}, "/etc/k.yaml, /etc/k.d/10.conf")}
    flagged = config_in(tmp_path, tree, Program(9, "kubelet", [
        *argv, "--cpu-manager-policy-options=a=1", "--cpu-manager-policy-options=b=2"]))
    assert flagged.settings["cpuManagerPolicyOptions"].value == {"a": "1", "b": "2"}


def test_a_kubelet_whose_configuration_names_no_policy_has_none(tmp_path: Path) -> None:
    """Its default; what it was started with is unknown without its file."""
    tree = f"etc/k.yaml = {CONFIG}reservedSystemCPUs: 0\netc/bad.yaml = [\n"
    kubelet = {file: Program(9, "kubelet", ["kubelet", f"--config=/etc/{file}.yaml"]) for file in ("k", "bad", "gone")}
    assert [config_in(tmp_path, tree, kubelet[file]).text("cpuManagerPolicy") for file in kubelet] == ["none", "", ""]
    flagged = kubelet["k"]._replace(argv=[*kubelet["k"].argv, "--cpu-manager-policy=static"])
    assert values(config_in(tmp_path, tree, flagged))["cpuManagerPolicy"] == ("static", "the command line")


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
    assert config_in(tmp_path, f"{tree}\n", program).text("cpuManagerPolicy") == policy


def test_a_command_line_that_names_the_file_alone_has_no_drop_ins(tmp_path: Path) -> None:
    made = config_in(tmp_path, f"""
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
    made = config_in(tmp_path, tree, *(() if program is None else (program,)))
    assert (made.directory, made.text("cpuManagerPolicy"), made.trouble) == (directory, policy, ())


@pytest.mark.parametrize("flag", ["--version", "--help", "version"])
@pytest.mark.parametrize("program", [
    Program(5, "kubelet", ["kubelet", "--cpu-manager-policy=static"]),
    Program(5, "k3s", ["k3s", "server", "--kubelet-arg=cpu-manager-policy=static"])])
def test_a_kubelet_that_prints_its_version_is_none(tmp_path: Path, flag: str, program: Program) -> None:
    made = config_in(tmp_path, "etc/\n", Program(3, "kubelet", ["/usr/bin/kubelet", flag]), program)
    assert (made.pid, made.text("cpuManagerPolicy")) == (5, "static")


@pytest.mark.parametrize("argv", [["/usr/local/bin/k3s", "etcd-snapshot", "save"], ["k3s", "check-config"]])
def test_another_command_of_k3s_is_no_kubelet(tmp_path: Path, argv: list[str]) -> None:
    other, server = Program(3, "k3s", argv), Program(5, "k3s", ["k3s", "--debug", "server"])
    assert config_in(tmp_path, "etc/\n", other, server).pid == 5
    assert config_in(tmp_path, "etc/\n", other).pid is None


def test_another_command_of_microshift_is_no_kubelet(tmp_path: Path) -> None:
    """greenboot runs its health check beside the server for minutes."""
    other, server = Program(3, "microshift", ["microshift", "healthcheck"]), Program(5, "microshift", ["x", "run"])
    assert (config_in(tmp_path, "etc/\n", other, server).pid, config_in(tmp_path, "etc/\n", other).pid) == (5, None)


def test_the_kubelet_that_rke2_starts_counts_and_not_rke2(tmp_path: Path) -> None:
    """pkg/executor/staticpod: it is a process of its own, with all of its flags."""
    made = config_in(tmp_path, "etc/rancher/rke2/config.yaml = kubelet-arg: [cpu-manager-policy=none]\n",
                 Program(5, "rke2", ["/usr/local/bin/rke2", "server"]),
                 Program(9, "kubelet", ["kubelet", "--root-dir=/data", "--cpu-manager-policy=static"]))
    assert (made.pid, made.directory, values(made)) == (9, "/data", {"cpuManagerPolicy": ("static", COMMAND_LINE)})


def test_the_default_policy_is_none_only_where_the_named_file_was_read(tmp_path: Path) -> None:
    kubelet = Program(5, "kubelet", ["kubelet", "--config=/k/config.yaml", "--config-dir=/k/d"])
    dropin = "k/d/1.conf = {kind: KubeletConfiguration, reservedSystemCPUs: 0-1}\n"
    assert config_in(tmp_path / "a", dropin, kubelet).text("cpuManagerPolicy") == ""
    whole = dropin + "k/config.yaml = {kind: KubeletConfiguration}\n"
    assert config_in(tmp_path / "b", whole, kubelet).text("cpuManagerPolicy") == "none"


def test_edgecores_file_names_no_directory_of_a_kubelet_that_does_not_run(tmp_path: Path) -> None:
    made = config_in(tmp_path, "etc/kubeedge/config/edgecore.yaml = {kind: EdgeCore, modules: {edged: {rootDirectory: "
                 "/var/lib/edged}}}\n")
    assert made.directory == ""


@pytest.mark.parametrize("place", ["etc/kubeedge/config/edgecore.yaml", "own.yaml"])
def test_the_kubelet_of_kubeedge_is_configured_in_edgecores_file(tmp_path: Path, place: str) -> None:
    argv = ["/usr/local/bin/edgecore", *(["--config=/own.yaml"] if place == "own.yaml" else [])]
    made = config_in(tmp_path, f"{place} = {{kind: EdgeCore, modules: {{edged: {{rootDirectory: /var/lib/edged, "
                 "tailoredKubeletConfig: {cpuManagerPolicy: static, reservedSystemCPUs: 0-1}}}}\n",
                 Program(5, "edgecore", argv))
    assert (made.pid, made.text("cpuManagerPolicy"), made.text("reservedSystemCPUs")) == (5, "static", "0-1")
    assert made.directory == "/var/lib/edged"


def test_an_edgecore_without_these_parts_names_nothing(tmp_path: Path) -> None:
    made = config_in(tmp_path, "etc/kubeedge/config/edgecore.yaml = {kind: EdgeCore, modules: {edged: "
                 "{tailoredKubeletConfig: [static]}}}\n", Program(5, "edgecore", ["edgecore"]))
    assert (made.directory, made.settings, made.trouble) == ("", {}, ())


def test_json_that_tabs_indent_is_read(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/k").write_text('{\n\t"kind": "KubeletConfiguration",\n\t"cpuManagerPolicy": "static"\n}')
    made = config_in(tmp_path, "etc/\n", Program(9, "kubelet", ["kubelet", "--config=/etc/k"]))
    assert (made.text("cpuManagerPolicy"), made.trouble) == ("static", ())


def test_k3s_merges_named_files_into_its_own_drop_ins(tmp_path: Path) -> None:
    """A copy of them is at a fixed place among these."""
    managed = "var/lib/rancher/k3s/agent/etc/kubelet.conf.d"
    made = config_in(tmp_path, f"""
        etc/rancher/k3s/config.yaml = kubelet-arg: [config=/etc/k.yaml, config-dir=/etc/k.d]
        etc/k.yaml = {CONFIG}cpuManagerPolicy: static\\nreservedSystemCPUs: "0"\\ntopologyManagerScope: pod
        etc/k.d/9.conf = {CONFIG}reservedSystemCPUs: "1"\\nmemoryManagerPolicy: Static
        {managed}/00-k3s-defaults.conf = {CONFIG}cpuManagerPolicy: none
        {managed}/50-own.conf = {CONFIG}memoryManagerPolicy: None
    """, Program(5, "k3s", ["k3s", "server"]))
    assert {key: value for key, (value, _) in values(made).items()} == {
        "cpuManagerPolicy": "static", "reservedSystemCPUs": "1", "topologyManagerScope": "pod",
        "memoryManagerPolicy": "None"}
