"""The controller as a whole: decides without changing, changes only by its records."""

import random

import pytest

from cluster.controller.commands import (
    AllocateProducerIds,
    AlterConfigs,
    Command,
    ConfigOperation,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    IncrementalAlterConfigs,
    NewPartitions,
    NewTopic,
    RegisterBroker,
    ResourceConfigs,
    ResourceOperations,
    TopicReference,
)
from cluster.controller.controller import Controller
from cluster.metadata.image import ConfigResourceType, MetadataImage
from protocol.errors import ApiError
from tests.support.controller_room import ControllerRoom, topic_id


def random_command(chance: random.Random, room: ControllerRoom, step: int) -> Command:
    name = f"t{chance.randrange(6)}"
    match chance.randrange(7):
        case 0:
            return CreateTopics((NewTopic(name, topic_id(step), chance.randint(1, 4), 1),))
        case 1:
            return DeleteTopics((TopicReference(name),))
        case 2:
            return CreatePartitions((NewPartitions(name, chance.randint(1, 8)),))
        case 3:
            configs = (("flush.ms", str(step)),) if chance.random() < 0.7 else ()
            return AlterConfigs((ResourceConfigs(ConfigResourceType.TOPIC, name, configs),))
        case 4:
            operation = ConfigOperation("retention.ms", chance.randrange(2), str(step))
            resource = ResourceOperations(ConfigResourceType.TOPIC, name, (operation,))
            return IncrementalAlterConfigs((resource,))
        case 5:
            return AllocateProducerIds(0, room.image.brokers[0].broker_epoch - chance.randrange(2))
        case _:
            return RegisterBroker(chance.randrange(3), topic_id(step))


@pytest.mark.parametrize("seed", range(20))
def test_the_log_alone_leads_to_the_same_state(seed: int) -> None:
    chance = random.Random(seed)
    room = ControllerRoom(brokers=2)
    for step in range(150):
        try:
            room.do(random_command(chance, room, step))
        except ApiError:
            continue
    assert room.restarted().has_same_content(room.image), f"seed {seed}"


def test_the_same_command_on_the_same_image_gives_the_same_records() -> None:
    room = ControllerRoom(brokers=3)
    command = CreateTopics((NewTopic("t", topic_id(4), 6, 3),))
    results = [Controller(room.image).handle(command, now_ms) for now_ms in (1, 2)]
    assert results[0] == results[1]


def test_a_command_is_decided_upon_what_the_one_before_it_left() -> None:
    controller = Controller(ControllerRoom().image)
    command = CreateTopics((NewTopic("t", topic_id(4), 1, 1),))
    first = controller.handle(command, 1)
    controller.replay(first.records, controller.image.offset + 1)
    second = controller.handle(command, 2)
    assert second.records == ()


def test_a_command_that_fails_as_a_whole_leaves_the_state_as_it_was() -> None:
    controller = Controller(MetadataImage.empty())
    with pytest.raises(ApiError):
        controller.handle(AllocateProducerIds(1, 1), 1)
    assert controller.image.offset == 0
