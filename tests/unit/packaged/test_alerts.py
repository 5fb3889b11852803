"""The alert rules, the dashboard and docs/metrics.md: they know the metrics that are exported, and no others."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from metered import metered
from need import need_tool
from prometheus_client.parser import text_string_to_metric_families

from vmpin.cli.verbs import verbs_parser
from vmpin.install import data_files

ROOT = Path(__file__).parents[3]
#: What PromQL has between metrics; a function or aggregation is followed by a parenthesis.
WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
#: Every target's, by Prometheus.
TARGET = {"job", "instance"}


class Selector(NamedTuple):
    metric: str
    #: (label, operator, value)
    matchers: tuple[tuple[str, str, str], ...]


class Expression(NamedTuple):
    selectors: tuple[Selector, ...]
    #: Of `by (…)`, `on (…)` and the like.
    labels: frozenset[str]


def selected(text: str) -> Expression:
    """The metrics and the labels of an expression. Whether it is one, promtool decides."""
    grouping = r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)"
    labels = {label for inner in re.findall(grouping, text) for label in re.findall(r"\w+", inner)}
    rest = re.sub(r"\[[^]]*\]", "", re.sub(grouping, " ", text))
    metrics = re.findall(r"(?<![\w.])([a-zA-Z_:][\w:]*)(?![\w:]|\s*\()(\{[^}]*\})?", rest)
    return Expression(tuple(Selector(name, tuple(re.findall(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"', inner)))
                            for name, inner in metrics if name not in WORDS), frozenset(labels))


class Exported(NamedTuple):
    #: By sample name: values by label, of a node on which every metric has samples.
    samples: dict[str, dict[str, set[str]]]
    #: By family, as `# TYPE` names it: its type, and its labels.
    families: dict[str, tuple[str, set[str]]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    with metered(tmp_path_factory.mktemp("node"), metrics_per_sandbox="true") as node:
        node.fill()
        text = node.scrape()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    samples: dict[str, dict[str, set[str]]] = {}
    families: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        name = family.name if family.name in types else f"{family.name}_total"
        labels: set[str] = set()
        assert family.samples, f"{name} has no sample: Node.fill is to give it one"
        for sample in family.samples:
            values = samples.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                values.setdefault(label, set()).add(value)
                labels.add(label)
        families[name] = types[name], labels - {"le"}
    assert set(families) == set(types)
    samples["vmpin_sandbox_verdict"]["verdict"] = samples["vmpin_sandboxes"]["verdict"]
    # Prometheus' own, of the rules.
    samples["ALERTS"] = {"alertname": {"Vmpin.+"}, "alertstate": {"firing"}, "severity": set()}
    return Exported(samples, families)


def alerts() -> list[dict[str, Any]]:
    document = yaml.safe_load(data_files.path("config/alerts.yaml").read_text())
    assert set(document) == {"groups"}
    names = [group["name"] for group in document["groups"]]
    assert len(set(names)) == len(names)
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data_files.path("config/grafana.json").read_text())
    return found


def targets() -> Iterator[tuple[str, str]]:
    """(expression, legend) of every panel."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]


EXPRESSIONS = [rule["expr"] for rule in alerts()] + [expr for expr, _ in targets()]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_every_expression_is_about_metrics_labels_and_values_that_there_are(text: str, exported: Exported) -> None:
    found = selected(text)
    assert found.selectors
    known = set(TARGET)
    for selector in found.selectors:
        assert selector.metric in exported.samples
        labels = exported.samples[selector.metric]
        known |= set(labels)
        for label, operator, value in selector.matchers:
            if label in TARGET:
                assert (operator, value) == ("=~", "$instance")
                continue
            wanted = value.split("|") if operator == "=~" else [value]
            assert operator in ("=", "=~")
            assert set(wanted) <= labels[label]
    assert found.labels <= known


def test_metrics_and_labels_of_an_expression_are_read() -> None:
    assert selected('sum by (a) (rate(vmpin_x_total{b="c|d"}[5m])) / vmpin_y > 0.5 unless z') == Expression(
        (Selector("vmpin_x_total", (("b", "=", "c|d"),)), Selector("vmpin_y", ()), Selector("z", ())),
        frozenset({"a"}))


def test_counters_are_only_used_as_rates_and_histograms_as_quantiles(exported: Exported) -> None:
    for text in EXPRESSIONS:
        for name in re.findall(r"\w+_(?:total|bucket)\b", text):
            assert re.search(rf"(?:rate|increase)\({name}(?:\{{[^}}]*\}})?\[", text), text
        for name in re.findall(r"histogram_quantile\(.*?(\w+_bucket)", text):
            assert exported.families[name.removesuffix("_bucket")][0] == "histogram"
            assert "le" in selected(text).labels


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_alerts_say_what_is_wrong_and_where(rule: dict[str, Any], exported: Exported) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["alert"].startswith("Vmpin")
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert re.fullmatch(r"\d+m", rule.get("for", "1m"))
    assert set(rule["annotations"]) == {"node", "command", "runbook_url", "summary", "description"}
    assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
    assert "vmpin_node_info{instance=%q}" in rule["annotations"]["node"]
    assert "node" in exported.samples["vmpin_node_info"]
    kept: set[str] = set()
    for each in re.split(r"\bor\b", rule["expr"]):
        left = selected(re.sub(r"\bunless\b.*", "", each, flags=re.DOTALL).strip().removeprefix("("))
        kept |= left.labels if re.search(r"\b(by|on)\b", each.partition("unless")[0]) else {
            label for selector in left.selectors for label in exported.samples[selector.metric]}
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= kept | TARGET
        assert set(re.findall(r"\| (\w+)", text)) <= {"humanize", "humanizePercentage", "humanizeDuration", "query",
                                                      "first", "label", "reReplaceAll"}


