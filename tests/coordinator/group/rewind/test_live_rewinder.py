"""Live rewinds of groups whose members commit."""

import pytest

from odradek.cluster.metadata.group_settings import ConsumerGroupSettings
from odradek.coordinator.group.events import EventKind
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.offsets.records import CommittedOffset, OffsetCommitRecord
from odradek.coordinator.group.rewind.records import UndoPointRecord
from odradek.coordinator.group.rewind.requests import (
    CANCEL,
    DescribeRewinds,
    RewindGroup,
    RewindHistory,
    RewindResult,
)
from odradek.coordinator.group.rewind.revocation_rounds import REASON
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.outcome import TransactionalRecord, TransactionMarker
from odradek.coordinator.runtime import CoordinatorBatch
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import OffsetCommitResponse
from odradek.protocol.types import ZERO_UUID
from tests.support.consumer_playbook import id_of
from tests.support.group_playbook import GroupCall
from tests.support.rewind_playbook import (
    CONSUMER,
    COOPERATIVE,
    EAGER,
    END,
    SILENT,
    TOPIC,
    DeliveryLedger,
    RewindMember,
    RewindStage,
    settle,
)

KINDS = (EAGER, SILENT, COOPERATIVE, CONSUMER)
A0, A1, A2, A3 = ((TOPIC, index) for index in range(4))


class Scene:
    """A group of readers that have read some of every partition."""

    def __init__(self, kind: str, count: int = 2, *, read: int = 10) -> None:
        self.stage = RewindStage()
        self.ledger = DeliveryLedger()
        self.readers = [
            RewindMember(self.stage, self.ledger, kind, f"r{number}") for number in range(count)
        ]
        for reader in self.readers:
            settle(self.stage, *self.readers[: self.readers.index(reader) + 1])
        for reader in self.readers:
            reader.read(read)
            reader.commit()

    def settle(self) -> None:
        settle(self.stage, *self.readers)

    def rewind(self, to: dict[tuple[str, int], int | None]) -> RewindResult:
        """Rewind and let everybody find out."""
        return self.until_answered(self.stage.rewind_call(to))

    def until_answered(self, call: GroupCall) -> RewindResult:
        for _ in range(40):
            if not call.is_parked:
                break
            for reader in self.readers:
                reader.step()
            self.stage.tick(1)
        rewound = call.response(RewindResult)
        if rewound.error_code is ErrorCode.NONE:
            for move in rewound.moves:
                self.ledger.expected[(move.topic, move.partition)] = max(move.offset, 0)
        return rewound

    def read_to_the_end(self) -> None:
        self.settle()
        for reader in self.readers:
            reader.read(END)
        assert self.ledger.expected == {(TOPIC, index): END for index in range(4)}


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(request.param)


# -- every kind ------------------------------------------------------------------------------------


def test_only_the_rewound_partition_is_delivered_again(scene: Scene) -> None:
    """B.14: "no record below the rewound position is skipped, nothing outside the listed
    partitions is redelivered" (the ledger fails on either)."""
    rewound = scene.rewind({A1: 3, A2: 0})
    assert [(move.previous, move.offset) for move in rewound.moves] == [(10, 3), (10, 0)]
    scene.read_to_the_end()
    # 4 partitions to the end, and what two of them had had before once more.
    assert scene.ledger.delivered_count == 4 * END + 7 + 10


def test_other_partitions_continue_at_their_positions(
    scene: Scene,
) -> None:
    for reader in scene.readers:
        reader.read(5)
    scene.rewind({A0: 2})
    scene.read_to_the_end()
    assert scene.ledger.delivered_count == 4 * END + 13


def test_an_undo_restores_the_offsets(scene: Scene) -> None:
    scene.rewind({A1: 3})
    scene.settle()
    undone = scene.until_answered(scene.stage.undo_call())
    assert [(move.previous, move.offset) for move in undone.moves] == [(3, 10)]
    scene.read_to_the_end()
    assert scene.ledger.delivered_count == 4 * END
    assert not scene.stage.shard.rewinds.undo_points("g")


