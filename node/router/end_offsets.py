"""How far partitions are committed, wherever in the cluster they are led.

What this node leads is read from its own logs; for the others their leaders are asked, in one
request for each node.
"""

from collections.abc import Iterable
from typing import Final, Protocol, TypeAlias

from cluster.metadata.image import NO_LEADER, MetadataImage
from node.bus.reply import Reply
from node.router.logs import Logs
from node.router.markers import Neighbours
from protocol.errors import ApiError, ErrorCode
from protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

Place: TypeAlias = tuple[str, int]
"""A topic's name and a partition's index."""

_LATEST: Final = -1
_CONSUMER: Final = -1


class Surroundings(Protocol):
    """What is needed of the router: Services has it."""

    node_id: int
    image: MetadataImage
    logs: Logs


class EndOffsets:
    """See the module's docstring."""

    def __init__(self, services: Surroundings, neighbours: Neighbours) -> None:
        self._services = services
        self._neighbours = neighbours

    async def of(self, places: Iterable[Place]) -> dict[Place, int | ErrorCode]:
        """The high watermark of each partition, or why it cannot be told."""
        found: dict[Place, int | ErrorCode] = {}
        elsewhere: dict[int, list[Place]] = {}
        for place in places:
            leader = self._leader(place)
            if isinstance(leader, ErrorCode):
                found[place] = leader
            elif leader == self._services.node_id:
                found[place] = self._here(place)
            else:
                elsewhere.setdefault(leader, []).append(place)
        asked = [
            (theirs, self._neighbours.ask(leader, _request(theirs)))
            for leader, theirs in elsewhere.items()
        ]
        for theirs, reply in asked:
            found |= await _answers(theirs, reply)
        return found

    def _leader(self, place: Place) -> int | ErrorCode:
        name, index = place
        topic = self._services.image.topics_by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        leader = topic.partitions[index].leader
        return ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else leader

    def _here(self, place: Place) -> int | ErrorCode:
        services = self._services
        located = services.logs.locate(services.image.topics_by_name[place[0]].topic_id, place[1])
        reader = None if located is None else services.logs.reader(located[0])
        if located is None or reader is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return reader.status.high_watermark(located[1])


def _request(places: list[Place]) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for name, index in places:
        topic = topics.setdefault(name, ListOffsetsTopic(name=name))
        topic.partitions.append(ListOffsetsPartition(partition_index=index, timestamp=_LATEST))
    return ListOffsetsRequest(replica_id=_CONSUMER, topics=list(topics.values()))


async def _answers(places: list[Place], reply: Reply[object]) -> dict[Place, int | ErrorCode]:
    found: dict[Place, int | ErrorCode] = dict.fromkeys(places, ErrorCode.REQUEST_TIMED_OUT)
    try:
        response = await reply
    except ApiError as error:
        return dict.fromkeys(places, error.code)
    assert isinstance(response, ListOffsetsResponse)
    for topic in response.topics:
        for partition in topic.partitions:
            code = ErrorCode(partition.error_code)
            found[topic.name, partition.partition_index] = (
                partition.offset if code is ErrorCode.NONE else code
            )
    return found
