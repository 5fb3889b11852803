"""Which module may import which: lower floors never import higher ones, and what is pure stays pure.

A new module is to be given a floor here; CONTRIBUTING.md says what each is for.
"""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vmpin.install import data_files

ROOT = Path(__file__).parents[2]

#: A package's floor is that of all its modules.
FLOORS = {
    # shared with the guest: the standard library alone, Python 3.9
    "cpuset": 0, "guestframe": 0, "guestmessages": 0, "guestproto": 0,
    # the domain: pure
    "errors": 1, "model": 1, "topology": 1, "events": 1, "state": 1, "policy": 1, "ownership": 1, "matching": 1,
    "vcpuplaces": 1, "placement": 1, "plan": 1, "before": 1, "status": 1, "explain": 1, "audit": 1, "occupants": 1,
    "podnames": 1, "wire": 1, "allocation": 1, "guestmap": 1, "tally": 1, "birth": 1, "drift": 1, "proof": 1,
    "health": 1, "plainyaml": 1, "picture": 1, "doctor": 1, "redact": 1,
    # adapters: each has its root path or socket as a parameter
    "resources": 2, "yamlfile": 2, "config": 2, "reload": 2, "scenario": 2, "statefile": 2, "lock": 2, "log": 2,
    "sdnotify": 2, "hooks_install": 2, "pyz": 2, "host": 2, "vmm": 2, "runtime": 2, "source": 2, "values": 2,
    "channel": 2, "guest": 2, "prooffile": 2, "keeper": 2,
    # what makes the machine what it should be
    "census": 3, "observe": 3, "places": 3, "apply": 3, "pinner": 3, "reconciler": 3, "snapshot": 3, "oneshot": 3,
    "agreement": 3, "requests": 3, "repair": 3, "relist": 3, "arrivals": 3, "birthbook": 3, "departure": 3,
    "exclusion": 3,
    "circumstances": 3, "drifts": 3, "sampler": 3, "headcount": 3,
    "about": 3, "checkup": 3, "gather": 3,
    # what people and systemd start
    "watcher": 4, "rundir": 4, "runcrepair": 4, "answers": 4, "settling": 4, "feeds": 4, "births": 4, "guests": 4,
    "vmguest": 4, "exporter": 4, "metrics": 4, "demo": 4, "cli": 4,
}
#: The packages of adapters, and which others each may know.
ADAPTERS = {"host": set[str](), "vmm": {"host"}, "runtime": {"host"}}

#: What floor 1 may import: nothing that reads, waits or starts anything.
PURE = {"__future__", "bisect", "collections", "dataclasses", "datetime", "enum", "errno", "fnmatch", "functools",
        "html", "itertools", "json", "math", "re", "struct", "typing"}
#: All that may come from outside the standard library, and where.
OUTSIDE = {"yaml": {"yamlfile", "cli.common"}, "rich": {"cli.common"}, "qemu": {"vmm.qmp"}, "google": {"wire.protos"},
           "grpc": {"source.grpc_call"}, "tenacity": {"guest.attempts"},
           "prometheus_client": {"metrics"}}
#: Who may know of tasks and of processes, besides the command line and the demo.
ASYNC = {"source.sockets", "source.http", "exporter", "vmm.qmp", "oneshot", "watcher", "rundir", "runcrepair",
         "settling", "feeds", "births", "guests", "vmguest", "channel", "channel.vsock", "channel.hybrid_vsock",
         "guest.attempts", "guest.together", "guest.vmpin_agent", "guest.kata_agent", "guest.kata_session"}
PROCESSES = {"hooks_install"}

MODULES = {".".join(path.relative_to(ROOT / "vmpin").with_suffix("").parts).removesuffix(".__init__"): path
           for path in sorted((ROOT / "vmpin").rglob("*.py")) if path != ROOT / "vmpin" / "__init__.py"}