def test_late_commits_from_before_the_rewind_are_refused(scene: Scene) -> None:
    scene.rewind({A1: 3})
    scene.settle()
    old = [commit for reader in scene.readers for commit in reader.commits if commit[2] == A1]
    assert old
    for member_id, generation, key, offset in old:
        error = scene.stage.commit(
            {key: offset},
            member_id=member_id,
            generation_id=generation,
            topic_id=id_of(TOPIC),
            version=10,
        )
        assert error in (
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.STALE_MEMBER_EPOCH,
            ErrorCode.UNKNOWN_MEMBER_ID,
        )
    assert scene.stage.fetch(*A1).committed_offset == 3


def test_a_dry_run_returns_the_moves_and_changes_nothing(scene: Scene) -> None:
    before = len(scene.stage.log)
    dry = scene.stage.rewind({A1: 3, A2: 1_000}, dry_run=True)
    assert [(move.previous, move.offset) for move in dry.moves] == [(10, 3), (10, END)]
    assert len(scene.stage.log) == before
    assert scene.stage.rewind({A1: None}, shift=-4, dry_run=True).moves[0].offset == 6


def test_a_pending_rewind_continues_after_a_move_of_the_coordinator(
    scene: Scene,
) -> None:
    call = scene.stage.rewind_call({A1: 3}, rewind_id=b"1" * 16)
    assert call.is_parked
    scene.stage.reload()
    assert call.refused_with is ErrorCode.NOT_COORDINATOR
    assert scene.stage.fetch(*A1).committed_offset == 10
    again = scene.until_answered(scene.stage.rewind_call({A1: 3}, rewind_id=b"1" * 16))
    assert [move.offset for move in again.moves] == [3]
    scene.read_to_the_end()
    assert len(scene.stage.shard.rewinds.undo_points("g")) == 1


def test_a_retry_of_a_rewind_is_not_done_again(scene: Scene) -> None:
    first = scene.until_answered(scene.stage.rewind_call({A1: 3}, rewind_id=b"1" * 16))
    assert scene.stage.rewind({A1: 3}, rewind_id=b"1" * 16) == first
    assert len(scene.stage.shard.rewinds.undo_points("g")) == 1


def test_a_late_retry_does_not_start_a_cancelled_rewind_again(
    scene: Scene,
) -> None:
    """The client retries because it has no response; another client has cancelled the rewind."""
    first = {"rewind_id": b"1" * 16, "timeout_ms": 0}
    call = scene.stage.rewind_call({A1: 3}, **first)  # type: ignore[arg-type]  # as it has them
    scene.stage.tick(1)
    assert call.response(RewindResult).error_code is ErrorCode.REQUEST_TIMED_OUT
    scene.stage.ask(RewindGroup(group_id="g", rewind_id=ZERO_UUID, positions=(), undoes=CANCEL))
    scene.stage.reload()
    scene.settle()
    assert [(move.previous, move.offset) for move in scene.rewind({A2: 4}).moves] == [(10, 4)]
    again = scene.stage.rewind({A1: 3}, **first)
    assert again.error_code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert scene.stage.fetch(*A1).committed_offset == 10


def test_a_late_retry_does_not_repeat_a_rewind_after_another_one() -> None:
    stage = RewindStage()
    stage.commit({A1: 10})
    stage.rewind({A1: 3}, rewind_id=b"1" * 16)
    stage.rewind({A1: 5}, rewind_id=b"2" * 16)
    again = stage.rewind({A1: 3}, rewind_id=b"1" * 16)
    assert again.error_code is ErrorCode.INVALID_REQUEST
    assert "rewound or undone since" in (again.error_message or "")
    assert stage.fetch(*A1).committed_offset == 5


