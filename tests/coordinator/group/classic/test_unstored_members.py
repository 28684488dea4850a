"""Members of classic groups that are not in the log, after a move of the coordinator."""

from collections.abc import Callable, Iterator

import pytest

from odradek.coordinator.group.classic.records import GroupMetadata, MemberMetadata
from odradek.coordinator.group.classic.unstored_members import REJOIN_WINDOW_MS, UnstoredMembers
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.outcome import ErrorReply
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupResponse,
)
from tests.coordinator.group.consumer.test_classic_members import Classic, rest
from tests.coordinator.group.consumer.test_migration import classic_group
from tests.support.consumer_playbook import Consumer, Stage, settle
from tests.support.group_playbook import SESSION_MS, START_MS, GroupCall, Playbook

UUID = "-5f0c8a8e-2f5b-4e0e-9d0c-8b1f9b1c2d3e"
ID = "client" + UUID
STORED_ID = ID[:-1] + "0"
NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
AGAIN = ErrorCode.REBALANCE_IN_PROGRESS
FENCED = ErrorCode.FENCED_INSTANCE_ID


def code_of(joining: GroupCall) -> int:
    return joining.joined.error_code


def commit(play: Playbook, member_id: str, generation_id: int) -> int:
    return play.commit({("t", 0): 1}, member_id=member_id, generation_id=generation_id)


# -- who may be one -------------------------------------------------------------------------------


def loaded() -> UnstoredMembers:
    """The log had generation 3 of g, with one member."""
    unstored = UnstoredMembers()
    member = MemberMetadata(
        member_id=STORED_ID, rebalance_timeout_ms=1, session_timeout_ms=SESSION_MS
    )
    stored = GroupMetadata(generation_id=3, members=(member,))
    unstored.on_loaded([("g", stored)], START_MS)
    return unstored


def may_include(unstored: UnstoredMembers, member_id: str, now_ms: int = START_MS) -> bool:
    return unstored.may_include(MemberIdentity(member_id=member_id), "client", now_ms)


def test_the_window_ends_some_time_after_the_load() -> None:
    assert not may_include(UnstoredMembers(), ID)
    unstored = loaded()
    assert may_include(unstored, ID, START_MS + REJOIN_WINDOW_MS - 1)
    assert not may_include(unstored, ID, START_MS + REJOIN_WINDOW_MS)


@pytest.mark.parametrize(
    "member_id",
    [
        "",
        "client",
        "client-1",
        UUID,
        "other" + UUID,
        "victim" + UUID,
        "client-other" + UUID,
        ID + "0",
        ID.replace("5f0c", "5g0c"),
    ],
)
def test_an_id_that_no_coordinator_generates_for_the_client_is_unknown(member_id: str) -> None:
    assert not may_include(loaded(), member_id)


def test_the_id_of_a_static_member_starts_with_its_instance_id() -> None:
    unstored = loaded()
    for member_id, expected in (("shelf" + UUID, True), (ID, False)):
        static = MemberIdentity(member_id=member_id, group_instance_id="shelf")
        assert unstored.may_include(static, "client", START_MS) is expected


def test_members_in_the_log_or_seen_since_the_load_are_not_unstored() -> None:
    unstored = loaded()
    assert not may_include(unstored, STORED_ID)
    unstored.note([ID], START_MS)
    assert not may_include(unstored, ID)


def test_an_unstored_member_that_leaves_is_no_longer_one() -> None:
    unstored = loaded()
    assert unstored.accept_leave(MemberIdentity(member_id=ID), "client", START_MS)
    assert not unstored.accept_leave(MemberIdentity(member_id=ID), "client", START_MS)
    assert not may_include(unstored, ID)


@pytest.mark.parametrize(
    ("group", "generation_id", "expected"),
    [
        ("g", 3, UNKNOWN),
        ("g", 4, AGAIN),
        ("new", 0, UNKNOWN),
        ("new", -1, UNKNOWN),
        ("new", 1, AGAIN),
    ],
)
def test_only_later_generations_than_the_loaded_one_were_lost(
    group: str, generation_id: int, expected: ErrorCode
) -> None:
    heartbeat = HeartbeatRequest(group_id=group, member_id=ID)
    assert loaded().answer(UNKNOWN, heartbeat, generation_id, "client", START_MS) is expected


def test_no_other_error_is_changed() -> None:
    heartbeat = HeartbeatRequest(group_id="g", member_id=ID)
    for error in (NONE, FENCED, ErrorCode.ILLEGAL_GENERATION, ErrorCode.INVALID_GROUP_ID):
        assert loaded().answer(error, heartbeat, 4, "client", START_MS) is error


# -- a group that forms ---------------------------------------------------------------------------


