"""The images of `make image`: what they hold, that they are repeatable, and a watcher in one with the chart's rights.

As the chart runs it: the node's processes and network, its capabilities and no other, no new privileges, the runtime's
seccomp profile, a read-only root. What podman does not have of a kubelet: probes, a ConfigMap, AppArmor here."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.authority import write_authority
from kata_files import KataFiles
from machine_wide import alone_with
from need import need_root, need_tool
from process_masks import by_tid, two_cpus
from real_node import Node
from real_qemu import Qemu
from runtime_bundle import remove_cgroup
from waiting import wait

pytestmark = [pytest.mark.root, pytest.mark.release]

ROOT = Path(__file__).parents[2]
#: Bytes of all files, in the words of who asked for them.
MOST = {"": 180_000_000, "-kubernetes": 320_000_000}


def build(target: Path) -> Path:
    need_root()
    need_tool("debootstrap")
    wheel = target / "dist"
    steps: list[list[str | Path]] = [
        ["-m", "build", "--wheel", "--no-isolation", "--outdir", wheel, ROOT],
        [ROOT / "config/image.py", "-o", target, "--wheel"]]
    for argv in steps:
        argv += wheel.glob("*.whl") if argv[-1] == "--wheel" else ()
        done = subprocess.run([sys.executable, *argv], cwd=target, capture_output=True, text=True, timeout=3600)
        assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("image"))


class Archive:
    """An OCI image layout as a tar file, with one image."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as archive:
            self.files = {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]
        (self.entry,) = json.loads(self.files["index.json"])["manifests"]
        self.manifest = json.loads(self.blob(self.entry))
        self.config = json.loads(self.blob(self.manifest["config"]))

    def blob(self, descriptor: dict[str, Any]) -> bytes:
        data = self.files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}") == (descriptor["size"], descriptor["digest"])
        return data

    @property
    def layers(self) -> list[str]:
        return [each["digest"] for each in self.manifest["layers"]]


def archive(built: Path, suffix: str = "") -> Archive:
    return Archive(path_of(built, suffix))


def path_of(built: Path, suffix: str = "") -> Path:
    (path,) = (path for path in built.glob(f"vmpin-*{suffix}.oci.tar") if suffix or "-kubernetes" not in path.name)
    return path


def name_of(built: Path, suffix: str = "") -> str:
    """The image as podman has it once it is loaded."""
    name = archive(built, suffix).entry["annotations"]["io.containerd.image.name"]
    assert isinstance(name, str)
    return name


def test_both_images_are_of_one_recipe(built: Path) -> None:
    watcher, reporter = archive(built), archive(built, "-kubernetes")
    assert reporter.layers[:2] == watcher.layers
    assert (watcher.config["config"]["Cmd"], reporter.config["config"]["Cmd"]) == (["watch"], ["reporter"])
    assert "User" not in watcher.config["config"], "its VMMs' files are root's"
    assert reporter.config["config"]["User"] not in ("", "0", "0:0", "root")
    for each in watcher, reporter:
        assert each.entry["annotations"]["io.containerd.image.name"].startswith("docker.io/library/vmpin:0.1.")


@pytest.mark.parametrize("suffix", MOST)
def test_an_image_is_no_larger_than_promised(built: Path, suffix: str, tmp_path: Path) -> None:
    found = archive(built, suffix)
    total = 0
    for number, layer in enumerate(found.manifest["layers"]):
        (tmp_path / str(number)).write_bytes(found.blob(layer))
        with tarfile.open(tmp_path / str(number)) as files:
            total += sum(each.size for each in files)
    assert total <= MOST[suffix]


def test_nothing_of_the_building_machine_is_in_it(built: Path, tmp_path: Path) -> None:
    for number, layer in enumerate(archive(built, "-kubernetes").manifest["layers"]):
        (tmp_path / str(number)).write_bytes(archive(built, "-kubernetes").blob(layer))
        with tarfile.open(tmp_path / str(number)) as files:
            entries = files.getmembers()
        names = {each.name for each in entries}
        assert not names & {"etc/resolv.conf", "etc/hostname", "etc/apt/sources.list", "etc/machine-id"}
        assert not [name for name in names if name.endswith("direct_url.json")]
        assert [each.name for each in entries] == sorted(names)
        assert len({each.mtime for each in entries}) == 1


def test_the_same_packages_make_the_same_image(built: Path, tmp_path: Path) -> None:
    again = build(tmp_path)
    for suffix in MOST:
        assert archive(again, suffix).layers == archive(built, suffix).layers
        assert path_of(again, suffix).read_bytes() == path_of(built, suffix).read_bytes()


