"""Which package may import which: a lower one never imports a higher one, and what is pure imports no adapter.

A new package gets its floor here; docs and the package's own docstring describe what it is for.
"""

from __future__ import annotations

import ast
import re
import symtable
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from vmpin.install import data_files
from vmpin.vmm.vmms import VMMS

ROOT = Path(__file__).parents[2]

#: A package imports packages of lower floors alone, and none of its own floor. A module at the root counts as one.
FLOORS = {
    "bounded": 0, "cpuset": 0, "log": 0, "named_tuple": 0,
    "errors": 1, "feature": 1, "domain": 1, "protocol": 1,
    "wire": 2, "placement": 2,
    "host": 3,
    "vmm": 4, "runtime": 4, "config": 4, "install": 4,
    "sources": 5, "authorities": 5, "pinning": 5,
    "reconcile": 6,
    "status": 7, "guests": 7,
    "procevents": 8,
    "features": 9,
    "daemon": 10,
    "cli": 11,
}
#: All that may be at the root of the package: what the hook or the guest needs there, or everything.
AT_THE_ROOT = {"__init__", "bounded", "cpuset", "errors", "feature", "log", "named_tuple"}
#: What is shared with the guest: the standard library alone, Python 3.9.
SHARED = ("bounded", "cpuset", "named_tuple", "protocol")
#: What is pure: it reads, waits for and starts nothing. A package means all of its modules.
PURE_PARTS = ("bounded", "cpuset", "errors", "feature", "named_tuple", "domain", "protocol", "wire", "placement",
              *(f"features.common.{name}" for name in (
                  "cpu_owner", "finding", "held_cpus", "samples", "scenario_values")),
              *(f"features.doctor.{name}" for name in (
                  "checks", "redact", "source_checks", "kata_checks", "node_checks", "rival_checks",
                  "service_checks")),
              "features.proof.residency_ledger", "features.runc_repair.runc_repair_check",
              "features.demo.worth", "features.demo.worth_report",
              "pinning.plan", "pinning.original_masks", "guests.vcpu_map", "status.document", "status.explain",
              "status.health", "status.pod_arguments",
              "features.map.node_map", "features.map.text",
              *(f"features.isolation.{name}" for name in (
                  "cpu_intervals", "others", "process_pods", "usage", "isolation_books", "isolation_shares",
                  "isolation_report", "isolation_text", "top.thread_intervals", "top.node_description",
                  "top.pod_usage", "top.usage_text")),
              "features.allocator.grants", "features.allocator.search", "features.allocator.texts",
              *(f"features.allocator.{name}" for name in (
                  "allocation_checks", "allocation_report", "ledger_holders", "scenario_allocation",
                  "scenario_events")),
              "features.cluster.cluster_errors", "features.cluster.kube", "features.cluster.fleet",
              "features.cluster.reporter_check",
              *(f"features.network.{name}" for name in (
                  "network_text", "nic_path", "vm_network", "rtnetlink", "network_checks")))
#: What the pure parts may import.
PURE = {"__future__", "abc", "array", "bisect", "collections", "dataclasses", "datetime", "enum", "errno", "fnmatch",
        "functools", "hashlib", "heapq", "html", "itertools", "json", "math", "operator", "re", "statistics", "struct",
        "types", "typing"}
#: All that may come from outside the standard library, and where.
OUTSIDE = {"yaml": {"config.yaml_file", "cli.output"},
           "rich": {"cli.output"},
           "qemu": {"vmm.qmp"}, "google": {"wire.protos"}, "grpc": {"sources.grpc_call"},
           "argcomplete": {"features.shell.verbs.completion"},
           "prometheus_client": {"features.metrics.prometheus", "features.common.metric_families"},
           "psutil": {"features.doctor.node_facts"}, "pyroute2": {"features.network.netns_reader"},
           "kubernetes": {"features.cluster.reporter.api_server"},
           "urllib3": {"features.cluster.reporter.api_server"}}
#: Where asyncio's tasks and where processes may be used, besides the command line and the demo.
ASYNC = {"host.sockets", "vmm.qmp", "reconcile.one_pass", "procevents.feed", "guests",
         "features.allocator", "features.proof.sampling", "features.metrics.exporter", "features.cluster.followers",
         "features.isolation.node_isolation", "features.isolation.books_database", "daemon"}
