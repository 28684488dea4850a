"""The controller as a whole: `handle` changes nothing, `replay` changes the state."""

import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from odradek.cluster.controller.commands import (
    AllocateProducerIds,
    AlterClientQuotas,
    AlterConfigs,
    AlterPartition,
    AlterPartitionReassignments,
    AlterScramCredentials,
    Command,
    ConfigOperation,
    CreateAcls,
    CreatePartitions,
    CreateTopics,
    DeleteAcls,
    DeleteTopics,
    ElectLeaders,
    FeatureUpdate,
    IncrementalAlterConfigs,
    InSyncChange,
    InSyncReplica,
    MetadataCommand,
    NewPartitions,
    NewTopic,
    PartitionReference,
    QuotaChange,
    QuotaEntityChanges,
    Reassignment,
    RegisterBroker,
    ResourceConfigs,
    ResourceOperations,
    SetScramCredential,
    TopicReference,
    UpdateFeatures,
)
from odradek.cluster.controller.controller import Controller
from odradek.cluster.metadata.acls import AclBinding
from odradek.cluster.metadata.delta import image_after
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage, PartitionImage
from odradek.cluster.metadata.records import (
    AclCreated,
    PartitionsAdded,
    Record,
    TopicCreated,
    decode_records,
    encode_records,
)
from odradek.cluster.metadata.scram import ScramCredential
from odradek.node.router.cooperative_iteration import COMMAND_ITEMS_MAX
from odradek.protocol.errors import ApiError
from tests.support.controller_harness import ControllerHarness, topic_id
from tests.support.metadata_history import have_same_content


def random_command(chance: random.Random, harness: ControllerHarness, step: int) -> Command:
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
            return AllocateProducerIds(
                0, harness.image.brokers[0].broker_epoch - chance.randrange(2)
            )
        case _:
            return RegisterBroker(chance.randrange(3), topic_id(step))


@pytest.mark.parametrize("seed", range(20))
def test_replaying_the_log_gives_the_same_state(seed: int) -> None:
    chance = random.Random(seed)
    harness = ControllerHarness(brokers=2)
    for step in range(150):
        try:
            harness.do(random_command(chance, harness, step))
        except ApiError:
            continue
    assert have_same_content(harness.restarted(), harness.image), f"seed {seed}"


def test_the_same_command_on_the_same_image_gives_the_same_records() -> None:
    harness = ControllerHarness(brokers=3)
    command = CreateTopics((NewTopic("t", topic_id(4), 6, 3),))
    results = [Controller(harness.image).handle(command, now_ms) for now_ms in (1, 2)]
    assert results[0] == results[1]


def test_a_command_sees_the_effect_of_the_one_before() -> None:
    controller = Controller(ControllerHarness().image)
    command = CreateTopics((NewTopic("t", topic_id(4), 1, 1),))
    first = controller.handle(command, 1)
    controller.replay(first.records, controller.image.offset + 1)
    second = controller.handle(command, 2)
    assert second.records == ()


def test_a_failed_command_changes_nothing() -> None:
    controller = Controller(MetadataImage.empty())
    with pytest.raises(ApiError):
        controller.handle(AllocateProducerIds(1, 1), 1)
    assert controller.image.offset == 0


# -- several nodes -------------------------------------------------------------------------------


def cluster(*brokers: int) -> ControllerHarness:
    harness = ControllerHarness(brokers=0)
    harness.activate()
    harness.join(*brokers)
    return harness


def test_a_controller_that_was_never_active_has_no_deadline() -> None:
    harness = ControllerHarness(brokers=2)
    assert harness.controller.next_deadline_ms() is None
    assert harness.tick() == 0


def test_a_new_controller_fences_no_broker_for_old_heartbeats() -> None:
    harness = cluster(1, 2)
    harness.pass_time(900, 1)
    successor = Controller(harness.image)
    successor.activate(harness.now_ms)
    assert successor.next_deadline_ms() is not None
    harness.controller = successor
    harness.pass_time(900, 1)
    assert 2 not in harness.fenced()
    harness.pass_time(100, 1)
    assert 2 in harness.fenced()
    assert 1 not in harness.fenced()


def test_fenced_brokers_are_not_fenced_again_by_the_next_controller() -> None:
    harness = cluster(1)
    harness.pass_time(1000)
    harness.activate()
    written = len(harness.records)
    harness.pass_time(3000)
    assert len(harness.records) == written


def test_a_new_incarnation_may_register_after_a_change_of_controllers() -> None:
    harness = cluster(1)
    harness.pass_time(1000)
    harness.activate()
    harness.start(1, incarnation=7)
    assert harness.image.brokers[1].incarnation_id == topic_id(7)


