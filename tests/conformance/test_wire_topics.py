"""CreateTopics (19), DeleteTopics (20) and CreatePartitions (37)."""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from odradek.protocol.types import ZERO_UUID, Uuid
from tests.conformance.dialogue import (
    DialogueCluster,
    append,
    batch_of,
    create_topic,
    describe_topic,
    fetch,
    produce,
    unique,
    values_of,
)
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

DYNAMIC_TOPIC_CONFIG = 1
DEFAULT_CONFIG = 5


def create(
    wire: WireClient, *topics: CreatableTopic, version: int = 7, validate_only: bool = False
) -> dict[str, CreatableTopicResult]:
    """The results of creating topics, by name."""
    request = CreateTopicsRequest(
        topics=list(topics), timeout_ms=30_000, validate_only=validate_only
    )
    answer = wire.ask(request, version, CreateTopicsResponse)
    return {result.name: result for result in answer.topics}


def create_one(wire: WireClient, topic: CreatableTopic, version: int = 7) -> int:
    """The error code of creating one topic."""
    return create(wire, topic, version=version)[topic.name].error_code


def plain(name: str, partitions: int = 1) -> CreatableTopic:
    """A topic without anything special."""
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)


def delete(wire: WireClient, *names: str, version: int = 6) -> dict[str | None, int]:
    """Error codes of deleting topics, by name."""
    if version < 6:
        request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=10_000)
    else:
        states = [DeleteTopicState(name=name) for name in names]
        request = DeleteTopicsRequest(topics=states, timeout_ms=10_000)
    answer = wire.ask(request, version, DeleteTopicsResponse)
    return {result.name: result.error_code for result in answer.responses}


def delete_by_id(wire: WireClient, topic_id: Uuid) -> int:
    """The error code of deleting a topic by its id."""
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=10_000
    )
    (result,) = wire.ask(request, 6, DeleteTopicsResponse).responses
    assert result.topic_id == topic_id
    return result.error_code


def add_partitions(
    wire: WireClient, *topics: CreatePartitionsTopic, version: int = 3, validate_only: bool = False
) -> dict[str, int]:
    """Error codes of CreatePartitions, by name."""
    request = CreatePartitionsRequest(
        topics=list(topics), timeout_ms=10_000, validate_only=validate_only
    )
    answer = wire.ask(request, version, CreatePartitionsResponse)
    return {result.name: result.error_code for result in answer.results}


def is_gone(wire: WireClient, name: str) -> bool:
    """Whether Metadata does not know the topic any more."""
    return describe_topic(wire, name).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_there_when_its_creation_is_answered(
    wire: WireClient, cluster: DialogueCluster, version: int
) -> None:
    """B.4: "Wait until visible [...]: librdkafka 0081 fails when the next Metadata does not show
    it". Kafka itself is sometimes a moment late.
    """
    name = unique("topic")
    result = create(wire, plain(name, 3), version=version)[name]
    assert result.error_code == ErrorCode.NONE
    if cluster.is_kafka_4:
        cluster.wait_for_topic(wire, name, 3)
    described = describe_topic(wire, name)
    assert described.error_code == ErrorCode.NONE
    assert len(described.partitions) == 3
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert result.configs
    assert result.topic_id == (described.topic_id if version >= 7 else ZERO_UUID)
    cluster.wait_for_topic(wire, name, 3)


def test_the_answer_tells_the_configs(wire: WireClient) -> None:
    """B.4: "v5 returns configs with source/sensitivity"."""
    topic = plain(unique("topic"))
    topic.configs = [CreatableTopicConfig(name="retention.ms", value="12345")]
    configs = {each.name: each for each in create(wire, topic)[topic.name].configs or ()}
    retention = configs["retention.ms"]
    assert (retention.value, retention.config_source) == ("12345", DYNAMIC_TOPIC_CONFIG)
    assert configs["cleanup.policy"].value == "delete"
    assert configs["cleanup.policy"].config_source == DEFAULT_CONFIG
    assert not any(each.is_sensitive for each in configs.values())


@pytest.mark.parametrize("version", range(4, 8))
def test_minus_one_means_the_brokers_defaults(
    wire: WireClient, cluster: DialogueCluster, version: int
) -> None:
    """B.4: "v4+ -1 = defaults"."""
    name = unique("topic")
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
    assert create_one(wire, topic, version) == ErrorCode.NONE
    cluster.wait_for_topic(wire, name)
    partitions = describe_topic(wire, name).partitions
    assert {len(each.replica_nodes) for each in partitions} == {cluster.replication_factor}


def test_validating_creates_nothing(wire: WireClient) -> None:
    """B.4: "validate_only does everything but create"."""
    name, taken = unique("topic"), unique("topic")
    create(wire, plain(taken))
    results = create(wire, plain(name, 5), plain(taken), validate_only=True)
    assert results[name].error_code == ErrorCode.NONE
    assert results[name].num_partitions == 5
    assert results[taken].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert is_gone(wire, name)


