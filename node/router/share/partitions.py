"""Hosts the share partitions that this broker leads: their machines (coordinator/share) and timers.

A share partition is loaded at a group's first fetch, and dropped when another broker leads it or
the group has no share session here any more. Its state is read and written through the persister,
never from the machine of another leader. Every change of a machine ends in `_advance`: it writes
the state, one write at a time, sets the timer, and wakes the fetches that wait for the partition,
one after the other, while there are records for them.

Locks are measured by the loop's clock.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.cluster.metadata.image import MetadataImage, PartitionImage
from odradek.cluster.metadata.settings import share_group_settings
from odradek.coordinator.share.acknowledgements import OffsetBatch
from odradek.coordinator.share.acquisition import AcquiredRange, AcquireOptions, ReadPosition
from odradek.coordinator.share.partition import DeadLetterRange, SharePartition, StateWrite
from odradek.coordinator.share.requests import ReadShareState, ShareKey, WriteShareState
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.fetch_purgatory import FetchPurgatory
from odradek.node.router.logs import Logs
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.share.dead_letter_queue import DeadLetterQueue
from odradek.node.router.share.persister import SharePersister
from odradek.node.router.share.sessions import ShareSession, ShareSessions, TopicIdPartition
from odradek.node.router.share.share_partition_log import SharePartitionLog, SharePartitionRead
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ApiError, ErrorCode

log = get_logger(__name__)

WRITE_RETRY_S: Final = 0.5
"""Between attempts to write the state."""
LOAD_RETRY_S: Final = 0.1
"""Between attempts to load: a member may fetch before its coordinator has initialized the state."""
_RECORD_BYTES_AT_FIRST: Final = 1_024
_NO_POSITION: Final = ReadPosition(-1, None)
"""Before every position."""

_LEADER_MOVED: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER})
_STATE_REPLACED: Final = frozenset(
    {
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors of a write that say that the persisted state was replaced."""


class SharePartitionKey(NamedTuple):
    """A partition of a share group."""

    group_id: str
    topic_partition: TopicIdPartition


def _log_fields(key: SharePartitionKey) -> dict[str, object]:
    topic_id, partition = key.topic_partition
    return {"group": key.group_id, "topic_id": str(topic_id), "partition": partition}


@dataclass(slots=True, eq=False)
class HostedSharePartition:
    """A share partition with its pending writes; `machine` is set once the state is loaded."""

    key: SharePartitionKey
    leader_epoch: int
    machine: SharePartition | None = None
    state_epoch: int = 0
    error_code: ErrorCode = ErrorCode.NONE
    """Why there is no machine, if clients have to know."""
    waiting: dict[int, list[Reply[ErrorCode]]] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    timer_ms: int = 0
    dead_letter_write_count: int = 0
    is_paused: bool = False
    """A write has failed and is retried soon."""
    is_dropped: bool = False
    record_bytes: float = _RECORD_BYTES_AT_FIRST
    """The average size of records, for the next read."""