PROCESSES = {"features.installer", "features.logs", "features.doctor.verbs.gather", "features.network.netns"}
#: A feature's module whose name ends so has its tasks in a watcher.
WATCHER_PART = "watcher_part"
#: Where a number is made by int() or float() and not by bounded: parts of the program, by where it comes from.
NUMBERS_ELSEWHERE = {
    "bounded": "bounded itself",
    **dict.fromkeys((
        "host", "features.common.cpu_times", "features.doctor.node_facts", "guests.channels",
        "pinning.original_mask_store",
        "procevents.newborn_placer", "features.doctor.report", "features.isolation.foreign_scans",
        "features.isolation.thread_usage", "features.proof.sampler",
        "features.isolation.top.interval_sampler", "vmm.kvm", "vmm.process_table", "vmm.recognition",
        "vmm.virtual_machine",
        "features.allocator.allocator_topology",
        *(f"features.network.{name}" for name in ("device_nodes", "netns", "netns_reader", "rtnetlink"))),
        "the kernel wrote it, in a file that no process can write"),
    **dict.fromkeys((
        "features.allocator.scenario_events", "cpuset", "features.installer.oci_hook", "protocol.frames",
        "vmm.guest_machine"), "a regular expression bounds its digits"),
    **dict.fromkeys((
        "cli.repin", "features.demo.verbs", "features.doctor.verbs.gather", "features.proof.verbs.run_times",
        "config.settings", "config.yaml_file", "features.isolation.node_isolation",
        *(f"features.cluster.{name}" for name in (
            "fleet.fleet_views", "fleet.node_record", "kube.agenda", "kube.node_topology", "kube.pod_events",
            "reporter.api_server")),
        "domain.terminal", "guests.kata_agent", "features.isolation.isolation_observer",
        "sources.nri.call_codec", "wire"), "it is a number already"),
    **dict.fromkeys(("features.doctor.verbs.doctor", "features.doctor.source_checks", "features.doctor.service_checks",
                     "features.network.network_inspection", "features.demo", "features.shell.verbs.completion"),
                    "the program's own answer, or its own start"),
}

MODULES = {".".join(path.relative_to(ROOT / "vmpin").with_suffix("").parts).removesuffix(".__init__"): path
           for path in sorted((ROOT / "vmpin").rglob("*.py")) if path != ROOT / "vmpin" / "__init__.py"}


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_bytes()))


#: The seam has the types of all floors in the signatures of its parts, and imports none of them when it runs; the
#: packages of features have these signatures, too.
SEAM, FEATURES = ROOT / "vmpin" / "feature.py", ROOT / "vmpin" / "features"


#: The folder of what several features use: no feature.
COMMON = "common"


def has_parts(path: Path) -> bool:
    return path.name == "__init__.py" and path.parents[1] == FEATURES and path.parent.name != COMMON


