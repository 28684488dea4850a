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
from odradek.cluster.metadata.features import REGISTERED_FEATURES, SECURITY_VERSION
from odradek.cluster.metadata.image import (
    NO_LEADER,
    BrokerListener,
    ConfigResourceType,
    FeatureRange,
    PartitionImage,
)
from odradek.cluster.metadata.records import (
    BrokerChanged,
    FeatureLevelChanged,
    ProducerIdsAllocated,
)
from odradek.protocol.errors import ApiError, ErrorCode
from tests.support.controller_harness import FEATURES, ControllerHarness, topic_id


def test_a_registration_is_recorded() -> None:
    broker = ControllerHarness(brokers=2).image.brokers[1]
    assert broker.listeners == (BrokerListener("PLAINTEXT", "host-1", 9093),)
    assert (broker.rack, broker.features) == ("rack-1", FEATURES)
    assert not broker.is_fenced


def test_a_second_registration_has_a_higher_broker_epoch() -> None:
    harness = ControllerHarness()
    before = harness.image.brokers[0]
    reply = harness.do(RegisterBroker(0, topic_id(5), "cluster"))
    assert isinstance(reply, BrokerReply)
    after = harness.image.brokers[0]
    assert after.broker_epoch == reply.broker_epoch > before.broker_epoch
    assert (after.incarnation_id, after.rack, after.listeners) == (topic_id(5), None, ())


def test_a_single_node_leads_in_new_epochs_after_each_start() -> None:
    harness = ControllerHarness()
    harness.place("t", 1, PartitionImage((0,), (0,), 0, 4, 9), PartitionImage((0,), (0,), 0))
    harness.do(RegisterBroker(0, topic_id(5), "cluster"))
    first, second = harness.partitions("t")
    assert (first.leader, first.leader_epoch, first.partition_epoch) == (0, 5, 10)
    assert (second.leader, second.leader_epoch, second.partition_epoch) == (0, 1, 1)
    # A repeated registration, as after a restart of its controller alone, changes nothing.
    harness.do(RegisterBroker(0, topic_id(5), "cluster"))
    assert harness.partitions("t") == (first, second)


def test_a_single_node_raises_no_epoch_of_a_partition_that_it_does_not_lead() -> None:
    harness = ControllerHarness(brokers=2)
    harness.place("t", 1, PartitionImage((0, 1), (0, 1), 1), PartitionImage((0,), (0,), NO_LEADER))
    before = harness.partitions("t")
    harness.do(RegisterBroker(0, topic_id(5), "cluster"))
    assert harness.partitions("t") == before


def test_a_broker_of_another_cluster_is_refused() -> None:
    harness = ControllerHarness()
    with pytest.raises(ApiError) as caught:
        harness.do(RegisterBroker(1, topic_id(5), "other"))
    assert caught.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert "other" in caught.value.message
    assert 1 not in harness.image.brokers