def test_preferred_leader_elections_are_batched_without_a_pause() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, *(PartitionImage((1, 2), (1, 2), 2) for _ in range(1001)))
    harness.pass_time(299_900, 1, 2)
    portions = []
    for _ in range(3):
        harness.now_ms += 100
        harness.send_heartbeat(1)
        harness.send_heartbeat(2)
        portions.append(harness.tick())
    assert portions == [1000, 1, 0]


def test_the_deadline_allows_to_fence_in_time() -> None:
    harness = cluster(1)
    started_ms = harness.now_ms
    for _ in range(20):
        deadline_ms = harness.controller.next_deadline_ms()
        assert deadline_ms is not None
        assert deadline_ms > harness.now_ms
        harness.now_ms = deadline_ms
        if harness.tick():
            break
    assert (harness.fenced(), harness.now_ms - started_ms) == ({1}, 1000)


def test_a_controller_that_was_paused_fences_no_broker() -> None:
    harness = cluster(1, 2)
    harness.now_ms += 30_000
    harness.tick()
    assert 1 not in harness.fenced()
    harness.pass_time(1000, 2)
    assert 1 in harness.fenced()
    assert 2 not in harness.fenced()


def several_nodes_command(chance: random.Random, harness: ControllerHarness, step: int) -> Command:
    names = [*harness.image.topics_by_name, "nope"]
    name = chance.choice(names)
    topic = harness.image.topics_by_name.get(name)
    number = chance.randrange(len(topic.partitions)) if topic is not None else 0
    some = tuple(chance.sample(range(6), chance.randint(1, 4)))
    match chance.choice("crreeaaaaaafmud"):
        case "c":
            return CreateTopics((NewTopic(f"t{step}", topic_id(step), 4, chance.randint(1, 4)),))
        case "r":
            replicas = some if chance.random() < 0.8 else None
            return AlterPartitionReassignments((Reassignment(name, number, replicas),))
        case "e":
            return ElectLeaders(chance.randrange(2), (PartitionReference(name, number),))
        case "a":
            return in_sync_change(chance, harness, name, number)
        case "f":
            level, kind = chance.choice([(1, 1), (0, 2)])
            return UpdateFeatures((FeatureUpdate(ELR, level, kind),))
        case "m" | "u":
            key = chance.choice(["min.insync.replicas", "unclean.leader.election.enable"])
            value = str(chance.randint(1, 3)) if key.startswith("min") else "true"
            operation = ConfigOperation(key, chance.choice([0, 0, 1]), value)
            resource = ResourceOperations(ConfigResourceType.TOPIC, name, (operation,))
            return IncrementalAlterConfigs((resource,))
        case _:
            return CreatePartitions((NewPartitions(name, chance.randint(1, 8)),))


def in_sync_change(
    chance: random.Random, harness: ControllerHarness, name: str, number: int
) -> Command:
    topic = harness.image.topics_by_name.get(name)
    if topic is None:
        return AlterPartition(1, 1, ())
    partition = topic.partitions[number]
    leader = harness.image.brokers.get(partition.leader)
    if leader is None:
        return AlterPartition(1, 1, ())
    others = [replica for replica in partition.replicas if replica != leader.broker_id]
    chosen = chance.sample(others, chance.randint(0, len(others)))
    change = InSyncChange(
        topic.topic_id,
        number,
        partition.leader_epoch,
        partition.partition_epoch,
        tuple(InSyncReplica(replica) for replica in (leader.broker_id, *chosen)),
    )
    return AlterPartition(leader.broker_id, leader.broker_epoch, (change,))


ELR = "eligible.leader.replicas.version"


@pytest.mark.parametrize("seed", range(25))
def test_invariants_hold_while_brokers_come_and_go(seed: int) -> None:
    """The room checks after each entry: leaders in sync, ISR among the replicas, epochs grow."""
    chance = random.Random(seed)
    harness = cluster(0, 1, 2, 3, 4)
    alive = {0, 1, 2, 3, 4}
    for step in range(1, 200):
        try:
            match chance.choice("kslrcccccccctt"):
                case "k":
                    alive.discard(chance.randrange(6))
                case "s":
                    broker = chance.randrange(6)
                    previous = chance.choice([None, -1])
                    harness.start(broker, incarnation=3000 + step, previous_broker_epoch=previous)
                    alive.add(broker)
                case "l":
                    harness.activate()
                case "r":
                    broker = chance.randrange(6)
                    if broker in alive:
                        harness.send_heartbeat(broker, wants_shut_down=True)
                case "t":
                    harness.pass_time(
                        chance.choice([200, 1000]), *sorted(alive & set(harness.image.brokers))
                    )
                case _:
                    harness.do(several_nodes_command(chance, harness, step))
        except ApiError:
            continue
    for topic in harness.image.topics_by_name.values():
        for partition in topic.partitions:
            leader = harness.image.brokers.get(partition.leader)
            assert leader is None or not leader.is_fenced, f"seed {seed}: {topic.name}"
    assert have_same_content(harness.restarted(), harness.image), f"seed {seed}"


