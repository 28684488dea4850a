"""What the groups of archives have committed, for the retention gates of this node's replicas.

Topics with `odradek.archive.group` keep what that group has not committed
(storage/archive_gate.py). As often as retention runs, and every minute at least, each group's
coordinator is asked once (OffsetFetch) for the partitions that this node has replicas of: leaders
delete, and all replicas compact. The workers note the offsets in their logs. Who does not answer is
asked again in the next round, and the offsets that are known stay: they can only be too low.

Without such topics there is no timer and no work, but for new configs.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from odradek.cluster.metadata.image import (
    NO_LEADER,
    ConfigResourceType,
    ConfigsImage,
    MetadataImage,
    TopicImage,
)
from odradek.node.bus.messages import UNSENT, ArchivedOffsetsSet, SetArchivedOffsets
from odradek.node.bus.reply import drive
from odradek.node.router.cooperative_iteration import LoopYielder
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.logs import Logs
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.worker_client import WorkerClient
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ApiError
from odradek.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from odradek.protocol.types import Uuid

log = get_logger(__name__)

KEY: Final = "odradek.archive.group"
FIRST_S: Final = 1.0
"""After a topic has got its first gate: the workers have its configs by then."""
INTERVAL_S_MIN: Final = 1.0
INTERVAL_S_MAX: Final = 60.0
PARTITIONS_PER_REQUEST: Final = 500
"""That a coordinator, or a worker, is asked about at once."""


class ArchivedPartition(NamedTuple):
    """What is known of the group of a partition's archive, as of the last round."""

    group: str
    archived_offset: int
    """What it has committed; -1: nothing."""
    held_bytes: int
    """What retention would have deleted, and keeps for it."""


class _Asked(NamedTuple):
    topic: TopicImage
    partitions: Sequence[int]


