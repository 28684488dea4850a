"""The consumer protocol against two other clients, and with unusual bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    has_owned_partitions,
)
from odradek.protocol.errors import ProtocolError
from odradek.protocol.messages.partitions import TopicPartitions
from tests.support.reference_codecs import aiokafka_consumer_protocol, kafka_consumer_protocol
from tests.support.subscriptions import encode_subscription

names = st.text(max_size=12)
partition_lists = st.lists(
    st.builds(
        TopicPartitions,
        name=names,
        partitions=st.lists(st.integers(0, (1 << 31) - 1), max_size=4),
    ),
    max_size=3,
)
user_data = st.none() | st.binary(max_size=20)
subscriptions = st.builds(
    ConsumerProtocolSubscription,
    topics=st.lists(names, max_size=4),
    user_data=user_data,
    owned_partitions=partition_lists,
    generation_id=st.integers(-1, (1 << 31) - 1),
    rack_id=st.none() | names,
)
assignments = st.builds(
    ConsumerProtocolAssignment, assigned_partitions=partition_lists, user_data=user_data
)

FULL = ConsumerProtocolSubscription(
    topics=["orders", "payments"],
    user_data=b"\x00\x01",
    owned_partitions=[TopicPartitions(name="orders", partitions=[0, 7])],
    generation_id=12,
    rack_id="rack-a",
)


@settings(derandomize=True, deadline=None, database=None)
@given(subscriptions)
def test_any_subscription_survives_a_round_trip(subscription: ConsumerProtocolSubscription) -> None:
    assert decode_subscription(encode_subscription(subscription)) == subscription


@settings(derandomize=True, deadline=None, database=None)
@given(assignments, st.integers(0, 3))
def test_any_assignment_survives_a_round_trip(
    assignment: ConsumerProtocolAssignment, version: int
) -> None:
    assert decode_assignment(encode_assignment(assignment, version)) == assignment


def test_older_versions_have_fewer_fields() -> None:
    read = [decode_subscription(encode_subscription(FULL, version)) for version in range(4)]
    assert [len(subscription.owned_partitions) for subscription in read] == [0, 1, 1, 1]
    assert [subscription.generation_id for subscription in read] == [-1, -1, 12, 12]
    assert [subscription.rack_id for subscription in read] == [None, None, None, "rack-a"]
    assert {tuple(subscription.topics) for subscription in read} == {("orders", "payments")}
    assert {subscription.user_data for subscription in read} == {b"\x00\x01"}


def test_subscriptions_have_owned_partitions_from_version_1_on() -> None:
    subscription = ConsumerProtocolSubscription(topics=["a"])
    named = [
        has_owned_partitions(encode_subscription(subscription, version)) for version in range(3)
    ]
    assert named == [False, True, True]


def test_the_bytes_are_those_of_kafkas_schema() -> None:
    assert encode_subscription(FULL, 3) == bytes.fromhex(
        "0003"
        "00000002 0006 6f7264657273 0008 7061796d656e7473"
        "00000002 0001"
        "00000001 0006 6f7264657273 00000002 00000000 00000007"
        "0000000c"
        "0006 7261636b2d61"
    )
    assert encode_assignment(ConsumerProtocolAssignment(), 0) == bytes.fromhex(
        "0000 00000000 ffffffff"
    )


def test_fields_of_newer_versions_are_ignored() -> None:
    subscription = bytearray(encode_subscription(FULL) + b"fields to come")
    assignment = bytearray(
        encode_assignment(ConsumerProtocolAssignment(user_data=b"u")) + b"fields to come"
    )
    subscription[:2] = assignment[:2] = b"\x00\x09"
    assert decode_subscription(subscription) == FULL
    assert decode_assignment(assignment) == ConsumerProtocolAssignment(
        assigned_partitions=[], user_data=b"u"
    )


def test_missing_fields_of_a_newer_version_have_their_defaults() -> None:
    data = bytearray(encode_subscription(FULL, 0))
    for version in (1, 2, 3):
        data[1] = version
        assert decode_subscription(data) == ConsumerProtocolSubscription(
            topics=["orders", "payments"], user_data=b"\x00\x01"
        )


@pytest.mark.parametrize("version", range(4))
def test_kafka_python_writes_the_same_bytes(version: int) -> None:
    Topic = kafka_consumer_protocol.ConsumerProtocolSubscription.TopicPartition
    theirs = kafka_consumer_protocol.ConsumerProtocolSubscription(
        topics=["orders", "payments"],
        user_data=b"\x00\x01",
        owned_partitions=[Topic(topic="orders", partitions=[0, 7])],
        generation_id=12,
        rack_id="rack-a",
    ).encode(version=version)
    assert encode_subscription(FULL, version) == theirs
    Topic = kafka_consumer_protocol.ConsumerProtocolAssignment.TopicPartition
    theirs = kafka_consumer_protocol.ConsumerProtocolAssignment(
        assigned_partitions=[Topic(topic="orders", partitions=[0, 7])], user_data=None
    ).encode(version=version)
    assignment = ConsumerProtocolAssignment(assigned_partitions=FULL.owned_partitions)
    assert encode_assignment(assignment, version) == theirs
    assert decode_assignment(theirs) == assignment


def test_aiokafka_writes_the_same_bytes() -> None:
    theirs = aiokafka_consumer_protocol.ConsumerProtocolMemberMetadata(
        0, ["orders", "payments"], b"\x00\x01"
    ).encode()
    assert encode_subscription(FULL, 0) == theirs
    theirs = aiokafka_consumer_protocol.ConsumerProtocolMemberAssignment(
        0, [("orders", [0, 7])], b""
    ).encode()
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=FULL.owned_partitions, user_data=b""
    )
    assert encode_assignment(assignment, 0) == theirs
    assert decode_assignment(theirs) == assignment


@pytest.mark.parametrize("version", range(4))
def test_a_truncated_field_is_a_protocol_error(version: int) -> None:
    data = encode_subscription(FULL, version)
    whole = {len(encode_subscription(FULL, older)) for older in range(version)}
    for end in range(len(data)):
        if end not in whole:
            with pytest.raises(ProtocolError):
                decode_subscription(data[:end])
    data = encode_assignment(
        ConsumerProtocolAssignment(assigned_partitions=FULL.owned_partitions, user_data=b"u")
    )
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            decode_assignment(data[:end])


@pytest.mark.parametrize(
    "data",
    [
        "ffff 00000000 ffffffff",  # a negative version
        "0000 ffffffff ffffffff",  # null topics
        "0000 7fffffff ffffffff",  # more topics than bytes
        "0000 00000001 ffff ffffffff",  # a null topic
        "0000 00000001 0001 ff ffffffff",  # a topic that is not UTF-8
        "0000 00000000 7fffffff",  # more user data than bytes
    ],
)
def test_malformed_bytes_are_a_protocol_error(data: str) -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(bytes.fromhex(data))


@settings(derandomize=True, deadline=None, database=None)
@given(st.integers(-1, 4), st.binary(max_size=60))
def test_random_bytes_are_a_value_or_a_protocol_error(version: int, rest: bytes) -> None:
    data = version.to_bytes(2, "big", signed=True) + rest
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(memoryview(data))
        except ProtocolError:
            continue
        assert version >= 0
