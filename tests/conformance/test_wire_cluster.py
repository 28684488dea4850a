"""ElectLeaders (43), AlterPartitionReassignments (45), ListPartitionReassignments (46),
UpdateFeatures (57), UnregisterBroker (64), AddRaftVoter (80), RemoveRaftVoter (81) and the features
in ApiVersions, as far as a single broker can show them.
"""

import time

import pytest

from odradek.node.cli.quorum import quorum_request
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeQuorumResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    FeatureUpdateKey,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    RaftVoterEndpoint,
    ReassignablePartition,
    ReassignableTopic,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from odradek.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from odradek.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.messages.partitions import TopicPartitions
from tests.conformance.dialogue import DialogueCluster, describe_topic, unique
from tests.support.wire import WireClient

NOT_THERE = 9_999
"""The id of no broker."""
ELECT_LEADERS = range(3)
UP, SAFE_DOWN, UNSAFE_DOWN = 1, 2, 3
ELR = "eligible.leader.replicas.version"
BROKER = 4
"""The type of a broker's configs."""


def elect(
    wire: WireClient,
    named: dict[str, list[int]] | None,
    version: int = 2,
    *,
    election_type: int = 0,
) -> dict[tuple[str, int], int]:
    """The codes of the partitions that are answered; the whole must have gone well."""
    topics = None
    if named is not None:
        topics = [TopicPartitions(name=name, partitions=number) for name, number in named.items()]
    request = ElectLeadersRequest(election_type=election_type, topic_partitions=topics)
    answer = wire.ask(request, version, ElectLeadersResponse)
    assert answer.error_code == ErrorCode.NONE
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in answer.replica_election_results
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", ELECT_LEADERS)
def test_who_leads_already_need_not_be_elected(
    wire: WireClient, cluster: DialogueCluster, version: int
) -> None:
    """B.11: "ELECTION_NOT_NEEDED (84)", said of partitions that are named."""
    topic, nowhere = cluster.new_topic(2), unique("nowhere")
    assert elect(wire, {topic: [0, 1, 2], nowhere: [0]}, version) == {
        (topic, 0): ErrorCode.ELECTION_NOT_NEEDED,
        (topic, 1): ErrorCode.ELECTION_NOT_NEEDED,
        (topic, 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (nowhere, 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("version", ELECT_LEADERS)
def test_of_all_partitions_those_that_need_no_election_are_left_out(
    wire: WireClient, topic: str, version: int
) -> None:
    """B.11: "null = all partitions, then ELECTION_NOT_NEEDED (84) rows are left out"."""
    assert (topic, 0) not in elect(wire, None, version)
    assert elect(wire, {}, version) == {}


@pytest.mark.parametrize("version", [1, 2])
def test_a_partition_with_a_leader_needs_no_unclean_election(
    wire: WireClient, topic: str, version: int
) -> None:
    named = {topic: [0]}
    assert elect(wire, named, version, election_type=1) == {
        (topic, 0): ErrorCode.ELECTION_NOT_NEEDED
    }


def reassign(
    wire: WireClient, targets: dict[str, list[int] | None], version: int = 1
) -> dict[str, int]:
    """The codes of the topics' partitions 0; the whole must have gone well."""
    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name=name, partitions=[ReassignablePartition(partition_index=0, replicas=replicas)]
            )
            for name, replicas in targets.items()
        ]
    )
    answer = wire.ask(request, version, AlterPartitionReassignmentsResponse)
    assert answer.error_code == ErrorCode.NONE
    return {topic.name: topic.partitions[0].error_code for topic in answer.responses}


def ongoing(wire: WireClient, named: list[TopicPartitions] | None) -> list[str]:
    """The topics of which something is being reassigned."""
    request = ListPartitionReassignmentsRequest(topics=named)
    answer = wire.ask(request, 0, ListPartitionReassignmentsResponse)
    assert answer.error_code == ErrorCode.NONE
    return [topic.name for topic in answer.topics]


@pytest.mark.parametrize("version", range(2))
def test_a_partition_that_is_where_it_shall_be_is_not_reassigned(
    wire: WireClient, topic: str, version: int
) -> None:
    replicas = describe_topic(wire, topic).partitions[0].replica_nodes
    assert reassign(wire, {topic: replicas}, version) == {topic: ErrorCode.NONE}
    named = TopicPartitions(name=topic, partitions=[0])
    assert ongoing(wire, [named]) == []
    assert topic not in ongoing(wire, None)