def refusal(harness: ControllerHarness, broker: int, **more: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        harness.start(broker, **more)  # type: ignore[arg-type] # fields of the registration
    return caught.value


def cluster(*brokers: int) -> ControllerHarness:
    """Brokers that send heartbeats, and their controller."""
    harness = ControllerHarness(brokers=0)
    harness.activate()
    harness.join(*brokers)
    return harness


# -- registration ------------------------------------------------------------------------------


def test_a_broker_that_sends_heartbeats_starts_fenced() -> None:
    harness = cluster()
    epoch = harness.start(1, log_dirs=(topic_id(9),))
    broker = harness.image.brokers[1]
    assert (broker.is_fenced, broker.broker_epoch, broker.log_dirs) == (True, epoch, (topic_id(9),))
    assert harness.restarted().brokers[1] == broker


def test_a_second_broker_with_the_id_of_a_live_one_is_refused() -> None:
    harness = cluster(1)
    before = harness.image.brokers[1]
    error = refusal(harness, 1, incarnation=7)
    assert error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "1000 ms" in error.message
    assert harness.image.brokers[1] == before


def test_a_second_broker_is_refused_before_the_first_has_caught_up_too() -> None:
    harness = cluster()
    harness.start(1)
    assert refusal(harness, 1, incarnation=7).code is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_a_new_incarnation_of_a_dead_broker_gets_a_new_epoch() -> None:
    harness = cluster(1)
    before = harness.image.brokers[1].broker_epoch
    harness.pass_time(1000)
    assert 1 in harness.fenced()
    assert harness.start(1, incarnation=7) > before
    assert harness.image.brokers[1].incarnation_id == topic_id(7)


def test_a_broker_whose_session_expired_may_register_before_it_is_fenced() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    harness.now_ms += 1000
    harness.start(1, incarnation=7)
    assert 1 in harness.fenced()
    partition = harness.partition("t")
    assert (partition.leader, partition.in_sync_replicas) == (2, (2,))


def test_a_repeated_registration_keeps_epoch_and_state() -> None:
    harness = cluster(1)
    written = len(harness.records)
    epoch = harness.image.brokers[1].broker_epoch
    assert harness.start(1) == epoch
    assert len(harness.records) == written
    assert harness.start(1, listeners=(BrokerListener("PLAINTEXT", "elsewhere", 1),)) == epoch
    broker = harness.image.brokers[1]
    assert (broker.is_fenced, broker.listeners[0].host) == (False, "elsewhere")


def test_a_broker_must_support_the_finalized_features() -> None:
    harness = cluster()
    harness.write(FeatureLevelChanged("metadata.version", 25))
    error = refusal(harness, 1, features=(FeatureRange("metadata.version", 7, 24),))
    assert error.code is ErrorCode.UNSUPPORTED_VERSION
    assert error.message == (
        "Unable to register because the broker does not support finalized version 25 of"
        " metadata.version. The broker wants a version between 7 and 24, inclusive."
    )
    assert refusal(harness, 1, features=(FeatureRange("x", 0, 1),)).code == error.code
    harness.start(1, features=(FeatureRange("metadata.version", 7, 25),))
    harness.start(2)  # says nothing about features


def test_an_invalid_registration_is_refused() -> None:
    harness = cluster()
    twice = (BrokerListener("A", "h", 1), BrokerListener("A", "h", 2))
    assert refusal(harness, 1, listeners=twice).code is ErrorCode.INVALID_REGISTRATION
    assert refusal(harness, -1).code is ErrorCode.INVALID_REGISTRATION


# -- what a new incarnation says of its logs -----------------------------------------------------


def two_in_sync() -> ControllerHarness:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    harness.place("alone", 2, PartitionImage((1,), (1,), 1))
    return harness


def restart(harness: ControllerHarness, broker: int, **more: object) -> None:
    harness.pass_time(1000, *({1, 2} - {broker}))
    harness.start(broker, incarnation=7, **more)  # type: ignore[arg-type] # fields of the registration
    assert not harness.send_heartbeat(broker).is_fenced


def test_a_broker_with_intact_logs_leads_its_partitions_again() -> None:
    harness = two_in_sync()
    epoch = harness.image.brokers[1].broker_epoch
    restart(harness, 1, previous_broker_epoch=epoch)
    assert (harness.partition("alone").leader, harness.partition("alone").leader_epoch) == (1, 2)
    assert harness.partition("t").in_sync_replicas == (2,)


def test_an_unclean_shutdown_ends_eligibility() -> None:
    harness = two_in_sync()
    harness.set_config(ConfigResourceType.TOPIC, "t", min_insync_replicas="2")
    harness.with_elr()
    harness.pass_time(1000, 2)
    assert harness.partition("t").elr == (1,)
    harness.start(1, incarnation=7, previous_broker_epoch=-1)
    assert harness.partition("t").elr == ()
    assert not harness.send_heartbeat(1).is_fenced
    assert harness.partition("alone").leader == 1, "nobody else has more"


def test_an_unclean_shutdown_of_an_unregistered_broker_ends_eligibility() -> None:
    harness = two_in_sync()
    harness.set_config(ConfigResourceType.TOPIC, "t", min_insync_replicas="2")
    harness.with_elr()
    harness.do(UnregisterBroker(1))
    assert harness.partition("t").elr == (1,)
    harness.start(1, incarnation=7, previous_broker_epoch=-1)
    assert harness.partition("t").elr == ()


def test_a_broker_with_a_wiped_disk_is_not_elected() -> None:
    harness = cluster()
    harness.start(1, log_dirs=(topic_id(1),))
    harness.send_heartbeat(1)
    harness.join(2)
    harness.place("t", 1, PartitionImage((1, 2), (1,), 1))
    harness.pass_time(1000, 2)
    harness.start(1, incarnation=7, log_dirs=(topic_id(2),))
    assert not harness.send_heartbeat(1).is_fenced
    partition = harness.partition("t")
    assert (partition.leader, partition.in_sync_replicas) == (NO_LEADER, ())
    assert harness.restarted().brokers[1].log_dirs == (topic_id(2),)


# -- heartbeats ----------------------------------------------------------------------------------


def test_a_broker_is_unfenced_when_it_has_applied_its_registration() -> None:
    harness = cluster()
    epoch = harness.start(1)
    reply = harness.send_heartbeat(1, at=epoch - 1)
    assert (reply.is_caught_up, reply.is_fenced) == (False, True)
    reply = harness.send_heartbeat(1, at=epoch)
    assert (reply.is_caught_up, reply.is_fenced) == (True, False)
    assert reply.next_heartbeat_ms == 200
    assert 1 not in harness.fenced()


def test_a_broker_that_returns_leads_leaderless_partitions() -> None:
    harness = cluster(1, 2)
    harness.place(
        "t",
        1,
        PartitionImage((1,), (1,), 1),
        PartitionImage((2,), (2,), 2),
        PartitionImage((1, 2), (1, 2), 1),
    )
    harness.pass_time(1000, 2)
    assert [p.leader for p in harness.partitions("t")] == [NO_LEADER, 2, 2]
    harness.start(1, incarnation=7)
    harness.send_heartbeat(1)
    assert [p.leader for p in harness.partitions("t")] == [1, 2, 2]


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    harness = cluster(1)
    written = len(harness.records)
    for _ in range(3):
        harness.send_heartbeat(1)
    assert len(harness.records) == written


@pytest.mark.parametrize(
    ("broker", "epoch", "code"),
    [(7, 1, ErrorCode.BROKER_ID_NOT_REGISTERED), (1, 1, ErrorCode.STALE_BROKER_EPOCH)],
)
def test_a_heartbeat_with_an_unknown_epoch_is_refused(
    broker: int, epoch: int, code: ErrorCode
) -> None:
    harness = cluster(1)
    with pytest.raises(ApiError) as caught:
        harness.do(BrokerHeartbeat(broker, epoch, 99))
    assert caught.value.code is code


def test_a_broker_may_ask_to_be_fenced() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    assert harness.send_heartbeat(1, wants_fence=True).is_fenced
    assert harness.partition("t").leader == 2
    assert harness.send_heartbeat(1, wants_fence=True).is_fenced, "and stays so while it asks"
    assert not harness.send_heartbeat(1).is_fenced


# -- silence -------------------------------------------------------------------------------------


def test_a_broker_without_heartbeats_is_fenced_and_others_lead_its_partitions() -> None:
    harness = cluster(1, 2, 3)
    harness.place("t", 1, *(PartitionImage((1, 2, 3), (1, 2, 3), 1) for _ in range(20)))
    harness.pass_time(900, 2, 3)
    assert 1 not in harness.fenced()
    offset = harness.image.offset
    harness.pass_time(100, 2, 3)
    assert 1 in harness.fenced()
    assert harness.image.offset == offset + 1, "in one entry of the log"
    assert {(p.leader, p.in_sync_replicas) for p in harness.partitions("t")} == {(2, (2, 3))}


def test_brokers_that_die_together_do_not_elect_each_other() -> None:
    harness = cluster(1, 2, 3)
    harness.place("t", 1, PartitionImage((1, 2, 3), (1, 2, 3), 1))
    harness.pass_time(1000, 3)
    partition = harness.partition("t")
    assert (partition.leader, partition.leader_epoch, partition.in_sync_replicas) == (3, 1, (3,))


def test_the_session_timeout_is_a_config_of_the_cluster() -> None:
    harness = cluster(1)
    harness.set_config(ConfigResourceType.BROKER, "", broker_session_timeout_ms="3000")
    harness.pass_time(2900)
    assert 1 not in harness.fenced()
    harness.pass_time(100)
    assert 1 in harness.fenced()


def test_a_broker_that_never_sent_a_heartbeat_is_not_waited_for() -> None:
    harness = ControllerHarness(brokers=1)
    harness.pass_time(5000)
    assert 0 not in harness.fenced()


def test_a_broker_that_sends_no_heartbeats_any_more_is_not_waited_for() -> None:
    harness = cluster(1)
    harness.now_ms += 1000
    harness.do(RegisterBroker(1, topic_id(7)))
    harness.pass_time(3000)
    assert 1 not in harness.fenced()


def test_the_node_of_the_former_controller_has_half_a_session() -> None:
    harness = cluster(1, 2, 3)
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    harness.now_ms += 100
    harness.activate()
    harness.controller.suspect(1, harness.now_ms - 100)
    harness.pass_time(300, 2, 3)
    assert harness.fenced() == set()
    harness.pass_time(100, 2, 3)
    assert harness.fenced() == {1}
    assert harness.partition("t").leader == 2


def test_fenced_and_unregistered_brokers_need_no_checks() -> None:
    harness = cluster(1, 2)
    harness.do(UnregisterBroker(2))
    harness.pass_time(1000)
    assert harness.fenced() == {1}
    deadline_ms = harness.controller.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms > harness.now_ms + 60_000


def test_a_fenced_broker_that_sends_heartbeats_is_unfenced() -> None:
    harness = cluster(1)
    harness.pass_time(1000)
    assert 1 in harness.fenced()
    assert not harness.send_heartbeat(1).is_fenced
    harness.pass_time(900)
    assert 1 not in harness.fenced()


# -- controlled shutdown ---------------------------------------------------------------------------


def test_controlled_shutdown_ends_when_all_brokers_know_the_new_leaders() -> None:
    harness = cluster(1, 2, 3)
    harness.place("t", 1, *(PartitionImage((1, 2), (1, 2), 1) for _ in range(3)))
    harness.place("f", 2, PartitionImage((2, 1), (2, 1), 2))
    for broker in (2, 3):
        harness.send_heartbeat(broker)
    reply = harness.send_heartbeat(1, wants_shut_down=True)
    assert (reply.is_in_controlled_shutdown, reply.should_shut_down) == (True, False)
    moved_at = harness.image.offset
    assert {(p.leader, p.in_sync_replicas) for p in harness.partitions("t")} == {(2, (2,))}
    assert harness.partition("f").in_sync_replicas == (2,)
    assert 1 not in harness.fenced(), "it still answers what it is asked"
    harness.send_heartbeat(2)
    harness.send_heartbeat(3, at=moved_at - 1)
    assert not harness.send_heartbeat(1, wants_shut_down=True).should_shut_down, (
        "3 does not know yet"
    )
    harness.send_heartbeat(3)
    assert harness.send_heartbeat(1, wants_shut_down=True).should_shut_down
    assert 1 in harness.fenced()


def test_a_broker_that_leads_nothing_shuts_down_at_once() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((2, 1), (2, 1), 2))
    assert harness.send_heartbeat(1, wants_shut_down=True).should_shut_down
    assert harness.partition("t").in_sync_replicas == (2,)
    assert harness.start(1, incarnation=7)
    assert not harness.send_heartbeat(1).is_in_controlled_shutdown


