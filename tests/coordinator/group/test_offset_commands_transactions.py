"""Offsets that producers commit in transactions."""

import pytest

from odradek.coordinator.group.requests import (
    NO_GUARD,
    CommitInTransaction,
    ConsumerHeartbeat,
    DeleteGroup,
    EndProducerTransaction,
    FetchOffsets,
    VerificationRequired,
)
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.loader import LogEntry
from odradek.coordinator.outcome import TransactionMarker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestTopic,
    OffsetFetchResponseGroup,
)
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from odradek.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tests.support.shard_playbook import Call, ShardPlaybook

PRODUCER_ID = 7
UNSTABLE = "unstable"


class Play(ShardPlaybook[GroupShard, Call]):
    """One group and one partition."""

    def __init__(self, log: list[LogEntry] | None = None) -> None:
        settings = GroupSettings(initial_rebalance_delay_ms=0)
        super().__init__(lambda: GroupShard(settings), Call, log=log or ())

    def begin(self, offset: int, *, guard: int | None = None, **fields: object) -> Call:
        """A commit that the coordinator has enlisted, or with a guard one that it must confirm."""
        version = fields.pop("version", 3)
        assert isinstance(version, int)
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0,
            committed_offset=offset,
            committed_metadata=str(fields.pop("metadata", "")),
        )
        request = TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id="g",
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        for name, value in fields.items():
            setattr(request, name, value)
        asked = CommitInTransaction(
            request, is_verified=guard is None, guard=NO_GUARD if guard is None else guard
        )
        return self.ask(asked, version=version)

    def commit(self, offset: int, **fields: object) -> int:
        answer = self.begin(offset, guard=None, **fields).response(TxnOffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    def plain_commit(self, offset: int) -> None:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
        self.ask(OffsetCommitRequest(group_id="g", topics=[topic]), version=8)

    def end(self, *, is_commit: bool = True) -> None:
        marker = TransactionMarker(PRODUCER_ID, 0, 0, is_commit)
        assert self.ask(EndProducerTransaction(marker, 1)).response(ErrorCode) is ErrorCode.NONE

    def fetch(self, *, require_stable: bool = True) -> int | str:
        topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        call = self.ask(FetchOffsets("g", [topic], require_stable))
        [found] = call.response(OffsetFetchResponseGroup).topics[0].partitions
        if found.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
            assert found.committed_offset == -1
            return UNSTABLE
        assert found.error_code == ErrorCode.NONE
        return found.committed_offset

    def join(self) -> tuple[str, int]:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined = self.ask(request, version=3).response(JoinGroupResponse)
        return joined.member_id, joined.generation_id


def test_offsets_are_valid_when_the_transaction_has_committed() -> None:
    play = Play()
    play.plain_commit(3)
    assert play.commit(10) == ErrorCode.NONE
    assert play.fetch() == UNSTABLE
    assert play.fetch(require_stable=False) == 3
    play.end()
    assert play.fetch() == 10


def test_offsets_of_an_aborted_transaction_are_never_valid() -> None:
    play = Play()
    play.plain_commit(3)
    play.commit(10)
    play.end(is_commit=False)
    assert play.fetch() == 3


def test_a_later_offset_commit_supersedes_pending_offsets() -> None:
    play = Play()
    play.commit(10)
    play.plain_commit(12)
    play.end()
    assert play.fetch() == 12


def test_a_marker_that_is_not_committed_has_no_effect_on_fetches() -> None:
    play = Play()
    play.commit(10)
    play.hold_log()
    marker = TransactionMarker(PRODUCER_ID, 0, 0, is_commit=True)
    play.ask(EndProducerTransaction(marker, 1))
    assert play.fetch() == UNSTABLE
    play.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert play.fetch() == UNSTABLE
    play.end()
    assert play.fetch() == 10


def test_members_are_fenced_by_their_generation() -> None:
    play = Play()
    member_id, generation_id = play.join()
    mine = {"member_id": member_id, "generation_id_or_member_epoch": generation_id}
    # The group is completing its rebalance: the transaction decides, not the group.
    assert play.commit(1, **mine) == ErrorCode.NONE
    stale = {**mine, "generation_id_or_member_epoch": generation_id - 1}
    assert play.commit(1, **stale) == ErrorCode.ILLEGAL_GENERATION
    assert play.commit(1, **{**mine, "member_id": "x"}) == ErrorCode.UNKNOWN_MEMBER_ID
    assert play.commit(1) == ErrorCode.NONE


def test_a_generation_of_an_unknown_group_is_refused() -> None:
    play = Play()
    refused = play.commit(1, member_id="m", generation_id_or_member_epoch=4)
    assert refused == ErrorCode.ILLEGAL_GENERATION


def test_any_producer_may_commit_to_a_group_without_members() -> None:
    """As it does outside of transactions."""
    play = Play()
    assert play.commit(1, member_id="m") == ErrorCode.NONE
    play.plain_commit(3)
    assert play.commit(1, group_instance_id="i") == ErrorCode.NONE
    # It is there by now, so that it is the member that is missing.
    refused = play.commit(1, member_id="m", generation_id_or_member_epoch=4)
    assert refused == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_id_is_required() -> None:
    assert Play().commit(1, group_id="") == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.ILLEGAL_GENERATION), (5, ErrorCode.ILLEGAL_GENERATION), (6, 113)],
)
def test_old_producers_get_illegal_generation(version: int, code: int) -> None:
    play = Play()
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    joined = play.ask(ConsumerHeartbeat(request)).response(ConsumerGroupHeartbeatResponse)
    assert joined.error_code == ErrorCode.NONE

    def commit(epoch: int) -> int:
        return play.commit(1, version=version, member_id="m", generation_id_or_member_epoch=epoch)

    assert commit(joined.member_epoch - 1) == code
    assert commit(joined.member_epoch + 1) == code
    assert commit(joined.member_epoch) == ErrorCode.NONE