def _run_time_nodes(path: Path) -> Iterator[ast.AST]:
    """The nodes of a module, without what it imports for types alone."""
    for node in ast.parse(path.read_bytes()).body:
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from ast.walk(node)


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module named in an import, also within functions: `vmpin.x` for `from vmpin import x`."""
    found = set()
    for node in nodes(path) if path != SEAM and not has_parts(path) else _run_time_nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name.removeprefix("vmpin.") in MODULES else node.module for name in names}
    return frozenset(found)


def own(path: Path) -> set[str]:
    """The modules of vmpin that it imports, without the leading `vmpin.`."""
    return {name.removeprefix("vmpin.") for name in imports(path) if name.startswith("vmpin.")}


def outer(path: Path) -> set[str]:
    """The top-level packages that it imports of others."""
    return {name.partition(".")[0] for name in imports(path)} - {"vmpin"}


def top(module: str) -> str:
    return module.partition(".")[0]


def chain(node: ast.expr) -> list[str]:
    """The names of a dotted expression: `a.b[c].d` is a, b, d; empty for any other."""
    match node:
        case ast.Attribute():
            return [*chain(node.value), node.attr]
        case ast.Subscript():
            return chain(node.value)
    return [node.id] if isinstance(node, ast.Name) else []


def within(module: str, parts: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{part}.") for part in parts)


def test_every_package_has_a_floor_and_the_root_does_not_grow() -> None:
    assert {top(module) for module in MODULES} == set(FLOORS)
    assert {path.stem for path in (ROOT / "vmpin").glob("*.py")} == AT_THE_ROOT


def is_feature(module: str) -> bool:
    """Whether a module is the package of a feature, which has its parts."""
    return has_parts(MODULES[module])


def floor(module: str) -> int:
    """A feature's verbs stand beside the command line's own, and use what these share; so do the options that its
    package adds to these."""
    above = top(module) == "features" and (".verbs" in module or is_feature(module))
    return FLOORS["cli"] + 1 if above else FLOORS[top(module)]


def test_no_package_imports_a_higher_one_or_its_neighbour() -> None:
    assert [(module, name) for module, path in MODULES.items() for name in sorted(own(path))
            if top(name) != top(module) and floor(name) >= floor(module)
            and (module, name) != ("feature", "features")] == []


def feature_of(module: str) -> str:
    return module.split(".")[1] if module.startswith("features.") else ""


def test_the_core_names_no_feature_and_no_feature_another() -> None:
    """The seam alone reaches them, by their names in vmpin/features/__init__.py."""
    assert [(module, name) for module, path in MODULES.items() for name in sorted(own(path))
            if feature_of(name) not in ("", feature_of(module), COMMON)
            or (feature_of(name) == COMMON and not feature_of(module))] == []


def test_what_features_have_in_common_is_used_by_two_of_them() -> None:
    for name in MODULES:
        if feature_of(name) == COMMON and name != f"features.{COMMON}":
            users = {feature_of(module) for module, path in MODULES.items() if name in own(path)}
            assert len(users - {COMMON}) > 1 or COMMON in users, name


def test_a_features_package_loads_the_seam_alone() -> None:
    """Every command imports each."""
    assert [(module, ast.unparse(node)) for module, path in MODULES.items() if is_feature(module)
            for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.Import | ast.ImportFrom)
            and not ast.unparse(node).startswith(("from vmpin.feature import", "from __future__", "from typing",
                                                  "from collections.abc"))] == []


def test_no_two_modules_share_a_name() -> None:
    """Verbs are named as such."""
    names = Counter(module.rpartition(".")[2] for module in MODULES
                    if top(module) != "cli" and ".verbs" not in module)
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_classes_share_a_name() -> None:
    classes = Counter(node.name for top_ in ("vmpin", "guest") for path in (ROOT / top_).rglob("*.py")
                      for node in nodes(path) if isinstance(node, ast.ClassDef))
    assert [name for name, count in classes.items() if count > 1] == []


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


@pytest.mark.parametrize("package", sorted(FLOORS))
def test_no_import_in_a_package_goes_in_a_circle(package: str) -> None:
    """By whatever way: not in a function, nor for a type."""
    graph = {module: {name for name in own(path) if within(name, [package])} for module, path in MODULES.items()
             if within(module, [package])}
    while leaves := {module for module, needs in graph.items() if not needs & set(graph)}:
        graph = {module: needs for module, needs in graph.items() if module not in leaves}
    assert not graph, f"these import each other, or what does: {sorted(graph)}"


def test_the_search_for_cpus_needs_the_request_alone() -> None:
    search = "features.allocator.search"
    names = {name for module, path in MODULES.items() if within(module, [search]) for name in own(path)}
    assert {name for name in names if feature_of(name) and not within(name, [search])} == {
        "features.allocator.grants.cpu_request"}


def test_what_is_pure_imports_nothing_that_acts() -> None:
    pure = {module: path for module, path in MODULES.items() if within(module, PURE_PARTS)}
    assert [(module, package) for module, path in pure.items() for package in sorted(outer(path) - PURE)
            if module not in OUTSIDE.get(package, ()) and (module, package) != ("feature", "importlib")] == []
    assert [(module, name) for module, path in pure.items() for name in sorted(own(path))
            if not within(name, PURE_PARTS) and module != "feature"] == []


@pytest.mark.parametrize("module", [module for module in MODULES if within(module, SHARED)])
def test_what_the_guest_shares_needs_the_standard_library_and_python_3_9_alone(module: str) -> None:
    path = MODULES[module]
    assert outer(path) <= sys.stdlib_module_names
    ast.parse(path.read_bytes(), feature_version=(3, 9))
    assert (ROOT / "vmpin" / "__init__.py").read_bytes() == b""  # the guest imports it, too


def test_the_hook_needs_the_standard_library_and_python_3_9_alone() -> None:
    path = data_files.path("hooks/vmpin-hook")
    assert {name.partition(".")[0] for name in imports(path)} <= sys.stdlib_module_names
    ast.parse(path.read_bytes(), feature_version=(3, 9))


class _Uninlined(ast.NodeTransformer):
    """Makes list, set and dict comprehensions generator expressions with the name INLINED: a scope of their own in
    the symbol table of each Python, as the comprehensions are until 3.11."""

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        node.generators[0].ifs.append(ast.Name("INLINED", ast.Load()))
        element = ast.Tuple([node.key, node.value], ast.Load()) if isinstance(node, ast.DictComp) else node.elt
        return ast.GeneratorExp(element, node.generators)

    visit_ListComp = visit_SetComp = visit_DictComp = comprehension


def shadowed(code: str | bytes) -> list[tuple[str, str]]:
    """Names that a comprehension in a function binds and the function has from an outer one, with the function's."""
    def within(table: symtable.SymbolTable) -> Iterator[tuple[str, str]]:
        for inner in table.get_children():
            yield from within(inner)
            if (isinstance(table, symtable.Function) and isinstance(inner, symtable.Function)
                    and "INLINED" in inner.get_identifiers()):
                yield from ((table.get_name(), name) for name in {*table.get_frees()} & {*inner.get_locals()})

    return [*within(symtable.symtable(ast.unparse(_Uninlined().visit(ast.parse(code))), "", "exec"))]


