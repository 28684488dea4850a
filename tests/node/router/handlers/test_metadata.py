"""Metadata, DescribeTopicPartitions and DescribeCluster as clients see them (B.1, B.11)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.controller.commands import RegisterBroker
from odradek.cluster.metadata.image import ConfigResourceType, Listener, PartitionImage
from odradek.cluster.metadata.records import PartitionChanged
from odradek.node.router.authorizer import CLUSTER_NAME, NOT_ASKED, Operation, ResourceType
from odradek.node.router.handlers.metadata import (
    handle_describe_cluster,
    handle_describe_topic_partitions,
    handle_metadata,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.metadata import (
    Cursor,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
    TopicRequest,
)
from odradek.protocol.types import ZERO_UUID
from tests.support.controller_room import topic_id
from tests.support.router_room import LOCAL_HOST, LOCAL_PORT, RouterRoom

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
TOPIC_OPERATIONS, CLUSTER_OPERATIONS = 3576, 8096
"""What a Kafka 4.3.1 without an authorizer answers."""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RouterRoom]:
    room = RouterRoom(tmp_path)
    room.controller.has("aa", 1, partitions=2)
    room.controller.has("bb", 2)
    room.follow()
    yield room
    room.close()


def ask(
    room: RouterRoom,
    *names: str,
    version: int | None = None,
    create: bool = False,
    operations: bool = False,
) -> dict[str | None, MetadataResponseTopic]:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=operations,
    )
    return {t.name: t for t in room.call(handle_metadata, request, version).topics}


def ask_all(room: RouterRoom, version: int = 13) -> MetadataResponse:
    topics: list[MetadataRequestTopic] | None = [] if version == 0 else None
    return room.call(handle_metadata, MetadataRequest(topics=topics), version)


def ask_id(room: RouterRoom, number: bytes, version: int = 13) -> MetadataResponseTopic:
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=number, name=None)])
    if version < 12:
        request.topics = [MetadataRequestTopic(topic_id=number, name="aa")]
    (topic,) = room.call(handle_metadata, request, version).topics
    return topic


# -- Metadata --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
def test_all_topics_are_told_in_any_version(room: RouterRoom, version: int) -> None:
    response = ask_all(room, version)
    assert [topic.name for topic in response.topics] == ["aa", "bb"]
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (0, "host-0", 9092)
    topic = response.topics[0]
    assert (topic.error_code, len(topic.partitions)) == (0, 2)
    for number, partition in enumerate(topic.partitions):
        assert (partition.partition_index, partition.leader_id, partition.error_code) == (
            number,
            0,
            0,
        )
        assert (partition.replica_nodes, partition.isr_nodes) == ([0], [0])
        assert partition.leader_epoch == (0 if version >= 7 else -1)
    if version >= 1:
        assert response.controller_id == 0
        assert broker.rack == "rack-0"
    if version >= 2:
        assert response.cluster_id == "cluster"
    assert topic.topic_id == (topic_id(1) if version >= 10 else ZERO_UUID)


@pytest.mark.parametrize("version", range(1, 14))
def test_no_topics_asked_for_since_version_1_means_none(room: RouterRoom, version: int) -> None:
    request = MetadataRequest(topics=[])
    assert room.call(handle_metadata, request, version).topics == []


def test_topics_are_told_by_name_each_once(room: RouterRoom) -> None:
    assert list(ask(room, "bb", "aa", "bb")) == ["bb", "aa"]


def test_missing_and_impossible_topics_are_told_apart(room: RouterRoom) -> None:
    answers = ask(room, "zz", "b@d", "")
    assert {name: topic.error_code for name, topic in answers.items()} == {
        "zz": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "b@d": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


def test_a_topic_is_told_by_id_since_version_12(room: RouterRoom) -> None:
    assert (ask_id(room, topic_id(1)).name, ask_id(room, topic_id(2)).name) == ("aa", "bb")
    unknown = ask_id(room, topic_id(9))
    assert (unknown.error_code, unknown.name, unknown.topic_id) == (100, None, topic_id(9))


@pytest.mark.parametrize("version", [10, 11])
def test_ids_may_not_be_used_before(room: RouterRoom, version: int) -> None:
    # B.1: v10-11 must not use ids.
    assert ask_id(room, topic_id(1), version).error_code == ErrorCode.INVALID_REQUEST


def test_a_topic_with_neither_name_nor_id_is_an_invalid_request(room: RouterRoom) -> None:
    assert ask_id(room, ZERO_UUID).error_code == ErrorCode.INVALID_REQUEST


def test_a_partition_without_leader_is_listed_all_the_same(tmp_path: Path) -> None:
    # B.1: offline partition: leader -1 with (5), still listed with replicas, ISR, offline.
    room = RouterRoom(tmp_path, brokers=2)
    room.controller.has("aa", 1)
    room.controller.fence(1)
    room.controller.write(PartitionChanged(topic_id(1), 0, PartitionImage((1, 0), (1,), -1, 3)))
    room.follow()
    (partition,) = ask(room, "aa")["aa"].partitions
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (5, -1, 3)
    assert (partition.replica_nodes, partition.isr_nodes) == ([1, 0], [1])
    assert partition.offline_replicas == [1]
    assert [broker.node_id for broker in ask_all(room).brokers] == [0]
    room.close()


def test_a_broker_that_is_fenced_is_told_by_itself_only(tmp_path: Path) -> None:
    # B.3: controller_id must be a live node; and clients that are told of no broker have none left.
    room = RouterRoom(tmp_path, brokers=3)
    room.controller.fence(0)
    room.controller.fence(2)
    room.follow()
    told = ask_all(room)
    assert [broker.node_id for broker in told.brokers] == [0, 1]
    assert told.controller_id == 0
    room.controller.fence(1)
    room.follow()
    assert [broker.node_id for broker in ask_all(room).brokers] == [0]
    room.close()


def test_internal_topics_are_marked(room: RouterRoom) -> None:
    room.controller.has("__consumer_offsets", 3)
    room.follow()
    assert ask(room, "__consumer_offsets")["__consumer_offsets"].is_internal
    assert not ask(room, "aa")["aa"].is_internal


def test_a_broker_is_told_with_the_address_of_the_clients_listener(room: RouterRoom) -> None:
    listeners = (Listener("PLAINTEXT", "in", 1), Listener("EXTERNAL", "out", 2))
    room.controller.do(RegisterBroker(0, topic_id(5), "cluster", listeners))
    room.controller.do(RegisterBroker(1, topic_id(6), "cluster", listeners[:1]))
    room.follow()
    request = MetadataRequest(topics=[])
    outside = room.call(handle_metadata, request, listener="EXTERNAL")
    # Never a broker without a usable address: 1 has no such listener.
    assert [(b.node_id, b.host, b.port) for b in outside.brokers] == [(0, "out", 2)]
    inside = room.call(handle_metadata, request, listener="PLAINTEXT")
    assert [(b.node_id, b.host, b.port) for b in inside.brokers] == [(0, "in", 1), (1, "in", 1)]


def test_without_an_advertised_address_it_is_the_one_the_client_used(room: RouterRoom) -> None:
    room.controller.do(RegisterBroker(0, topic_id(5), "cluster", (Listener("PLAINTEXT", "", 0),)))
    room.follow()
    (broker,) = ask_all(room).brokers
    assert (broker.host, broker.port) == (LOCAL_HOST, LOCAL_PORT)


@pytest.mark.parametrize("version", [8, 9, 10, 13])
def test_authorized_operations_are_told_when_asked_for(room: RouterRoom, version: int) -> None:
    assert ask(room, "aa", version=version)["aa"].topic_authorized_operations == NOT_ASKED
    answer = ask(room, "aa", version=version, operations=True)["aa"]
    assert answer.topic_authorized_operations == TOPIC_OPERATIONS
    if version <= 10:
        request = MetadataRequest(topics=[], include_cluster_authorized_operations=True)
        response = room.call(handle_metadata, request, version)
        assert response.cluster_authorized_operations == CLUSTER_OPERATIONS


def test_who_may_not_see_a_topic_learns_nothing_of_it(room: RouterRoom) -> None:
    # B.0 rule 8.
    room.deny(Operation.DESCRIBE, TOPIC, "aa")
    room.deny(Operation.DESCRIBE, TOPIC, "zz")
    answers = ask(room, "aa", "zz", create=True)
    assert [topic.error_code for topic in answers.values()] == [29, 29]
    assert all(t.topic_id == ZERO_UUID and not t.partitions for t in answers.values())
    assert "zz" not in room.image.topics_by_name
    assert [topic.name for topic in ask_all(room).topics] == ["bb"]
    assert ask_id(room, topic_id(1)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


# -- automatic creation ----------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 13])
def test_a_missing_topic_is_created_by_asking(room: RouterRoom, version: int) -> None:
    room.controller.set_config(ConfigResourceType.BROKER, "", num_partitions="3")
    room.follow()
    answers = ask(room, "new", "newer", "aa", version=version, create=True)
    # It is visible before the answer, so that the client need not come back.
    assert {name: len(t.partitions) for name, t in answers.items()} == {
        "new": 3,
        "newer": 3,
        "aa": 2,
    }
    assert all(topic.error_code == 0 for topic in answers.values())
    assert len(room.link.timeouts_ms) == 1, "one command for all of them"


@pytest.mark.parametrize("version", range(4))
def test_before_version_4_asking_always_creates(room: RouterRoom, version: int) -> None:
    assert ask(room, "new", version=version, create=True)["new"].error_code == 0
    assert "new" in room.image.topics_by_name


def test_nothing_is_created_if_the_client_or_the_cluster_does_not_want_it(room: RouterRoom) -> None:
    assert ask(room, "new")["new"].error_code == 3
    room.controller.set_config(ConfigResourceType.BROKER, "", auto_create_topics_enable="false")
    room.follow()
    assert ask(room, "new", create=True)["new"].error_code == 3
    assert "new" not in room.image.topics_by_name
    assert room.link.timeouts_ms == []


def test_asking_for_all_or_by_id_creates_nothing(room: RouterRoom) -> None:
    ask_all(room)
    ask_id(room, topic_id(9))
    assert room.link.timeouts_ms == []


def test_a_topic_that_cannot_be_created_says_why(room: RouterRoom) -> None:
    room.controller.has("a.b", 3)
    room.follow()
    answers = ask(room, "a_b", "b@d", "new", create=True)
    assert [topic.error_code for topic in answers.values()] == [17, 17, 0]


def test_coordinators_topics_are_not_made_by_asking(room: RouterRoom) -> None:
    answer = ask(room, "__consumer_offsets", create=True)["__consumer_offsets"]
    assert (answer.error_code, answer.is_internal) == (3, True)


def test_creating_by_asking_needs_create(room: RouterRoom) -> None:
    room.deny(Operation.CREATE, CLUSTER, CLUSTER_NAME)
    room.deny(Operation.CREATE, TOPIC, "secret")
    answers = ask(room, "open", "secret", create=True)
    assert [topic.error_code for topic in answers.values()] == [0, 29]
    assert "secret" not in room.image.topics_by_name


def test_a_leader_that_was_just_lost_sight_of_is_not_told(room: RouterRoom) -> None:
    """A client that is told of none asks again at once (ADR 6)."""
    room.controller.has("t", 1, 1)
    room.follow()
    (before,) = ask(room, "t")["t"].partitions
    room.link.unreachable = frozenset({before.leader_id})
    (doubted,) = ask(room, "t")["t"].partitions
    assert (doubted.leader_id, doubted.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    assert doubted.isr_nodes == before.isr_nodes
    room.link.unreachable = frozenset()
    assert ask(room, "t")["t"].partitions == [before]


def test_a_topic_that_is_late_has_no_leader_yet(room: RouterRoom) -> None:
    room.link.failure = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    assert ask(room, "new", create=True)["new"].error_code == ErrorCode.LEADER_NOT_AVAILABLE


# -- DescribeTopicPartitions -----------------------------------------------------------------


def page(
    room: RouterRoom, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> tuple[list[tuple[str | None, int, list[int]]], tuple[str, int] | None]:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    response = room.call(handle_describe_topic_partitions, request)
    rows = [
        (topic.name, topic.error_code, [p.partition_index for p in topic.partitions])
        for topic in response.topics
    ]
    end = response.next_cursor
    return rows, None if end is None else (end.topic_name, end.partition_index)


def test_topics_come_in_order_of_their_names(room: RouterRoom) -> None:
    assert page(room) == ([("aa", 0, [0, 1]), ("bb", 0, [0])], None)
    assert page(room, "bb", "aa", "bb") == ([("aa", 0, [0, 1]), ("bb", 0, [0])], None)


def test_unknown_topics_have_their_place_in_the_order(room: RouterRoom) -> None:
    assert page(room, "zz", "aa", "b@d") == (
        [("aa", 0, [0, 1]), ("b@d", 17, []), ("zz", 3, [])],
        None,
    )


def test_a_page_ends_at_the_limit_and_the_next_begins_there(room: RouterRoom) -> None:
    # As a Kafka 4.3.1 pages.
    assert page(room, "aa", "bb", limit=1) == ([("aa", 0, [0])], ("aa", 1))
    assert page(room, "aa", "bb", limit=2) == ([("aa", 0, [0, 1])], ("bb", 0))
    assert page(room, "aa", "bb", limit=1, cursor=("aa", 1)) == ([("aa", 0, [1])], ("bb", 0))
    assert page(room, "aa", "bb", limit=3) == ([("aa", 0, [0, 1]), ("bb", 0, [0])], None)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_page_has_at_least_one_partition(room: RouterRoom, limit: int) -> None:
    assert page(room, limit=limit) == ([("aa", 0, [0])], ("aa", 1))


def test_a_page_has_two_thousand_partitions_at_most(room: RouterRoom) -> None:
    room.controller.has("big", 3, partitions=2100)
    room.services.image = room.controller.image
    rows, cursor = page(room, "big", limit=5000)
    assert len(rows[0][2]) == 2000
    assert cursor == ("big", 2000)


def test_pages_together_show_every_partition_once(room: RouterRoom) -> None:
    for number, count in enumerate([4, 1, 3, 7], 3):
        room.controller.has(f"t{number}", number, count)
    room.services.image = room.controller.image
    for limit in (1, 2, 3, 5):
        seen: list[tuple[str | None, int]] = []
        cursor: tuple[str, int] | None = None
        while True:
            rows, cursor = page(room, limit=limit, cursor=cursor)
            seen.extend((name, number) for name, _, numbers in rows for number in numbers)
            if cursor is None:
                break
        wanted = [
            (name, number)
            for name, topic in sorted(room.image.topics_by_name.items())
            for number in range(len(topic.partitions))
        ]
        assert seen == wanted, limit


def test_a_cursor_whose_topic_is_gone_goes_on_behind_it(room: RouterRoom) -> None:
    assert page(room, cursor=("ab", 3)) == ([("bb", 0, [0])], None)
    assert page(room, cursor=("aa", 9)) == ([("bb", 0, [0])], None)


def test_a_cursor_that_was_not_asked_for_is_invalid(room: RouterRoom) -> None:
    assert page(room, "aa", "bb", cursor=("a", 0)) == ([("aa", 42, []), ("bb", 42, [])], None)
    assert page(room, cursor=("aa", -1)) == ([], None)


def test_topics_without_describe_are_hidden_or_refused(room: RouterRoom) -> None:
    room.deny(Operation.DESCRIBE, TOPIC, "aa")
    room.deny(Operation.DESCRIBE, TOPIC, "absent")
    assert page(room) == ([("bb", 0, [0])], None)
    assert page(room, "aa", "absent") == ([("aa", 29, []), ("absent", 29, [])], None)


def test_eligible_leaders_are_a_list_and_never_null(room: RouterRoom) -> None:
    # Kafka's brokers always send lists, and its tools (kafka-consumer-groups 4.3.1) fail on null.
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="aa")])
    (topic,) = room.call(handle_describe_topic_partitions, request).topics
    partition = topic.partitions[0]
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
    assert topic.topic_authorized_operations == TOPIC_OPERATIONS
    state = PartitionImage((0, 1, 2), (0,), 0, elr=(1,), last_known_elr=(2,))
    room.controller.write(PartitionChanged(topic_id(1), 0, state))
    room.services.image = room.controller.image
    (topic,) = room.call(handle_describe_topic_partitions, request).topics
    partition = topic.partitions[0]
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([1], [2])
    assert partition.offline_replicas == [1, 2]


# -- DescribeCluster -------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described_in_any_version(room: RouterRoom, version: int) -> None:
    response = room.call(handle_describe_cluster, DescribeClusterRequest(), version)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, "cluster", 0)
    assert [(b.broker_id, b.host, b.port, b.rack) for b in response.brokers] == [
        (0, "host-0", 9092, "rack-0")
    ]
    assert response.cluster_authorized_operations == NOT_ASKED


def test_fenced_brokers_are_shown_to_who_asks_for_them(tmp_path: Path) -> None:
    room = RouterRoom(tmp_path, brokers=2)
    room.controller.fence(1)
    room.follow()
    plain = room.call(handle_describe_cluster, DescribeClusterRequest())
    assert [broker.broker_id for broker in plain.brokers] == [0]
    request = DescribeClusterRequest(include_fenced_brokers=True)
    brokers = room.call(handle_describe_cluster, request).brokers
    assert [(broker.broker_id, broker.is_fenced) for broker in brokers] == [(0, False), (1, True)]
    room.close()


@pytest.mark.parametrize(("endpoint", "code"), [(2, 114), (3, 115), (0, 115)])
def test_only_brokers_are_described_here(room: RouterRoom, endpoint: int, code: int) -> None:
    response = room.call(handle_describe_cluster, DescribeClusterRequest(endpoint_type=endpoint))
    assert (response.error_code, response.brokers, response.controller_id) == (code, [], -1)
    assert response.error_message


def test_operations_on_the_cluster_are_told_to_who_may_see_it(room: RouterRoom) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = room.call(handle_describe_cluster, request)
    assert response.cluster_authorized_operations == CLUSTER_OPERATIONS
    room.deny(Operation.DESCRIBE, CLUSTER, CLUSTER_NAME)
    assert room.call(handle_describe_cluster, request).cluster_authorized_operations == 0
