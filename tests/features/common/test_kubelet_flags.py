"""The kubelet's flags: of its command line, of k3s' configuration, and of units and OpenRC's scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_kubelet_config import CONFIG, config_in
from trees import make_tree

from vmpin.features.common.kubelet_config import COMMAND_LINE, kubelet_flags, last_value
from vmpin.host.daemons import Program
from vmpin.host.files import Files

K3S = Program(5, "k3s", ["/usr/local/bin/k3s server"])
K3S_CONFIG, DROPINS = "/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/config.yaml.d"


def flags(tmp_path: Path, tree: str, program: Program | None) -> list[tuple[str, str, str]]:
    trouble: list[str] = []
    given = kubelet_flags(Files(make_tree(tmp_path, tree)), program, trouble)
    assert trouble == []
    return [(flag.name, flag.value, flag.where) for flag in given]


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
    given = flags(tmp_path, f"{K3S_CONFIG[1:]} = {text}\n", K3S)
    assert [(name, value) for name, value, _ in given] == expected
    assert {where for *_, where in given} <= {K3S_CONFIG}


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
    made = config_in(tmp_path, f"da ta/agent/etc/kubelet.conf.d/1.conf = {CONFIG}cpuManagerPolicy: static\n", program)
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
    made = config_in(tmp_path, tree)
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
    made = config_in(tmp_path, "etc/\n")
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
    assert config_in(tmp_path, tree, program).text("cpuManagerPolicy") == "static"


@pytest.mark.parametrize("named", ["/var/snap/microk8s/7180/args/kubelet", "/var/snap/microk8s/current/args/kubelet"])
def test_kubelites_file_is_read_with_the_snaps_variables(tmp_path: Path, named: str) -> None:
    """A revision that has been removed is replaced by the current one."""
    given = flags(tmp_path, """
        var/snap/microk8s/current/args/kubelet = # a comment\\n--root-dir=${SNAP_COMMON}/var/lib/kubelet\\n\
--config=$SNAP_DATA/args/k.yaml --v 2\\n--node-labels="a=1,b=2"
    """, Program(3, "kubelite", ["/snap/microk8s/7180/kubelite", f"--kubelet-args-file={named}"]))
    path = "/var/snap/microk8s/current/args/kubelet"
    assert given == [("root-dir", "/var/snap/microk8s/common/var/lib/kubelet", path),
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
