"""All events of a streams group, in every state that it can reach."""

from collections.abc import Callable, Iterator

from odradek.cluster.metadata.group_settings import StreamsGroupSettings
from odradek.coordinator.group.modern.heartbeats import LEAVE_GROUP_STATIC_EPOCH
from odradek.coordinator.group.modern.records import MemberState
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.streams.group import StreamsGroup, tasks_by_role
from odradek.coordinator.group.streams.records import StreamsCurrentAssignment, TasksTuple
from tests.support.group_cases import NONE, STRANGER, Told, TransitionCase, offsets_of
from tests.support.group_playbook import GroupCall
from tests.support.streams_playbook import (
    REBALANCE_TIMEOUT_MS,
    STREAMS,
    StreamsStage,
    StreamsThread,
    subtopology,
    topology,
)
from tests.support.transition_table import NOTHING, TransitionKey

SLOW_STREAMS = GroupSettings(
    streams=StreamsGroupSettings(initial_rebalance_delay_ms=0, assignment_interval_ms=1_000)
)
SMALL_STREAMS = GroupSettings(
    streams=StreamsGroupSettings(initial_rebalance_delay_ms=0, assignment_interval_ms=0, max_size=2)
)
PLAN = topology(subtopology("0", "in"), subtopology("1", "side", changelogs=["store"]))
SIZES = {"in": 3, "side": 1, "store": 1, "unread": 1}