def test_decisions_are_the_same_on_every_controller() -> None:
    harness = cluster(1, 2, 3)
    harness.create(NewTopic("t", topic_id(4), 30, 3))
    harness.now_ms += 999
    others = [Controller(harness.image) for _ in range(2)]
    for controller in others:
        controller.activate(harness.now_ms)
        for ms in range(0, 1001, 250):
            controller.tick(harness.now_ms + ms - 1, 0)
    decisions = {controller.tick(harness.now_ms + 1000, 0) for controller in others}
    assert len(decisions) == 1
    assert decisions != {()}


def _many_acls(controller: Controller) -> Iterator[MetadataCommand]:
    def bindings(first: int, count: int) -> tuple[AclBinding, ...]:
        return tuple(
            AclBinding(2, 3 + n % 2, f"topic-{n}", f"User:{n % 1000}", "*", 3, 3)
            for n in range(first, first + count)
        )

    controller.replay(map(AclCreated, bindings(0, 100_000)), 1)
    for first in range(0, 1_000, COMMAND_ITEMS_MAX):
        yield DeleteAcls(bindings(first, COMMAND_ITEMS_MAX))
        yield CreateAcls(bindings(100_000 + first, COMMAND_ITEMS_MAX))


def _many_quotas(controller: Controller) -> Iterator[MetadataCommand]:
    def entries(first: int, count: int, value: float) -> tuple[QuotaEntityChanges, ...]:
        changes = (QuotaChange("producer_byte_rate", value),)
        return tuple(
            QuotaEntityChanges((("user", f"user-{n}"),), changes)
            for n in range(first, first + count)
        )

    _carry_out(controller, AlterClientQuotas(entries(0, 10_000, 1e6), validate_only=False))
    for first in range(9_000, 11_000, COMMAND_ITEMS_MAX):
        changed = entries(first, COMMAND_ITEMS_MAX, 2e6)
        yield AlterClientQuotas(changed, validate_only=False)


def _many_credentials(controller: Controller) -> Iterator[MetadataCommand]:
    def upsertions(first: int, count: int, iterations: int) -> tuple[SetScramCredential, ...]:
        credential = ScramCredential(b"salt", b"stored", b"server", iterations)
        return tuple(
            SetScramCredential(f"user-{n}", 1, iterations, credential)
            for n in range(first, first + count)
        )

    _carry_out(controller, AlterScramCredentials((), upsertions(0, 10_000, 4096)))
    for first in range(9_000, 11_000, COMMAND_ITEMS_MAX):
        yield AlterScramCredentials((), upsertions(first, COMMAND_ITEMS_MAX, 8192))


def _many_topics(controller: Controller) -> Iterator[MetadataCommand]:
    def change(kind: int, names: Iterable[str], key: str, value: str) -> MetadataCommand:
        operations = (ConfigOperation(key, 0, value),)
        resources = tuple(ResourceOperations(kind, name, operations) for name in names)
        return IncrementalAlterConfigs(resources, validate_only=False)

    names, records = [f"topic-{n}" for n in range(10_000)], list[Record]()
    partitions = (PartitionImage((0,), (0,), 0),)
    for number, name in enumerate(names):
        created = TopicCreated(name, topic_id(number))
        records.extend((created, PartitionsAdded(topic_id(number), 0, partitions)))
    controller.replay(records, 1)
    controller.activate(0)
    for key, value in (("retention.ms", "1000"), ("min.insync.replicas", "2")):
        yield from (
            change(ConfigResourceType.TOPIC, names[first : first + COMMAND_ITEMS_MAX], key, value)
            for first in (0, 5_000)
        )


@pytest.mark.parametrize("commands", [_many_acls, _many_quotas, _many_credentials, _many_topics])
def test_the_largest_command_costs_milliseconds_however_much_there_is(
    commands: Callable[[Controller], Iterator[MetadataCommand]],
) -> None:
    """Nobody waits for a loop for more than 20 ms: neither for that of the controller, which
    decides and applies a command, nor for those of the processes that follow. In processor time."""
    controller = Controller(MetadataImage.empty())
    times = [_carry_out(controller, command) for command in commands(controller)]
    assert statistics.median(max(each) for each in times) < 0.02, times


def _carry_out(controller: Controller, command: MetadataCommand) -> tuple[float, float]:
    """The seconds of the controller, and of a process that follows."""
    before, began = controller.image, time.thread_time()
    records = controller.handle(command, 0).records
    data = encode_records(records)
    assert records
    controller.replay(records, before.offset + 1)
    decided = time.thread_time()
    image_after(before, decode_records(data), before.offset + 1)
    return decided - began, time.thread_time() - decided
