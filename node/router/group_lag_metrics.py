"""The lag metrics of the groups that this broker coordinates.

Computed when the metrics are scraped: the positions of the groups against the logs of the
partitions' leaders (DescribeLag), all leaders at once. What lag is, is defined in
coordinator/group/offsets/lag.py. There is one series for each group and topic (the sum of records
and bytes over its partitions, the age of its oldest unread record), or for each partition with
`group.lag.metrics=partition`. Series over `metrics.series.max` are one together. A series is left
out while a partition of it has no leader or the leader does not answer.

A scraper comes at regular intervals: the values for its next scrape are computed just before that,
so that it need not wait for them.

Invariant: for each scrape the values are computed once at most, and never twice at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from odradek.cluster.metadata.image import NO_LEADER
from odradek.coordinator.group.group_directory import GroupDirectory
from odradek.coordinator.group.offsets.committed_offsets import PartitionKey
from odradek.coordinator.group.offsets.lag import LagSum, SharePosition, lag_positions
from odradek.coordinator.group.share.records import TopicStates
from odradek.node.bus.reply import drive, start_coroutine
from odradek.node.metrics.family import OTHER
from odradek.node.router.cooperative_iteration import LoopYielder
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.diagnostics import (
    DescribeLagRequest,
    DescribeLagRequestPartition,
    DescribeLagRequestTopic,
    DescribeLagResponsePartition,
    DescribeLagResponseTopic,
)

log = get_logger(__name__)

NAME_BYTES_MAX: Final = 400
"""A group with a longer id is only counted: the messages to the supervisor have a limited size."""
SCRAPE_TIMEOUT_S: Final = 0.5
"""How long a scrape waits. What takes longer is reported by the next scrape."""
CACHE_S: Final = 1.0
"""How old the values may be that a scrape gets without waiting."""
LEAD_S: Final = 0.7
"""How long before the next scrape its values are computed."""
POSITIONS_PER_REQUEST: Final = 1_000
"""That a leader is asked for at once: a millisecond to encode or decode."""
INTERVAL_S_MAX: Final = 300.0
"""After a longer pause the next scrape is not expected."""
_DETAILS: Final = ("topic", "partition")
"""Values of `group.lag.metrics` with which there are metrics."""

_OTHERS: Final = (OTHER,) * 3
"""The labels of all series over the limit."""

Labels: TypeAlias = tuple[str, ...]
FindSharePositions: TypeAlias = Callable[
    [str, TopicStates, Iterable[PartitionKey]],
    Coroutine[Any, Any, Mapping[PartitionKey, SharePosition | ErrorCode]],
]
"""`find` of node/router/share/lag_positions.py."""


class _Position(NamedTuple):
    """The position of a group in a partition; `offset` -1 stands for the log start."""

    labels: Labels
    topic: str
    partition: int
    offset: int
    is_known: bool = True
    is_committed: bool = True
    done_count: int = -1
    """See SharePosition."""


class GroupLagMetrics:
    """See the module's docstring. `directories` returns those of the active shards."""

    def __init__(
        self,
        metadata: MetadataCache,
        inter_broker_client: InterBrokerClient,
        loop: asyncio.AbstractEventLoop,
        directories: Callable[[], Iterable[GroupDirectory]],
        find_share_positions: FindSharePositions,
    ) -> None:
        self._metadata = metadata
        self._inter_broker_client = inter_broker_client
        self._loop = loop
        self._directories = directories
        self._find_share_positions = find_share_positions
        self._pending_scrapes: dict[int, Callable[[], None]] = {}
        self._next_scrape_id = 0
        self._is_collecting = False
        self._collected_at = self._scraped_at = -2 * INTERVAL_S_MAX
        self._next_collection: asyncio.TimerHandle | None = None
        self.records: Mapping[Labels, float] = {}
        self.bytes: Mapping[Labels, float] = {}
        self.seconds: Mapping[Labels, float] = {}
        self.uncommitted: Mapping[Labels, float] = {}
        """Partitions in which nothing is committed."""
        self.omitted_count = 0
        """Series whose names are too long."""

    def collect(self, done: Callable[[], None]) -> None:
        """Compute the metrics; calls `done` once, at the latest after SCRAPE_TIMEOUT_S."""
        now = self._loop.time()
        self._expect_next(now)
        if now - self._collected_at < CACHE_S:
            done()
            return
        self._next_scrape_id = key = self._next_scrape_id + 1
        self._pending_scrapes[key] = done
        self._loop.call_later(SCRAPE_TIMEOUT_S, self._notify, key)
        self._begin()

    def _expect_next(self, now: float) -> None:
        """A scrape has come: compute the values before the next one, if it comes after as long."""
        interval_s, self._scraped_at = now - self._scraped_at, now
        if self._next_collection is not None:
            self._next_collection.cancel()
            self._next_collection = None
        if 2 * CACHE_S <= interval_s <= INTERVAL_S_MAX:
            self._next_collection = self._loop.call_later(interval_s - LEAD_S, self._begin)

    def _begin(self) -> None:
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
        settings = self._metadata.broker_settings()
        detail, series_max = settings.group_lag_metrics, settings.metrics_series_max
        pace = LoopYielder()
        totals: dict[Labels, LagSum] = {}
        by_leader: dict[int, list[_Position]] = {}
        omitted: set[Labels] = set()
        async for position in self._positions(detail, pace):
            await pace.step()
            state = self._metadata.partition(position.topic, position.partition)
            if state is None:
                continue  # the partition was deleted
            if position.labels not in totals:
                if len(position.labels[0].encode()) > NAME_BYTES_MAX:
                    omitted.add(position.labels)
                    continue
                if len(totals) >= series_max:
                    position = position._replace(labels=_OTHERS)
                totals.setdefault(position.labels, LagSum())
            if state.leader == NO_LEADER or not position.is_known:
                totals[position.labels].add_unknown()
            else:
                by_leader.setdefault(state.leader, []).append(position)
        await self._query_leaders(by_leader, totals, pace)
        complete = {labels: line for labels, line in totals.items() if line.is_known}
        self.records = {labels: line.records for labels, line in complete.items()}
        self.bytes = {labels: line.bytes for labels, line in complete.items()}
        self.seconds = {
            labels: line.lag_ms / 1000 for labels, line in complete.items() if line.lag_ms >= 0
        }
        self.uncommitted = {
            labels: line.uncommitted_count
            for labels, line in complete.items()
            if line.uncommitted_count
        }
        self.omitted_count = len(omitted)

    async def _positions(self, detail: str, pace: LoopYielder) -> AsyncIterator[_Position]:
        """The positions of all groups, perhaps with some that were committed meanwhile."""
        if detail not in _DETAILS:
            return
        for directory in list(self._directories()):
            for group_id in directory.group_ids():
                # There may be thousands that read nothing.
                await pace.step()
                share = directory.shares.get(group_id)
                found = (
                    self._committed_positions(group_id, directory)
                    if share is None
                    else await self._share_positions(group_id, directory, share.states.initialized)
                )
                for position in found:
                    labels = position.labels
                    # Without one it is a label without a value: the series has none.
                    labels = *labels, str(position.partition) if detail == "partition" else ""
                    yield position._replace(labels=labels)

    def _committed_positions(self, group_id: str, directory: GroupDirectory) -> Iterable[_Position]:
        commits = {key: committed.offset for key, committed in directory.offsets.items(group_id)}
        topics = directory.topics_read(group_id)
        for (topic, partition), offset in lag_positions(topics, commits, self._partition_count):
            labels = group_id, topic
            yield _Position(labels, topic, partition, offset, is_committed=offset >= 0)

    async def _share_positions(
        self, group_id: str, directory: GroupDirectory, states: TopicStates
    ) -> Iterable[_Position]:
        topics = directory.topics_read(group_id)
        keys = [key for key, _ in lag_positions(topics, {}, self._partition_count)]
        found = await self._find_share_positions(group_id, states, keys)
        # One at a time, as the caller takes turns.
        return (
            _Position((group_id, topic), topic, index, 0, is_known=False)
            if isinstance(position, ErrorCode)
            else _Position(
                (group_id, topic), topic, index, position.offset, done_count=position.done_count
            )
            for (topic, index), position in found.items()
        )

    def _partition_count(self, topic: str) -> int:
        image = self._metadata.image.topics_by_name.get(topic)
        return 0 if image is None else len(image.partitions)

    async def _query_leaders(
        self,
        by_leader: Mapping[int, list[_Position]],
        totals: Mapping[Labels, LagSum],
        pace: LoopYielder,
    ) -> None:
        asked = [
            start_coroutine(self._query_leader(leader, positions, totals, pace))
            for leader, positions in by_leader.items()
        ]
        for each in asked:
            await each

    async def _query_leader(
        self,
        leader: int,
        positions: Sequence[_Position],
        totals: Mapping[Labels, LagSum],
        pace: LoopYielder,
    ) -> None:
        """One request after another: messages are encoded in one piece, and the leader's loop has
        the work of one request between its other work."""
        for start in range(0, len(positions), POSITIONS_PER_REQUEST):
            request, in_order = await _request(
                positions[start : start + POSITIONS_PER_REQUEST], pace
            )
            topics: Sequence[DescribeLagResponseTopic] = ()
            with suppress(ApiError):  # the lag of these partitions is unknown
                topics = (await self._inter_broker_client.send(leader, request)).topics
            answers = (each for topic in topics for each in topic.partitions)
            for position in in_order:
                await pace.step()
                _add(totals[position.labels], position, next(answers, None))


def _add(total: LagSum, position: _Position, answer: DescribeLagResponsePartition | None) -> None:
    """Add one partition as its leader answers, None if it does not; not one that was deleted."""
    if answer is not None and not answer.error_code:
        records = answer.records
        if position.done_count >= 0:
            records = max(answer.high_watermark - position.offset - position.done_count, 0)
        total.add(records, answer.bytes, answer.lag_ms, is_committed=position.is_committed)
    elif answer is None or answer.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        total.add_unknown()


async def _request(
    positions: Iterable[_Position], pace: LoopYielder
) -> tuple[DescribeLagRequest, list[_Position]]:
    """The request to a leader, and the positions in the order of its response."""
    topics: dict[str, tuple[DescribeLagRequestTopic, list[_Position]]] = {}
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
