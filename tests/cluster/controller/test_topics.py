"""CreateTopics, DeleteTopics, CreatePartitions, code by code.

Where a test names Kafka, the answer is that of a Kafka 4.3.1.
"""

import random

import pytest

from odradek.cluster.controller.commands import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewPartitions,
    NewTopic,
    ReplicaAssignment,
    TopicReference,
    TopicsReply,
)
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.records import PartitionChanged, TopicDeleted
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import ZERO_UUID
from tests.support.controller_harness import ControllerHarness, topic_id
from tests.support.metadata_history import have_same_content

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


def new(name: str, partitions: int = 1, factor: int = 1, **configs: str | None) -> NewTopic:
    return NewTopic(
        name,
        topic_id(7),
        partitions,
        factor,
        configs=tuple((key.replace("_", "."), value) for key, value in configs.items()),
    )


def assigned(*replicas: tuple[int, ...], partitions: int = -1, factor: int = -1) -> NewTopic:
    return NewTopic(
        "t",
        topic_id(7),
        partitions,
        factor,
        tuple(ReplicaAssignment(number, nodes) for number, nodes in enumerate(replicas)),
    )


def code_of(harness: ControllerHarness, topic: NewTopic) -> int:
    (result,) = harness.create(topic).values()
    if result.error_code:
        assert result.error_message
        assert topic.name not in harness.image.topics_by_name or result.error_code == 36
    return result.error_code


# -- CreateTopics ----------------------------------------------------------------------------


def test_a_topic_is_created_with_its_id_partitions_and_configs() -> None:
    harness = ControllerHarness(brokers=3)
    result = harness.create(new("t", 4, 2, retention_ms=" 5 "))["t"]
    assert (result.error_code, result.topic_id) == (ErrorCode.NONE, topic_id(7))
    assert (result.partition_count, result.replication_factor) == (4, 2)
    topic = harness.image.topics_by_name["t"]
    assert topic is harness.image.topics_by_id[topic_id(7)]
    assert len(topic.partitions) == 4
    for partition in topic.partitions:
        assert len(set(partition.replicas)) == 2
        assert partition.in_sync_replicas == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert harness.image.configs.of(TOPIC, "t") == {"retention.ms": "5"}


def test_minus_one_asks_for_the_clusters_defaults() -> None:
    harness = ControllerHarness(brokers=3, static={"default.replication.factor": "2"})
    harness.set_config(BROKER, "", num_partitions="5")
    result = harness.create(new("t", -1, -1))["t"]
    assert (result.partition_count, result.replication_factor) == (5, 2)


def test_validate_only_does_everything_but_create() -> None:
    harness = ControllerHarness()
    before = harness.image
    result = harness.create(new("t", 3), validate_only=True)["t"]
    assert (result.error_code, result.partition_count) == (ErrorCode.NONE, 3)
    assert harness.create(new("b@d"), validate_only=True)["b@d"].error_code == 17
    assert harness.image is before


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "b@d"])
def test_bad_names_are_invalid_topics(name: str) -> None:
    assert code_of(ControllerHarness(), new(name)) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_an_existing_name_is_refused() -> None:
    harness = ControllerHarness()
    harness.has("t", 1)
    assert code_of(harness, new("t")) == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_repeated_creation_with_the_same_topic_id_succeeds() -> None:
    """A router repeats the command if its controller died before the response."""
    harness = ControllerHarness(brokers=2)
    first = harness.create(new("t", 3, 2, retention_ms="5"))["t"]
    written = len(harness.records)
    assert harness.create(new("t", 3, 2, retention_ms="5"))["t"] == first
    assert len(harness.records) == written


def test_names_that_differ_in_dots_and_underscores_only_are_refused() -> None:
    harness = ControllerHarness()
    harness.has("a.b", 1)
    assert code_of(harness, new("a_b")) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code_of(harness, new("a-b")) == ErrorCode.NONE


def test_names_collide_within_a_request_too() -> None:
    results = ControllerHarness().create(new("z.z"), NewTopic("z_z", topic_id(8), 1, 1))
    assert results["z.z"].error_code == ErrorCode.NONE
    assert results["z_z"].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_name_is_free_after_the_colliding_topic_is_deleted() -> None:
    harness = ControllerHarness()
    harness.has("a.b", 1)
    harness.do(DeleteTopics((TopicReference("a.b"),)))
    assert code_of(harness, new("a_b")) == ErrorCode.NONE


