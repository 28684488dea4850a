"""Which log directory a replica gets, and what happens to it when the directory fails or is gone
(KIP-112, KIP-858)."""

import pytest

from odradek.cluster.controller.commands import (
    AlterPartition,
    AlterPartitionReassignments,
    AssignReplicasToDirs,
    InSyncChange,
    InSyncReplica,
    InSyncReply,
    Reassignment,
)
from odradek.cluster.controller.log_directories import place_in_directories, usable_directories
from odradek.cluster.controller.state import ControllerState
from odradek.cluster.metadata.image import (
    NO_LEADER,
    ConfigResourceType,
    PartitionImage,
    ReplicaDirectory,
)
from odradek.cluster.metadata.records import PartitionsAdded
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import Uuid
from tests.support.controller_harness import ControllerHarness

BROKER = ConfigResourceType.BROKER


def directory(broker: int, place: int) -> Uuid:
    return bytes((broker, place)) * 8


def cluster(*brokers: int, directories: int = 2) -> ControllerHarness:
    """Brokers with log directories /0, /1 and so on."""
    harness = ControllerHarness(brokers=0)
    harness.activate()
    for broker in brokers:
        start(harness, broker, range(directories))
        assert not harness.send_heartbeat(broker).is_fenced
    return harness


def start(
    harness: ControllerHarness,
    broker: int,
    places: "range | tuple[int, ...]",
    *,
    incarnation: int = 0,
    offline: tuple[int, ...] = (),
) -> None:
    harness.start(
        broker,
        incarnation=incarnation,
        log_dirs=tuple(directory(broker, place) for place in places),
        log_dir_paths=tuple(f"/{place}" for place in places),
        offline_log_dirs=tuple(directory(broker, place) for place in offline),
    )


def die(harness: ControllerHarness, broker: int) -> None:
    """The broker sends no heartbeats any more, the others do."""
    others = [each for each in harness.image.brokers if each != broker]
    harness.pass_time(3_000, *others)
    assert harness.image.brokers[broker].is_fenced


def restart(
    harness: ControllerHarness,
    broker: int,
    places: "range | tuple[int, ...]",
    offline: tuple[int, ...] = (),
) -> None:
    """The broker is fenced, registers with these directories, and serves again."""
    die(harness, broker)
    start(harness, broker, places, incarnation=harness.image.offset + 5000, offline=offline)
    assert not harness.send_heartbeat(broker).is_fenced


def places(harness: ControllerHarness, topic: str, broker: int) -> list[int]:
    """The directory of each replica of a broker, by its place."""
    found = (each.directory_of(broker) for each in harness.partitions(topic))
    return [0 if each is None else each[1] for each in found]


def test_each_new_replica_gets_the_directory_with_the_fewest() -> None:
    harness = cluster(1, 2, directories=3)
    harness.has("a", 1, partitions=4, factor=2)
    assert sorted(places(harness, "a", 1)) == sorted(places(harness, "a", 2)) == [0, 0, 1, 2]
    harness.has("b", 2, partitions=2, factor=2)
    assert sorted(places(harness, "b", 1)) == [1, 2]


def test_with_one_directory_nothing_is_recorded() -> None:
    harness = cluster(1, directories=1)
    harness.has("a", 1, partitions=3)
    assert all(partition.directories == () for partition in harness.partitions("a"))


def test_older_replicas_count_in_the_first_directory() -> None:
    harness = cluster(1, directories=1)
    harness.has("a", 1, partitions=3)
    restart(harness, 1, range(2))
    harness.has("b", 2, partitions=4)
    assert places(harness, "a", 1) == [0, 0, 0]
    assert sorted(places(harness, "b", 1)) == [0, 1, 1, 1]


def test_a_reassignment_places_added_replicas_and_forgets_removed_ones() -> None:
    harness = cluster(1, 2)
    second = ReplicaDirectory(1, directory(1, 1))
    harness.place("t", 1, PartitionImage((1,), (1,), 1, directories=(second,)))
    harness.place("u", 2, PartitionImage((2,), (2,), 2))
    harness.do(AlterPartitionReassignments((Reassignment("t", 0, (2,)),)))
    adding = harness.partition("t")
    assert adding.replicas == (2, 1)
    assert set(adding.directories) == {second, ReplicaDirectory(2, directory(2, 1))}


