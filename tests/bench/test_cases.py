"""The load generator itself, built and run against a broker."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition

from bench.cases import RAW_CASES, Bench

if TYPE_CHECKING:
    from odradek.node.embedded import EmbeddedBroker

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = Bench(tmp_path_factory.mktemp("load"), seconds=1).load
    assert built is not None
    return built


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in RAW_CASES}) == len(RAW_CASES)


def test_wrong_arguments_are_refused(load: Path) -> None:
    assert subprocess.run([load, "produce"], capture_output=True, check=False).returncode == 2


@pytest.mark.e2e
def test_what_is_produced_is_consumed(load: Path, kafka_broker: "EmbeddedBroker") -> None:
    topic = f"load-{uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, partitions=2)
    host, port = kafka_broker.bootstrap_servers.split(":")

    def run(*arguments: str) -> dict[str, float]:
        ran = subprocess.run([load, *arguments], capture_output=True, text=True, check=True)
        told: dict[str, float] = json.loads(ran.stdout)
        return told

    written = run("produce", host, port, topic, "2", "100", "8", "5", "-1", "0.3")
    assert written["records"] % 8 == 0
    read = run("consume", host, port, topic, "2", "1048576", str(written["records"]), "0")
    assert read["records"] == written["records"]
    topic = f"load-{uuid4().hex[:8]}"
    kafka_broker.create_topic(topic)
    returned = run("roundtrip", host, port, topic, "100", "50", "-1")
    assert returned["records"] == 50
    assert 0 < returned["p50_ms"] <= returned["p99_ms"]


@pytest.mark.e2e
def test_partitions_can_be_named_where_others_are_led_elsewhere(
    load: Path, kafka_broker: "EmbeddedBroker"
) -> None:
    topic = f"load-{uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, partitions=4)
    host, port = kafka_broker.bootstrap_servers.split(":")
    for named in ("1,3", "3,"):
        command = [str(load), "produce", host, port, topic, named, "100", "8", "5", "-1", "0.1"]
        subprocess.run(command, capture_output=True, check=True)
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap_servers, "group.id": topic})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1]
        for number in range(4)
    ]
    consumer.close()
    assert ends[0] == ends[2] == 0
    assert 0 < ends[1] < ends[3]