def imports(path: Path) -> Iterator[str]:
    """Every module named in an import, also within functions: `vmpin.x` for `from vmpin import x`."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module
            if node.module == "vmpin" or (node.module.startswith("vmpin.") and node.module[6:] in ("cli", *ADAPTERS)):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def own(path: Path) -> set[str]:
    """The modules of vmpin that it imports, without the leading `vmpin.`."""
    return {name.removeprefix("vmpin.") for name in imports(path) if name.startswith("vmpin.")}


def outer(path: Path) -> set[str]:
    """The top-level packages that it imports of others."""
    return {name.partition(".")[0] for name in imports(path)} - {"vmpin"}


def top(module: str) -> str:
    return module.partition(".")[0]


def test_every_module_has_a_floor() -> None:
    assert {top(module) for module in MODULES} == set(FLOORS)


@pytest.mark.parametrize("module", MODULES)
def test_no_module_imports_from_a_higher_floor(module: str) -> None:
    floor = FLOORS[top(module)]
    assert {name for name in own(MODULES[module]) if FLOORS[top(name)] > floor} == set()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapters_do_not_know_each_other(adapter: str) -> None:
    known = {top(name) for module, path in MODULES.items() if top(module) == adapter for name in own(path)}
    assert known & set(ADAPTERS) <= {adapter, *ADAPTERS[adapter]}


def test_no_import_at_the_top_goes_in_a_circle() -> None:
    graph = {}
    for module, path in MODULES.items():
        tree = ast.parse(path.read_bytes())
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        graph[module] = {f"{node.module}.{alias.name}".removeprefix("vmpin.") for node in tree.body
                         if isinstance(node, ast.ImportFrom) for alias in node.names}
        graph[module] = {known for name in graph[module] for known in MODULES if f"{name}.".startswith(f"{known}.")}
    while leaves := {module for module, needs in graph.items() if not needs & set(graph)}:
        graph = {module: needs for module, needs in graph.items() if module not in leaves}
    assert not graph


@pytest.mark.parametrize("module", [module for module in MODULES if FLOORS[top(module)] == 1])
def test_the_domain_is_pure(module: str) -> None:
    assert outer(MODULES[module]) <= PURE | {package for package, places in OUTSIDE.items() if module in places}


@pytest.mark.parametrize("module", [module for module in MODULES if FLOORS[top(module)] == 0])
def test_what_the_guest_shares_needs_the_standard_library_and_python_3_9_alone(module: str) -> None:
    path = MODULES[module]
    assert outer(path) <= sys.stdlib_module_names
    ast.parse(path.read_bytes(), feature_version=(3, 9))
    assert (ROOT / "vmpin" / "__init__.py").read_bytes() == b""  # the guest imports it, too


def test_the_hook_needs_the_standard_library_and_python_3_9_alone() -> None:
    path = data_files.path("hooks/vmpin-hook")
    assert {name.partition(".")[0] for name in imports(path)} <= sys.stdlib_module_names
    ast.parse(path.read_bytes(), feature_version=(3, 9))


@pytest.mark.parametrize("module", MODULES)
def test_what_comes_from_outside_stays_in_its_place(module: str) -> None:
    """So nothing imports kubernetes or psutil, and what pins needs neither yaml nor rich."""
    for package in outer(MODULES[module]) - sys.stdlib_module_names:
        assert module in OUTSIDE.get(package, ()), package


@pytest.mark.parametrize(("package", "places"), [("asyncio", ASYNC), ("subprocess", PROCESSES)])
def test_tasks_and_processes_stay_in_their_place(package: str, places: set[str]) -> None:
    found = {module for module, path in MODULES.items() if package in outer(path)}
    assert {module for module in found if top(module) not in ("cli", "demo")} <= places


def test_one_module_alone_sets_masks() -> None:
    setters = {module for module, path in MODULES.items() for node in ast.walk(ast.parse(path.read_bytes()))
               if isinstance(node, ast.Attribute) and node.attr == "sched_setaffinity"}
    assert setters == {"host.affinity"}


_STATUS = """\
import json, sys
from vmpin.cli.main import main
code = main(["status", "-o", "json"])
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def test_status_as_json_loads_neither_asyncio_nor_rich_nor_yaml(tmp_path: Path) -> None:
    """It is asked every few seconds by who watches many nodes; each of these would double its time."""
    answer = b'{"version":1,"sandboxes":[]}\n'

    def watcher(made: socket.socket) -> None:
        connection, _ = made.accept()
        with connection:
            assert json.loads(connection.makefile().readline()) == {"op": "status"}
            connection.sendall(answer)

    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "vmpin.sock"))
        made.listen()
        made.settimeout(120)
        thread = threading.Thread(target=watcher, args=(made,))
        thread.start()
        ran = subprocess.run([sys.executable, "-c", _STATUS], capture_output=True, timeout=120,
                             env={**os.environ, "VMPIN_PATHS_RUN": str(tmp_path)})
        thread.join()
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == answer
    loaded = {name.partition(".")[0] for name in json.loads(ran.stderr)}
    assert "vmpin" in loaded
    assert not loaded & {"asyncio", "rich", "yaml", "qemu", "logging"}


_FIRST_PASS = """\
import json, sys
sys.argv = ["vmpin"]
import vmpin.cli.main, vmpin.cli.watch, vmpin.log, vmpin.oneshot, vmpin.reconciler, vmpin.lock, vmpin.source.spool
print(json.dumps(sorted(sys.modules)))
"""


def test_what_the_first_pass_needs_loads_neither_asyncio_nor_what_leaving_takes() -> None:
    """A VM's threads wait for it while the watcher starts."""
    ran = subprocess.run([sys.executable, "-c", _FIRST_PASS], capture_output=True, timeout=120, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(ran.stdout)}
    assert "vmpin" in loaded
    assert not loaded & {"asyncio", "socket", "ssl", "subprocess", "shutil", "rich", "google", "qemu"}
