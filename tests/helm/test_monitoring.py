"""Alert rules and dashboard: generated, of metrics that exist, and accepted by Prometheus."""

import json
import re
import subprocess
from pathlib import Path
from typing import Final

import yaml

from odradek.node.metrics.families import FAMILIES
from tests.support.alert_cases import CASES, rule_test
from tests.support.dashboard import dashboard
from tests.support.helm_chart import CHART, only, program, rendered
from tests.support.monitoring import ALERTS, alert_rules, expression

RULES_FILE: Final = CHART / "files" / "alert-rules.yaml"
DASHBOARD: Final = CHART / "files" / "dashboard.json"
METRIC: Final = re.compile(r"\b(?:odradek|process)_[a-z_]+")


def test_the_files_are_generated() -> None:
    assert RULES_FILE.read_text() == alert_rules(), "make docs"
    assert DASHBOARD.read_text() == dashboard(), "make docs"


def test_metrics_and_their_labels_exist() -> None:
    """Also after an aggregation: a label that it removes would be empty in what follows."""
    own = {"namespace", "job", "instance", "process", "le"}
    expressions = [expression(alert.expression) for alert in ALERTS]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        expressions += [target["expr"] for target in panel.get("targets", ())]
    for text in expressions:
        names = [name.removesuffix("_bucket") for name in METRIC.findall(text)]
        assert names, text
        assert set(names) <= FAMILIES.keys(), text
        labels = own.union(*(FAMILIES[name].labels for name in names))
        wanted = re.findall(r"(\w+)=~?\"", text)
        for group in re.findall(r"by \(([^)]*)\)", text):
            wanted += [label.strip() for label in group.split(",")]
        assert set(wanted) <= labels, text


def test_alerts_say_what_to_do() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert alert.severity in ("critical", "warning", "info")
        assert alert.description.endswith(".")
        assert "{" not in re.sub(r"\{\w+=~?\"[^\"]*\"\}", "", expression(alert.expression))


def test_labels_of_summaries_are_those_of_the_expression() -> None:
    """A label that an aggregation removes would be empty in the summary."""
    for alert in ALERTS:
        kept = re.findall(r"by \(([^)]*)\)", expression(alert.expression))
        if not kept:
            continue
        known = {label.strip() for group in kept for label in group.split(",")}
        wanted = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description))
        assert wanted <= known, alert.name


def test_prometheus_takes_the_rules() -> None:
    promtool = program("promtool", "of Prometheus (Debian: prometheus)")
    ended = subprocess.run(
        [promtool, "check", "rules", str(RULES_FILE)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert f"{len(ALERTS)} rules found" in ended.stdout


def test_each_alert_fires_alone_in_its_time_and_ends(tmp_path: Path) -> None:
    """Also, nothing fires in a cluster that is well: before, and some time after."""
    assert list(CASES) == [alert.name for alert in ALERTS]
    promtool = program("promtool", "of Prometheus (Debian: prometheus)")
    document = {
        "rule_files": [str(RULES_FILE)],
        "evaluation_interval": "1m",
        "tests": [{"name": name, **rule_test(name)} for name in CASES],
    }
    file = tmp_path / "alerts.yaml"
    file.write_text(yaml.safe_dump(document))
    ended = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout


def test_the_chart_has_both() -> None:
    manifests = rendered("monitoring")
    rule = only(manifests, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES_FILE.read_text())
    (config,) = (
        each for each in manifests if each["metadata"]["name"] == "kafka-odradek-dashboard"
    )
    assert json.loads(config["data"]["odradek.json"]) == json.loads(DASHBOARD.read_text())
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_panels_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & own
        cells |= own
