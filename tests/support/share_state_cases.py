"""All events of a share state: in the group coordinator, and in the share coordinator."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Final, NamedTuple

from odradek.coordinator.group.share.groups import STATE_RETRY_MS
from odradek.coordinator.group.share.requests import InitializeStates
from odradek.coordinator.share.records import decode
from odradek.coordinator.share.requests import ForgetTopicStates
from odradek.coordinator.share.state import ShareState, ShareUpdate
from odradek.coordinator.share.state_batches import PersisterStateBatch, RecordState
from odradek.protocol.errors import ErrorCode
from tests.support.consumer_playbook import id_of
from tests.support.group_cases import kinds_of
from tests.support.share_group_cases import FAILURE, GROUP, ShareGroupScenario
from tests.support.share_playbook import KEY, TOPIC, SharePlaybook, topics
from tests.support.transition_table import NOTHING, TransitionKey, TransitionRow

NO_STATE: Final = "none"

# -- on its way: what the group's coordinator knows ------------------------------------------------


class GroupShareStateCase(NamedTuple):
    """An event of a partition's state in the group coordinator."""

    place: TransitionKey
    make: Callable[[], ShareGroupScenario]
    act: Callable[[ShareGroupScenario], object]

    def play(self) -> TransitionRow:
        """Cause the event; returns the results and the requests to the share coordinator."""
        scene = self.make()
        assert known(scene) == self.place.state, (self.place, known(scene))
        scene.play.sent.clear()
        length = len(scene.play.log)
        self.act(scene)
        asked = {
            "initialize" if isinstance(each, InitializeStates) else "delete"
            for each in scene.play.sent
        }
        written = kinds_of(scene.play.log[length:])
        return TransitionRow(
            known(scene),
            "states" if "states" in written else NOTHING,
            ", ".join(sorted(asked)) or NOTHING,
        )


def known(scene: ShareGroupScenario) -> str:
    """The group coordinator's state of the partition a-0."""
    group = scene.play.shard.shares.get(GROUP)
    if group is None:
        return NO_STATE
    topic_id, states = id_of("a"), group.states
    found = []
    if topic_id in states.initializing and 0 in states.initializing[topic_id].indexes:
        found.append("initializing")
    if topic_id in states.initialized and 0 in states.initialized[topic_id].indexes:
        found.append("initialized")
    if topic_id in states.deleting:
        found.append("deleting")
    return ", ".join(found) or NO_STATE


def _unread() -> ShareGroupScenario:
    scene = ShareGroupScenario()
    scene.ask(scene.member("b"))
    scene.play.keep_states()
    return scene


def _bare() -> ShareGroupScenario:
    """A group without states."""
    scene = _left(_unread())
    scene.play.forget("b", group=GROUP)
    scene.play.keep_states()
    return scene


def _on_its_way() -> ShareGroupScenario:
    scene = ShareGroupScenario()
    scene.ask(scene.member())
    return scene


def _failed() -> ShareGroupScenario:
    scene = _on_its_way()
    _report(scene, FAILURE)
    return scene


def _made() -> ShareGroupScenario:
    scene = _on_its_way()
    scene.play.keep_states()
    return scene


def _left(scene: ShareGroupScenario) -> ShareGroupScenario:
    for member_id in list(scene.members):
        scene.play.share_call(member_id, -1, group=GROUP)
    scene.members.clear()
    return scene


def _going() -> ShareGroupScenario:
    scene = _left(_made())
    scene.play.forget("a", group=GROUP)
    return scene


def _going_and_read() -> ShareGroupScenario:
    scene = _going()
    scene.ask(scene.member())
    return scene


def _going_anyway(make: Callable[[], ShareGroupScenario]) -> ShareGroupScenario:
    """Its initialization succeeded during its deletion: it had been requested before."""
    scene = make()
    _then(_on_its_way)(scene)
    return scene


def _kept() -> ShareGroupScenario:
    scene = _going()
    _report(scene, FAILURE)
    return scene