def test_cordoned_and_offline_directories_get_no_new_replicas() -> None:
    harness = cluster(1, directories=3)
    harness.set_config(BROKER, "1", cordoned_log_dirs="/0")
    harness.has("a", 1, partitions=2)
    assert sorted(places(harness, "a", 1)) == [1, 2]
    start(harness, 1, range(3), offline=(1,))
    harness.has("b", 2, partitions=2)
    assert places(harness, "b", 1) == [2, 2]
    state = ControllerState(harness.image, node_id=0, static={})
    harness.set_config(BROKER, "1", cordoned_log_dirs="*")
    state = ControllerState(harness.image, node_id=0, static={})
    assert usable_directories(state, harness.image.brokers[1]) == [None, directory(1, 2)]
    assert state.is_cordoned(1)


def test_a_broker_is_cordoned_if_all_its_directories_are() -> None:
    harness = cluster(1, 2)
    harness.set_config(BROKER, "1", cordoned_log_dirs="/0")
    state = ControllerState(harness.image, node_id=0, static={})
    assert not state.is_cordoned(1)
    harness.set_config(BROKER, "1", cordoned_log_dirs="/0,/1")
    state = ControllerState(harness.image, node_id=0, static={})
    assert state.is_cordoned(1)


def test_records_without_replicas_on_such_brokers_stay_as_they_are() -> None:
    harness = cluster(1, directories=1)
    state = ControllerState(harness.image, node_id=0, static={})
    record = PartitionsAdded(bytes(16), 0, (PartitionImage((1,), (1,), 1),))
    assert place_in_directories(state, [record]) == (record,)


def test_a_failed_directory_takes_only_its_replicas_offline() -> None:
    harness = cluster(1, 2)
    harness.has("t", 1, partitions=4, factor=2)
    before = harness.partitions("t")
    failed = directory(1, 1)
    start(harness, 1, range(2), offline=(1,))
    assert not harness.image.brokers[1].is_fenced
    assert harness.image.brokers[1].offline_log_dirs == (failed,)
    for old, new in zip(before, harness.partitions("t"), strict=True):
        if old.directory_of(1) == failed:
            assert (new.in_sync_replicas, new.leader) == ((2,), 2)
        else:
            assert new == old
    offset = harness.image.offset
    start(harness, 1, range(2), offline=(1,))
    assert harness.image.offset == offset


