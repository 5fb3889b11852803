"""Hook states of every runtime met, bundles, and what may come instead of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.cpuset import CpuSet
from vmpin.domain.model import Pod
from vmpin.errors import SourceError
from vmpin.runtime.dialect import CONTAINERD, CRIO, Dialect, name_of, pod_of
from vmpin.runtime.oci import (
    MAX_BUNDLE,
    MAX_STATE,
    STAGES,
    HookState,
    clean_path,
    parse_hook,
    read_bundle,
    split_message,
)

SID, CID = "5a" * 32, "c1" * 32
CRI = {"io.kubernetes.cri.sandbox-id": SID, "io.kubernetes.cri.sandbox-name": "web-0",
       "io.kubernetes.cri.sandbox-namespace": "shop", "io.kubernetes.cri.sandbox-uid": "uid-1"}
CRI_CONTAINER = {**CRI, "io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "app"}
CRI_SANDBOX = {**CRI, "io.kubernetes.cri.container-type": "sandbox"}
CRIO_POD = {"io.kubernetes.cri-o.SandboxID": SID, "io.kubernetes.pod.name": "web-0",
            "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.uid": "uid-1"}
CRIO_CONTAINER = {**CRIO_POD, "io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.cri-o.ContainerID": CID,
                  "io.kubernetes.container.name": "app"}
CRIO_SANDBOX = {**CRIO_POD, "io.kubernetes.cri-o.ContainerType": "sandbox", "io.kubernetes.cri-o.ContainerID": SID}
TASKS = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
OVERLAY = "/run/containers/storage/overlay-containers"


def message(state: object, stage: str = "createRuntime") -> bytes:
    raw = state if isinstance(state, bytes) else json.dumps(state).encode()
    return b"vmpin-hook/1 stage=%b boot=17\n%b" % (stage.encode(), raw)


# --- the line before the state ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("stage", STAGES)
def test_a_message_is_its_line_and_the_state_as_it_came(stage: str) -> None:
    raw = f"vmpin-hook/1 stage={stage} time=1 boot=1700000000000000000\n".encode() + b'\n{"id": "x"}\n\xff'
    assert split_message(raw) == (stage, 1700000000000000000, b'\n{"id": "x"}\n\xff')


def test_a_field_of_a_later_hook_is_passed_over() -> None:
    assert split_message(b"vmpin-hook/1 more=x boot=5 stage=poststop flag\n")[1] == 5


@pytest.mark.parametrize(("raw", "why"), [
    (b"", "does not begin with the vmpin-hook/1 line"),
    (b"{}", "does not begin"),
    (b"vmpin-hook/1 stage=poststop boot=5", "does not begin"),
    (b"vmpin-hook/2 stage=poststop boot=5\n", "does not begin"),
    (b"vmpin-hook/1 stage=poststop boot=5" + b" " * 300 + b"\n", "does not begin"),
    (b"vmpin-hook/1 boot=5\n", "unknown stage ''"),
    (b"vmpin-hook/1 stage=\x1b[2J boot=5\n", r"unknown stage '\x1b[2J'"),
    (b"vmpin-hook/1 stage=preStart boot=5\n", "unknown stage 'preStart'"),
    (b"vmpin-hook/1 stage=poststop\n", "boot '' is no number"),
    (b"vmpin-hook/1 stage=poststop boot=-5\n", "boot '-5' is no number"),
    (b"vmpin-hook/1 stage=poststop boot=5e3\n", "boot '5e3' is no number"),
    (b"vmpin-hook/1 stage=poststop boot=" + b"9" * 21 + b"\n", "is no number"),
    ("vmpin-hook/1 stage=poststop boot=٣\n".encode(), "is no number"),
    (b"vmpin-hook/1 stage=poststop boot=5\n" + b"x" * 10_000_000, "10000000 bytes long, at most 4194304 are read"),
])
def test_what_is_no_message_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(SourceError) as caught:
        split_message(raw)
    assert why in str(caught.value)
    assert str(caught.value).isprintable()


def test_the_largest_state_is_let_through() -> None:
    assert len(split_message(b"vmpin-hook/1 stage=poststop boot=5\n" + b"x" * MAX_STATE)[2]) == MAX_STATE


# --- states, as each runtime gives them ------------------------------------------------------------------------------

@pytest.mark.parametrize(("what", "stage", "state", "container", "sandbox", "pid", "pause"), [
    ("runc", "createRuntime",
     {"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": 4121, "bundle": "/b/c"}, "c", "c", 4121, False),
    ("runc at poststart says created", "poststart",
     {"ociVersion": "1.2.0", "id": "c", "status": "created", "pid": 4121, "bundle": "/b/c"}, "c", "c", 4121, False),
    ("runc at poststop has no pid", "poststop",
     {"ociVersion": "1.0.2", "id": "c", "status": "stopped", "bundle": "/b/c"}, "c", "c", 0, False),
    ("crun", "prestart",
     {"ociVersion": "1.0", "id": "c", "status": "created", "pid": 4121, "root": "/b/c/rootfs", "bundle": "/b/c"},
     "c", "c", 4121, False),
    ("crun at poststop has pid 0", "poststop",
     {"ociVersion": "1.0", "id": "c", "status": "stopped", "pid": 0, "bundle": "/b/c"}, "c", "c", 0, False),
    ("containerd, runc", "createRuntime",
     {"id": CID, "pid": 4121, "bundle": f"{TASKS}/{CID}", "annotations": CRI_CONTAINER}, CID, SID, 4121, False),
    ("containerd, the sandbox's own", "createRuntime",
     {"id": SID, "pid": 4121, "bundle": f"{TASKS}/{SID}", "annotations": CRI_SANDBOX}, SID, SID, 4121, True),
    ("CRI-O, runc", "createRuntime",
     {"id": CID, "pid": 4121, "bundle": f"{OVERLAY}/{CID}/userdata", "annotations": CRIO_CONTAINER},
     CID, SID, 4121, False),
    ("CRI-O, the sandbox's own", "createRuntime",
     {"id": SID, "pid": 4121, "bundle": f"{OVERLAY}/{SID}/userdata", "annotations": CRIO_SANDBOX},
     SID, SID, 4121, True),
    ("dockershim's word for it", "prestart",
     {"id": SID, "pid": 1, "bundle": "/b", "annotations": {"io.kubernetes.cri.container-type": "podsandbox"}},
     SID, SID, 1, True),
    ("podman", "createRuntime",
     {"id": CID, "pid": 4121, "bundle": f"{OVERLAY}/{CID}/userdata",
      "annotations": {"io.podman.annotations.autoremove": "FALSE", "org.opencontainers.image.stopSignal": "15"}},
     CID, CID, 4121, False),
    ("Kata Go, prestart of the sandbox: the pid is the VMM", "prestart",
     {"ociVersion": "", "id": SID, "status": "", "pid": 4121, "bundle": f"{TASKS}/{SID}", "annotations": CRI_SANDBOX},
     SID, SID, 4121, True),
    ("Kata Go, prestart of a container", "prestart",
     {"ociVersion": "", "id": CID, "status": "", "pid": 4121, "bundle": f"{TASKS}/{CID}",
      "annotations": CRI_CONTAINER},
     CID, SID, 4121, False),
    ("Kata Go, poststart: the id is the sandbox's, the pid a thread of the shim", "poststart",
     {"ociVersion": "", "id": SID, "status": "", "pid": 4711, "bundle": f"{TASKS}/{CID}",
      "annotations": CRI_CONTAINER},
     CID, SID, 4711, False),
    ("Kata Go, poststop, the bundle with a slash at its end", "poststop",
     {"ociVersion": "", "id": SID, "status": "", "pid": 4711, "bundle": f"{TASKS}/{CID}/",
      "annotations": CRI_CONTAINER},
     CID, SID, 4711, False),
    ("Kata Go under CRI-O, whose bundle is userdata", "poststart",
     {"ociVersion": "", "id": SID, "status": "", "pid": 4711, "bundle": f"{OVERLAY}/{CID}/userdata",
      "annotations": CRIO_CONTAINER}, CID, SID, 4711, False),
    ("Kata Go, poststop of the sandbox", "poststop",
     {"ociVersion": "", "id": SID, "status": "", "pid": 4711, "bundle": f"{TASKS}/{SID}", "annotations": CRI_SANDBOX},
     SID, SID, 4711, True),
    ("Kata runtime-rs: the pid is the VMM's main thread", "createContainer",
     {"ociVersion": "1.1.0", "id": CID, "status": "creating", "pid": 4121, "bundle": f"{TASKS}/{CID}",
      "annotations": CRI_CONTAINER}, CID, SID, 4121, False),
    ("Kata alone under ctr: no annotation marks a sandbox", "createContainer",
     {"ociVersion": "1.1.0", "id": "c", "status": "creating", "pid": 4121, "bundle": "/b/c"}, "c", "c", 4121, False),
    ("the least there can be", "prestart", {"id": "c"}, "c", "c", 0, False),
    ("nulls", "prestart", {"id": "c", "pid": None, "bundle": None, "annotations": None}, "c", "c", 0, False),
])
def test_every_runtimes_state_is_understood(what: str, stage: str, state: dict[str, object], container: str,
                                            sandbox: str, pid: int, pause: bool) -> None:
    found = parse_hook(message(state, stage))
    assert (found.container, found.sandbox, found.pid, found.pause) == (container, sandbox, pid, pause), what
    assert (found.stage, found.stopped) == (stage, stage == "poststop")
    assert found.bundle == (state.get("bundle") or "")
    assert found.annotations == (state.get("annotations") or {})


@pytest.mark.parametrize("pid", [0, -1, 1 << 22, 1 << 70, True, "4121", 41.5, [1], {}, None])
def test_a_pid_that_is_none_counts_as_not_given(pid: object) -> None:
    assert parse_hook(message({"id": "c", "pid": pid})).pid == 0


def test_annotations_that_are_no_text_are_passed_over() -> None:
    state = {"id": "c", "annotations": {"a": "b", "n": 1, "l": ["x"], "io.kubernetes.cri.sandbox-id": {"x": 1}}}
    found = parse_hook(message(state))
    assert (found.annotations, found.sandbox) == ({"a": "b"}, "c")
    assert parse_hook(message({"id": "c", "annotations": ["x"]})).annotations == {}


@pytest.mark.parametrize(("state", "why"), [
    (b"", "is empty"),
    (b" \n\t", "is empty"),
    (b"{", "is not JSON"),
    (b"\xff\xff", "is not JSON"),
    (b"\x00", "is not JSON"),
    (b"not json at all", "is not JSON"),
    (b"[" * 1_000_000, "is not JSON"),
    (b'{"a":' * 800_000, "is not JSON"),
    (b'{"id": "c", "pid": ' + b"9" * 10_000 + b"}", "is not JSON"),
    (b"[]", "is no JSON object"), (b"null", "is no JSON object"), (b'"c"', "is no JSON object"),
    (b"{}", "id 'None' is no container id"),
    ({"id": ""}, "id '' is no container id"),
    ({"id": 7}, "id '7' is no container id"),
    ({"id": "../../etc"}, "id '../../etc' is no container id"),
    ({"id": "a/b"}, "id 'a/b' is no container id"),
    ({"id": "a..b"}, "id 'a..b' is no container id"),
    ({"id": "a\nb"}, r"id 'a\nb' is no container id"),
    ({"id": "c\n"}, r"id 'c\n' is no container id"),
    ({"id": "\x1b[31m"}, r"id '\x1b[31m' is no container id"),
    ({"id": "ä"}, "is no container id"),
    ({"id": "x" * 5000}, "is no container id"),
    ({"id": ["x" * 5000]}, "is no container id"),
    ({"id": "c", "bundle": "relative/b"}, "bundle 'relative/b' of c is no plain absolute path"),
    ({"id": "c", "bundle": "/b/../../etc"}, "bundle '/b/../../etc' of c is no plain absolute path"),
    ({"id": "c", "bundle": "/b\0"}, r"bundle '/b\x00' of c is no plain absolute path"),
    ({"id": "c", "bundle": "/b\nfake log line"}, "is no plain absolute path"),
    ({"id": "c", "bundle": "/b/\ud800"}, "is no plain absolute path"),
    ({"id": "c", "bundle": "/" + "x" * 5000}, "is no plain absolute path"),
    ({"id": "c", "bundle": ["/b"]}, "is no plain absolute path"),
    ({"id": "c", "bundle": 7}, "is no plain absolute path"),
    ({"id": "c", "annotations": {"io.kubernetes.cri.sandbox-id": "../x"}}, "sandbox id '../x' of c is no valid id"),
    ({"id": "c", "bundle": "/b/c/userdata", "annotations": {"io.kubernetes.cri-o.SandboxID": "a\nb"}},
     r"sandbox id 'a\nb' of c is no valid id"),
    ({"id": SID, "annotations": CRI_CONTAINER}, "names no container of sandbox"),
    ({"id": SID, "bundle": "/", "annotations": CRI_CONTAINER}, "names no container of sandbox"),
    ({"id": SID, "bundle": "/userdata", "annotations": CRIO_CONTAINER}, "names no container of sandbox"),
])
def test_what_is_no_state_is_refused_in_one_line(state: object, why: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_hook(message(state))
    said = str(caught.value)
    assert said.startswith("createRuntime hook state: ")
    assert why in said
    assert said.isprintable()
    assert len(said) < 400


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner)
                    | st.dictionaries(st.sampled_from(["id", "pid", "bundle", "annotations"]) | st.text(), inner)))
def test_any_json_is_understood_or_refused(state: object) -> None:
    found: HookState | str
    try:
        found = parse_hook(message(state))
    except SourceError as err:
        found = str(err)
    if isinstance(found, str):
        assert found.isprintable()
    else:
        assert not found.bundle or clean_path(found.bundle)
        assert 0 <= found.pid < 1 << 22


@given(st.binary())
def test_any_bytes_are_understood_or_refused(raw: bytes) -> None:
    for each in (raw, b"vmpin-hook/1 " + raw, b"vmpin-hook/1 stage=poststop boot=5\n" + raw):
        with pytest.raises(SourceError):
            parse_hook(each)


# --- names -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("dialect", "annotations", "pod", "name"), [
    (CONTAINERD, CRI_CONTAINER, Pod("shop", "web-0", "uid-1"), "app"),
    (CRIO, CRIO_CONTAINER, Pod("shop", "web-0", "uid-1"), "app"),
    (CONTAINERD, CRIO_CONTAINER, None, ""),
    (CRIO, CRI_CONTAINER, None, ""),
    (CRIO, {**CRI_CONTAINER, **CRIO_CONTAINER, "io.kubernetes.pod.uid": ""}, Pod("shop", "web-0", ""), "app"),
    (CRIO, {}, None, ""),
    (CONTAINERD, {"io.kubernetes.cri.sandbox-name": "web-0"}, None, ""),
    (CRIO, {"io.kubernetes.pod.name": "n\x1b[2J\nfake\ud800", "io.kubernetes.pod.namespace": "x" * 999,
      "io.kubernetes.container.name": "a\tb\u202ec"}, Pod("x" * 253, "n[2Jfake", ""), "abc"),
])
def test_pod_and_container_are_named_as_their_runtime_names_them(
        dialect: Dialect, annotations: dict[str, str], pod: Pod | None, name: str) -> None:
    """Fit for a log line and a terminal: anyone may have written them. No family stands in for the other."""
    assert pod_of(annotations, dialect) == pod
    assert name_of(annotations, dialect) == name


# --- bundles ---------------------------------------------------------------------------------------------------------

def bundle(tmp_path: Path, config: object) -> str:
    (tmp_path / "config.json").write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
    return str(tmp_path)


def with_cpus(cpus: object) -> dict[str, object]:
    return {"ociVersion": "1.0.2", "annotations": {"a": "b", "n": 1}, "linux": {"resources": {"cpu": {"cpus": cpus}}}}


@pytest.mark.parametrize(("cpus", "expect"), [("2-3,8", "2-3,8"), ("0", "0"), ("2-3\n", "2-3"), (5, "5")])
def test_a_bundle_has_the_cpuset_and_the_annotations(tmp_path: Path, cpus: object, expect: str) -> None:
    found = read_bundle(bundle(tmp_path, with_cpus(cpus)))
    assert (str(found.cpuset), found.annotations, found.trouble) == (expect, {"a": "b"}, "")


@pytest.mark.parametrize("config", [
    with_cpus(""), with_cpus(None), with_cpus(" "), {}, [], None, 7, {"linux": None}, {"linux": []},
    {"linux": {"resources": "x"}}, {"linux": {"resources": {"cpu": []}}}, {"linux": {"resources": {"memory": {}}}}])
def test_a_bundle_without_a_cpuset_gives_none(tmp_path: Path, config: object) -> None:
    found = read_bundle(bundle(tmp_path, config))
    assert (found.cpuset, found.trouble) == (None, "")


@pytest.mark.parametrize("cpus", ["garbage", "3-1", "0-99999", "2,,x", [2, 3], {"a": 1}, True, 2.5, -1, "2\n3-"])
def test_a_cpuset_that_is_garbage_is_no_cpuset_and_trouble(tmp_path: Path, cpus: object) -> None:
    found = read_bundle(bundle(tmp_path, with_cpus(cpus)))
    assert found.cpuset is None
    assert found.annotations == {"a": "b"}
    assert found.trouble.startswith(f"{tmp_path}/config.json: linux.resources.cpu.cpus: invalid CPU list")
    assert found.trouble.isprintable()


def test_offline_and_absurd_cpus_are_passed_on_as_they_are(tmp_path: Path) -> None:
    """Who places cuts them to what is online."""
    assert read_bundle(bundle(tmp_path, with_cpus("0-8191"))).cpuset == CpuSet(range(8192))


def refused(path: str) -> str:
    fds = os.listdir("/proc/self/fd")
    with pytest.raises(SourceError) as caught:
        read_bundle(path)
    assert os.listdir("/proc/self/fd") == fds
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize(("config", "why"), [
    (b"", "is not JSON"), (b"{", "is not JSON"), (b"\xff", "is not JSON"), (b"[" * 1_000_000, "is not JSON"),
    (b" " * (MAX_BUNDLE + 1), "is larger than 4 MiB")])
def test_a_bundle_that_cannot_be_believed_is_refused(tmp_path: Path, config: bytes, why: str) -> None:
    assert refused(bundle(tmp_path, config)).startswith(f"{tmp_path}/config.json: {why}")


def test_a_bundle_that_is_gone_is_refused(tmp_path: Path) -> None:
    assert refused(str(tmp_path)) == f"{tmp_path}/config.json: No such file or directory"
    assert refused(f"{tmp_path}/gone") == f"{tmp_path}/gone/config.json: No such file or directory"
    (tmp_path / "file").touch()
    assert refused(f"{tmp_path}/file") == f"{tmp_path}/file/config.json: Not a directory"


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    """A FIFO would block the watcher, a symlink lead it elsewhere."""
    path = tmp_path / "config.json"
    os.mkfifo(path)
    assert refused(str(tmp_path)) == f"{path}: is no regular file"
    path.unlink()
    path.mkdir()
    assert refused(str(tmp_path)) == f"{path}: Is a directory"
    path.rmdir()
    path.symlink_to("/dev/zero")
    assert refused(str(tmp_path)) == f"{path}: Too many levels of symbolic links"
    path.unlink()
    (tmp_path / "real.json").write_text("{}")
    path.symlink_to("real.json")
    assert refused(str(tmp_path)) == f"{path}: Too many levels of symbolic links"


@pytest.mark.parametrize("path", ["", "relative", "/a/../b", "/a\nb", "/a\0b", "/a/\ud800"])
def test_no_other_path_is_opened(path: str) -> None:
    assert refused(path).endswith("is no plain absolute path")


@pytest.mark.parametrize(("path", "clean"), [
    ("/", True), ("/run/b", True), ("/run/b/", True), ("/run/ümlaut b", True), ("/run/a..b", True), ("/run/...", True),
    ("", False), ("b", False), ("./b", False), ("/..", False), ("/a/..", False), ("/../a", False), ("/a\x7f", False),
    (None, False), (7, False), (b"/b", False)])
def test_a_clean_path_is_absolute_and_plain(path: object, clean: bool) -> None:
    assert clean_path(path) is clean