def _report(scene: ShareGroupScenario, code: ErrorCode | None = None) -> None:
    scene.play.report(scene.play.sent.pop(0), None if code is None else {"a": code})


def _then(
    make: Callable[[], ShareGroupScenario], *, code: ErrorCode | None = None
) -> Callable[[ShareGroupScenario], None]:
    """A report on the requests of the scene."""
    return lambda scene: scene.play.report(
        make().play.sent[0], None if code is None else {"a": code}
    )


def _remove_topic(scene: ShareGroupScenario) -> None:
    scene.play.topics({name: count for name, count in scene.sizes.items() if name != "a"})
    scene.play.forget_topics(("a", id_of("a")))


def _tick(scene: ShareGroupScenario) -> None:
    scene.play.tick(STATE_RETRY_MS)


def _move(scene: ShareGroupScenario) -> None:
    scene.play.reload()
    scene.play.tick(0)


def knowing_cases() -> Iterator[GroupShareStateCase]:
    """Every event in every state."""
    scenes: list[tuple[str, Callable[[], ShareGroupScenario], str]] = [
        ("none", _unread, "the group has members"),
        ("none", _bare, "the group has none"),
        ("initializing", _on_its_way, "the group has members"),
        ("initializing", lambda: _left(_on_its_way()), "the group has none"),
        ("initialized", _made, "the group has members"),
        ("initialized", lambda: _left(_made()), "the group has none"),
        ("deleting", _going_and_read, "the group has members"),
        ("deleting", _going, "the group has none"),
        (
            "initialized, deleting",
            lambda: _going_anyway(_going_and_read),
            "the group has members",
        ),
        ("initialized, deleting", lambda: _going_anyway(_going), "the group has none"),
    ]
    for state, make, rest in scenes:
        for event, act in (
            ("a member subscribes", lambda scene: scene.ask(scene.member())),
            ("AlterShareGroupOffsets", lambda scene: scene.play.alter({"a": {0: 3}}, group=GROUP)),
            ("DeleteShareGroupOffsets", lambda scene: scene.play.forget("a", group=GROUP)),
            ("DeleteGroups", lambda scene: scene.play.delete_call(GROUP)),
        ):
            condition = NOTHING if event == "a member subscribes" else rest
            yield GroupShareStateCase(TransitionKey(state, event, condition), make, act)
        yield GroupShareStateCase(
            TransitionKey(state, "the topic is deleted", NOTHING), make, _remove_topic
        )
        yield GroupShareStateCase(
            TransitionKey(state, "the coordinator moves", NOTHING), make, _move
        )
        made, failed = "its state has been initialized", "its state could not be initialized"
        yield GroupShareStateCase(TransitionKey(state, made, NOTHING), make, _then(_on_its_way))
        yield GroupShareStateCase(
            TransitionKey(state, failed, NOTHING), make, _then(_on_its_way, code=FAILURE)
        )
        gone, kept = "its state has been deleted", "its state could not be deleted"
        yield GroupShareStateCase(TransitionKey(state, gone, rest), make, _then(_going))
        yield GroupShareStateCase(
            TransitionKey(state, kept, rest), make, _then(_going, code=FAILURE)
        )
    again = "a second after a failed initialization"
    yield GroupShareStateCase(TransitionKey("initializing", again, NOTHING), _failed, _tick)
    again = "a second after a failed deletion"
    yield GroupShareStateCase(TransitionKey("deleting", again, NOTHING), _kept, _tick)


# -- where it is kept ------------------------------------------------------------------------------