class StreamsGroupScenario:
    """A streams group in some state, and all events that can happen to it now."""

    def __init__(self, settings: GroupSettings = STREAMS) -> None:
        self.sizes = dict(SIZES)
        self.play = StreamsStage(self.sizes, settings)
        self.members: dict[str, StreamsThread] = {}

    def state(self) -> str:
        group = self._group()
        return NONE if group is None else str(group.state)

    def member(self, instance: str | None = None) -> StreamsThread:
        member = StreamsThread(self.play, f"m{len(self.play.calls)}", instance=instance)
        self.members[member.member_id] = member
        return member

    def cases(self) -> Iterator[TransitionCase]:
        """The possible events; of several with the same key any may be taken."""
        state = self.state()
        for event, condition, act in self._anybody():
            yield TransitionCase(TransitionKey(state, event, condition), act)
        for member_id in list(self.members):
            for event, condition, act in self._member(self.members[member_id]):
                yield TransitionCase(TransitionKey(state, event, condition), act)
        for event, condition, act in self._timed():
            yield TransitionCase(TransitionKey(state, event, condition), act, takes_time=True)

    def _group(self) -> StreamsGroup | None:
        return self.play.shard.streams.get("g")

    def _due(self) -> str:
        """Whether a new epoch is assigned at once."""
        group = self._group()
        interval_ms = self.play.shard.settings.streams_of("g").assignment_interval_ms
        is_due = (
            group is None
            or group.assigned_at_ms is None
            or self.play.now_ms - group.assigned_at_ms >= interval_ms
        )
        return "assigned at once" if is_due else "assigned later"

    def _call(
        self,
        member: StreamsThread,
        *,
        epoch: int | None = None,
        owned: TasksTuple | None = None,
        endpoint: tuple[str, int] | None = None,
    ) -> GroupCall:
        at = member.epoch if epoch is None else epoch
        return self.play.streams_call(
            member.member_id,
            at,
            plan=PLAN if at == 0 else None,
            owned=owned,
            process=member.process if at == 0 else None,
            timeout_ms=REBALANCE_TIMEOUT_MS if at == 0 else -1,
            instance=member.instance,
            endpoint=endpoint,
        )

    def ask(self, member: StreamsThread) -> GroupCall:
        """The member's next heartbeat, and its reaction to the response."""
        call = self._call(member, owned=member.tasks)
        member.hear(self.play.streams_answer(call).response)
        return call

    def _join(self, member_id: str, instance: str | None = None) -> GroupCall:
        return self.play.streams_call(
            member_id, plan=PLAN, process="late", timeout_ms=1, instance=instance
        )

    def _anybody(self) -> Iterator[Told]:
        play, group = self.play, self._group()
        count = 0 if group is None else group.member_count
        topics_are = "" if "in" in self.sizes else ", a topic is missing"
        if count < play.shard.settings.streams_of("g").max_size:
            condition = self._due() + topics_are
            yield "heartbeat of a new member", condition, lambda: self.ask(self.member())
        else:
            yield "heartbeat of a new member", "the group is full", lambda: self._join("late")
        yield (
            "heartbeat that is invalid",
            NOTHING,
            lambda: play.streams_call("new", plan=PLAN),
        )
        if count < play.shard.settings.streams_of("g").max_size:
            yield (
                "heartbeat with an invalid topology",
                NOTHING,
                lambda: play.streams_call("new", plan=topology(subtopology("0")), timeout_ms=1),
            )
            if group is not None:
                yield (
                    "heartbeat with another topology",
                    NOTHING,
                    lambda: play.streams_call(
                        "new", plan=topology(subtopology("9", "in")), timeout_ms=1
                    ),
                )
        yield "heartbeat of an unknown member", NOTHING, lambda: play.streams_call(STRANGER, 1)
        yield "leaving (-1) of an unknown member", NOTHING, lambda: play.streams_call(STRANGER, -1)
        yield (
            "temporary leave (-2) of an unknown member",
            NOTHING,
            lambda: play.streams_call(STRANGER, -2, instance="unknown"),
        )
        yield "OffsetCommit without a member", NOTHING, lambda: play.commit_call({("in", 0): 1})
        yield (
            "OffsetCommit of an unknown member",
            offsets_of(play, self.state()),
            lambda: play.commit_call({("in", 0): 1}, member_id=STRANGER, generation_id=1),
        )
        if group is None:
            return
        if not group.is_empty:
            yield "JoinGroup", NOTHING, lambda: play.join(version=3)
        yield (
            "heartbeat of a consumer",
            NOTHING,
            lambda: play.beat_call("c", topics=["in"], owned={}, timeout_ms=1),
        )
        if not play.shard.offsets.has_any("g"):
            yield "DeleteGroups", NOTHING, self._delete
        yield "the coordinator moves", NOTHING, lambda: play.reload()
        if not group.is_empty:
            if "in" in self.sizes:
                yield (
                    "a subscribed topic grows",
                    self._due(),
                    lambda: self._resize("in", 1),
                )
                yield "a subscribed topic is deleted", self._due(), lambda: self._resize("in", None)
            else:
                yield "the missing topic is created", self._due(), lambda: self._resize("in", 3)
        yield "another topic grows", NOTHING, lambda: self._resize("unread", 1)

    def _delete(self) -> GroupCall:
        request_id = len(self.play.calls)
        self.play.delete_group()
        return self.play.calls[request_id]

    def _resize(self, topic: str, by: int | None) -> None:
        if by is None:
            del self.sizes[topic]
        else:
            self.sizes[topic] = self.sizes.get(topic, 0) + by
        self.play.topics(self.sizes)

    def _is_free(
        self, group: StreamsGroup, member: StreamsThread, task: tuple[int, str, int]
    ) -> bool:
        runner = group.runner(task[1], task[2])
        return runner in (None, member.member_id)

    def _situation(self, member: StreamsThread, current: StreamsCurrentAssignment) -> str | None:
        """The condition of its next heartbeat."""
        group = self._group()
        assert group is not None
        if group.epoch > group.target_epoch and self._due() == "assigned at once":
            return None
        has = set(tasks_by_role(current.assigned))
        shall = set(tasks_by_role(group.target(member.member_id)))
        if current.state is MemberState.UNREVOKED:
            if has - shall:
                return None
            prefix = "it has revoked everything, "
        elif current.state is MemberState.STABLE and (current.member_epoch == group.target_epoch):
            return "it has its target"
        elif has - shall:
            return "it has tasks outside of its target"
        else:
            prefix = ""
        lacks = shall - has
        free = {task for task in lacks if self._is_free(group, member, task)}
        at_target = current.member_epoch == group.target_epoch
        if lacks == free:
            return f"{prefix}its additions are free"
        if prefix or not at_target or free:
            return f"{prefix}some of its additions are not free"
        return "none of its additions is free"

    def _member(self, member: StreamsThread) -> Iterator[Told]:
        group, play = self._group(), self.play
        if group is None or group.member(member.member_id) is None or not member.epoch:
            return
        who, current = member.member_id, group.current(member.member_id)
        settled = group.epoch == group.target_epoch
        if current.member_epoch == LEAVE_GROUP_STATIC_EPOCH:
            if self._due() == "assigned at once" and settled and "in" in self.sizes:
                yield (
                    "heartbeat of a new member",
                    "for one that left temporarily",
                    lambda: self._replace(member),
                )
            return
        situation = self._situation(member, current)
        if situation is not None:
            yield "heartbeat of a member", situation, lambda: self.ask(member)
        is_revoking = current.state is MemberState.UNREVOKED
        if is_revoking and (self._due() != "assigned at once" or settled):
            yield (
                "heartbeat of a member",
                "it has not revoked its tasks yet",
                lambda: self._call(member),
            )
        if member.instance is None:
            yield (
                "heartbeat of a member",
                f"its endpoint is new, {self._due()}",
                lambda: self._move(member),
            )
        yield (
            "heartbeat of a member",
            "its epoch is too high",
            lambda: self._call(member, epoch=member.epoch + 1, owned=TasksTuple()),
        )
        previous = current.previous_member_epoch
        if previous > 1:
            yield (
                "heartbeat of a member",
                "its epoch is too low",
                lambda: self._call(member, epoch=previous - 1, owned=TasksTuple()),
            )
        if situation == "it has its target":
            if 0 < previous < current.member_epoch:
                yield (
                    "heartbeat of a member",
                    "of its previous epoch, with tasks that it does not own",
                    lambda: self._call(
                        member, epoch=previous, owned=TasksTuple({}, {"0": frozenset({0})})
                    ),
                )
                yield (
                    "heartbeat of a member",
                    "of its previous epoch: the response was lost",
                    lambda: self._call(member, epoch=previous, owned=member.tasks),
                )
            yield "heartbeat of a member", "it joins again", lambda: self._call(member, epoch=0)
        if "in" in self.sizes:
            nowhere = TasksTuple({"0": frozenset({99})})
            yield (
                "heartbeat of a member",
                "it has a task that does not exist",
                lambda: self._call(member, owned=nowhere),
            )
        if member.instance is not None:
            yield (
                "heartbeat of a new member",
                "its instance id is in use",
                lambda: self._join("other", member.instance),
            )
            yield (
                "heartbeat of another's instance id",
                NOTHING,
                lambda: play.streams_call(STRANGER, 1, instance=member.instance),
            )
            yield "temporary leave (-2)", NOTHING, lambda: self._call(member, epoch=-2)
        left = "no member is left" if group.member_count == 1 else f"others are left, {self._due()}"
        yield "leaving (-1)", left, lambda: self.leave(member)
        for condition, at in (("in its epoch", 0), ("in another epoch", 1)):
            epoch = member.epoch + at
            yield (
                "OffsetCommit of a member",
                condition,
                lambda epoch=epoch: play.commit_call(  # type: ignore[misc]  # bound now
                    {("in", 0): 1}, member_id=who, generation_id=epoch
                ),
            )

    def _move(self, member: StreamsThread) -> GroupCall:
        call = self._call(member, owned=member.tasks, endpoint=("host", len(self.play.calls)))
        member.hear(self.play.streams_answer(call).response)
        return call

    def leave(self, member: StreamsThread) -> GroupCall:
        """The member leaves."""
        self.members.pop(member.member_id)
        return self._call(member, epoch=-1)

    def _replace(self, member: StreamsThread) -> GroupCall:
        self.members.pop(member.member_id)
        return self.ask(self.member(member.instance))

    def _timed(self) -> Iterator[Told]:
        group = self._group()
        if group is None or group.is_empty:
            return
        if group.epoch > group.target_epoch:
            interval_ms = self.play.shard.settings.streams_of("g").assignment_interval_ms
            yield "the assignment interval is over", NOTHING, lambda: self.play.tick(interval_ms)
            return
        quiet = [m for m in self.members.values() if group.member(m.member_id) and m.epoch > 0]
        if group.state == "Stable" and quiet:
            left = "others are left" if group.member_count > 1 else "no member is left"
            silent = quiet[0].member_id
            yield "a member's session is over", left, lambda: self._be_silent(silent)
        for member in quiet:
            if group.current(member.member_id).state is MemberState.UNREVOKED:
                yield "a member's rebalance timeout is over", NOTHING, self._keep

    def _be_silent(self, silent: str) -> None:
        """Let a session timeout pass in which all other members send heartbeats."""
        session_ms = self.play.shard.settings.streams_of("g").session_timeout_ms
        for duration_ms in (session_ms - 1_000, 1_000):
            for member in self.members.values():
                if member.member_id != silent:
                    self._call(member)
            self.play.tick(duration_ms)

    def _keep(self) -> None:
        """Let the rebalance timeout pass in which no member reports a change."""
        for member in self.members.values():
            self._call(member)
        self.play.tick(REBALANCE_TIMEOUT_MS)


