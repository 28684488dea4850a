"""All events of a consumer group, in every state that it can reach."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from odradek.cluster.metadata.group_settings import ConsumerGroupSettings
from odradek.coordinator.group.consumer.group import ConsumerGroup
from odradek.coordinator.group.consumer.records import ConsumerCurrentAssignment
from odradek.coordinator.group.modern.heartbeats import LEAVE_GROUP_STATIC_EPOCH
from odradek.coordinator.group.modern.records import MemberState
from odradek.coordinator.group.settings import GroupSettings
from odradek.protocol.messages.groups import ConsumerGroupHeartbeatResponse
from odradek.protocol.types import Uuid
from tests.coordinator.group.consumer.test_classic_members import Classic as ClassicConsumer
from tests.support.consumer_playbook import NO_INTERVAL, REBALANCE_TIMEOUT_MS, Consumer, Stage
from tests.support.group_cases import (
    NONE,
    STRANGER,
    Told,
    TransitionCase,
    leave_classic,
    offsets_of,
)
from tests.support.group_playbook import GroupCall
from tests.support.transition_table import NOTHING, TransitionKey

SLOW = GroupSettings(
    initial_rebalance_delay_ms=0, consumer=ConsumerGroupSettings(assignment_interval_ms=1_000)
)
SMALL = GroupSettings(
    initial_rebalance_delay_ms=0,
    consumer=ConsumerGroupSettings(assignment_interval_ms=0, max_size=2),
)


class ConsumerGroupScenario:
    """A consumer group in some state, and all events that can happen to it now."""

    def __init__(self, settings: GroupSettings = NO_INTERVAL) -> None:
        self.play = Stage({"a": 4, "b": 2, "unread": 1}, settings)
        self.members: dict[str, Consumer] = {}
        self.classic: list[ClassicConsumer] = []
        self.sizes = {"a": 4, "b": 2, "unread": 1}

    def state(self) -> str:
        if "g" in self.play.shard.consumers:
            return str(self.play.consumers().state)
        return NONE if self.play.shard.classic.group("g") is None else "classic group"

    def member(self, **given: str) -> Consumer:
        member = Consumer(self.play, f"m{len(self.play.calls)}", **given)
        self.members[member.member_id] = member
        return member

    def cases(self) -> Iterator[TransitionCase]:
        """The possible events; of several with the same key any may be taken."""
        state = self.state()
        if state == "classic group":
            return
        for event, condition, act in self._anybody():
            yield TransitionCase(TransitionKey(state, event, condition), act)
        for member_id in list(self.members):
            for event, condition, act in self._member(self.members[member_id]):
                yield TransitionCase(TransitionKey(state, event, condition), act)
        for classic in self.classic:
            for event, condition, act in self._classic(classic):
                yield TransitionCase(TransitionKey(state, event, condition), act)
        for event, condition, act in self._timed():
            yield TransitionCase(TransitionKey(state, event, condition), act, takes_time=True)

    def _offsets(self) -> str:
        return offsets_of(self.play, self.state())

    def _group(self) -> ConsumerGroup | None:
        return self.play.shard.consumers.get("g")

    def _due(self) -> str:
        """Whether a new epoch is assigned at once."""
        group = self._group()
        interval_ms = self.play.shard.settings.consumer.assignment_interval_ms
        is_due = (
            group is None
            or group.assigned_at_ms is None
            or self.play.now_ms - group.assigned_at_ms >= interval_ms
        )
        return "assigned at once" if is_due else "assigned later"

    def _ask(self, member: Consumer) -> GroupCall:
        """The member's next heartbeat, and its reaction to the response."""
        call = member.call()
        member.hear(call.response(ConsumerGroupHeartbeatResponse))
        return call

    def _anybody(self) -> Iterator[Told]:
        play, group = self.play, self._group()
        count = 0 if group is None else group.member_count
        if count < play.shard.settings.consumer.max_size:
            yield "heartbeat of a new member", self._due(), lambda: self._ask(self.member())
        else:
            yield (
                "heartbeat of a new member",
                "the group is full",
                lambda: play.beat_call("late", topics=["a"], owned={}, timeout_ms=1),
            )
        yield "heartbeat that is invalid", NOTHING, lambda: play.beat_call("new", 0)
        yield (
            "heartbeat for an assignor that is not offered",
            NOTHING,
            lambda: play.beat_call("new", topics=["a"], owned={}, timeout_ms=1, assignor="mine"),
        )
        yield "heartbeat of an unknown member", NOTHING, lambda: play.beat_call(STRANGER, 1)
        yield "leaving (-1) of an unknown member", NOTHING, lambda: play.beat_call(STRANGER, -1)
        yield (
            "temporary leave (-2) of an unknown member",
            NOTHING,
            lambda: play.beat_call(STRANGER, -2, instance="unknown"),
        )
        yield "OffsetCommit without a member", NOTHING, lambda: play.commit_call({("a", 0): 1})
        yield (
            "OffsetCommit of an unknown member",
            self._offsets(),
            lambda: play.commit_call({("a", 0): 1}, member_id=STRANGER, generation_id=1),
        )
        readable = ClassicConsumer(play).protocols()
        has_room = count < play.shard.settings.consumer.max_size
        if group is None or group.is_empty or has_room:
            yield (
                "JoinGroup with an unknown id",
                NOTHING if group is None or group.is_empty else self._due(),
                lambda: play.join(f"own-{len(play.calls)}", protocols=readable),
            )
        if group is None:
            return
        yield (
            "JoinGroup without an id",
            "of a consumer" if has_room else "the group is full",
            lambda: play.join(protocols=readable),
        )
        if not group.is_empty:
            yield (
                "JoinGroup without an id",
                "of another type",
                lambda: play.join(protocol_type="connect"),
            )
        yield "SyncGroup of an unknown member", NOTHING, lambda: play.sync(STRANGER, 1)
        yield "Heartbeat of an unknown member", NOTHING, lambda: play.heartbeat_call(STRANGER, 1)
        yield "LeaveGroup of an unknown member", NOTHING, lambda: leave_classic(play, STRANGER)
        if not play.shard.offsets.has_any("g"):
            yield "DeleteGroups", NOTHING, self._delete
        yield "the coordinator moves", NOTHING, lambda: play.reload()
        if "a" in group.topic_names():
            yield "a subscribed topic grows", self._due(), self._grow
        yield "another topic grows", NOTHING, lambda: self._resize("unread")

    def _delete(self) -> GroupCall:
        request_id = len(self.play.calls)
        self.play.delete_group()
        return self.play.calls[request_id]

    def _grow(self) -> None:
        self._resize("a")

    def _resize(self, topic: str) -> None:
        self.sizes[topic] += 1
        self.play.topics(self.sizes)

    def _situation(self, member: Consumer, current: ConsumerCurrentAssignment) -> str | None:
        """The condition of its next heartbeat."""
        group = self._group()
        assert group is not None
        if group.epoch > group.target_epoch and self._due() == "assigned at once":
            return None
        target = group.target(member.member_id)
        has = {(topic, index) for topic, epochs in current.assigned.items() for index in epochs}
        shall = {(topic, index) for topic, indexes in target.items() for index in indexes}
        if current.state is MemberState.UNREVOKED:
            if has - shall:
                return None
            prefix = "it has revoked everything, "
        elif current.state is MemberState.STABLE and current.member_epoch == group.target_epoch:
            return "it has its target"
        elif has - shall:
            return "it owns partitions outside of its target"
        else:
            prefix = ""
        lacks = shall - has
        free = {p for p in lacks if group.is_free_for(member.member_id, *p)}
        at_target = current.member_epoch == group.target_epoch
        if lacks == free:
            return f"{prefix}its additions are free"
        if prefix or not at_target or free:
            return f"{prefix}some of its additions are not free"
        return "none of its additions is free"

    def _member(self, member: Consumer) -> Iterator[Told]:
        group, play = self._group(), self.play
        if group is None or group.member(member.member_id) is None or not member.epoch:
            return
        who, current = member.member_id, group.current(member.member_id)
        instance = member.options.get("instance")
        if current.member_epoch == LEAVE_GROUP_STATIC_EPOCH:
            if self._due() == "assigned at once" and group.epoch == group.target_epoch:
                yield (
                    "heartbeat of a new member",
                    "for one that left temporarily",
                    lambda: self._replace(member),
                )
            return
        situation = self._situation(member, current)
        if situation is not None:
            yield "heartbeat of a member", situation, lambda: self._ask(member)
        if current.state is MemberState.UNREVOKED:
            owned = self._named(current.assigned, current.pending_revocation)
            if self._due() != "assigned at once" or group.epoch == group.target_epoch:
                yield (
                    "heartbeat of a member",
                    "it has not revoked its partitions yet",
                    lambda: play.beat_call(who, member.epoch, owned=owned),
                )
        if instance is None and self._due() == "assigned at once":
            yield (
                "heartbeat of a member",
                "its subscription is new, assigned at once",
                lambda: self._subscribe(member),
            )
        elif instance is None:
            yield (
                "heartbeat of a member",
                "its subscription is new, assigned later",
                lambda: self._subscribe(member),
            )
        yield (
            "heartbeat of a member",
            "its epoch is too high",
            lambda: play.beat_call(who, member.epoch + 1, owned={}),
        )
        if current.previous_member_epoch > 1:
            yield (
                "heartbeat of a member",
                "its epoch is too low",
                lambda: play.beat_call(who, current.previous_member_epoch - 1, owned={}),
            )
        if 0 < current.previous_member_epoch < current.member_epoch:
            yield (
                "heartbeat of a member",
                "of its previous epoch, with partitions that it does not own",
                lambda: play.beat_call(who, current.previous_member_epoch, owned={"unread": [0]}),
            )
            if situation == "it has its target":
                owned = self._named(current.assigned)
                yield (
                    "heartbeat of a member",
                    "of its previous epoch: the response was lost",
                    lambda: play.beat_call(who, current.previous_member_epoch, owned=owned),
                )
        if situation == "it has its target":
            yield (
                "heartbeat of a member",
                "it joins again",
                lambda: play.beat_call(
                    who,
                    topics=member.topics,
                    owned={},
                    timeout_ms=REBALANCE_TIMEOUT_MS,
                    instance=instance,
                ),
            )
        if instance is not None:
            yield (
                "heartbeat of a new member",
                "its instance id is in use",
                lambda: play.beat_call(
                    "other", topics=["a"], owned={}, timeout_ms=1, instance=instance
                ),
            )
            yield (
                "heartbeat of another's instance id",
                NOTHING,
                lambda: play.beat_call(STRANGER, 1, instance=instance),
            )
            yield (
                "temporary leave (-2)",
                NOTHING,
                lambda: play.beat_call(who, -2, instance=instance),
            )
        others = group.member_count - 1
        if not others:
            left = "no member is left"
        elif group.classic_count == others:
            left = "only classic members are left"
        else:
            left = f"others are left, {self._due()}"
        yield "leaving (-1)", left, lambda: self._leave(member)
        yield "LeaveGroup of a member", left, lambda: self._remove(member)
        yield (
            "OffsetCommit of a member",
            "in its epoch",
            lambda: play.commit_call({("a", 0): 1}, member_id=who, generation_id=member.epoch),
        )
        yield (
            "OffsetCommit of a member",
            "in another epoch",
            lambda: play.commit_call({("a", 0): 1}, member_id=who, generation_id=member.epoch + 1),
        )

    def _named(self, *topics: Mapping[Uuid, Mapping[int, int]]) -> dict[str, list[int]]:
        named: dict[str, list[int]] = {}
        for each in topics:
            for topic_id, epochs in each.items():
                named.setdefault(self.play.name_of(topic_id), []).extend(epochs)
        return named

    def _subscribe(self, member: Consumer) -> GroupCall:
        member.topics = ["b"] if member.topics == ["a"] else ["a"]
        owned = {name: sorted(indexes) for name, indexes in member.owned.items() if indexes}
        call = self.play.beat_call(
            member.member_id, member.epoch, topics=member.topics, owned=owned
        )
        member.hear(call.response(ConsumerGroupHeartbeatResponse))
        return call

    def _leave(self, member: Consumer) -> GroupCall:
        self.members.pop(member.member_id)
        return self.play.beat_call(member.member_id, -1, instance=member.options.get("instance"))

    def _remove(self, member: Consumer) -> GroupCall:
        self.members.pop(member.member_id)
        return leave_classic(self.play, member.member_id)

    def _replace(self, member: Consumer) -> GroupCall:
        self.members.pop(member.member_id)
        return self._ask(self.member(**member.options))

    def _classic(self, member: ClassicConsumer) -> Iterator[Told]:
        group, play = self._group(), self.play
        if group is None or group.member(member.member_id) is None:
            return
        who, generation = member.member_id, member.generation_id
        current = group.current(who)
        is_called = (
            current.member_epoch < group.epoch
            or current.state is MemberState.UNREVOKED
            or (
                current.state is MemberState.UNRELEASED and not group.is_waiting_for_partitions(who)
            )
        )
        condition = "a step is due" if is_called else "no step is due"
        yield (
            "Heartbeat of a classic member",
            condition,
            lambda: play.heartbeat_call(who, generation),
        )
        yield (
            "Heartbeat of a classic member",
            "in another generation",
            lambda: play.heartbeat_call(who, generation + 1),
        )
        is_behind = (
            group.epoch > current.member_epoch and current.state is not MemberState.UNREVOKED
        )
        yield (
            "SyncGroup of a classic member",
            "the group's epoch is ahead" if is_behind else "it has joined",
            lambda: play.sync(who, generation),
        )
        yield (
            "SyncGroup of a classic member",
            "in another generation",
            lambda: play.sync(who, generation + 1),
        )
        yield (
            "JoinGroup of a classic member",
            condition,
            lambda: play.join(who, protocols=member.protocols()),
        )
        if group.member_count > 1:
            yield (
                "LeaveGroup of a classic member",
                self._due(),
                lambda: leave_classic(play, who),
            )

    def _timed(self) -> Iterator[Told]:
        group = self._group()
        if group is None:
            return
        if group.epoch > group.target_epoch:
            yield (
                "the assignment interval is over",
                NOTHING,
                lambda: self.play.tick(self.play.shard.settings.consumer.assignment_interval_ms),
            )
            return
        quiet = [
            member
            for member in self.members.values()
            if group.member(member.member_id) is not None and member.epoch > 0
        ]
        if group.state == "Stable" and quiet and not self.classic:
            left = "others are left" if group.member_count > 1 else "no member is left"
            yield "a member's session is over", left, lambda: self._be_silent(quiet[0].member_id)
        for member in quiet:
            state = group.current(member.member_id).state
            if state is MemberState.UNREVOKED and not self.classic:
                yield (
                    "a member's rebalance timeout is over",
                    NOTHING,
                    partial(self._keep, member.member_id),
                )

    def _be_silent(self, silent: str) -> None:
        """Let a session timeout pass in which all other members send heartbeats."""
        session_ms = self.play.shard.settings.consumer.session_timeout_ms
        for duration_ms in (session_ms - 1_000, 1_000):
            for member in self.members.values():
                if member.member_id != silent:
                    self.play.beat_call(member.member_id, member.epoch)
            self.play.tick(duration_ms)

    def _keep(self, stubborn: str) -> None:
        """Let the rebalance timeout pass in which no member reports a change."""
        for member in self.members.values():
            self.play.beat_call(member.member_id, member.epoch)
        self.play.tick(REBALANCE_TIMEOUT_MS)
        assert self.play.consumers().member(stubborn) is None