def test_a_pending_rewind_can_be_cancelled(scene: Scene) -> None:
    call = scene.stage.rewind_call({A1: 3})
    withdrawal = scene.stage.ask(
        RewindGroup(group_id="g", rewind_id=ZERO_UUID, positions=(), undoes=CANCEL)
    )
    assert withdrawal.response(RewindResult).error_code is ErrorCode.NONE
    assert [(at.previous, at.offset) for at in withdrawal.response(RewindResult).moves] == [
        (10, 10)
    ]
    assert call.response(RewindResult).error_code is ErrorCode.OPERATION_NOT_ATTEMPTED
    scene.read_to_the_end()
    assert scene.ledger.delivered_count == 4 * END


def test_a_request_times_out_while_the_rewind_continues(scene: Scene) -> None:
    call = scene.stage.rewind_call({A1: 3}, timeout_ms=500)
    scene.stage.tick(499)
    assert call.is_parked
    scene.stage.tick(1)
    assert call.response(RewindResult).error_code is ErrorCode.REQUEST_TIMED_OUT
    scene.ledger.expected[A1] = 3
    scene.read_to_the_end()


def test_one_rewind_at_a_time(scene: Scene) -> None:
    scene.stage.rewind_call({A1: 3})
    other = scene.stage.rewind({A2: 3})
    assert other.error_code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_rewind_is_complete_when_the_last_member_leaves(scene: Scene) -> None:
    call = scene.stage.rewind_call({A1: 3})
    for reader in scene.readers:
        reader.leave()
    assert scene.until_answered(call).moves[0].offset == 3
    scene.read_to_the_end()


def test_a_failed_append_of_the_start_refuses_the_rewind(scene: Scene) -> None:
    scene.stage.hold_log()
    call = scene.stage.rewind_call({A1: 3})
    scene.stage.fail_log(ErrorCode.KAFKA_STORAGE_ERROR)
    assert call.response(RewindResult).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    scene.read_to_the_end()
    assert scene.ledger.delivered_count == 4 * END


def test_every_prefix_of_the_log_has_a_pending_or_a_complete_rewind(
    scene: Scene,
) -> None:
    scene.rewind({A1: 3})
    scene.settle()
    seen = set()
    for end in scene.stage.batch_ends:
        stage = RewindStage(log=scene.stage.log[:end])
        rewinds, committed = stage.shard.rewinds, stage.fetch(*A1).committed_offset
        is_pending, is_done = rewinds.has_pending, bool(rewinds.undo_points("g"))
        seen.add((is_pending, is_done, committed))
        # Its members are gone for good: what is under way ends with them.
        stage.tick(200_000)
        assert not rewinds.has_pending
        assert (stage.fetch(*A1).committed_offset == 3) == (is_pending or is_done)
    assert {(False, False, 10), (True, False, 10), (False, True, 3)} <= seen


def test_a_pending_transactional_offset_refuses_the_rewind(scene: Scene) -> None:
    """B.14: "Transactions: reject while (88) pending for that group/partition"."""
    committed = OffsetCommitRecord("g", *A1, CommittedOffset(7))
    scene.stage.shard.replay(TransactionalRecord(1, 0, committed))
    refused = scene.stage.rewind({A1: 3, A2: 3})
    assert refused.error_code is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert refused.refused == ((*A1, ErrorCode.UNSTABLE_OFFSET_COMMIT),)
    assert "pending offset of a-1" in (refused.error_message or "")
    scene.stage.shard.replay(TransactionMarker(1, 0, 0, is_commit=True))
    assert scene.rewind({A1: 3, A2: 3}).moves[0].offset == 3


def test_a_transaction_that_began_during_a_rewind_does_not_override_it(scene: Scene) -> None:
    call = scene.stage.rewind_call({A1: 3})
    committed = OffsetCommitRecord("g", *A1, CommittedOffset(50))
    scene.stage.shard.replay(TransactionalRecord(1, 0, committed))
    scene.until_answered(call)
    scene.stage.shard.replay(TransactionMarker(1, 0, 0, is_commit=True))
    scene.read_to_the_end()


