"""Offsets of partitions on any broker: start, end, and the first record after a timestamp.

Sends ListOffsets to all leaders at once. If a leader does not answer, its partitions get
LEADER_NOT_AVAILABLE. Called by handlers.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from odradek.cluster.metadata.image import NO_LEADER
from odradek.node.router.backoff import exponential_backoff
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.metadata_cache import MetadataCache
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

Partition: TypeAlias = tuple[str, int]
"""Topic name and partition index."""
EARLIEST_TIMESTAMP: Final = -2
LATEST_TIMESTAMP: Final = -1
_UNKNOWN_OFFSET: Final = -1

ATTEMPTS_MAX: Final = 6
RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 1.0
"""Three seconds together: a failover takes about one."""
_LEADER_MOVES: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)


class LogBounds(NamedTuple):
    """The offsets of a log: `[start_offset, end_offset)`."""

    start_offset: int
    end_offset: int


class OffsetLookup:
    """See the module's docstring."""

    def __init__(self, metadata: MetadataCache, inter_broker_client: InterBrokerClient) -> None:
        self._metadata = metadata
        self._inter_broker_client = inter_broker_client

    async def bounds(
        self, partitions: Collection[Partition], isolation_level: int
    ) -> dict[Partition, LogBounds | ErrorCode]:
        """The bounds of each log. The end is the last stable offset with `isolation_level` 1
        (read_committed), else the high watermark."""
        starts = await self._list(dict.fromkeys(partitions, EARLIEST_TIMESTAMP), isolation_level)
        end_offsets = await self._list(dict.fromkeys(partitions, LATEST_TIMESTAMP), isolation_level)
        offsets: dict[Partition, LogBounds | ErrorCode] = {}
        for partition in partitions:
            start, end = starts[partition], end_offsets[partition]
            if isinstance(start, ErrorCode):
                offsets[partition] = start
            elif isinstance(end, ErrorCode):
                offsets[partition] = end
            else:
                offsets[partition] = LogBounds(start, end)
        return offsets

    async def end_offsets(
        self, partitions: Collection[Partition]
    ) -> dict[Partition, int | ErrorCode]:
        """The high watermark of each log. While a leader moves, it is asked for again a few times,
        as Kafka does for the lag of share groups."""
        offsets: dict[Partition, int | ErrorCode] = {}
        missing = partitions
        pauses = exponential_backoff(RETRY_S_MIN, RETRY_S_MAX)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            wanted = dict.fromkeys(missing, LATEST_TIMESTAMP)
            offsets |= await self._list(wanted, isolation_level=0)
            missing = [each for each in missing if _is_leader_moving(offsets[each])]
            if not missing or attempt == ATTEMPTS_MAX:
                break
            await asyncio.sleep(next(pauses))
        return offsets

    async def offsets_for_times(
        self, timestamps: Mapping[Partition, int], isolation_level: int
    ) -> dict[Partition, int | ErrorCode | None]:
        """The offset of the first record whose timestamp is not before the given one in ms; None
        if there is none. The timestamp -1 stands for the end, -2 for the start."""
        offsets = await self._list(timestamps, isolation_level)
        return {
            partition: None if offset == _UNKNOWN_OFFSET else offset
            for partition, offset in offsets.items()
        }

    async def _list(
        self, timestamps: Mapping[Partition, int], isolation_level: int
    ) -> dict[Partition, int | ErrorCode]:
        offsets: dict[Partition, int | ErrorCode] = {}
        by_leader: dict[int, dict[Partition, int]] = {}
        for partition, timestamp in timestamps.items():
            state = self._metadata.partition(*partition)
            if state is None:
                offsets[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif state.leader == NO_LEADER:
                offsets[partition] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                by_leader.setdefault(state.leader, {})[partition] = timestamp
        send = self._inter_broker_client.send
        sent = [
            (requested, send(leader, _request(requested, isolation_level)))
            for leader, requested in by_leader.items()
        ]
        for requested, reply in sent:
            try:
                response = await reply
            except ApiError:
                offsets |= dict.fromkeys(requested, ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                _add_offsets(response, offsets)
        return offsets


def _is_leader_moving(offset: int | ErrorCode) -> bool:
    return isinstance(offset, ErrorCode) and offset in _LEADER_MOVES


def _request(
    timestamps_of_leader: Mapping[Partition, int], isolation_level: int
) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for (name, index), timestamp in timestamps_of_leader.items():
        topic = topics.setdefault(name, ListOffsetsTopic(name=name, partitions=[]))
        topic.partitions.append(ListOffsetsPartition(partition_index=index, timestamp=timestamp))
    return ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=list(topics.values())
    )


def _add_offsets(response: ListOffsetsResponse, offsets: dict[Partition, int | ErrorCode]) -> None:
    for topic in response.topics:
        for answer in topic.partitions:
            error = ErrorCode(answer.error_code)
            offsets[(topic.name, answer.partition_index)] = error or answer.offset
