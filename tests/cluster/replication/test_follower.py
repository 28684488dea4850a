"""The follower's side of a fetch session: requests, responses, epochs.

At the end leaders and followers are put together, with logs that are lists, a controller that is a
few lines and chance as the network: whatever happens, what was committed stays.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.cluster.metadata.image import PartitionImage
from odradek.cluster.replication.follower import (
    BACK_OFF_MS,
    BACK_OFF_MS_MAX,
    RESPONSE_TIMEOUT_MS,
    Divergence,
    FetchedBatches,
    FetchedPartition,
    FetchEffects,
    FetchState,
    LeaderWatermarks,
    LogRestart,
    ReplicaFetchSession,
    truncation_offset,
)
from odradek.cluster.replication.leader import (
    FollowerBroker,
    IsrProposal,
    LeaderEffects,
    LeaderPartition,
)
from odradek.cluster.replication.messages import (
    ReplicaFetchPartition,
    ReplicaFetchPosition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPartitionData,
)
from odradek.cluster.replication.partition import PartitionReplica
from odradek.cluster.replication.throttle import TokenBudget
from odradek.protocol.errors import ErrorCode

TOPIC = bytes(15) + b"\x01"
NOW_MS = 1_000_000


def conversation(rate: int | None = None) -> ReplicaFetchSession:
    made = ReplicaFetchSession(
        cluster_id="c", broker_id=2, store=0, budget=TokenBudget(NOW_MS, rate)
    )
    made.connected()
    return made


def follow(
    talk: ReplicaFetchSession,
    partition: int = 0,
    *,
    epoch: int = 5,
    offset: int = 10,
    last_epoch: int = 4,
    is_throttled: bool = False,
) -> FetchedPartition:
    return talk.add_partition(
        TOPIC,
        partition,
        leader_epoch=epoch,
        fetch_offset=offset,
        last_epoch=last_epoch,
        is_throttled=is_throttled,
    )


def asked(talk: ReplicaFetchSession, now_ms: int = NOW_MS) -> ReplicaFetchRequest:
    request = talk.next_request(now_ms)
    assert request is not None
    return request


def answer(
    talk: ReplicaFetchSession, request: ReplicaFetchRequest, *parts: ReplicaPartitionData
) -> FetchEffects:
    fetched = ReplicaFetchResponse(request.request_id, 0, ErrorCode.NONE, parts)
    return talk.handle_response(fetched, NOW_MS)


def records(followed: FetchedPartition, byte_count: int = 100) -> ReplicaPartitionData:
    return ReplicaPartitionData(followed.handle, ErrorCode.NONE, 9, 0, 50, byte_count)


def test_a_partition_is_sent_once_and_then_only_its_offset() -> None:
    talk = conversation()
    one, two = follow(talk, 0), follow(talk, 1)
    first = asked(talk)
    assert first.is_full
    assert first.subscribed == (
        ReplicaFetchPartition(one.handle, TOPIC, 0, 5, 10, 4),
        ReplicaFetchPartition(two.handle, TOPIC, 1, 5, 10, 4),
    )
    assert talk.next_request(NOW_MS) is None, "one is under way"
    decision = answer(talk, first, records(one))
    assert decision.appends == (FetchedBatches(one, 0, 100),)
    assert decision.watermarks == (LeaderWatermarks(one, 9, 0),)
    talk.position_changed(one, 14, 5)
    second = asked(talk)
    assert not second.is_full
    assert (second.subscribed, second.reached) == ((), (ReplicaFetchPosition(one.handle, 14, 5),))
    answer(talk, second)
    assert asked(talk).reached == ()


def test_batches_of_several_partitions_follow_each_other_in_the_payload() -> None:
    talk = conversation()
    one, two, three = (follow(talk, partition) for partition in range(3))
    request = asked(talk)
    talk.remove_partition(TOPIC, 1)
    decision = answer(talk, request, records(one, 30), records(two, 50), records(three, 70))
    assert decision.appends == (FetchedBatches(one, 0, 30), FetchedBatches(three, 80, 70))


def test_a_diverged_log_is_truncated_before_the_next_append() -> None:
    talk = conversation()
    one = follow(talk)
    diverging = ReplicaPartitionData(
        one.handle, ErrorCode.NONE, 9, 0, 50, diverging_epoch=3, diverging_end=6
    )
    decision = answer(talk, asked(talk), diverging)
    assert decision == FetchEffects(divergences=(Divergence(one, 3, 6),))
    assert one.state is FetchState.APPLYING
    assert asked(talk).reached == (), "until it is cut there is nothing to say of it"
    talk.position_changed(one, 6, 3)
    assert asked(talk).reached == (ReplicaFetchPosition(one.handle, 6, 3),)


@pytest.mark.parametrize(
    ("own", "end"),
    [
        # KIP-279: our records of the leader's epoch, as far as both have them.
        ((3, 20), 12),
        ((3, 8), 8),
        # We have nothing of its epoch: what we have of the one before is asked about next.
        ((2, 5), 5),
        ((-1, -1), 12),
    ],
)
def test_the_truncation_offset(own: tuple[int, int], end: int) -> None:
    talk = conversation()
    assert truncation_offset(Divergence(follow(talk), 3, 12), *own, 30) == end


def test_an_offset_out_of_range_is_the_leaders_end_or_its_start() -> None:
    talk = conversation()
    ahead, behind = follow(talk, 0, offset=90), follow(talk, 1, offset=10)
    code = ErrorCode.OFFSET_OUT_OF_RANGE
    decision = answer(
        talk,
        asked(talk),
        ReplicaPartitionData(ahead.handle, code, 9, 30, 80),
        ReplicaPartitionData(behind.handle, code, 9, 30, 80),
    )
    assert decision.divergences == (Divergence(ahead, -1, 80),)
    assert decision.restarts == (LogRestart(behind, 30),)


def test_a_fenced_follower_waits_for_the_metadata() -> None:
    talk = conversation()
    one = follow(talk)
    code = ErrorCode.FENCED_LEADER_EPOCH
    answer(talk, asked(talk), ReplicaPartitionData(one.handle, code, -1, -1, -1))
    later = asked(talk, NOW_MS + 60_000)
    assert (later.subscribed, later.reached) == ((), ())
    again = follow(talk, epoch=6)
    assert again.handle != one.handle
    request = asked(talk, NOW_MS + 60_000)
    assert request.forgotten == (one.handle,)
    assert [wanted.leader_epoch for wanted in request.subscribed] == [6]


def test_a_leader_that_does_not_know_the_epoch_yet_is_retried_with_backoff() -> None:
    talk = conversation()
    one = follow(talk)
    now_ms = NOW_MS
    waits = []
    for _ in range(8):
        request = asked(talk, now_ms)
        assert [wanted.handle for wanted in request.subscribed] == [one.handle]
        part = ReplicaPartitionData(one.handle, ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1, -1)
        talk.handle_response(ReplicaFetchResponse(request.request_id, 0, 0, (part,)), now_ms)
        due_ms = one.resume_ms
        waits.append(due_ms - now_ms)
        now_ms = due_ms
    assert waits[0] == BACK_OFF_MS
    assert waits == sorted(waits)
    assert waits[-1] == BACK_OFF_MS_MAX


def test_batches_that_could_not_be_appended_are_fetched_again() -> None:
    talk = conversation()
    one = follow(talk)
    answer(talk, asked(talk), records(one))
    talk.failed(one, NOW_MS)
    answer(talk, asked(talk))
    assert asked(talk, NOW_MS + BACK_OFF_MS).subscribed[0].fetch_offset == 10


def test_after_a_connection_all_partitions_are_sent_again() -> None:
    talk = conversation()
    one, two = follow(talk, 0), follow(talk, 1)
    lost = asked(talk)
    answer(talk, lost, records(one))
    talk.connected()
    request = asked(talk)
    assert request.is_full
    assert [wanted.handle for wanted in request.subscribed] == [two.handle]
    # What was being appended meanwhile is named again too: the leader has forgotten its handle.
    talk.position_changed(one, 12, 5)
    answer(talk, request)
    assert [wanted.fetch_offset for wanted in asked(talk).subscribed] == [12]


def test_a_response_to_an_earlier_request_is_ignored() -> None:
    talk = conversation()
    one = follow(talk)
    old = asked(talk)
    talk.connected()
    asked(talk)
    assert answer(talk, old, records(one)) == FetchEffects()


def test_a_request_times_out_without_a_response() -> None:
    talk = conversation()
    follow(talk)
    asked(talk)
    due_ms = NOW_MS + 500 + RESPONSE_TIMEOUT_MS
    assert talk.next_ms(NOW_MS) == due_ms
    assert talk.next_request(due_ms - 1) is None
    assert asked(talk, due_ms).is_full


def test_an_unknown_session_starts_over_at_once_and_other_errors_wait() -> None:
    talk = conversation()
    follow(talk)
    request = asked(talk)
    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    talk.handle_response(ReplicaFetchResponse(request.request_id, 0, code), NOW_MS)
    request = asked(talk)
    assert request.is_full
    code = ErrorCode.INCONSISTENT_CLUSTER_ID
    talk.handle_response(ReplicaFetchResponse(request.request_id, 0, code), NOW_MS)
    assert talk.next_request(NOW_MS) is None
    assert talk.next_ms(NOW_MS) == NOW_MS + BACK_OFF_MS_MAX
    assert asked(talk, NOW_MS + BACK_OFF_MS_MAX).is_full


def test_a_new_partition_does_not_wait_for_the_request_under_way() -> None:
    talk = conversation()
    follow(talk, 0)
    asked(talk)
    two = follow(talk, 1)
    assert [wanted.handle for wanted in asked(talk).subscribed] == [two.handle]
    follow(talk, 2)
    assert talk.next_request(NOW_MS) is None, "two are enough"


def test_a_moved_log_start_is_sent_at_once() -> None:
    talk = conversation()
    one = talk.add_partition(
        TOPIC, 0, leader_epoch=5, fetch_offset=10, last_epoch=4, log_start_offset=2
    )
    first = asked(talk)
    assert [wanted.log_start_offset for wanted in first.subscribed] == [2]
    talk.log_start_changed(one, 2)
    assert talk.next_request(NOW_MS) is None, "that is known"
    talk.log_start_changed(one, 3)
    second = asked(talk)
    assert (second.subscribed, second.reached) == ((), ())
    assert second.log_starts == ((one.handle, 3),)
    answer(talk, first)
    answer(talk, second)
    assert asked(talk).log_starts == ()
    # Whoever is told everything anew is told this as well.
    talk.log_start_changed(one, 4)
    talk.connected()
    again = asked(talk)
    assert [wanted.log_start_offset for wanted in again.subscribed] == [4]
    assert again.log_starts == ()


def test_no_request_is_sent_without_partitions() -> None:
    talk = conversation()
    assert talk.is_empty
    assert talk.next_request(NOW_MS) is None
    follow(talk)
    answer(talk, asked(talk))
    talk.remove_partition(TOPIC, 0)
    assert asked(talk).forgotten == (1,), "the leader is told that it is over"


def test_a_throttled_partition_waits_for_its_budget_and_others_do_not() -> None:
    talk = conversation(rate=1_000)
    slow, fast = follow(talk, 0, is_throttled=True), follow(talk, 1)
    answer(talk, asked(talk), records(slow, 3_000), records(fast, 3_000))
    for followed in (slow, fast):
        talk.position_changed(followed, 20, 5)
    request = asked(talk)
    assert [told.handle for told in request.reached] == [fast.handle]
    talk.handle_response(ReplicaFetchResponse(request.request_id, 0, 0), NOW_MS)
    later = asked(talk, NOW_MS + 2_001)
    assert [told.handle for told in later.reached] == [slow.handle]


def test_a_throttled_partition_does_not_cause_a_busy_loop() -> None:
    talk = conversation(rate=0)
    follow(talk, is_throttled=True)
    asked(talk)
    assert talk.next_request(NOW_MS) is None


# -- leaders and followers together ---------------------------------------------------------------


Entry = tuple[int, int]
"""(leader epoch, value)"""


@dataclass
class Member:
    """One node's replica. Log and high watermark survive a crash; the rest is made anew."""

    node_id: int
    log: list[Entry] = field(default_factory=list)
    high_watermark: int = 0
    is_up: bool = True
    image: PartitionImage | None = None
    leader: LeaderPartition[int] | None = None
    talk: ReplicaFetchSession | None = None
    followed: FetchedPartition | None = None

    @property
    def last_epoch(self) -> int:
        return self.log[-1][0] if self.log else -1

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch of the log not above this one, and where it ends."""
        if self.leader is not None and epoch == self.leader.replica.image.leader_epoch:
            return epoch, len(self.log)
        ends = [(known, at + 1) for at, (known, _) in enumerate(self.log) if known <= epoch]
        if not ends:
            return epoch, 0
        return ends[-1]


class Cluster:
    """Three members, a controller and a network that the test plays with."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.members = [Member(node_id) for node_id in range(3)]
        self.state = PartitionImage((0, 1, 2), (0, 1, 2), 0, 0, 0)
        self.committed: list[Entry] = []
        self.high_watermarks: dict[int, int] = {}
        self.value = 0
        for member in self.members:
            self.hear(member)

    # What may happen.

    def produce(self, node: int) -> None:
        member = self.members[node]
        if member.is_up and member.leader is not None:
            self.value += 1
            member.log.append((member.leader.replica.image.leader_epoch, self.value))
            self.take(member, member.leader.log_appended(len(member.log)))

    def hear(self, member: Member) -> None:
        """The member learns what the controller has decided."""
        if not member.is_up or member.image == self.state:
            return
        member.image = state = self.state
        if state.leader == member.node_id:
            member.talk = member.followed = None
            if member.leader is None:
                replica = PartitionReplica(
                    member.node_id,
                    state,
                    min_insync_replicas=1,
                    log_end_offset=len(member.log),
                    high_watermark=member.high_watermark,
                )
                member.leader = LeaderPartition(
                    replica, TOPIC, 0, epoch_start_offset=len(member.log), now_ms=self.now_ms
                )
                self.take(member, LeaderEffects(True))
            else:
                outcome = member.leader.update(
                    state,
                    min_insync_replicas=1,
                    epoch_start_offset=len(member.log),
                    now_ms=self.now_ms,
                )
                self.take(member, outcome)
            return
        member.leader = None
        if member.followed is not None and member.followed.leader_epoch == state.leader_epoch:
            return
        member.talk = conversation()
        member.followed = member.talk.add_partition(
            TOPIC,
            0,
            leader_epoch=state.leader_epoch,
            fetch_offset=len(member.log),
            last_epoch=member.last_epoch,
        )

    def fetch(self, node: int, *, loses_answer: bool = False) -> None:
        """One request and its answer, carried out by both."""
        member = self.members[node]
        if not member.is_up or member.talk is None or member.image is None:
            return
        leader = self.members[member.image.leader] if member.image.leader >= 0 else None
        if leader is None or not leader.is_up:
            return
        member.talk.connected()
        request = member.talk.next_request(self.now_ms)
        if request is None:
            return
        parts = [self.serve(leader, member, wanted) for wanted in request.subscribed]
        if loses_answer:
            return
        fetched = ReplicaFetchResponse(request.request_id, 0, 0, tuple(p for p, _ in parts))
        decision = member.talk.handle_response(fetched, self.now_ms)
        for followed, _, count in decision.appends:
            (entries,) = (entries for _, entries in parts)
            assert count == len(entries)
            member.log += entries
            member.talk.position_changed(followed, len(member.log), member.last_epoch)
        for divergence in decision.divergences:
            own = member.epoch_end(divergence.epoch) if member.log else (-1, -1)
            end = truncation_offset(divergence, *own, len(member.log))
            assert end < len(member.log), "every cut makes progress"
            del member.log[end:]
            member.high_watermark = min(member.high_watermark, end)
            member.talk.position_changed(divergence.followed, end, member.last_epoch)
        assert not decision.restarts, "nobody deletes here"
        for _, high_watermark, _ in decision.watermarks:
            believed = min(high_watermark, len(member.log))
            member.high_watermark = max(member.high_watermark, believed)

    def serve(
        self, leader: Member, member: Member, wanted: ReplicaFetchPartition
    ) -> tuple[ReplicaPartitionData, Sequence[Entry]]:
        """What the leader makes of a request, as the worker's serving side does."""
        part = leader.leader
        epoch = -2 if part is None else part.replica.image.leader_epoch
        if part is None or wanted.leader_epoch != epoch:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return ReplicaPartitionData(wanted.handle, code, -1, -1, -1), ()
        offset, end = wanted.fetch_offset, len(leader.log)
        if wanted.last_epoch >= 0:
            own_epoch, own_end = leader.epoch_end(wanted.last_epoch)
            if own_epoch != wanted.last_epoch or own_end < offset:
                told = ReplicaPartitionData(
                    wanted.handle,
                    ErrorCode.NONE,
                    part.high_watermark,
                    0,
                    end,
                    diverging_epoch=own_epoch,
                    diverging_end=own_end,
                )
                return told, ()
        contact = FollowerBroker(member.node_id, -1, self.now_ms)
        self.take(leader, part.follower_fetched(contact, offset, self.now_ms))
        entries = leader.log[offset : offset + 2]
        told = ReplicaPartitionData(wanted.handle, 0, part.high_watermark, 0, end, len(entries))
        return told, entries

    def take(self, member: Member, outcome: LeaderEffects[int]) -> None:
        assert member.leader is not None
        member.high_watermark = max(member.high_watermark, member.leader.high_watermark)
        if outcome.proposal is not None:
            self.alter(member, outcome.proposal)

    def alter(self, member: Member, proposal: IsrProposal) -> None:
        """The controller decides upon a proposal; the leader may hear of it much later."""
        state = self.state
        in_sync = tuple(node for node, _ in proposal.in_sync)
        if (proposal.leader_epoch, proposal.partition_epoch) != (
            state.leader_epoch,
            state.partition_epoch,
        ):
            code = ErrorCode.INVALID_UPDATE_VERSION
        elif not all(self.members[node].is_up for node in in_sync):
            code = ErrorCode.INELIGIBLE_REPLICA
        else:
            code = ErrorCode.NONE
            self.state = PartitionImage(
                state.replicas,
                in_sync,
                state.leader,
                state.leader_epoch,
                state.partition_epoch + 1,
            )
        assert member.leader is not None
        member.leader.on_proposal_response(proposal, code, self.now_ms)

    def crash(self, node: int) -> None:
        member = self.members[node]
        member.is_up = False
        member.image = member.leader = member.talk = member.followed = None
        state = self.state
        alive = tuple(n for n in state.in_sync_replicas if self.members[n].is_up)
        if alive:
            leader = state.leader if state.leader in alive else alive[0]
            self.state = PartitionImage(
                state.replicas,
                alive,
                leader,
                state.leader_epoch + (leader != state.leader),
                state.partition_epoch + 1,
            )
        elif state.leader == node:
            # The last one in sync: it leads again when it is back.
            self.state = PartitionImage(
                state.replicas,
                state.in_sync_replicas,
                -1,
                state.leader_epoch + 1,
                state.partition_epoch + 1,
            )

    def start(self, node: int) -> None:
        member = self.members[node]
        if not member.is_up:
            member.is_up = True
            state = self.state
            if state.leader == -1 and node in state.in_sync_replicas:
                self.state = PartitionImage(
                    state.replicas, (node,), node, state.leader_epoch + 1, state.partition_epoch + 1
                )

    def elect(self, node: int) -> None:
        """Move the lead to another member in sync, all of them alive."""
        state = self.state
        if node in state.in_sync_replicas and self.members[node].is_up and state.leader != node:
            self.state = PartitionImage(
                state.replicas,
                state.in_sync_replicas,
                node,
                state.leader_epoch + 1,
                state.partition_epoch + 1,
            )

    def check(self) -> None:
        """What must hold after every event."""
        for member in self.members:
            assert member.high_watermark <= len(member.log)
            part = member.leader
            if part is None or not member.is_up:
                continue
            epoch = part.replica.image.leader_epoch
            before = self.high_watermarks.get(epoch, 0)
            assert part.high_watermark >= before, "a high watermark went back within an epoch"
            self.high_watermarks[epoch] = part.high_watermark
            if epoch == self.state.leader_epoch or part.high_watermark > before:
                known = member.log[: part.high_watermark]
                if len(known) > len(self.committed):
                    assert known[: len(self.committed)] == self.committed
                    self.committed = list(known)
        for member in self.members:
            common = min(member.high_watermark, len(self.committed))
            assert member.log[:common] == self.committed[:common], "committed records changed"
        if self.state.leader >= 0:
            leading = self.members[self.state.leader]
            assert leading.log[: len(self.committed)] == self.committed, "committed and lost"