def test_no_comprehension_takes_a_name_that_its_function_has_from_an_outer_one() -> None:
    """Python 3.12 and 3.13 make the comprehension a part of the function, whose other comprehensions and lambdas then
    find the name without a value (NameError)."""
    code = "def f(a):\n def g(b): return tuple(a for _ in b), {}\n return g"
    for comprehension in "[a for a in b]", "{a for a in b}", "{a: 1 for a in b}":
        assert shadowed(code.format(comprehension)) == [("g", "a")]
    assert shadowed(code.format("tuple(a for a in b)")) == shadowed(code.format("[c for c in b]")) == []
    assert [(module, *place) for module, path in MODULES.items() for place in shadowed(path.read_bytes())] == []


def test_no_value_of_a_statement_has_a_number() -> None:
    """Python 3.12.0 to 3.12.3 takes `?1` for a name (DeprecationWarning), as the values in order have none."""
    statements = [module for module, path in MODULES.items() if "sqlite3" in outer(path)]
    assert "features.isolation.books_database" in statements
    assert [module for module in statements for node in nodes(MODULES[module]) if isinstance(node, ast.Constant)
            and isinstance(node.value, str) and re.search(r"\?[0-9]", node.value)] == []


def test_what_comes_from_outside_stays_in_its_place() -> None:
    """So one module alone imports kubernetes, and what pins needs neither yaml nor rich."""
    assert [(module, package) for module, path in MODULES.items()
            for package in sorted(outer(path) - sys.stdlib_module_names)
            if module not in OUTSIDE.get(package, ())] == []


@pytest.mark.parametrize(("package", "places"), [("asyncio", ASYNC), ("subprocess", PROCESSES)])
def test_tasks_and_processes_stay_in_their_place(package: str, places: set[str]) -> None:
    found = {module for module, path in MODULES.items() if package in outer(path)}
    parts = {module for module in MODULES if feature_of(module) and module.endswith(WATCHER_PART)}
    tasks = parts if package == "asyncio" else set()
    assert [module for module in found if not within(module, {"cli", "features.demo", *places, *tasks})] == []


