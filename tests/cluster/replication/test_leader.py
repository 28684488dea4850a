"""The leader of a partition: ISR, high watermark, delayed appends."""

import pytest

from odradek.cluster.metadata.image import PartitionImage
from odradek.cluster.replication.leader import (
    LAG_MAX_MS,
    RETRY_MS,
    CompletedAppend,
    FollowerBroker,
    IsrProposal,
    LeaderEffects,
    LeaderPartition,
    possible_isr,
)
from odradek.cluster.replication.partition import PartitionReplica
from odradek.protocol.errors import ErrorCode

TOPIC = bytes(16)
START_MS = 1_000_000


class Stage:
    """A leader, broker 1, and its followers 2 and 3."""

    def __init__(
        self,
        *in_sync: int,
        min_isr: int = 1,
        log_end: int = 0,
        epoch_start: int = 0,
        proposed: tuple[int, ...] = (),
    ) -> None:
        self.image = PartitionImage((1, 2, 3), in_sync or (1, 2, 3), 1, 5, 7)
        self.min_isr = min_isr
        self.epoch_start = epoch_start
        self.now_ms = START_MS
        self.ineligible: set[int] = set()
        replica = PartitionReplica(
            1,
            self.image,
            min_insync_replicas=min_isr,
            log_end_offset=log_end,
            proposed=proposed,
        )
        self.leader: LeaderPartition[str] = LeaderPartition(
            replica,
            TOPIC,
            0,
            epoch_start_offset=epoch_start,
            now_ms=START_MS,
            ineligible=self.ineligible,
        )
        self.contacts = {broker: FollowerBroker(broker, 10 + broker, START_MS) for broker in (2, 3)}

    def fetch(self, broker: int, offset: int) -> LeaderEffects[str]:
        contact = self.contacts[broker]
        contact.fetch_ms = self.now_ms
        return self.leader.follower_fetched(contact, offset, self.now_ms)

    def poll(self, broker: int) -> None:
        """A fetch in which nothing of this partition has changed."""
        self.contacts[broker].fetch_ms = self.now_ms

    def check(self) -> LeaderEffects[str]:
        return self.leader.tick(self.now_ms)

    def follow(
        self, *in_sync: int, epoch: int = 5, partition_epoch: int = 8, leader: int = 1
    ) -> LeaderEffects[str]:
        self.image = PartitionImage((1, 2, 3), in_sync, leader, epoch, partition_epoch)
        return self.leader.update(
            self.image,
            min_insync_replicas=self.min_isr,
            epoch_start_offset=self.leader.replica.log_end_offset,
            now_ms=self.now_ms,
        )


def members(proposal: IsrProposal | None) -> list[int]:
    assert proposal is not None
    return [broker for broker, _ in proposal.in_sync]


def test_the_low_watermark_is_the_smallest_log_start_of_live_replicas() -> None:
    stage = Stage()
    leader = stage.leader
    assert leader.low_watermark(7, {1, 2, 3}) == -1, "nobody has been heard of"
    leader.log_start_changed(2, 5)
    assert leader.low_watermark(7, {1, 2, 3}) == -1
    assert leader.low_watermark(7, {1, 2}) == 5
    leader.log_start_changed(3, 9)
    leader.log_start_changed(4, 1)
    assert leader.low_watermark(7, {1, 2, 3, 4}) == 5, "4 has no replica"
    leader.log_start_changed(2, 8)
    assert leader.low_watermark(7, {1, 2, 3}) == 7
    stage.follow(1, 2, 3, epoch=6)
    assert leader.low_watermark(7, {1, 2, 3}) == -1, "what was heard was heard in another reign"


def test_an_append_waits_for_the_whole_isr() -> None:
    stage = Stage()
    stage.leader.log_appended(4)
    assert stage.leader.delay("a", 2, START_MS + 100) is None
    assert stage.leader.delay("b", 4, START_MS + 100) is None
    assert stage.fetch(2, 4) == LeaderEffects()
    assert stage.fetch(3, 2) == LeaderEffects(True, (CompletedAppend("a", ErrorCode.NONE),))
    assert stage.fetch(3, 4) == LeaderEffects(True, (CompletedAppend("b", ErrorCode.NONE),))
    assert stage.leader.high_watermark == 4


def test_a_retry_of_a_committed_append_is_answered_at_once() -> None:
    stage = Stage(1)
    stage.leader.log_appended(4)
    assert stage.leader.delay("again", 3, START_MS) is ErrorCode.NONE


