"""Offsets in the checkpoint: their JSON, and what they are carried on with."""

import json

import pytest

from odradek.pipeline.errors import PipelineError, TopicRecreated
from odradek.pipeline.kafka_types import PartitionName, PartitionRange
from odradek.pipeline.source.offsets import (
    SourceOffsets,
    check_continuation,
    first_offsets,
    known_offsets,
    offsets_from_json,
    ranges_between,
    up_to,
)
from odradek.pipeline.source.subscription import TopicSubscription

ORDERS = TopicSubscription(topics=("orders",))


def offsets_of(topic_id: str = "id-1", topic: str = "orders", **offsets: int) -> SourceOffsets:
    """`p0=5` is offset 5 of partition 0."""
    named = {PartitionName(topic, int(name[1:])): each for name, each in offsets.items()}
    return SourceOffsets(named, {topic: topic_id})


def refusal_of(start: SourceOffsets, latest: SourceOffsets) -> str:
    with pytest.raises(PipelineError) as refused:
        check_continuation(start, latest, ORDERS)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_json_is_the_same_for_the_same_offsets() -> None:
    """Spark compares the texts: partition 10 stands after 9, however the offsets were found."""
    names = [PartitionName(topic, index) for topic in ("b", "a") for index in (10, 9, 0)]
    offsets = SourceOffsets(dict.fromkeys(names, 7), {"b": "id-b", "a": "id-a"})
    text = json.dumps(offsets.as_json())
    assert text == (
        '{"a": {"id": "id-a", "partitions": {"0": 7, "9": 7, "10": 7}},'
        ' "b": {"id": "id-b", "partitions": {"0": 7, "9": 7, "10": 7}}}'
    )
    assert offsets_from_json(json.loads(text)) == offsets
    assert json.dumps(offsets_from_json(json.loads(text)).as_json()) == text


def test_a_checkpoint_of_the_stock_connector_is_carried_on() -> None:
    stock = offsets_from_json({"orders": {"0": 5, "1": 7}})
    assert stock == offsets_of("", p0=5, p1=7)
    check_continuation(stock, offsets_of(p0=6, p1=7), ORDERS)
    assert first_offsets(stock, offsets_of(p0=6, p1=7)) == stock.offsets


def test_a_checkpoint_of_another_source_is_refused() -> None:
    with pytest.raises(PipelineError, match="a checkpoint location of its own"):
        offsets_from_json({"logOffset": 3, "path": {"x": "y"}})


def test_a_recreated_topic_is_told_apart_even_if_it_is_longer() -> None:
    start, latest = offsets_of("id-1", p0=5), offsets_of("id-2", p0=500)
    with pytest.raises(TopicRecreated, match="has id id-1, the cluster id-2"):
        check_continuation(start, latest, ORDERS)
    assert first_offsets(start, latest) == {PartitionName("orders", 0): 0}
    assert known_offsets(start, latest) == {}


def test_a_checkpoint_of_another_topic_is_told_apart() -> None:
    text = refusal_of(offsets_of(topic="payments", p0=5), offsets_of(p0=5))
    assert text.startswith("the checkpoint is of topic payments, which this query with")
    assert "subscribe=orders" in text


def test_a_partition_that_is_gone_and_a_log_that_became_shorter_are_lost_records() -> None:
    assert "orders-1 of the checkpoint is no longer there" in refusal_of(
        offsets_of(p0=5, p1=5), offsets_of(p0=5)
    )
    assert "ends at offset 4, but the checkpoint is at 5" in refusal_of(
        offsets_of(p0=5), offsets_of(p0=4)
    )


def test_offsets_that_went_back_or_are_missing_are_not_later() -> None:
    start = offsets_of(p0=5, p1=5)
    assert start.is_before(start)
    assert start.is_before(offsets_of(p0=5, p1=9, p2=0))
    assert not start.is_before(offsets_of(p0=9))
    assert not start.is_before(offsets_of(p0=9, p1=4))
    # Another topic has other offsets.
    assert start.is_before(offsets_of("id-2", p0=1))


def test_new_partitions_are_read_from_their_start() -> None:
    start, end = offsets_of(p0=5), offsets_of(p0=8, p1=3)
    check_continuation(start, end, ORDERS)
    assert list(ranges_between(start, end)) == [
        PartitionRange("orders", "id-1", 0, 5, 8),
        PartitionRange("orders", "id-1", 1, 0, 3),
    ]
    assert list(ranges_between(end, end)) == []


def test_up_to_the_target_and_not_behind_what_was_read() -> None:
    target = offsets_of(p0=10, p1=10)
    latest = offsets_of(p0=15, p1=9, p2=20, p3=30)
    start = offsets_of(p0=2, p1=4, p2=6)
    assert up_to(target, start, latest) == offsets_of(p0=10, p1=9, p2=6)
    # A query that starts at the latest offsets may do so after its target was noted.
    assert up_to(target, offsets_of(p0=12), latest) == offsets_of(p0=12, p1=9)


def test_at_the_target_a_recreated_topic_is_read_later() -> None:
    target, latest = offsets_of("id-1", p0=10), offsets_of("id-2", p0=30)
    assert up_to(target, offsets_of("id-1", p0=2), latest) == offsets_of("id-2", p0=0)