KINDS = 30


def play(cluster: Cluster, kind: int, node: int) -> None:
    """One event. What must hold is looked at after it."""
    member = cluster.members[node]
    match kind:
        case 0 | 1 | 2 | 3:
            cluster.produce(cluster.state.leader if node else node)
        case 4 | 5 | 6 | 7 | 8 | 9 | 10 | 11 | 12 | 13:
            cluster.fetch(node)
        case 14:
            cluster.fetch(node, loses_answer=True)
        case 15 | 16 | 17 | 18 | 19 | 20 | 21 | 22 | 23 | 24:
            cluster.hear(member)
        case 25 if member.is_up:
            cluster.crash(node)
        case 25 | 26 | 27:
            cluster.start(node)
        case 28:
            cluster.elect(node)
        case _:
            cluster.now_ms += 2_500
            if member.is_up and member.leader is not None:
                cluster.take(member, member.leader.tick(cluster.now_ms))
    cluster.check()


def make_peace(cluster: Cluster) -> None:
    """Everybody is there and hears everything: then everybody has the same."""
    for node in range(3):
        cluster.start(node)
    for _ in range(60 + 2 * cluster.value):
        cluster.now_ms += 1_000
        for member in cluster.members:
            cluster.hear(member)
            cluster.fetch(member.node_id)
        cluster.check()
    first = cluster.members[0].log
    assert all(member.log == first for member in cluster.members)
    assert cluster.members[cluster.state.leader].high_watermark == len(first)


EVENTS = st.tuples(st.integers(0, KINDS - 1), st.integers(0, 2))


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=80))
def test_committed_records_stay_in_random_histories(events: list[tuple[int, int]]) -> None:
    cluster = Cluster()
    for kind, node in events:
        play(cluster, kind, node)
    make_peace(cluster)


@pytest.mark.parametrize("seed", range(30))
def test_committed_records_stay_in_long_random_histories(seed: int) -> None:
    dice = random.Random(seed)
    cluster = Cluster()
    for _ in range(2_500):
        play(cluster, dice.randrange(KINDS), dice.randrange(3))
    make_peace(cluster)
    assert len(cluster.committed) > 50, seed
