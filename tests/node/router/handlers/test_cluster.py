"""The cluster APIs as clients see them, in every version (B.11)."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from odradek.cluster.controller.commands import (
    AddRaftVoter,
    AlterPartition,
    InSyncChange,
    InSyncReplica,
    RemoveRaftVoter,
)
from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.cluster.metadata.records import FeatureLevelChanged
from odradek.node.bus.messages import QuorumReplica, QuorumState
from odradek.node.router.handlers.cluster import (
    METADATA_TOPIC,
    REMOVE_VOTER_TIMEOUT_MS,
    UNREGISTER_TIMEOUT_MS,
    handle_add_raft_voter,
    handle_alter_partition_reassignments,
    handle_describe_quorum,
    handle_elect_leaders,
    handle_list_partition_reassignments,
    handle_remove_raft_voter,
    handle_unregister_broker,
    handle_update_features,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.cluster import (
    AddRaftVoterRequest,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    ElectLeadersRequest,
    ElectLeadersResponse,
    FeatureUpdateKey,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
    RemoveRaftVoterRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from odradek.protocol.messages.partitions import (
    PartitionNumber,
    TopicPartitionNumbers,
    TopicPartitions,
)
from tests.support.router_harness import RouterHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def three_brokers(tmp_path: Path) -> Iterator[RouterHarness]:
    """Of three brokers, this node is broker 0."""
    harness = RouterHarness(tmp_path, brokers=3)
    yield harness
    harness.close()


def add_topic(
    harness: RouterHarness, name: str, number: int, partitions: int = 1, factor: int = 3
) -> None:
    harness.controller.has(name, number, partitions, factor)
    harness.follow()


def set_partition(harness: RouterHarness, name: str, partition: int = 0, **state: object) -> None:
    """Set the state of a partition."""
    before = harness.controller.partition(name, partition)
    after = msgspec.structs.replace(before, partition_epoch=before.partition_epoch + 1, **state)
    harness.controller.put(name, after, partition=partition)
    harness.follow()


def deny_alter(harness: RouterHarness) -> None:
    harness.deny(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)


# -- ElectLeaders ----------------------------------------------------------------------------


def elect(
    harness: RouterHarness,
    named: dict[str, list[int]] | None,
    *,
    version: int = 2,
    election_type: int = 0,
) -> ElectLeadersResponse:
    request = ElectLeadersRequest(
        election_type=election_type,
        topic_partitions=None
        if named is None
        else [TopicPartitions(name=name, partitions=numbers) for name, numbers in named.items()],
        timeout_ms=4_321,
    )
    return harness.call(handle_elect_leaders, request, version)


def elected(response: ElectLeadersResponse) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in response.replica_election_results
        for partition in topic.partitions
    }


def move_leader(harness: RouterHarness, name: str, partition: int = 0) -> int:
    """Make an in-sync replica the leader that is not the preferred one; returns the preferred."""
    preferred, other, *_ = harness.controller.partition(name, partition).replicas
    set_partition(harness, name, partition, leader=other, leader_epoch=1)
    return preferred


@pytest.mark.parametrize("version", range(3))
def test_a_preferred_election_elects_the_preferred_leader(
    three_brokers: RouterHarness, version: int
) -> None:
    add_topic(three_brokers, "t", 1, 2)
    preferred = move_leader(three_brokers, "t", 1)
    response = elect(three_brokers, {"t": [0, 1, 2], "u": [0]}, version=version)
    assert response.error_code == ErrorCode.NONE
    assert elected(response) == {
        ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 1): ErrorCode.NONE,
        ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert three_brokers.image.topics_by_name["t"].partitions[1].leader == preferred
    assert three_brokers.link.timeouts_ms == [4_321]
    of_t = response.replica_election_results[0].partitions
    assert [bool(partition.error_message) for partition in of_t] == [True, False, True]


@pytest.mark.parametrize("version", range(3))
def test_null_elects_in_all_partitions_and_lists_those_that_needed_it(
    three_brokers: RouterHarness, version: int
) -> None:
    add_topic(three_brokers, "t", 1, 3)
    add_topic(three_brokers, "u", 5)
    move_leader(three_brokers, "t", 2)
    preferred = move_leader(three_brokers, "u")
    others = tuple(broker for broker in range(3) if broker != preferred)
    set_partition(three_brokers, "u", in_sync_replicas=others)
    assert elected(elect(three_brokers, None, version=version)) == {
        ("t", 2): ErrorCode.NONE,
        ("u", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }


def test_an_empty_list_elects_in_no_partition(three_brokers: RouterHarness) -> None:
    add_topic(three_brokers, "t", 1)
    move_leader(three_brokers, "t")
    assert elect(three_brokers, {}).replica_election_results == []
    assert elected(elect(three_brokers, None)) == {("t", 0): ErrorCode.NONE}


def test_an_unclean_election_elects_a_live_replica(three_brokers: RouterHarness) -> None:
    add_topic(three_brokers, "t", 1)
    gone, *others = three_brokers.controller.partition("t").replicas
    three_brokers.controller.fence(gone)
    set_partition(three_brokers, "t", leader=-1, in_sync_replicas=(gone,))
    assert elected(elect(three_brokers, {"t": [0]})) == {
        ("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    }
    assert elected(elect(three_brokers, {"t": [0]}, election_type=1)) == {("t", 0): ErrorCode.NONE}
    assert three_brokers.image.topics_by_name["t"].partitions[0].leader in others


def test_an_unclean_election_without_live_replicas_fails(three_brokers: RouterHarness) -> None:
    add_topic(three_brokers, "t", 1)
    three_brokers.controller.fence(0, 1, 2)
    set_partition(three_brokers, "t", leader=-1)
    assert elected(elect(three_brokers, {"t": [0]}, election_type=1)) == {
        ("t", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    }


def test_version_0_has_preferred_elections_only(three_brokers: RouterHarness) -> None:
    add_topic(three_brokers, "t", 1)
    move_leader(three_brokers, "t")
    request = ElectLeadersRequest(topic_partitions=[TopicPartitions(name="t", partitions=[0])])
    assert elected(three_brokers.call(handle_elect_leaders, request, 0)) == {
        ("t", 0): ErrorCode.NONE
    }


def test_an_unknown_election_type_is_an_invalid_request(three_brokers: RouterHarness) -> None:
    add_topic(three_brokers, "t", 1)
    response = elect(three_brokers, {"t": [0]}, election_type=2)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert elected(response) == {("t", 0): ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("version", range(3))
def test_elections_need_alter_on_the_cluster(three_brokers: RouterHarness, version: int) -> None:
    add_topic(three_brokers, "t", 1)
    deny_alter(three_brokers)
    move_leader(three_brokers, "t")
    before = three_brokers.image
    response = elect(three_brokers, {"t": [0, 0], "u": [1]}, version=version)
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert response.error_code == (denied if version >= 1 else ErrorCode.NONE)
    assert elected(response) == {("t", 0): denied, ("u", 1): denied}
    assert three_brokers.image is before


def test_an_election_without_a_reply_in_time_times_out(three_brokers: RouterHarness) -> None:
    three_brokers.link.failure = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    response = elect(three_brokers, {"t": [0]})
    assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert elected(response) == {("t", 0): ErrorCode.REQUEST_TIMED_OUT}
    assert elect(three_brokers, None, version=1).error_code == ErrorCode.REQUEST_TIMED_OUT


def test_version_0_without_partitions_closes_the_connection_on_an_error(
    three_brokers: RouterHarness,
) -> None:
    three_brokers.link.failure = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    with pytest.raises(ApiError):
        elect(three_brokers, None, version=0)


# -- AlterPartitionReassignments -------------------------------------------------------------


def reassign(
    harness: RouterHarness,
    targets: dict[tuple[str, int], list[int] | None],
    *,
    version: int = 1,
    may_change_factor: bool = True,
) -> AlterPartitionReassignmentsResponse:
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=4_321,
        allow_replication_factor_change=may_change_factor,
        topics=[
            ReassignableTopic(
                name=name,
                partitions=[ReassignablePartition(partition_index=number, replicas=replicas)],
            )
            for (name, number), replicas in targets.items()
        ],
    )
    return harness.call(handle_alter_partition_reassignments, request, version)


def reassigned(response: AlterPartitionReassignmentsResponse) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in response.responses
        for partition in topic.partitions
    }


def single_replica_topic(harness: RouterHarness, name: str, number: int) -> tuple[int, list[int]]:
    """A topic with one replica: its broker, and the brokers without it."""
    add_topic(harness, name, number, factor=1)
    (at,) = harness.controller.partition(name).replicas
    return at, [broker for broker in range(3) if broker != at]


def catch_up(harness: RouterHarness, name: str) -> None:
    """The leader takes all replicas into the ISR."""
    topic = harness.image.topics_by_name[name]
    (before,) = topic.partitions
    replicas = tuple(InSyncReplica(broker) for broker in before.replicas)
    change = InSyncChange(topic.topic_id, 0, before.leader_epoch, before.partition_epoch, replicas)
    broker_epoch = harness.image.brokers[before.leader].broker_epoch
    harness.controller.do(AlterPartition(before.leader, broker_epoch, (change,)))
    harness.follow()


@pytest.mark.parametrize("version", range(2))
def test_a_reassignment_is_answered_when_it_has_started(
    three_brokers: RouterHarness, version: int
) -> None:
    at, (target, _) = single_replica_topic(three_brokers, "t", 1)
    response = reassign(three_brokers, {("t", 0): [target]}, version=version)
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert response.allow_replication_factor_change
    assert reassigned(response) == {("t", 0): ErrorCode.NONE}
    (partition,) = three_brokers.image.topics_by_name["t"].partitions
    assert (partition.replicas, partition.adding_replicas) == ((target, at), (target,))
    assert partition.leader == at
    assert three_brokers.link.timeouts_ms == [4_321]
    catch_up(three_brokers, "t")
    assert three_brokers.image.topics_by_name["t"].partitions[0].replicas == (target,)


@pytest.mark.parametrize("version", range(2))
def test_null_replicas_cancel_a_reassignment(three_brokers: RouterHarness, version: int) -> None:
    at, (target, _) = single_replica_topic(three_brokers, "t", 1)
    reassign(three_brokers, {("t", 0): [target]})
    codes = [
        reassigned(reassign(three_brokers, {("t", 0): None}, version=version)) for _ in range(2)
    ]
    assert codes == [
        {("t", 0): ErrorCode.NONE},
        {("t", 0): ErrorCode.NO_REASSIGNMENT_IN_PROGRESS},
    ]
    assert three_brokers.image.topics_by_name["t"].partitions[0].replicas == (at,)


def test_each_partition_has_its_own_error_and_message(three_brokers: RouterHarness) -> None:
    _, (target, _) = single_replica_topic(three_brokers, "t", 1)
    single_replica_topic(three_brokers, "u", 2)
    response = reassign(
        three_brokers, {("t", 0): [target], ("u", 0): [7], ("v", 0): [0], ("t", 9): [0]}
    )
    assert response.error_code == ErrorCode.NONE
    assert reassigned(response) == {
        ("t", 0): ErrorCode.NONE,
        ("u", 0): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ("v", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert [topic.name for topic in response.responses] == ["t", "u", "v"]
    assert all(
        bool(partition.error_message) == bool(partition.error_code)
        for topic in response.responses
        for partition in topic.partitions
    )


def test_a_change_of_the_number_of_replicas_can_be_forbidden(three_brokers: RouterHarness) -> None:
    single_replica_topic(three_brokers, "t", 1)
    wanted: dict[tuple[str, int], list[int] | None] = {("t", 0): [0, 1]}
    response = reassign(three_brokers, wanted, may_change_factor=False)
    assert not response.allow_replication_factor_change
    assert reassigned(response) == {("t", 0): ErrorCode.INVALID_REPLICATION_FACTOR}
    assert reassigned(reassign(three_brokers, wanted)) == {("t", 0): ErrorCode.NONE}


def test_a_reassignment_that_fails_as_a_whole_fails_for_each_partition(
    three_brokers: RouterHarness,
) -> None:
    single_replica_topic(three_brokers, "t", 1)
    deny_alter(three_brokers)
    before = three_brokers.image
    response = reassign(three_brokers, {("t", 0): [0, 1], ("u", 3): None})
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert (response.error_code, response.error_message) == (denied, denied.message)
    assert reassigned(response) == {("t", 0): denied, ("u", 3): denied}
    assert three_brokers.image is before


def test_a_reassignment_without_a_reply_in_time_times_out(three_brokers: RouterHarness) -> None:
    three_brokers.link.failure = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    assert reassign(three_brokers, {}).error_code == ErrorCode.REQUEST_TIMED_OUT


# -- ListPartitionReassignments --------------------------------------------------------------


Ongoing = dict[tuple[str, int], tuple[list[int], list[int], list[int]]]


def ongoing(harness: RouterHarness, wanted: dict[str, list[int]] | None) -> Ongoing:
    topics = None
    if wanted is not None:
        topics = [
            TopicPartitions(name=name, partitions=numbers) for name, numbers in wanted.items()
        ]
    response = harness.call(
        handle_list_partition_reassignments, ListPartitionReassignmentsRequest(topics=topics)
    )
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    names = [topic.name for topic in response.topics]
    assert len(names) == len(set(names))
    return {
        (topic.name, partition.partition_index): (
            partition.replicas,
            partition.adding_replicas,
            partition.removing_replicas,
        )
        for topic in response.topics
        for partition in topic.partitions
    }


def test_ongoing_reassignments_are_listed(three_brokers: RouterHarness) -> None:
    at, (target, other) = single_replica_topic(three_brokers, "t", 1)
    at_u, (target_u, _) = single_replica_topic(three_brokers, "u", 2)
    single_replica_topic(three_brokers, "still", 3)
    assert ongoing(three_brokers, None) == {}
    reassign(three_brokers, {("t", 0): [target, other], ("u", 0): [target_u]})
    of_t = {("t", 0): ([target, other, at], [target, other], [at])}
    of_u = {("u", 0): ([target_u, at_u], [target_u], [at_u])}
    assert ongoing(three_brokers, None) == of_t | of_u
    assert ongoing(three_brokers, {"t": [0, 0, 5], "still": [0], "nowhere": [0]}) == of_t
    assert ongoing(three_brokers, {"u": []}) == {}
    assert ongoing(three_brokers, {}) == {}
    catch_up(three_brokers, "t")
    assert ongoing(three_brokers, None) == of_u


def test_a_topic_that_is_named_twice_is_listed_once(three_brokers: RouterHarness) -> None:
    _, (target, _) = single_replica_topic(three_brokers, "t", 1)
    reassign(three_brokers, {("t", 0): [target]})
    named = TopicPartitions(name="t", partitions=[0])
    request = ListPartitionReassignmentsRequest(topics=[named, named])
    (topic,) = three_brokers.call(handle_list_partition_reassignments, request).topics
    assert len(topic.partitions) == 1


def test_listing_reassignments_needs_describe_on_the_cluster(three_brokers: RouterHarness) -> None:
    three_brokers.deny(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    with pytest.raises(ApiError) as refused:
        ongoing(three_brokers, None)
    assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


# -- UpdateFeatures --------------------------------------------------------------------------

ELR, METADATA = "eligible.leader.replicas.version", "metadata.version"
UP, SAFE_DOWN = 1, 2


@pytest.fixture
def broker_without_features(tmp_path: Path) -> Iterator[RouterHarness]:
    """A broker that registers without features."""
    harness = RouterHarness(tmp_path)
    harness.controller.start(0)
    harness.controller.send_heartbeat(0)
    harness.controller.write(FeatureLevelChanged(METADATA, 20))
    harness.follow()
    yield harness
    harness.close()


def update(
    harness: RouterHarness,
    *updates: FeatureUpdateKey,
    version: int = 2,
    validate_only: bool = False,
) -> UpdateFeaturesResponse:
    request = UpdateFeaturesRequest(
        timeout_ms=4_321, feature_updates=list(updates), validate_only=validate_only
    )
    return harness.call(handle_update_features, request, version)


@pytest.mark.parametrize("version", range(3))
def test_a_feature_can_be_upgraded(broker_without_features: RouterHarness, version: int) -> None:
    response = update(
        broker_without_features,
        FeatureUpdateKey(feature=ELR, max_version_level=1),
        FeatureUpdateKey(feature=METADATA, max_version_level=21),
        version=version,
    )
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert dict(broker_without_features.image.features) == {ELR: 1, METADATA: 21}
    assert broker_without_features.link.timeouts_ms == [4_321]
    told = [
        (result.feature, result.error_code, result.error_message) for result in response.results
    ]
    assert told == ([(ELR, 0, "NONE"), (METADATA, 0, "NONE")] if version <= 1 else [])


@pytest.mark.parametrize(
    ("version", "down", "is_allowed"),
    [
        (0, FeatureUpdateKey(allow_downgrade=False), False),
        (0, FeatureUpdateKey(allow_downgrade=True), True),
        (1, FeatureUpdateKey(upgrade_type=UP), False),
        (1, FeatureUpdateKey(upgrade_type=SAFE_DOWN), True),
        (2, FeatureUpdateKey(upgrade_type=UP), False),
        (2, FeatureUpdateKey(upgrade_type=SAFE_DOWN), True),
    ],
)
def test_a_downgrade_must_be_requested(
    broker_without_features: RouterHarness, version: int, down: FeatureUpdateKey, is_allowed: bool
) -> None:
    down.feature, down.max_version_level = METADATA, 19
    response = update(broker_without_features, down, version=version)
    assert response.error_code == (0 if is_allowed else ErrorCode.INVALID_UPDATE_VERSION)
    assert broker_without_features.image.features[METADATA] == (19 if is_allowed else 20)


@pytest.mark.parametrize("version", range(3))
def test_no_feature_is_updated_if_one_cannot_be(
    broker_without_features: RouterHarness, version: int
) -> None:
    response = update(
        broker_without_features,
        FeatureUpdateKey(feature=ELR, max_version_level=1),
        FeatureUpdateKey(feature="nothing", max_version_level=1),
        version=version,
    )
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert response.error_message is not None
    assert "nothing" in response.error_message
    assert dict(broker_without_features.image.features) == {METADATA: 20}
    assert response.results == [], "Kafka says so once"


@pytest.mark.parametrize("version", [1, 2])
def test_an_update_can_be_validated_only(
    broker_without_features: RouterHarness, version: int
) -> None:
    good = FeatureUpdateKey(feature=METADATA, max_version_level=21)
    bad = FeatureUpdateKey(feature=METADATA, max_version_level=99)
    codes = [
        update(broker_without_features, key, version=version, validate_only=True).error_code
        for key in (good, bad)
    ]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION]
    assert broker_without_features.image.features[METADATA] == 20


def test_updating_features_needs_alter_on_the_cluster(
    broker_without_features: RouterHarness,
) -> None:
    deny_alter(broker_without_features)
    with pytest.raises(ApiError) as refused:
        update(broker_without_features, FeatureUpdateKey(feature=METADATA, max_version_level=21))
    assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert broker_without_features.image.features[METADATA] == 20


# -- UnregisterBroker ------------------------------------------------------------------------


def unregister(harness: RouterHarness, broker: int) -> None:
    response = harness.call(handle_unregister_broker, UnregisterBrokerRequest(broker_id=broker))
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)


def test_an_unregistered_broker_leads_no_partition(three_brokers: RouterHarness) -> None:
    add_topic(three_brokers, "t", 1, 3)
    unregister(three_brokers, 2)
    assert sorted(three_brokers.image.brokers) == [0, 1]
    partitions = three_brokers.image.topics_by_name["t"].partitions
    assert all(2 not in partition.in_sync_replicas for partition in partitions)
    assert {partition.leader for partition in partitions} <= {0, 1}
    assert three_brokers.link.timeouts_ms == [UNREGISTER_TIMEOUT_MS]


def test_an_unknown_broker_cannot_be_unregistered(three_brokers: RouterHarness) -> None:
    with pytest.raises(ApiError) as refused:
        unregister(three_brokers, 3)
    assert refused.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_unregistering_a_broker_needs_alter_on_the_cluster(three_brokers: RouterHarness) -> None:
    deny_alter(three_brokers)
    with pytest.raises(ApiError) as refused:
        unregister(three_brokers, 2)
    assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert sorted(three_brokers.image.brokers) == [0, 1, 2]


# -- AddRaftVoter, RemoveRaftVoter -----------------------------------------------------------

FOLDER = bytes(range(16))


@pytest.mark.parametrize(("version", "waits"), [(0, True), (1, True), (1, False)])
def test_a_voter_is_added_with_its_directory_id(
    harness: RouterHarness, version: int, waits: bool
) -> None:
    request = AddRaftVoterRequest(
        cluster_id=harness.image.cluster_id,
        timeout_ms=4_321,
        voter_id=3,
        voter_directory_id=FOLDER,
        ack_when_committed=waits,
    )
    response = harness.call(handle_add_raft_voter, request, version)
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert harness.link.voter_changes == [AddRaftVoter(3, FOLDER, waits)]
    assert harness.link.timeouts_ms == [4_321]


def test_a_voter_is_removed_with_its_directory_id(harness: RouterHarness) -> None:
    request = RemoveRaftVoterRequest(cluster_id=None, voter_id=3, voter_directory_id=FOLDER)
    response = harness.call(handle_remove_raft_voter, request)
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert harness.link.voter_changes == [RemoveRaftVoter(3, FOLDER)]
    assert harness.link.timeouts_ms == [REMOVE_VOTER_TIMEOUT_MS]


@pytest.mark.parametrize(
    ("cluster_id", "voter_id", "code"),
    [
        ("another", 3, ErrorCode.INCONSISTENT_CLUSTER_ID),
        (None, -1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_voter_changes_check_the_cluster_id_and_the_voter_id(
    harness: RouterHarness, cluster_id: str | None, voter_id: int, code: ErrorCode
) -> None:
    add = AddRaftVoterRequest(cluster_id=cluster_id, voter_id=voter_id)
    remove = RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=voter_id)
    with pytest.raises(ApiError) as added:
        harness.call(handle_add_raft_voter, add)
    with pytest.raises(ApiError) as removed:
        harness.call(handle_remove_raft_voter, remove)
    assert added.value.code == removed.value.code == code
    assert harness.link.voter_changes == []


def test_changing_voters_needs_alter_on_the_cluster(harness: RouterHarness) -> None:
    deny_alter(harness)
    for handler, request in (
        (handle_add_raft_voter, AddRaftVoterRequest(cluster_id=None, voter_id=3)),
        (handle_remove_raft_voter, RemoveRaftVoterRequest(cluster_id=None, voter_id=3)),
    ):
        with pytest.raises(ApiError) as refused:
            harness.call(handler, request)
        assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert harness.link.voter_changes == []


# -- DescribeQuorum --------------------------------------------------------------------------


def ask(
    harness: RouterHarness, topic: str = METADATA_TOPIC, partition: int = 0, version: int = 2
) -> DescribeQuorumResponse:
    request = DescribeQuorumRequest(
        topics=[
            TopicPartitionNumbers(
                name=topic,
                partitions=[PartitionNumber(partition_index=partition)],
            )
        ]
    )
    return harness.call(handle_describe_quorum, request, version)


def only_partition(response: DescribeQuorumResponse) -> DescribeQuorumResponsePartitionData:
    (topic,) = response.topics
    (partition,) = topic.partitions
    return partition


@pytest.mark.parametrize("version", range(3))
def test_a_single_node_quorum_has_a_leader_without_lag(
    harness: RouterHarness, version: int
) -> None:
    response = ask(harness, version=version)
    quorum = only_partition(response)
    assert (response.error_code, quorum.error_code, quorum.leader_id) == (0, 0, 0)
    assert quorum.high_watermark == harness.image.offset
    (voter,) = quorum.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (0, harness.image.offset)
    assert quorum.observers == []
    if version >= 1:
        assert voter.last_caught_up_timestamp == 1_000_000
    if version >= 2:
        (node,) = response.nodes
        (listener,) = node.listeners
        assert (node.node_id, listener.host, listener.port) == (0, "host-0", 9092)


def test_a_quorum_without_a_leader_is_a_retriable_error(harness: RouterHarness) -> None:
    harness.link.has_quorum = False
    response = ask(harness)
    assert only_partition(response).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert response.nodes == []


@pytest.mark.parametrize(("topic", "partition"), [("t", 0), (METADATA_TOPIC, 1)])
def test_other_topics_have_no_quorum(harness: RouterHarness, topic: str, partition: int) -> None:
    assert (
        only_partition(ask(harness, topic, partition)).error_code
        == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_describing_the_quorum_needs_describe_on_the_cluster(harness: RouterHarness) -> None:
    harness.deny(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    with pytest.raises(ApiError) as refused:
        ask(harness)
    assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_voters_and_observers_have_directory_ids_and_listeners(
    harness: RouterHarness,
) -> None:
    voter = QuorumReplica(1, 9, 5, 5, FOLDER, "b.example", 9192)
    observer = QuorumReplica(4, 7, 5, -1, FOLDER[::-1], "e.example", 9192)
    harness.link.quorum = QuorumState(1, 7, 9, (voter,), (observer,))
    response = ask(harness)
    quorum = only_partition(response)
    assert [each.replica_directory_id for each in quorum.current_voters] == [FOLDER]
    (behind,) = quorum.observers
    assert (behind.replica_id, behind.replica_directory_id) == (4, FOLDER[::-1])
    assert (behind.log_end_offset, behind.last_caught_up_timestamp) == (7, -1)
    (node,) = response.nodes
    (listener,) = node.listeners
    assert (node.node_id, listener.host, listener.port) == (1, "b.example", 9192)
