"""The partitions with a share state: the table of the module, row by row."""

from odradek.coordinator.group.share import state_partitions as changes
from odradek.coordinator.group.share.records import NamedPartitions, StatePartitions
from odradek.coordinator.group.topics import TopicCatalog, TopicDigest
from odradek.protocol.errors import ErrorCode
from tests.support.consumer_playbook import id_of, image_of

A, B = id_of("a"), id_of("b")
TOPIC_A = TopicDigest("a", A, 3)


def some(*indexes: int, name: str = "a") -> NamedPartitions:
    return NamedPartitions(name, frozenset(indexes))


def test_missing_partitions_have_no_state_and_none_is_being_initialized() -> None:
    assert changes.missing(StatePartitions(), [TOPIC_A]) == {A: some(0, 1, 2)}
    states = StatePartitions({A: some(0)}, {A: some(2)})
    assert changes.missing(states, [TOPIC_A]) == {A: some(1)}
    assert changes.missing(StatePartitions({}, {A: some(0, 1, 2)}), [TOPIC_A]) == {}
    assert changes.missing(StatePartitions({}, {}, {A: "a"}), [TOPIC_A]) == {}


def test_a_state_is_being_initialized_and_then_initialized() -> None:
    states = changes.initializing(StatePartitions(), {A: some(0, 1)})
    assert states == StatePartitions({A: some(0, 1)})
    states = changes.initialized(states, {A: some(1)})
    assert states == StatePartitions({A: some(0)}, {A: some(1)})
    states = changes.initialized(states, {A: some(0, 2), B: some(5, name="b")})
    assert states == StatePartitions({}, {A: some(0, 1, 2), B: some(5, name="b")})


def test_a_topic_whose_states_are_deleted_has_no_others() -> None:
    states = StatePartitions({A: some(0)}, {A: some(1), B: some(0, name="b")})
    gone = changes.deleting(states, {A: "a"})
    assert gone == StatePartitions({}, {B: some(0, name="b")}, {A: "a"})
    assert changes.has_any_topic(gone, [A])
    left = changes.without_topics(gone, [A])
    assert left == StatePartitions({}, {B: some(0, name="b")})
    assert not changes.has_any_topic(left, [A])
    assert left != StatePartitions()
    assert changes.without_topics(left, [B]) == StatePartitions()


def test_union_and_intersection_of_partitions() -> None:
    first, second = {A: some(0, 1)}, {A: some(1, 2), B: some(0, name="b")}
    assert changes.intersection(first, second) == {A: some(1)}
    assert changes.union(first, second) == {A: some(0, 1, 2), B: some(0, name="b")}
    assert changes.names_of(StatePartitions(first, second, {id_of("c"): "c"})) == {
        A: "a",
        B: "b",
        id_of("c"): "c",
    }


def test_outcomes_are_split_into_success_and_failure() -> None:
    catalog = TopicCatalog(image_of({"a": 4}))
    away = ErrorCode.COORDINATOR_NOT_AVAILABLE
    outcomes = {
        A: {0: ErrorCode.NONE, 1: away, 2: ErrorCode.FENCED_STATE_EPOCH},
        B: {0: ErrorCode.NONE},
    }
    assert changes.split_outcomes(outcomes, catalog) == ({A: some(0, 2)}, {A: some(1)})
    assert changes.first_error(outcomes) is away
    assert changes.first_error({A: {0: ErrorCode.NONE}, B: {}}) is ErrorCode.NONE
    assert changes.first_error(changes.ALL_FAILED) is away
    assert changes.all_partitions({A: "a", B: "b"}, catalog) == {
        A: frozenset(range(4)),
        B: frozenset(),
    }