def test_alerts_about_sandboxes_name_the_pod_where_metrics_do(exported: Exported) -> None:
    found = {rule["alert"] for rule in alerts() if re.search("vmpin_(sandbox|pod)_", rule["expr"])}
    assert found == {rule["alert"] for rule in alerts() if "$labels.pod" in rule["annotations"]["summary"]}
    # Whatever is counted by sandbox, too, has an alert by pod where it has one at all.
    for rule in alerts():
        counted = {f"vmpin_sandbox_{selector.metric.removeprefix('vmpin_')}"
                   for selector in selected(rule["expr"]).selectors}
        assert rule["alert"] in found or not counted & set(exported.samples)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_the_first_command_of_an_alert_is_one(rule: dict[str, Any]) -> None:
    text = rule["annotations"]["command"]
    pod = re.fullmatch(r"\{\{ if \$labels\.pod }}(vmpin [\w -]+ )\{\{ printf .*?}}([ \w-]*)"
                       r"\{\{- else }}(.*)\{\{ end }}", text)
    for command in [text] if pod is None else [pod[1] + "shop/web" + pod[2], pod[3]]:
        program, *arguments = command.split()
        assert program == "vmpin"
        assert callable(verbs_parser(arguments).parse_args(arguments).run)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_the_page_of_an_alert_has_its_section(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    assert anchor in [re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings]


def test_each_alert_stands_in_the_documentation_with_what_to_do() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    page = (ROOT / "docs/alerts.md").read_text()
    assert re.findall(r"^## (Vmpin\w+)$", page, re.MULTILINE) == names
    for section in page.split("\n## ")[1:]:
        assert re.search(r"^(Critical|Warning), .+\n\nFirst: `vmpin", section, re.MULTILINE | re.DOTALL), section


def test_each_alert_has_a_test_in_which_it_fires() -> None:
    text = (ROOT / "tests/data/alerts.test.yaml").read_text()
    assert set(re.findall(r'alertname="(\w+)"', text)) == {rule["alert"] for rule in alerts()}


def promtool(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([need_tool("promtool"), *args], capture_output=True, text=True, timeout=120)


def test_alerts_fire_when_they_should() -> None:
    ran = promtool("test", "rules", ROOT / "tests/data/alerts.test.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_prometheus_takes_every_expression_of_the_rules_and_of_the_dashboard(tmp_path: Path) -> None:
    """Those of the dashboard as recording rules, with its variables as Grafana would fill them in."""
    def checked(texts: list[str]) -> subprocess.CompletedProcess[str]:
        rules = [{"record": f"x:{number}", "expr": text.replace("$__rate_interval", "5m").replace("$instance", ".+")}
                 for number, text in enumerate(texts)]
        (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}))
        return promtool("check", "rules", tmp_path / "rules.yaml")

    ran = checked(EXPRESSIONS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(EXPRESSIONS)} rules found" in ran.stdout
    assert checked(["rate(vmpin_pins_total)"]).returncode != 0


def test_the_dashboard_can_be_drawn() -> None:
    found = dashboard()
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        squares = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not squares & taken
        taken |= squares
        assert panel["title"]
        assert panel["type"] == "row" or panel["targets"]
    variables = {variable["name"] for variable in found["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(found))) <= variables | {"__rate_interval", "__all"}


def test_every_metric_of_the_allocator_is_on_the_dashboard_or_in_an_alert() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    part = page[page.index("With `allocate.mode`"):page.index("Since the watcher started, from samples")]
    names = set(re.findall(r"^\| `(vmpin_\w+)` \|", part, re.MULTILINE))
    assert len(names) >= 8
    assert names <= {selector.metric for text in EXPRESSIONS for selector in selected(text).selectors}


def test_legends_name_labels_that_are_left(exported: Exported) -> None:
    for text, legend in targets():
        expression = selected(text)
        left = set(expression.labels) if re.search(r"\bby\b", text) else set() if re.match(r"sum|count", text) else (
            TARGET | {label for selector in expression.selectors for label in exported.samples[selector.metric]})
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= left, text


def test_the_dashboard_chooses_nodes_by_a_metric_that_there_is(exported: Exported) -> None:
    queries = [variable["definition"] for variable in dashboard()["templating"]["list"] if "definition" in variable]
    for query in queries:
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
        assert found
        assert found[1] in exported.samples
        assert found[2] in TARGET
    assert queries


def test_every_metric_is_documented_with_its_type_and_labels(exported: Exported) -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*)\| *\S", text, re.MULTILINE)
    assert len(rows) == len({name for name, *_ in rows})
    documented = {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in rows}
    assert documented == exported.families
    for word in re.findall(r"`((?:vmpin|process)_\w+)`", text):
        assert word in exported.families


def test_the_documentation_has_every_value_of_a_label_of_few(exported: Exported) -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    for name, label in (("vmpin_sandboxes", "verdict"), ("vmpin_threads", "place"), ("vmpin_threads", "role"),
                        ("vmpin_cpus", "set"), ("vmpin_guest_containers", "state"), ("vmpin_pins_total", "outcome")):
        for value in exported.samples[name][label]:
            assert re.search(rf"\b{value}\b", text)
