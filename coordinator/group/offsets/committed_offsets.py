"""The committed offsets of one shard: commit, fetch, delete, expire.

All of this state is in the log. Commits are decided on the newest state. Fetches read committed
state: a consumer must never start from a commit that can still be reverted. The type of the group
validates a commit first (`offset_commands`).
"""

from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from odradek.coordinator.group.offsets.records import CommittedOffset, OffsetCommitRecord
from odradek.coordinator.group.requests import CommitRequest
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.timeline import Timeline, TimelineTable
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequestTopic,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from odradek.protocol.messages.partitions import PartitionResult, TopicPartitionResults
from odradek.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponseTopic,
)
from odradek.protocol.types import NO_OFFSET, NO_TIMESTAMP, ZERO_UUID, Uuid

NO_RETENTION = -1
REFUSALS_PER_SLICE: Final = 2_000
"""Answers of a long commit that are made at a stretch: about a millisecond."""
# The largest timestamp of a record: a client may ask for any retention.
TIMESTAMP_MAX = 2**63 - 1

PartitionKey = tuple[str, int]


CommitResponse: TypeAlias = OffsetCommitResponse | TxnOffsetCommitResponse


class _CommitResponses(NamedTuple):
    """The classes that a commit is answered with, which have the same fields."""

    response: type[Any]
    topic: type[Any]
    partition: type[Any]


_RESPONSES: Final = {
    OffsetCommitRequest: _CommitResponses(
        OffsetCommitResponse, OffsetCommitResponseTopic, PartitionResult
    ),
    TxnOffsetCommitRequest: _CommitResponses(
        TxnOffsetCommitResponse, TxnOffsetCommitResponseTopic, PartitionResult
    ),
}


class OffsetExpiration(NamedTuple):
    """When the offsets of a group expire, except commits with their own retention.

    The retention starts at `since_ms`, or at each commit if that is None. Offsets of `kept` topics
    do not expire.
    """

    since_ms: int | None
    kept: frozenset[str] = frozenset()


