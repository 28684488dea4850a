"""Share groups with one bug each; see `planted_cluster_bugs`."""

import msgspec

from odradek.coordinator.loader import LogEntry
from odradek.coordinator.outcome import Command, Outcome
from odradek.coordinator.runtime import ShardRuntime
from odradek.coordinator.share import partition as share_partition
from odradek.coordinator.share import shard as share_shard
from odradek.coordinator.share import state_batches as share_batches
from odradek.coordinator.share.partition import NOTHING_TO_WRITE, AcknowledgeResult, SharePartition
from odradek.coordinator.share.records import ShareStateRecord
from odradek.coordinator.share.requests import Checkpoint, ReadShareState
from odradek.coordinator.share.runs import Run, is_available
from odradek.coordinator.share.shard import ShareStateShard
from odradek.coordinator.share.state import ShareState, ShareUpdate
from odradek.coordinator.share.state_batches import PersisterStateBatch, RecordState, combine
from tests.simulation.planted_cluster_bugs import PlantedBug, answers_before_the_commit
from tests.simulation.shards import SimulatedShardLog
from tests.simulation.trouble import SHARES, SUCCESSORS

_AGAIN = "is given to|accepted in epoch|nobody knows|has forgotten"


# -- the share-partition's machine -----------------------------------------------------------------

_acknowledge = SharePartition.acknowledge


def _answers_before_it_is_durable(
    self: SharePartition, member_id: str, batches: object, *, now_ms: int
) -> AcknowledgeResult:
    taken = _acknowledge(self, member_id, batches, now_ms=now_ms)  # type: ignore[arg-type]  # handed through
    return taken._replace(write_id=NOTHING_TO_WRITE)


def _gives_what_another_has(run: Run, now_ms: int) -> bool:
    return is_available(run, now_ms) or (run.state is RecordState.ACQUIRED and run.target is None)


# -- the coordinator -------------------------------------------------------------------------------

_checkpoint = ShareStateShard._checkpoint
_read = ShareStateShard._read
_overlay = share_batches._overlay
_log_read = SimulatedShardLog.read
_apply = ShardRuntime._apply


def _answers_before_the_commit(
    self: ShardRuntime[object], outcome: Outcome[object], now_ms: int, answers: list[object]
) -> None:
    shard: object = self.shard
    wrong = answers_before_the_commit if isinstance(shard, ShareStateShard) else _apply
    wrong(self, outcome, now_ms, answers)  # type: ignore[arg-type]  # handed through


def _fences_nobody(
    self: ShareStateShard, command: Command, asked: ReadShareState, now_ms: int
) -> Outcome[ShareStateRecord]:
    looks = msgspec.structs.replace(asked, leader_epoch=-1)
    return _read(self, command, looks, now_ms)


def _writes_nothing_anew(
    self: ShareStateShard, command: Command, asked: Checkpoint, now_ms: int
) -> Outcome[ShareStateRecord]:
    return msgspec.structs.replace(_checkpoint(self, command, asked, now_ms), records=())


def _compacts_its_log(
    self: SimulatedShardLog, offset: int, end_offset: int
) -> tuple[list[LogEntry], int]:
    entries, next_offset = _log_read(self, offset, end_offset)
    newest = {entry[0]: entry for entry in entries if isinstance(entry, tuple)}
    return list(newest.values()), next_offset


def _takes_the_last_word(batches: list[PersisterStateBatch], new: PersisterStateBatch) -> None:
    kept = []
    for old in batches:
        if old.first_offset < new.first_offset:
            last = min(old.last_offset, new.first_offset - 1)
            kept.append(old._replace(last_offset=last))
        if old.last_offset > new.last_offset:
            first = max(old.first_offset, new.last_offset + 1)
            kept.append(old._replace(first_offset=first))
    batches[:] = sorted([*kept, new])


def _goes_back(state: ShareState, update: ShareUpdate) -> ShareState:
    start_offset = state.start_offset if update.start_offset == -1 else update.start_offset
    return msgspec.structs.replace(
        state,
        leader_epoch=max(state.leader_epoch, update.leader_epoch),
        start_offset=start_offset,
        batches=combine(state.batches, update.batches, start_offset),
        update_count=state.update_count + 1,
    )


PLANTED: dict[str, PlantedBug] = {
    "members are answered before it is durable": PlantedBug(
        SharePartition, "acknowledge", _answers_before_it_is_durable, SHARES, _AGAIN
    ),
    "a member gets what another one has": PlantedBug(
        share_partition, "is_available", _gives_what_another_has, SHARES, "while"
    ),
    "share coordinators answer before the commit": PlantedBug(
        ShardRuntime, "_apply", _answers_before_the_commit, SHARES, _AGAIN
    ),
    "a new leader fences nobody": PlantedBug(
        ShareStateShard, "_read", _fences_nobody, SUCCESSORS, _AGAIN
    ),
    "a log is dropped and not written anew": PlantedBug(
        ShareStateShard, "_checkpoint", _writes_nothing_anew, SHARES, "."
    ),
    "the log of share states is compacted": PlantedBug(
        SimulatedShardLog,
        "read",
        _compacts_its_log,
        SHARES,
        _AGAIN,
        seed=16,
    ),
    "the last word counts": PlantedBug(
        share_batches,
        "_overlay",
        _takes_the_last_word,
        SHARES,
        _AGAIN,
        seed=12,
    ),
    "the start offset goes back": PlantedBug(
        share_shard, "with_update", _goes_back, SHARES, _AGAIN
    ),
}
