"""`odradek trace` on three nodes: what a request passed, for how long requests are traced, and who
may see them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer

from odradek.node.cli import trace
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.traces import TraceRequestsRequest, TraceRequestsResponse
from tests.e2e.cluster import Cluster, running_cluster
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

TOPIC, OTHER = "orders", "payments"
CLIENT: Final = "traced-app"
RECORD_COUNT: Final = 6
WAIT_S: Final = 60.0

Document = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("trace")
    with running_cluster(folder, settings={"log.level": "info"}) as nodes:
        placement = [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
        for name in (TOPIC, OTHER):
            nodes.create_at(name, placement, configs={"min.insync.replicas": "3"})
            nodes.wait_until_whole(name)
        yield nodes


@contextmanager
def tracing(cluster: Cluster, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """The command, which traces on all nodes when this begins."""
    command = [sys.executable, "-m", "odradek", "trace", "-b", cluster[0].bootstrap_servers]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("ODRADEK_")},
    )
    try:
        wait_until(lambda: traced_nodes(cluster) == {0, 1, 2}, what="it traces", timeout_s=WAIT_S)
        yield process
    finally:
        process.kill()
        process.communicate()


def traced_nodes(cluster: Cluster) -> set[int]:
    """The nodes that have a session, by their logs."""
    found = set()
    for node_id in range(3):
        lines = cluster[node_id].log().splitlines()
        told = [line for line in lines if "a trace of requests" in line]
        if told and "begins" in told[-1]:
            found.add(node_id)
    return found


def ended(process: "subprocess.Popen[str]") -> list[Document]:
    """What it printed until it was told to end."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def produce(cluster: Cluster, topic: str = TOPIC, count: int = RECORD_COUNT) -> None:
    properties = {"bootstrap.servers": cluster[0].bootstrap_servers, "client.id": CLIENT}
    producer = Producer({**properties, "acks": "all", "log_level": 0})
    for at in range(count):
        producer.produce(topic, b"value", partition=at % 3)
        producer.flush(WAIT_S)


def stages(document: Document, name: str) -> list[Document]:
    return [stage for stage in document["stages"] if stage["name"] == name]


def test_the_stages_of_a_request_come_from_all_processes_and_add_up(cluster: Cluster) -> None:
    with tracing(cluster, "--client-id", CLIENT, "-o", "json") as process:
        produce(cluster)
        produce(cluster, OTHER, count=1)
        consumer = Consumer(
            {
                "bootstrap.servers": cluster[0].bootstrap_servers,
                "client.id": CLIENT,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC])
        wait_until(lambda: consumer.poll(0.1), what="a record has come", timeout_s=WAIT_S)
        consumer.commit(asynchronous=False)
        consumer.close()
        documents = ended(process)
    assert traced_nodes(cluster) == set()
    assert {each["client_id"] for each in documents} == {CLIENT}
    assert len({each["trace_id"] for each in documents}) == len(documents)
    produced = [each for each in documents if each["api"] == "Produce"]
    assert sorted(each["broker"] for each in produced if TOPIC in each["topics"]) == [
        *(0, 0, 1, 1, 2, 2)
    ]
    for each in produced:
        check_produce(each)
    fetched = [each for each in documents if each["api"] == "Fetch" and TOPIC in each["topics"]]
    assert fetched
    assert any(stages(each, "fetch_wait") for each in fetched)
    [commit] = [each for each in documents if each["api"] == "OffsetCommit"][:1]
    [coordinator] = stages(commit, "coordinator")
    assert coordinator["attributes"]["shard"].startswith("__consumer_offsets-")
    [append] = stages(commit, "append")
    assert append["attributes"]["topic"] == "__consumer_offsets"


def check_produce(document: Document) -> None:
    """Each part lies in what it is a part of, and those of the router add up to the whole."""
    assert document["is_answered"]
    assert document["errors"] == []
    assert document["principal"] == "User:ANONYMOUS"
    [request] = stages(document, "worker_request")
    assert request["attributes"] == {"worker": "worker-0", "request": "Append"}
    at = document["stages"].index(request)
    parts = [stage for stage in document["stages"] if stage["parent_index"] == at]
    names = [stage["name"] for stage in parts]
    assert names == [
        *("bus_request", "worker_queue", "append", "commit"),
        *("follower", "follower", "replication_wait", "bus_reply"),
    ]
    assert {stage["process"] for stage in parts} == {"bus", "worker-0"}
    for part in parts:
        assert part["start_us"] >= request["start_us"] - 1
        end_us = part["start_us"] + part["duration_us"]
        assert end_us <= request["start_us"] + request["duration_us"] + 2
    others = {0, 1, 2} - {document["broker"]}
    [wait] = stages(document, "replication_wait")
    assert wait["attributes"] == {"followers": ",".join(map(str, sorted(others)))}
    assert {int(each["attributes"]["broker"]) for each in stages(document, "follower")} == others
    own = [
        stage
        for name in ("queue", "decode", "answer", "encode", "send")
        for stage in stages(document, name)
    ]
    assert len(own) == 5
    total = request["duration_us"] + sum(stage["duration_us"] for stage in own)
    # Each is rounded down, and the bus may be ahead of its own stage by that.
    assert total <= document["duration_us"] + 1
    [queue], [send] = stages(document, "queue"), stages(document, "send")
    assert queue["start_us"] == 0
    assert abs(send["start_us"] + send["duration_us"] - document["duration_us"]) <= 1


def test_only_what_matches_is_shown_and_its_stages_on_demand(cluster: Cluster) -> None:
    options = ("--topic", OTHER, "--api", "produce", "--client-id", CLIENT)
    with tracing(cluster, *options, "--max-requests", "2", "--detail") as process:
        produce(cluster)
        produce(cluster, OTHER, count=2)
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    lines = [line for line in out.splitlines() if not line.startswith(" ")]
    assert len(lines) == 2
    assert all(f"client {CLIENT}" in line and f"topics {OTHER}" in line for line in lines)
    assert "replication_wait" in out
    assert "Tracing on brokers 0, 1, 2." in err
    assert traced_nodes(cluster) == set()


def test_a_killed_command_leaves_nothing_on(cluster: Cluster) -> None:
    asked = TraceRequestsRequest(session_id=b"k" * 16, lease_ms=300, topics=[TOPIC])
    assert trace.LEASE_MS <= 15_000
    with WireClient(cluster[1].bootstrap_servers) as wire:
        assert wire.ask(asked, 0, TraceRequestsResponse).error_code == ErrorCode.NONE
        assert 1 in traced_nodes(cluster)
    # Whoever asked is gone.
    wait_until(lambda: traced_nodes(cluster) == set(), what="nobody traces", timeout_s=WAIT_S)
    produce(cluster)
    with WireClient(cluster[1].bootstrap_servers) as wire:
        asked.lease_ms = 0
        assert wire.ask(asked, 0, TraceRequestsResponse) == TraceRequestsResponse()