class ArchiveGroups:
    """See the module's docstring. `coordinator_of(group)` is the broker to ask."""

    def __init__(
        self,
        metadata: MetadataCache,
        logs: Logs,
        worker_client: WorkerClient,
        inter_broker_client: InterBrokerClient,
        coordinator_of: Callable[[str], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._metadata = metadata
        self._logs = logs
        self._worker_client = worker_client
        self._inter_broker_client = inter_broker_client
        self._coordinator_of = coordinator_of
        self._loop = loop
        self._configs = ConfigsImage({})
        self._groups: dict[str, str] = {}
        """The groups by the names of their topics."""
        self._known: dict[tuple[Uuid, int], ArchivedPartition] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_running = self._is_closed = False

    def on_image(self, image: MetadataImage) -> None:
        """Follow the configs of topics in an image that the metadata cache has already. Costs
        nothing while no config changes."""
        if image.configs is self._configs:
            return
        for resource in image.configs.changed_since(self._configs):
            if resource.type != ConfigResourceType.TOPIC:
                continue
            self._groups.pop(resource.name, None)
            if KEY in image.configs.of(ConfigResourceType.TOPIC, resource.name):
                group = self._metadata.topic_settings(resource.name).archive_group
                if group:
                    self._groups[resource.name] = group
        self._configs = image.configs
        self._schedule(FIRST_S)

    def archived(self, topic_id: Uuid, partition: int) -> ArchivedPartition | None:
        """What is known of a partition with a gate; None if nothing is."""
        return self._known.get((topic_id, partition))

    def close(self) -> None:
        """Ask no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def run_round(self) -> None:
        """Ask for all groups once."""
        topics: dict[str, list[TopicImage]] = {}
        for name, group in list(self._groups.items()):
            image = self._metadata.image.topics_by_name.get(name)
            if image is not None:
                topics.setdefault(group, []).append(image)
        pace = LoopYielder()
        wanted: dict[tuple[Uuid, int], str] = {}
        silent: set[int] = set()
        """Brokers that have not answered in this round."""
        for group, its_topics in topics.items():
            hosted = [await self._hosted(topic, pace) for topic in its_topics]
            for topic, partitions in hosted:
                wanted |= {(topic.topic_id, index): group for index in partitions}
            for some in _requests(hosted):
                offsets = await self._committed(group, some, silent)
                await self._tell_workers(group, offsets, pace)
        for key in [key for key, known in self._known.items() if wanted.get(key) != known.group]:
            del self._known[key]

    # -- inside -----------------------------------------------------------------------------------

    def _schedule(self, after_s: float) -> None:
        if self._groups and self._timer is None and not self._is_running and not self._is_closed:
            self._timer = self._loop.call_later(after_s, self._start_round)

    def _start_round(self) -> None:
        self._timer = None
        self._is_running = True
        drive(self.run_round(), self._on_round_done)

    def _on_round_done(self, _result: None, error: BaseException | None) -> None:
        self._is_running = False
        if error is not None:
            log.error("the offsets of archives could not be found out", exc_info=error)
        retention_s = self._metadata.broker_settings().log_retention_check_interval_ms / 1000
        self._schedule(min(max(retention_s, INTERVAL_S_MIN), INTERVAL_S_MAX))

    async def _hosted(self, topic: TopicImage, pace: LoopYielder) -> _Asked:
        """The partitions of which this node has a replica."""
        hosted = []
        for index, state in enumerate(topic.partitions):
            await pace.step()
            if self._metadata.node_id in state.replicas:
                hosted.append(index)
        return _Asked(topic, hosted)

    async def _committed(
        self, group: str, asked: Sequence[_Asked], silent: set[int]
    ) -> list[tuple[Uuid, int, int]]:
        """(topic id, partition, committed offset or -1) of those that the coordinator knows."""
        broker = self._coordinator_of(group)
        if broker == NO_LEADER or broker in silent:
            return []
        topics = [
            OffsetFetchRequestTopic(
                name=each.topic.name,
                topic_id=each.topic.topic_id,
                partition_indexes=list(each.partitions),
            )
            for each in asked
        ]
        wanted = OffsetFetchRequestGroup(group_id=group, topics=topics)
        try:
            request = OffsetFetchRequest(groups=[wanted])
            response = await self._inter_broker_client.send(broker, request)
        except ApiError as error:
            silent.add(broker)
            log.debug(
                "a node did not tell the offsets of an archive",
                peer_node=broker,
                group=group,
                reason=str(error),
            )
            return []
        return [
            (topic.topic_id, partition.partition_index, partition.committed_offset)
            for found in response.groups
            if not found.error_code
            for topic in found.topics
            for partition in topic.partitions
            if not partition.error_code
        ]

    async def _tell_workers(
        self, group: str, offsets: Sequence[tuple[Uuid, int, int]], pace: LoopYielder
    ) -> None:
        by_store: dict[int, list[tuple[Uuid, int, int]]] = {}
        for each in offsets:
            await pace.step()
            by_store.setdefault(self._logs.store_index(each[0], each[1]), []).append(each)
        sent = [
            (
                some,
                self._worker_client.send(
                    SetArchivedOffsets(UNSENT, store, 0, group=group, offsets=tuple(some))
                ),
            )
            for store, some in by_store.items()
        ]
        for some, reply in sent:
            answer = await reply
            if not isinstance(answer, ArchivedOffsetsSet):
                continue  # its worker is away: it is told in the next round
            for (topic_id, index, offset), held in zip(some, answer.held_bytes, strict=True):
                self._known[topic_id, index] = ArchivedPartition(group, offset, held)


def _requests(hosted: Sequence[_Asked]) -> Iterator[list[_Asked]]:
    """The partitions in parts of at most PARTITIONS_PER_REQUEST."""
    part: list[_Asked] = []
    left = PARTITIONS_PER_REQUEST
    for topic, partitions in hosted:
        start = 0
        while start < len(partitions):
            taken = partitions[start : start + left]
            part.append(_Asked(topic, taken))
            start += len(taken)
            left -= len(taken)
            if not left:
                yield part
                part, left = [], PARTITIONS_PER_REQUEST
    if part:
        yield part
