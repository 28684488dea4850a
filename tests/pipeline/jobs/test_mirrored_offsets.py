"""The map of a mirror's offsets."""

import json
import random

import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.mirrored_offsets import (
    is_map_topic,
    map_topic,
    run_record,
    runs_in,
    translate,
)
from odradek.pipeline.jobs.transactional_copy import OffsetRun
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.written_records import WrittenRecord, write_records

HERE = PartitionName("orders", 3)
RUNS = [OffsetRun(10, 0, 3), OffsetRun(20, 4, 1), OffsetRun(21, 6, 10)]


def test_a_map_is_known_by_its_name() -> None:
    assert map_topic("west") == "mirror.west.offsets"
    assert is_map_topic(map_topic("west"))
    assert not is_map_topic("mirror.west")


def test_a_record_of_the_map_is_json() -> None:
    key, value = run_record(HERE, RUNS[0])
    assert json.loads(key) == {"topic": "orders", "partition": 3, "offset": 10}
    assert json.loads(value) == {"target_offset": 0, "records": 3}


@pytest.mark.parametrize(
    ("offset", "place"),
    [(0, 0), (10, 0), (12, 2), (13, 3), (19, 3), (20, 4), (21, 6), (30, 15), (31, 16), (99, 16)],
)
def test_an_offset_between_runs_is_the_end_of_the_one_before(offset: int, place: int) -> None:
    for seed in range(5):
        mixed = random.Random(seed).sample(RUNS, len(RUNS))
        pairs = [(HERE, run) for run in mixed] + [
            (PartitionName("orders", 4), OffsetRun(0, 77, 99))
        ]
        assert translate(iter(pairs), {HERE: [offset]}) == {HERE: {offset: place}}


def test_without_runs_there_is_no_place() -> None:
    assert translate(iter([]), {HERE: [1]}) == {HERE: {}}


def test_the_map_is_read_from_its_topic(kafka_broker: EmbeddedBroker) -> None:
    topic = map_topic("read")
    address = kafka_broker.bootstrap_servers
    with KafkaCluster(address) as cluster:
        assert [*runs_in(cluster, topic)] == []
        kafka_broker.create_topic(topic)
        assert [*runs_in(cluster, topic)] == []
        for run in RUNS:
            key, value = run_record(HERE, run)
            write_records(address, topic, [WrittenRecord(0, value, key)])
        write_records(address, topic, [WrittenRecord(0, None, b"deleted")])
        assert [*runs_in(cluster, topic)] == [(HERE, run) for run in RUNS]
        write_records(address, topic, [WrittenRecord(0, b"{}", b"{}")])
        with pytest.raises(PipelineError, match=r"mirror\.read\.offsets has a record that is no"):
            list(runs_in(cluster, topic))
