"""What the controller derives from the image is updated with it."""

import pytest

from odradek.cluster.controller.state import ControllerState, is_active
from odradek.cluster.metadata.image import (
    BrokerImage,
    ConfigResourceType,
    MetadataImage,
    PartitionImage,
)
from odradek.cluster.metadata.records import PartitionsAdded, TopicCreated, TopicDeleted
from odradek.cluster.metadata.topic_names import unify_collision_chars
from tests.support.controller_harness import ControllerHarness
from tests.support.metadata_history import history


def collisions_of(image: MetadataImage) -> dict[str, str]:
    return {unify_collision_chars(name): name for name in image.topics_by_name}


@pytest.mark.parametrize("seed", range(10))
def test_colliding_names_are_found_after_load_and_replay(seed: int) -> None:
    state = ControllerState(MetadataImage.empty(), node_id=0, static={})
    for offset, record in enumerate(history(seed, 300), 1):
        state.replay([record], offset)
    assert state.image.offset == 300
    for key, name in collisions_of(state.image).items():
        assert state.colliding_topic(key) == name
    begun_here = ControllerState(state.image, node_id=0, static={})
    for number in range(30):
        name = f"topic-{number}"
        assert state.colliding_topic(name) == begun_here.colliding_topic(name)


def test_a_deleted_topic_does_not_collide() -> None:
    state = ControllerState(MetadataImage.empty(), node_id=0, static={})
    state.replay([TopicCreated("a.b", bytes(16))], 1)
    assert state.colliding_topic("a_b") == "a.b"
    state.replay([TopicDeleted(bytes(16))], 2)
    assert state.colliding_topic("a_b") is None


def test_active_brokers_are_neither_fenced_nor_shutting_down() -> None:
    harness = ControllerHarness(brokers=4)
    harness.fence(2)
    state = ControllerState(harness.image, node_id=0, static={})
    assert [b.broker_id for b in state.registered_brokers() if is_active(b)] == [0, 1, 3]
    assert not is_active(None)
    assert not is_active(BrokerImage(1, 1, is_in_controlled_shutdown=True))


def test_a_cordoned_broker_is_known_by_its_config() -> None:
    harness = ControllerHarness(brokers=2)
    harness.set_config(ConfigResourceType.BROKER, "1", cordoned_log_dirs="*")
    state = ControllerState(harness.image, node_id=0, static={})
    assert [state.is_cordoned(broker) for broker in (0, 1)] == [False, True]


def test_decisions_may_override_which_brokers_are_active() -> None:
    harness = ControllerHarness(brokers=4)
    harness.fence(1, 2)
    state = ControllerState(harness.image, node_id=0, static={})
    assert state.decisions().active == {0, 3}
    assert state.decisions(without={0}, including={1}).active == {1, 3}
    assert [broker.broker_id for broker in state.registered_brokers()] == [0, 1, 2, 3]


def test_the_index_is_updated_by_replay() -> None:
    state = ControllerState(MetadataImage.empty(), node_id=0, static={})
    partition = PartitionImage((1,), (1,), 1)
    state.replay([TopicCreated("t", bytes(16)), PartitionsAdded(bytes(16), 0, (partition,))], 1)
    assert list(state.index.led_by(1)) == [(bytes(16), 0)]
    index = state.index
    state.replay([TopicDeleted(bytes(16))], 2)
    assert state.index is index
    assert not index.led_by(1)


def test_settings_are_those_of_the_controllers_own_broker() -> None:
    state = ControllerState(MetadataImage.empty(), node_id=3, static={"num.partitions": "8"})
    assert state.broker_settings.num_partitions == 8