@pytest.mark.parametrize("version", range(2))
def test_what_cannot_be_reassigned_is_refused(
    wire: WireClient, cluster: DialogueCluster, version: int
) -> None:
    """B.11: "null replicas cancels (NO_REASSIGNMENT_IN_PROGRESS 85)"."""
    cancelled, elsewhere, empty = (cluster.new_topic() for _ in range(3))
    nowhere = unique("nowhere")
    wanted: dict[str, list[int] | None] = {
        cancelled: None,
        elsewhere: [NOT_THERE],
        empty: [],
        nowhere: [0],
    }
    assert reassign(wire, wanted, version) == {
        cancelled: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        elsewhere: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        empty: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_reassignments_of_what_is_not_there_are_not_listed(wire: WireClient, topic: str) -> None:
    nowhere = TopicPartitions(name=unique("nowhere"), partitions=[0])
    beyond = TopicPartitions(name=topic, partitions=[7])
    assert ongoing(wire, [nowhere, beyond]) == []
    assert ongoing(wire, []) == []


@pytest.mark.parametrize("version", range(3))
def test_a_feature_that_nobody_knows_is_not_updated(wire: WireClient, version: int) -> None:
    """B.11: "INVALID_UPDATE_VERSION (95)"."""
    key = FeatureUpdateKey(feature=unique("feature"), max_version_level=1)
    request = UpdateFeaturesRequest(feature_updates=[key])
    answer = wire.ask(request, version, UpdateFeaturesResponse)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message
    assert answer.results == [], "the update as a whole has failed"


@pytest.mark.parametrize("version", [1, 2])
def test_a_level_beyond_what_is_understood_is_refused(wire: WireClient, version: int) -> None:
    key = FeatureUpdateKey(feature="metadata.version", max_version_level=32_000)
    request = UpdateFeaturesRequest(feature_updates=[key], validate_only=True)
    answer = wire.ask(request, version, UpdateFeaturesResponse)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("feature", "change", "kind", "is_possible"),
    [
        ("metadata.version", 0, UP, True),
        ("metadata.version", 0, SAFE_DOWN, True),
        ("metadata.version", 0, 0, False),
        ("metadata.version", 0, 7, False),
        ("metadata.version", -1, UP, False),
        ("metadata.version", -30, SAFE_DOWN, False),
        (ELR, 0, UP, True),
        (ELR, 0, SAFE_DOWN, True),
        (ELR, 1, UP, False),
        (ELR, -1, UP, False),
        (ELR, -1, SAFE_DOWN, True),
        (ELR, -1, UNSAFE_DOWN, True),
        (ELR, -2, SAFE_DOWN, False),
        ("kraft.version", 0, UP, True),
        ("kraft.version", -1, SAFE_DOWN, False),
        ("kraft.version", -1, UNSAFE_DOWN, False),
    ],
)
def test_what_levels_can_become_is_validated_by_the_kind_of_update(
    wire: WireClient, version: int, feature: str, change: int, kind: int, is_possible: bool
) -> None:
    """KIP-584: "Can't downgrade ... without setting the upgrade type"; from the finalized level."""
    asked = ApiVersionsRequest(client_software_name="odradek", client_software_version="1")
    told = wire.ask(asked, 4, ApiVersionsResponse).finalized_features
    level = next(found.max_version_level for found in told if found.name == feature)
    key = FeatureUpdateKey(feature=feature, max_version_level=level + change, upgrade_type=kind)
    request = UpdateFeaturesRequest(feature_updates=[key], validate_only=True)
    answer = wire.ask(request, version, UpdateFeaturesResponse)
    assert answer.error_code == (
        ErrorCode.NONE if is_possible else ErrorCode.INVALID_UPDATE_VERSION
    )
    names = [result.feature for result in answer.results]
    assert names == ([feature] if is_possible and version == 1 else [])