def test_a_rewind_is_among_the_events_of_the_group(scene: Scene) -> None:
    scene.rewind({A1: 3})
    group = scene.stage.shard.classic.live_groups.get("g")
    events = (
        scene.stage.shard.consumers.events.newest("g") if group is None else group.events.newest()
    )
    told = [event for event in events if "REW" in event.kind.name]
    assert [(event.kind, event.reason) for event in told] == [
        (EventKind.REWIND_STARTED, "1 partitions"),
        (EventKind.REWOUND, "1 partitions"),
    ]
    assert any(
        event.kind is EventKind.REBALANCE_STARTED and REASON in event.reason for event in events
    )


def test_a_rewind_that_cannot_be_written_is_cancelled_in_the_end(scene: Scene) -> None:
    """Otherwise the group would rebalance for ever."""
    call = scene.stage.rewind_call({A1: 3})
    rewinds = scene.stage.shard.rewinds
    scene.stage.refuses = _ends_a_rewind
    for _ in range(100):
        for reader in scene.readers:
            reader.step()
        scene.stage.tick(300)
    assert not rewinds.has_pending
    assert call.refused_with is ErrorCode.NOT_COORDINATOR
    scene.settle()
    assert scene.stage.fetch(*A1).committed_offset == 10
    assert not rewinds.undo_points("g")


def _ends_a_rewind(batch: CoordinatorBatch[GroupRecord]) -> bool:
    return any(isinstance(record, UndoPointRecord) for record in batch.records)


# -- without members -------------------------------------------------------------------------------


def test_a_group_without_members_is_rewound_at_once() -> None:
    stage = RewindStage()
    assert stage.commit({A0: 7}) == ErrorCode.NONE
    rewound = stage.rewind({A0: 2})
    assert rewound.error_code is ErrorCode.NONE
    assert stage.fetch(*A0).committed_offset == 2
    undone = stage.undo_call().response(RewindResult)
    assert undone.moves[0].offset == 7


def test_offsets_are_kept_within_the_log() -> None:
    stage = RewindStage()
    stage.commit({A0: 7})
    rewound = stage.rewind({A0: 1, A1: 50}, start=5, end=20)
    assert [move.offset for move in rewound.moves] == [5, 20]


def test_an_undo_removes_an_offset_that_did_not_exist_before() -> None:
    stage = RewindStage()
    stage.commit({A0: 7})
    stage.rewind({A1: 2})
    stage.undo_call()
    assert stage.fetch_all() == {A0: 7}


def test_an_unknown_group_is_an_error() -> None:
    assert RewindStage().rewind({A0: 1}).error_code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_shift_needs_a_committed_offset() -> None:
    stage = RewindStage()
    stage.commit({A0: 7})
    refused = stage.rewind({A0: None, A1: None}, shift=-1)
    assert refused.error_code is ErrorCode.INVALID_REQUEST
    assert refused.refused == ((TOPIC, 1, ErrorCode.INVALID_REQUEST),)
    assert stage.fetch(*A0).committed_offset == 7


def test_the_newest_eight_rewinds_can_be_undone() -> None:
    stage = RewindStage()
    stage.commit({A0: 50})
    for offset in range(10):
        stage.rewind({A0: offset})
    for offset in (8, 7, 6, 5, 4, 3, 2, 1):
        assert stage.undo_call().response(RewindResult).moves[0].offset == offset
    assert not stage.shard.rewinds.undo_points("g")


def test_only_the_newest_undo_point_can_be_undone() -> None:
    stage = RewindStage()
    stage.commit({A0: 50})
    stage.rewind({A0: 1})
    stage.rewind({A0: 2})
    assert stage.rewind({A0: 50}, undoes=1).error_code is ErrorCode.INVALID_REQUEST