def test_nothing_but_the_table_names_a_vmm() -> None:
    vmms = {name for name in own(MODULES["vmm.vmms"]) if name != "vmm.vmm_type"}
    assert {"vmm.qemu", "vmm.cloud_hypervisor", "vmm.firecracker", "vmm.dragonball"} <= vmms
    assert {module for module, path in MODULES.items() if own(path) & vmms} - vmms == {"vmm.vmms"}


def test_nothing_branches_on_the_type_of_a_vmm() -> None:
    """What differs between VMMs is a field of VmmType."""
    names = {text for vmm in VMMS for text in (vmm.name, vmm.kata_name) if text}

    def names_a_vmm(operand: ast.expr) -> bool:
        return (chain(operand)[-1:] == ["type"] or chain(operand)[-2:] == ["type", "name"]
                or any(isinstance(node, ast.Constant) and node.value in names for node in ast.walk(operand)))

    assert [(module, node.lineno) for module, path in MODULES.items() if FLOORS[top(module)] >= FLOORS["vmm"]
            for node in nodes(path) if isinstance(node, ast.Compare | ast.Match)
            and any(map(names_a_vmm, [node.left, *node.comparators] if isinstance(node, ast.Compare)
                        else [node.subject]))] == []


def test_one_module_alone_wraps_texts() -> None:
    assert {module for module, path in MODULES.items() if "textwrap" in outer(path)} == set(), "domain.wrapping does"


def test_one_module_alone_sets_masks() -> None:
    setters = {module for module, path in MODULES.items() for node in nodes(path)
               if isinstance(node, ast.Attribute) and node.attr == "sched_setaffinity"}
    assert setters == {"host.affinity"}


def test_nothing_is_changed_through_the_view() -> None:
    """Its owner changes it, in reconcile. What is counted elsewhere is counted in the reconciler's counters: those of
    the view are for status and metrics to read."""
    for module, path in MODULES.items():
        if top(module) in ("reconcile", "cli") or ".verbs" in module:
            continue
        for node in nodes(path):
            if isinstance(node, ast.Attribute | ast.Subscript):
                *through, last = chain(node) or [""]
                shown = not {"view", "_view"}.isdisjoint(through)
                assert not shown or isinstance(node.ctx, ast.Load), f"{module}:{node.lineno}: changed through a view"
                assert not shown or last != "counters" or within(module, ("status", "features.metrics")), (
                    f"{module}:{node.lineno}: counters")


def test_what_uses_a_reconciler_keeps_its_view() -> None:
    """`reconciler.view` is taken once, where an object is made: what it shows is read of the view."""
    assert [(module, node.lineno) for module, path in MODULES.items() for node in nodes(path)
            if isinstance(node, ast.Attribute) and chain(node)[-3:-1] in (
                ["reconciler", "view"], ["_reconciler", "view"])] == []


def _conversions(path: Path) -> Iterator[int]:
    """The lines in which a text or value is made a number by int or float, called or given to map."""
    for node in nodes(path):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = [node.func, *(node.args[:1] if isinstance(node.func, ast.Name) and node.func.id == "map" else ())]
        if any(isinstance(each, ast.Name) and each.id in ("int", "float") for each in called) \
                and not isinstance(node.args[-1], ast.Constant):
            yield node.lineno


def test_a_number_from_outside_is_made_by_bounded_alone() -> None:
    """int() takes a million digits, signs, blanks, `_` and other alphabets' digits; float() takes inf and nan."""
    elsewhere = {part: [(module, line) for module, path in MODULES.items() if within(module, [part])
                        for line in _conversions(path)] for part in NUMBERS_ELSEWHERE}
    assert [part for part, places in elsewhere.items() if not places] == [], "no exemption that nothing needs"
    assert [(module, line) for module, path in MODULES.items() if not within(module, NUMBERS_ELSEWHERE)
            for line in _conversions(path)] == []


def test_annotations_that_ask_for_cpus_are_decoded_only_for_a_feature_that_takes_them() -> None:
    """They come by way of a process without rights on the node."""
    assert {module for module, path in MODULES.items()
            if "features.cluster.kube.watched_annotations" in own(path)} == {
        "features.cluster.kube.pod_record", "features.cluster.reporter.watcher_link",
        "features.cluster.reporter_requests"}
