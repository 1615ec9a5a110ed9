"""deploy/prometheus/alerts.yaml: rules in PromQL about metrics and labels that workers have."""

from __future__ import annotations

import re
from pathlib import Path
from string import ascii_uppercase

import pytest
from rigs.event_schema import metric_names

from chunkflow_py.monitor.worker_metrics import Metrics

promql_parser = pytest.importorskip("promql_parser")
FILE = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"
# What Prometheus itself adds: the metric `up`, and labels of every target.
OF_PROMETHEUS = {"up"}
OF_TARGETS = {"job", "instance"}
DURATION = r"([0-9]+(ms|[smhdwy]))+"


def rules():
    """Return all rules, by name."""
    import yaml

    groups = yaml.safe_load(FILE.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


RULES = rules()


@pytest.fixture(scope="module")
def samples():
    """Return what a worker exports from its start: name -> sets of labels."""
    pytest.importorskip("prometheus_client")
    metrics = Metrics("s3://bucket/run", "me")
    metrics.stage_started("infer", 100)
    metrics._seconds.labels("infer", "inference").observe(1)
    metrics._memory.labels(0).set(1)
    metrics._begun.labels(0).set(1)
    metrics._busy.labels("0").set(1)
    metrics._gpu_memory.labels("0").set(1)
    found = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def selectors(node):
    """Yield the selectors of an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from selectors(node.lhs)
        yield from selectors(node.rhs)
    elif isinstance(node, promql_parser.Call):
        for each in node.args:
            yield from selectors(each)
    elif hasattr(node, "expr"):
        yield from selectors(node.expr)


def known(selector, samples):
    """Return the sets of labels of a worker that a selector matches."""
    assert selector.name in samples, f"no worker exports {selector.name}"
    kinds = {"MatchOp.Equal": False, "MatchOp.NotEqual": True, "MatchOp.Re": False}
    matching = samples[selector.name]
    for each in selector.matchers.matchers:
        is_negative = kinds[str(each.op)]
        pattern = each.value if "Re" in str(each.op) else re.escape(each.value)
        for labels in matching:
            assert each.name in labels, f"{selector.name} has no label {each.name}"
        matching = [
            labels
            for labels in matching
            if bool(re.fullmatch(pattern, labels[each.name])) != is_negative
        ]
    return matching


@pytest.mark.parametrize("name", RULES)
def test_each_rule_is_about_metrics_that_exist(name, samples):
    """Every selector matches series that a worker exports from its start, by name and labels."""
    found = list(selectors(promql_parser.parse(RULES[name]["expr"])))
    assert found
    for selector in found:
        if selector.name not in OF_PROMETHEUS:
            assert known(selector, samples), f"no series of {selector.name} matches"


@pytest.mark.parametrize("name", RULES)
def test_labels_of_texts_survive_the_expression(name, samples):
    """A text names only labels by which the expression groups, or that all of its series have."""
    rule = RULES[name]
    expression = rule["expr"]
    grouped = re.findall(r"\bby \(([^)]*)\)", expression)
    if grouped:
        kept = set.intersection(*(set(re.findall(r"\w+", each)) for each in grouped))
    else:
        kept = set(OF_TARGETS)
    texts = " ".join(rule["annotations"].values())
    used = set(re.findall(r"\$labels\.(\w+)", texts))
    assert used <= kept
    exported = {label for sets in samples.values() for labels in sets for label in labels}
    assert kept <= exported | OF_TARGETS


@pytest.mark.parametrize("name", RULES)
def test_rules_have_the_fields_of_prometheus(name):
    """Known fields, durations that Prometheus reads, a severity, and texts for people."""
    rule = RULES[name]
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(DURATION, rule.get("for", "5m"))
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"].keys() == {"summary", "description"}
    assert rule["annotations"]["summary"][0] in ascii_uppercase + "{"
    assert name.startswith("Chunkflow")


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("rate(chunkflow_tasks[5m]) > 0", "no worker exports chunkflow_tasks"),
        ('chunkflow_tasks_total{cause="hang"} > 0', "has no label cause"),
    ],
)
def test_wrong_rules_are_noticed(expression, problem, samples):
    """A metric or a label that no worker has is an error of these tests, not a silent alert."""
    (selector,) = selectors(promql_parser.parse(expression))
    with pytest.raises(AssertionError, match=problem):
        known(selector, samples)


def test_a_value_that_no_worker_exports_is_noticed(samples):
    """A typing error in the value of a label would never fire."""
    (selector,) = selectors(promql_parser.parse('chunkflow_tasks_total{outcome="givenup"} > 0'))
    assert known(selector, samples) == []


def test_the_page_lists_the_metrics_of_the_rules():
    """docs/progress.md explains every metric that a rule uses."""
    documented = set(metric_names())
    for rule in RULES.values():
        names = set(re.findall(r"\bchunkflow_\w+", rule["expr"]))
        assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in names} <= documented
