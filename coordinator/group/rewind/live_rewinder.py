"""Live rewinds: the coordinator changes the offsets of a group while its members run.

The new offsets are written in one batch with the step that fences commits of records that were read
before. The way to that step depends on the group:

| Group | First | The step |
|---|---|---|
| no members | - | at once |
| classic | a rebalance is started | the leader's sync: generation + 1 is stored |
| classic, cooperative (`revocation_rounds`) | one is stored without the partitions | the next one |
| share (KIP-932) | - | the state epoch + 1: leaders release acquired records |
| consumer (KIP-848) | the partitions are revoked | epoch + 1: they are assigned |

Only the rewound partitions pause, except in eager groups, which rebalance as a whole. Pending
rewinds are in the log: a coordinator that loads the shard continues them. If a group changes its
protocol meanwhile, the rewind continues as the other row says. Called by `shard`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from odradek.coordinator.group.classic.group import GroupState
from odradek.coordinator.group.classic.records import GroupMetadataRecord
from odradek.coordinator.group.consumer.group import ConsumerGroup
from odradek.coordinator.group.consumer.target_assignment import ConsumerTargetAssignmentBuilder
from odradek.coordinator.group.events import EventKind
from odradek.coordinator.group.group_directory import GroupDirectory
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.group_type import GroupTypeHandler
from odradek.coordinator.group.requests import CommitRequest
from odradek.coordinator.group.rewind import rewind_by_commit
from odradek.coordinator.group.rewind.offset_moves import (
    after,
    fences_of,
    is_assigned,
    is_leader_sync,
    is_targeted,
    partitions_of,
    target_record,
    without_pending,
)
from odradek.coordinator.group.rewind.records import (
    CommitFence,
    OffsetMove,
    Rewind,
    RewindStateRecord,
    UndoPoint,
    UndoPointRecord,
    key_of,
)
from odradek.coordinator.group.rewind.requests import (
    CANCEL,
    RewindGroup,
    RewindResult,
)
from odradek.coordinator.group.rewind.revocation_rounds import REASON, RevocationRounds
from odradek.coordinator.group.rewind.rewind_planner import RewindPlanner
from odradek.coordinator.group.rewind.rewind_tables import UNDO_COUNT_MAX, RewindTables
from odradek.coordinator.group.rewind.snapshots import GroupSnapshots
from odradek.coordinator.group.share.requests import StatesRestarted
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.topics import NO_PARTITIONS, Partitions
from odradek.coordinator.outcome import (
    Command,
    Outcome,
    TimerKey,
    TransactionalRecord,
    TransactionMarker,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import OffsetCommitRequest
from odradek.protocol.messages.groups import HeartbeatRequest, SyncGroupRequest
from odradek.protocol.types import ZERO_UUID, Uuid

FAILURES_MAX: Final = 3
"""After so many failed writes of its end a rewind is cancelled."""
_RETRY_MS: Final = 1_000


class RewindWaiter(NamedTuple):
    """A request that waits for the end of the rewind. `response_to` makes its response."""

    request_id: int
    response_to: Callable[[RewindResult], object]

    def respond(self, result: RewindResult, step: GroupStep) -> None:
        """Respond to the request."""
        step.reply(self.request_id, self.response_to(result))


class LiveRewinder:
    """See the module's docstring. Only the tables of `rewind_tables` are in the log."""

    timer_kinds = frozenset({"rewind", "rewind-wait"})

    def __init__(self, rewinds: RewindTables, directory: GroupDirectory) -> None:
        self._rewinds = rewinds
        self._classic = directory.classic
        self._consumers = directory.consumers
        self._shares = directory.shares
        self._planner = RewindPlanner(rewinds, directory)
        self._waiters: dict[str, list[RewindWaiter]] = {}
        self._rounds = RevocationRounds()
        self._failure_counts: dict[str, int] = {}
        # The state epochs of the restarts of share groups.
        self._restart_epochs: dict[str, int] = {}
        self.handlers: Mapping[type, GroupTypeHandler] = {
            RewindGroup: self._on_request,
            StatesRestarted: self._states_restarted,
            **GroupSnapshots(rewinds, directory).handlers,
        }

    # -- requests ---------------------------------------------------------------------------------

    def _on_request(self, command: Command, request: RewindGroup, step: GroupStep) -> None:
        self.rewind(request, RewindWaiter(command.request_id, lambda result: result), step)

    def by_commit(self, command: Command, request: OffsetCommitRequest, step: GroupStep) -> bool:
        """Start a rewind if the commit is to be handled as one; returns whether it is."""
        if not rewind_by_commit.is_rewind(request, step.settings):
            return False
        rewind = rewind_by_commit.rewind_of(request, step.settings)
        waiter = RewindWaiter(
            command.request_id, lambda result: rewind_by_commit.response_to(request, result)
        )
        if rewind is None:
            waiter.respond(RewindResult(ErrorCode.OFFSET_METADATA_TOO_LARGE), step)
        elif not self._joins_pending(rewind, waiter, step):
            self.rewind(rewind, waiter, step)
        return True

    def _joins_pending(self, request: RewindGroup, waiter: RewindWaiter, step: GroupStep) -> bool:
        """Whether the same rewind is pending already; then the request waits for it."""
        pending = self._rewinds.pending(request.group_id)
        if pending is None:
            return False
        wanted = {(at.topic, at.partition, at.offset) for at in request.positions}
        if wanted != {(move.topic, move.partition, move.offset) for move in pending.moves}:
            return False
        self._wait(request.group_id, waiter, request.timeout_ms, step)
        return True

    def rewind(self, request: RewindGroup, waiter: RewindWaiter, step: GroupStep) -> None:
        """Start a rewind, or complete it if no member owns the partitions."""
        group_id = request.group_id
        if request.undoes == CANCEL:
            self._cancel(group_id, waiter, step)
            return
        if self._is_repeated(request, waiter, step):
            return
        moves, refused = self._planner.moves(request)
        error, message = self._planner.refusal(request, refused)
        if error is not ErrorCode.NONE or request.is_dry_run:
            waiter.respond(RewindResult(error, message, moves, refused), step)
            return
        rewind = Rewind(request.rewind_id, step.now_ms, moves, request.undoes)
        consumers = self._consumers.get(group_id)
        group = self._classic.group(group_id)
        if not moves:
            self._skip_undo(group_id, rewind, waiter, step)
        elif group_id in self._shares:
            self._begin(group_id, rewind, request.timeout_ms, waiter, step)
            self._restart_share_states(group_id, moves, step)
        elif consumers is not None and is_assigned(consumers, moves):
            self._begin(group_id, rewind, request.timeout_ms, waiter, step)
            self._assign(consumers, partitions_of(moves), step)
        elif consumers is None and group is not None and not group.is_empty:
            self._begin(group_id, rewind, request.timeout_ms, waiter, step)
            if group.state is not GroupState.COMPLETING_REBALANCE:
                group.rebalance(step, REASON)
        else:
            self._waiters.setdefault(group_id, []).append(waiter)
            self._finish(group_id, rewind, step)

    def _begin(
        self, group_id: str, rewind: Rewind, timeout_ms: int, waiter: RewindWaiter, step: GroupStep
    ) -> None:
        state = msgspec.structs.replace(self._rewinds.state(group_id), pending=rewind)
        step.records.append(RewindStateRecord(group_id, state))
        self._failure_counts.pop(group_id, None)
        self._rounds.forget(group_id)
        self._record_event(group_id, EventKind.REWIND_STARTED, rewind, step)
        self._wait(group_id, waiter, timeout_ms, step)

    def _is_repeated(self, request: RewindGroup, waiter: RewindWaiter, step: GroupStep) -> bool:
        """Whether the request is a retry of a known rewind; then it is handled."""
        state = self._rewinds.state(request.group_id)
        if request.rewind_id == ZERO_UUID:
            return False
        if state.pending is not None and state.pending.rewind_id == request.rewind_id:
            self._wait(request.group_id, waiter, request.timeout_ms, step)
            return True
        if state.last is not None and state.last.rewind_id == request.rewind_id:
            result = RewindResult(moves=state.last.moves)
        elif request.rewind_id in state.given_up_ids:
            # A late retry must not start a cancelled rewind again.
            result = RewindResult(ErrorCode.OPERATION_NOT_ATTEMPTED, "The rewind was cancelled.")
        elif request.rewind_id in state.done_ids:
            message = "The rewind is complete, and the group has been rewound or undone since."
            result = RewindResult(ErrorCode.INVALID_REQUEST, message)
        else:
            return False
        waiter.respond(result, step)
        return True

    # -- requests that wait -----------------------------------------------------------------------

    def _wait(self, group_id: str, waiter: RewindWaiter, timeout_ms: int, step: GroupStep) -> None:
        self._waiters.setdefault(group_id, []).append(waiter)
        key = ("rewind-wait", group_id, str(waiter.request_id))
        step.set_timer(key, step.now_ms + max(timeout_ms, 0))

    def _answer(self, group_id: str, result: RewindResult, step: GroupStep) -> None:
        """Respond to all requests that wait for the group."""
        for waiter in self._waiters.pop(group_id, ()):
            step.cancel_timer(("rewind-wait", group_id, str(waiter.request_id)))
            waiter.respond(result, step)

    def _time_out(self, group_id: str, request_id: int, step: GroupStep) -> None:
        pending = self._rewinds.pending(group_id)
        message = "The rewind continues: members still have to revoke partitions."
        moves = () if pending is None else pending.moves
        waiters = self._waiters.get(group_id, [])
        for waiter in [waiter for waiter in waiters if waiter.request_id == request_id]:
            waiters.remove(waiter)
            waiter.respond(RewindResult(ErrorCode.REQUEST_TIMED_OUT, message, moves), step)

    # -- beginning and end ------------------------------------------------------------------------

    def _finish(self, group_id: str, rewind: Rewind, step: GroupStep) -> None:
        """Write the offsets and what fences earlier commits."""
        state = self._rewinds.state(group_id)
        consumers = self._consumers.get(group_id)
        fences: tuple[CommitFence, ...] = ()
        if consumers is not None and not consumers.is_empty:
            epoch = self._assign(consumers, NO_PARTITIONS, step)
            fences = fences_of(state.fences, consumers, rewind.moves, epoch)
        moves = rewind.moves
        if group_id not in self._shares:
            moves = tuple(self._planner.from_committed(group_id, move) for move in rewind.moves)
            step.records += (target_record(group_id, move, step.now_ms) for move in moves)
        number = state.newest_number
        if rewind.undoes:
            step.records.append(UndoPointRecord(group_id, rewind.undoes, None))
        else:
            number += 1
            point = UndoPoint(step.now_ms, moves)
            step.records.append(UndoPointRecord(group_id, number, point))
            known = sorted(self._rewinds.undo_points(group_id))
            surplus = known[: max(0, len(known) + 1 - UNDO_COUNT_MAX)]
            step.records += (UndoPointRecord(group_id, oldest, None) for oldest in surplus)
        self._rounds.forget(group_id)
        done = Rewind(rewind.rewind_id, step.now_ms, moves, rewind.undoes)
        ended = msgspec.structs.replace(
            after(state, done), pending=None, fences=fences, newest_number=number
        )
        step.records.append(RewindStateRecord(group_id, ended))
        self._record_event(group_id, EventKind.REWOUND, done, step)
        self._answer(group_id, RewindResult(moves=moves), step)

    def _skip_undo(
        self, group_id: str, rewind: Rewind, waiter: RewindWaiter, step: GroupStep
    ) -> None:
        """Remove an undo point whose topics are all deleted, so that earlier rewinds can be
        undone."""
        state = after(self._rewinds.state(group_id), rewind)
        step.records += (
            UndoPointRecord(group_id, rewind.undoes, None),
            RewindStateRecord(group_id, state),
        )
        waiter.respond(RewindResult(), step)

    def _cancel(self, group_id: str, waiter: RewindWaiter, step: GroupStep) -> None:
        """Cancel the pending rewind: no offset was changed."""
        pending = self._rewinds.pending(group_id)
        if pending is None:
            message = "The group has no pending rewind."
            result = RewindResult(ErrorCode.INVALID_REQUEST, message)
        elif group_id in self._shares:
            message = (
                "The share group has been restarted already. Undo the rewind when it is complete."
            )
            result = RewindResult(ErrorCode.INVALID_REQUEST, message)
        else:
            self._give_up(group_id, "The rewind was cancelled.", step)
            # Moves from the committed offsets to the same.
            moves = (self._planner.from_committed(group_id, move) for move in pending.moves)
            result = RewindResult(
                moves=tuple(msgspec.structs.replace(at, offset=at.previous) for at in moves)
            )
        waiter.respond(result, step)

    def _give_up(self, group_id: str, message: str, step: GroupStep) -> None:
        pending = self._rewinds.pending(group_id)
        assert pending is not None
        state = without_pending(self._rewinds.state(group_id))
        step.records.append(RewindStateRecord(group_id, state))
        consumers = self._consumers.get(group_id)
        if consumers is not None and not consumers.is_empty:
            self._assign(consumers, NO_PARTITIONS, step)
        group = self._classic.live_groups.get(group_id)
        if group is not None and self._rounds.has_reduced_assignment(group_id):
            group.rebalance(step, message)
        self._rounds.forget(group_id)
        self._record_event(group_id, EventKind.REWIND_GIVEN_UP, pending, step, message)
        result = RewindResult(ErrorCode.OPERATION_NOT_ATTEMPTED, message)
        self._answer(group_id, result, step)

    def _record_event(
        self, group_id: str, kind: EventKind, rewind: Rewind, step: GroupStep, reason: str = ""
    ) -> None:
        group = self._classic.live_groups.get(group_id)
        what = reason or f"{len(rewind.moves)} partitions"
        if group is not None:
            group.events.add(step.now_ms, kind, "", what)
        elif group_id in self._consumers:
            self._consumers.events.add(group_id, step.now_ms, kind, what)
        elif group_id in self._shares:
            self._shares.events.add(group_id, step.now_ms, kind, what)

    # -- classic groups ---------------------------------------------------------------------------

    def before_sync(self, request: SyncGroupRequest, step: GroupStep) -> SyncGroupRequest:
        """The leader's assignments as they are stored while the group is rewound."""
        rewind = self._rewinds.pending(request.group_id)
        group = self._classic.live_groups.get(request.group_id)
        if rewind is None or group is None or not is_leader_sync(request, group):
            return request
        keys = {key_of(move) for move in rewind.moves}
        return self._rounds.before_sync(group, request, keys, step)

    def after_sync(self, group_id: str, step: GroupStep) -> None:
        """Members may have received the assignment without the partitions."""
        group = self._classic.live_groups.get(group_id)
        if group_id in self._consumers:
            if self._rewinds.pending(group_id) is not None:
                step.set_timer(("rewind", group_id), step.now_ms)
        elif group is not None:
            self._rounds.after_sync(group, step)

    def on_heartbeat(self, request: HeartbeatRequest) -> None:
        """A heartbeat of a member of a classic group."""
        self._rounds.on_heartbeat(request)

    def _on_generation_stored(self, group_id: str, rewind: Rewind, step: GroupStep) -> None:
        """A generation is about to be stored."""
        group = self._classic.live_groups.get(group_id)
        if (
            group is None
            or group.is_empty
            or (
                group.state is GroupState.STABLE
                and not self._rounds.has_reduced_assignment(group_id)
            )
        ):
            self._finish(group_id, rewind, step)

    # -- consumer groups --------------------------------------------------------------------------

    def withheld(self, group_id: str) -> Partitions:
        """The partitions that are in no member's target while the group is rewound."""
        rewind = self._rewinds.pending(group_id)
        return NO_PARTITIONS if rewind is None else partitions_of(rewind.moves)

    def _assign(self, consumers: ConsumerGroup, withheld: Partitions, step: GroupStep) -> int:
        """Assign all partitions but the withheld ones; returns the epoch of that assignment."""
        builder = ConsumerTargetAssignmentBuilder(consumers)
        # The tables do not have the records of this step yet.
        before, step.withheld = step.withheld, lambda _group_id: withheld
        count = len(step.records)
        epoch = builder.start_epoch(step)
        builder.assign_now(epoch, step)
        step.withheld = before
        self._consumers.events.add_records(consumers, step.records[count:], step.now_ms, REASON)
        return epoch.epoch

    def commit_error(self, request: CommitRequest) -> ErrorCode:
        """The error of a commit of records that a member read before a rewind."""
        state = self._rewinds.state(request.group_id)
        if not state.fences and state.pending is None:
            return ErrorCode.NONE
        consumers = self._consumers.get(request.group_id)
        member_id, epoch = request.member_id, request.generation_id_or_member_epoch
        if consumers is None or epoch < 0:
            return ErrorCode.NONE
        partitions = {
            (topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        }
        is_stale = any(
            fence.epoch > epoch and (fence.topic, fence.partition) in partitions
            for fence in state.fences
        ) or any(
            key_of(move) in partitions
            and consumers.owner(move.topic_id, move.partition) != member_id
            for move in (() if state.pending is None else state.pending.moves)
        )
        if not is_stale:
            return ErrorCode.NONE
        member = consumers.member(member_id)
        is_classic = member is not None and member.classic is not None
        return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH

    # -- share groups -----------------------------------------------------------------------------

    def _restart_share_states(
        self, group_id: str, moves: Iterable[OffsetMove], step: GroupStep
    ) -> None:
        """Restart the group's share states, with a new state epoch for each attempt."""
        offsets: dict[Uuid, dict[int, int]] = {}
        for move in moves:
            offsets.setdefault(move.topic_id, {})[move.partition] = move.offset
        self._restart_epochs[group_id] = self._shares.restart(group_id, offsets, step, why=REASON)

    def _states_restarted(self, command: Command, report: StatesRestarted, step: GroupStep) -> None:
        group_id = report.group_id
        rewind = self._rewinds.pending(group_id)
        is_newest = self._restart_epochs.get(group_id) == report.state_epoch
        if rewind is not None and group_id in self._shares and is_newest:
            self._shares.restarted(group_id, report.outcomes, step)
            self._restart_epochs.pop(group_id)
            codes = {code for found in report.outcomes.values() for code in found.values()}
            # Deleted partitions need no restart.
            if codes <= {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
                self._finish(group_id, rewind, step)
            else:
                step.set_timer(("rewind", group_id), step.now_ms + _RETRY_MS)
        step.reply(command.request_id, None)

    # -- progress of pending rewinds --------------------------------------------------------------

    def follow(self, outcome: Outcome[GroupRecord], step: GroupStep) -> Outcome[GroupRecord]:
        """The outcome, with the consequences for pending rewinds. It has not been replayed yet."""
        touched: dict[str, bool] = {}
        for record in outcome.records:
            if isinstance(record, TransactionalRecord | TransactionMarker):
                continue
            if isinstance(record, RewindStateRecord):
                return outcome
            is_generation = isinstance(record, GroupMetadataRecord) and record.metadata is not None
            touched[record.group_id] = touched.get(record.group_id, False) or is_generation
        for group_id, has_generation in touched.items():
            rewind = self._rewinds.pending(group_id)
            if rewind is None:
                continue
            if has_generation and group_id not in self._consumers:
                self._on_generation_stored(group_id, rewind, step)
            elif group_id not in self._shares:
                step.set_timer(("rewind", group_id), step.now_ms)
        if not step.records and not step.timers:
            return outcome
        return msgspec.structs.replace(
            outcome,
            records=outcome.records + tuple(step.records),
            replies=outcome.replies + tuple(step.replies),
            timers=outcome.timers + tuple(step.timers),
        )

    def fire(self, key: TimerKey, step: GroupStep) -> None:
        """A waiting request has timed out, or a pending rewind is to be advanced."""
        if key[0] == "rewind-wait":
            self._time_out(key[1], int(key[2]), step)
        else:
            self._advance(key[1], step)

    def _advance(self, group_id: str, step: GroupStep) -> None:
        rewind = self._rewinds.pending(group_id)
        if rewind is None:
            return
        if self._failure_counts.get(group_id, 0) >= FAILURES_MAX:
            self._failure_counts.pop(group_id)
            self._give_up(group_id, "The records of the rewind could not be written.", step)
            return
        consumers = self._consumers.get(group_id)
        group = self._classic.group(group_id)
        if group_id in self._shares:
            if group_id not in self._restart_epochs:
                self._restart_share_states(group_id, rewind.moves, step)
        elif consumers is not None and is_assigned(consumers, rewind.moves):
            if is_targeted(consumers, rewind.moves):
                self._assign(consumers, partitions_of(rewind.moves), step)
        elif consumers is not None or group is None or group.is_empty:
            self._finish(group_id, rewind, step)
        elif group.state is GroupState.STABLE and not self._rounds.has_reduced_assignment(group_id):
            group.rebalance(step, REASON)

    def on_loaded(self, step: GroupStep) -> None:
        """Continue the rewinds that are pending in the log."""
        for group_id, _ in self._rewinds.all_pending():
            step.set_timer(("rewind", group_id), step.now_ms)

    def on_append_failed(self, records: Collection[GroupRecord], step: GroupStep) -> None:
        """A start that was not written is refused; an end that was not written is retried."""
        for record in records:
            if not isinstance(record, RewindStateRecord):
                continue
            group_id = record.group_id
            if self._rewinds.pending(group_id) is None:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
                self._answer(group_id, RewindResult(error, error.message), step)
                self._rounds.forget(group_id)
                self._restart_epochs.pop(group_id, None)
            elif record.state is None or record.state.pending is None:
                count = self._failure_counts.get(group_id, 0) + 1
                self._failure_counts[group_id] = count
                self._restart_epochs.pop(group_id, None)
                # No pause at the limit: the next failure would postpone the cancellation again.
                pause_ms = _RETRY_MS if count < FAILURES_MAX else 0
                step.set_timer(("rewind", group_id), step.now_ms + pause_ms)
