"""/metrics of three nodes against what clients, disks and other commands say, and what a real
Prometheus makes of it: every graph of the dashboard has data, and alerts fire when their cause is
there and not before.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from odradek.node.metrics.families import FAMILIES
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import ElectLeadersRequest
from odradek.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from odradek.protocol.messages.partitions import TopicPartitions
from tests.e2e.cluster import Cluster, cluster
from tests.support.dashboard import dashboard
from tests.support.helm_chart import program
from tests.support.ports import free_port
from tests.support.prometheus import running_prometheus
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

TOPIC: Final = "orders"
RECORDS: Final = 300
REQUESTS: Final = 40
LONGEST_S: Final = 30.0


class Sample(NamedTuple):
    """One series of one node."""

    node_id: int
    labels: Mapping[str, str]
    value: float


class MeasuredCluster:
    """Three nodes with their /metrics."""

    def __init__(self, nodes: Cluster) -> None:
        self.nodes = nodes
        self.targets = {node_id: f"127.0.0.1:{free_port()}" for node_id in nodes.nodes}
        for node_id, node in nodes.nodes.items():
            node.settings["http.listen"] = self.targets[node_id]

    def page(self, node_id: int, accept: str = "") -> str:
        """What a node answers."""
        request = Request(f"http://{self.targets[node_id]}/metrics", headers={"Accept": accept})
        with urlopen(request, timeout=LONGEST_S) as answer:
            return str(answer.read().decode())

    def samples(self, name: str, **labels: str) -> list[Sample]:
        """The series with this name (as it is in the page) and these labels, of all nodes."""
        found = []
        for node_id in self.targets:
            for family in text_string_to_metric_families(self.page(node_id)):
                found += [
                    Sample(node_id, sample.labels, sample.value)
                    for sample in family.samples
                    if sample.name == name and labels.items() <= sample.labels.items()
                ]
        return found

    def total(self, name: str, **labels: str) -> float:
        """Over all series and nodes."""
        return sum(sample.value for sample in self.samples(name, **labels))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredCluster]:
    with cluster(tmp_path_factory.mktemp("metrics")) as nodes:
        measured = MeasuredCluster(nodes)
        nodes.start()
        nodes.create_at(TOPIC, [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
        produce(nodes, RECORDS)
        consume(nodes, RECORDS)
        yield measured


def produce(
    nodes: Cluster, count: int, topic: str = TOPIC, partitions: int = 3, *, together: int = 100
) -> None:
    """So many records, not more than some of them `together` in the requests."""
    producer = Producer({"bootstrap.servers": nodes.bootstrap_servers, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, b"x" * 100, partition=number % partitions)
        if not (number + 1) % together:
            assert not producer.flush(LONGEST_S)
    assert not producer.flush(LONGEST_S)


def consume(nodes: Cluster, count: int) -> None:
    """Each record once, and what is committed for a group is the half of a partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": nodes.bootstrap_servers,
            "group.id": "billing",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(3)])
    seen = 0
    while seen < count:
        seen += len(consumer.consume(count - seen, timeout=LONGEST_S))
    consumer.commit(
        offsets=[TopicPartition(TOPIC, index, count // 6) for index in range(3)],
        asynchronous=False,
    )
    consumer.close()


def test_topics_are_counted_once_in_the_cluster(measured: MeasuredCluster) -> None:
    nodes, total = measured.nodes, measured.total
    assert total("odradek_topic_received_records_total", topic=TOPIC) == RECORDS
    assert total("odradek_topic_sent_records_total", topic=TOPIC) == RECORDS
    wait_until(
        lambda: (
            {each.value for each in measured.samples("odradek_log_end_offset", topic=TOPIC)}
            == {RECORDS // 3}
        ),
        what="the followers have everything",
    )
    ends = measured.samples("odradek_log_end_offset", topic=TOPIC)
    assert len(ends) == 9, "three replicas of three partitions"
    sizes = {
        (each.node_id, each.labels["partition"]): each.value
        for each in measured.samples("odradek_log_size_bytes", topic=TOPIC)
    }
    leaders = [sizes[nodes.leader_of(TOPIC, index), str(index)] for index in range(3)]
    received = total("odradek_topic_received_bytes_total", topic=TOPIC)
    assert received == sum(leaders) == sum(sizes.values()) / 3
    assert total("odradek_topic_sent_bytes_total", topic=TOPIC) == received

    # The next leader counts what it gets; what the first one has counted stays there.
    nodes.reassign(TOPIC, {0: [1, 0, 2]})
    elected = ElectLeadersRequest(
        topic_partitions=[TopicPartitions(name=TOPIC, partitions=[0])],
        timeout_ms=10_000,
    )
    wait_until(lambda: nodes[0].ask(elected) and nodes.leader_of(TOPIC) == 1, what="node 1 leads")
    produce(nodes, 30)
    assert total("odradek_topic_received_records_total", topic=TOPIC) == RECORDS + 30


def test_requests_errors_and_their_times_are_counted(measured: MeasuredCluster) -> None:
    def counts() -> tuple[float, float, float, float]:
        total = measured.total
        return (
            total("odradek_requests_total", api="DESCRIBE_CLUSTER", version="1"),
            total("odradek_request_errors_total", api="CREATE_TOPICS"),
            total("odradek_request_duration_seconds_count", api="DESCRIBE_CLUSTER"),
            total("odradek_requests_total", api="CREATE_TOPICS"),
        )

    before = counts()
    with WireClient(measured.nodes[1].bootstrap_servers) as client:
        for _ in range(REQUESTS):
            client.ask(DescribeClusterRequest(), 1, DescribeClusterResponse)
    for _ in range(3):
        assert measured.nodes.create(0, TOPIC) == ErrorCode.TOPIC_ALREADY_EXISTS
    after = counts()
    assert after[0] - before[0] == REQUESTS
    assert after[1] - before[1] == 3
    assert after[3] - before[3] == 3
    exists = measured.samples("odradek_request_errors_total", api="CREATE_TOPICS")
    assert {each.labels["error"] for each in exists} == {"TOPIC_ALREADY_EXISTS"}
    # Each request of these APIs is measured, and the whole time is that of its stages.
    assert after[2] - before[2] == REQUESTS
    sums = measured.samples("odradek_request_stage_duration_seconds_sum", api="DESCRIBE_CLUSTER")
    assert {each.labels["stage"] for each in sums} == {"queue", "handler", "send"}
    whole = measured.total("odradek_request_duration_seconds_sum", api="DESCRIBE_CLUSTER")
    assert sum(each.value for each in sums) == pytest.approx(whole, rel=0.05)


def test_disk_sizes_are_those_of_the_disk(measured: MeasuredCluster) -> None:
    def are_equal() -> bool:
        for node_id, node in measured.nodes.nodes.items():
            counted = sum(
                each.value
                for each in measured.samples("odradek_store_size_bytes")
                if each.node_id == node_id
            )
            stores = node.data / "stores"
            if counted != sum(512 * path.stat().st_blocks for path in stores.glob("*/*")):
                return False
        return True

    wait_until(are_equal, what="the stores are as large as their files")
    disk = os.statvfs(measured.nodes[0].data)
    [size] = {each.value for each in measured.samples("odradek_disk_size_bytes")}
    assert size == disk.f_blocks * disk.f_frsize


def test_groups_have_one_series_in_the_cluster_that_goes_with_them(
    measured: MeasuredCluster,
) -> None:
    ends = sum(
        each.value
        for each in measured.samples("odradek_log_end_offset", topic=TOPIC)
        if each.node_id == 0
    )
    lag = ends - 3 * (RECORDS // 6)
    wait_until(
        lambda: [each.value for each in measured.samples("odradek_group_lag_records")] == [lag],
        what="one node reports the lag",
    )
    admin = AdminClient({"bootstrap.servers": measured.nodes.bootstrap_servers})
    admin.delete_consumer_groups(["billing"])["billing"].result(LONGEST_S)
    wait_until(
        lambda: not measured.samples("odradek_group_lag_records"), what="its series are gone"
    )


def test_series_of_a_deleted_topic_go(measured: MeasuredCluster) -> None:
    nodes = measured.nodes
    nodes.create_at("short-lived", [[2, 1]])
    produce(nodes, 10, "short-lived", 1)
    assert measured.total("odradek_topic_received_records_total", topic="short-lived") == 10
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap_servers})
    admin.delete_topics(["short-lived"])["short-lived"].result(LONGEST_S)
    wait_until(
        lambda: not any('"short-lived"' in measured.page(node_id) for node_id in nodes.nodes),
        what="no series names the topic",
    )


def test_both_formats_are_valid(measured: MeasuredCluster) -> None:
    promtool = program("promtool", "of Prometheus (Debian: prometheus)")
    for node_id in measured.targets:
        families = list(
            openmetrics.text_string_to_metric_families(  # type: ignore[no-untyped-call]  # no stubs
                measured.page(node_id, "application/openmetrics-text; version=1.0.0")
            )
        )
        assert {family.name for family in families} >= {"odradek_requests", "odradek_build"}
        text = measured.page(node_id)
        # It says nothing if there is nothing to complain of.
        ended = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
        assert set(re.findall(r"# TYPE (\S+)", text)) <= FAMILIES.keys()


def test_prometheus_shows_graphs_and_fires_alerts(
    measured: MeasuredCluster, tmp_path: Path
) -> None:
    """Last in this file: it kills nodes."""
    nodes = measured.nodes
    leader = nodes.leader()
    first, second = nodes.others(leader)
    nodes.create_at("single", [[first]])
    nodes.create_at("strict", [[leader, first, second]], {"min.insync.replicas": "3"})
    with running_prometheus(tmp_path, list(measured.targets.values())) as prometheus:

        def firing() -> set[str]:
            # A router that has to wait for the processor is no fault of the cluster.
            return prometheus.firing() - {"OdradekNodeOverloaded"}

        def wait_for(*alerts: str) -> None:
            try:
                wait_until(lambda: firing() == set(alerts), what=f"{alerts} fire")
            except AssertionError as error:
                error.add_note(f"these do: {firing()}")
                raise

        produce(nodes, 20 * 3, together=3)  # one request in 16 of a connection is measured
        consume(nodes, RECORDS)
        prometheus.wait_for_scrapes(3)
        wait_for()
        check_dashboard(prometheus.query)

        nodes[first].kill()
        wait_for(
            "OdradekNodeDown",
            "OdradekNodeFenced",
            "OdradekUnderReplicatedPartitions",
            "OdradekUnderMinIsrPartitions",
            "OdradekOfflinePartitions",
        )
        nodes[leader].kill()
        # What only the active controller or a partition's leader knows, nobody tells any more.
        wait_for("OdradekNodeDown", "OdradekNoController", "OdradekUnderReplicatedPartitions")
        nodes.start(first, leader)
        wait_for()


def check_dashboard(query: Callable[[str], Sequence[object]]) -> None:
    """Every panel has series, except those that say why they may have none."""
    empty = set()
    for panel in json.loads(dashboard())["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "5s")
            text = text.replace("$namespace", ".*").replace("$job", "kafka")
            if not query(text):
                empty.add(panel["title"])
                assert panel.get("description", "").startswith("Empty"), panel["title"]
    assert empty == {
        "Authentications",
        "Time throttled by quotas",
        "Time until certificates expire",
    }