Alter = Callable[[ConsumerGroupScenario], object]


def consumer_scenes() -> list[Callable[[], ConsumerGroupScenario]]:
    """A group in each state, with the members that make a difference."""

    def new(scene: ConsumerGroupScenario) -> None:
        scene.member().send_heartbeat()

    def static(scene: ConsumerGroupScenario) -> None:
        scene.member(instance="i").send_heartbeat()

    def classic(scene: ConsumerGroupScenario) -> None:
        member = ClassicConsumer(scene.play)
        scene.classic.append(member)
        member.join()
        member.sync()

    def send_heartbeat(which: int) -> Alter:
        return lambda scene: list(scene.members.values())[which].send_heartbeat()

    def leave(which: int) -> Alter:
        return lambda scene: scene._leave(list(scene.members.values())[which])

    def rest(scene: ConsumerGroupScenario) -> None:
        for _ in range(6):
            scene.play.tick(1_000)
            for member in scene.members.values():
                member.send_heartbeat()
            for each in scene.classic:
                each.poll()

    def step_out(which: int) -> Alter:
        def act(scene: ConsumerGroupScenario) -> None:
            member = list(scene.members.values())[which]
            instance = member.options["instance"]
            scene.play.send_heartbeat(member.member_id, -2, instance=instance)

        return act

    def wait(scene: ConsumerGroupScenario) -> None:
        scene.play.tick(1_000)

    def scene(
        *acts: Alter, settings: GroupSettings = NO_INTERVAL
    ) -> Callable[[], ConsumerGroupScenario]:
        def make() -> ConsumerGroupScenario:
            made = ConsumerGroupScenario(settings)
            for act in acts:
                act(made)
            return made

        return make

    def commit(scene: ConsumerGroupScenario) -> None:
        scene.play.commit({("a", 0): 1})

    def subscribe(which: int) -> Alter:
        return lambda scene: scene._subscribe(list(scene.members.values())[which])

    return [
        scene(),
        scene(commit),
        scene(new, leave(0)),
        scene(new),
        scene(new, settings=SLOW),
        scene(new, classic, settings=SLOW),
        scene(new, subscribe(0), settings=SLOW),
        scene(new, leave(0), settings=SLOW),
        scene(new, rest, settings=SLOW),
        scene(new, new, settings=SMALL),
        scene(new, new),
        scene(new, new, rest),
        scene(new, new, rest, settings=SMALL),
        scene(new, new, send_heartbeat(0)),
        scene(new, new, send_heartbeat(0), send_heartbeat(1)),
        scene(new, new, rest, new, send_heartbeat(0)),
        scene(new, new, rest, new, send_heartbeat(0), send_heartbeat(1)),
        scene(new, new, rest, new, send_heartbeat(0), new),
        scene(new, new, rest, new, send_heartbeat(0), new, send_heartbeat(0), send_heartbeat(1)),
        scene(new, new, rest, leave(0)),
        scene(new, new, new, rest, leave(0)),
        scene(new, new, settings=SLOW),
        scene(new, new, wait, settings=SLOW),
        scene(new, new, rest, new, settings=SLOW),
        scene(new, new, rest, new, wait, send_heartbeat(0), new, settings=SLOW),
        scene(new, new, rest, leave(0), settings=SLOW),
        scene(static),
        scene(static, new, rest),
        scene(static, new, rest, new),
        scene(static, step_out(0)),
        scene(static, new, rest, step_out(0)),
        scene(new, classic),
        scene(new, classic, rest),
        scene(new, classic, rest, new),
        scene(new, new, rest, classic, rest),
        scene(new, new, rest, classic, rest, leave(0)),
        scene(new, classic, rest, new, rest, settings=SLOW),
        scene(new, rest, classic, settings=SLOW),
        scene(new, new, rest, new, subscribe(0), send_heartbeat(1), send_heartbeat(2)),
        scene(new, new, rest, new, send_heartbeat(0), new, send_heartbeat(1)),
        scene(new, subscribe(0)),
        scene(new, new, subscribe(1), rest),
        scene(new, new, subscribe(1)),
        scene(new, new, subscribe(1), send_heartbeat(1)),
        scene(new, new, subscribe(1), rest, subscribe(1)),
    ]