def test_a_pending_member_joins_with_its_id_at_the_next_coordinator() -> None:
    play = Playbook()
    member = play.give_id()
    play.reload()
    joined = play.join(member).joined
    assert (joined.error_code, joined.member_id, joined.generation_id) == (NONE, member, 1)
    assert play.sync(member, 1, {member: b"all"}).synced.assignment == b"all"


def test_all_members_that_waited_for_the_first_generation_join_together() -> None:
    play = Playbook(GroupSettings(initial_rebalance_delay_ms=100))
    members = [play.give_id(), play.give_id()]
    waiting = [play.join(member) for member in members]
    static = play.join(instance="shelf")
    play.reload()
    assert all(call.refused_with == ErrorCode.NOT_COORDINATOR for call in (*waiting, static))
    again = [play.join(member) for member in members]
    again.append(play.join("shelf" + UUID, instance="shelf"))
    play.tick(100)
    assert [code_of(call) for call in again] == [NONE] * 3
    assert [call.joined.member_id for call in again] == [*members, "shelf" + UUID]


def test_members_of_a_lost_first_generation_join_again() -> None:
    play = Playbook()
    member = play.give_id()
    assert play.join(member).joined.generation_id == 1
    play.reload()
    assert play.sync(member, 1, {member: b""}).synced.error_code == AGAIN
    assert play.heartbeat(member, 1) == AGAIN
    assert play.list_groups() == {}
    assert code_of(play.join(member)) == NONE
    assert play.heartbeat(member, 1) == NONE


def test_a_lost_and_a_new_generation_may_have_the_same_number() -> None:
    play = Playbook()
    late, early = play.give_id(), play.give_id()
    play.join(late), play.join(early)
    play.reload()
    assert play.join(early).joined.generation_id == 1
    assert play.sync(late, 1).synced.error_code == AGAIN
    assert play.heartbeat(late, 1) == AGAIN
    assert commit(play, late, 1) == AGAIN
    waiting = play.join(late)
    play.join(early)
    assert waiting.joined.generation_id == 2


def test_members_keep_their_ids_after_several_moves() -> None:
    play = Playbook()
    member = play.give_id()
    for _ in range(3):
        play.reload()
        assert code_of(play.join(member)) == NONE


# -- newcomers of a group that is stored ----------------------------------------------------------


def test_unstored_and_stored_members_join_with_their_ids() -> None:
    play = Playbook()
    [member] = play.stable()
    newcomer = play.give_id()
    play.reload()
    waiting = play.join(newcomer)
    assert play.heartbeat(member, 1) == AGAIN
    assert code_of(play.join(member)) == NONE
    assert (waiting.joined.member_id, waiting.joined.generation_id) == (newcomer, 2)


def test_an_unstored_member_of_a_lost_generation_joins_again() -> None:
    play = Playbook()
    [member] = play.stable()
    newcomer = play.give_id()
    waiting = play.join(newcomer)
    play.join(member)
    assert waiting.joined.generation_id == 2
    play.reload()
    assert play.sync(newcomer, 2).synced.error_code == AGAIN
    assert play.heartbeat(newcomer, 2) == AGAIN
    assert commit(play, newcomer, 2) == AGAIN
    # So does a stored member that was in it.
    assert play.sync(member, 2).synced.error_code == AGAIN
    assert play.heartbeat(member, 2) == AGAIN
    assert commit(play, member, 2) == AGAIN
    assert play.heartbeat(member, 0) == ErrorCode.ILLEGAL_GENERATION
    assert play.heartbeat(member, 1) == NONE


def test_a_stored_member_of_a_lost_generation_joins_again_for_some_time_only() -> None:
    """Afterwards the generation is wrong, as ever."""
    play = Playbook()
    [member] = play.stable(session_ms=2 * REJOIN_WINDOW_MS)
    assert play.heartbeat(member, 2) == ErrorCode.ILLEGAL_GENERATION
    play.reload()
    assert play.heartbeat(member, 2) == AGAIN
    play.tick(REJOIN_WINDOW_MS)
    assert play.heartbeat(member, 2) == ErrorCode.ILLEGAL_GENERATION
    assert play.sync(member, 2).synced.error_code == ErrorCode.ILLEGAL_GENERATION
    assert commit(play, member, 2) == ErrorCode.ILLEGAL_GENERATION


def test_a_member_that_was_removed_before_the_move_stays_removed() -> None:
    play = Playbook()
    first, second = play.stable(2)
    play.leave(MemberIdentity(member_id=second))
    play.join(first)
    play.sync(first, 3, {first: b""})
    play.reload()
    assert play.heartbeat(second, 2) == UNKNOWN
    assert play.sync(second, 2).synced.error_code == UNKNOWN
    assert commit(play, second, 2) == UNKNOWN


