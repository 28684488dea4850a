"""Makes the leaders of a share group's partitions read their persisted state again.

A leader keeps in memory what members have locked, and reads the persisted state only when it loads
a share partition (partitions.py). After the state was replaced, for example by a new start offset,
the leader must load it again, on whichever broker it is.
"""

from collections.abc import Iterable, Mapping

from odradek.cluster.metadata.image import NO_LEADER
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.share.partitions import SharePartitions
from odradek.node.router.share.sessions import TopicIdPartition
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.partitions import TopicIdPartitions
from odradek.protocol.messages.rewinds import ReloadShareStateRequest
from odradek.protocol.types import Uuid


class ShareStateReloader:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: MetadataCache,
        inter_broker_client: InterBrokerClient,
        share_partitions: SharePartitions,
    ) -> None:
        self._metadata = metadata
        self._inter_broker_client = inter_broker_client
        self._share_partitions = share_partitions

    async def reload_on_leaders(
        self, group_id: str, partitions: Iterable[TopicIdPartition]
    ) -> dict[TopicIdPartition, ErrorCode]:
        """Reload each partition on its leader; the result by partition. A partition without a
        leader succeeds: its next leader reads the persisted state."""
        by_leader: dict[int, list[TopicIdPartition]] = {}
        for partition in partitions:
            by_leader.setdefault(self._metadata.leader_of(*partition), []).append(partition)
        codes = dict.fromkeys(by_leader.pop(NO_LEADER, ()), ErrorCode.NONE)
        local = by_leader.pop(self._metadata.node_id, [])
        sent = [
            (remote, self._inter_broker_client.send(leader, _request(group_id, remote)))
            for leader, remote in by_leader.items()
        ]
        codes |= dict.fromkeys(local, self.reload_local(group_id, local))
        for remote, reply in sent:
            try:
                code = ErrorCode((await reply).error_code)
            except ApiError as error:
                code = error.code
            codes |= dict.fromkeys(remote, code)
        return codes

    def reload_local(self, group_id: str, partitions: Iterable[TopicIdPartition]) -> ErrorCode:
        """Drop what this broker leads of them, so that it is loaded again. With a partition that
        another broker leads: NOT_LEADER_OR_FOLLOWER."""
        requested = list(partitions)
        node_id = self._metadata.node_id
        led = [
            partition for partition in requested if self._metadata.leader_of(*partition) == node_id
        ]
        self._share_partitions.forget(group_id, led)
        return ErrorCode.NONE if led == requested else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _request(group_id: str, partitions: Iterable[TopicIdPartition]) -> ReloadShareStateRequest:
    topics: dict[Uuid, list[int]] = {}
    for topic_id, partition in partitions:
        topics.setdefault(topic_id, []).append(partition)
    return ReloadShareStateRequest(
        group_id=group_id,
        topics=[
            TopicIdPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in topics.items()
        ],
    )


def topic_id_partitions(topics: Mapping[Uuid, Iterable[int]]) -> list[TopicIdPartition]:
    """Each partition of each topic."""
    return [
        TopicIdPartition(topic_id, partition)
        for topic_id, partitions in topics.items()
        for partition in partitions
    ]