def test_a_topic_named_twice_is_answered_once_and_the_others_are_created() -> None:
    # Kafka: INVALID_REQUEST for d1, d2 is created.
    harness = ControllerHarness()
    reply = harness.do(CreateTopics((new("d1"), NewTopic("d2", topic_id(8), 1, 1), new("d1", 2))))
    assert isinstance(reply, TopicsReply)
    assert [(result.name, result.error_code) for result in reply.results] == [
        ("d1", ErrorCode.INVALID_REQUEST),
        ("d2", ErrorCode.NONE),
    ]
    assert list(harness.image.topics_by_name) == ["d2"]


@pytest.mark.parametrize("count", [0, -2])
def test_there_is_at_least_one_partition(count: int) -> None:
    assert code_of(ControllerHarness(), new("t", count)) == ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("factor", [0, -2, 2])
def test_there_are_as_many_brokers_as_replicas(factor: int) -> None:
    assert code_of(ControllerHarness(), new("t", 1, factor)) == ErrorCode.INVALID_REPLICATION_FACTOR


def test_fenced_brokers_get_no_replicas_where_there_are_enough_others() -> None:
    harness = ControllerHarness(brokers=3)
    harness.fence(1)
    assert code_of(harness, new("t", 9, 2)) == ErrorCode.NONE
    assert all(1 not in partition.replicas for partition in harness.partitions("t"))


def test_a_topic_is_created_while_a_broker_is_fenced_with_a_replica_on_it() -> None:
    harness = ControllerHarness(brokers=3)
    harness.fence(1)
    assert code_of(harness, new("t", 9, 4)) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert code_of(harness, new("t", 9, 3)) == ErrorCode.NONE
    for partition in harness.partitions("t"):
        assert partition.replicas[-1] == 1
        assert partition.in_sync_replicas == partition.replicas[:2]
        assert partition.leader == partition.replicas[0]


def test_cordoned_brokers_get_no_new_replicas() -> None:
    harness = ControllerHarness(brokers=4)
    harness.set_config(BROKER, "2", cordoned_log_dirs="*")
    harness.set_config(BROKER, "3", cordoned_log_dirs="*")
    harness.fence(3)
    assert code_of(harness, new("t", 9, 2)) == ErrorCode.NONE
    replicas = {replica for partition in harness.partitions("t") for replica in partition.replicas}
    assert replicas == {0, 1}
    wide = NewTopic("u", topic_id(8), 1, 3)
    result = harness.create(wide)["u"]
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "cordoned.log.dirs is set for 2, 3" in str(result.error_message)
    harness.set_config(BROKER, "2", cordoned_log_dirs="")
    assert code_of(harness, wide) == ErrorCode.NONE


def test_no_topic_is_created_while_all_brokers_are_fenced() -> None:
    harness = ControllerHarness(brokers=2)
    harness.fence(0, 1)
    result = harness.create(new("t", 1, 1))["t"]
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "fenced" in str(result.error_message)


def test_a_request_creates_ten_thousand_partitions_at_most() -> None:
    # Kafka: POLICY_VIOLATION for all topics of the request, also for those that would fit.
    harness = ControllerHarness()
    results = harness.create(new("a", 9_000), NewTopic("b", topic_id(8), 1_001, 1))
    assert {result.error_code for result in results.values()} == {ErrorCode.POLICY_VIOLATION}
    assert code_of(harness, new("t", 2**31 - 1)) == ErrorCode.POLICY_VIOLATION
    assert code_of(harness, new("t", 10_000)) == ErrorCode.NONE
    assert len(harness.partitions("t")) == 10_000


# -- CreateTopics with assignments -----------------------------------------------------------


def test_manual_assignments_are_used_as_given() -> None:
    harness = ControllerHarness(brokers=3)
    result = harness.create(assigned((2, 0), (1, 2)))["t"]
    assert (result.partition_count, result.replication_factor) == (2, 2)
    assert [partition.replicas for partition in harness.partitions("t")] == [(2, 0), (1, 2)]
    assert [partition.leader for partition in harness.partitions("t")] == [2, 1]