def test_metadata_is_bounded() -> None:
    play = Play()
    assert play.commit(1, metadata="x" * 5_000) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert play.fetch() == -1


def test_an_unknown_transaction_must_be_verified_after_the_last_end() -> None:
    play = Play()
    first = play.begin(1, guard=NO_GUARD).response(VerificationRequired)
    play.end()
    again = play.begin(1, guard=first.guard).response(VerificationRequired)
    assert again.guard != first.guard
    assert play.begin(1, guard=again.guard).response(TxnOffsetCommitResponse)
    # The transaction is open: no verification is required.
    assert play.begin(2, guard=NO_GUARD).response(TxnOffsetCommitResponse)
    play.end()
    assert play.fetch() == 2


def test_an_open_transaction_may_be_the_next_one_of_the_same_epoch() -> None:
    """The commit of an older client waits for its verification while its transaction ends and the
    next one commits an offset of the same group."""
    play = Play()
    late = play.begin(1, guard=NO_GUARD).response(VerificationRequired)
    play.end(is_commit=False)
    play.commit(2)
    again = play.begin(1, guard=late.guard).response(VerificationRequired)
    assert again.guard != late.guard
    play.end()
    assert play.fetch() == 2


@pytest.mark.parametrize(
    ("transaction_version", "marker_epoch", "code"),
    [
        (2, 1, ErrorCode.NONE),
        (2, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
        (1, 0, ErrorCode.NONE),
    ],
)
def test_a_second_marker_of_version_2_does_not_end_the_next_transaction(
    transaction_version: int, marker_epoch: int, code: ErrorCode
) -> None:
    """With version 2 a marker has the epoch after its transaction's: the next one has it, too."""
    play = Play()
    play.commit(1)
    marker = TransactionMarker(PRODUCER_ID, marker_epoch, 0, is_commit=True)
    ending = play.ask(EndProducerTransaction(marker, transaction_version))
    assert ending.response(ErrorCode) is code
    assert play.fetch() == (UNSTABLE if code else 1)


def test_only_the_fenced_producer_gets_an_error() -> None:
    play = Play()
    play.hold_log()
    zombie = play.begin(1)
    plain = OffsetCommitRequestPartition(partition_index=0, committed_offset=8)
    topic = OffsetCommitRequestTopic(name="t", partitions=[plain])
    bystander = play.ask(OffsetCommitRequest(group_id="other", topics=[topic]), version=8)
    play.fail_log(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert zombie.refused_with is ErrorCode.INVALID_PRODUCER_EPOCH
    assert bystander.refused_with is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert play.fetch() == -1


def test_a_deleted_group_has_no_pending_offsets() -> None:
    play = Play()
    play.commit(10)
    play.ask(DeleteGroup("g"))
    play.end()
    assert play.fetch() == -1


@pytest.mark.parametrize("is_commit", [True, False])
def test_every_prefix_of_the_log_gives_one_of_three_states(is_commit: bool) -> None:
    """Before, unstable, after. An open transaction can always be ended."""
    play = Play()
    play.plain_commit(3)
    play.commit(10)
    play.commit(11)
    play.end(is_commit=is_commit)
    after = 11 if is_commit else 3
    seen = []
    for length in range(1, len(play.log) + 1):
        loaded = Play(play.log[:length])
        seen.append(loaded.fetch())
        loaded.end(is_commit=False)
        assert loaded.fetch() == (after if length == len(play.log) else 3)
    assert seen == [3, UNSTABLE, UNSTABLE, after]
