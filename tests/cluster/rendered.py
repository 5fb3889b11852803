"""What the chart makes of values, by Helm's engine, and the files that are kept of it.

`python -m cluster.rendered` (with tests/ on the module path) writes config/kubernetes/vmpin.yaml and golden/*.yaml
again: look at the difference before committing it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from cluster.build import Programs, programs

ROOT = Path(__file__).parents[2]
CHART = ROOT / "config/helm/vmpin"
MANIFEST = ROOT / "config/kubernetes/vmpin.yaml"
GOLDEN = Path(__file__).parent / "golden"
_HEADER = """\
# vmpin on each node with Kata, for kubectl apply: the chart's default values (config/helm/vmpin), rendered; another
# value means Helm. Nodes need the images that `make image` makes. docs/kubernetes.md has a check after each step, and
# how to remove it all. This file is generated: PYTHONPATH=tests python -m cluster.rendered
apiVersion: v1
kind: Namespace
metadata:
  name: vmpin
  labels:
    # The watcher sees the node's processes.
    pod-security.kubernetes.io/enforce: privileged
    # Else a cluster that warns by default does so of what is needed.
    pod-security.kubernetes.io/warn: privileged
    pod-security.kubernetes.io/audit: privileged
"""


def render(built: Programs, values: str = "{}", *arguments: str) -> subprocess.CompletedProcess[str]:
    """Release vmpin in namespace vmpin. :param values: YAML."""
    return subprocess.run([built.render, CHART, *arguments, "-f", "-"], input=values, capture_output=True, text=True,
                          timeout=300, check=False)


def objects(built: Programs, values: str = "{}", *arguments: str) -> str:
    """:raises AssertionError: with what the engine refused."""
    done = render(built, values, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifest(built: Programs) -> str:
    """Of the default values, with namespace and custom resource definition, without Helm's hooks."""
    documents = objects(built, "{}", "-crds").split("---\n")[1:]
    kept = [each for each in documents if not _is_hook(each)]
    return "---\n".join([_HEADER, *(f"{each.strip()}\n" for each in kept)])


def _is_hook(document: str) -> bool:
    found = yaml.safe_load(document)
    return "helm.sh/hook" in (found["metadata"].get("annotations") or {})


def files(built: Programs) -> dict[Path, str]:
    """Every file that is kept, with what belongs into it."""
    found = {MANIFEST: manifest(built)}
    for values in sorted(GOLDEN.glob("*.values.yaml")):
        found[values.with_name(values.name.replace(".values", ""))] = objects(built, values.read_text())
    return found


def main() -> None:
    with programs() as built:
        for path, text in files(built).items():
            path.write_text(text)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
