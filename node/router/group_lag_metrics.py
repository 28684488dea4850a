"""The lag metrics of the groups that this broker coordinates.

Computed when the metrics are scraped: the committed offsets of the groups against the logs of the
partitions' leaders (DescribeLag), all leaders at once. There is one series for each group and topic
(the sum of records over its partitions, the age of its oldest unread record), or for each partition
with `group.lag.metrics=partition`. Series over SERIES_MAX are only counted. A series is left out
while a partition of it has no leader or the leader does not answer: no figure is better than one
that is too low.

Invariant: nothing is computed without a scrape, and never twice at a time. Share groups have no
committed offsets and no series.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from odradek.cluster.metadata.image import NO_LEADER
from odradek.coordinator.group.offsets.committed_offsets import CommittedOffsets
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.cooperative_iteration import LoopYielder
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.metadata_cache import MetadataCache
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.diagnostics import (
    DescribeLagRequest,
    DescribeLagRequestPartition,
    DescribeLagRequestTopic,
    DescribeLagResponse,
    DescribeLagResponsePartition,
    DescribeLagResponseTopic,
)

log = logging.getLogger(__name__)

SERIES_MAX: Final = 2_000
"""Series of each metric on one broker."""
NAME_BYTES_MAX: Final = 400
"""A group with a longer id is only counted: the messages to the supervisor have a limited size."""
SCRAPE_TIMEOUT_S: Final = 0.5
"""How long a scrape waits. What takes longer is reported by the next scrape."""
CACHE_S: Final = 1.0
"""How long a scrape gets the values of the one before."""
LABELS: Final = {"topic": ("group", "topic"), "partition": ("group", "topic", "partition")}
"""By value of `group.lag.metrics`."""

Labels: TypeAlias = tuple[str, ...]


class _CommittedPosition(NamedTuple):
    """A committed offset of a group."""

    labels: Labels
    topic: str
    partition: int
    offset: int


@dataclass(slots=True)
class _LagTotals:
    """The totals of one series."""

    records: int = 0
    lag_ms: int = -1
    is_known: bool = True

    def add(self, answer: DescribeLagResponsePartition | None) -> None:
        """Add one partition; None if its leader did not answer."""
        if answer is None or answer.error_code:
            self.is_known = False
            return
        self.records += answer.records
        self.lag_ms = max(self.lag_ms, answer.lag_ms)


class GroupLagMetrics:
    """See the module's docstring. `offsets` returns those of the active shards."""

    def __init__(
        self,
        metadata: MetadataCache,
        inter_broker_client: InterBrokerClient,
        loop: asyncio.AbstractEventLoop,
        offsets: Callable[[], Iterable[CommittedOffsets]],
    ) -> None:
        self._metadata = metadata
        self._inter_broker_client = inter_broker_client
        self._loop = loop
        self._offsets = offsets
        self._pending_scrapes: dict[int, Callable[[], None]] = {}
        self._next_scrape_id = 0
        self._is_collecting = False
        self._collected_at = -CACHE_S
        self.labels: Labels = LABELS["topic"]
        self.records: Mapping[Labels, float] = {}
        self.seconds: Mapping[Labels, float] = {}
        self.omitted_count = 0
        """Series over the limit."""

    def collect(self, done: Callable[[], None]) -> None:
        """Compute the metrics; calls `done` once, at the latest after SCRAPE_TIMEOUT_S."""
        if self._loop.time() - self._collected_at < CACHE_S:
            done()
            return
        self._next_scrape_id = key = self._next_scrape_id + 1
        self._pending_scrapes[key] = done
        self._loop.call_later(SCRAPE_TIMEOUT_S, self._notify, key)
        if not self._is_collecting:
            self._is_collecting = True
            drive(self._collect(), self._on_collected)

    def _notify(self, key: int) -> None:
        done = self._pending_scrapes.pop(key, None)
        if done is not None:
            done()

    def _on_collected(self, _result: None, error: BaseException | None) -> None:
        self._is_collecting = False
        self._collected_at = self._loop.time()
        if error is not None:
            log.error("the lag of groups could not be computed", exc_info=error)
        for key in list(self._pending_scrapes):
            self._notify(key)

    async def _collect(self) -> None:
        detail = self._metadata.broker_settings().group_lag_metrics
        pace = LoopYielder()
        totals: dict[Labels, _LagTotals] = {}
        by_leader: dict[int, list[_CommittedPosition]] = {}
        omitted: set[Labels] = set()
        for position in self._committed_positions(detail) if detail in LABELS else ():
            await pace.step()
            state = self._metadata.partition(position.topic, position.partition)
            if state is None:
                continue  # the partition was deleted
            if position.labels not in totals:
                if len(totals) >= SERIES_MAX or len(position.labels[0].encode()) > NAME_BYTES_MAX:
                    omitted.add(position.labels)
                    continue
                totals[position.labels] = _LagTotals()
            if state.leader == NO_LEADER:
                totals[position.labels].add(None)
            else:
                by_leader.setdefault(state.leader, []).append(position)
        await self._query_leaders(by_leader, totals, pace)
        complete = {labels: line for labels, line in totals.items() if line.is_known}
        self.labels = LABELS.get(detail, ())
        self.records = {labels: line.records for labels, line in complete.items()}
        self.seconds = {
            labels: line.lag_ms / 1000 for labels, line in complete.items() if line.lag_ms >= 0
        }
        self.omitted_count = len(omitted)

    def _committed_positions(self, detail: str) -> Iterator[_CommittedPosition]:
        """The committed offsets of all groups, perhaps with some that were committed meanwhile."""
        for offsets in list(self._offsets()):
            for group_id in list(offsets.group_ids()):
                for (topic, partition), committed in list(offsets.items(group_id)):
                    labels: Labels = (group_id, topic)
                    if detail == "partition":
                        labels = (group_id, topic, str(partition))
                    yield _CommittedPosition(labels, topic, partition, committed.offset)

    async def _query_leaders(
        self,
        by_leader: Mapping[int, list[_CommittedPosition]],
        totals: Mapping[Labels, _LagTotals],
        pace: LoopYielder,
    ) -> None:
        waiting: list[tuple[list[_CommittedPosition], Reply[DescribeLagResponse]]] = []
        for leader, positions in by_leader.items():
            request, in_order = await _request(positions, pace)
            waiting.append((in_order, self._inter_broker_client.send(leader, request)))
        for in_order, reply in waiting:
            topics: Sequence[DescribeLagResponseTopic] = ()
            with suppress(ApiError):  # the lag of these partitions is unknown
                topics = (await reply).topics
            answers = (each for topic in topics for each in topic.partitions)
            for position in in_order:
                await pace.step()
                answer = next(answers, None)
                if answer is None or answer.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    totals[position.labels].add(answer)


async def _request(
    positions: Iterable[_CommittedPosition], pace: LoopYielder
) -> tuple[DescribeLagRequest, list[_CommittedPosition]]:
    """The request to a leader, and the positions in the order of its response."""
    topics: dict[str, tuple[DescribeLagRequestTopic, list[_CommittedPosition]]] = {}
    for position in positions:
        await pace.step()
        entry = topics.get(position.topic)
        if entry is None:
            entry = topics[position.topic] = DescribeLagRequestTopic(name=position.topic), []
        topic, in_order = entry
        in_order.append(position)
        topic.partitions.append(
            DescribeLagRequestPartition(
                partition_index=position.partition, committed_offset=position.offset
            )
        )
    request = DescribeLagRequest(topics=[topic for topic, _ in topics.values()])
    return request, [position for _, in_order in topics.values() for position in in_order]