class SharePartitions:
    """See the module's docstring. `on_image` must be called with every new image."""

    def __init__(
        self,
        metadata: MetadataCache,
        logs: Logs,
        fetch_purgatory: FetchPurgatory,
        persister: SharePersister,
        sessions: ShareSessions,
        dead_letter_queue: DeadLetterQueue,
        now_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`now_ms` is the time of day; locks are measured by the loop's clock."""
        self._metadata = metadata
        self._logs = logs
        self._fetch_purgatory = fetch_purgatory
        self._persister = persister
        self._sessions = sessions
        self._dead_letter_queue = dead_letter_queue
        self._time_of_day_ms = now_ms
        self._loop = loop
        self._by_group: dict[str, dict[TopicIdPartition, HostedSharePartition]] = {}

    @property
    def count(self) -> int:
        """The number of share partitions."""
        return len(self._all())

    def group_settings(self, group_id: str) -> ShareGroupSettings:
        """The settings of a group."""
        metadata = self._metadata
        return share_group_settings(
            metadata.image, metadata.node_id, metadata.static_configs, group_id
        )

    def now_ms(self) -> int:
        """The clock of record locks."""
        return int(self._loop.time() * 1000)

    def hosted(self, group_id: str) -> Mapping[TopicIdPartition, HostedSharePartition]:
        """The share partitions of a group, to be read only."""
        return self._by_group.get(group_id, {})

    def at(self, topic_partition: TopicIdPartition) -> Iterator[tuple[str, SharePartition]]:
        """The groups that read a partition, with their machines, to be read only."""
        for group_id, topic_partitions in self._by_group.items():
            hosted = topic_partitions.get(topic_partition)
            if hosted is not None and hosted.machine is not None:
                yield group_id, hosted.machine

    # -- for the handlers -------------------------------------------------------------------------

    def get(
        self, group_id: str, topic_partition: TopicIdPartition, state: PartitionImage
    ) -> HostedSharePartition:
        """The share partition, which this broker leads. A new one is loaded; waiting fetches are
        woken when that is done."""
        group_partitions = self._by_group.setdefault(group_id, {})
        hosted = group_partitions.get(topic_partition)
        if hosted is None:
            hosted = group_partitions[topic_partition] = HostedSharePartition(
                SharePartitionKey(group_id, topic_partition), state.leader_epoch
            )
            drive(self._load(hosted), partial(self._on_loaded, hosted))
        return hosted

    def read(
        self, hosted: HostedSharePartition, records_max: int, bytes_max: int, *, min_one_batch: bool
    ) -> SharePartitionRead | None:
        """Records that a member may acquire, up to both limits; None if there are none."""
        machine, group_log = hosted.machine, self._log(hosted)
        if machine is None or group_log is None:
            return None
        machine.on_log_start(group_log.start_offset)
        position = machine.position(self.now_ms(), records_max)
        if position is None:
            return None
        wanted_bytes = records_max * hosted.record_bytes
        reading = group_log.read(position, wanted_bytes, bytes_max, min_one_batch=min_one_batch)
        if reading is not None:
            hosted.record_bytes = reading.record_bytes or hosted.record_bytes
        return reading

    def has_acquirable_records(self, key: SharePartitionKey) -> bool:
        """Whether a waiting fetch must look again: for records, or for an error."""
        hosted = self._by_group.get(key.group_id, {}).get(key.topic_partition)
        if hosted is None:
            return True  # the fetch loads it
        machine, group_log = hosted.machine, self._log(hosted)
        if machine is None:
            return bool(hosted.error_code)
        if group_log is None:
            return True
        machine.on_log_start(group_log.start_offset)
        position = machine.position(self.now_ms(), 1)
        return position is not None and position.offset < group_log.end_offset

    def acquire(
        self,
        hosted: HostedSharePartition,
        reading: SharePartitionRead,
        member_id: str,
        options: AcquireOptions,
    ) -> list[AcquiredRange]:
        """Lock the records that were just read for a member. No records if the partition was
        dropped since then: others may hand them out."""
        machine = hosted.machine
        assert machine is not None, "records were read for it"
        if hosted.is_dropped:
            return []
        acquired = machine.acquire(
            member_id, reading.offset, reading.batches, options, now_ms=self.now_ms()
        )
        self._advance(hosted, machine)
        return acquired

    def acknowledge(
        self,
        group_id: str,
        member_id: str,
        topic_partition: TopicIdPartition,
        batches: Sequence[OffsetBatch],
    ) -> ErrorCode | Reply[ErrorCode]:
        """Acknowledge records of one partition, which this broker leads: an error code, or a reply
        when the state is persisted. INVALID_RECORD_STATE if the share partition is not loaded."""
        hosted = self._by_group.get(group_id, {}).get(topic_partition)
        if hosted is None or hosted.machine is None:
            return ErrorCode.INVALID_RECORD_STATE
        machine = hosted.machine
        outcome = machine.acknowledge(member_id, batches, now_ms=self.now_ms())
        if not outcome.write_id:
            self._advance(hosted, machine)
            return outcome.error_code
        reply: Reply[ErrorCode] = Reply()
        hosted.waiting.setdefault(outcome.write_id, []).append(reply)
        self._advance(hosted, machine)
        return reply

    def release(self, session: ShareSession, *, was_delivered: bool) -> None:
        """Release the records that a member holds, because its session has ended. With the last
        session of a group its share partitions are dropped, once their state is written."""
        for hosted in list(self._by_group.get(session.group_id, {}).values()):
            machine = hosted.machine
            if machine is not None:
                before = machine.position(self.now_ms(), 1)
                machine.release_member(
                    session.member_id, was_delivered=was_delivered, now_ms=self.now_ms()
                )
                self._advance(hosted, machine, before)

    # -- for the router ---------------------------------------------------------------------------

    def on_disconnected(self, connection_id: int) -> None:
        """End the sessions of a closed connection. Records that their members hold count as
        delivered, because the members may have seen them."""
        for session in self._sessions.of_connection(connection_id):
            self._sessions.close(session)
            self.release(session, was_delivered=True)

    def on_image(self, old: MetadataImage, image: MetadataImage) -> None:
        """Apply changed configs. Drop partitions that others lead, or that this broker leads in
        another epoch."""
        if old.configs is not image.configs:
            for hosted in self._all():
                if hosted.machine is not None:
                    hosted.machine.group_settings = self.group_settings(hosted.key.group_id)
        if old.topics_by_id is image.topics_by_id:
            return
        for hosted in self._all():
            state = image.partition(*hosted.key.topic_partition)
            if (
                state is None
                or state.leader != self._metadata.node_id
                or state.leader_epoch != hosted.leader_epoch
            ):
                self._drop(hosted, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def forget(self, group_id: str, partitions: Iterable[TopicIdPartition]) -> None:
        """Load the state again, because it was replaced. Locks end, and late acknowledgements are
        refused."""
        group_partitions = self._by_group.get(group_id, {})
        for partition in partitions:
            hosted = group_partitions.get(partition)
            if hosted is not None:
                self._drop(hosted, ErrorCode.INVALID_RECORD_STATE)
                self._wake(hosted)

    def close(self) -> None:
        """Drop everything: the router stops."""
        for hosted in self._all():
            self._drop(hosted, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- loading ----------------------------------------------------------------------------------

    async def _load(self, hosted: HostedSharePartition) -> None:
        group_id, topic_partition = hosted.key
        key = ShareKey(group_id, *topic_partition)
        state = await self._persister.call(ReadShareState(key, hosted.leader_epoch))
        hosted.state_epoch = state.state_epoch
        start_offset = state.start_offset
        if start_offset < 0:
            group_log = self._log(hosted)
            if group_log is None:
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            start_offset = await group_log.initial_offset(
                hosted.leader_epoch, self._time_of_day_ms()
            )
            # Persisted before the first fetch: the next leader must start at the same offset.
            await self._persister.call(
                WriteShareState(
                    key,
                    state_epoch=hosted.state_epoch,
                    leader_epoch=hosted.leader_epoch,
                    start_offset=start_offset,
                    delivery_complete_count=0,
                    batches=(),
                )
            )
        hosted.machine = SharePartition(
            start_offset,
            state.batches,
            now_ms=self.now_ms(),
            group_settings=self.group_settings(group_id),
        )

    def _on_loaded(
        self, hosted: HostedSharePartition, _result: None, error: BaseException | None
    ) -> None:
        if hosted.is_dropped:
            return
        if error is None:
            assert hosted.machine is not None
            self._advance(hosted, hosted.machine)
            self._wake(hosted)
            return
        if not isinstance(error, ApiError):
            log.error(
                "a share partition could not be loaded", **_log_fields(hosted.key), exc_info=error
            )
        else:
            log.info(
                "a share partition could not be loaded yet",
                **_log_fields(hosted.key),
                reason=str(error),
            )
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                hosted.error_code = error.code
            elif error.code in _LEADER_MOVED:
                hosted.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        hosted.timer = self._loop.call_later(LOAD_RETRY_S, self._reload, hosted)
        if hosted.error_code:
            self._wake(hosted)

    def _reload(self, hosted: HostedSharePartition) -> None:
        """The next fetch loads it again."""
        self._drop(hosted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._wake(hosted)

    # -- active -----------------------------------------------------------------------------------

    def _advance(
        self,
        hosted: HostedSharePartition,
        machine: SharePartition,
        before: ReadPosition | None = _NO_POSITION,
    ) -> None:
        """After a change. `before` is the position of the next fetch before it."""
        if hosted.is_dropped:
            return
        if before is not _NO_POSITION:
            after = machine.position(self.now_ms(), 1)
            if after is not None and (before is None or after.offset < before.offset):
                self._wake(hosted)
        if not hosted.is_paused:
            write = machine.next_write()
            if write is not None:
                drive(self._write(hosted, write), partial(self._on_written, hosted, machine, write))
        for dead_letters in machine.take_dead_letters():
            hosted.dead_letter_write_count += 1
            group_settings = self.group_settings(hosted.key.group_id)
            drive(
                self._dead_letter_queue.write_records(*hosted.key, dead_letters, group_settings),
                partial(self._on_dead_lettered, hosted, machine, dead_letters),
            )
        self._set_timer(hosted, machine)
        is_read = self._sessions.has_any(hosted.key.group_id)
        if not is_read and machine.is_idle and not hosted.dead_letter_write_count:
            # Without sessions the state may be changed by administrators (KIP-932).
            self._drop(hosted, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def _write(self, hosted: HostedSharePartition, write: StateWrite) -> None:
        group_id, topic_partition = hosted.key
        await self._persister.call(
            WriteShareState(
                ShareKey(group_id, *topic_partition),
                state_epoch=hosted.state_epoch,
                leader_epoch=hosted.leader_epoch,
                start_offset=write.start_offset,
                delivery_complete_count=write.delivery_complete_count,
                batches=tuple(write.batches),
            )
        )

    def _on_written(
        self,
        hosted: HostedSharePartition,
        machine: SharePartition,
        write: StateWrite,
        _result: None,
        error: BaseException | None,
    ) -> None:
        if hosted.is_dropped:
            return
        code = ErrorCode.NONE
        if error is not None:
            code = error.code if isinstance(error, ApiError) else ErrorCode.UNKNOWN_SERVER_ERROR
            log.warning(
                "the state of a share partition could not be written",
                **_log_fields(hosted.key),
                reason=str(error),
            )
            if code in _LEADER_MOVED:
                self._drop(hosted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                return
            if code in _STATE_REPLACED:
                self._drop(hosted, code)
                self._wake(hosted)
                return
            hosted.is_paused = True
            self._loop.call_later(WRITE_RETRY_S, self._resume, hosted, machine)
        before = machine.position(self.now_ms(), 1)
        machine.on_written(is_done=not code, now_ms=self.now_ms())
        for reply in hosted.waiting.pop(write.write_id, ()):
            reply.resolve(code)
        self._advance(hosted, machine, before)

    def _resume(self, hosted: HostedSharePartition, machine: SharePartition) -> None:
        hosted.is_paused = False
        self._advance(hosted, machine)

    def _on_dead_lettered(
        self,
        hosted: HostedSharePartition,
        machine: SharePartition,
        dead_letters: DeadLetterRange,
        _result: None,
        error: BaseException | None,
    ) -> None:
        hosted.dead_letter_write_count -= 1
        if error is not None:
            log.error(
                "records could not be written to the dead-letter queue",
                **_log_fields(hosted.key),
                exc_info=error,
            )
        if hosted.is_dropped:
            return
        before = machine.position(self.now_ms(), 1)
        machine.on_dead_lettered(dead_letters.start, dead_letters.end)
        self._advance(hosted, machine, before)

    def _set_timer(self, hosted: HostedSharePartition, machine: SharePartition) -> None:
        deadline_ms = machine.next_deadline_ms()
        if hosted.timer is not None:
            if deadline_ms is not None and hosted.timer_ms <= deadline_ms:
                return  # the timer fires earlier
            hosted.timer.cancel()
            hosted.timer = None
        if deadline_ms is not None:
            hosted.timer_ms = deadline_ms
            hosted.timer = self._loop.call_at(deadline_ms / 1000, self._on_timer, hosted, machine)

    def _on_timer(self, hosted: HostedSharePartition, machine: SharePartition) -> None:
        hosted.timer = None
        # The loop's timers may fire up to its clock's resolution early.
        now_ms = max(self.now_ms(), hosted.timer_ms)
        if machine.on_deadline(now_ms):
            self._wake(hosted)
        self._advance(hosted, machine)

    def _drop(self, hosted: HostedSharePartition, code: ErrorCode) -> None:
        """Drop the share partition; pending acknowledgements get `code`."""
        if hosted.is_dropped:
            return
        hosted.is_dropped = True
        group_id, topic_partition = hosted.key
        group_partitions = self._by_group[group_id]
        del group_partitions[topic_partition]
        if not group_partitions:
            del self._by_group[group_id]
        if hosted.timer is not None:
            hosted.timer.cancel()
        waiting, hosted.waiting = hosted.waiting, {}
        for replies in waiting.values():
            for reply in replies:
                reply.resolve(code)

    def _all(self) -> list[HostedSharePartition]:
        return [hosted for of_group in self._by_group.values() for hosted in of_group.values()]

    def _wake(self, hosted: HostedSharePartition) -> None:
        """Wake the group's waiting fetches, as many as `has_acquirable_records` is true for."""
        self._fetch_purgatory.on_available(hosted.key)

    def _log(self, hosted: HostedSharePartition) -> SharePartitionLog | None:
        """The partition's log; None if this broker has no replica."""
        group_id, topic_partition = hosted.key
        located = self._logs.open(*topic_partition)
        if located is None:
            return None
        return SharePartitionLog(located.reader, located.number, self.group_settings(group_id))
