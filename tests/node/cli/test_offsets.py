"""Offsets of many partitions in one question, against a cluster."""

from concurrent.futures import Future
from typing import cast

import click
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from odradek.node.cli import offsets
from odradek.node.cli.connection import ClusterConnection
from tests.node.cli.conftest import Run

pytestmark = pytest.mark.e2e


@pytest.mark.usefixtures("keeps_old_records")
def test_ends_are_exclusive_and_a_time_without_records_is_minus_one(
    kafka: Run, topic: str, bootstrap: str
) -> None:
    kafka("produce", topic, "a", "b", "-p", "2", "--timestamp", "5000")
    admin = ClusterConnection(bootstrap=bootstrap, timeout_s=10.0).admin()
    partition_ids = offsets.partitions_of(admin.list_topics(timeout=10), [topic])
    assert partition_ids == [(topic, 0), (topic, 1), (topic, 2)]
    assert list(offsets.earliest_offsets(admin, partition_ids).values()) == [0, 0, 0]
    assert list(offsets.latest_offsets(admin, partition_ids).values()) == [0, 0, 2]
    assert list(offsets.offsets_at(admin, partition_ids, 4000).values()) == [-1, -1, 0]
    assert list(offsets.offsets_at(admin, partition_ids, 6000).values()) == [-1, -1, -1]


def test_no_partitions_ask_nothing(bootstrap: str) -> None:
    admin = ClusterConnection(bootstrap=bootstrap, timeout_s=10.0).admin()
    assert offsets.latest_offsets(admin, []) == {}


def test_an_unknown_topic_is_named(bootstrap: str) -> None:
    admin = ClusterConnection(bootstrap=bootstrap, timeout_s=10.0).admin()
    with pytest.raises(click.ClickException, match="topic 'no-such-topic'"):
        offsets.partitions_of(admin.list_topics(timeout=10), ["no-such-topic"])


class HalfLed:
    """Answers as librdkafka does when only partition 0 has a leader."""

    def list_offsets(
        self, wanted: dict[TopicPartition, OffsetSpec], **_: object
    ) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        has_led = any(partition_id.partition == 0 for partition_id in wanted)
        code = KafkaError.LEADER_NOT_AVAILABLE if has_led else KafkaError._NOENT
        answers = {}
        for partition_id in wanted:
            answers[partition_id] = Future[ListOffsetsResultInfo]()
            if partition_id.partition == 0:
                answers[partition_id].set_result(ListOffsetsResultInfo(7, -1, -1))
            else:
                answers[partition_id].set_exception(KafkaException(KafkaError(code)))
        return answers


def test_partitions_without_a_leader_do_not_keep_others_from_being_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offsets, "MOVING_S", 0.1)
    admin = cast("AdminClient", HalfLed())
    assert offsets.known_ends(admin, [("t", 0), ("t", 1)]) == {("t", 0): 7, ("t", 1): None}
    assert offsets.known_starts(admin, [("t", 1)]) == {("t", 1): None}
