"""Offsets of a consumer group, committed and fetched without being a member of it.

A job knows by itself which partitions it reads. It commits for those who look: lag in Kafka's
tools, and the broker's retention gate. Kafka takes such a commit only while the group has no
members. Called by the source's `commit()` and by jobs; the sink reads its batches' marks here.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Final, NamedTuple, TypeAlias

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.librdkafka import ClientErrors, open_client, reason_of
from odradek.pipeline.missing_rights import missing_right

# What passes by itself. librdkafka's AdminClient does not try again.
_PASSING: Final = frozenset(
    {
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
_BACKOFF_S: Final = 0.05

_Answers: TypeAlias = Mapping[str, "Future[ConsumerGroupTopicPartitions]"]

# What a commit without a member gets while the group has some. The classic protocol's answer is
# the first one, the consumer protocol's (KIP-848) the second.
_HAS_MEMBERS: Final = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.NON_EMPTY_GROUP,
    }
)
_UNREACHABLE: Final = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
)


class OffsetOfGroup(NamedTuple):
    """A committed offset and the text that was committed with it."""

    offset: int
    metadata: str


class _Failure(NamedTuple):
    code: int
    reason: str


def commit_offsets(
    properties: Mapping[str, str],
    group: str,
    offsets: Mapping[PartitionName, int],
    *,
    timeout_s: float,
) -> None:
    """Commit for the group the offsets that are to be read next. Nothing to commit is no request.

    PipelineError if the group has members, or a partition was refused.
    """
    if not offsets:
        return
    partitions = [TopicPartition(*name, offset) for name, offset in offsets.items()]
    request = ConsumerGroupTopicPartitions(group, partitions)
    _ask(
        properties,
        group,
        "commit",
        timeout_s,
        lambda admin: admin.alter_consumer_group_offsets([request], request_timeout=timeout_s),
    )


def committed_offsets(
    properties: Mapping[str, str],
    group: str,
    partitions: Iterable[PartitionName],
    *,
    timeout_s: float,
) -> dict[PartitionName, int]:
    """The group's committed offsets; partitions for which it has none are left out."""
    wanted = set(partitions)
    if not wanted:
        return {}
    found = committed_with_metadata(properties, group, wanted, timeout_s=timeout_s)
    return {name: each.offset for name, each in found.items()}


def committed_with_metadata(
    properties: Mapping[str, str],
    group: str,
    partitions: Collection[PartitionName] | None,
    *,
    timeout_s: float,
) -> dict[PartitionName, OffsetOfGroup]:
    """The group's committed offsets with their metadata, of these partitions or (None) of all.

    An offset in a transaction that is not complete is waited for (KIP-447's stable offsets).
    """
    named = None if partitions is None else [TopicPartition(*name) for name in partitions]
    request = ConsumerGroupTopicPartitions(group, named)
    answered = _ask(
        properties,
        group,
        "fetch",
        timeout_s,
        lambda admin: admin.list_consumer_group_offsets(
            [request], require_stable=True, request_timeout=timeout_s
        ),
    )
    return {
        PartitionName(each.topic, each.partition): OffsetOfGroup(each.offset, each.metadata or "")
        for each in answered
        if each.offset >= 0
    }


def _ask(
    properties: Mapping[str, str],
    group: str,
    what: str,
    timeout_s: float,
    send: Callable[[AdminClient], _Answers],
) -> list[TopicPartition]:
    """The answered partitions, none of them with an error."""
    errors = ClientErrors()
    admin = open_client(AdminClient, {**properties, "error_cb": errors})
    deadline = time.monotonic() + timeout_s
    while True:
        answered, failure = _answer_of(send(admin)[group])
        if failure is None:
            return answered
        if failure.code not in _PASSING or time.monotonic() > deadline:
            break
        time.sleep(_BACKOFF_S)
    admin.poll(0)  # Only here it calls error_cb.
    raise _error(group, what, failure, f"{properties['bootstrap.servers']}{errors.explain()}")


def _answer_of(
    future: "Future[ConsumerGroupTopicPartitions]",
) -> tuple[list[TopicPartition], _Failure | None]:
    try:
        answered = future.result().topic_partitions or []
    except KafkaException as error:
        return [], _Failure(error.args[0].code(), reason_of(error))
    for each in answered:
        if each.error is not None:
            name = PartitionName(each.topic, each.partition)
            return [], _Failure(each.error.code(), f"{name}: {each.error.str()}")
    return answered, None


def _error(group: str, what: str, failure: _Failure, servers: str) -> PipelineError:
    if failure.code in _UNREACHABLE:
        return PipelineError(
            f"cannot {what} offsets of group {group}: no answer from {servers}; check"
            " kafka.bootstrap.servers and that the cluster runs"
        )
    if failure.code in _HAS_MEMBERS:
        return PipelineError(
            f"cannot {what} offsets of group {group}: the group has members, and Kafka then takes"
            " offsets from them only; stop the consumers of this group, or name another group"
        )
    if failure.code == KafkaError.UNSTABLE_OFFSET_COMMIT:
        return PipelineError(
            f"cannot {what} offsets of group {group}: a transaction with offsets of this group is"
            " open; complete it, or wait until the cluster aborts it"
        )
    needed = missing_right(failure.code, topic="Read on the topic", group=group)
    return PipelineError(f"cannot {what} offsets of group {group}: {failure.reason}{needed}")
