"""The durable states of the share partitions of one shard.

The log has a snapshot and updates for each key; after a number of updates, a new snapshot.

| Request | Key | Result |
|---|---|---|
| Initialize | unknown, or of a lower state epoch | snapshot: restart |
| | of the same state epoch | nothing; FENCED_STATE_EPOCH for another start offset |
| | of a higher state epoch | FENCED_STATE_EPOCH |
| Read | unknown | INVALID_REQUEST |
| | with a higher leader epoch | FENCED_LEADER_EPOCH |
| | with a lower leader epoch | update: former leaders are fenced |
| | with the same leader epoch, or without one | nothing |
| Write | unknown | INVALID_REQUEST |
| | with a higher leader epoch | FENCED_LEADER_EPOCH |
| | of another state epoch, also a lower one after a deletion | FENCED_STATE_EPOCH |
| | else | update, or snapshot |
| Delete | known | tombstone |
| | unknown | nothing |

Topics and partitions that are not in the image are UNKNOWN_TOPIC_OR_PARTITION, except for Delete;
keys of deleted topics are removed.

The log is not compacted, because all updates of a key are needed. Instead, when the log has grown
by enough records, the host measures its end; then all keys are written again behind it, and when
that is committed the host deletes the records before (ADR 10).

Invariant: without its first part the log gives the same table as the whole log.
Called by coordinator.runtime, with one shard per partition of `__share_group_state`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from odradek.cluster.metadata.image import TopicImage
from odradek.coordinator.outcome import Command, Effect, Outcome, ShardReply, TimerKey, respond
from odradek.coordinator.share.records import ShareStateRecord, decode, encode
from odradek.coordinator.share.requests import (
    NO_STATE_SUMMARY,
    Checkpoint,
    DeleteShareState,
    DropLog,
    ForgetTopicStates,
    InitializeShareState,
    MeasureLog,
    PersistedShareState,
    ReadShareState,
    ShareKey,
    ShareStateError,
    ShareStateSummary,
    SummarizeShareState,
    WriteShareState,
)
from odradek.coordinator.share.settings import ShareStateSettings
from odradek.coordinator.share.state import (
    NO_COUNT,
    ShareState,
    ShareUpdate,
    snapshot_of,
    with_update,
)
from odradek.coordinator.share.state_batches import DURABLE_STATES, Batches, combine
from odradek.coordinator.timeline import Timeline, TimelineTable
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import NO_EPOCH, NO_OFFSET, ZERO_UUID, Uuid

WRITTEN_BATCHES_MAX: Final = 10_000
"""Of one write: a leader has at most 4,000 records in flight."""
_LOG_RECORDS_PER_KEY: Final = 4

_Outcome = Outcome[ShareStateRecord]
_Handler = Callable[[Command, Any, int], _Outcome]


class ShareStateShard:
    """The durable share-partitions of one shard. `settings` and `topics`, the image's by their ids,
    may be replaced at any time."""

    is_log_compacted: Final = False
    encode = staticmethod(encode)
    decode = staticmethod(decode)

    def __init__(self, settings: ShareStateSettings, topics: Mapping[Uuid, TopicImage]) -> None:
        self.settings = settings
        self.topics = topics
        self.timeline = Timeline()
        self.states: TimelineTable[ShareKey, ShareState] = TimelineTable(self.timeline)
        # Records since the log was last rewritten or measured.
        self._log_count = 0
        self._key_count = 0
        self._handlers: dict[type, _Handler] = {
            InitializeShareState: self._initialize,
            ReadShareState: self._read,
            WriteShareState: self._write,
            DeleteShareState: self._delete,
            SummarizeShareState: self._summarize,
            ForgetTopicStates: self._forget,
            Checkpoint: self._checkpoint,
        }

    # -- the shard of the runtime -----------------------------------------------------------------

    def handle(self, command: Command, now_ms: int) -> _Outcome:
        """Handle a request; errors are answered with ShareStateError."""
        request = command.request
        try:
            return self._handlers[type(request)](command, request, now_ms)
        except ApiError as error:
            refused = ShareStateError(error.code, error.message)
            is_immediate = isinstance(request, SummarizeShareState)
            return respond(command, refused, is_immediate=is_immediate)

    def replay(self, record: ShareStateRecord) -> None:
        """Apply a record to the table."""
        self._log_count += 1
        value = record.value
        if value is None:
            self.states.remove(record.key)
        elif isinstance(value, ShareState):
            self.states.put(record.key, value)
        else:
            known = self.states.get(record.key)
            # If the snapshot of the update was dropped, a newer snapshot comes later in the log.
            if known is not None:
                self.states.put(record.key, with_update(known, value))

    def on_loaded(self, now_ms: int) -> _Outcome:
        """A log that is too long is rewritten."""
        return Outcome(effects=self._measure())

    def fire(self, key: TimerKey, now_ms: int) -> _Outcome:
        """A shard of share states has no timers."""
        raise AssertionError(f"a timer of an unknown kind: {key}")

    def on_append_failed(self, records: tuple[ShareStateRecord, ...], now_ms: int) -> _Outcome:
        """The table was reverted. A rewrite may be among the records: measure with the next
        change."""
        self._log_count = self._log_count_max
        return Outcome()

    # -- requests ---------------------------------------------------------------------------------

    def _initialize(self, command: Command, asked: InitializeShareState, now_ms: int) -> _Outcome:
        self._check_key(asked.key)
        if asked.state_epoch < 0 or asked.start_offset < NO_OFFSET:
            message = "The state epoch and the start offset must not be negative."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        known = self.states.get(asked.key)
        if known is not None and known.state_epoch >= asked.state_epoch:
            is_same_start = asked.start_offset in (NO_OFFSET, known.start_offset)
            if known.state_epoch > asked.state_epoch or not is_same_start:
                raise _fenced_state(known)
            return respond(command, None)
        initial = ShareState(
            snapshot_epoch=known.snapshot_epoch + 1 if known is not None else 0,
            state_epoch=asked.state_epoch,
            leader_epoch=known.leader_epoch if known is not None else 0,
            start_offset=asked.start_offset,
            delivery_complete_count=0,
            create_ms=now_ms,
            write_ms=now_ms,
        )
        return self._record(command, asked.key, initial)

    def _read(self, command: Command, asked: ReadShareState, now_ms: int) -> _Outcome:
        known = self._state_for_leader(asked.key, asked.leader_epoch, "Read")
        found = PersistedShareState(known.state_epoch, known.start_offset, known.batches)
        if asked.leader_epoch <= known.leader_epoch:
            return respond(command, found)
        update = ShareUpdate(
            snapshot_epoch=known.snapshot_epoch,
            leader_epoch=asked.leader_epoch,
            start_offset=known.start_offset,
            delivery_complete_count=known.delivery_complete_count,
        )
        return self._record(command, asked.key, self._change(known, update, now_ms), found)

    def _write(self, command: Command, asked: WriteShareState, now_ms: int) -> _Outcome:
        known = self._state_for_leader(asked.key, asked.leader_epoch, "Write")
        if asked.state_epoch not in (NO_EPOCH, known.state_epoch):
            raise _fenced_state(known)
        if (
            asked.start_offset < NO_OFFSET
            or asked.delivery_complete_count < NO_COUNT
            or len(asked.batches) > WRITTEN_BATCHES_MAX
            or not are_durable(asked.batches)
        ):
            message = "An offset, a count, a state or the number of batches is out of range."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        update = ShareUpdate(
            snapshot_epoch=known.snapshot_epoch,
            leader_epoch=known.leader_epoch,
            start_offset=asked.start_offset,
            delivery_complete_count=asked.delivery_complete_count,
            batches=combine((), asked.batches, asked.start_offset),
        )
        return self._record(command, asked.key, self._change(known, update, now_ms))

    def _delete(self, command: Command, asked: DeleteShareState, now_ms: int) -> _Outcome:
        if asked.key not in self.states:
            return respond(command, None)
        return self._record(command, asked.key, None)

    def _summarize(self, command: Command, asked: SummarizeShareState, now_ms: int) -> _Outcome:
        self._check_key(asked.key)
        known = self.states.committed(asked.key)
        summary = NO_STATE_SUMMARY
        if known is not None:
            summary = ShareStateSummary(
                known.state_epoch,
                known.leader_epoch,
                known.start_offset,
                known.delivery_complete_count,
            )
        return respond(command, summary, is_immediate=True)

    def _forget(self, command: Command, asked: ForgetTopicStates, now_ms: int) -> _Outcome:
        records = tuple(
            ShareStateRecord(key, None)
            for key, _ in self.states.items()
            if key.topic_id in asked.topic_ids
        )
        return Outcome(
            records=records, replies=(ShardReply(command.request_id, None),), is_atomic=False
        )

    def _checkpoint(self, command: Command, asked: Checkpoint, now_ms: int) -> _Outcome:
        records = tuple(
            ShareStateRecord(key, snapshot_of(known, now_ms)) for key, known in self.states.items()
        )
        self._log_count = 0
        self._key_count = len(records)
        return Outcome(
            records=records,
            replies=(ShardReply(command.request_id, None),),
            effects=(Effect(DropLog(asked.end_offset)),),
            is_atomic=False,
        )

    # -- inside -----------------------------------------------------------------------------------

    def _state_for_leader(self, key: ShareKey, leader_epoch: int, operation: str) -> ShareState:
        """The state, for the leader of the partition. ApiError without a state, and for a leader
        that was replaced; a request with NO_EPOCH does not come from a leader."""
        self._check_key(key)
        known = self.states.get(key)
        if known is None:
            message = f"{operation} operation on uninitialized share partition not allowed."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        if NO_EPOCH != leader_epoch < known.leader_epoch:
            message = f"The leader epoch is {known.leader_epoch}."
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, message)
        return known

    def _check_key(self, key: ShareKey) -> None:
        """ApiError if the key is not one of a partition in the image."""
        if not key.group_id or key.topic_id == ZERO_UUID or key.partition < 0:
            message = (
                "The group id, the topic id and a partition that is not negative are required."
            )
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        topic = self.topics.get(key.topic_id)
        if topic is None or key.partition >= len(topic.partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _change(
        self, known: ShareState, update: ShareUpdate, now_ms: int
    ) -> ShareState | ShareUpdate:
        """The record of an update: a new snapshot, after updates_per_snapshot updates."""
        if known.update_count < self.settings.updates_per_snapshot:
            return update
        return snapshot_of(with_update(known, update), now_ms)

    def _record(
        self,
        command: Command,
        key: ShareKey,
        value: ShareState | ShareUpdate | None,
        response: object = None,
    ) -> _Outcome:
        return Outcome(
            records=(ShareStateRecord(key, value),),
            replies=(ShardReply(command.request_id, response),),
            effects=self._measure(),
        )

    @property
    def _log_count_max(self) -> int:
        return max(self.settings.log_records_max, _LOG_RECORDS_PER_KEY * self._key_count)

    def _measure(self) -> tuple[Effect, ...]:
        """Have the log measured if it has grown by `log_records_max` records."""
        if self._log_count < self._log_count_max:
            return ()
        self._log_count = 0
        return (Effect(MeasureLog()),)


def are_durable(batches: Batches) -> bool:
    """Whether batches have valid offsets and durable states."""
    return all(
        0 <= first <= last and state in DURABLE_STATES and count >= 0
        for first, last, state, count in batches
    )


def _fenced_state(known: ShareState) -> ApiError:
    message = f"The state epoch is {known.state_epoch}. Initialize with a higher one."
    return ApiError(ErrorCode.FENCED_STATE_EPOCH, message)