def test_the_only_replica_of_a_partition_may_shut_down_and_leads_again_later() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1,), (1,), 1))
    harness.send_heartbeat(2)
    assert not harness.send_heartbeat(1, wants_shut_down=True).should_shut_down
    assert harness.partition("t").leader == 1, "it serves as long as it is there"
    harness.send_heartbeat(2)
    assert harness.send_heartbeat(1, wants_shut_down=True).should_shut_down
    assert (harness.partition("t").leader, harness.partition("t").in_sync_replicas) == (
        NO_LEADER,
        (1,),
    )
    harness.start(1, incarnation=7)
    harness.send_heartbeat(1)
    assert harness.partition("t").leader == 1


def asks_for_in_sync(harness: ControllerHarness, leader: int, *in_sync: int) -> InSyncResult:
    """The leader of partition t-0 wants another ISR."""
    now = harness.partition("t")
    members = tuple(InSyncReplica(broker) for broker in in_sync)
    change = InSyncChange(topic_id(1), 0, now.leader_epoch, now.partition_epoch, members)
    epoch = harness.image.brokers[leader].broker_epoch
    reply = harness.do(AlterPartition(leader, epoch, (change,)))
    assert isinstance(reply, InSyncReply)
    return reply.results[0]


def test_controlled_shutdown_waits_for_a_replica_that_is_catching_up() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1,), 1))
    for _ in range(3):
        harness.send_heartbeat(2)
        assert not harness.send_heartbeat(1, wants_shut_down=True).should_shut_down
    assert harness.partition("t").leader == 1
    result = asks_for_in_sync(harness, 1, 1, 2)
    assert result.error_code == ErrorCode.NEW_LEADER_ELECTED
    assert harness.partition("t").leader == 2
    assert not harness.send_heartbeat(1, wants_shut_down=True).should_shut_down, (
        "2 does not know yet"
    )
    assert harness.partition("t").in_sync_replicas == (2,)
    harness.send_heartbeat(2)
    assert harness.send_heartbeat(1, wants_shut_down=True).should_shut_down


