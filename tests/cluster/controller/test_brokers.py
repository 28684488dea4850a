"""Registration, heartbeats, fencing, shutdown, and producer ids."""

import pytest

from odradek.cluster.controller.commands import (
    AllocateProducerIds,
    AlterPartition,
    BrokerHeartbeat,
    BrokerReply,
    InSyncChange,
    InSyncReplica,
    InSyncReply,
    InSyncResult,
    ProducerIdsReply,
    RegisterBroker,
    UnregisterBroker,
    UnregisteredReply,
)
from odradek.cluster.metadata.image import (
    NO_LEADER,
    ConfigResourceType,
    FeatureRange,
    Listener,
    PartitionImage,
)
from odradek.cluster.metadata.records import (
    BrokerChanged,
    FeatureLevelChanged,
    ProducerIdsAllocated,
)
from odradek.protocol.errors import ApiError, ErrorCode
from tests.support.controller_room import FEATURES, ControllerRoom, topic_id


def test_a_registered_broker_is_what_it_said() -> None:
    broker = ControllerRoom(brokers=2).image.brokers[1]
    assert broker.listeners == (Listener("PLAINTEXT", "host-1", 9093),)
    assert (broker.rack, broker.features) == ("rack-1", FEATURES)
    assert not broker.is_fenced


def test_a_broker_that_registers_again_replaces_itself_with_a_greater_epoch() -> None:
    room = ControllerRoom()
    before = room.image.brokers[0]
    reply = room.do(RegisterBroker(0, topic_id(5), "cluster"))
    assert isinstance(reply, BrokerReply)
    after = room.image.brokers[0]
    assert after.broker_epoch == reply.broker_epoch > before.broker_epoch
    assert (after.incarnation_id, after.rack, after.listeners) == (topic_id(5), None, ())


def test_a_broker_of_another_cluster_is_refused() -> None:
    room = ControllerRoom()
    with pytest.raises(ApiError) as caught:
        room.do(RegisterBroker(1, topic_id(5), "other"))
    assert caught.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert "other" in caught.value.message
    assert 1 not in room.image.brokers


