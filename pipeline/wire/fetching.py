"""Fetches a range of a partition, answer by answer, from whichever broker has it at the moment.

The next request is on its way while an answer is worked on. Leaders that move and brokers that
restart are followed; deleted offsets and a topic that was created anew end it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from odradek.pipeline.errors import OffsetsLost, PipelineError, TopicRecreated
from odradek.pipeline.kafka_types import EARLIEST, LATEST, PartitionRange
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.connection import BrokerConnection, ConnectionLost
from odradek.pipeline.wire.errors import PASSING, BrokerError, error_name
from odradek.pipeline.wire.record_batches import (
    FetchedBatch,
    batches_between,
    check_crc,
    is_abort_marker,
)
from odradek.pipeline.wire.requests import (
    FETCH,
    FETCH_WITH_TOPIC_IDS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchAnswer,
    FetchQuestion,
    decode_fetch,
    encode_fetch,
)

MAX_WAIT_MS: Final = 500
"""Kafka's default of fetch.max.wait.ms."""
_TOPIC_IS_KNOWN_WITHOUT_ID: Final = FETCH_WITH_TOPIC_IDS - 1


@dataclass(frozen=True, slots=True)
class FetchedPiece:
    """An answer with records: its bytes, its batches, and those of them that were aborted.

    All batches are those of the offsets [start, end) of the range, which pieces cover in order
    and without gaps. A batch can begin before and end behind it.
    """

    data: bytes
    batches: tuple[FetchedBatch, ...]
    aborted: frozenset[int]
    """The base offsets of batches of aborted transactions."""
    start: int
    end: int


class _Asked(NamedTuple):
    connection: BrokerConnection
    node: int
    version: int
    correlation_id: int
    offset: int
    isolation: int


