"""A shard of share states: requests, epochs, snapshots, and rewriting of the log."""

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as some

from odradek.coordinator.loader import TransactionalEntry
from odradek.coordinator.outcome import TransactionMarker
from odradek.coordinator.share.records import decode
from odradek.coordinator.share.requests import (
    NO_STATE_SUMMARY,
    Checkpoint,
    DropLog,
    ForgetTopicStates,
    PersistedShareState,
    ShareKey,
    ShareStateSummary,
    SummarizeShareState,
    WriteShareState,
)
from odradek.coordinator.share.settings import ShareStateSettings
from odradek.coordinator.share.shard import WRITTEN_BATCHES_MAX
from odradek.coordinator.share.state import NO_COUNT, ShareState, ShareUpdate
from odradek.coordinator.share.state_batches import PersisterStateBatch, RecordState
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NO_OFFSET, ZERO_UUID
from tests.support.controller_harness import topic_id
from tests.support.share_playbook import KEY, OTHER_TOPIC, TOPIC, SharePlaybook, topics

OTHER = ShareKey("g", OTHER_TOPIC, 1)


def acknowledged(first: int, last: int, count: int = 1) -> PersisterStateBatch:
    return PersisterStateBatch(first, last, RecordState.ACKNOWLEDGED, count)


def begun(settings: ShareStateSettings | None = None) -> SharePlaybook:
    playbook = SharePlaybook(settings)
    assert playbook.initialize() == ErrorCode.NONE
    return playbook


def kinds(playbook: SharePlaybook) -> str:
    """The kinds of the records in the log: snapshot, update or tombstone."""
    found = ""
    for entry in playbook.log:
        assert not isinstance(entry, TransactionMarker | TransactionalEntry)
        key, value = entry
        assert key is not None
        record = decode(key, value)
        assert record is not None
        found += {ShareState: "S", ShareUpdate: "u", type(None): "x"}[type(record.value)]
    return found


# -- beginning -------------------------------------------------------------------------------------


def test_a_state_that_is_not_initialized_is_neither_read_nor_written() -> None:
    playbook = SharePlaybook()
    assert playbook.read() == ErrorCode.INVALID_REQUEST
    assert playbook.write(acknowledged(0, 1)) == ErrorCode.INVALID_REQUEST
    assert playbook.summary() == NO_STATE_SUMMARY
    assert playbook.log == []


def test_initialize_sets_the_start_offset() -> None:
    playbook = SharePlaybook()
    assert playbook.initialize(start_offset=7, state_epoch=4) == ErrorCode.NONE
    assert playbook.read() == PersistedShareState(4, 7, ())
    assert playbook.summary() == ShareStateSummary(4, 1, 7, 0)


def test_the_leader_may_decide_the_start_offset() -> None:
    playbook = SharePlaybook()
    assert playbook.initialize(start_offset=NO_OFFSET) == ErrorCode.NONE
    assert playbook.read() == PersistedShareState(1, NO_OFFSET, ())
    assert playbook.write(start_offset=12, count=0) == ErrorCode.NONE
    assert playbook.read() == PersistedShareState(1, 12, ())


def test_a_repeated_initialize_changes_nothing() -> None:
    playbook = begun()
    assert playbook.initialize() == ErrorCode.NONE
    assert playbook.write(acknowledged(0, 3)) == ErrorCode.NONE
    assert playbook.initialize() == ErrorCode.NONE
    assert playbook.write(start_offset=4) == ErrorCode.NONE
    assert playbook.initialize(start_offset=NO_OFFSET) == ErrorCode.NONE
    assert playbook.read() == PersistedShareState(1, 4, ())
    assert kinds(playbook) == "Suuu"


def test_another_start_offset_needs_a_higher_state_epoch() -> None:
    playbook = begun()
    assert playbook.write(acknowledged(2, 3), start_offset=1) == ErrorCode.NONE
    assert playbook.initialize(start_offset=9) == ErrorCode.FENCED_STATE_EPOCH
    assert playbook.initialize(state_epoch=0, start_offset=9) == ErrorCode.FENCED_STATE_EPOCH
    assert playbook.initialize(state_epoch=2, start_offset=0) == ErrorCode.NONE
    assert playbook.read() == PersistedShareState(2, 0, ())


def test_writes_of_an_earlier_state_epoch_are_fenced() -> None:
    playbook = begun()
    assert playbook.read(leader_epoch=3) == PersistedShareState(1, 0, ())
    assert playbook.initialize(state_epoch=2, start_offset=5) == ErrorCode.NONE
    assert playbook.write(start_offset=8, leader_epoch=3) == ErrorCode.FENCED_STATE_EPOCH
    assert playbook.read(leader_epoch=2) == ErrorCode.FENCED_LEADER_EPOCH
    assert playbook.write(start_offset=8, leader_epoch=3, state_epoch=2) == ErrorCode.NONE


