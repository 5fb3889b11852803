"""The commands of docs/kubernetes.md with the real helm, in their order; and `helm uninstall`, which ends whatever the
Job that withdraws comes to.

This API server has no controllers: the Job's end is the test's, what the Job does is test_rights'. Helm 3 is tried in
CI, Helm 4 before a release."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.errors import LabError
from need import lacking

from cluster.build import BEFORE_A_RELEASE, IN_CI, Programs, helm
from cluster.rendered import CHART, ROOT
from cluster.reporter_node import DAEMON_SETS, until
from cluster.server import DEADLINE, MERGE, ApiServer

sys.path.append(str(ROOT / "config"))
import image
import release as building

pytestmark = pytest.mark.cluster

PAGE = ROOT / "docs/kubernetes.md"
JOBS, SECRETS = "/apis/batch/v1/namespaces/vmpin/jobs", "/api/v1/namespaces/vmpin/secrets"
CLUSTER_ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
KATA = {"katacontainers.io/kata-runtime": "true"}
#: What a Job's controller would write.
COMPLETE = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
TOO_LATE = {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded",
                            "message": "Job was active longer than specified deadline"}]}


@pytest.fixture(scope="module", params=[IN_CI, pytest.param(BEFORE_A_RELEASE, marks=pytest.mark.release)])
def command(request: pytest.FixtureRequest) -> Iterator[Path]:
    try:
        with helm(request.param) as found:
            yield found
    except LabError as err:
        lacking(str(err))


class Release:
    """A cluster of its own with the namespace of the page, a directory to call helm in, and the Job's controller."""

    def __init__(self, server: ApiServer, command: Path, directory: Path) -> None:
        self.server, self._command, self._directory = server, command, directory
        self.job: dict[str, Any] | None = COMPLETE  #: The status that each Job gets; None for none.
        (directory / "config").symlink_to(ROOT / "config")
        (directory / "values.yaml").write_text("image: {repository: registry.example/vmpin}\n")
        assert server.create("/api/v1/namespaces", {"metadata": {"name": "vmpin"}}).code == 201
        self._ended = threading.Event()
        self._controller = threading.Thread(target=self._control)
        self._controller.start()

    def close(self) -> None:
        self._ended.set()
        self._controller.join()

    def _control(self) -> None:
        while not self._ended.wait(0.1):
            for job in self.items(JOBS):
                if self.job is not None and not (job.get("status") or {}).get("conditions"):
                    self.server.request("PATCH", f"{JOBS}/{job['metadata']['name']}/status", {"status": self.job},
                                        kind=MERGE)

    def items(self, path: str) -> list[dict[str, Any]]:
        return list(self.server.get(path).body["items"])

    def names(self, path: str) -> set[str]:
        """Of the objects there that are the release's."""
        return {each["metadata"]["name"] for each in self.items(path)
                if (each["metadata"].get("labels") or {}).get("app.kubernetes.io/instance") == "vmpin"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen([self._command, *words], cwd=self._directory, text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={"PATH": os.environ["PATH"], "HOME": str(self._directory),
                                     "KUBECONFIG": str(self.server.kubeconfig())})

    def run(self, *words: str) -> tuple[int, str]:
        """Its exit code, and what it wrote to stderr."""
        process = self.start(*words)
        _, errors = process.communicate(timeout=DEADLINE)
        return process.returncode, errors

    def install(self) -> None:
        assert self.run("install", "vmpin", "config/helm/vmpin", "-n", "vmpin", "-f", "values.yaml") == (0, "")

    @property
    def selectors(self) -> list[dict[str, str]]:
        """The node selectors of both DaemonSets."""
        return [each["spec"]["template"]["spec"]["nodeSelector"] for each in self.items(DAEMON_SETS)]

    @property
    def gone(self) -> bool:
        """Whether Helm knows no release, and nothing of it is left but the Job that failed."""
        return not (any(each["type"].startswith("helm.sh/") for each in self.items(SECRETS)) or self.names(DAEMON_SETS)
                    or self.names(CLUSTER_ROLES) or self.names("/api/v1/namespaces/vmpin/serviceaccounts"))


@pytest.fixture
def release(built: Programs, command: Path, tmp_path: Path) -> Iterator[Release]:
    with ApiServer(built) as server:
        made = Release(server, command, tmp_path)
        try:
            yield made
        finally:
            made.close()


def commands(text: str) -> list[list[str]]:
    """The helm commands of a page about the release, in code blocks and in lines, in their order; each once."""
    joined = re.sub(r"\\\n\s+", " ", text)
    found = re.findall(r"^ {4,}(helm \w+ vmpin.*?)(?: +#.*)?$|`(helm \w+ vmpin[^`]*)`", joined, re.MULTILINE)
    return [shlex.split(each)[1:] for each in dict.fromkeys(block or line for block, line in found)]


def test_the_commands_of_the_page_do_what_it_has(release: Release, tmp_path: Path) -> None:
    """With the chart as `make release` packs it."""
    building.chart(building.Build(tmp_path, tmp_path, "0.1.0.dev3+gabc1234"))
    (packed,) = tmp_path.glob("vmpin-*.tgz")

    def of(page: Path) -> list[list[str]]:
        return [[str(packed) if word.endswith(".tgz") else word for word in line]
                for line in commands(page.read_text())]

    words = of(PAGE)
    pages = [page for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")) if page != PAGE]
    for each in [each for page in pages for each in of(page) if each not in words]:
        assert each[0] == "install", "other commands have their place on the page"
        assert release.run(*each) == (0, ""), each
        assert release.run("uninstall", "vmpin", "-n", "vmpin") == (0, "")
    steps: list[Callable[[], object]] = [
        lambda: release.selectors == [{**KATA, "vmpin-first": "true"}] * 2,
        lambda: release.selectors == [KATA] * 2,
        lambda: release.selectors == [{**KATA, "vmpin-first": "true"}] * 2,
        lambda: "--remove" in str(release.items(DAEMON_SETS)),
        lambda: "--remove" in str(release.items(DAEMON_SETS)) and "on_exit: unpin" in str(
            release.items("/api/v1/namespaces/vmpin/configmaps")),
        lambda: release.gone and not release.names(JOBS)]
    assert len(words) == len(steps), words
    for each, holds in zip(words, steps, strict=True):
        assert release.run(*each) == (0, ""), each
        assert holds(), (each, release.selectors)


def test_one_build_takes_the_place_of_another_and_goes_back(release: Release, tmp_path: Path) -> None:
    """Each with the images of its own version, and values that both know."""
    charts = {}
    for version in "0.1.0.dev3+gabc1234", "0.1.0.dev4+gdef5678":
        building.chart(building.Build(tmp_path, tmp_path, version))
        charts[version] = str(tmp_path / f"vmpin-{building.chart_version(version)}.tgz")
    (older, first), (newer, second) = charts.items()

    def tags() -> set[str]:
        images = {container["image"] for each in release.items(DAEMON_SETS)
                  for container in each["spec"]["template"]["spec"]["containers"]}
        return {image.rpartition(":")[2].removesuffix("-kubernetes") for image in images}

    assert release.run("install", "vmpin", first, "-n", "vmpin", "-f", "values.yaml") == (0, "")
    assert tags() == {image.tag(older)}
    assert release.run("upgrade", "vmpin", second, "-n", "vmpin", "-f", "values.yaml") == (0, "")
    assert tags() == {image.tag(newer)}
    assert release.run("rollback", "vmpin", "-n", "vmpin") == (0, "")
    assert tags() == {image.tag(older)}
    code, said = release.run("upgrade", "vmpin", first, "-n", "vmpin", "--set", "later.key=1")
    assert code == 1, "a value of a newer chart"
    assert "later" in said
    assert tags() == {image.tag(older)}


@pytest.mark.parametrize("flag", [
    pytest.param("--reset-then-reuse-values", marks=pytest.mark.release), "--reuse-values"])
def test_a_null_is_never_rendered(release: Release, flag: str) -> None:
    """Whatever Helm makes of it: with --reuse-values it keeps the value from before."""
    chart = "config/helm/vmpin"
    assert release.run("install", "vmpin", chart, "-n", "vmpin", "--set-string", "nodeSelector.first=true") == (0, "")
    assert release.run("upgrade", "vmpin", chart, "-n", "vmpin", flag, "--set", "nodeSelector.first=null") == (0, "")
    kept = {"first": "true"} if flag == "--reuse-values" else {}
    assert release.selectors == [{**KATA, **kept}] * 2
    release.job = None
    process = release.start("uninstall", "vmpin", "-n", "vmpin")
    (job,) = until(lambda: release.items(JOBS))
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {**KATA, **kept}
    release.job = COMPLETE
    assert process.wait(DEADLINE) == 0
    process.communicate()


def _definition_gone(release: Release) -> None:
    done = release.server.kubectl("delete", "-f", str(CHART / "crds"))
    assert done.returncode == 0, done.stderr


def _rights_gone(release: Release) -> None:
    for kind in "clusterroles", "clusterrolebindings", "roles", "rolebindings", "serviceaccounts":
        done = release.server.kubectl("-n", "vmpin", "delete", kind, "-l", "app.kubernetes.io/instance=vmpin")
        assert done.returncode == 0, done.stderr


def _failed(release: Release) -> None:
    """No node matches, none is up, the image is not pulled, or something could not be withdrawn."""
    release.job = TOO_LATE


def _silent(release: Release) -> None:
    """As where no controller sees to the Job."""
    release.job = None


def _forbidden(release: Release) -> None:
    release.server.faults({"code": 403, "reason": "Forbidden", "verbs": ["create", "patch"],
                           "resources": ["serviceaccounts", "clusterroles", "jobs"]})


def _ending(release: Release) -> None:
    path = "/api/v1/namespaces/vmpin"
    for body, part in (({"metadata": {"finalizers": ["vmpin.io/test"]}}, ""),
                       ({"status": {"phase": "Terminating"}}, "/status")):
        assert release.server.request("PATCH", path + part, body, kind=MERGE).code == 200
    assert release.server.request("DELETE", path).code == 200


@pytest.mark.parametrize(("cause", "reason"), [
    (_silent, "vmpin-withdraw|timed out|deadline"), (_forbidden, "withdraw.yaml"), *(
        pytest.param(*case, marks=pytest.mark.release) for case in (
            (_definition_gone, ""), (_rights_gone, ""), (_failed, "vmpin-withdraw|failed"),
            (_ending, "withdraw.yaml")))],
    ids=lambda each: getattr(each, "__name__", "")[1:])
def test_uninstalling_ends_whatever_the_withdrawal_comes_to(release: Release, cause: Callable[[Release], None],
                                                            reason: str) -> None:
    release.install()
    cause(release)
    code, errors = release.run("uninstall", "vmpin", "-n", "vmpin", "--timeout", "10s")
    assert (code != 0) == bool(reason), errors
    assert re.search(reason, errors), errors
    assert release.gone
    assert "not found" in release.run("uninstall", "vmpin", "-n", "vmpin")[1]
    if cause is not _ending:
        release.server.faults()
        release.job = COMPLETE
        release.install()
        assert release.run("uninstall", "vmpin", "-n", "vmpin") == (0, "")
        assert release.gone
        assert release.names(JOBS) == set()


def test_a_helm_that_was_killed_meanwhile_is_followed_by_another(release: Release) -> None:
    release.install()
    release.job = None
    process = release.start("uninstall", "vmpin", "-n", "vmpin")
    until(lambda: release.items(JOBS))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not release.gone, "its release is uninstalling"
    release.job = COMPLETE
    assert release.run("uninstall", "vmpin", "-n", "vmpin") == (0, "")
    assert release.gone