def test_an_append_times_out_at_its_deadline() -> None:
    stage = Stage()
    stage.leader.log_appended(4)
    stage.leader.delay("long", 2, START_MS + 500)
    stage.leader.delay("short", 4, START_MS + 100)
    assert stage.leader.deadline_ms == START_MS + 100
    stage.now_ms += 100
    assert stage.check().released == (CompletedAppend("short", ErrorCode.REQUEST_TIMED_OUT),)
    stage.now_ms += 400
    assert stage.check().released == (CompletedAppend("long", ErrorCode.REQUEST_TIMED_OUT),)
    assert not stage.leader.has_delayed


def test_waiting_requests_fail_when_the_lead_is_lost() -> None:
    stage = Stage()
    stage.leader.log_appended(4)
    stage.leader.delay("a", 4, START_MS + 500)
    outcome = stage.follow(1, 2, 3, leader=2, epoch=6)
    assert outcome.released == (CompletedAppend("a", ErrorCode.NOT_LEADER_OR_FOLLOWER),)


def test_an_isr_below_the_minimum_fails_after_the_append() -> None:
    stage = Stage(min_isr=2)
    stage.leader.log_appended(4)
    stage.leader.delay("a", 4, START_MS + 500)
    outcome = stage.follow(1)
    assert outcome.released == (CompletedAppend("a", ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),)
    assert stage.leader.high_watermark == 0


def test_an_ineligible_broker_is_not_proposed() -> None:
    stage = Stage(1, 2)
    stage.ineligible.add(3)
    assert stage.fetch(3, 0).proposal is None
    stage.leader.log_appended(4)
    assert stage.fetch(2, 4).has_high_watermark_moved
    assert stage.check().proposal is None
    stage.ineligible.clear()
    assert members(stage.fetch(3, 4).proposal) == [1, 2, 3]


def test_a_silent_follower_is_proposed_for_removal() -> None:
    stage = Stage()
    stage.fetch(2, 0)
    stage.fetch(3, 0)
    stage.now_ms += LAG_MAX_MS
    stage.poll(2)
    assert stage.check().proposal is None
    stage.now_ms += 1
    proposal = stage.check().proposal
    assert proposal == IsrProposal(TOPIC, 0, 5, 7, ((1, -1), (2, 12)))
    assert stage.check().proposal is None, "one is under way"


def test_a_follower_that_has_everything_stays_in_the_isr() -> None:
    stage = Stage()
    stage.fetch(2, 0)
    stage.fetch(3, 0)
    for _ in range(100):
        stage.now_ms += 500
        stage.poll(2)
        stage.poll(3)
        assert stage.check().proposal is None


def test_a_lagging_follower_is_proposed_for_removal() -> None:
    stage = Stage(1, 2)
    stage.leader.log_appended(1_000)
    for at in range(12):
        stage.now_ms += 1_000
        stage.leader.log_appended(1_000 * (at + 2))
        stage.fetch(2, 10 * at)
        proposal = stage.check().proposal
        if proposal is not None:
            break
    assert members(proposal) == [1]
    assert at == 10


def test_a_follower_that_reaches_the_end_of_its_previous_fetch_is_in_sync() -> None:
    # So that a leader that is never idle does not lose followers that keep pace with it.
    stage = Stage(1, 2)
    end = 0
    for _ in range(60):
        stage.now_ms += 500
        before, end = end, end + 100
        stage.leader.log_appended(end)
        assert stage.fetch(2, before).proposal is None
        assert stage.check().proposal is None


def test_a_follower_at_the_high_watermark_and_the_epoch_start_may_join() -> None:
    stage = Stage(1, 2, log_end=10, epoch_start=10)
    stage.fetch(2, 10)
    assert stage.leader.high_watermark == 10
    stage.leader.log_appended(12)
    assert stage.fetch(3, 9).proposal is None
    proposal = stage.fetch(3, 11).proposal
    assert proposal == IsrProposal(TOPIC, 0, 5, 7, ((1, -1), (2, 12), (3, 13)))


def test_a_follower_below_the_epoch_start_may_not_join() -> None:
    # KIP-966 and KAFKA-7128: one that has not seen this leader's first record is not in sync.
    stage = Stage(1, 2, log_end=10, epoch_start=10)
    assert stage.leader.high_watermark == 0
    assert stage.fetch(3, 4).proposal is None