def test_an_error_of_one_topic_spares_the_others(wire: WireClient) -> None:
    """B.4: "Errors per topic, never fail the batch"."""
    good, bad = unique("topic"), unique("topic")
    results = create(wire, plain(bad, 0), plain(good))
    assert results[bad].error_code == ErrorCode.INVALID_PARTITIONS
    assert results[bad].error_message
    assert results[good].error_code == ErrorCode.NONE


def test_a_topic_exists_once(wire: WireClient) -> None:
    """B.4: "exists 36"."""
    name = unique("topic")
    assert create_one(wire, plain(name)) == ErrorCode.NONE
    assert create_one(wire, plain(name, 7)) == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_topic_named_twice_in_a_request_is_not_created(wire: WireClient) -> None:
    """B.4: "duplicates in the request (42) each"."""
    name, other = unique("topic"), unique("topic")
    results = create(wire, plain(name), plain(other), plain(name))
    assert results[name].error_code == ErrorCode.INVALID_REQUEST
    assert results[other].error_code == ErrorCode.NONE
    assert is_gone(wire, name)


@pytest.mark.parametrize("name", ["", ".", "..", "sla/sh", "spa ce", "x" * 250, "größe"])
def test_a_topic_needs_a_valid_name(wire: WireClient, name: str) -> None:
    """B.4: "name 17"."""
    assert create_one(wire, plain(name)) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_names_that_differ_by_dots_and_underscores_collide(wire: WireClient) -> None:
    """B.4: "name 17, also when it collides by `.`/`_`"."""
    name = unique("a.topic_here")
    assert create_one(wire, plain(name)) == ErrorCode.NONE
    for other in (name.replace(".", "_"), name.replace("_", ".")):
        assert create_one(wire, plain(other)) == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("partitions", [0, -2])
def test_a_topic_needs_partitions(wire: WireClient, partitions: int) -> None:
    """B.4: "INVALID_PARTITIONS (37)"."""
    code = create_one(wire, plain(unique("topic"), partitions))
    assert code == ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("factor", [0, -2, 4, 100])
def test_replicas_need_brokers(wire: WireClient, factor: int) -> None:
    """B.4: "INVALID_REPLICATION_FACTOR (38)"."""
    topic = CreatableTopic(name=unique("topic"), num_partitions=1, replication_factor=factor)
    assert create_one(wire, topic) == ErrorCode.INVALID_REPLICATION_FACTOR


def assigned(*replicas: list[int], first: int = 0) -> CreatableTopic:
    """A topic whose replicas are placed by hand."""
    return CreatableTopic(
        name=unique("topic"),
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in enumerate(replicas, first)
        ],
    )


def some_broker(wire: WireClient, topic: str) -> int:
    """The id of a broker that is alive."""
    return describe_topic(wire, topic).partitions[0].leader_id


def test_replicas_may_be_placed_by_hand(wire: WireClient, topic: str) -> None:
    """B.4: "Manual assignments need partitions=-1 and rf=-1 [...]: otherwise INVALID_REQUEST"."""
    broker = some_broker(wire, topic)
    by_hand = assigned([broker], [broker])
    assert create_one(wire, by_hand) == ErrorCode.NONE
    assert len(describe_topic(wire, by_hand.name).partitions) == 2
    for partitions, factor in ((2, -1), (-1, 1)):
        both = assigned([broker])
        both.num_partitions, both.replication_factor = partitions, factor
        assert create_one(wire, both) == ErrorCode.INVALID_REQUEST


def test_an_impossible_placement_is_invalid(wire: WireClient, topic: str) -> None:
    """B.4: "INVALID_REPLICA_ASSIGNMENT (39)"."""
    broker = some_broker(wire, topic)
    invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert create_one(wire, assigned([broker + 1000])) == invalid
    assert create_one(wire, assigned([broker, broker])) == invalid
    assert create_one(wire, assigned([broker], [])) == invalid
    assert create_one(wire, assigned([broker], first=1)) == invalid


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("no.such.config", "1"),
        ("retention.ms", "soon"),
        ("cleanup.policy", "burn"),
        ("max.message.bytes", "-5"),
        ("min.insync.replicas", "0"),
        ("compression.type", "rar"),
        ("retention.ms", None),
    ],
)
def test_a_config_must_make_sense(wire: WireClient, key: str, value: str | None) -> None:
    """B.4: "INVALID_CONFIG (40)"."""
    topic = plain(unique("topic"))
    topic.configs = [CreatableTopicConfig(name=key, value=value)]
    assert create_one(wire, topic) == ErrorCode.INVALID_CONFIG
    assert is_gone(wire, topic.name)


