"""Every metric that is declared for a process is read by it: asked of a real node."""

import re
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser

from odradek.node.embedded import EmbeddedBroker
from odradek.node.metrics.families import FAMILIES
from odradek.node.metrics.family import MetricKind
from odradek.node.metrics.registry import Metrics
from odradek.node.router.router_metrics import TransactionMetrics
from odradek.node.supervisor import STATE_NAME, NodeState
from tests.support.transaction_harness import TransactionalClient, TransactionHarness

CLUSTERED = {
    "odradek_peer_messages_lost_total",
    "odradek_cluster_secrets",
    "odradek_peers_with_other_secrets",
}
"""A node alone has no peers."""


def test_transactions_are_counted_until_they_are_complete(tmp_path: Path) -> None:
    with TransactionHarness(tmp_path) as harness:
        metrics = Metrics("router-0")
        TransactionMetrics(
            harness.services.transaction_coordinator.shards,
            lambda: time.time_ns() // 1_000_000 + 5_000,
        ).register(metrics)
        client = TransactionalClient(harness, version=1)
        client.init()
        assert metrics.values() == {
            "odradek_transactions": 0,
            "odradek_oldest_transaction_seconds": 0,
        }
        client.add(0)
        values = metrics.values()
        assert values["odradek_transactions"] == 1
        assert 4 < values["odradek_oldest_transaction_seconds"] < 60
        client.produce(0)
        client.end()
        harness.wait_for("CompleteCommit")
        assert set(metrics.values().values()) == {0}


@pytest.mark.e2e
def test_a_node_has_all_metrics_that_are_declared_and_no_others(tmp_path: Path) -> None:
    options = {"http.listen": "127.0.0.1:0", "audit.log.path": str(tmp_path / "audit.log")}
    with EmbeddedBroker(tmp_path / "data", settings=options) as broker:
        state = msgspec.json.decode((broker.data / STATE_NAME).read_bytes(), type=NodeState)
        request = urllib.request.Request(
            f"http://{state.http}/metrics", headers={"Accept": "application/openmetrics-text"}
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            assert response.headers["Content-Type"].startswith("application/openmetrics-text;")
            text = response.read().decode()
    parse: Callable[[str], Iterable[Metric]] = parser.text_string_to_metric_families
    families = {family.name: family for family in parse(text)}
    for family in FAMILIES.values():
        found = families.pop(family.base_name, None)
        if found is None:
            assert family.labels or family.name in CLUSTERED, f"nobody reads {family.name}"
            continue
        assert found.type == family.kind
        processes = {re.sub("-.*", "", sample.labels["process"]) for sample in found.samples}
        if "process" in family.labels or family.process == "every":
            assert processes == {"supervisor", "controller", "router", "worker"} - (
                {"supervisor"} if "process" in family.labels else set()
            )
        else:
            assert processes == {family.process}
        if family.kind is not MetricKind.HISTOGRAM:
            labels = {name for sample in found.samples for name in sample.labels}
            assert labels <= {"process", *family.labels}
    assert not families
