"""Helm's engine renders a chart as Helm does, and refuses what it would let pass."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from cluster.build import Programs

pytestmark = pytest.mark.cluster

_FILES = {
    "Chart.yaml": "apiVersion: v2\nname: thing\nversion: 0.1.0\n",
    "values.yaml": "size: 1\n",
    "values.schema.json": '{"properties": {"size": {"type": "integer"}}}',
    "crds/crd.yaml": "kind: CustomResourceDefinition\napiVersion: apiextensions.k8s.io/v1\n",
    "templates/a.yaml": "kind: ConfigMap\napiVersion: v1\nmetadata: {name: {{ .Release.Name }}}\n"
                        "data: {size: {{ .Values.size | quote }}, upgrade: {{ .Release.IsUpgrade | quote }}}\n",
    "templates/b.yaml": "kind: Namespace\napiVersion: v1\nmetadata: {name: {{ .Release.Namespace }}}\n",
    "templates/hook.yaml": "kind: Job\napiVersion: batch/v1\nmetadata: {annotations: {helm.sh/hook: pre-delete}}\n",
    "templates/NOTES.txt": "first do {{ .Release.Name }}",
}


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    for name, text in _FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def render(built: Programs, chart: Path, *arguments: str, values: str = "{}") -> subprocess.CompletedProcess[str]:
    return subprocess.run([built.render, chart, *arguments, "-f", "-"], input=values, capture_output=True, text=True,
                          timeout=120, check=False)


def test_objects_come_in_the_order_of_installation_and_hooks_last(built: Programs, chart: Path) -> None:
    done = render(built, chart, "-name", "one", "-namespace", "two", "-upgrade", "-crds", values="size: 5")
    objects = list(yaml.safe_load_all(done.stdout))
    assert [each["kind"] for each in objects] == ["CustomResourceDefinition", "Namespace", "ConfigMap", "Job"], done
    assert objects[1]["metadata"]["name"] == "two"
    assert (objects[2]["metadata"]["name"], objects[2]["data"]) == ("one", {"size": "5", "upgrade": "true"})


def test_notes_are_printed_alone(built: Programs, chart: Path) -> None:
    assert render(built, chart, "-notes").stdout == "first do vmpin"


@pytest.mark.parametrize(("values", "reason"), [("colour: red", 'unknown value "colour"'),
                                                ("size: big", "got string, want integer"), ("[", "yaml")])
def test_values_that_the_chart_does_not_know_are_refused(built: Programs, chart: Path, values: str,
                                                         reason: str) -> None:
    done = render(built, chart, values=values)
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr


def test_a_template_that_asks_for_an_absent_value_fails(built: Programs, chart: Path) -> None:
    (chart / "templates/a.yaml").write_text("kind: {{ .Values.absent }}\n")
    assert render(built, chart).returncode == 1
