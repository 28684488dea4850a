"""The topic APIs as clients see them, in every version (B.4)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.records import PartitionChanged
from odradek.node.bus.messages import AppendBytes
from odradek.node.router.handlers.topics import (
    fresh_topic_id,
    handle_create_partitions,
    handle_create_topics,
    handle_delete_records,
    handle_delete_topics,
)
from odradek.node.worker.turn_requests import RouterState
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.offsets import DeleteRecordsRequest
from odradek.protocol.messages.partitions import PartitionOffset, TopicOffsets
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from odradek.protocol.types import ZERO_UUID, uuid_to_text
from tests.support.controller_harness import topic_id
from tests.support.router_harness import RouterHarness
from tests.support.stores import batch_of

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    yield harness
    harness.close()


def add_topic(harness: RouterHarness, name: str, number: int, partitions: int = 1) -> None:
    harness.controller.has(name, number, partitions)
    harness.follow()


def topic(name: str, partitions: int = 1, factor: int = 1, **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def create(
    harness: RouterHarness,
    *topics: CreatableTopic,
    version: int | None = None,
    validate: bool = False,
) -> dict[str, CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=5_000, validate_only=validate)
    response = harness.call(handle_create_topics, request, version)
    return {result.name: result for result in response.topics}


# -- CreateTopics ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(8))
def test_a_topic_created_in_any_version_is_visible_at_once(
    harness: RouterHarness, version: int
) -> None:
    result = create(harness, topic("t", 3), version=version)["t"]
    assert result.error_code == ErrorCode.NONE
    image = harness.image.topics_by_name["t"]
    assert len(image.partitions) == 3
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert result.topic_config_error_code == 0
        assert result.configs
    if version >= 7:
        assert result.topic_id == image.topic_id


def test_the_worker_hosts_the_partitions_before_the_response(harness: RouterHarness) -> None:
    create(harness, topic("t", 3))
    image = harness.image.topics_by_name["t"]
    places = [harness.services.logs.locate(image.topic_id, number) for number in range(3)]
    assert None not in places
    assert len(set(places)) == 3


def test_configs_of_a_new_topic_have_their_sources(harness: RouterHarness) -> None:
    result = create(harness, topic("t", retention_ms="5"))["t"]
    assert result.configs is not None
    configs = {config.name: config for config in result.configs}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == (
        "delete",
        5,
    )


def test_validate_only_has_the_same_response(harness: RouterHarness) -> None:
    result = create(harness, topic("t", 3, retention_ms="5"), validate=True)["t"]
    assert (result.error_code, result.num_partitions) == (0, 3)
    assert result.configs
    assert {c.name: c.value for c in result.configs}["retention.ms"] == "5"
    assert "t" not in harness.image.topics_by_name


def test_manual_assignments_are_used(tmp_path: Path) -> None:
    harness = RouterHarness(tmp_path, brokers=2)
    wanted = topic("t", -1, -1)
    wanted.assignments = [
        CreatableReplicaAssignment(partition_index=1, broker_ids=[0]),
        CreatableReplicaAssignment(partition_index=0, broker_ids=[1]),
    ]
    assert create(harness, wanted)["t"].num_partitions == 2
    assert [p.replicas for p in harness.image.topics_by_name["t"].partitions] == [(1,), (0,)]
    harness.close()


def test_each_topic_has_its_own_error_and_message(harness: RouterHarness) -> None:
    results = create(harness, topic("good"), topic("bad", 0), topic("b@d"), topic("x"), topic("x"))
    assert {name: result.error_code for name, result in results.items()} == {
        "good": 0,
        "bad": 37,
        "b@d": 17,
        "x": 42,
    }
    for result in results.values():
        assert bool(result.error_code) == bool(result.error_message)
        assert bool(result.configs) != bool(result.error_code)
    assert results["bad"].num_partitions == -1


def test_creating_needs_create_on_the_cluster_or_on_the_topic(harness: RouterHarness) -> None:
    harness.deny(AclOperation.CREATE, CLUSTER, CLUSTER_NAME)
    harness.deny(AclOperation.CREATE, TOPIC, "secret")
    results = create(harness, topic("open"), topic("secret"))
    assert results["open"].error_code == ErrorCode.NONE
    assert results["secret"].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert list(harness.image.topics_by_name) == ["open"]


def test_configs_of_a_new_topic_need_describe_configs(harness: RouterHarness) -> None:
    # KIP-525
    harness.deny(AclOperation.DESCRIBE_CONFIGS, TOPIC, "t")
    result = create(harness, topic("t"))["t"]
    assert (result.error_code, result.topic_config_error_code) == (0, 29)
    assert result.configs == []
    assert (result.num_partitions, result.replication_factor) == (-1, -1)
    assert result.topic_id == harness.image.topics_by_name["t"].topic_id


def test_a_controller_that_does_not_answer_fails_each_topic(harness: RouterHarness) -> None:
    harness.link.failure = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    harness.deny(AclOperation.CREATE, CLUSTER, CLUSTER_NAME)
    harness.deny(AclOperation.CREATE, TOPIC, "c")
    results = create(harness, topic("a"), topic("b"), topic("c"))
    assert {name: result.error_code for name, result in results.items()} == {
        "a": 7,
        "b": 7,
        "c": 29,
    }
    assert harness.link.timeouts_ms == [5_000]


def test_topic_ids_are_random_and_never_start_with_a_dash() -> None:
    ids = {fresh_topic_id() for _ in range(2_000)}
    assert len(ids) == 2_000
    assert not any(uuid_to_text(number).startswith("-") for number in ids)


# -- DeleteTopics ----------------------------------------------------------------------------


def delete(
    harness: RouterHarness, *states: DeleteTopicState, version: int = 6
) -> list[DeletableTopicResult]:
    if version >= 6:
        request = DeleteTopicsRequest(topics=list(states), timeout_ms=5_000)
    else:
        names = [state.name or "" for state in states]
        request = DeleteTopicsRequest(topic_names=names, timeout_ms=5_000)
    return harness.call(handle_delete_topics, request, version).responses


@pytest.mark.parametrize("version", range(7))
def test_a_topic_is_deleted_by_name_in_any_version(harness: RouterHarness, version: int) -> None:
    add_topic(harness, "t", 1)
    (result,) = delete(harness, DeleteTopicState(name="t"), version=version)
    assert (result.name, result.error_code, result.error_message) == ("t", 0, None)
    assert "t" not in harness.image.topics_by_name
    assert harness.services.logs.locate(topic_id(2), 0) is None


def test_a_topic_is_deleted_by_id_and_named_in_the_answer(harness: RouterHarness) -> None:
    add_topic(harness, "t", 1)
    (result,) = delete(harness, DeleteTopicState(topic_id=topic_id(1)))
    assert (result.name, result.topic_id, result.error_code) == ("t", topic_id(1), 0)


def test_every_topic_is_answered_in_order(harness: RouterHarness) -> None:
    add_topic(harness, "a", 1)
    add_topic(harness, "b", 2)
    results = delete(
        harness,
        DeleteTopicState(name="nn"),
        DeleteTopicState(name="b"),
        DeleteTopicState(topic_id=topic_id(9)),
        DeleteTopicState(name="a", topic_id=topic_id(1)),
    )
    assert [(result.name, result.error_code) for result in results] == [
        ("nn", 3),
        ("b", 0),
        (None, 100),
        ("a", 42),
    ]
    assert list(harness.image.topics_by_name) == ["a"]


def test_deleting_needs_delete_on_the_topic(harness: RouterHarness) -> None:
    add_topic(harness, "t", 1)
    harness.deny(AclOperation.DELETE, TOPIC, "t")
    harness.deny(AclOperation.DELETE, TOPIC, "absent")
    results = delete(
        harness,
        DeleteTopicState(name="t"),
        DeleteTopicState(topic_id=topic_id(1)),
        DeleteTopicState(name="absent"),
    )
    # Whoever may describe topics may know that there is none.
    assert [result.error_code for result in results] == [29, 29, 3]
    assert results[1].name == "t"
    harness.deny(AclOperation.DESCRIBE, TOPIC, "absent")
    [hidden] = delete(harness, DeleteTopicState(name="absent"))
    assert hidden.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "t" in harness.image.topics_by_name


def test_an_id_of_a_hidden_topic_does_not_tell_its_name(harness: RouterHarness) -> None:
    add_topic(harness, "t", 1)
    harness.deny(AclOperation.DESCRIBE, TOPIC, "t")
    (result,) = delete(harness, DeleteTopicState(topic_id=topic_id(1)))
    assert (result.error_code, result.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)


@pytest.mark.parametrize(("version", "code"), [(2, 42), (3, 73), (6, 73)])
def test_disabled_deletion_has_its_own_error_code_since_version_3(
    harness: RouterHarness, version: int, code: int
) -> None:
    add_topic(harness, "t", 1)
    harness.controller.set_config(ConfigResourceType.BROKER, "", delete_topic_enable="false")
    (result,) = delete(harness, DeleteTopicState(name="t"), version=version)
    assert result.error_code == code


def test_a_controller_that_does_not_answer_fails_each_deletion(harness: RouterHarness) -> None:
    harness.link.failure = ApiError(ErrorCode.NOT_CONTROLLER)
    results = delete(harness, DeleteTopicState(name="a"), DeleteTopicState(topic_id=topic_id(1)))
    assert [(result.name, result.error_code) for result in results] == [("a", 41), (None, 41)]
    assert results[1].topic_id == topic_id(1)
    assert results[0].topic_id == ZERO_UUID


# -- CreatePartitions ------------------------------------------------------------------------


def create_partitions(
    harness: RouterHarness, *wanted: CreatePartitionsTopic, version: int = 3, validate: bool = False
) -> list[tuple[str, int]]:
    request = CreatePartitionsRequest(topics=list(wanted), timeout_ms=5_000, validate_only=validate)
    response = harness.call(handle_create_partitions, request, version)
    assert all(bool(r.error_code) == bool(r.error_message) for r in response.results)
    return [(result.name, result.error_code) for result in response.results]


def new_partitions(name: str, count: int, *assignments: list[int]) -> CreatePartitionsTopic:
    return CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=[CreatePartitionsAssignment(broker_ids=nodes) for nodes in assignments] or None,
    )


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_in_any_version(harness: RouterHarness, version: int) -> None:
    add_topic(harness, "t", 1)
    assert create_partitions(harness, new_partitions("t", 3), version=version) == [("t", 0)]
    assert len(harness.image.topics_by_name["t"].partitions) == 3
    assert harness.services.logs.locate(topic_id(1), 2) is not None


def test_each_topic_is_answered_once_and_in_order(harness: RouterHarness) -> None:
    # B.4: one result per topic.
    add_topic(harness, "a", 1)
    add_topic(harness, "b", 2)
    harness.deny(AclOperation.ALTER, TOPIC, "secret")
    wanted = [
        new_partitions("nn", 3),
        new_partitions("b", 2, [0]),
        new_partitions("secret", 2),
        new_partitions("a", 1),
        new_partitions("nn", 4),
    ]
    assert create_partitions(harness, *wanted) == [("nn", 42), ("b", 0), ("secret", 29), ("a", 37)]


def test_create_partitions_with_validate_only_changes_nothing(harness: RouterHarness) -> None:
    add_topic(harness, "t", 1)
    assert create_partitions(harness, new_partitions("t", 3), validate=True) == [("t", 0)]
    assert len(harness.image.topics_by_name["t"].partitions) == 1


def test_a_controller_that_does_not_answer_fails_create_partitions(harness: RouterHarness) -> None:
    add_topic(harness, "t", 1)
    harness.link.failure = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    assert create_partitions(harness, new_partitions("t", 3)) == [("t", 7)]


# -- DeleteRecords ---------------------------------------------------------------------------


def fill(harness: RouterHarness, name: str, records: int, partition: int = 0) -> None:
    image = harness.image.topics_by_name[name]
    place = harness.services.logs.locate(image.topic_id, partition)
    assert place is not None
    router = RouterState()
    harness.turns.run([(router, AppendBytes(1, *place, batch_of(records)))], 0)
    (answer,) = router.replies
    assert answer.error_code == 0  # type: ignore[union-attr]  # an Appended


def delete_records(
    harness: RouterHarness, name: str, *wanted: tuple[int, int], version: int = 2
) -> list[tuple[int, int, int]]:
    partitions = [PartitionOffset(partition_index=p, offset=o) for p, o in wanted]
    request = DeleteRecordsRequest(
        topics=[TopicOffsets(name=name, partitions=partitions)], timeout_ms=5_000
    )
    (answer,) = harness.call(handle_delete_records, request, version).topics
    assert answer.name == name
    return [(p.partition_index, p.error_code, p.low_watermark) for p in answer.partitions]


@pytest.mark.parametrize("version", range(3))
def test_records_are_deleted_up_to_an_offset_or_the_high_watermark(
    harness: RouterHarness, version: int
) -> None:
    add_topic(harness, "t", 1, partitions=2)
    fill(harness, "t", 10, partition=0)
    fill(harness, "t", 4, partition=1)
    assert delete_records(harness, "t", (0, 6), (1, -1), version=version) == [(0, 0, 6), (1, 0, 4)]
    assert delete_records(harness, "t", (0, 3), version=version) == [(0, 0, 6)], (
        "the start never goes back"
    )


def test_records_above_the_high_watermark_cannot_be_deleted(harness: RouterHarness) -> None:
    add_topic(harness, "t", 1)
    fill(harness, "t", 10)
    assert delete_records(harness, "t", (0, 11)) == [(0, ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
    assert delete_records(harness, "t", (0, -2)) == [(0, ErrorCode.OFFSET_OUT_OF_RANGE, -1)]


def test_records_of_unknown_partitions_cannot_be_deleted(harness: RouterHarness) -> None:
    add_topic(harness, "t", 1)
    assert delete_records(harness, "nn", (0, 1)) == [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    assert delete_records(harness, "t", (1, 1), (-1, 1)) == [(1, 3, -1), (-1, 3, -1)]


def test_only_the_leader_deletes_records(harness: RouterHarness) -> None:
    add_topic(harness, "t", 1)
    (partition,) = harness.image.topics_by_name["t"].partitions
    elsewhere = type(partition)(partition.replicas, partition.in_sync_replicas, 5, 1)
    harness.controller.write(PartitionChanged(topic_id(1), 0, elsewhere))
    harness.follow()
    assert delete_records(harness, "t", (0, 0)) == [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


def test_records_of_a_compacted_topic_cannot_be_deleted(harness: RouterHarness) -> None:
    # B.4: compact-only topics POLICY_VIOLATION.
    add_topic(harness, "t", 1)
    harness.controller.set_config(ConfigResourceType.TOPIC, "t", cleanup_policy="compact")
    harness.follow()
    assert delete_records(harness, "t", (0, 0)) == [(0, ErrorCode.POLICY_VIOLATION, -1)]
    harness.controller.set_config(ConfigResourceType.TOPIC, "t", cleanup_policy="compact,delete")
    harness.follow()
    assert delete_records(harness, "t", (0, 0)) == [(0, 0, 0)]


def test_records_of_internal_topics_cannot_be_deleted(harness: RouterHarness) -> None:
    add_topic(harness, "__consumer_offsets", 1)
    code = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert delete_records(harness, "__consumer_offsets", (0, 0)) == [(0, code, -1)]


def test_deleting_records_needs_delete_on_the_topic(harness: RouterHarness) -> None:
    add_topic(harness, "t", 1)
    harness.deny(AclOperation.DELETE, TOPIC, "t")
    harness.deny(AclOperation.DELETE, TOPIC, "absent")
    assert delete_records(harness, "t", (0, 0)) == [(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)]
    assert delete_records(harness, "absent", (0, 0)) == [
        (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)
    ]


def test_a_topic_with_more_configs_than_exist_is_refused_alone(harness: RouterHarness) -> None:
    many = topic("many")
    many.configs = [
        CreatableTopicConfig(name=f"name-{number}", value="1") for number in range(1_001)
    ]
    request = CreateTopicsRequest(topics=[many, topic("other")], timeout_ms=1_000)
    answer = harness.call(handle_create_topics, request, 7)
    assert [(each.name, each.error_code) for each in answer.topics] == [
        ("many", ErrorCode.INVALID_CONFIG),
        ("other", ErrorCode.NONE),
    ]
    assert answer.topics[0].error_message == "A topic has at most 1000 configs."
