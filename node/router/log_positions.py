"""Offsets of partitions that other nodes may lead: their ends, and the first record of a time.

Each leader is asked by ListOffsets, this node without a way round; all of them at once. One that
cannot be asked is an error of its partitions. Called by handlers.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

from odradek.cluster.metadata.image import NO_LEADER, MetadataImage
from odradek.node.bus.reply import Reply
from odradek.node.router.neighbours import Neighbours
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

Partition: TypeAlias = tuple[str, int]
"""Topic and index."""
EARLIEST: Final = -2
LATEST: Final = -1
_NO_RECORD: Final = -1

Here: TypeAlias = Callable[[ListOffsetsRequest], Awaitable[ListOffsetsResponse]]
"""Has this node answer."""


class Surroundings(Protocol):
    """What is needed of the router: Services has it."""

    node_id: int
    image: MetadataImage


class Bounds(NamedTuple):
    """Where a log starts and ends: `[start_offset, end_offset)`."""

    start_offset: int
    end_offset: int


class LogPositions:
    """See the module's docstring."""

    def __init__(self, services: Surroundings, neighbours: Neighbours, here: Here) -> None:
        self._services = services
        self._neighbours = neighbours
        self._here = here

    async def bounds(
        self, partitions: Collection[Partition], isolation_level: int
    ) -> dict[Partition, Bounds | ErrorCode]:
        """How far each log reaches; the end is the last stable offset if only committed records
        are to be read (`isolation_level` 1), else the high watermark."""
        starts = await self._list(dict.fromkeys(partitions, EARLIEST), isolation_level)
        ends = await self._list(dict.fromkeys(partitions, LATEST), isolation_level)
        found: dict[Partition, Bounds | ErrorCode] = {}
        for partition in partitions:
            start, end = starts[partition], ends[partition]
            if isinstance(start, ErrorCode):
                found[partition] = start
            elif isinstance(end, ErrorCode):
                found[partition] = end
            else:
                found[partition] = Bounds(start, end)
        return found

    async def ends(self, partitions: Collection[Partition]) -> dict[Partition, int | ErrorCode]:
        """How far each log is committed."""
        return await self._list(dict.fromkeys(partitions, LATEST), isolation_level=0)

    async def at_times(
        self, timestamps: Mapping[Partition, int], isolation_level: int
    ) -> dict[Partition, int | ErrorCode | None]:
        """The first record of each partition that is not older than its timestamp in ms; None if
        all are. -1 stands for the end, -2 for the beginning."""
        found = await self._list(timestamps, isolation_level)
        return {
            partition: None if offset == _NO_RECORD else offset
            for partition, offset in found.items()
        }

    async def _list(
        self, timestamps: Mapping[Partition, int], isolation_level: int
    ) -> dict[Partition, int | ErrorCode]:
        found: dict[Partition, int | ErrorCode] = {}
        image, node_id = self._services.image, self._services.node_id
        by_leader: dict[int, dict[Partition, int]] = {}
        for partition, timestamp in timestamps.items():
            name, index = partition
            topic = image.topics_by_name.get(name)
            if topic is None or not 0 <= index < len(topic.partitions):
                found[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            leader = topic.partitions[index].leader
            if leader == NO_LEADER:
                found[partition] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                by_leader.setdefault(leader, {})[partition] = timestamp
        waiting: list[tuple[dict[Partition, int], Reply[object]]] = []
        for leader, asked in by_leader.items():
            if leader != node_id:
                request = _request(asked, isolation_level)
                waiting.append((asked, self._neighbours.ask(leader, request)))
        if node_id in by_leader:
            request = _request(by_leader[node_id], isolation_level)
            _read(await self._here(request), found)
        for asked, reply in waiting:
            try:
                response = await reply
            except ApiError:
                found |= dict.fromkeys(asked, ErrorCode.LEADER_NOT_AVAILABLE)
                continue
            assert isinstance(response, ListOffsetsResponse)
            _read(response, found)
        return found


def _request(asked: Mapping[Partition, int], isolation_level: int) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for (name, index), timestamp in asked.items():
        topic = topics.setdefault(name, ListOffsetsTopic(name=name, partitions=[]))
        topic.partitions.append(ListOffsetsPartition(partition_index=index, timestamp=timestamp))
    return ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=list(topics.values())
    )


def _read(response: ListOffsetsResponse, found: dict[Partition, int | ErrorCode]) -> None:
    for topic in response.topics:
        for answer in topic.partitions:
            error = ErrorCode(answer.error_code)
            found[(topic.name, answer.partition_index)] = error or answer.offset