def test_a_member_that_is_removed_after_the_move_is_unknown() -> None:
    play = Playbook()
    [stored] = play.stable()
    newcomer = play.give_id()
    play.reload()
    play.join(newcomer), play.join(stored)
    given = play.give_id()
    play.leave(MemberIdentity(member_id=newcomer), MemberIdentity(member_id=stored))
    play.tick(SESSION_MS)
    for member in (stored, newcomer, given):
        assert code_of(play.join(member)) == UNKNOWN
        assert play.heartbeat(member, 9) == UNKNOWN
        assert play.sync(member, 9).synced.error_code == UNKNOWN


def test_after_the_window_unstored_members_are_unknown() -> None:
    play = Playbook()
    play.stable(session_ms=2 * REJOIN_WINDOW_MS)
    newcomer = play.give_id()
    play.reload()
    play.tick(REJOIN_WINDOW_MS - 1)
    assert play.heartbeat(newcomer, 2) == AGAIN
    play.tick(1)
    assert play.heartbeat(newcomer, 2) == UNKNOWN
    assert play.sync(newcomer, 2).synced.error_code == UNKNOWN
    assert code_of(play.join(newcomer)) == UNKNOWN
    assert code_of(play.join(newcomer, group="forming")) == UNKNOWN
    assert commit(play, newcomer, 2) == UNKNOWN


def test_other_ids_are_unknown_also_after_a_move() -> None:
    play = Playbook()
    play.stable()
    play.reload()
    for stranger in ("nobody", "other" + UUID):
        for group in ("g", "forming"):
            assert code_of(play.join(stranger, group=group)) == UNKNOWN
            assert play.heartbeat(stranger, 2, group=group) == UNKNOWN
            assert play.sync(stranger, 2, group=group).synced.error_code == UNKNOWN


def test_the_size_limit_applies_to_unstored_members() -> None:
    play = Playbook(GroupSettings(initial_rebalance_delay_ms=0, size_max=1))
    play.stable()
    newcomer = play.give_id(group="other")
    play.reload()
    assert code_of(play.join(newcomer)) == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_request_without_a_group_id_is_invalid() -> None:
    play = Playbook()
    assert code_of(play.join(ID, group="")) == ErrorCode.INVALID_GROUP_ID
    assert play.heartbeat(ID, 1, group="") == ErrorCode.INVALID_GROUP_ID
    assert play.sync(ID, 1, group="").synced.error_code == ErrorCode.INVALID_GROUP_ID


# -- static members -------------------------------------------------------------------------------


def test_another_id_of_a_known_instance_is_fenced() -> None:
    play = Playbook()
    [stored] = play.stable(instances=["shelf"])
    play.reload()
    other = "shelf" + UUID
    assert code_of(play.join(other, instance="shelf")) == FENCED
    assert play.sync(other, 2, instance="shelf").synced.error_code == FENCED
    assert play.heartbeat(other, 2, instance="shelf") == FENCED
    left = play.leave(MemberIdentity(member_id=other, group_instance_id="shelf"))
    assert left.members[0].error_code == FENCED
    assert play.heartbeat(stored, 1, instance="shelf") == NONE


def test_of_two_ids_of_an_unstored_instance_the_second_one_is_fenced() -> None:
    play = Playbook()
    first, second = "shelf" + UUID, "shelf" + UUID[:-1] + "0"
    assert code_of(play.join(first, instance="shelf")) == NONE
    assert code_of(play.join(second, instance="shelf")) == FENCED
    # A process that has started anew has no id yet, and takes the place over.
    restarted = play.join(instance="shelf")
    assert code_of(restarted) == NONE
    assert code_of(play.join(first, instance="shelf")) == FENCED


def test_an_id_without_its_instance_id_is_unknown() -> None:
    play = Playbook()
    assert code_of(play.join("shelf" + UUID)) == UNKNOWN
    assert code_of(play.join(ID, instance="shelf")) == UNKNOWN


# -- leaving --------------------------------------------------------------------------------------


def test_an_unstored_member_leaves_without_a_rebalance() -> None:
    play = Playbook()
    play.stable()
    newcomer = play.give_id()
    play.reload()
    left = play.leave(MemberIdentity(member_id=newcomer), MemberIdentity(member_id="nobody"))
    assert [each.error_code for each in left.members] == [NONE, UNKNOWN]
    assert play.state() == "Stable"
    assert code_of(play.join(newcomer)) == UNKNOWN
    left = play.leave(MemberIdentity(member_id=newcomer))
    assert left.members[0].error_code == UNKNOWN


