"""Metadata, DescribeTopicPartitions and DescribeCluster as clients see them (B.1, B.11)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.controller.commands import RegisterBroker
from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.cluster.metadata.image import BrokerListener, ConfigResourceType, PartitionImage
from odradek.cluster.metadata.records import PartitionChanged
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
)
from odradek.protocol.messages.partitions import TopicName
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS, ZERO_UUID
from tests.support.controller_harness import topic_id
from tests.support.router_harness import LOCAL_HOST, LOCAL_PORT, RouterHarness

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
TOPIC_OPERATIONS, CLUSTER_OPERATIONS = 3576, 8096
"""What a Kafka 4.3.1 without an authorizer answers."""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    harness.controller.has("aa", 1, partitions=2)
    harness.controller.has("bb", 2)
    harness.follow()
    yield harness
    harness.close()


def ask(
    harness: RouterHarness,
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
    return {t.name: t for t in harness.call(handle_metadata, request, version).topics}


def ask_all(harness: RouterHarness, version: int = 13) -> MetadataResponse:
    topics: list[MetadataRequestTopic] | None = [] if version == 0 else None
    return harness.call(handle_metadata, MetadataRequest(topics=topics), version)


def ask_id(harness: RouterHarness, number: bytes, version: int = 13) -> MetadataResponseTopic:
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=number, name=None)])
    if version < 12:
        request.topics = [MetadataRequestTopic(topic_id=number, name="aa")]
    (topic,) = harness.call(handle_metadata, request, version).topics
    return topic


# -- Metadata --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
def test_all_topics_are_returned_in_every_version(harness: RouterHarness, version: int) -> None:
    response = ask_all(harness, version)
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
def test_an_empty_list_means_no_topics_since_version_1(
    harness: RouterHarness, version: int
) -> None:
    request = MetadataRequest(topics=[])
    assert harness.call(handle_metadata, request, version).topics == []


def test_each_named_topic_is_returned_once(harness: RouterHarness) -> None:
    assert list(ask(harness, "bb", "aa", "bb")) == ["bb", "aa"]


def test_unknown_and_invalid_topic_names_have_different_errors(harness: RouterHarness) -> None:
    answers = ask(harness, "zz", "b@d", "")
    assert {name: topic.error_code for name, topic in answers.items()} == {
        "zz": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "b@d": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


def test_topics_are_returned_by_id_since_version_12(harness: RouterHarness) -> None:
    assert (ask_id(harness, topic_id(1)).name, ask_id(harness, topic_id(2)).name) == ("aa", "bb")
    unknown = ask_id(harness, topic_id(9))
    assert (unknown.error_code, unknown.name, unknown.topic_id) == (100, None, topic_id(9))


@pytest.mark.parametrize("version", [10, 11])
def test_ids_are_invalid_before_version_12(harness: RouterHarness, version: int) -> None:
    # B.1: v10-11 must not use ids.
    assert ask_id(harness, topic_id(1), version).error_code == ErrorCode.INVALID_REQUEST


def test_a_topic_with_neither_name_nor_id_is_an_invalid_request(harness: RouterHarness) -> None:
    assert ask_id(harness, ZERO_UUID).error_code == ErrorCode.INVALID_REQUEST


def test_a_partition_without_a_leader_is_listed(tmp_path: Path) -> None:
    # B.1: offline partition: leader -1 with (5), still listed with replicas, ISR, offline.
    harness = RouterHarness(tmp_path, brokers=2)
    harness.controller.has("aa", 1)
    harness.controller.fence(1)
    harness.controller.write(PartitionChanged(topic_id(1), 0, PartitionImage((1, 0), (1,), -1, 3)))
    harness.follow()
    (partition,) = ask(harness, "aa")["aa"].partitions
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (5, -1, 3)
    assert (partition.replica_nodes, partition.isr_nodes) == ([1, 0], [1])
    assert partition.offline_replicas == [1]
    assert [broker.node_id for broker in ask_all(harness).brokers] == [0]
    harness.close()


def test_a_fenced_broker_is_listed_only_by_itself(tmp_path: Path) -> None:
    # B.3: controller_id must be a live node; and clients need at least one broker.
    harness = RouterHarness(tmp_path, brokers=3)
    harness.controller.fence(0)
    harness.controller.fence(2)
    harness.follow()
    told = ask_all(harness)
    assert [broker.node_id for broker in told.brokers] == [0, 1]
    assert told.controller_id == 0
    harness.controller.fence(1)
    harness.follow()
    assert [broker.node_id for broker in ask_all(harness).brokers] == [0]
    harness.close()


def test_internal_topics_are_marked(harness: RouterHarness) -> None:
    harness.controller.has("__consumer_offsets", 3)
    harness.follow()
    assert ask(harness, "__consumer_offsets")["__consumer_offsets"].is_internal
    assert not ask(harness, "aa")["aa"].is_internal


def test_brokers_have_the_address_of_the_clients_listener(harness: RouterHarness) -> None:
    listeners = (BrokerListener("PLAINTEXT", "in", 1), BrokerListener("EXTERNAL", "out", 2))
    harness.controller.do(RegisterBroker(0, topic_id(5), "cluster", listeners))
    harness.controller.do(RegisterBroker(1, topic_id(6), "cluster", listeners[:1]))
    harness.follow()
    request = MetadataRequest(topics=[])
    outside = harness.call(handle_metadata, request, listener="EXTERNAL")
    # Never a broker without a usable address: 1 has no such listener.
    assert [(b.node_id, b.host, b.port) for b in outside.brokers] == [(0, "out", 2)]
    inside = harness.call(handle_metadata, request, listener="PLAINTEXT")
    assert [(b.node_id, b.host, b.port) for b in inside.brokers] == [(0, "in", 1), (1, "in", 1)]


def test_without_an_advertised_address_the_client_gets_the_one_that_it_used(
    harness: RouterHarness,
) -> None:
    harness.controller.do(
        RegisterBroker(0, topic_id(5), "cluster", (BrokerListener("PLAINTEXT", "", 0),))
    )
    harness.follow()
    (broker,) = ask_all(harness).brokers
    assert (broker.host, broker.port) == (LOCAL_HOST, LOCAL_PORT)


@pytest.mark.parametrize("version", [8, 9, 10, 13])
def test_authorized_operations_are_included_on_request(
    harness: RouterHarness, version: int
) -> None:
    assert (
        ask(harness, "aa", version=version)["aa"].topic_authorized_operations
        == NO_AUTHORIZED_OPERATIONS
    )
    answer = ask(harness, "aa", version=version, operations=True)["aa"]
    assert answer.topic_authorized_operations == TOPIC_OPERATIONS
    if version <= 10:
        request = MetadataRequest(topics=[], include_cluster_authorized_operations=True)
        response = harness.call(handle_metadata, request, version)
        assert response.cluster_authorized_operations == CLUSTER_OPERATIONS


def test_a_topic_without_describe_is_hidden(harness: RouterHarness) -> None:
    harness.deny(AclOperation.DESCRIBE, TOPIC, "aa")
    harness.deny(AclOperation.DESCRIBE, TOPIC, "zz")
    answers = ask(harness, "aa", "zz", create=True)
    assert [topic.error_code for topic in answers.values()] == [29, 29]
    assert all(t.topic_id == ZERO_UUID and not t.partitions for t in answers.values())
    assert "zz" not in harness.image.topics_by_name
    assert [topic.name for topic in ask_all(harness).topics] == ["bb"]
    by_id = ask_id(harness, topic_id(1))
    assert (by_id.error_code, by_id.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)


# -- automatic creation ----------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 13])
def test_a_missing_topic_is_created_automatically(harness: RouterHarness, version: int) -> None:
    harness.controller.set_config(ConfigResourceType.BROKER, "", num_partitions="3")
    harness.follow()
    answers = ask(harness, "new", "newer", "aa", version=version, create=True)
    # It is visible before the response, so that the client need not repeat the request.
    assert {name: len(t.partitions) for name, t in answers.items()} == {
        "new": 3,
        "newer": 3,
        "aa": 2,
    }
    assert all(topic.error_code == 0 for topic in answers.values())
    assert len(harness.link.timeouts_ms) == 1, "one command for all of them"


@pytest.mark.parametrize("version", range(4))
def test_before_version_4_missing_topics_are_always_created(
    harness: RouterHarness, version: int
) -> None:
    assert ask(harness, "new", version=version, create=True)["new"].error_code == 0
    assert "new" in harness.image.topics_by_name


def test_the_client_and_the_cluster_can_disable_automatic_creation(
    harness: RouterHarness,
) -> None:
    assert ask(harness, "new")["new"].error_code == 3
    harness.controller.set_config(ConfigResourceType.BROKER, "", auto_create_topics_enable="false")
    harness.follow()
    assert ask(harness, "new", create=True)["new"].error_code == 3
    assert "new" not in harness.image.topics_by_name
    assert harness.link.timeouts_ms == []


def test_requests_for_all_topics_or_by_id_create_nothing(harness: RouterHarness) -> None:
    ask_all(harness)
    ask_id(harness, topic_id(9))
    assert harness.link.timeouts_ms == []


def test_a_topic_that_cannot_be_created_has_the_error(harness: RouterHarness) -> None:
    harness.controller.has("a.b", 3)
    harness.follow()
    answers = ask(harness, "a_b", "b@d", "new", create=True)
    assert [topic.error_code for topic in answers.values()] == [17, 17, 0]


def test_internal_topics_are_not_created_automatically(harness: RouterHarness) -> None:
    answer = ask(harness, "__consumer_offsets", create=True)["__consumer_offsets"]
    assert (answer.error_code, answer.is_internal) == (3, True)


def test_automatic_creation_needs_create(harness: RouterHarness) -> None:
    harness.deny(AclOperation.CREATE, CLUSTER, CLUSTER_NAME)
    harness.deny(AclOperation.CREATE, TOPIC, "secret")
    answers = ask(harness, "open", "secret", create=True)
    assert [topic.error_code for topic in answers.values()] == [0, 29]
    assert "secret" not in harness.image.topics_by_name


def test_an_unreachable_leader_is_not_returned(harness: RouterHarness) -> None:
    """A client without a leader refreshes its metadata at once (ADR 6)."""
    harness.controller.has("t", 1, 1)
    harness.follow()
    (before,) = ask(harness, "t")["t"].partitions
    harness.link.unreachable = frozenset({before.leader_id})
    (doubted,) = ask(harness, "t")["t"].partitions
    assert (doubted.leader_id, doubted.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    assert doubted.isr_nodes == before.isr_nodes
    harness.link.unreachable = frozenset()
    assert ask(harness, "t")["t"].partitions == [before]


def test_a_topic_that_is_not_created_in_time_has_no_leader_yet(harness: RouterHarness) -> None:
    harness.link.failure = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    assert ask(harness, "new", create=True)["new"].error_code == ErrorCode.LEADER_NOT_AVAILABLE


# -- DescribeTopicPartitions -----------------------------------------------------------------


def page(
    harness: RouterHarness, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> tuple[list[tuple[str | None, int, list[int]]], tuple[str, int] | None]:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicName(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    response = harness.call(handle_describe_topic_partitions, request)
    rows = [
        (topic.name, topic.error_code, [p.partition_index for p in topic.partitions])
        for topic in response.topics
    ]
    end = response.next_cursor
    return rows, None if end is None else (end.topic_name, end.partition_index)


def test_topics_are_ordered_by_name(harness: RouterHarness) -> None:
    assert page(harness) == ([("aa", 0, [0, 1]), ("bb", 0, [0])], None)
    assert page(harness, "bb", "aa", "bb") == ([("aa", 0, [0, 1]), ("bb", 0, [0])], None)


def test_unknown_topics_are_in_the_order_too(harness: RouterHarness) -> None:
    assert page(harness, "zz", "aa", "b@d") == (
        [("aa", 0, [0, 1]), ("b@d", 17, []), ("zz", 3, [])],
        None,
    )


def test_a_page_ends_at_the_limit_and_the_next_begins_there(harness: RouterHarness) -> None:
    # The pages of Kafka 4.3.1.
    assert page(harness, "aa", "bb", limit=1) == ([("aa", 0, [0])], ("aa", 1))
    assert page(harness, "aa", "bb", limit=2) == ([("aa", 0, [0, 1])], ("bb", 0))
    assert page(harness, "aa", "bb", limit=1, cursor=("aa", 1)) == ([("aa", 0, [1])], ("bb", 0))
    assert page(harness, "aa", "bb", limit=3) == ([("aa", 0, [0, 1]), ("bb", 0, [0])], None)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_page_has_at_least_one_partition(harness: RouterHarness, limit: int) -> None:
    assert page(harness, limit=limit) == ([("aa", 0, [0])], ("aa", 1))


def test_a_page_has_two_thousand_partitions_at_most(harness: RouterHarness) -> None:
    harness.controller.has("big", 3, partitions=2100)
    harness.services.metadata.image = harness.controller.image
    request = DescribeTopicPartitionsRequest(
        topics=[TopicName(name="big")], response_partition_limit=5000
    )
    response = harness.call_in_turns(handle_describe_topic_partitions, request, harness.loop)
    assert len(response.topics[0].partitions) == 2000
    assert response.next_cursor == Cursor(topic_name="big", partition_index=2000)


def test_pages_together_have_every_partition_once(harness: RouterHarness) -> None:
    for number, count in enumerate([4, 1, 3, 7], 3):
        harness.controller.has(f"t{number}", number, count)
    harness.services.metadata.image = harness.controller.image
    for limit in (1, 2, 3, 5):
        seen: list[tuple[str | None, int]] = []
        cursor: tuple[str, int] | None = None
        while True:
            rows, cursor = page(harness, limit=limit, cursor=cursor)
            seen.extend((name, number) for name, _, numbers in rows for number in numbers)
            if cursor is None:
                break
        wanted = [
            (name, number)
            for name, topic in sorted(harness.image.topics_by_name.items())
            for number in range(len(topic.partitions))
        ]
        assert seen == wanted, limit


def test_a_cursor_on_a_deleted_topic_continues_after_it(harness: RouterHarness) -> None:
    assert page(harness, cursor=("ab", 3)) == ([("bb", 0, [0])], None)
    assert page(harness, cursor=("aa", 9)) == ([("bb", 0, [0])], None)


def test_a_cursor_on_a_topic_that_is_not_requested_is_invalid(harness: RouterHarness) -> None:
    assert page(harness, "aa", "bb", cursor=("a", 0)) == ([("aa", 42, []), ("bb", 42, [])], None)
    assert page(harness, cursor=("aa", -1)) == ([], None)


def test_topics_without_describe_are_hidden_or_refused(harness: RouterHarness) -> None:
    harness.deny(AclOperation.DESCRIBE, TOPIC, "aa")
    harness.deny(AclOperation.DESCRIBE, TOPIC, "absent")
    assert page(harness) == ([("bb", 0, [0])], None)
    assert page(harness, "aa", "absent") == ([("aa", 29, []), ("absent", 29, [])], None)


def test_eligible_leader_replicas_are_never_null(harness: RouterHarness) -> None:
    # Kafka's brokers always send lists, and its tools (kafka-consumer-groups 4.3.1) fail on null.
    request = DescribeTopicPartitionsRequest(topics=[TopicName(name="aa")])
    (topic,) = harness.call(handle_describe_topic_partitions, request).topics
    partition = topic.partitions[0]
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
    assert topic.topic_authorized_operations == TOPIC_OPERATIONS
    state = PartitionImage((0, 1, 2), (0,), 0, elr=(1,), last_known_elr=(2,))
    harness.controller.write(PartitionChanged(topic_id(1), 0, state))
    harness.services.metadata.image = harness.controller.image
    (topic,) = harness.call(handle_describe_topic_partitions, request).topics
    partition = topic.partitions[0]
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([1], [2])
    assert partition.offline_replicas == [1, 2]


# -- DescribeCluster -------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described_in_any_version(harness: RouterHarness, version: int) -> None:
    response = harness.call(handle_describe_cluster, DescribeClusterRequest(), version)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, "cluster", 0)
    assert [(b.broker_id, b.host, b.port, b.rack) for b in response.brokers] == [
        (0, "host-0", 9092, "rack-0")
    ]
    assert response.cluster_authorized_operations == NO_AUTHORIZED_OPERATIONS


def test_fenced_brokers_are_included_on_request(tmp_path: Path) -> None:
    harness = RouterHarness(tmp_path, brokers=2)
    harness.controller.fence(1)
    harness.follow()
    plain = harness.call(handle_describe_cluster, DescribeClusterRequest())
    assert [broker.broker_id for broker in plain.brokers] == [0]
    request = DescribeClusterRequest(include_fenced_brokers=True)
    brokers = harness.call(handle_describe_cluster, request).brokers
    assert [(broker.broker_id, broker.is_fenced) for broker in brokers] == [(0, False), (1, True)]
    harness.close()


@pytest.mark.parametrize(("endpoint", "code"), [(2, 114), (3, 115), (0, 115)])
def test_the_controller_endpoint_type_is_refused(
    harness: RouterHarness, endpoint: int, code: int
) -> None:
    response = harness.call(handle_describe_cluster, DescribeClusterRequest(endpoint_type=endpoint))
    assert (response.error_code, response.brokers, response.controller_id) == (code, [], -1)
    assert response.error_message


def test_cluster_operations_need_describe_on_the_cluster(harness: RouterHarness) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = harness.call(handle_describe_cluster, request)
    assert response.cluster_authorized_operations == CLUSTER_OPERATIONS
    harness.deny(AclOperation.DESCRIBE, CLUSTER, CLUSTER_NAME)
    assert harness.call(handle_describe_cluster, request).cluster_authorized_operations == 0
