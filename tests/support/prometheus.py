"""A real Prometheus that scrapes nodes every second, with the chart's alert rules.

The alerts do not wait (`for`): a test need not either. The program comes with promtool (Debian:
prometheus); without it the tests are skipped.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.support.helm_chart import program
from tests.support.monitoring import alert_rules
from tests.support.ports import free_port
from tests.support.waiting import wait_until

CLUSTER: Final = {"namespace": "events", "job": "kafka"}
TIMEOUT_S: Final = 10.0


class Prometheus:
    """See the module's docstring."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """The labels and values of an instant vector, at this moment."""
        found = self._get("/api/v1/query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = self._get("/api/v1/alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def scrapes(self) -> float:
        """How often every target has been scraped, at least."""
        counted = self.query("min(count_over_time(up[1h]))")
        return counted[0][1] if counted else 0.0

    def wait_for_scrapes(self, count: int) -> None:
        """Wait until every target has been scraped so often once more."""
        wanted = self.scrapes() + count
        wait_until(lambda: self.scrapes() >= wanted, what=f"{count} scrapes")

    def _get(self, path: str, **parameters: str) -> Any:  # noqa: ANN401 - a JSON document
        with urlopen(f"{self._url}{path}?{urlencode(parameters)}", timeout=TIMEOUT_S) as answer:
            return json.load(answer)["data"]


@contextmanager
def running_prometheus(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Prometheus with these `host:port` as targets, as soon as it answers."""
    command = program("prometheus", "(Debian: prometheus)")
    rules = yaml.safe_load(alert_rules())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["for"] = "0s"
    (folder / "rules.json").write_text(json.dumps(rules))
    targeted = {"targets": list(targets), "labels": {"namespace": CLUSTER["namespace"]}}
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.json")],
        "scrape_configs": [{"job_name": CLUSTER["job"], "static_configs": [targeted]}],
    }
    (folder / "prometheus.json").write_text(json.dumps(configuration))
    port = free_port()
    arguments = [
        f"--config.file={folder / 'prometheus.json'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (
        (folder / "prometheus.log").open("wb") as log,
        subprocess.Popen([command, *arguments], stderr=log) as process,
    ):
        try:
            prometheus = Prometheus(port)
            wait_until(lambda: prometheus.scrapes() >= 1, what="Prometheus scrapes")
            yield prometheus
        finally:
            process.kill()