class PartitionFetcher:
    """Reads the range once, from start to end."""

    def __init__(
        self,
        cluster: KafkaCluster,
        wanted: PartitionRange,
        *,
        read_committed: bool,
        fetch_max_bytes: int,
    ) -> None:
        """Nothing is asked yet."""
        self._cluster = cluster
        self._wanted = wanted
        self._isolation = READ_COMMITTED if read_committed else READ_UNCOMMITTED
        self._max_bytes = fetch_max_bytes
        self._replica = -1
        """The follower that the leader named, -1 for none."""
        self._backoff = cluster.backoff()
        self._asked: _Asked | None = None
        self.answered_by = -1
        """The broker of the last answer: the leader, or a follower in the rack."""

    def pieces(self) -> Iterator[FetchedPiece]:
        """All pieces of the range. Raises OffsetsLost, TopicRecreated or PipelineError."""
        position = self._wanted.start
        try:
            while position < self._wanted.end:
                answer = self._answer_at(position)
                if answer is None:
                    continue
                batches = batches_between(answer.data, answer.records_at, answer.records_end)
                batches = [batch for batch in batches if batch.next_offset > position]
                if not batches:
                    position = self._after_nothing(position, answer)
                    continue
                self._backoff.succeeded()
                start, position = position, min(batches[-1].next_offset, self._wanted.end)
                if position < self._wanted.end:
                    self._try_to_ask(position)
                for batch in batches:
                    check_crc(answer.data, batch)
                aborted = aborted_batches(answer, batches) if self._reads_committed else frozenset()
                yield FetchedPiece(answer.data, tuple(batches), aborted, start, position)
            self._check_topic_at_end()
        finally:
            if self._asked is not None:
                self._asked.connection.forget(self._asked.correlation_id)
                self._asked = None

    @property
    def _reads_committed(self) -> bool:
        return self._isolation == READ_COMMITTED

    def _answer_at(self, position: int) -> FetchAnswer | None:
        """The answer without an error; None after an error that passes."""
        asked = self._asked
        self._asked = None
        try:
            if asked is None or asked.offset != position:
                asked = self._ask(position, self._isolation)
            if asked is None:
                return None
            answer = self._receive(asked)
        except ConnectionLost as error:
            self._go_to_leader(asked)
            self._backoff.pause(f"Partition {self._wanted.name} cannot be read: {error}")
            return None
        return self._accept(position, answer)

    def _try_to_ask(self, position: int) -> None:
        """Ask for what comes next. A failure shows when the answer is wanted."""
        try:
            self._asked = self._ask(position, self._isolation)
        except ConnectionLost:
            self._asked = None

    def _ask(self, position: int, isolation: int) -> _Asked | None:
        """Send a request; None if there is no leader yet."""
        wanted = self._wanted
        name = wanted.name
        self._cluster.find_leaders([name], self._backoff)
        leader = self._cluster.leader_of(name)
        if leader is None:
            problem = "there is no such topic" if self._cluster.is_unknown(wanted.topic) else ""
            self._backoff.pause(
                f"Partition {name} of {self._cluster.bootstrap_servers} cannot be read: "
                f"{problem or 'it has no leader'}"
            )
            return None
        if wanted.topic_id and leader.topic_id and wanted.topic_id != leader.topic_id:
            raise TopicRecreated(
                f"Topic {wanted.topic} was deleted and created again: its topic id is "
                f"{leader.topic_id}, that of the offsets is {wanted.topic_id}. "
                "Start anew, with a new checkpoint or table."
            )
        node = leader.node if self._replica < 0 else self._replica
        connection = self._cluster.connection(node)
        version = connection.version_of(FETCH)
        if not leader.topic_id:
            version = min(version, _TOPIC_IS_KNOWN_WITHOUT_ID)
        question = FetchQuestion(
            topic=wanted.topic,
            topic_id=leader.topic_id,
            partition=wanted.partition,
            leader_epoch=leader.epoch,
            offset=position,
            isolation=isolation,
            max_bytes=self._max_bytes,
            max_wait_ms=MAX_WAIT_MS,
            rack=self._cluster.rack,
        )
        try:
            correlation_id = connection.send(FETCH, version, encode_fetch(version, question))
        except ConnectionLost:
            self._cluster.drop_connection(node)
            raise
        return _Asked(connection, node, version, correlation_id, position, isolation)

    def _receive(self, asked: _Asked) -> FetchAnswer:
        try:
            body = asked.connection.receive(
                asked.correlation_id, is_flexible=FETCH.is_flexible(asked.version)
            )
        except ConnectionLost:
            self._cluster.drop_connection(asked.node)
            raise
        self.answered_by = asked.node
        return decode_fetch(asked.version, body)

    def _accept(self, position: int, answer: FetchAnswer) -> FetchAnswer | None:
        if answer.error == BrokerError.OFFSET_OUT_OF_RANGE:
            if self._replica >= 0:
                self._replica = -1  # a follower that is behind; the leader knows
            else:
                self._out_of_range(position)
            return None
        if answer.error in PASSING:
            self._go_to_leader(None)
            self._backoff.pause(
                f"Partition {self._wanted.name} of {self._cluster.bootstrap_servers} cannot be "
                f"read: {error_name(answer.error)}"
            )
            return None
        if answer.error:
            raise PipelineError(
                f"Partition {self._wanted.name} of {self._cluster.bootstrap_servers} may not be "
                f"read: {error_name(answer.error)}"
            )
        if answer.preferred_replica >= 0 and answer.records_at == answer.records_end:
            self._replica = answer.preferred_replica
            return None
        return answer

    def _go_to_leader(self, asked: _Asked | None) -> None:
        """Something went wrong: read from the leader, whoever that is now."""
        if asked is not None:
            self._cluster.drop_connection(asked.node)
        self._replica = -1
        self._cluster.leader_moved(self._wanted.name)

    def _out_of_range(self, position: int) -> None:
        name = self._wanted.name
        first = self._cluster.list_offsets({name: EARLIEST}, read_committed=False)[name].offset
        if position < first:
            raise OffsetsLost(
                f"Partition {name}: offsets {position} to {first - 1} are deleted, the log starts "
                f"at {first}. Start there, and let the topic retain more."
            )
        last = self._cluster.list_offsets({name: LATEST}, read_committed=False)[name].offset
        self._cluster.leader_moved(name)
        self._backoff.pause(
            f"Partition {name} ends at offset {last}, below {position}: it was truncated, or the "
            "offsets are those of another topic"
        )

    def _after_nothing(self, position: int, answer: FetchAnswer) -> int:
        """There are no records from `position` on. Returns where to go on: at the end, if
        compaction left nothing before it."""
        end = self._wanted.end
        readable_end = answer.last_stable_offset if self._reads_committed else answer.high_watermark
        self._replica = -1  # a follower may be behind; the leader names it again if it is not
        if readable_end < end:
            self._backoff.pause(
                f"Partition {self._wanted.name} can be read up to offset {readable_end}, not to "
                f"{end}. A transaction may be open"
            )
        elif self._reads_committed and self._next_batch_starts_at(position) >= end:
            # What comes next is not stable yet, so the answer did not have it.
            return end
        else:
            # A quota or a slow tier of the log: an empty answer alone proves nothing.
            self._backoff.pause(
                f"Partition {self._wanted.name} ends at offset {readable_end}, but the broker "
                f"gives no records from offset {position} on"
            )
        return position

    def _next_batch_starts_at(self, position: int) -> int:
        """Where the next batch begins, of whatever transaction; -1 if there is none."""
        try:
            asked = self._ask(position, READ_UNCOMMITTED)
            answer = None if asked is None else self._receive(asked)
        except ConnectionLost:
            return -1
        if answer is None or answer.error:
            return -1
        batches = batches_between(answer.data, answer.records_at, answer.records_end)
        return batches[0].base_offset if batches else -1

    def _check_topic_at_end(self) -> None:
        """Brokers before Kafka 3.1 are fetched from by the topic's name. Was it the right one?"""
        wanted = self._wanted
        leader = self._cluster.leader_of(wanted.name)
        if not wanted.topic_id or leader is None or not leader.topic_id:
            return
        connection = self._cluster.connection(leader.node)
        if connection.version_of(FETCH) >= FETCH_WITH_TOPIC_IDS:
            return
        topic = self._cluster.topics([wanted.topic]).get(wanted.topic)
        if topic is None or topic.topic_id != wanted.topic_id:
            raise TopicRecreated(
                f"Topic {wanted.topic} was deleted or created again while it was read. "
                "Start anew, with a new checkpoint or table."
            )


def aborted_batches(answer: FetchAnswer, batches: list[FetchedBatch]) -> frozenset[int]:
    """The base offsets of those that belong to aborted transactions, as consumers find them: a
    producer's batches are aborted from the first offset of its aborted transaction on, up to the
    marker that ends it."""
    if not answer.aborted:
        return frozenset()
    to_come = sorted(answer.aborted, key=lambda transaction: transaction[1], reverse=True)
    producers: set[int] = set()
    found = []
    for batch in batches:
        while to_come and to_come[-1][1] < batch.next_offset:
            producers.add(to_come.pop()[0])
        if batch.is_control:
            if batch.producer_id in producers and is_abort_marker(answer.data, batch):
                producers.remove(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in producers:
            found.append(batch.base_offset)
    return frozenset(found)