def test_the_high_watermark_waits_for_proposed_members() -> None:
    # KAFKA-9924 and KIP-497: until a proposal's fate is known, its members count.
    stage = Stage(1, 2)
    stage.leader.log_appended(4)
    stage.fetch(2, 4)
    assert stage.fetch(3, 4).proposal is not None
    stage.leader.log_appended(8)
    assert not stage.fetch(2, 8).has_high_watermark_moved
    assert stage.leader.high_watermark == 4
    assert stage.fetch(3, 6).has_high_watermark_moved
    assert stage.leader.high_watermark == 6
    # Refused: it never was in.
    pending = stage.leader.pending
    assert pending is not None
    stage.leader.on_proposal_response(pending, ErrorCode.INELIGIBLE_REPLICA, stage.now_ms)
    stage.leader.log_appended(9)
    assert stage.fetch(2, 9).has_high_watermark_moved
    assert stage.leader.high_watermark == 9


def test_a_refused_proposal_is_withdrawn_until_the_follower_fetches_again() -> None:
    stage = Stage(1, 2)
    pending = stage.fetch(3, 0).proposal
    assert pending is not None
    stage.leader.on_proposal_response(pending, ErrorCode.INELIGIBLE_REPLICA, stage.now_ms)
    assert stage.fetch(3, 0).proposal is None
    stage.now_ms += RETRY_MS
    assert stage.check().proposal is None, "nothing was heard since"
    stage.poll(3)
    assert members(stage.check().proposal) == [1, 2, 3]


def test_a_lost_proposal_is_sent_again_unchanged() -> None:
    stage = Stage(1, 2)
    pending = stage.fetch(3, 0).proposal
    assert pending is not None
    stage.leader.on_proposal_response(pending, ErrorCode.REQUEST_TIMED_OUT, stage.now_ms)
    assert stage.check().proposal is None
    stage.now_ms += RETRY_MS
    assert stage.check().proposal == pending
    assert stage.check().proposal is None


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NONE]
)
def test_after_an_outdated_proposal_the_next_image_decides(code: ErrorCode) -> None:
    stage = Stage(1, 2)
    pending = stage.fetch(3, 0).proposal
    assert pending is not None
    stage.leader.on_proposal_response(pending, code, stage.now_ms)
    stage.now_ms += 5 * RETRY_MS
    assert stage.check().proposal is None
    assert stage.leader.pending == pending
    stage.follow(1, 2, 3)
    assert stage.leader.pending is None


def test_an_old_image_changes_nothing() -> None:
    stage = Stage()
    stage.follow(1, 2, partition_epoch=9)
    stage.follow(1, 2, 3, partition_epoch=8)
    assert stage.leader.replica.image.in_sync_replicas == (1, 2)


def test_a_new_epoch_of_the_same_leader_resets_the_progress_of_followers() -> None:
    stage = Stage()
    stage.fetch(2, 0)
    stage.follow(1, 2, 3, epoch=6)
    stage.leader.log_appended(3)
    assert not stage.fetch(3, 3).has_high_watermark_moved
    assert stage.fetch(2, 3).has_high_watermark_moved


def test_the_fetch_of_another_broker_has_no_effect() -> None:
    stage = Stage(1)
    stage.leader.log_appended(3)
    assert stage.leader.follower_fetched(FollowerBroker(9, -1, 0), 3, START_MS) == LeaderEffects()


def test_a_predecessor_may_have_proposed_any_replica_out_of_sync() -> None:
    assert possible_isr(PartitionImage((1, 2, 3), (1, 2), 1)) == (1, 2, 3)
    assert possible_isr(PartitionImage((1, 2, 3), (3, 2, 1), 1)) == ()


def test_a_successor_waits_for_all_replicas_until_older_proposals_are_void() -> None:
    """The process before us had proposed to take 3 in, and died. That may be decided at any time,
    and 3 may be elected then."""
    stage = Stage(1, 2, log_end=10, proposed=(1, 2, 3))
    proposal = stage.check().proposal
    assert members(proposal) == [1, 2]
    stage.fetch(2, 10)
    assert stage.leader.high_watermark == 0
    stage.fetch(3, 4)
    assert stage.leader.high_watermark == 4
    assert stage.follow(1, 2, partition_epoch=8).has_high_watermark_moved
    assert stage.leader.high_watermark == 10


def test_a_successor_repeats_its_proposal_until_it_is_decided() -> None:
    stage = Stage(1, 2, log_end=10, proposed=(1, 2, 3))
    proposal = stage.check().proposal
    assert proposal is not None
    assert stage.check().proposal is None
    for code in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.REQUEST_TIMED_OUT):
        stage.leader.on_proposal_response(proposal, code, stage.now_ms)
        stage.now_ms += RETRY_MS
        assert stage.check().proposal == proposal
    stage.fetch(2, 10)
    assert stage.leader.high_watermark == 0