def test_a_replica_in_a_failed_directory_joins_no_isr() -> None:
    """Its leader may have had a fetch of it a moment ago, and propose to take it back."""
    harness = cluster(1, 2)
    lost = ReplicaDirectory(1, directory(1, 1))
    harness.place("t", 1, PartitionImage((2, 1), (2, 1), 2, directories=(lost,)))
    start(harness, 1, range(2), offline=(1,))
    state = harness.partition("t")
    assert state.in_sync_replicas == (2,)
    epoch = harness.image.brokers[2].broker_epoch
    members = (InSyncReplica(2), InSyncReplica(1))
    (topic_id,) = harness.image.topics_by_id
    change = InSyncChange(topic_id, 0, state.leader_epoch, state.partition_epoch, members)
    reply = harness.do(AlterPartition(2, epoch, (change,)))
    assert isinstance(reply, InSyncReply)
    assert reply.results[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    assert harness.partition("t") == state


def test_the_only_replica_in_a_failed_directory_waits_for_it() -> None:
    harness = cluster(1, 2)
    lost = ReplicaDirectory(1, directory(1, 1))
    harness.place("t", 1, PartitionImage((1,), (1,), 1, directories=(lost,)))
    start(harness, 1, range(2), offline=(1,))
    assert (harness.partition("t").leader, harness.partition("t").in_sync_replicas) == (
        NO_LEADER,
        (1,),
    )
    # Another broker comes, and topics may elect unclean leaders: it does not lead from there.
    restart(harness, 2, range(2))
    harness.set_config(BROKER, "", unclean_leader_election_enable="true")
    assert harness.partition("t").leader == NO_LEADER
    restart(harness, 1, range(2), offline=(1,))
    assert harness.partition("t").leader == NO_LEADER
    restart(harness, 1, range(2))
    assert harness.image.brokers[1].offline_log_dirs == ()
    assert harness.partition("t").leader == 1


def test_a_directory_that_is_not_registered_any_more_has_lost_its_replicas() -> None:
    harness = cluster(1, 2, directories=3)
    gone = ReplicaDirectory(1, directory(1, 2))
    other = ReplicaDirectory(2, directory(2, 1))
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 1, directories=(gone, other)))
    harness.place("u", 2, PartitionImage((1,), (1,), 1, directories=(gone,)))
    die(harness, 1)
    start(harness, 1, range(2), incarnation=9)
    moved = harness.partition("t")
    assert moved.directory_of(1) in (None, directory(1, 1))
    assert moved.directory_of(2) == directory(2, 1)
    assert (moved.in_sync_replicas, moved.leader) == ((2,), 2)
    assert harness.partition("u").in_sync_replicas == ()
    assert harness.partition("u").leader == NO_LEADER


def test_a_wiped_data_folder_loses_its_replicas_beside_a_directory_that_is_whole() -> None:
    harness = cluster(1, 2)
    kept = ReplicaDirectory(1, directory(1, 1))
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    harness.place("u", 2, PartitionImage((1,), (1,), 1, directories=(kept,)))
    die(harness, 1)
    harness.start(
        1,
        incarnation=9,
        log_dirs=(directory(7, 7), directory(1, 1)),
        log_dir_paths=("/0", "/1"),
    )
    assert harness.partition("t").in_sync_replicas == (2,)
    assert harness.partition("u").in_sync_replicas == (1,)
    assert harness.partition("u").directories == (kept,)


def test_a_moved_replica_is_in_the_other_directory() -> None:
    harness = cluster(1, 2)
    second = ReplicaDirectory(1, directory(1, 1))
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 1), PartitionImage((2,), (2,), 2))
    topic_id = harness.image.topics_by_name["t"].topic_id
    epoch = harness.image.brokers[1].broker_epoch

    def assign(*replicas: tuple[Uuid, int, Uuid], broker_epoch: int = epoch) -> None:
        harness.do(AssignReplicasToDirs(1, broker_epoch, replicas))

    assign((topic_id, 0, directory(1, 1)))
    assert harness.partition("t").directories == (second,)
    assert harness.partition("t").partition_epoch == 1
    offset = harness.image.offset
    assign((topic_id, 0, directory(1, 1)))
    # Not its replica, not its directory, not a partition.
    assign((topic_id, 1, directory(1, 1)), (topic_id, 0, directory(2, 1)))
    assign((bytes(16), 0, directory(1, 1)))
    assert harness.image.offset == offset
    assign((topic_id, 0, directory(1, 0)))
    assert harness.partition("t").directories == ()
    with pytest.raises(ApiError, match="STALE_BROKER_EPOCH"):
        assign((topic_id, 0, directory(1, 1)), broker_epoch=epoch + 1)


def test_a_replica_that_was_moved_out_of_a_failed_directory_leads() -> None:
    harness = cluster(1)
    lost = ReplicaDirectory(1, directory(1, 1))
    harness.place("t", 1, PartitionImage((1,), (1,), 1, directories=(lost,)))
    start(harness, 1, range(2), offline=(1,))
    assert harness.partition("t").leader == NO_LEADER
    topic_id = harness.image.topics_by_name["t"].topic_id
    epoch = harness.image.brokers[1].broker_epoch
    harness.do(AssignReplicasToDirs(1, epoch, ((topic_id, 0, directory(1, 0)),)))
    assert harness.partition("t").leader == 1
