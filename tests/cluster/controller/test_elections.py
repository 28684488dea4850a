"""Requested elections, and those that follow from brokers, configs and time."""

import pytest

from odradek.cluster.controller import elections
from odradek.cluster.controller.commands import (
    ElectLeaders,
    PartitionChangeResult,
    PartitionReference,
    PartitionsReply,
    UnregisterBroker,
)
from odradek.cluster.controller.state import ControllerState
from odradek.cluster.metadata.image import NO_LEADER, ConfigResourceType, PartitionImage
from odradek.cluster.metadata.records import FeatureLevelChanged
from odradek.protocol.errors import ApiError, ErrorCode
from tests.support.controller_harness import ControllerHarness

PREFERRED, UNCLEAN = 0, 1
TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


def cluster(*brokers: int) -> ControllerHarness:
    harness = ControllerHarness(brokers=0)
    harness.activate()
    harness.join(*brokers)
    return harness


def state_of(harness: ControllerHarness) -> ControllerState:
    return ControllerState(harness.image, node_id=0, static={})


def elect(
    harness: ControllerHarness,
    election_type: int,
    *partitions: tuple[str, int],
    everywhere: bool = False,
) -> tuple[PartitionChangeResult, ...]:
    named = None if everywhere else tuple(PartitionReference(*pair) for pair in partitions)
    reply = harness.do(ElectLeaders(election_type, named))
    assert isinstance(reply, PartitionsReply)
    return reply.results


def codes(results: tuple[PartitionChangeResult, ...]) -> list[tuple[str, int, int]]:
    return [(result.topic, result.partition, result.error_code) for result in results]


# -- ElectLeaders ------------------------------------------------------------------------------


def test_the_preferred_leader_is_elected() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 2, 5))
    assert codes(elect(harness, PREFERRED, ("t", 0))) == [("t", 0, 0)]
    assert (harness.partition("t").leader, harness.partition("t").leader_epoch) == (1, 6)


def test_an_election_is_not_needed_if_the_preferred_leader_leads() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    (result,) = elect(harness, PREFERRED, ("t", 0))
    assert result.error_code == ErrorCode.ELECTION_NOT_NEEDED
    assert result.error_message


@pytest.mark.parametrize("in_sync", [(2,), (2, 1)], ids=["not in sync", "not available"])
def test_a_preferred_leader_that_cannot_lead_is_not_elected(in_sync: tuple[int, ...]) -> None:
    harness = cluster(2)
    harness.start(1)
    harness.place("t", 1, PartitionImage((1, 2), in_sync, 2))
    (result,) = elect(harness, PREFERRED, ("t", 0))
    assert result.error_code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert harness.partition("t").leader == 2


@pytest.mark.parametrize("partition", [("nope", 0), ("t", 1), ("t", -1)])
def test_an_unknown_partition_is_an_error(partition: tuple[str, int]) -> None:
    harness = cluster(1)
    harness.place("t", 1, PartitionImage((1,), (1,), 1))
    (result,) = elect(harness, PREFERRED, partition)
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_election_of_all_partitions_answers_only_those_that_needed_one() -> None:
    # B.11: null = all partitions, then ELECTION_NOT_NEEDED (84) rows are left out.
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 1), PartitionImage((1, 2), (1, 2), 2))
    harness.place("u", 2, PartitionImage((1, 2), (2,), 2))
    results = elect(harness, PREFERRED, everywhere=True)
    assert codes(results) == [("t", 1, 0), ("u", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    results = elect(harness, PREFERRED, ("t", 0), ("t", 1), ("t", 1))
    assert [result.error_code for result in results] == [ErrorCode.ELECTION_NOT_NEEDED] * 2


def test_an_unclean_election_is_not_needed_if_there_is_a_leader() -> None:
    harness = cluster(1, 2)
    harness.place(
        "t", 1, PartitionImage((1, 2), (1, 2), 2), PartitionImage((3, 2, 1), (3,), NO_LEADER)
    )
    results = elect(harness, UNCLEAN, ("t", 0), ("t", 1))
    assert codes(results) == [("t", 0, ErrorCode.ELECTION_NOT_NEEDED), ("t", 1, 0)]
    assert (harness.partition("t", 1).leader, harness.partition("t", 1).in_sync_replicas) == (
        2,
        (2,),
    )


def test_an_unclean_election_needs_an_active_replica() -> None:
    harness = cluster(1)
    harness.place("t", 1, PartitionImage((3, 2), (3,), NO_LEADER))
    (result,) = elect(harness, UNCLEAN, ("t", 0))
    assert result.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_there_are_two_types_of_election() -> None:
    with pytest.raises(ApiError) as caught:
        elect(cluster(1), 2, everywhere=True)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


# -- brokers that go and come --------------------------------------------------------------------


def test_unclean_elections_are_automatic_only_if_the_topic_allows_them() -> None:
    harness = cluster(1, 2)
    harness.place("careful", 1, PartitionImage((1, 2), (1,), 1))
    harness.place("careless", 2, PartitionImage((1, 2), (1,), 1))
    harness.set_config(TOPIC, "careless", unclean_leader_election_enable="true")
    harness.pass_time(1000, 2)
    assert harness.partition("careful").leader == NO_LEADER
    assert harness.partition("careful").in_sync_replicas == (1,)
    assert (
        harness.partition("careless").leader,
        harness.partition("careless").in_sync_replicas,
    ) == (
        2,
        (2,),
    )


def test_a_fenced_eligible_leader_leads_when_it_returns() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 1))
    harness.set_config(TOPIC, "t", min_insync_replicas="2")
    harness.with_elr()
    harness.pass_time(1000, 2)
    assert (harness.partition("t").leader, harness.partition("t").elr) == (2, (1,))
    harness.pass_time(1000)
    partition = harness.partition("t")
    assert (partition.leader, partition.in_sync_replicas) == (NO_LEADER, ())
    assert (partition.elr, partition.last_known_elr) == ((1, 2), (2,))
    harness.send_heartbeat(1)
    partition = harness.partition("t")
    assert (partition.leader, partition.in_sync_replicas, partition.elr) == (1, (1,), (2,))