def test_a_leader_in_controlled_shutdown_may_shrink_its_isr() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1,), 1))
    harness.send_heartbeat(1, wants_shut_down=True)
    harness.put("t", PartitionImage((1, 2), (1, 2), 1, 0, 5))
    harness.write(BrokerChanged(2, True, False))
    assert not asks_for_in_sync(harness, 1, 1).error_code
    assert (harness.partition("t").leader, harness.partition("t").in_sync_replicas) == (1, (1,))


def test_controlled_shutdown_keeps_min_insync_replicas() -> None:
    harness = cluster(1, 2, 3)
    harness.place("t", 1, PartitionImage((2, 1, 3), (2, 1), 2))
    harness.set_config(ConfigResourceType.TOPIC, "t", min_insync_replicas="2")
    for broker in (2, 3):
        harness.send_heartbeat(broker)
    assert not harness.send_heartbeat(1, wants_shut_down=True).should_shut_down
    assert harness.partition("t").in_sync_replicas == (2, 1)
    assert not asks_for_in_sync(harness, 2, 2, 1, 3).error_code
    harness.send_heartbeat(1, wants_shut_down=True)
    assert harness.partition("t").in_sync_replicas == (2, 3)
    for broker in (2, 3):
        harness.send_heartbeat(broker)
    assert harness.send_heartbeat(1, wants_shut_down=True).should_shut_down


