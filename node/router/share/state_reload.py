"""Has the leaders of a share group's partitions begin anew with what is stored of them.

A leader keeps what its members have locked in memory and looks at the stored state when it begins
(partitions.py). When the group is set to begin elsewhere it has to be told, wherever it is.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from odradek.cluster.metadata.image import NO_LEADER, MetadataImage
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.share.sessions import TopicIdPartition
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.rewinds import (
    ReloadShareStateRequest,
    ReloadShareStateTopic,
)
from odradek.protocol.types import Uuid


class Led(Protocol):
    """The share partitions that are led here: SharePartitions is that."""

    def forget(self, group_id: str, places: Iterable[TopicIdPartition] | None = None) -> None: ...


class Surroundings(Protocol):
    """What is needed of the router: Services has it."""

    node_id: int
    image: MetadataImage

    @property
    def share_partitions(self) -> Led: ...


class ShareStateReloader:
    """See the module's docstring."""

    def __init__(self, services: Surroundings, inter_broker_client: InterBrokerClient) -> None:
        self._services = services
        self._inter_broker_client = inter_broker_client

    async def reload_on_leaders(
        self, group_id: str, places: Iterable[TopicIdPartition]
    ) -> dict[TopicIdPartition, ErrorCode]:
        """Tell the leader of each; what came of it. Who has no leader has nobody to be told."""
        by_leader: dict[int, list[TopicIdPartition]] = {}
        found: dict[TopicIdPartition, ErrorCode] = {}
        for place in places:
            leader = self._leader(place)
            if leader == NO_LEADER:
                found[place] = ErrorCode.NONE
            else:
                by_leader.setdefault(leader, []).append(place)
        here = by_leader.pop(self._services.node_id, [])
        asked = [
            (theirs, self._inter_broker_client.send(leader, _request(group_id, theirs)))
            for leader, theirs in by_leader.items()
        ]
        found |= dict.fromkeys(here, self.here(group_id, here))
        for theirs, reply in asked:
            try:
                response = await reply
            except ApiError as error:
                found |= dict.fromkeys(theirs, error.code)
                continue
            found |= dict.fromkeys(theirs, ErrorCode(response.error_code))
        return found

    def here(self, group_id: str, places: Iterable[TopicIdPartition]) -> ErrorCode:
        """Forget what is led here; whoever is led elsewhere must be told of there."""
        known = list(places)
        led = [place for place in known if self._leader(place) == self._services.node_id]
        self._services.share_partitions.forget(group_id, led)
        return ErrorCode.NONE if led == known else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _leader(self, place: TopicIdPartition) -> int:
        topic = self._services.image.topics_by_id.get(place.topic_id)
        if topic is None or not 0 <= place.partition < len(topic.partitions):
            return NO_LEADER
        return topic.partitions[place.partition].leader


def _request(group_id: str, places: Iterable[TopicIdPartition]) -> ReloadShareStateRequest:
    topics: dict[Uuid, list[int]] = {}
    for topic_id, partition in places:
        topics.setdefault(topic_id, []).append(partition)
    return ReloadShareStateRequest(
        group_id=group_id,
        topics=[
            ReloadShareStateTopic(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
    )


def topic_id_partitions(topics: Mapping[Uuid, Iterable[int]]) -> list[TopicIdPartition]:
    """Partitions one by one."""
    return [
        TopicIdPartition(topic_id, partition)
        for topic_id, partitions in topics.items()
        for partition in partitions
    ]
