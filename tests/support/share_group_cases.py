"""All events of a share group, in every state that it can reach."""

from collections.abc import Callable, Iterator

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.requests import InitializeStates
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.share import ShareGroupHeartbeatResponse
from tests.support.consumer_playbook import id_of
from tests.support.group_cases import NONE, STRANGER, Told, TransitionCase
from tests.support.group_playbook import GroupCall
from tests.support.share_group_playbook import AT_ONCE, SESSION_MS, ShareConsumerMember, ShareStage
from tests.support.transition_table import NOTHING, TransitionKey

GROUP = "g"
INTERVAL_MS = 1_000
SLOW_SHARE = GroupSettings(
    initial_rebalance_delay_ms=0,
    share=ShareGroupSettings(assignment_interval_ms=INTERVAL_MS, max_size=4),
)
SMALL_SHARE = GroupSettings(
    initial_rebalance_delay_ms=0, share=ShareGroupSettings(assignment_interval_ms=0, max_size=2)
)
FAILURE = ErrorCode.COORDINATOR_NOT_AVAILABLE


class ShareGroupScenario:
    """A share group in some state, and all events that can happen to it now."""

    def __init__(self, settings: GroupSettings = AT_ONCE) -> None:
        self.sizes = {"a": 2, "b": 1, "unread": 1}
        self.play = ShareStage(self.sizes, settings)
        self.members: dict[str, ShareConsumerMember] = {}

    def state(self) -> str:
        group = self._group()
        return NONE if group is None else str(group.state)

    def cases(self) -> Iterator[TransitionCase]:
        """The possible events; of several with the same key any may be taken."""
        state = self.state()
        for event, condition, act in (*self._anybody(), *self._offsets(), *self._reports()):
            yield TransitionCase(TransitionKey(state, event, condition), act)
        for member in list(self.members.values()):
            for event, condition, act in self._member(member):
                yield TransitionCase(TransitionKey(state, event, condition), act)
        for event, condition, act in self._timed():
            yield TransitionCase(TransitionKey(state, event, condition), act, takes_time=True)

    def _group(self) -> ShareGroup | None:
        return self.play.shard.shares.get(GROUP)

    def _due(self) -> str:
        """Whether a new epoch is assigned at once."""
        group, interval_ms = self._group(), self.play.shard.settings.share.assignment_interval_ms
        at_ms = None if group is None else group.assigned_at_ms
        is_due = at_ms is None or self.play.now_ms - at_ms >= interval_ms
        return "assigned at once" if is_due else "assigned later"

    def _missing(self, *topics: str) -> str:
        """Whether states must be requested, for these topics and the members' subscriptions."""
        group = self._group()
        names = {*topics, *(() if group is None else group.topic_names())}
        for name in names & self.sizes.keys():
            states = None if group is None else group.states
            if states is None:
                return ", states are missing"
            if id_of(name) in states.deleting:
                continue
            known = 0
            for each in (states.initializing, states.initialized):
                found = each.get(id_of(name))
                known += 0 if found is None else len(found.indexes)
            if known < self.sizes[name]:
                return ", states are missing"
        return ""

    # -- any member -------------------------------------------------------------------------------

    def ask(self, member: ShareConsumerMember) -> GroupCall:
        """The member's next heartbeat, and its reaction to the response."""
        topics = member.topics if member.epoch == 0 else None
        return self._hear(member, self._call(member.member_id, member.epoch, topics))

    def _call(self, member_id: str, epoch: int = 0, topics: list[str] | None = None) -> GroupCall:
        return self.play.share_call(member_id, epoch, group=GROUP, topics=topics)

    def _hear(self, member: ShareConsumerMember, call: GroupCall) -> GroupCall:
        member.epoch = call.response(ShareGroupHeartbeatResponse).member_epoch
        return call

    def member(self, *topics: str) -> ShareConsumerMember:
        """A new member."""
        name = f"m{len(self.play.calls)}-{len(self.members)}"
        member = ShareConsumerMember(self.play, name, topics=topics or ("a",))
        self.members[member.member_id] = member
        return member

    def _anybody(self) -> Iterator[Told]:
        play, group = self.play, self._group()
        count = 0 if group is None else group.member_count
        if count < play.shard.settings.share.max_size:
            condition = self._due() + self._missing("a")
            yield "heartbeat of a new member", condition, lambda: self.ask(self.member())
        else:
            join: Callable[[], GroupCall] = lambda: self._call("late", 0, ["a"])  # noqa: E731
            yield "heartbeat of a new member", "the group is full", join
        yield "heartbeat that is invalid", NOTHING, lambda: self._call("new")
        if count < play.shard.settings.share.max_size:
            yield "heartbeat of an unknown member", NOTHING, lambda: self._call(STRANGER, 1)
        yield "leaving (-1) of an unknown member", NOTHING, lambda: self._call(STRANGER, -1)
        if group is None:
            return
        yield (
            "heartbeat of a consumer",
            NOTHING,
            lambda: play.beat_call(STRANGER, topics=["a"], owned={}, timeout_ms=1),
        )
        yield "OffsetCommit without a member", NOTHING, lambda: play.commit_call({("a", 0): 1})
        yield "the coordinator moves", NOTHING, lambda: play.reload()
        yield "another topic grows", NOTHING, lambda: self._resize("unread")
        if "a" in group.topic_names():
            grown = "" if id_of("a") in group.states.deleting else ", states are missing"
            yield (
                "a subscribed topic grows",
                self._due() + grown,
                lambda: self._resize("a"),
            )

    def _resize(self, topic: str) -> None:
        self.sizes[topic] += 1
        self.play.topics(self.sizes)

    # -- offsets, and what is to be done with states ----------------------------------------------

    def _offsets(self) -> Iterator[Told]:
        play, group = self.play, self._group()
        if group is None:
            begins, known = NOTHING, ""
        elif group.states.deleting and group.is_empty:
            begins, known = "states are being deleted", ""
        else:
            begins = "it has members" if not group.is_empty else "it has none"
            known = "it has members" if not group.is_empty else ""
        yield "AlterShareGroupOffsets", begins, lambda: play.alter({"a": {0: 5}}, group=GROUP)
        yield (
            "AlterShareGroupOffsets of topics that do not exist",
            begins,
            lambda: play.alter({"gone": {0: 5}}, group=GROUP),
        )
        if not known and group is not None:
            states = group.states
            topic_id = id_of("a")
            if topic_id in states.deleting:
                known = "its states are being deleted"
            elif topic_id in states.initializing or topic_id in states.initialized:
                known = "it has states of the topic"
            else:
                known = "it has none of the topic"
        yield (
            "DeleteShareGroupOffsets",
            known or NOTHING,
            lambda: play.forget("a", group=GROUP),
        )
        rest = NOTHING
        if group is not None and group.is_empty:
            is_new = bool(group.states.initializing or group.states.initialized)
            rest = "it has no states"
            if is_new:
                rest = "it has states"
            elif group.states.deleting:
                rest = "its states are being deleted"
        yield "DeleteGroups", rest, lambda: play.delete_call(GROUP)

    def _reports(self) -> Iterator[Told]:
        """The reports on the oldest request."""
        if not self.play.sent:
            return
        group, first = self._group(), self.play.sent[0]
        what = "initialized" if isinstance(first, InitializeStates) else "deleted"
        rest = NOTHING
        if group is not None:
            rest = "the group has members" if not group.is_empty else "the group has none"
        yield f"states have been {what}", rest, lambda: self._report(None)
        yield f"states could not be {what}", rest, lambda: self._report(FAILURE)

    def _report(self, code: ErrorCode | None) -> None:
        instruction = self.play.sent.pop(0)
        failing = None if code is None else dict.fromkeys(self.sizes, code)
        self.play.report(instruction, failing)

    # -- members ----------------------------------------------------------------------------------

    def _member(self, member: ShareConsumerMember) -> Iterator[Told]:
        group = self._group()
        if group is None or group.member(member.member_id) is None or not member.epoch:
            return
        who, current = member.member_id, group.current(member.member_id)
        event = "heartbeat of a member"
        if group.epoch > group.target_epoch and self._due() == "assigned at once":
            situation = "an assignment is due"
        elif current.member_epoch == group.target_epoch:
            situation = "it has its target"
        else:
            situation = "it has a new assignment"
        yield event, situation, lambda: self.ask(member)
        if situation == "it has its target":
            again = list(member.topics)
            yield event, "it joins again", lambda: self._hear(member, self._call(who, 0, again))
        yield event, "its epoch is too high", lambda: self._call(who, current.member_epoch + 1)
        if current.previous_member_epoch > 1:
            low = current.previous_member_epoch - 1
            yield event, "its epoch is too low", lambda: self._call(who, low)
        if situation == "it has its target" and current.previous_member_epoch > 0:
            before = current.previous_member_epoch
            yield (
                event,
                "of its previous epoch: the response was lost",
                lambda: self._call(who, before),
            )
        other = "b" if member.topics == ["a"] else "a"
        # The partitions assigned before may be assigned to no member now.
        left = {
            name
            for member_id, each in group.members()
            if member_id != who
            for name in each.topic_names
        }
        condition = f"its subscription is new, {self._due()}{self._lacks(left | {other})}"
        yield event, condition, lambda: self._subscribe(member, other)
        others = f"others are left, {self._due()}{self._lacks(left)}"
        if group.member_count == 1:
            others = f"no member is left, {self._due()}"
        yield "leaving (-1)", others, lambda: self._leave(member)

    def _lacks(self, names: set[str]) -> str:
        """As `_missing`, of these topics only."""
        group = self._group()
        assert group is not None
        for name in names:
            if id_of(name) in group.states.deleting:
                continue
            known = 0
            for each in (group.states.initializing, group.states.initialized):
                found = each.get(id_of(name))
                known += 0 if found is None else len(found.indexes)
            if known < self.sizes[name]:
                return ", states are missing"
        return ""

    def _subscribe(self, member: ShareConsumerMember, topic: str) -> GroupCall:
        member.topics = [topic]
        return self._hear(member, self._call(member.member_id, member.epoch, [topic]))

    def _leave(self, member: ShareConsumerMember) -> GroupCall:
        self.members.pop(member.member_id)
        return self._call(member.member_id, -1)

    # -- time -------------------------------------------------------------------------------------

    def _timed(self) -> Iterator[Told]:
        group, play = self._group(), self.play
        if group is None or group.is_empty or play.sent:
            return
        if group.epoch > group.target_epoch and self._due() == "assigned later":
            yield "the assignment interval is over", NOTHING, lambda: play.tick(INTERVAL_MS)
        elif group.epoch == group.target_epoch and not group.states.initializing:
            if group.member_count == 1:
                yield "a member's session is over", "no member is left", self._expire
            else:
                yield "a member's session is over", "others are left", self._expire_one

    def _expire(self) -> None:
        self.play.tick(SESSION_MS)

    def _expire_one(self) -> None:
        self.play.tick(SESSION_MS // 2)
        group = self._group()
        assert group is not None
        for member_id, _ in list(group.members())[1:]:
            self._call(member_id, group.current(member_id).member_epoch)
        self.play.tick(SESSION_MS // 2 + 1)


def _made(scene: ShareGroupScenario, *members: ShareConsumerMember) -> ShareGroupScenario:
    """Members join, and the states are initialized."""
    for member in members:
        scene.ask(member)
    scene.play.keep_states()
    for member in members:
        scene.ask(member)
    return scene


def _joined(
    settings: GroupSettings = AT_ONCE, count: int = 1, *, is_made: bool = True
) -> ShareGroupScenario:
    scene = ShareGroupScenario(settings)
    members = [scene.member() for _ in range(count)]
    if is_made:
        return _made(scene, *members)
    for member in members:
        scene.ask(member)
    return scene


def _left(*, is_made: bool) -> ShareGroupScenario:
    scene = _joined(is_made=is_made)
    for member_id in list(scene.members):
        scene.play.share_call(member_id, -1, group=GROUP)
    scene.members.clear()
    return scene


def _altered() -> ShareGroupScenario:
    scene = ShareGroupScenario()
    scene.play.alter({"a": {0: 5}}, group=GROUP)
    return scene


def _with(
    make: Callable[[], ShareGroupScenario], *acts: Callable[[ShareGroupScenario], object]
) -> Callable[[], ShareGroupScenario]:
    def scene() -> ShareGroupScenario:
        made = make()
        for act in acts:
            act(made)
        return made

    return scene


def share_scenes() -> list[Callable[[], ShareGroupScenario]]:
    """Groups in every state and condition of the table."""

    def join(scene: ShareGroupScenario) -> object:
        return scene.ask(scene.member())

    def join_other(scene: ShareGroupScenario) -> object:
        return scene.ask(scene.member("b"))

    def fail(scene: ShareGroupScenario) -> None:
        scene._report(FAILURE)

    def forget(scene: ShareGroupScenario) -> object:
        return scene.play.forget("a", group=GROUP)

    def delete(scene: ShareGroupScenario) -> object:
        return scene.play.delete_call(GROUP)

    def wait(scene: ShareGroupScenario) -> None:
        scene.play.tick(INTERVAL_MS)

    def pend(scene: ShareGroupScenario) -> None:
        """An assignment is due for which no timer has fired yet."""
        scene.play.now_ms += INTERVAL_MS

    def keep(scene: ShareGroupScenario) -> object:
        return scene.play.keep_states()

    def alter(scene: ShareGroupScenario) -> object:
        return scene.play.alter({"a": {0: 9}}, group=GROUP)

    def report(scene: ShareGroupScenario) -> None:
        scene._report(None)

    def leave(scene: ShareGroupScenario) -> None:
        for member in list(scene.members.values()):
            scene._leave(member)

    def stay(scene: ShareGroupScenario) -> object:
        return [scene.ask(member) for member in scene.members.values()]

    at_rest = lambda: _left(is_made=True)  # noqa: E731
    unmade = lambda: _left(is_made=False)  # noqa: E731
    made = lambda: _joined()  # noqa: E731
    slow = lambda: _joined(SLOW_SHARE)  # noqa: E731
    return [
        ShareGroupScenario,
        lambda: _joined(is_made=False),
        made,
        lambda: _joined(count=2),
        lambda: _joined(SMALL_SHARE, 2),
        _with(lambda: _joined(is_made=False), fail),
        _with(made, join),
        _with(made, join, stay),
        _with(made, join_other),
        _with(made, join_other, keep),
        _with(made, join_other, keep, stay),
        slow,
        _with(slow, join),
        _with(slow, join, pend),
        _with(slow, pend),
        _with(slow, wait),
        _with(slow, wait, join),
        _with(slow, join, wait),
        _with(lambda: _joined(SLOW_SHARE, is_made=False), join_other),
        at_rest,
        unmade,
        _with(unmade, keep),
        _with(unmade, fail),
        _with(at_rest, forget),
        _with(at_rest, forget, keep),
        _with(at_rest, forget, join),
        _with(at_rest, delete),
        _with(at_rest, delete, join),
        _with(at_rest, alter),
        _with(at_rest, alter, join),
        _with(at_rest, delete, keep),
        _altered,
        _with(_altered, join),
        _with(_altered, keep),
        _with(_altered, delete),
        _with(at_rest, delete, delete, report),
        _with(at_rest, forget, delete, report),
        _with(at_rest, alter, forget, report),
        _with(at_rest, forget, forget, join, report),
        _with(slow, leave),
        _with(slow, leave, forget, keep),
        _with(slow, leave, forget, join),
        _with(lambda: _joined(SLOW_SHARE, is_made=False), keep),
        _with(ShareGroupScenario, join_other, keep),
        _with(lambda: ShareGroupScenario(SLOW_SHARE), join, join_other, keep),
        _with(lambda: ShareGroupScenario(SLOW_SHARE), join_other, keep),
    ]