class Podman:
    """With every directory its own, on a machine that may also be a container."""

    def __init__(self, top: str, parent: str) -> None:
        config = Path(top, "containers.conf")
        config.write_text('[engine]\nlock_type = "file"\n')
        self._parent = parent
        # runc first: crun 1.8 refuses hybrid cgroups, and podman needs cgroups beside the node's process ids.
        self._argv = ["env", f"CONTAINERS_CONF={config}", need_tool("podman"),
                      *(f"--{name}={top}/{name}" for name in ("root", "runroot", "tmpdir")), "--storage-driver=vfs",
                      "--cgroup-manager=cgroupfs", "--events-backend=none", f"--runtime={need_tool('runc', 'crun')}"]
        need_tool("conmon")

    def __call__(self, *args: str | Path) -> str:
        done = subprocess.run([*self._argv, *args], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{args}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr  # a container's log is on both

    def run(self, *args: str | Path) -> str:
        """With rlimits that a container can have within a container."""
        return self("run", "--network=host", f"--cgroup-parent=/{self._parent}", "--ulimit=nofile=1024:1024",
                    "--ulimit=nproc=4096:4096", *args)


@pytest.fixture
def podman() -> Iterator[Podman]:
    parent = f"vmpin-test-image-{os.getpid()}"
    with alone_with("crun"), tempfile.TemporaryDirectory(prefix="vmpin-", ignore_cleanup_errors=True) as top:
        made = Podman(top, parent)
        try:
            yield made
        finally:
            made("rm", "--all", "--force", "--time=0")
            # Not Path.glob: other cgroups come and go meanwhile.
            for cgroup in sorted(glob.glob(f"/sys/fs/cgroup/**/{parent}/**/", recursive=True), reverse=True):
                remove_cgroup(Path(cgroup))


def rights() -> list[str]:
    """podman's options for the container of the chart without all privileges, as it is rendered."""
    (found,) = [each for each in yaml.safe_load_all((ROOT / "tests/cluster/golden/restricted.yaml").read_text())
                if each["kind"] == "DaemonSet" and each["metadata"]["name"] == "vmpin-watcher"]
    pod = found["spec"]["template"]["spec"]
    context = pod["containers"][0]["securityContext"]
    assert (pod["hostPID"], pod["hostNetwork"], context["privileged"]) == (True, True, False)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
    return ["--pid=host", f"--user={context['runAsUser']}", "--read-only", "--read-only-tmpfs=false",
            "--security-opt=no-new-privileges",
            *(f"--cap-drop={name}" for name in context["capabilities"]["drop"]),
            *(f"--cap-add={name}" for name in context["capabilities"]["add"])]


def test_a_watcher_in_it_finds_pins_and_gives_back(built: Path, podman: Podman) -> None:
    podman("load", "--input", path_of(built))
    first, second = two_cpus()
    # Of another user than the watcher: setting its masks takes a capability, and Kata's state shows whose VM it is.
    with Node() as node, Qemu(node.id("a"), vcpus=2, iothreads=["io1"], extra=["-runas", "nobody"]) as vm:
        node.configure(node={"shared_pool": first}, watch={"reload": "change"})
        KataFiles(node.top / "vc").write(vm, {})
        node.run.mkdir(mode=0o755)
        before = by_tid(vm.pid)
        name = podman.run("--detach", *rights(), f"--volume={node.top}:{node.top}", name_of(built),
                          "--config", node.config, "watch").strip()

        def log() -> str:
            return podman("logs", name)

        wait(lambda: (node.run / "hook.sock").exists(), log)
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, others=first)
        assert node.sandbox(vm.sandbox)["verdict"] == "pinned"
        # The commands of the image, as `kubectl exec` starts them.
        podman("exec", name, "vmpin", "--config", node.config, "verify")
        node.configure(policy={"vcpus": "union"})
        wait(lambda: "policy.vcpus: auto -> union" in log(), log)
        podman("exec", name, "vmpin", "--config", node.config, "unpin", "--every")
        wait(lambda: by_tid(vm.pid) == before, lambda: f"{by_tid(vm.pid)} is not {before}")
        podman("stop", "--time=60", name)
        assert "stopped; threads" in log()


def test_the_reporters_image_has_its_client_and_no_rights(built: Path, podman: Podman) -> None:
    podman("load", "--input", path_of(built, "-kubernetes"))
    code = "import kubernetes.client, os; print(os.getuid(), open('/proc/self/status').read())"
    found = podman.run("--rm", "--read-only", "--cap-drop=all", "--entrypoint=/usr/bin/python3",
                       name_of(built, "-kubernetes"), "-I", "-c", code)
    assert found.split()[0] == archive(built, "-kubernetes").config["config"]["User"].split(":")[0]
    assert "CapEff:\t0000000000000000" in found


class _Nothing(BaseHTTPRequestHandler):
    """An API server without any object."""

    def do_GET(self) -> None:
        body = b'{"items":[],"metadata":{}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_the_reporters_image_takes_an_authority_without_key_usage(built: Path, podman: Podman, tmp_path: Path) -> None:
    """Its Python refuses one by default. As the chart's Job runs it: without rights and without a configuration."""
    podman("load", "--input", path_of(built, "-kubernetes"))
    image = name_of(built, "-kubernetes")
    write_authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Nothing) as server, tempfile.TemporaryDirectory(
            prefix="vmpin-", dir="/tmp") as directory:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever).start()
        place = Path(directory)
        place.chmod(0o755)
        shutil.copyfile(tmp_path / "tls.crt", place / "ca.crt")
        (place / "kubeconfig").write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": f"https://127.0.0.1:{server.server_port}",
                                                   "certificate-authority": "/given/ca.crt"}}]}))
        strict = "import ssl; print(bool(ssl.create_default_context().verify_flags & ssl.VERIFY_X509_STRICT))"
        rights = ("--rm", "--read-only", "--cap-drop=all", f"--volume={place}:/given:ro")
        try:
            assert podman.run(*rights, "--entrypoint=/usr/bin/python3", image, "-c", strict).split() == ["True"]
            found = podman.run(*rights, "--env=VMPIN_KUBERNETES_KUBECONFIG=/given/kubeconfig", image, "reporter",
                               "--withdraw")
            assert "0 objects were changed or removed" in found
            podman.run(*rights, "--entrypoint=test", image, "-e", "/given/ca.crt")  # as the readiness probe does
        finally:
            server.shutdown()