@pytest.mark.parametrize("version", range(1, 7))
def test_a_topic_is_deleted(wire: WireClient, cluster: DialogueCluster, version: int) -> None:
    """B.4: "unknown 3/100"."""
    topic, nowhere = cluster.new_topic(), unique("nowhere")
    append(wire, topic, b"a")
    assert delete(wire, topic, nowhere, version=version) == {
        topic: ErrorCode.NONE,
        nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    wait_until(lambda: is_gone(wire, topic), what="the topic is gone")
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wait_until(lambda: fetch(wire, topic, 0).error_code == unknown, what="no more reading")
    wait_until(
        lambda: produce(wire, topic, batch_of(b"b")).error_code == unknown, what="nor writing"
    )


def test_a_topic_is_deleted_by_its_id(
    wire: WireClient, cluster: DialogueCluster, topic: str
) -> None:
    """B.4: "v6 name or id (both set: 42)"."""
    topic_id = cluster.topic_id(topic)
    both = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=topic, topic_id=topic_id)], timeout_ms=10_000
    )
    (result,) = wire.ask(both, 6, DeleteTopicsResponse).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert delete_by_id(wire, b"\x01" * 16) == ErrorCode.UNKNOWN_TOPIC_ID
    assert delete_by_id(wire, topic_id) == ErrorCode.NONE
    wait_until(lambda: is_gone(wire, topic), what="the topic is gone")
    assert delete_by_id(wire, topic_id) == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_topic_that_comes_again_is_another_one(
    wire: WireClient, cluster: DialogueCluster, topic: str
) -> None:
    """B.4: "A re-created topic has a NEW id: cached clients must get (100)/INCONSISTENT_TOPIC_ID
    (103), never old data".
    """
    append(wire, topic, b"old", b"old")
    old_id = cluster.topic_id(topic)
    assert delete(wire, topic) == {topic: ErrorCode.NONE}
    wait_until(
        lambda: create_topic(wire, topic).error_code == ErrorCode.NONE, what="the name is free"
    )
    cluster.wait_for_topic(wire, topic)
    assert cluster.topic_id(topic) != old_id
    assert append(wire, topic, b"new") == 0
    assert values_of(fetch(wire, topic, 0)) == [b"new"]
    request = FetchRequest(
        topics=[FetchTopic(topic_id=old_id, partitions=[FetchPartition(partition_max_bytes=1000)])]
    )
    answer = wire.ask(request, 13, FetchResponse)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", range(4))
def test_a_topic_grows(wire: WireClient, cluster: DialogueCluster, version: int) -> None:
    """B.4: "Count = total"."""
    topic = cluster.new_topic(2)
    append(wire, topic, b"before", partition=1)
    asked = CreatePartitionsTopic(name=topic, count=5, assignments=None)
    assert add_partitions(wire, asked, version=version) == {topic: ErrorCode.NONE}
    cluster.wait_for_topic(wire, topic, 5)
    assert len(describe_topic(wire, topic).partitions) == 5
    assert append(wire, topic, b"a", partition=4) == 0
    assert append(wire, topic, b"after", partition=1) == 1


@pytest.mark.parametrize("count", [3, 2, 0, -1])
def test_a_topic_does_not_shrink(wire: WireClient, cluster: DialogueCluster, count: int) -> None:
    """B.4: "not greater: INVALID_PARTITIONS (37)"."""
    topic = cluster.new_topic(3)
    asked = CreatePartitionsTopic(name=topic, count=count, assignments=None)
    assert add_partitions(wire, asked) == {topic: ErrorCode.INVALID_PARTITIONS}
    assert len(describe_topic(wire, topic).partitions) == 3


def test_every_topic_to_grow_is_answered(wire: WireClient, cluster: DialogueCluster) -> None:
    """B.4: "must echo one result per topic (Nisshi returned none)"."""
    grown, nowhere = cluster.new_topic(), unique("nowhere")
    asked = [
        CreatePartitionsTopic(name=name, count=2, assignments=None) for name in (grown, nowhere)
    ]
    validated = add_partitions(wire, *asked, validate_only=True)
    assert validated == {grown: ErrorCode.NONE, nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(describe_topic(wire, grown).partitions) == 1
    twice = add_partitions(wire, asked[0], asked[0], asked[1])
    assert twice[grown] == ErrorCode.INVALID_REQUEST
    assert add_partitions(wire, *asked) == validated


def test_new_partitions_may_be_placed_by_hand(wire: WireClient, cluster: DialogueCluster) -> None:
    """B.4: "assignments length must equal the added count (39)"."""
    topic = cluster.new_topic()

    def ask(*placed: list[int]) -> int:
        assignments = [CreatePartitionsAssignment(broker_ids=brokers) for brokers in placed]
        asked = CreatePartitionsTopic(name=topic, count=3, assignments=assignments)
        return add_partitions(wire, asked)[topic]

    placed = describe_topic(wire, topic).partitions[0].replica_nodes
    assert ask(placed) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert ask(placed, placed, placed) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    nowhere = [broker + 1000 for broker in placed]
    assert ask(placed, nowhere) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert ask(placed, placed[::-1]) == ErrorCode.NONE
    cluster.wait_for_topic(wire, topic, 3)