def test_only_partitions_of_the_broker_are_touched() -> None:
    harness = cluster(1, 2, 3)
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 1), PartitionImage((2, 3), (2, 3), 2))
    before = harness.partition("t", 1)
    harness.do(UnregisterBroker(1))
    assert harness.partition("t", 1) is before


# -- configs and features --------------------------------------------------------------------------


def test_allowing_unclean_elections_elects_at_once() -> None:
    harness = cluster(1)
    harness.place("t", 1, PartitionImage((2, 1), (2,), NO_LEADER))
    harness.place("u", 2, PartitionImage((2, 1), (2,), NO_LEADER))
    harness.set_config(TOPIC, "t", unclean_leader_election_enable="true")
    assert (harness.partition("t").leader, harness.partition("u").leader) == (1, NO_LEADER)
    harness.set_config(BROKER, "", unclean_leader_election_enable="true")
    assert harness.partition("u").leader == 1


def test_a_lower_min_insync_replicas_ends_eligibility() -> None:
    # What is committed from then on, the eligible ones do not have.
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1,), 1, elr=(2,)))
    harness.place("u", 2, PartitionImage((1, 2), (1,), 1, elr=(2,)))
    harness.with_elr()
    harness.set_config(BROKER, "", min_insync_replicas="2")
    assert harness.partition("t").elr == (2,)
    harness.set_config(TOPIC, "t", min_insync_replicas="1")
    assert (harness.partition("t").elr, harness.partition("u").elr) == ((), (2,))


def test_other_configs_touch_no_partition() -> None:
    harness = cluster(1)
    harness.place("t", 1, PartitionImage((2, 1), (2,), NO_LEADER))
    before = harness.partition("t")
    harness.set_config(TOPIC, "t", retention_ms="5")
    assert harness.partition("t") is before


# -- preferred leaders as time goes by -------------------------------------------------------------


def test_preferred_leaders_are_elected_every_five_minutes() -> None:
    harness = cluster(1, 2)
    harness.place(
        "t",
        1,
        PartitionImage((1, 2), (1, 2), 2),
        PartitionImage((1, 2), (2,), 2),
        PartitionImage((3, 2), (3, 2), 2),
    )
    harness.pass_time(299_000, 1, 2)
    assert harness.partition("t").leader == 2
    harness.pass_time(1_000, 1, 2)
    assert [p.leader for p in harness.partitions("t")] == [1, 2, 2]


def test_rebalancing_can_be_switched_off_and_its_interval_changed() -> None:
    harness = cluster(1, 2)
    harness.place("t", 1, PartitionImage((1, 2), (1, 2), 2))
    harness.set_config(BROKER, "", auto_leader_rebalance_enable="false")
    harness.set_config(BROKER, "", leader_imbalance_check_interval_seconds="1")
    harness.activate()
    harness.pass_time(3_000, 1, 2)
    assert harness.partition("t").leader == 2
    harness.set_config(BROKER, "", auto_leader_rebalance_enable="true")
    harness.pass_time(1_000, 1, 2)
    assert harness.partition("t").leader == 1


def test_many_elections_are_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "REBALANCED_PARTITIONS_MAX", 2)
    harness = cluster(1, 2)
    harness.place("t", 1, *(PartitionImage((1, 2), (1, 2), 2) for _ in range(5)))
    portions = []
    for _ in range(4):
        records = elections.preferred_elections(state_of(harness))
        portions.append(len(records))
        harness.write(*records)
    assert portions == [2, 2, 1, 0]
    assert {p.leader for p in harness.partitions("t")} == {1}


def test_disabling_the_feature_clears_eligible_leaders() -> None:
    harness = cluster(2)
    harness.with_elr()
    harness.place("t", 1, PartitionImage((1, 2), (), NO_LEADER, elr=(1,), last_known_elr=(1,)))
    off = FeatureLevelChanged("eligible.leader.replicas.version", 0)
    harness.write(off, *elections.partition_changes_after(state_of(harness), [off]))
    partition = harness.partition("t")
    assert (partition.elr, partition.last_known_elr) == ((), ())
    assert (partition.in_sync_replicas, partition.leader) == ((1,), NO_LEADER)