def test_writes_from_before_a_deletion_are_fenced() -> None:
    playbook = begun()
    assert playbook.initialize(state_epoch=7) == ErrorCode.NONE
    playbook.delete()
    assert playbook.write(start_offset=8, state_epoch=7) == ErrorCode.INVALID_REQUEST
    assert playbook.initialize(state_epoch=2) == ErrorCode.NONE
    assert playbook.write(start_offset=8, state_epoch=7) == ErrorCode.FENCED_STATE_EPOCH
    assert playbook.read() == PersistedShareState(2, 0, ())


# -- leaders ---------------------------------------------------------------------------------------


def test_a_new_leader_fences_the_old_one() -> None:
    playbook = begun()
    assert playbook.read(leader_epoch=1) == PersistedShareState(1, 0, ())
    assert playbook.write(acknowledged(0, 1), leader_epoch=1) == ErrorCode.NONE
    assert playbook.read(leader_epoch=2) == PersistedShareState(1, 0, (acknowledged(0, 1),))
    assert playbook.write(acknowledged(2, 3), leader_epoch=1) == ErrorCode.FENCED_LEADER_EPOCH
    assert playbook.read(leader_epoch=1) == ErrorCode.FENCED_LEADER_EPOCH
    playbook.reload()
    assert playbook.write(acknowledged(2, 3), leader_epoch=1) == ErrorCode.FENCED_LEADER_EPOCH
    assert playbook.write(acknowledged(2, 3), leader_epoch=2) == ErrorCode.NONE


def test_a_read_without_a_leader_epoch_fences_no_leader() -> None:
    playbook = begun()
    playbook.read(leader_epoch=2)
    size = len(playbook.log)
    assert playbook.read(leader_epoch=-1) == PersistedShareState(1, 0, ())
    assert playbook.read(leader_epoch=2) == PersistedShareState(1, 0, ())
    assert len(playbook.log) == size


def test_epochs_of_minus_one_are_not_checked() -> None:
    playbook = begun()
    playbook.read(leader_epoch=2)
    assert playbook.write(start_offset=1, leader_epoch=-1, state_epoch=-1) == ErrorCode.NONE
    assert playbook.summary() == ShareStateSummary(1, 2, 1, 0)


def test_a_read_waits_for_the_commit_of_earlier_writes() -> None:
    playbook = begun()
    playbook.hold_log()
    written = playbook.ask(
        WriteShareState(
            KEY,
            state_epoch=1,
            leader_epoch=1,
            start_offset=3,
            delivery_complete_count=0,
            batches=(acknowledged(5, 6),),
        )
    )
    summary = playbook.ask(SummarizeShareState(KEY))
    assert summary.response(ShareStateSummary) == ShareStateSummary(1, 0, 0, 0)
    assert written.is_parked
    playbook.release_log()
    assert written.response(object) is None
    assert playbook.read() == PersistedShareState(1, 3, (acknowledged(5, 6),))


# -- writing ---------------------------------------------------------------------------------------


def test_batches_are_combined_and_dropped_below_the_start_offset() -> None:
    playbook = begun()
    playbook.write(PersisterStateBatch(0, 9, RecordState.AVAILABLE, 1))
    playbook.write(acknowledged(2, 3), PersisterStateBatch(6, 6, RecordState.ARCHIVED, 1), count=3)
    assert playbook.read() == PersistedShareState(
        1,
        0,
        (
            PersisterStateBatch(0, 1, RecordState.AVAILABLE, 1),
            acknowledged(2, 3),
            PersisterStateBatch(4, 5, RecordState.AVAILABLE, 1),
            PersisterStateBatch(6, 6, RecordState.ARCHIVED, 1),
            PersisterStateBatch(7, 9, RecordState.AVAILABLE, 1),
        ),
    )
    playbook.write(start_offset=7, count=0)
    assert playbook.read() == PersistedShareState(
        1, 7, (PersisterStateBatch(7, 9, RecordState.AVAILABLE, 1),)
    )
    assert playbook.summary() == ShareStateSummary(1, 1, 7, 0)