def test_with_eligible_leaders_min_insync_replicas_is_the_clusters(
    wire: WireClient, cluster: DialogueCluster
) -> None:
    """KIP-966: a new cluster has a default of its own, which may be changed and not removed."""
    removal = IncrementalAlterableConfig(name="min.insync.replicas", config_operation=1, value=None)
    resource = IncrementalAlterConfigsResource(
        resource_type=BROKER, resource_name="", configs=[removal]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    answer = wire.ask(request, 1, IncrementalAlterConfigsResponse)
    assert [found.error_code for found in answer.responses] == [ErrorCode.INVALID_CONFIG]
    wanted = DescribeConfigsResource(
        resource_type=BROKER, resource_name="", configuration_keys=["min.insync.replicas"]
    )
    described = wire.ask(
        DescribeConfigsRequest(resources=[wanted]), 4, DescribeConfigsResponse
    ).results[0]
    assert [(found.name, found.value) for found in described.configs] == [
        ("min.insync.replicas", str(cluster.min_insync_replicas))
    ]


@pytest.mark.parametrize("version", [3, 4])
def test_the_features_are_told_with_their_levels(wire: WireClient, version: int) -> None:
    """B.3: "Tags: SupportedFeatures 0, FinalizedFeaturesEpoch 1, FinalizedFeatures 2"."""
    request = ApiVersionsRequest(client_software_name="odradek", client_software_version="1")
    answer = wire.ask(request, version, ApiVersionsResponse)
    ranges = {feature.name: feature for feature in answer.supported_features}
    assert "metadata.version" in ranges
    assert answer.finalized_features_epoch >= 0
    for feature in answer.finalized_features:
        assert feature.min_version_level == feature.max_version_level > 0
        if feature.name in ranges:
            supported = ranges[feature.name]
            assert supported.min_version <= feature.max_version_level <= supported.max_version


def test_a_broker_that_is_not_there_cannot_be_unregistered(wire: WireClient) -> None:
    request = UnregisterBrokerRequest(broker_id=NOT_THERE)
    answer = wire.ask(request, 0, UnregisterBrokerResponse)
    assert answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert answer.error_message


FOLDER = bytes(range(16))
"""The id of nobody's data folder."""


def add_voter(
    wire: WireClient, version: int, *, voter_id: int, cluster_id: str | None = None
) -> AddRaftVoterResponse:
    listener = RaftVoterEndpoint(name="CONTROLLER", host="127.0.0.1", port=1)
    request = AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout_ms=60_000,
        voter_id=voter_id,
        voter_directory_id=FOLDER,
        listeners=[listener],
    )
    return wire.ask(request, version, AddRaftVoterResponse)


def remove_voter(
    wire: WireClient, *, voter_id: int, folder: bytes = FOLDER, cluster_id: str | None = None
) -> RemoveRaftVoterResponse:
    request = RemoveRaftVoterRequest(
        cluster_id=cluster_id, voter_id=voter_id, voter_directory_id=folder
    )
    return wire.ask(request, 0, RemoveRaftVoterResponse)


def voters(wire: WireClient) -> dict[int, bytes]:
    """Who votes, with the ids of their data folders."""
    answer = wire.ask(quorum_request(), 2, DescribeQuorumResponse)
    (partition,) = answer.topics[0].partitions
    return {v.replica_id: v.replica_directory_id for v in partition.current_voters}


@pytest.mark.parametrize("version", range(2))
def test_a_node_that_votes_is_not_given_a_second_vote(wire: WireClient, version: int) -> None:
    """KIP-853: "DUPLICATE_VOTER"."""
    (own, _), *_ = voters(wire).items()
    answer = add_voter(wire, version, voter_id=own)
    assert answer.error_code == ErrorCode.DUPLICATE_VOTER
    assert answer.error_message


@pytest.mark.parametrize("version", range(2))
def test_a_node_that_is_not_there_is_given_no_vote(wire: WireClient, version: int) -> None:
    """The code of a time-out is the answer at once: with the request's own timeout of a minute."""
    before = voters(wire)
    began = time.monotonic()
    answer = add_voter(wire, version, voter_id=NOT_THERE)
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert answer.error_message
    assert time.monotonic() - began < 10
    assert voters(wire) == before


def test_a_vote_is_taken_only_from_who_has_it_with_this_folder(wire: WireClient) -> None:
    """KIP-853: "VOTER_NOT_FOUND"."""
    before = voters(wire)
    (own, _), *_ = before.items()
    for voter_id in (own, NOT_THERE):
        answer = remove_voter(wire, voter_id=voter_id)
        assert answer.error_code == ErrorCode.VOTER_NOT_FOUND
        assert answer.error_message
    assert voters(wire) == before


def test_votes_of_another_cluster_and_of_nobody_are_refused(wire: WireClient) -> None:
    for cluster_id, voter_id, code in (
        (unique("cluster"), NOT_THERE, ErrorCode.INCONSISTENT_CLUSTER_ID),
        (None, -1, ErrorCode.INVALID_REQUEST),
    ):
        added = add_voter(wire, 1, voter_id=voter_id, cluster_id=cluster_id)
        removed = remove_voter(wire, voter_id=voter_id, cluster_id=cluster_id)
        assert (added.error_code, removed.error_code) == (code, code)