def test_a_fenced_broker_may_be_assigned_but_is_not_in_sync() -> None:
    harness = ControllerHarness(brokers=3)
    harness.fence(2)
    assert code_of(harness, assigned((2, 0))) == ErrorCode.NONE
    (partition,) = harness.partitions("t")
    assert (partition.replicas, partition.in_sync_replicas, partition.leader) == ((2, 0), (0,), 0)


@pytest.mark.parametrize(("partitions", "factor"), [(1, -1), (-1, 1), (1, 1)])
def test_manual_assignments_require_counts_of_minus_one(partitions: int, factor: int) -> None:
    # B.4: manual assignments need partitions=-1 and rf=-1.
    topic = assigned((0,), partitions=partitions, factor=factor)
    assert code_of(ControllerHarness(), topic) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "assignments",
    [
        ((1, (0,)),),
        ((0, (0,)), (2, (0,))),
        ((0, (0,)), (0, (0,))),
        ((0, (9,)),),
        ((0, (-1,)),),
        ((0, (0, 0)),),
        ((0, ()),),
        ((0, (0,)), (1, (0, 1))),
    ],
    ids=["not from 0", "a gap", "twice", "unknown", "negative", "a broker twice", "none", "uneven"],
)
def test_invalid_assignments_are_refused(
    assignments: tuple[tuple[int, tuple[int, ...]], ...],
) -> None:
    topic = NewTopic(
        "t", topic_id(7), assignments=tuple(ReplicaAssignment(*pair) for pair in assignments)
    )
    assert code_of(ControllerHarness(brokers=2), topic) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_an_assignment_to_fenced_brokers_only_is_refused() -> None:
    harness = ControllerHarness(brokers=2)
    harness.fence(0)
    assert code_of(harness, assigned((0,))) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


# -- CreateTopics with configs ---------------------------------------------------------------


@pytest.mark.parametrize(
    "configs",
    [
        {"nope": "1"},
        {"retention_ms": "abc"},
        {"retention_ms": "-5"},
        {"retention_ms": None},
        {"cleanup_policy": "foo"},
        {"remote_storage_enable": "true"},
        {"min_compaction_lag_ms": "10", "max_compaction_lag_ms": "5"},
    ],
)
def test_invalid_configs_are_refused(configs: dict[str, str | None]) -> None:
    assert code_of(ControllerHarness(), new("t", 1, 1, **configs)) == ErrorCode.INVALID_CONFIG


def test_configs_are_validated_together_with_the_defaults() -> None:
    harness = ControllerHarness()
    harness.set_config(BROKER, "", log_cleaner_max_compaction_lag_ms="5")
    topic = new("t", min_compaction_lag_ms="10")
    assert code_of(harness, topic) == ErrorCode.INVALID_CONFIG


def test_the_last_of_duplicate_configs_counts() -> None:
    # Kafka accepts it.
    harness = ControllerHarness()
    topic = NewTopic("t", topic_id(7), 1, 1, configs=(("flush.ms", "1"), ("flush.ms", "2")))
    assert code_of(harness, topic) == ErrorCode.NONE
    assert harness.image.configs.of(TOPIC, "t") == {"flush.ms": "2"}


def test_a_failed_topic_does_not_fail_others() -> None:
    results = ControllerHarness().create(new("bad", 0), NewTopic("good", topic_id(8), 1, 1))
    assert [result.error_code for result in results.values()] == [37, 0]


# -- DeleteTopics ----------------------------------------------------------------------------


def deleted(harness: ControllerHarness, *topics: TopicReference) -> list[tuple[str | None, int]]:
    reply = harness.do(DeleteTopics(topics))
    assert isinstance(reply, TopicsReply)
    return [(result.name, result.error_code) for result in reply.results]


def test_topics_are_deleted_by_name_and_by_id_with_their_configs() -> None:
    harness = ControllerHarness()
    harness.has("a", 1)
    harness.has("b", 2)
    harness.set_config(TOPIC, "a", flush_ms="5")
    assert deleted(harness, TopicReference("a"), TopicReference(None, topic_id(2))) == [
        ("a", 0),
        ("b", 0),
    ]
    assert not harness.image.topics_by_name
    assert not harness.image.configs


