"""How far the groups that this node coordinates are behind, for whoever reads the metrics.

Gathered when the metrics are asked for: what the groups have committed, against what the leaders
of the partitions say of their logs (DescribeLag), this node and others at once. By group and topic
(the sum of its partitions' records, the age of its oldest unread record), or by partition where
`group.lag.metrics` says so; of more than SERIES_MAX such lines the others are only counted. What is
not known is left out: a partition that nobody leads takes its topic's line away, as no figure is
better than one that is too low.

Invariant: nothing is gathered while nobody asks, and never twice at a time. Share groups have no
committed offsets and are not in here. Wired by process.py.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from odradek.cluster.metadata.image import NO_LEADER, MetadataImage
from odradek.cluster.metadata.settings import BrokerSettings
from odradek.coordinator.group.offsets import Offsets
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.neighbours import Neighbours
from odradek.node.router.pacing import Pace
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.insight import (
    DescribeLagRequest,
    DescribeLagRequestPartition,
    DescribeLagRequestTopic,
    DescribeLagResponse,
    DescribeLagResponsePartition,
)

log = logging.getLogger(__name__)

SERIES_MAX: Final = 2_000
"""Lines of each metric that a node tells."""
NAME_BYTES_MAX: Final = 400
"""A group whose id is longer is only counted: the metrics' way to the supervisor is in messages of
a limited size."""
WAIT_S: Final = 0.5
"""How long a scrape waits; what takes longer is told to the next one."""
AGAIN_S: Final = 1.0
"""Who asks again before that is told the same."""
LABELS: Final = {"topic": ("group", "topic"), "partition": ("group", "topic", "partition")}
"""By what `group.lag.metrics` says."""

Labels: TypeAlias = tuple[str, ...]


class _Position(NamedTuple):
    """Where a group stands."""

    labels: Labels
    topic: str
    partition: int
    offset: int


class Surroundings(Protocol):
    """What is needed of the router: Services has it."""

    node_id: int
    image: MetadataImage


class Here(Protocol):
    """Has this node answer."""

    async def __call__(self, request: DescribeLagRequest) -> DescribeLagResponse: ...


class _Sums:
    """One line's figures while they come together."""

    __slots__ = ("is_known", "lag_ms", "records")

    def __init__(self) -> None:
        self.records = 0
        self.lag_ms = -1
        self.is_known = True

    def add(self, answer: DescribeLagResponsePartition | None) -> None:
        """One partition; None if its leader could not be asked."""
        if answer is None or answer.error_code:
            self.is_known = False
            return
        self.records += answer.records
        self.lag_ms = max(self.lag_ms, answer.lag_ms)