def refusal(room: ControllerRoom, broker: int, **more: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        room.start(broker, **more)  # type: ignore[arg-type] # fields of the registration
    return caught.value


def cluster(*brokers: int) -> ControllerRoom:
    """Brokers that send heartbeats, and the controller that leads them."""
    room = ControllerRoom(brokers=0)
    room.lead()
    room.join(*brokers)
    return room


# -- registration ------------------------------------------------------------------------------


def test_a_broker_that_sends_heartbeats_starts_fenced() -> None:
    room = cluster()
    epoch = room.start(1, log_dirs=(topic_id(9),))
    broker = room.image.brokers[1]
    assert (broker.is_fenced, broker.broker_epoch, broker.log_dirs) == (True, epoch, (topic_id(9),))
    assert room.restarted().brokers[1] == broker


def test_a_second_broker_of_an_id_that_is_alive_is_refused() -> None:
    room = cluster(1)
    before = room.image.brokers[1]
    error = refusal(room, 1, incarnation=7)
    assert error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "1000 ms" in error.message
    assert room.image.brokers[1] == before


def test_a_second_broker_is_refused_before_the_first_has_caught_up_too() -> None:
    room = cluster()
    room.start(1)
    assert refusal(room, 1, incarnation=7).code is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_a_new_incarnation_of_a_dead_broker_is_taken_in_with_a_new_epoch() -> None:
    room = cluster(1)
    before = room.image.brokers[1].broker_epoch
    room.pass_time(1000)
    assert 1 in room.fenced()
    assert room.start(1, incarnation=7) > before
    assert room.image.brokers[1].incarnation_id == topic_id(7)


def test_a_broker_that_was_silent_for_long_enough_may_come_back_before_it_is_fenced() -> None:
    room = cluster(1, 2)
    room.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    room.now_ms += 1000
    room.start(1, incarnation=7)
    assert 1 in room.fenced()
    partition = room.partition("t")
    assert (partition.leader, partition.in_sync_replicas) == (2, (2,))


def test_a_registration_that_comes_again_keeps_epoch_and_state() -> None:
    room = cluster(1)
    written = len(room.records)
    epoch = room.image.brokers[1].broker_epoch
    assert room.start(1) == epoch
    assert len(room.records) == written
    assert room.start(1, listeners=(Listener("PLAINTEXT", "elsewhere", 1),)) == epoch
    broker = room.image.brokers[1]
    assert (broker.is_fenced, broker.listeners[0].host) == (False, "elsewhere")


def test_a_broker_must_understand_what_is_finalised() -> None:
    room = cluster()
    room.write(FeatureLevelChanged("metadata.version", 25))
    error = refusal(room, 1, features=(FeatureRange("metadata.version", 7, 24),))
    assert error.code is ErrorCode.UNSUPPORTED_VERSION
    assert "25" in error.message
    assert "7 to 24" in error.message
    assert refusal(room, 1, features=(FeatureRange("x", 0, 1),)).code == error.code
    room.start(1, features=(FeatureRange("metadata.version", 7, 25),))
    room.start(2)  # says nothing about features


def test_a_registration_that_makes_no_sense_is_refused() -> None:
    room = cluster()
    twice = (Listener("A", "h", 1), Listener("A", "h", 2))
    assert refusal(room, 1, listeners=twice).code is ErrorCode.INVALID_REGISTRATION
    assert refusal(room, -1).code is ErrorCode.INVALID_REGISTRATION


# -- what a new incarnation says of its logs -----------------------------------------------------


def two_in_sync() -> ControllerRoom:
    room = cluster(1, 2)
    room.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    room.place("alone", 2, PartitionImage((1,), (1,), 1))
    return room


def restart(room: ControllerRoom, broker: int, **more: object) -> None:
    room.pass_time(1000, *({1, 2} - {broker}))
    room.start(broker, incarnation=7, **more)  # type: ignore[arg-type] # fields of the registration
    assert not room.beat(broker).is_fenced


def test_a_broker_that_kept_its_logs_leads_again_what_it_led_alone() -> None:
    room = two_in_sync()
    epoch = room.image.brokers[1].broker_epoch
    restart(room, 1, previous_broker_epoch=epoch)
    assert (room.partition("alone").leader, room.partition("alone").leader_epoch) == (1, 2)
    assert room.partition("t").in_sync_replicas == (2,)


def test_a_broker_that_lost_the_ends_of_its_logs_is_eligible_no_more() -> None:
    room = two_in_sync()
    room.set_config(ConfigResourceType.TOPIC, "t", min_insync_replicas="2")
    room.with_elr()
    room.pass_time(1000, 2)
    assert room.partition("t").elr == (1,)
    room.start(1, incarnation=7, previous_broker_epoch=-1)
    assert room.partition("t").elr == ()
    assert not room.beat(1).is_fenced
    assert room.partition("alone").leader == 1, "nobody else has more"


def test_a_broker_that_was_unregistered_and_lost_its_logs_is_not_eligible_either() -> None:
    room = two_in_sync()
    room.set_config(ConfigResourceType.TOPIC, "t", min_insync_replicas="2")
    room.with_elr()
    room.do(UnregisterBroker(1))
    assert room.partition("t").elr == (1,)
    room.start(1, incarnation=7, previous_broker_epoch=-1)
    assert room.partition("t").elr == ()


def test_a_broker_whose_disk_was_wiped_leads_nothing_that_others_lack() -> None:
    room = cluster()
    room.start(1, log_dirs=(topic_id(1),))
    room.beat(1)
    room.join(2)
    room.place("t", 1, PartitionImage((1, 2), (1,), 1))
    room.pass_time(1000, 2)
    room.start(1, incarnation=7, log_dirs=(topic_id(2),))
    assert not room.beat(1).is_fenced
    partition = room.partition("t")
    assert (partition.leader, partition.in_sync_replicas) == (NO_LEADER, ())
    assert room.restarted().brokers[1].log_dirs == (topic_id(2),)


# -- heartbeats ----------------------------------------------------------------------------------


def test_a_broker_serves_once_its_metadata_has_its_registration() -> None:
    room = cluster()
    epoch = room.start(1)
    reply = room.beat(1, at=epoch - 1)
    assert (reply.is_caught_up, reply.is_fenced) == (False, True)
    reply = room.beat(1, at=epoch)
    assert (reply.is_caught_up, reply.is_fenced) == (True, False)
    assert reply.next_heartbeat_ms == 200
    assert 1 not in room.fenced()


def test_a_broker_that_is_back_leads_what_nobody_leads() -> None:
    room = cluster(1, 2)
    room.place(
        "t",
        1,
        PartitionImage((1,), (1,), 1),
        PartitionImage((2,), (2,), 2),
        PartitionImage((1, 2), (1, 2), 1),
    )
    room.pass_time(1000, 2)
    assert [p.leader for p in room.partitions("t")] == [NO_LEADER, 2, 2]
    room.start(1, incarnation=7)
    room.beat(1)
    assert [p.leader for p in room.partitions("t")] == [1, 2, 2]


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    room = cluster(1)
    written = len(room.records)
    for _ in range(3):
        room.beat(1)
    assert len(room.records) == written


@pytest.mark.parametrize(
    ("broker", "epoch", "code"),
    [(7, 1, ErrorCode.BROKER_ID_NOT_REGISTERED), (1, 1, ErrorCode.STALE_BROKER_EPOCH)],
)
def test_who_is_not_registered_under_this_epoch_has_to_register(
    broker: int, epoch: int, code: ErrorCode
) -> None:
    room = cluster(1)
    with pytest.raises(ApiError) as caught:
        room.do(BrokerHeartbeat(broker, epoch, 99))
    assert caught.value.code is code


def test_a_broker_may_ask_to_be_fenced() -> None:
    room = cluster(1, 2)
    room.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    assert room.beat(1, wants_fence=True).is_fenced
    assert room.partition("t").leader == 2
    assert room.beat(1, wants_fence=True).is_fenced, "and stays so while it asks"
    assert not room.beat(1).is_fenced


# -- silence -------------------------------------------------------------------------------------


def test_a_silent_broker_is_fenced_after_a_second_and_its_partitions_are_led_by_others() -> None:
    room = cluster(1, 2, 3)
    room.place("t", 1, *(PartitionImage((1, 2, 3), (1, 2, 3), 1) for _ in range(20)))
    room.pass_time(900, 2, 3)
    assert 1 not in room.fenced()
    offset = room.image.offset
    room.pass_time(100, 2, 3)
    assert 1 in room.fenced()
    assert room.image.offset == offset + 1, "in one entry of the log"
    assert {(p.leader, p.in_sync_replicas) for p in room.partitions("t")} == {(2, (2, 3))}


def test_brokers_that_die_together_do_not_elect_each_other() -> None:
    room = cluster(1, 2, 3)
    room.place("t", 1, PartitionImage((1, 2, 3), (1, 2, 3), 1))
    room.pass_time(1000, 3)
    partition = room.partition("t")
    assert (partition.leader, partition.leader_epoch, partition.in_sync_replicas) == (3, 1, (3,))


def test_the_session_timeout_is_a_config_of_the_cluster() -> None:
    room = cluster(1)
    room.set_config(ConfigResourceType.BROKER, "", broker_session_timeout_ms="3000")
    room.pass_time(2900)
    assert 1 not in room.fenced()
    room.pass_time(100)
    assert 1 in room.fenced()


def test_a_broker_that_never_sent_a_heartbeat_is_not_waited_for() -> None:
    room = ControllerRoom(brokers=1)
    room.pass_time(5000)
    assert 0 not in room.fenced()


def test_a_broker_that_sends_no_heartbeats_any_more_is_not_waited_for() -> None:
    room = cluster(1)
    room.now_ms += 1000
    room.do(RegisterBroker(1, topic_id(7)))
    room.pass_time(3000)
    assert 1 not in room.fenced()


def test_a_new_controller_waits_for_the_node_of_the_last_one_half_as_long() -> None:
    room = cluster(1, 2, 3)
    room.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    room.now_ms += 100
    room.lead()
    room.controller.suspect(1, room.now_ms - 100)
    room.pass_time(300, 2, 3)
    assert room.fenced() == set()
    room.pass_time(100, 2, 3)
    assert room.fenced() == {1}
    assert room.partition("t").leader == 2


def test_who_is_fenced_or_gone_is_not_looked_at_all_the_time() -> None:
    room = cluster(1, 2)
    room.do(UnregisterBroker(2))
    room.pass_time(1000)
    assert room.fenced() == {1}
    deadline_ms = room.controller.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms > room.now_ms + 60_000


def test_a_fenced_broker_that_is_heard_of_again_serves_again() -> None:
    room = cluster(1)
    room.pass_time(1000)
    assert 1 in room.fenced()
    assert not room.beat(1).is_fenced
    room.pass_time(900)
    assert 1 not in room.fenced()


# -- controlled shutdown ---------------------------------------------------------------------------


def test_a_broker_that_leaves_hands_its_lead_over_and_goes_when_all_know() -> None:
    room = cluster(1, 2, 3)
    room.place("t", 1, *(PartitionImage((1, 2), (1, 2), 1) for _ in range(3)))
    room.place("f", 2, PartitionImage((2, 1), (2, 1), 2))
    for broker in (2, 3):
        room.beat(broker)
    reply = room.beat(1, wants_shut_down=True)
    assert (reply.is_in_controlled_shutdown, reply.should_shut_down) == (True, False)
    moved_at = room.image.offset
    assert {(p.leader, p.in_sync_replicas) for p in room.partitions("t")} == {(2, (2,))}
    assert room.partition("f").in_sync_replicas == (2,)
    assert 1 not in room.fenced(), "it still answers what it is asked"
    room.beat(2)
    room.beat(3, at=moved_at - 1)
    assert not room.beat(1, wants_shut_down=True).should_shut_down, "3 does not know yet"
    room.beat(3)
    assert room.beat(1, wants_shut_down=True).should_shut_down
    assert 1 in room.fenced()


def test_a_broker_that_leads_nothing_goes_at_once() -> None:
    room = cluster(1, 2)
    room.place("t", 1, PartitionImage((2, 1), (2, 1), 2))
    assert room.beat(1, wants_shut_down=True).should_shut_down
    assert room.partition("t").in_sync_replicas == (2,)
    assert room.start(1, incarnation=7)
    assert not room.beat(1).is_in_controlled_shutdown


def test_the_only_holder_of_a_partition_may_leave_and_leads_it_when_it_is_back() -> None:
    room = cluster(1, 2)
    room.place("t", 1, PartitionImage((1,), (1,), 1))
    room.beat(2)
    assert not room.beat(1, wants_shut_down=True).should_shut_down
    assert room.partition("t").leader == 1, "it serves as long as it is there"
    room.beat(2)
    assert room.beat(1, wants_shut_down=True).should_shut_down
    assert (room.partition("t").leader, room.partition("t").in_sync_replicas) == (NO_LEADER, (1,))
    room.start(1, incarnation=7)
    room.beat(1)
    assert room.partition("t").leader == 1


def asks_for_in_sync(room: ControllerRoom, leader: int, *in_sync: int) -> InSyncResult:
    """The leader of partition t-0 wants another ISR."""
    now = room.partition("t")
    members = tuple(InSyncReplica(broker) for broker in in_sync)
    change = InSyncChange(topic_id(1), 0, now.leader_epoch, now.partition_epoch, members)
    epoch = room.image.brokers[leader].broker_epoch
    reply = room.do(AlterPartition(leader, epoch, (change,)))
    assert isinstance(reply, InSyncReply)
    return reply.results[0]


def test_a_leader_waits_for_a_replica_that_is_catching_up() -> None:
    room = cluster(1, 2)
    room.place("t", 1, PartitionImage((1, 2), (1,), 1))
    for _ in range(3):
        room.beat(2)
        assert not room.beat(1, wants_shut_down=True).should_shut_down
    assert room.partition("t").leader == 1
    result = asks_for_in_sync(room, 1, 1, 2)
    assert result.error_code == ErrorCode.NEW_LEADER_ELECTED
    assert room.partition("t").leader == 2
    assert not room.beat(1, wants_shut_down=True).should_shut_down, "2 does not know yet"
    assert room.partition("t").in_sync_replicas == (2,)
    room.beat(2)
    assert room.beat(1, wants_shut_down=True).should_shut_down


def test_a_leader_that_waits_may_put_laggards_out_and_stays() -> None:
    room = cluster(1, 2)
    room.place("t", 1, PartitionImage((1, 2), (1,), 1))
    room.beat(1, wants_shut_down=True)
    room.put("t", PartitionImage((1, 2), (1, 2), 1, 0, 5))
    room.write(BrokerChanged(2, True, False))
    assert not asks_for_in_sync(room, 1, 1).error_code
    assert (room.partition("t").leader, room.partition("t").in_sync_replicas) == (1, (1,))


def test_who_leaves_an_isr_that_is_just_large_enough_waits_for_the_third() -> None:
    room = cluster(1, 2, 3)
    room.place("t", 1, PartitionImage((2, 1, 3), (2, 1), 2))
    room.set_config(ConfigResourceType.TOPIC, "t", min_insync_replicas="2")
    for broker in (2, 3):
        room.beat(broker)
    assert not room.beat(1, wants_shut_down=True).should_shut_down
    assert room.partition("t").in_sync_replicas == (2, 1)
    assert not asks_for_in_sync(room, 2, 2, 1, 3).error_code
    room.beat(1, wants_shut_down=True)
    assert room.partition("t").in_sync_replicas == (2, 3)
    for broker in (2, 3):
        room.beat(broker)
    assert room.beat(1, wants_shut_down=True).should_shut_down


def test_who_leaves_does_not_wait_for_a_replica_that_is_away() -> None:
    room = cluster(1, 2, 3)
    room.place("t", 1, PartitionImage((1, 2, 3), (1, 2), 1))
    room.set_config(ConfigResourceType.TOPIC, "t", min_insync_replicas="2")
    room.do(UnregisterBroker(3))
    room.beat(2)
    room.beat(1, wants_shut_down=True)
    assert (room.partition("t").leader, room.partition("t").in_sync_replicas) == (2, (2,))
    room.beat(2)
    assert room.beat(1, wants_shut_down=True).should_shut_down


def test_who_leaves_gets_nothing_new() -> None:
    room = cluster(1, 2)
    room.place("t", 1, PartitionImage((1, 2), (1,), 1))
    room.place("u", 2, PartitionImage((2, 1), (2,), 2))
    room.beat(1, wants_shut_down=True)
    now = room.partition("u")
    members = (InSyncReplica(2), InSyncReplica(1))
    change = InSyncChange(topic_id(2), 0, now.leader_epoch, now.partition_epoch, members)
    reply = room.do(AlterPartition(2, room.image.brokers[2].broker_epoch, (change,)))
    assert isinstance(reply, InSyncReply)
    assert reply.results[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    room.do(UnregisterBroker(2))
    assert room.partition("u").leader == NO_LEADER


def test_a_successor_need_not_wait_for_the_one_that_leaves() -> None:
    room = cluster(1, 2)
    room.place("t", 1, PartitionImage((1,), (1,), 1))
    room.beat(1, wants_shut_down=True)
    room.start(1, incarnation=7)
    assert not room.image.brokers[1].is_in_controlled_shutdown


def test_a_fenced_broker_may_go_at_once() -> None:
    room = cluster()
    room.start(1)
    assert room.beat(1, wants_shut_down=True).should_shut_down


def test_a_shutdown_goes_on_under_the_next_controller() -> None:
    room = cluster(1, 2)
    room.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    room.beat(1, wants_shut_down=True)
    room.lead()
    assert not room.beat(1, wants_shut_down=True).should_shut_down, "2 was not heard of yet"
    room.beat(2)
    assert room.beat(1, wants_shut_down=True).should_shut_down


# -- unregistering ---------------------------------------------------------------------------------


def test_an_unregistered_broker_is_gone_and_others_lead() -> None:
    room = cluster(1, 2)
    room.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    assert room.do(UnregisterBroker(1)) == UnregisteredReply(1)
    assert 1 not in room.image.brokers
    assert (room.partition("t").leader, room.partition("t").replicas) == (2, (1, 2))
    room.pass_time(2000, 2)
    with pytest.raises(ApiError) as caught:
        room.do(UnregisterBroker(1))
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    room.start(1, incarnation=7)
    assert 1 in room.restarted().brokers


def test_who_comes_after_a_drained_broker_under_its_id_takes_replicas() -> None:
    room = cluster(1, 2)
    room.set_config(ConfigResourceType.BROKER, "1", cordoned_log_dirs="*", fetch_max_bytes="2000")
    room.do(UnregisterBroker(1))
    kept = room.image.configs.of(ConfigResourceType.BROKER, "1")
    assert dict(kept) == {"fetch.max.bytes": "2000"}


def test_the_last_broker_is_not_unregistered() -> None:
    room = cluster(1, 2)
    room.do(UnregisterBroker(1))
    with pytest.raises(ApiError) as caught:
        room.do(UnregisterBroker(2))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert list(room.image.brokers) == [2]


# -- producer ids --------------------------------------------------------------------------------


def allocate(room: ControllerRoom, broker: int, epoch: int | None = None) -> tuple[int, int]:
    if epoch is None:
        epoch = room.image.brokers[broker].broker_epoch
    reply = room.do(AllocateProducerIds(broker, epoch))
    assert isinstance(reply, ProducerIdsReply)
    return reply.first, reply.count


def test_no_producer_id_is_given_twice() -> None:
    room = ControllerRoom(brokers=2)
    assert [allocate(room, broker) for broker in (0, 1, 0)] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]
    assert room.restarted().next_producer_id == 3000


@pytest.mark.parametrize(
    ("broker", "epoch", "code"),
    [(7, 1, ErrorCode.BROKER_ID_NOT_REGISTERED), (0, 1, ErrorCode.STALE_BROKER_EPOCH)],
)
def test_only_a_registered_broker_gets_producer_ids(
    broker: int, epoch: int, code: ErrorCode
) -> None:
    with pytest.raises(ApiError) as caught:
        allocate(ControllerRoom(), broker, epoch)
    assert caught.value.code is code


def test_producer_ids_end_before_they_overflow() -> None:
    room = ControllerRoom()
    room.write(ProducerIdsAllocated(0, 2, 2**63 - 1000))
    with pytest.raises(ApiError) as caught:
        allocate(room, 0)
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