class DurableShareStateCase(NamedTuple):
    """An event of the durable state of a share partition."""

    place: TransitionKey
    act: Callable[[SharePlaybook], ErrorCode]

    def play(self) -> TransitionRow:
        """Do it, and tell what came of it."""
        playbook = SharePlaybook()
        if self.place.state == "known":
            # State epoch 5, leader epoch 5, from offset 10 on.
            playbook.initialize(state_epoch=5, start_offset=10)
            playbook.read(leader_epoch=5)
        length = len(playbook.log)
        code = self.act(playbook)
        written = NOTHING
        for entry in playbook.log[length:]:
            assert isinstance(entry, tuple)
            key, value = entry[0], entry[1]
            assert isinstance(key, bytes)
            assert value is None or isinstance(value, bytes)
            record = decode(key, value)
            assert record is not None
            kinds = {ShareState: "snapshot", ShareUpdate: "update", type(None): "tombstone"}
            written = kinds[type(record.value)]
        state = "known" if KEY in playbook.shard.states else "unknown"
        return TransitionRow(state, written, code.name)


_EPOCHS: Final = {"lower": 4, "the same": 5, "higher": 6, "not named": -1}


def keeping_cases() -> Iterator[DurableShareStateCase]:
    """Every request in both states, with every relation of its epochs to the stored ones."""
    yield from _beginnings()
    yield from _readings()
    yield from _writes()
    for state in ("unknown", "known"):
        yield DurableShareStateCase(TransitionKey(state, "Delete"), SharePlaybook.delete)
        yield DurableShareStateCase(
            TransitionKey(state, "Summarize"), lambda book: _code(book.summary())
        )
        yield DurableShareStateCase(TransitionKey(state, "the topic is deleted"), _lose_topic)
        yield DurableShareStateCase(TransitionKey(state, "the coordinator moves"), _move_shard)


def _code(answer: object) -> ErrorCode:
    return answer if isinstance(answer, ErrorCode) else ErrorCode.NONE


def _lose_topic(book: SharePlaybook) -> ErrorCode:
    book.topics = book.shard.topics = topics()
    book.ask(ForgetTopicStates(frozenset({TOPIC})))
    return ErrorCode.NONE


def _move_shard(book: SharePlaybook) -> ErrorCode:
    book.reload()
    return ErrorCode.NONE


def _beginnings() -> Iterator[DurableShareStateCase]:
    for (relation, epoch), start in product(_EPOCHS.items(), (10, 11)):

        def begin(book: SharePlaybook, epoch: int = epoch, start: int = start) -> ErrorCode:
            return book.initialize(state_epoch=epoch, start_offset=start)

        if relation != "not named":
            where = ""
            if relation == "the same":
                where = ", with its start offset" if start == 10 else ", with another start offset"
            yield DurableShareStateCase(
                TransitionKey("known", "Initialize", f"state epoch {relation}{where}"), begin
            )
            yield DurableShareStateCase(TransitionKey("unknown", "Initialize"), begin)
        else:
            for state in ("known", "unknown"):
                yield DurableShareStateCase(
                    TransitionKey(state, "Initialize", "without a state epoch"), begin
                )


def _readings() -> Iterator[DurableShareStateCase]:
    for relation, epoch in _EPOCHS.items():

        def read(book: SharePlaybook, epoch: int = epoch) -> ErrorCode:
            return _code(book.read(leader_epoch=epoch))

        yield DurableShareStateCase(
            TransitionKey("known", "Read", f"leader epoch {relation}"), read
        )
        yield DurableShareStateCase(TransitionKey("unknown", "Read"), read)


def _writes() -> Iterator[DurableShareStateCase]:
    batch = PersisterStateBatch(11, 12, RecordState.ACKNOWLEDGED, 1)
    for (leads, leader), (relation, epoch) in product(_EPOCHS.items(), _EPOCHS.items()):

        def write(book: SharePlaybook, leader: int = leader, epoch: int = epoch) -> ErrorCode:
            return book.write(batch, state_epoch=epoch, leader_epoch=leader)

        condition = f"leader epoch {leads}, state epoch {relation}"
        if leads == "lower":
            condition = "leader epoch lower"
        elif relation in ("the same", "not named"):
            condition = f"leader epoch {leads}, state epoch the same or not named"
        yield DurableShareStateCase(TransitionKey("known", "Write", condition), write)
        yield DurableShareStateCase(TransitionKey("unknown", "Write"), write)