def test_controlled_shutdown_does_not_wait_for_a_fenced_replica() -> None:
    harness = cluster(1, 2, 3)
    harness.place("t", 1, PartitionImage((1, 2, 3), (1, 2), 1))
    harness.set_config(ConfigResourceType.TOPIC, "t", min_insync_replicas="2")
    harness.do(UnregisterBroker(3))
    harness.send_heartbeat(2)
    harness.send_heartbeat(1, wants_shut_down=True)
    assert (harness.partition("t").leader, harness.partition("t").in_sync_replicas) == (2, (2,))
    harness.send_heartbeat(2)
    assert harness.send_heartbeat(1, wants_shut_down=True).should_shut_down


def test_a_broker_in_controlled_shutdown_gets_no_leadership() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1,), 1))
    harness.place("u", 2, PartitionImage((2, 1), (2,), 2))
    harness.send_heartbeat(1, wants_shut_down=True)
    now = harness.partition("u")
    members = (InSyncReplica(2), InSyncReplica(1))
    change = InSyncChange(topic_id(2), 0, now.leader_epoch, now.partition_epoch, members)
    reply = harness.do(AlterPartition(2, harness.image.brokers[2].broker_epoch, (change,)))
    assert isinstance(reply, InSyncReply)
    assert reply.results[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    harness.do(UnregisterBroker(2))
    assert harness.partition("u").leader == NO_LEADER


def test_a_new_incarnation_may_register_during_controlled_shutdown() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1,), (1,), 1))
    harness.send_heartbeat(1, wants_shut_down=True)
    harness.start(1, incarnation=7)
    assert not harness.image.brokers[1].is_in_controlled_shutdown