class GroupLag:
    """See the module's docstring. `offsets` are those of the shards that serve here."""

    def __init__(
        self,
        services: Surroundings,
        neighbours: Neighbours,
        here: Here,
        *,
        loop: asyncio.AbstractEventLoop,
        offsets: Callable[[], Iterable[Offsets]],
        settings: Callable[[], BrokerSettings],
    ) -> None:
        self._services = services
        self._neighbours = neighbours
        self._here = here
        self._loop = loop
        self._offsets = offsets
        self._settings = settings
        self._waiting: dict[int, Callable[[], None]] = {}
        self._asked_count = 0
        self._is_gathering = False
        self._gathered_at = -AGAIN_S
        self.labels: Labels = LABELS["topic"]
        self.records: Mapping[Labels, float] = {}
        self.seconds: Mapping[Labels, float] = {}
        self.untold_count = 0
        """Lines that were too many."""

    def prepare(self, done: Callable[[], None]) -> None:
        """Gather, and call `done` once: when that is done, or has taken WAIT_S."""
        if self._loop.time() - self._gathered_at < AGAIN_S:
            done()
            return
        self._asked_count = key = self._asked_count + 1
        self._waiting[key] = done
        self._loop.call_later(WAIT_S, self._tell, key)
        if not self._is_gathering:
            self._is_gathering = True
            drive(self._gather(), self._gathered)

    def _tell(self, key: int) -> None:
        done = self._waiting.pop(key, None)
        if done is not None:
            done()

    def _gathered(self, _result: None, error: BaseException | None) -> None:
        self._is_gathering = False
        self._gathered_at = self._loop.time()
        if error is not None:
            log.error("the lag of groups is not known", exc_info=error)
        for key in list(self._waiting):
            self._tell(key)

    async def _gather(self) -> None:
        detail = self._settings().group_lag_metrics
        pace = Pace()
        sums: dict[Labels, _Sums] = {}
        by_leader: dict[int, list[_Position]] = {}
        untold: set[Labels] = set()
        for position in self._positions(detail) if detail in LABELS else ():
            await pace.step()
            leader = self._leader_of(position)
            if leader is None:
                continue  # there is no such partition any more
            if position.labels not in sums:
                if len(sums) >= SERIES_MAX or len(position.labels[0].encode()) > NAME_BYTES_MAX:
                    untold.add(position.labels)
                    continue
                sums[position.labels] = _Sums()
            if leader == NO_LEADER:
                sums[position.labels].add(None)
            else:
                by_leader.setdefault(leader, []).append(position)
        await self._ask(by_leader, sums, pace)
        known = {labels: line for labels, line in sums.items() if line.is_known}
        self.labels = LABELS.get(detail, ())
        self.records = {labels: line.records for labels, line in known.items()}
        self.seconds = {
            labels: line.lag_ms / 1000 for labels, line in known.items() if line.lag_ms >= 0
        }
        self.untold_count = len(untold)

    def _positions(self, detail: str) -> Iterator[_Position]:
        """Where all groups stand. What is committed meanwhile may be told or not."""
        for offsets in list(self._offsets()):
            for group_id in list(offsets.group_ids()):
                for (topic, partition), committed in list(offsets.items(group_id)):
                    labels: Labels = (group_id, topic)
                    if detail == "partition":
                        labels = (group_id, topic, str(partition))
                    yield _Position(labels, topic, partition, committed.offset)

    def _leader_of(self, position: _Position) -> int | None:
        topic = self._services.image.topics_by_name.get(position.topic)
        if topic is None or not 0 <= position.partition < len(topic.partitions):
            return None
        return topic.partitions[position.partition].leader

    async def _ask(
        self,
        by_leader: Mapping[int, list[_Position]],
        sums: Mapping[Labels, _Sums],
        pace: Pace,
    ) -> None:
        waiting: list[tuple[list[_Position], Reply[object]]] = []
        for leader, positions in by_leader.items():
            request, in_order = await _request(positions, pace)
            if leader != self._services.node_id:
                waiting.append((in_order, self._neighbours.ask(leader, request)))
            else:
                reply: Reply[object] = Reply()
                drive(self._here(request), partial(_settle, reply))
                waiting.append((in_order, reply))
        for in_order, reply in waiting:
            answers: Iterator[DescribeLagResponsePartition] = iter(())
            try:
                response = await reply
            except ApiError:
                pass  # none of these is known
            else:
                assert isinstance(response, DescribeLagResponse)
                answers = (each for topic in response.topics for each in topic.partitions)
            for position in in_order:
                await pace.step()
                answer = next(answers, None)
                if answer is None or answer.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    sums[position.labels].add(answer)


def _settle(reply: Reply[object], response: object, error: BaseException | None) -> None:
    if error is not None:
        reply.fail(error)
    else:
        reply.resolve(response)


async def _request(
    positions: Iterable[_Position], pace: Pace
) -> tuple[DescribeLagRequest, list[_Position]]:
    """What to ask of a leader, and in which order it will answer."""
    topics: dict[str, tuple[DescribeLagRequestTopic, list[_Position]]] = {}
    for position in positions:
        await pace.step()
        known = topics.get(position.topic)
        if known is None:
            known = topics[position.topic] = DescribeLagRequestTopic(name=position.topic), []
        topic, in_order = known
        in_order.append(position)
        topic.partitions.append(
            DescribeLagRequestPartition(
                partition_index=position.partition, committed_offset=position.offset
            )
        )
    request = DescribeLagRequest(topics=[topic for topic, _ in topics.values()])
    return request, [position for _, in_order in topics.values() for position in in_order]
