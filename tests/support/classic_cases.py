"""All events of a classic group, in every state that it can reach."""

from collections.abc import Callable, Iterator
from functools import partial

from odradek.coordinator.group.classic.members import ClassicGroupMember
from odradek.coordinator.group.settings import GroupSettings
from odradek.protocol.errors import ErrorCode
from tests.support.group_cases import (
    NONE,
    STRANGER,
    Act,
    Told,
    TransitionCase,
    leave_classic,
    offsets_of,
)
from tests.support.group_playbook import NO_DELAY, REBALANCE_MS, SESSION_MS, GroupCall, Playbook
from tests.support.transition_table import NOTHING, TransitionKey


class ClassicGroupScenario:
    """A classic group in some state, and all events that can happen to it now."""

    def __init__(self, settings: GroupSettings = NO_DELAY) -> None:
        self.play = Playbook(settings)
        # Who is in no log since the coordinator moved, and the newest generation in the log then.
        self.lost: set[str] = set()
        self.loaded_generation = 0

    def state(self) -> str:
        if "g" in self.play.shard.consumers:
            return "consumer group"
        group = self.play.shard.classic.group("g")
        return NONE if group is None else str(group.state)

    def cases(self) -> Iterator[TransitionCase]:
        """The possible events; of several with the same key any may be taken."""
        at_once = (*self._anybody(), *self._pending(), *self._lost(), *self._members())
        for place_event, condition, act in at_once:
            yield TransitionCase(TransitionKey(self.state(), place_event, condition), act)
        for place_event, condition, act in self._timed():
            yield TransitionCase(
                TransitionKey(self.state(), place_event, condition), act, takes_time=True
            )

    def _offsets(self) -> str:
        return offsets_of(self.play, self.state())

    # Who is missing decides what a join phase does.

    def _missing(self, *but: str) -> int:
        group = self.play.shard.classic.group("g")
        if group is None:
            return 0
        absent = {member.member_id for member in group.members if not member.is_joining}
        return len((absent | group.pending) - set(but))

    def _others(self, but: str) -> int:
        group = self.play.shard.classic.group("g")
        return 0 if group is None else len([m for m in group.members if m.member_id != but])

    def _phase(self, who: str) -> str:
        return "others are missing" if self._missing(who) else "no other member is missing"

    def _gone(self, who: str) -> str:
        """The result of a member's end."""
        group = self.play.shard.classic.group("g")
        assert group is not None
        if group.state == "PreparingRebalance":
            if self._missing(who):
                return "others are missing"
            return "no other member is missing" if self._others(who) else "no member is left"
        return "others are left" if self._others(who) or group.pending else "no member is left"

    def _anybody(self) -> Iterator[Told]:
        play, group = self.play, self.play.shard.classic.group("g")
        if group is None or len(group.pending) < 2:
            yield "JoinGroup without an id", NOTHING, play.join
        yield "JoinGroup with an unknown id", NOTHING, lambda: play.join(STRANGER)
        yield "SyncGroup of an unknown member", NOTHING, lambda: play.sync(STRANGER, 1)
        yield "Heartbeat of an unknown member", NOTHING, lambda: play.heartbeat_call(STRANGER, 1)
        yield (
            "LeaveGroup of an unknown member",
            NOTHING,
            lambda: leave_classic(play, STRANGER),
        )
        yield "OffsetCommit without a member", NOTHING, lambda: play.commit_call({("t", 0): 1})
        yield (
            "OffsetCommit of an unknown member",
            self._offsets(),
            lambda: play.commit_call({("t", 0): 1}, member_id=STRANGER, generation_id=1),
        )
        if group is not None and len(group.members):
            yield (
                "JoinGroup with no protocol in common",
                NOTHING,
                lambda: play.join(protocols=[("other", b"")]),
            )
        if not play.shard.offsets.has_any("g"):
            is_stored = "g" in play.shard.classic.generations
            condition = NOTHING
            if self.state() == "Empty":
                condition = "it is stored" if is_stored else "it is not stored"
            yield "DeleteGroups", condition, lambda: self._delete()
        if group is not None:
            metadata = play.shard.classic.generations.get("g")
            has = metadata is not None and bool(metadata.members)
            condition = "the log has members" if has else "the log has no members"
            if has and metadata is not None and metadata.leader_id is None:
                condition = "the log has members, others have left"
            if metadata is None:
                condition = "the log has nothing"
            yield "the coordinator moves", condition, self.move

    def _delete(self) -> GroupCall:
        request_id = len(self.play.calls)
        self.play.delete_group()
        return self.play.calls[request_id]

    def move(self) -> None:
        group = self.play.shard.classic.group("g")
        if group is not None:
            self.lost |= {
                member.member_id for member in group.members if member.group_instance_id is None
            }
            self.lost |= group.pending
        self.play.reload()
        stored = self.play.shard.classic.generations.get("g")
        self.loaded_generation = 0 if stored is None else stored.generation_id
        if stored is not None:
            self.lost -= {member.member_id for member in stored.members}

    def _pending(self) -> Iterator[Told]:
        play, group = self.play, self.play.shard.classic.group("g")
        if group is None or not group.pending:
            return
        who = min(group.pending)
        yield "JoinGroup with an id just given", self._phase(who), lambda: play.join(who)
        if group.state == "PreparingRebalance":
            condition = self._gone(who)
        else:
            condition = "it has members" if len(group.members) else "it has none"
        yield (
            "LeaveGroup of an id just given",
            condition,
            lambda: leave_classic(play, who),
        )

    def _lost(self) -> Iterator[Told]:
        """A member that was not in the log when the coordinator moved."""
        play = self.play
        if not self.lost:
            return
        who, generation = min(self.lost), self.loaded_generation + 1

        def once(act: Act) -> Act:
            # It is known, or gone, from then on.
            def acted() -> GroupCall | None:
                self.lost.remove(who)
                return act()

            return acted

        joining = once(lambda: play.join(who))
        yield "JoinGroup with a lost id", self._phase(who), joining
        yield "SyncGroup in a lost generation", NOTHING, lambda: play.sync(who, generation)
        yield (
            "Heartbeat in a lost generation",
            NOTHING,
            lambda: play.heartbeat_call(who, generation),
        )
        yield (
            "OffsetCommit in a lost generation",
            NOTHING,
            lambda: play.commit_call({("t", 0): 1}, member_id=who, generation_id=generation),
        )
        yield "LeaveGroup of a lost id", NOTHING, once(lambda: leave_classic(play, who))

    def _members(self) -> Iterator[Told]:
        group = self.play.shard.classic.group("g")
        for member in [] if group is None else list(group.members):
            yield from self._member(member)

    def _member(self, member: ClassicGroupMember) -> Iterator[Told]:
        play, group = self.play, self.play.shard.classic.group("g")
        assert group is not None
        who, generation = member.member_id, group.generation_id
        instance = member.group_instance_id
        leads = group.members.leader_id == who
        role = "of the leader" if leads else "of a follower"
        phase = self._phase(who)
        if group.state == "PreparingRebalance":
            again = "it waits already" if member.is_joining else phase
            yield (
                "JoinGroup of a member",
                again,
                lambda: play.join(who, instance=instance),
            )
        else:
            alone = "no other member is missing" if not self._missing(who) else "others are missing"
            same = f"as before, {alone}" if leads else "as before"
            if group.state == "CompletingRebalance":
                same = "as before"
            yield (
                f"JoinGroup {role}",
                same,
                lambda: play.join(who, instance=instance, protocols=member.protocols),
            )
            changed = (("range", b"changed " + member.protocols[0][1]),)
            yield (
                f"JoinGroup {role}",
                f"changed, {alone}",
                lambda: play.join(who, instance=instance, protocols=changed),
            )
        if instance is not None:
            again = phase
            if group.state == "Stable":
                again = "with the group's protocol"
            yield (
                "JoinGroup of a static member that has restarted",
                again,
                lambda: play.join(instance=instance, protocols=member.protocols),
            )
            yield (
                "Heartbeat of another's instance id",
                NOTHING,
                lambda: play.heartbeat_call(STRANGER, generation, instance=instance),
            )
        synced = "it waits already" if member.sync_request_id is not None else NOTHING
        yield (
            f"SyncGroup {role}",
            synced,
            lambda: play.sync(who, generation, {who: b"all"}, instance=instance),
        )
        yield (
            "SyncGroup of a member in another generation",
            NOTHING,
            lambda: play.sync(who, generation - 1),
        )
        yield (
            "SyncGroup of a member for another protocol",
            NOTHING,
            lambda: play.sync(who, generation, protocol_type="connect"),
        )
        yield (
            "Heartbeat of a member",
            NOTHING,
            lambda: play.heartbeat_call(who, generation),
        )
        yield (
            "Heartbeat of a member in another generation",
            NOTHING,
            lambda: play.heartbeat_call(who, generation + 1),
        )
        yield (
            "OffsetCommit of a member",
            NOTHING,
            lambda: play.commit_call({("t", 0): 1}, member_id=who, generation_id=generation),
        )
        yield (
            "OffsetCommit of a member in another generation",
            NOTHING,
            lambda: play.commit_call({("t", 0): 1}, member_id=who, generation_id=generation + 1),
        )
        yield (
            "LeaveGroup of a member",
            self._gone(who),
            lambda: leave_classic(play, who),
        )
        if leads and group.state == "CompletingRebalance":
            yield (
                "SyncGroup of the leader",
                "it cannot be written",
                lambda: self._unwritten(lambda: play.sync(who, generation, {who: b"all"})),
            )

    def _unwritten(self, act: Act) -> GroupCall | None:
        self.play.hold_log()
        call = act()
        self.play.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
        return call

    def _timed(self) -> Iterator[Told]:
        group = self.play.shard.classic.group("g")
        if group is None:
            return
        for member in list(group.members):
            if not member.is_waiting and not group.pending:
                yield (
                    "a member's session is over",
                    self._gone(member.member_id),
                    partial(self._be_silent, member.member_id),
                )
        if group.pending:
            condition = NOTHING
            if group.state == "PreparingRebalance":
                joined = any(member.is_joining for member in group.members)
                missing = self._missing(*group.pending)
                condition = "others are missing" if missing else "no other member is missing"
                if not joined and not missing:
                    condition = "no member is left"
            yield "an id just given is not used", condition, lambda: self._be_silent(*group.pending)
        elif group.state == "PreparingRebalance":
            joined = any(member.is_joining for member in group.members)
            condition = "some have joined" if joined else "none has joined"
            yield "the rebalance timeout is over", condition, lambda: self._pass(REBALANCE_MS)
        if group.pending_sync and not group.pending and group.state != "PreparingRebalance":
            waiting = [m for m in group.members if m.member_id not in group.pending_sync]
            condition = "some have synced" if waiting else "none has synced"
            yield "the rebalance timeout is over", condition, lambda: self._pass(REBALANCE_MS)

    def _be_silent(self, *silent: str) -> None:
        """Let a session timeout pass in which all other members send heartbeats."""
        for duration_ms in (SESSION_MS - 1_000, 1_000):
            group = self.play.shard.classic.group("g")
            assert group is not None
            for member in list(group.members):
                if member.member_id not in silent:
                    self.play.heartbeat(member.member_id, group.generation_id)
            self.play.tick(duration_ms)

    def _pass(self, duration_ms: int) -> None:
        """Let time pass in which all members only send heartbeats."""
        for _ in range(0, duration_ms, SESSION_MS // 2):
            group = self.play.shard.classic.group("g")
            assert group is not None
            for member in list(group.members):
                self.play.heartbeat(member.member_id, group.generation_id)
            self.play.tick(SESSION_MS // 2)


Change = Callable[[ClassicGroupScenario], object]


def classic_scenes() -> list[Callable[[], ClassicGroupScenario]]:
    """A group in each state, with the members that make a difference."""

    def member(scene: ClassicGroupScenario, which: int) -> ClassicGroupMember:
        group = scene.play.shard.classic.group("g")
        assert group is not None
        return list(group.members)[which]

    def give_id(scene: ClassicGroupScenario) -> None:
        scene.play.give_id()

    def new(scene: ClassicGroupScenario) -> None:
        scene.play.join(scene.play.give_id())

    def rejoin(which: int) -> Change:
        def act(scene: ClassicGroupScenario) -> None:
            who = member(scene, which)
            instance = who.group_instance_id
            scene.play.join(who.member_id, instance=instance, protocols=who.protocols)

        return act

    def leave(which: int) -> Change:
        return lambda scene: leave_classic(scene.play, member(scene, which).member_id)

    def sync(which: int) -> Change:
        return lambda scene: scene.play.sync(
            member(scene, which).member_id, scene.play.generation()
        )

    def scene(
        *acts: Change, members: int = 0, static: bool = False
    ) -> Callable[[], ClassicGroupScenario]:
        def make() -> ClassicGroupScenario:
            made = ClassicGroupScenario()
            if members:
                made.play.stable(members, instances=["a", "b", "c"] if static else [])
            for act in acts:
                act(made)
            return made

        return make

    def commit(scene: ClassicGroupScenario) -> None:
        scene.play.commit({("t", 0): 1})

    def move(scene: ClassicGroupScenario) -> None:
        scene.move()

    return [
        scene(),
        scene(commit),
        scene(give_id),
        scene(give_id, give_id),
        scene(leave(0), members=1),
        scene(leave(0), give_id, members=1),
        scene(leave(0), give_id, give_id, members=1),
        scene(members=1),
        scene(members=2),
        scene(give_id, members=2),
        scene(members=2, static=True),
        scene(new),
        scene(new, give_id),
        scene(rejoin(0), members=1),
        scene(rejoin(0), members=1, static=True),
        scene(rejoin(0), members=2),
        scene(rejoin(0), give_id, members=2),
        scene(rejoin(0), members=2, static=True),
        scene(rejoin(0), members=3),
        scene(rejoin(0), give_id, members=1),
        scene(rejoin(0), rejoin(1), members=2),
        scene(rejoin(0), rejoin(1), sync(1), members=2),
        scene(rejoin(0), rejoin(1), sync(0), members=2),
        scene(rejoin(0), rejoin(1), sync(1), give_id, members=2),
        scene(rejoin(0), rejoin(1), sync(1), members=2, static=True),
        scene(leave(0), members=2),
        scene(leave(0), rejoin(0), members=2),
        scene(leave(0), rejoin(0), members=3),
        scene(leave(0), rejoin(0), rejoin(1), sync(1), members=3),
        scene(new, leave(1), members=1),
        scene(new, new),
        scene(leave(0), members=3),
        scene(leave(0), give_id, members=3),
        scene(leave(0), members=3, static=True),
        scene(give_id, leave(0), members=1),
        scene(give_id, give_id, leave(0), members=1),
        scene(give_id, new),
        scene(give_id, give_id, new),
        scene(leave(0), new, members=1),
        scene(leave(0), give_id, new, members=1),
        scene(leave(0), give_id, give_id, new, members=1),
        scene(new, new, rejoin(0), sync(1)),
        scene(leave(0), new, new, rejoin(0), sync(1), members=1),
        scene(give_id, new, leave(0)),
        scene(leave(0), give_id, new, leave(0), members=1),
        scene(rejoin(0), give_id, rejoin(1), members=2),
        scene(rejoin(0), give_id, give_id, rejoin(1), members=2),
        scene(give_id, move),
        scene(give_id, commit, move),
        scene(new, move, give_id),
        scene(leave(0), new, move, members=1),
        scene(leave(0), new, move, give_id, members=1),
        scene(give_id, move, members=2),
        scene(give_id, move, rejoin(0), members=2),
        scene(give_id, move, rejoin(0), rejoin(1), members=2),
        scene(give_id, move, rejoin(0), rejoin(1), sync(1), members=2),
    ]