def test_a_fenced_broker_may_shut_down_at_once() -> None:
    harness = cluster()
    harness.start(1)
    assert harness.send_heartbeat(1, wants_shut_down=True).should_shut_down


def test_a_controlled_shutdown_continues_under_the_next_controller() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    harness.send_heartbeat(1, wants_shut_down=True)
    harness.activate()
    assert not harness.send_heartbeat(1, wants_shut_down=True).should_shut_down, (
        "2 was not heard of yet"
    )
    harness.send_heartbeat(2)
    assert harness.send_heartbeat(1, wants_shut_down=True).should_shut_down


# -- unregistering ---------------------------------------------------------------------------------


def test_the_partitions_of_an_unregistered_broker_get_other_leaders() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    assert harness.do(UnregisterBroker(1)) == UnregisteredReply(1)
    assert 1 not in harness.image.brokers
    assert (harness.partition("t").leader, harness.partition("t").replicas) == (2, (1, 2))
    harness.pass_time(2000, 2)
    with pytest.raises(ApiError) as caught:
        harness.do(UnregisterBroker(1))
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    harness.start(1, incarnation=7)
    assert 1 in harness.restarted().brokers


def test_unregistering_a_drained_broker_ends_its_cordon() -> None:
    harness = cluster(1, 2)
    harness.set_config(
        ConfigResourceType.BROKER, "1", cordoned_log_dirs="*", fetch_max_bytes="2000"
    )
    harness.do(UnregisterBroker(1))
    kept = harness.image.configs.of(ConfigResourceType.BROKER, "1")
    assert dict(kept) == {"fetch.max.bytes": "2000"}


def test_the_last_broker_is_not_unregistered() -> None:
    harness = cluster(1, 2)
    harness.do(UnregisterBroker(1))
    with pytest.raises(ApiError) as caught:
        harness.do(UnregisterBroker(2))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert list(harness.image.brokers) == [2]


# -- producer ids --------------------------------------------------------------------------------


def allocate(harness: ControllerHarness, broker: int, epoch: int | None = None) -> tuple[int, int]:
    if epoch is None:
        epoch = harness.image.brokers[broker].broker_epoch
    reply = harness.do(AllocateProducerIds(broker, epoch))
    assert isinstance(reply, ProducerIdsReply)
    return reply.first, reply.count


def test_no_producer_id_is_given_twice() -> None:
    harness = ControllerHarness(brokers=2)
    assert [allocate(harness, broker) for broker in (0, 1, 0)] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]
    assert harness.restarted().next_producer_id == 3000


@pytest.mark.parametrize(
    ("broker", "epoch", "code"),
    [(7, 1, ErrorCode.BROKER_ID_NOT_REGISTERED), (0, 1, ErrorCode.STALE_BROKER_EPOCH)],
)
def test_only_a_registered_broker_gets_producer_ids(
    broker: int, epoch: int, code: ErrorCode
) -> None:
    with pytest.raises(ApiError) as caught:
        allocate(ControllerHarness(), broker, epoch)
    assert caught.value.code is code


def test_producer_ids_end_before_they_overflow() -> None:
    harness = ControllerHarness()
    harness.write(ProducerIdsAllocated(0, 2, 2**63 - 1000))
    with pytest.raises(ApiError) as caught:
        allocate(harness, 0)
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_the_first_broker_that_registers_gives_the_cluster_its_decoy_key() -> None:
    harness = ControllerHarness(brokers=0)
    harness.start(1, features=REGISTERED_FEATURES, decoy_key=b"first")
    assert harness.image.decoy_key == b"", "a node of an older release may be there"
    harness.write(FeatureLevelChanged(SECURITY_VERSION, 1))
    for incarnation, key in ((1, b"second"), (2, b"third")):
        harness.now_ms += 60_000
        harness.start(1, incarnation=incarnation, features=REGISTERED_FEATURES, decoy_key=key)
    assert harness.image.decoy_key == harness.restarted().decoy_key == b"second"