def test_an_unstored_member_that_leaves_creates_no_group() -> None:
    play = Playbook()
    old = LeaveGroupRequest(group_id="g", member_id=ID)
    assert play.ask(old, version=2).response(LeaveGroupResponse).error_code == NONE
    assert play.list_groups() == {}
    assert play.ask(old, version=2).response(LeaveGroupResponse).error_code == UNKNOWN


# -- groups that change their kind ----------------------------------------------------------------


def test_an_unstored_member_of_a_group_that_was_upgraded_joins_again() -> None:
    stage, members = classic_group()
    newcomer = Classic(stage)
    newcomer.member_id, newcomer.generation_id = stage.give_id(), stage.generation() + 1
    stage.reload()
    modern = Consumer(stage, "m")
    modern.send_heartbeat()
    assert stage.list_groups()["g"].group_type == "consumer"
    assert newcomer.heartbeat() == newcomer.sync() == AGAIN
    given = newcomer.member_id
    rest(*members, newcomer, modern)
    assert newcomer.member_id == given
    assert [len(each.owned) for each in (*members, newcomer)] == [1, 1, 1]
    assert len(modern.partitions) == 1


def test_a_classic_member_of_a_consumer_group_that_leaves_is_unknown() -> None:
    stage = Stage()
    modern, classic = Consumer(stage, "m"), Classic(stage)
    settle(modern)
    rest(classic, modern)
    stage.reload()
    stage.leave(MemberIdentity(member_id=classic.member_id))
    assert classic.heartbeat() == UNKNOWN
    later = Classic(stage)
    rest(modern, later)
    stage.leave(MemberIdentity(member_id=later.member_id))
    assert later.heartbeat() == UNKNOWN


# -- a move at any time ---------------------------------------------------------------------------


class Joiner:
    """A client that follows the responses, and repeats requests without a response."""

    def __init__(self, play: Playbook) -> None:
        self.play = play
        self.ids: list[str] = []
        self.told: list[int] = []
        self.generation_id = -1
        self.others: list[str] = []
        self.ask: Callable[[], GroupCall] = self._join
        self.call: GroupCall | None = None

    @property
    def is_at_rest(self) -> bool:
        return self.ask == self._send_heartbeat

    def turn(self) -> None:
        """Hear the last answer, unless it waits for that, and ask what follows."""
        if self.call is not None:
            if self.call.is_parked:
                return
            if self.call.refused_with is None:
                self._hear(self.call)
        self.call = self.ask()

    def _hear(self, call: GroupCall) -> None:
        assert call.answer is not None
        assert not isinstance(call.answer, ErrorReply)
        response = call.answer.response
        assert isinstance(response, JoinGroupResponse | SyncGroupResponse | HeartbeatResponse)
        self.told.append(response.error_code)
        is_refused = response.error_code != NONE
        if isinstance(response, JoinGroupResponse):
            if response.member_id not in self.ids:
                self.ids.append(response.member_id)
            self.generation_id = response.generation_id
            self.others = [member.member_id for member in response.members]
        if is_refused:
            self.ask = self._join
        else:
            self.ask = (
                self._sync if isinstance(response, JoinGroupResponse) else self._send_heartbeat
            )

    def _join(self) -> GroupCall:
        return self.play.join(self.ids[-1] if self.ids else "")

    def _sync(self) -> GroupCall:
        return self.play.sync(self.ids[-1], self.generation_id, dict.fromkeys(self.others, b"some"))

    def _send_heartbeat(self) -> GroupCall:
        return self.play.heartbeat_call(self.ids[-1], self.generation_id)


@pytest.mark.parametrize("delay_ms", [0, 100])
@pytest.mark.parametrize("resting", [0, 1, 2])
@pytest.mark.parametrize("moved_after", range(0, 40, 2))
def test_after_moves_at_any_time_all_members_keep_their_ids(
    moved_after: int, resting: int, delay_ms: int
) -> None:
    """Three clients, some of them in a stored generation when the others join."""
    play = Playbook(GroupSettings(initial_rebalance_delay_ms=delay_ms))
    clients = [Joiner(play) for _ in range(3)]

    def take_turns(who: list[Joiner]) -> Iterator[None]:
        while not all(each.is_at_rest for each in who):
            for each in who:
                each.turn()
                yield
            play.tick(20)
        for each in who * 4:
            each.turn()
            yield

    for _ in take_turns(clients[:resting]):
        pass
    for count, _ in enumerate(take_turns(clients)):
        assert count < 200
        if count == moved_after:
            play.reload()
    assert UNKNOWN not in [code for each in clients for code in each.told]
    assert [len(each.ids) for each in clients] == [1, 1, 1]
    assert {each.generation_id for each in clients} == {play.generation()}