Alter = Callable[[StreamsGroupScenario], object]


def streams_scenes() -> list[Callable[[], StreamsGroupScenario]]:
    """A group in each state, with the members that make a difference."""

    def new(scene: StreamsGroupScenario) -> None:
        scene.ask(scene.member())

    def static(scene: StreamsGroupScenario) -> None:
        scene.ask(scene.member("i"))

    def send_heartbeat(which: int) -> Alter:
        return lambda scene: scene.ask(list(scene.members.values())[which])

    def leave(which: int) -> Alter:
        return lambda scene: scene.leave(list(scene.members.values())[which])

    def rest(scene: StreamsGroupScenario) -> None:
        for _ in range(8):
            scene.play.tick(1_000)
            for member in scene.members.values():
                scene.ask(member)

    def wait(scene: StreamsGroupScenario) -> None:
        scene.play.tick(1_000)

    def commit(scene: StreamsGroupScenario) -> None:
        scene.play.commit({("in", 0): 1})

    def without(scene: StreamsGroupScenario) -> None:
        scene._resize("in", None)

    def again(scene: StreamsGroupScenario) -> None:
        scene._resize("in", 3)

    def grow(scene: StreamsGroupScenario) -> None:
        scene._resize("in", 1)

    def move(which: int) -> Alter:
        return lambda scene: scene._move(list(scene.members.values())[which])

    def step_out(which: int) -> Alter:
        return lambda scene: scene._call(list(scene.members.values())[which], epoch=-2)

    def scene(
        *acts: Alter, settings: GroupSettings = STREAMS
    ) -> Callable[[], StreamsGroupScenario]:
        def make() -> StreamsGroupScenario:
            made = StreamsGroupScenario(settings)
            for act in acts:
                act(made)
            return made

        return make

    return [
        scene(),
        scene(commit),
        scene(without),
        scene(new, leave(0)),
        scene(new, leave(0), without),
        scene(new, leave(0), settings=SLOW_STREAMS),
        scene(new),
        scene(new, settings=SLOW_STREAMS),
        scene(new, rest, settings=SLOW_STREAMS),
        scene(new, new, settings=SMALL_STREAMS),
        scene(new, new),
        scene(new, new, rest),
        scene(new, new, rest, settings=SMALL_STREAMS),
        scene(new, new, send_heartbeat(0)),
        scene(new, new, send_heartbeat(0), send_heartbeat(1)),
        scene(new, new, send_heartbeat(0), send_heartbeat(0)),
        scene(new, new, rest, new, send_heartbeat(0)),
        scene(new, new, rest, new, send_heartbeat(0), send_heartbeat(1)),
        scene(new, new, rest, new, send_heartbeat(0), send_heartbeat(1), send_heartbeat(2)),
        scene(new, new, rest, leave(0)),
        scene(new, new, new, rest, leave(0)),
        scene(new, new, settings=SLOW_STREAMS),
        scene(new, new, wait, settings=SLOW_STREAMS),
        scene(new, new, rest, new, settings=SLOW_STREAMS),
        scene(new, new, rest, leave(0), settings=SLOW_STREAMS),
        scene(new, without),
        scene(new, without, rest),
        scene(new, new, rest, without),
        scene(new, new, rest, without, rest),
        scene(new, new, rest, without, rest, again),
        scene(new, without, settings=SLOW_STREAMS),
        scene(new, without, rest, settings=SLOW_STREAMS),
        scene(without, new),
        scene(without, new, rest, again),
        scene(without, new, new),
        scene(new, without, send_heartbeat(0)),
        scene(new, without, send_heartbeat(0), again),
        scene(new, new, rest, without, send_heartbeat(0), send_heartbeat(1), again),
        scene(new, new, rest, without, settings=SLOW_STREAMS),
        scene(new, new, rest, without, settings=SMALL_STREAMS),
        scene(new, leave(0), without, settings=SLOW_STREAMS),
        scene(new, rest, without, settings=SLOW_STREAMS),
        scene(new, rest, move(0), move(0), settings=SLOW_STREAMS),
        scene(new, rest, grow, new, settings=SLOW_STREAMS),
        scene(new, move(0), settings=SLOW_STREAMS),
        scene(new, rest, new, new, settings=SLOW_STREAMS),
        scene(new, new, wait, new, settings=SLOW_STREAMS),
        scene(new, rest, new, send_heartbeat(0), new, settings=SLOW_STREAMS),
        scene(
            new,
            rest,
            new,
            send_heartbeat(0),
            send_heartbeat(0),
            send_heartbeat(1),
            settings=SLOW_STREAMS,
        ),
        scene(new, new, wait, without, settings=SLOW_STREAMS),
        scene(new, rest, new, without, settings=SLOW_STREAMS),
        scene(static),
        scene(static, new, rest),
        scene(static, step_out(0)),
        scene(static, new, rest, step_out(0)),
    ]