def test_a_recreated_topic_has_a_new_id() -> None:
    harness = ControllerHarness()
    harness.has("a", 1)
    deleted(harness, TopicReference("a"))
    harness.has("a", 2)
    assert deleted(harness, TopicReference(None, topic_id(1))) == [
        (None, ErrorCode.UNKNOWN_TOPIC_ID)
    ]
    assert "a" in harness.image.topics_by_name


def test_an_unknown_topic_cannot_be_deleted() -> None:
    harness = ControllerHarness()
    assert deleted(harness, TopicReference("a")) == [("a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert deleted(harness, TopicReference("b@d")) == [
        ("b@d", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ]
    assert deleted(harness, TopicReference(None, topic_id(1))) == [
        (None, ErrorCode.UNKNOWN_TOPIC_ID)
    ]


def test_a_topic_is_named_by_name_or_by_id() -> None:
    # B.4: both set gives 42; Kafka says the same of neither.
    harness = ControllerHarness()
    harness.has("a", 1)
    assert deleted(harness, TopicReference("a", topic_id(1))) == [("a", ErrorCode.INVALID_REQUEST)]
    assert deleted(harness, TopicReference(None, ZERO_UUID)) == [(None, ErrorCode.INVALID_REQUEST)]
    assert "a" in harness.image.topics_by_name


def test_a_topic_named_twice_is_not_deleted() -> None:
    harness = ControllerHarness()
    harness.has("a", 1)
    assert deleted(harness, TopicReference("a"), TopicReference("a")) == [("a", 42)]
    assert "a" in harness.image.topics_by_name


def test_a_topic_named_by_name_and_by_id_is_deleted_once() -> None:
    harness = ControllerHarness()
    harness.has("a", 1)
    assert deleted(harness, TopicReference("a"), TopicReference(None, topic_id(1))) == [
        ("a", 0),
        (None, 42),
    ]
    assert sum(isinstance(record, TopicDeleted) for record in harness.records) == 1


def test_deletion_can_be_forbidden_at_run_time() -> None:
    harness = ControllerHarness()
    harness.has("a", 1)
    harness.set_config(BROKER, "", delete_topic_enable="false")
    assert deleted(harness, TopicReference("a")) == [("a", ErrorCode.TOPIC_DELETION_DISABLED)]
    harness.set_config(BROKER, "", delete_topic_enable="true")
    assert deleted(harness, TopicReference("a")) == [("a", 0)]


# -- CreatePartitions ------------------------------------------------------------------------


def grown(
    harness: ControllerHarness, *topics: NewPartitions, validate_only: bool = False
) -> list[int]:
    reply = harness.do(CreatePartitions(topics, validate_only))
    assert isinstance(reply, TopicsReply)
    assert all(result.error_message for result in reply.results if result.error_code)
    return [result.error_code for result in reply.results]


def test_adding_partitions_keeps_the_existing_ones() -> None:
    harness = ControllerHarness(brokers=3)
    harness.has("a", 1, partitions=2, factor=2)
    before = harness.partitions("a")
    assert grown(harness, NewPartitions("a", 5)) == [ErrorCode.NONE]
    after = harness.partitions("a")
    assert after[:2] == before
    assert len(after) == 5
    assert all(len(partition.replicas) == 2 for partition in after)


def test_partitions_added_later_are_placed_as_if_created_at_once() -> None:
    harness = ControllerHarness(brokers=4)
    harness.has("a", 5, partitions=2, factor=3)
    grown(harness, NewPartitions("a", 11))
    other = ControllerHarness(brokers=4)
    other.has("a", 5, partitions=11, factor=3)
    assert harness.partitions("a") == other.partitions("a")


def test_new_partitions_may_be_assigned() -> None:
    harness = ControllerHarness(brokers=2)
    harness.has("a", 1)
    assert grown(harness, NewPartitions("a", 3, ((1,), (0,)))) == [0]
    assert [partition.replicas for partition in harness.partitions("a")[1:]] == [(1,), (0,)]


@pytest.mark.parametrize("count", [2, 1, 0, -1])
def test_the_count_is_the_total_and_must_be_more(count: int) -> None:
    harness = ControllerHarness()
    harness.has("a", 1, partitions=2)
    assert grown(harness, NewPartitions("a", count)) == [ErrorCode.INVALID_PARTITIONS]


@pytest.mark.parametrize("name", ["nn", ""])
def test_partitions_of_an_unknown_topic_cannot_be_added(name: str) -> None:
    harness = ControllerHarness()
    assert grown(harness, NewPartitions(name, 3)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize(
    "assignments",
    [((0,), (0,)), (), ((9,),), ((0, 0),), ((),), ((0, 1),)],
    ids=["too many", "too few", "unknown", "a broker twice", "none", "another factor"],
)
def test_wrong_assignments_of_new_partitions_are_refused(
    assignments: tuple[tuple[int, ...], ...],
) -> None:
    harness = ControllerHarness(brokers=2)
    harness.has("a", 1)
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grown(harness, NewPartitions("a", 2, assignments)) == [code]


def test_every_topic_is_answered_once() -> None:
    # B.4: must echo one result per topic.
    harness = ControllerHarness()
    harness.has("a", 1)
    harness.has("b", 2)
    wanted = [NewPartitions("b", 4), NewPartitions("a", 2), NewPartitions("a", 3)]
    reply = harness.do(CreatePartitions(tuple(wanted)))
    assert isinstance(reply, TopicsReply)
    assert [(result.name, result.error_code) for result in reply.results] == [("b", 0), ("a", 42)]
    assert len(harness.partitions("a")) == 1


def test_validate_only_adds_nothing() -> None:
    harness = ControllerHarness()
    harness.has("a", 1)
    assert grown(harness, NewPartitions("a", 3), validate_only=True) == [0]
    assert len(harness.partitions("a")) == 1


def test_partitions_cannot_be_added_during_a_reassignment() -> None:
    harness = ControllerHarness(brokers=2)
    harness.has("a", 1)
    (partition,) = harness.partitions("a")
    moving = type(partition)(
        partition.replicas, partition.in_sync_replicas, partition.leader, adding_replicas=(1,)
    )
    harness.write(PartitionChanged(topic_id(1), 0, moving))
    assert grown(harness, NewPartitions("a", 2)) == [ErrorCode.REASSIGNMENT_IN_PROGRESS]


def test_one_request_adds_ten_thousand_partitions_at_most() -> None:
    harness = ControllerHarness()
    harness.has("a", 1)
    assert grown(harness, NewPartitions("a", 10_002)) == [ErrorCode.POLICY_VIOLATION]
    assert grown(harness, NewPartitions("a", 2**31 - 1)) == [ErrorCode.POLICY_VIOLATION]
    assert grown(harness, NewPartitions("a", 10_001)) == [ErrorCode.NONE]


# -- all of them, against a twin -------------------------------------------------------------


@pytest.mark.parametrize("seed", range(15))
def test_random_commands_give_the_topics_of_a_simple_model(seed: int) -> None:
    chance = random.Random(seed)
    harness = ControllerHarness(brokers=4)
    twin: dict[str, int] = {}
    names = ["a", "a.b", "a_b", "c", "d-e", "..", "f"]
    for step in range(120):
        name = chance.choice(names)
        is_free = name not in twin and name != ".."
        is_free = is_free and not any(
            other.replace(".", "_") == name.replace(".", "_") for other in twin
        )
        match chance.choice("ccdp"):
            case "c":
                count, factor = chance.randint(0, 5), chance.randint(1, 5)
                topic = NewTopic(name, topic_id(step), count, factor)
                is_good = is_free and count > 0 and factor <= 4
                assert (harness.create(topic)[name].error_code == 0) == is_good, (seed, step)
                if is_good:
                    twin[name] = count
            case "d":
                ((_, code),) = deleted(harness, TopicReference(name))
                assert (code == 0) == (name in twin), (seed, step)
                twin.pop(name, None)
            case "p":
                count = chance.randint(0, 8)
                (code,) = grown(harness, NewPartitions(name, count))
                is_good = count > twin.get(name, 99)
                assert (code == 0) == is_good, (seed, step)
                if is_good:
                    twin[name] = count
        have = {name: len(topic.partitions) for name, topic in harness.image.topics_by_name.items()}
        assert have == twin, (seed, step)
    assert have_same_content(harness.restarted(), harness.image)