@pytest.mark.parametrize(
    "batch",
    [
        PersisterStateBatch(3, 2, RecordState.AVAILABLE, 1),
        PersisterStateBatch(-1, 2, RecordState.AVAILABLE, 1),
        PersisterStateBatch(0, 2, 1, 1),
        PersisterStateBatch(0, 2, 5, 1),
        PersisterStateBatch(0, 2, RecordState.AVAILABLE, -1),
    ],
)
def test_invalid_batches_are_refused(batch: PersisterStateBatch) -> None:
    playbook = begun()
    assert playbook.write(batch) == ErrorCode.INVALID_REQUEST
    assert kinds(playbook) == "S"


def test_more_batches_than_a_leader_can_have_are_refused() -> None:
    playbook = begun()
    batches = [acknowledged(2 * at, 2 * at) for at in range(WRITTEN_BATCHES_MAX + 1)]
    assert playbook.write(*batches) == ErrorCode.INVALID_REQUEST
    assert kinds(playbook) == "S"
    assert playbook.write(*batches[1:]) == ErrorCode.NONE


def test_numbers_out_of_range_are_refused() -> None:
    playbook = begun()
    assert playbook.write(start_offset=-2) == ErrorCode.INVALID_REQUEST
    assert playbook.write(count=-2) == ErrorCode.INVALID_REQUEST
    assert playbook.initialize(OTHER, state_epoch=-1) == ErrorCode.INVALID_REQUEST
    assert playbook.initialize(OTHER, start_offset=-2) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "key", [ShareKey("", TOPIC, 0), ShareKey("g", ZERO_UUID, 0), ShareKey("g", TOPIC, -1)]
)
def test_invalid_keys_are_refused(key: ShareKey) -> None:
    playbook = SharePlaybook()
    assert playbook.initialize(key) == ErrorCode.INVALID_REQUEST
    assert playbook.read(key) == ErrorCode.INVALID_REQUEST
    assert playbook.write(key=key) == ErrorCode.INVALID_REQUEST
    assert playbook.summary(key) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("key", [ShareKey("g", TOPIC, 3), ShareKey("g", topic_id(9), 0)])
def test_unknown_partitions_are_an_error(key: ShareKey) -> None:
    playbook = SharePlaybook()
    expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert playbook.initialize(key) == expected
    assert playbook.read(key) == expected
    assert playbook.write(key=key) == expected
    assert playbook.summary(key) == expected


# -- what is written -------------------------------------------------------------------------------


def test_a_snapshot_follows_after_enough_updates() -> None:
    playbook = begun(ShareStateSettings(updates_per_snapshot=2))
    for at in range(6):
        playbook.write(acknowledged(2 * at, 2 * at))
    assert kinds(playbook) == "SuuSuuS"
    playbook.reload()
    expected = tuple(acknowledged(2 * at, 2 * at) for at in range(6))
    assert playbook.read(leader_epoch=0) == PersistedShareState(1, 0, expected)
    # The count of updates is that of the log, also after a load.
    playbook.write(start_offset=1)
    assert kinds(playbook) == "SuuSuuSu"


def test_without_updates_everything_is_a_snapshot() -> None:
    playbook = begun(ShareStateSettings(updates_per_snapshot=0))
    playbook.write(acknowledged(1, 1))
    playbook.read(leader_epoch=4)
    assert kinds(playbook) == "SSS"


def test_a_deleted_state_may_be_initialized_again() -> None:
    playbook = begun()
    playbook.initialize(OTHER)
    assert playbook.delete() == ErrorCode.NONE
    assert playbook.delete() == ErrorCode.NONE
    assert kinds(playbook) == "SSx"
    playbook.reload()
    assert playbook.read() == ErrorCode.INVALID_REQUEST
    assert playbook.read(OTHER) == PersistedShareState(1, 0, ())
    assert playbook.initialize(state_epoch=0, start_offset=3) == ErrorCode.NONE


def test_states_of_deleted_topics_are_removed() -> None:
    playbook = begun()
    playbook.initialize(ShareKey("other", TOPIC, 2))
    playbook.initialize(OTHER)
    playbook.topics = playbook.shard.topics = topics(OTHER_TOPIC)
    assert playbook.read() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    playbook.ask(ForgetTopicStates(frozenset({TOPIC})))
    assert [key for key, _ in playbook.shard.states.items()] == [OTHER]
    assert playbook.delete() == ErrorCode.NONE
    assert kinds(playbook) == "SSSxx"


def test_a_failed_append_reverts_the_state() -> None:
    playbook = begun()
    playbook.write(acknowledged(0, 1))
    playbook.hold_log()
    lost = playbook.ask(
        WriteShareState(
            KEY,
            state_epoch=1,
            leader_epoch=1,
            start_offset=2,
            delivery_complete_count=0,
            batches=(),
        )
    )
    playbook.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert lost.refused_with == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert playbook.read(leader_epoch=0) == PersistedShareState(1, 0, (acknowledged(0, 1),))
    assert playbook.write(start_offset=1) == ErrorCode.NONE
    before = dict(playbook.shard.states.items())
    playbook.reload()
    assert dict(playbook.shard.states.items()) == before