class CommittedOffsets:
    """All committed offsets of one shard."""

    __slots__ = ("_groups", "_no_offsets", "_timeline")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._groups: dict[str, TimelineTable[PartitionKey, CommittedOffset]] = {}
        # Stands for the table of a group that has none.
        self._no_offsets: TimelineTable[PartitionKey, CommittedOffset] = TimelineTable(timeline)

    def replay(self, record: OffsetCommitRecord) -> None:
        """Set or drop one offset."""
        table = self._groups.get(record.group_id)
        key = (record.topic, record.partition)
        if record.committed is not None:
            if table is None:
                table = self._groups[record.group_id] = TimelineTable(self._timeline)
            table.put(key, record.committed)
        elif table is not None:
            table.remove(key)
            if table.is_droppable:
                del self._groups[record.group_id]

    def group_ids(self) -> Iterator[str]:
        """The groups that may have offsets."""
        return iter(self._groups)

    def has_any(self, group_id: str) -> bool:
        """Whether the group has offsets, committed to the log or not."""
        return self.count(group_id) > 0

    def newest(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """The group's newest offset of one partition."""
        return self._groups.get(group_id, self._no_offsets).get((topic, partition))

    def count(self, group_id: str) -> int:
        """The number of offsets of the group."""
        return len(self._groups.get(group_id, self._no_offsets))

    def items(self, group_id: str) -> Iterator[tuple[PartitionKey, CommittedOffset]]:
        """The group's newest offsets."""
        return self._groups.get(group_id, self._no_offsets).items()

    def topics(self) -> set[tuple[str, Uuid]]:
        """Every (topic, id) with committed offsets; the id may be zero."""
        return {
            (topic, committed.topic_id)
            for table in self._groups.values()
            for (topic, _), committed in table.items()
        }

    def drop_blank(self, group_id: str) -> None:
        """Drop the empty table of a group without offsets."""
        table = self._groups.get(group_id)
        if table is not None and table.is_droppable:
            del self._groups[group_id]

    # -- commit -----------------------------------------------------------------------------------

    def commit(
        self, request: CommitRequest, now_ms: int, settings: GroupSettings
    ) -> tuple[tuple[OffsetCommitRecord, ...], CommitResponse]:
        """The records and the response of a valid commit."""
        made_response, made_topic, made_partition = _RESPONSES[type(request)]
        records: list[OffsetCommitRecord] = []
        topics = []
        # v2 to v4 of OffsetCommit: the commit names its own retention.
        retention_ms = getattr(request, "retention_time_ms", NO_RETENTION)
        expire_ms = NO_TIMESTAMP
        if retention_ms != NO_RETENTION:
            expire_ms = min(now_ms + retention_ms, TIMESTAMP_MAX)
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                index = partition.partition_index
                error = ErrorCode.NONE
                if is_too_long(partition.committed_metadata, settings.offset_metadata_bytes_max):
                    error = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    committed = _committed_offset(partition, topic.topic_id, now_ms, expire_ms)
                    records.append(
                        OffsetCommitRecord(request.group_id, topic.name, index, committed)
                    )
                partitions.append(made_partition(partition_index=index, error_code=error))
            topics.append(
                made_topic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
            )
        response: CommitResponse = made_response(topics=topics)
        return tuple(records), response

    # -- fetch ------------------------------------------------------------------------------------

    def fetch(
        self,
        group_id: str,
        topics: list[OffsetFetchRequestTopic] | None,
        is_unstable: Callable[[tuple[str, str, int]], bool] | None,
    ) -> OffsetFetchResponseGroup:
        """The committed offsets of these partitions, or of all. A missing offset is no error; one
        that `is_unstable`, by (group, topic, partition), is."""
        table = self._groups.get(group_id, self._no_offsets)
        found = (
            _all_topics(table)
            if topics is None
            else [
                OffsetFetchResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        _fetch_response_partition(
                            index, table.committed((topic.name, index)), topic.topic_id
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in topics
            ]
        )
        response = OffsetFetchResponseGroup(group_id=group_id, topics=found)
        if is_unstable is None:
            return response
        for topic in found:
            for partition in topic.partitions:
                if is_unstable((group_id, topic.name, partition.partition_index)):
                    partition.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
                    partition.committed_offset = NO_OFFSET
                    partition.committed_leader_epoch = -1
                    partition.metadata = ""
        return response

    # -- deletion and expiry ----------------------------------------------------------------------

    def delete(
        self, request: OffsetDeleteRequest, subscribed: frozenset[str] | None
    ) -> tuple[tuple[OffsetCommitRecord, ...], OffsetDeleteResponse]:
        """The records and the response of OffsetDelete. Subscribed topics (None: all) are
        refused."""
        table = self._groups.get(request.group_id, self._no_offsets)
        records: list[OffsetCommitRecord] = []
        topics: list[TopicPartitionResults] = []
        for topic in request.topics:
            is_read = subscribed is None or topic.name in subscribed
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE
            partitions: list[PartitionResult] = []
            for partition in topic.partitions:
                index = partition.partition_index
                partitions.append(PartitionResult(partition_index=index, error_code=error))
                if not is_read and (topic.name, index) in table:
                    records.append(OffsetCommitRecord(request.group_id, topic.name, index, None))
            topics.append(TopicPartitionResults(name=topic.name, partitions=partitions))
        return tuple(records), OffsetDeleteResponse(topics=topics)

    def tombstones(self, group_id: str) -> list[OffsetCommitRecord]:
        """The records that remove all offsets of a group."""
        return [
            OffsetCommitRecord(group_id, topic, partition, None)
            for (topic, partition), _ in self.items(group_id)
        ]

    def tombstones_of_topic(
        self, group_id: str, name: str, topic_id: Uuid
    ) -> list[OffsetCommitRecord]:
        """The records that remove a group's offsets of a deleted topic.

        Offsets that were committed on a newer topic of the same name stay.
        """
        return [
            OffsetCommitRecord(group_id, topic, partition, None)
            for (topic, partition), committed in self.items(group_id)
            if topic == name and committed.topic_id in (topic_id, ZERO_UUID)
        ]

    def expired(
        self, group_id: str, expiry: OffsetExpiration | None, now_ms: int, retention_ms: int
    ) -> list[OffsetCommitRecord]:
        """The records that remove a group's expired offsets; none without an expiration."""
        if expiry is None:
            return []
        return [
            OffsetCommitRecord(group_id, topic, partition, None)
            for (topic, partition), committed in self.items(group_id)
            if topic not in expiry.kept and _is_expired(committed, expiry, now_ms, retention_ms)
        ]


def refused_commit(request: CommitRequest, error_code: ErrorCode) -> CommitResponse:
    """The same error for every partition."""
    slices = refuse_commit_in_slices(request, error_code)
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            response: CommitResponse = stop.value
            return response


def refuse_commit_in_slices(
    request: CommitRequest, error_code: ErrorCode
) -> Generator[None, None, CommitResponse]:
    """As `refused_commit`. Yields after about REFUSALS_PER_SLICE partitions."""
    made = _RESPONSES[type(request)]
    topics = []
    left = REFUSALS_PER_SLICE
    for topic in request.topics:
        partitions = []
        # A topic without partitions counts, too.
        for start in range(0, len(topic.partitions) or 1, REFUSALS_PER_SLICE):
            part = topic.partitions[start : start + REFUSALS_PER_SLICE]
            partitions += [
                made.partition(partition_index=partition.partition_index, error_code=error_code)
                for partition in part
            ]
            left -= len(part) + 1
            if left <= 0:
                left = REFUSALS_PER_SLICE
                yield
        topics.append(made.topic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    response: CommitResponse = made.response(topics=topics)
    return response


def is_too_long(metadata: str | None, limit: int) -> bool:
    """Whether the metadata exceeds the limit, which counts UTF-16 code units as in Java."""
    if metadata is None or 2 * len(metadata) <= limit:
        return False
    return len(metadata.encode("utf-16-le", "surrogatepass")) > 2 * limit


def _committed_offset(
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    topic_id: Uuid,
    now_ms: int,
    expire_ms: int,
) -> CommittedOffset:
    # v1 of OffsetCommit names the time of the commit.
    named_ms = getattr(partition, "commit_timestamp", NO_TIMESTAMP)
    return CommittedOffset(
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata or "",
        now_ms if named_ms == NO_TIMESTAMP else named_ms,
        expire_ms,
        topic_id,
    )


def _is_expired(
    committed: CommittedOffset, expiry: OffsetExpiration, now_ms: int, retention_ms: int
) -> bool:
    if committed.expire_timestamp_ms != NO_TIMESTAMP:
        return now_ms >= committed.expire_timestamp_ms
    since_ms = committed.commit_timestamp_ms if expiry.since_ms is None else expiry.since_ms
    return now_ms - since_ms >= retention_ms


def _fetch_response_partition(
    index: int, committed: CommittedOffset | None, topic_id: Uuid
) -> OffsetFetchResponsePartition:
    """An offset of the response; one of an earlier topic of the same name is ignored."""
    if committed is None or (
        ZERO_UUID not in (topic_id, committed.topic_id) and topic_id != committed.topic_id
    ):
        return OffsetFetchResponsePartition(
            partition_index=index, committed_offset=NO_OFFSET, metadata=""
        )
    return OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _all_topics(
    table: TimelineTable[PartitionKey, CommittedOffset],
) -> list[OffsetFetchResponseTopic]:
    """Offsets of different topics with the same name are separate entries."""
    topics: dict[tuple[str, Uuid], OffsetFetchResponseTopic] = {}
    for (name, index), committed in sorted(table.committed_items(), key=lambda item: item[0]):
        key = (name, committed.topic_id)
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = OffsetFetchResponseTopic(name=name, topic_id=committed.topic_id)
        topic.partitions.append(_fetch_response_partition(index, committed, ZERO_UUID))
    return list(topics.values())