def test_a_group_of_another_protocol_type_is_refused() -> None:
    stage = RewindStage()
    stage.commit({A0: 50})
    stage.stable(1, protocol_type="connect")
    assert stage.rewind({A0: 1}).error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_describe_returns_the_undo_points() -> None:
    stage = RewindStage()
    assert stage.ask(DescribeRewinds("g")).response(type(None)) is None
    stage.commit({A0: 50})
    stage.rewind({A0: 1})
    history = stage.ask(DescribeRewinds("g")).response(RewindHistory)
    assert [point.moves[0].previous for point in history.undo_points.values()] == [50]
    assert history.pending is None


def test_a_deleted_group_leaves_nothing_behind() -> None:
    stage = RewindStage()
    stage.commit({A0: 50})
    stage.rewind({A0: 1})
    assert stage.delete_group().error_code == ErrorCode.NONE
    stage.reload()
    assert not stage.shard.rewinds.undo_points("g")
    assert stage.shard.rewinds.state("g").last is None


# -- particular to a kind --------------------------------------------------------------------------


def test_cooperative_members_keep_the_other_partitions() -> None:
    scene = Scene(COOPERATIVE)
    scene.rewind({A1: 3})
    scene.settle()
    assert sum(reader.revoked_count for reader in scene.readers) <= 3
    assert all(ErrorCode.UNKNOWN_MEMBER_ID not in reader.refusals for reader in scene.readers)


def test_members_of_consumer_groups_keep_the_other_partitions() -> None:
    scene = Scene(CONSUMER)
    before = sum(reader.revoked_count for reader in scene.readers)
    scene.rewind({A1: 3})
    scene.settle()
    assert sum(reader.revoked_count for reader in scene.readers) == before + 1


def test_a_consumer_that_has_revoked_a_partition_cannot_commit_it() -> None:
    """B.14: "commits between get (113)"."""
    scene = Scene(CONSUMER)
    call = scene.stage.rewind_call({A1: 3, A3: 3})
    owner = next(reader for reader in scene.readers if A1 in reader.positions)
    owner.step()
    assert call.is_parked
    error = scene.stage.commit(
        {A1: 9},
        member_id=owner.name,
        generation_id=owner.consumer.epoch,
        topic_id=id_of(TOPIC),
        version=10,
    )
    owned = scene.stage.consumers().owner(id_of(TOPIC), 1)
    assert (error == ErrorCode.STALE_MEMBER_EPOCH) == (owned is None)


def test_a_consumer_in_an_old_epoch_cannot_commit_the_rewound_partition() -> None:
    """The member is still in the epoch of the revocation, the group in the next one."""
    scene = Scene(CONSUMER, 1)
    (reader,) = scene.readers
    call = scene.stage.rewind_call({A1: 3})
    while call.is_parked:
        reader.step()
        scene.stage.tick(1)
    assert reader.consumer.epoch < scene.stage.consumers().epoch
    for key, error in ((A1, ErrorCode.STALE_MEMBER_EPOCH), (A2, ErrorCode.NONE)):
        answered = scene.stage.commit(
            {key: 9},
            member_id=reader.name,
            generation_id=reader.consumer.epoch,
            topic_id=id_of(TOPIC),
            version=10,
        )
        assert answered == error
    assert scene.stage.fetch(*A1).committed_offset == 3


@pytest.mark.parametrize("times", range(1, 6))
def test_members_that_lose_responses_read_only_the_rewound_partition_again(
    times: int,
) -> None:
    scene = Scene(CONSUMER)
    for reader in scene.readers:
        reader.read(5)
    call = scene.stage.rewind_call({A1: 3})
    for _ in range(40):
        for reader in scene.readers:
            reader.deaf_count = times if reader.deaf_count == 0 else reader.deaf_count
            for _ in range(times + 1):
                reader.step()
        scene.stage.tick(1)
    scene.until_answered(call)
    scene.read_to_the_end()
    assert not any(reader.refusals for reader in scene.readers)
    assert scene.ledger.delivered_count == 4 * END + 12