# -- the log ---------------------------------------------------------------------------------------


def test_a_long_log_is_rewritten_and_its_start_dropped() -> None:
    playbook = SharePlaybook(ShareStateSettings(updates_per_snapshot=7, log_records_max=20))
    keys = [ShareKey(f"g{at}", TOPIC, at) for at in range(3)]
    for key in keys:
        playbook.initialize(key)
    rounds = 0
    dropped = 0
    for at in range(200):
        playbook.write(acknowledged(3 * at, 3 * at), key=keys[at % 2], start_offset=2 * at)
        newly = playbook.carry_out()
        if newly:
            rounds += 1
            assert newly > dropped
            dropped = newly
            expected = dict(playbook.shard.states.items())
            rest = SharePlaybook(playbook.settings, log=playbook.log[dropped:])
            assert dict(rest.shard.states.items()) == expected
    assert 200 // 25 <= rounds <= 200 // 15
    # The third was never touched again, and is there nevertheless.
    assert len(playbook.log) - dropped < 30


def test_writes_during_the_measurement_of_the_log_are_kept() -> None:
    playbook = begun()
    playbook.write(acknowledged(0, 0))
    end_offset = len(playbook.log)
    playbook.write(acknowledged(2, 2))
    playbook.hold_log()
    playbook.ask(Checkpoint(end_offset))
    late = playbook.ask(
        WriteShareState(
            KEY,
            state_epoch=1,
            leader_epoch=1,
            start_offset=NO_OFFSET,
            delivery_complete_count=NO_COUNT,
            batches=(acknowledged(4, 4),),
        )
    )
    assert DropLog(end_offset) not in playbook.sent
    playbook.release_log()
    assert late.response(object) is None
    assert DropLog(end_offset) in playbook.sent
    rest = SharePlaybook(log=playbook.log[end_offset:])
    assert dict(rest.shard.states.items()) == dict(playbook.shard.states.items())
    assert rest.read(leader_epoch=0) == PersistedShareState(
        1, 0, (acknowledged(0, 0), acknowledged(2, 2), acknowledged(4, 4))
    )


def test_a_failed_checkpoint_drops_nothing_and_is_retried() -> None:
    playbook = begun(ShareStateSettings(log_records_max=1))
    playbook.write(acknowledged(0, 0))
    playbook.hold_log()
    assert playbook.carry_out() == 0
    playbook.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert playbook.carry_out() == 0
    assert playbook.write(acknowledged(1, 1)) == ErrorCode.NONE
    assert playbook.carry_out() == len(playbook.log) - 1


Step = tuple[str, int, int, int]


@some.composite
def a_step(draw: some.DrawFn) -> Step:
    return (
        draw(some.sampled_from(("initialize", "read", "write", "write", "write", "delete"))),
        draw(some.integers(0, 1)),
        draw(some.integers(0, 3)),
        draw(some.integers(0, 12)),
    )


def take(playbook: SharePlaybook, step: Step) -> None:
    what, which, epoch, offset = step
    key = (KEY, OTHER)[which]
    if what == "initialize":
        playbook.initialize(key, state_epoch=epoch, start_offset=offset)
    elif what == "read":
        playbook.read(key, leader_epoch=epoch)
    elif what == "write":
        playbook.write(
            PersisterStateBatch(offset, offset + epoch, RecordState.ACKNOWLEDGED, 1),
            key=key,
            state_epoch=epoch,
            leader_epoch=epoch,
            start_offset=offset - 4 if offset > 4 else NO_OFFSET,
        )
    else:
        playbook.delete(key)


@examples(deadline=None, max_examples=60)
@given(some.lists(a_step(), max_size=25), some.integers(0, 3))
def test_every_prefix_of_a_log_gives_the_state_at_its_end(steps: list[Step], updates: int) -> None:
    playbook = SharePlaybook(ShareStateSettings(updates_per_snapshot=updates))
    known: dict[int, dict[ShareKey, ShareState]] = {0: {}}
    for step in steps:
        take(playbook, step)
        known[len(playbook.log)] = dict(playbook.shard.states.items())
    for length, expected in known.items():
        loaded = SharePlaybook(playbook.settings, log=playbook.log[:length])
        assert dict(loaded.shard.states.items()) == expected