def test_a_member_that_keeps_revoked_partitions_is_removed() -> None:
    """B.14: "Fence holders of rewound partitions (25 on next heartbeat)"."""
    scene = Scene(COOPERATIVE, 1)
    (reader,) = scene.readers
    reader.is_stubborn = True
    call = scene.stage.rewind_call({A1: 3})
    for _ in range(40):
        reader.step()
    assert ErrorCode.UNKNOWN_MEMBER_ID in reader.refusals
    scene.until_answered(call)
    assert scene.stage.fetch(*A1).committed_offset == 3


@pytest.mark.parametrize("times", [1, 2])
def test_a_member_that_ignores_its_assignment_has_not_revoked_anything(times: int) -> None:
    """kafka-python, where the answer comes between two polls: it joins again, and keeps what it
    had when it is given that then."""
    scene = Scene(SILENT)
    for reader in scene.readers:
        reader.deaf_count = times
    scene.rewind({A1: 3, A2: 0})
    scene.read_to_the_end()
    assert scene.ledger.delivered_count == 4 * END + 7 + 10


def test_a_classic_member_of_a_consumer_group_revokes_with_its_sync() -> None:
    """A member with a subscription of version 0. Its JoinGroup is not enough, because it may have
    to join again before it gets its assignment."""
    stage, ledger = RewindStage(3), DeliveryLedger()
    consumer = RewindMember(stage, ledger, CONSUMER, "c")
    silent = RewindMember(stage, ledger, SILENT, "s")
    settle(stage, consumer)
    settle(stage, consumer, silent)
    silent.read(5)
    (key,) = silent.positions
    silent.commit()
    call = stage.rewind_call({key: 2})
    while not silent.is_waiting:
        silent.step()
    stage.tick(1)
    settle(stage, consumer, silent)
    assert call.response(RewindResult).error_code is ErrorCode.NONE
    ledger.expected[key] = 2
    for reader in (consumer, silent):
        reader.read(END)
    assert set(ledger.expected.values()) == {END}


# -- plain commits ---------------------------------------------------------------------------------


def test_a_commit_without_a_member_is_a_rewind_if_the_config_is_set(scene: Scene) -> None:
    refused = scene.stage.commit({A1: 3}, topic_id=id_of(TOPIC), version=10)
    assert refused == ErrorCode.UNKNOWN_MEMBER_ID
    scene.stage.shard.settings = GroupSettings(
        initial_rebalance_delay_ms=0,
        rewind_by_commit_groups=frozenset({"g"}),
        consumer=ConsumerGroupSettings(assignment_interval_ms=0),
    )
    call = scene.stage.commit_call({A1: 3}, topic_id=id_of(TOPIC), version=10)
    again = scene.stage.commit_call({A1: 3}, topic_id=id_of(TOPIC), version=10)
    scene.ledger.expected[A1] = 3
    scene.read_to_the_end()
    for answered in (call, again):
        response = answered.response(OffsetCommitResponse)
        assert response.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert len(scene.stage.shard.rewinds.undo_points("g")) == 1


def test_a_commit_without_a_member_sets_its_offsets_unbounded() -> None:
    """As in Kafka, where kafka-consumer-groups keeps offsets within the log."""
    scene = Scene(CONSUMER)
    scene.stage.shard.settings = GroupSettings(
        rewind_by_commit_groups=frozenset({"g"}),
        consumer=ConsumerGroupSettings(assignment_interval_ms=0),
    )
    call = scene.stage.commit_call({A1: 10 * END, A2: -5}, topic_id=id_of(TOPIC), version=10)
    scene.settle()
    assert not any(
        partition.error_code
        for topic in call.response(OffsetCommitResponse).topics
        for partition in topic.partitions
    )
    assert scene.stage.fetch(*A1).committed_offset == 10 * END
    assert scene.stage.fetch(*A2).committed_offset == 0
