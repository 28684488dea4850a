"""ElectLeaders (43, versions 0 to 2), AlterPartitionReassignments (45, 0 and 1),
ListPartitionReassignments (46, 0), DescribeQuorum (55, 0 to 2), UpdateFeatures (57, 0 to 2),
UnregisterBroker (64, 0), AddRaftVoter (80, 0 and 1) and RemoveRaftVoter (81, 0).

ElectLeaders: v1 adds unclean elections (KIP-460) and an error for the whole.
AlterPartitionReassignments: v1 can forbid that the number of replicas changes. DescribeQuorum: v1
adds fetch times, v2 directories, listeners and messages. UpdateFeatures: v1 adds kinds of
downgrades and validation only (KIP-778), v2 leaves out the single features' results. AddRaftVoter:
v1 can be answered before the vote is committed.

Any node serves these. Commands go to the active controller, and are answered when this node has
applied the change. DescribeQuorum gets its data from the leader of the quorum.
"""

from collections.abc import Iterable, Sequence

from odradek.cluster.controller.commands import (
    AddRaftVoter,
    AlterPartitionReassignments,
    ElectLeaders,
    FeatureUpdate,
    PartitionChangeResult,
    PartitionReference,
    Reassignment,
    RemoveRaftVoter,
    UnregisterBroker,
    UpdateFeatures,
)
from odradek.cluster.controller.features import UpgradeType
from odradek.cluster.controller.reassignment import ongoing_reassignments
from odradek.cluster.controller.topics import PARTITIONS_PER_COMMAND_MAX
from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.bus.messages import QuorumReplica, QuorumState
from odradek.node.router.addresses import address_of
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import LoopYielder, iterate_cooperatively
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.cluster import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeQuorumReplicaState,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponseNode,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    ElectLeadersRequest,
    ElectLeadersResponse,
    FeatureUpdateKey,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    RaftVoterEndpoint,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from odradek.protocol.messages.partitions import DetailedPartitionResult, DetailedTopicResults

METADATA_TOPIC = "__cluster_metadata"
"""The name that tools use for the metadata log. It is not a topic and cannot be read."""
UNREGISTER_TIMEOUT_MS = REMOVE_VOTER_TIMEOUT_MS = 30_000
"""These requests have no timeout field."""
PEER_LISTENER = "PEER"
"""The name of the listener for other nodes in DescribeQuorum. It serves no clients."""
_TIMEOUT_MS = 3_000


async def _change_partitions(
    command: ElectLeaders | AlterPartitionReassignments,
    partitions: Sequence[PartitionReference | Reassignment],
    timeout_ms: int,
    context: RequestContext,
    services: Services,
) -> tuple[list[DetailedTopicResults], ApiError | None]:
    """One result per partition. An error for the whole request is repeated for each of them."""
    error = None
    outcomes: Iterable[PartitionChangeResult]
    try:
        services.authorizer.authorize(context, AclOperation.ALTER, ResourceType.CLUSTER)
        if len(partitions) > PARTITIONS_PER_COMMAND_MAX:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
            )
        outcomes = (await services.controller.submit(command, timeout_ms)).results
    except ApiError as failure:
        error = failure
        named = {
            (entry.topic, entry.partition): None
            async for entry in iterate_cooperatively(partitions, context)
        }
        outcomes = (PartitionChangeResult(*key, error.code, error.message) for key in named)
    topics: dict[str, DetailedTopicResults] = {}
    async for outcome in iterate_cooperatively(outcomes, context):
        result = DetailedPartitionResult(
            partition_index=outcome.partition, error_code=outcome.error_code
        )
        if outcome.error_code:
            result.error_message = outcome.error_message or ErrorCode(outcome.error_code).message
        topic = topics.setdefault(outcome.topic, DetailedTopicResults(name=outcome.topic))
        topic.partitions.append(result)
    return list(topics.values()), error


# -- ElectLeaders ----------------------------------------------------------------------------


async def handle_elect_leaders(
    request: ElectLeadersRequest, context: RequestContext, services: Services
) -> ElectLeadersResponse:
    """Elect leaders of the named partitions, each by itself; null names all.

    For all, the response has only partitions that got a leader or could not get one. Needs ALTER on
    the cluster. An error for the whole request is repeated for every partition, because v0 has no
    other field for it. If v0 names no partition, the connection is closed.
    """
    partitions = None
    if request.topic_partitions is not None:
        pace = LoopYielder(context)
        references = []
        for wanted in request.topic_partitions:
            for partition in wanted.partitions:
                await pace.step()
                references.append(PartitionReference(wanted.name, partition))
        partitions = tuple(references)
    command = ElectLeaders(request.election_type, partitions)
    topics, error = await _change_partitions(
        command, partitions or (), request.timeout_ms, context, services
    )
    response = ElectLeadersResponse(replica_election_results=topics)
    if error is not None and context.api_version >= 1:
        response.error_code = error.code
    elif error is not None and partitions is None:
        raise error
    return response


# -- AlterPartitionReassignments, ListPartitionReassignments ---------------------------------


async def handle_alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, context: RequestContext, services: Services
) -> AlterPartitionReassignmentsResponse:
    """Start, change or cancel reassignments, each by itself. Responds when they have started.

    Needs ALTER on the cluster. An error for the whole request is repeated for every partition.
    """
    pace = LoopYielder(context)
    requested = []
    for topic in request.topics:
        for partition in topic.partitions:
            await pace.step()
            replicas = None if partition.replicas is None else tuple(partition.replicas)
            requested.append(Reassignment(topic.name, partition.partition_index, replicas))
    reassignments = tuple(requested)
    may_change_factor = request.allow_replication_factor_change
    command = AlterPartitionReassignments(reassignments, may_change_factor)
    topics, error = await _change_partitions(
        command, reassignments, request.timeout_ms, context, services
    )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change_factor,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        responses=topics,
    )


async def handle_list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, context: RequestContext, services: Services
) -> ListPartitionReassignmentsResponse:
    """The ongoing reassignments of the named partitions; null names all.

    Needs DESCRIBE on the cluster. Answered from this node's metadata.
    """
    services.authorizer.authorize(context, AclOperation.DESCRIBE, ResourceType.CLUSTER)
    wanted: dict[str, list[int]] | None = None
    if request.topics is not None:
        wanted = {}
        async for named in iterate_cooperatively(request.topics, context):
            wanted.setdefault(named.name, []).extend(named.partitions)
    topics: dict[str, OngoingTopicReassignment] = {}
    ongoing = ongoing_reassignments(services.image, wanted)
    async for topic, partition, state in iterate_cooperatively(ongoing, context):
        entry = topics.setdefault(topic.name, OngoingTopicReassignment(name=topic.name))
        entry.partitions.append(
            OngoingPartitionReassignment(
                partition_index=partition,
                replicas=list(state.replicas),
                adding_replicas=list(state.adding_replicas),
                removing_replicas=list(state.removing_replicas),
            )
        )
    return ListPartitionReassignmentsResponse(topics=list(topics.values()))


# -- UpdateFeatures --------------------------------------------------------------------------


async def handle_update_features(
    request: UpdateFeaturesRequest, context: RequestContext, services: Services
) -> UpdateFeaturesResponse:
    """Finalize feature levels, all or none. Needs ALTER on the cluster."""
    services.authorizer.authorize(context, AclOperation.ALTER, ResourceType.CLUSTER)
    command = UpdateFeatures(
        tuple(_feature_update(update, context.api_version) for update in request.feature_updates),
        request.validate_only,
    )
    reply = await services.controller.submit(command, request.timeout_ms)
    if reply.error_code:
        # All have failed. Kafka reports one error, in every version.
        return UpdateFeaturesResponse(
            error_code=reply.error_code, error_message=reply.error_message
        )
    return UpdateFeaturesResponse(
        results=[
            UpdatableFeatureResult(
                feature=result.name,
                error_code=result.error_code,
                # Kafka's word for success.
                error_message=result.error_message or ErrorCode.NONE.name,
            )
            for result in reply.results
        ],
    )


def _feature_update(update: FeatureUpdateKey, version: int) -> FeatureUpdate:
    upgrade_type = update.upgrade_type
    if version == 0:
        may_go_down = update.allow_downgrade
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if may_go_down else UpgradeType.UPGRADE
    return FeatureUpdate(update.feature, update.max_version_level, upgrade_type)


# -- UnregisterBroker ------------------------------------------------------------------------


async def handle_unregister_broker(
    request: UnregisterBrokerRequest, context: RequestContext, services: Services
) -> UnregisterBrokerResponse:
    """Remove the registration of a broker. Needs ALTER on the cluster."""
    services.authorizer.authorize(context, AclOperation.ALTER, ResourceType.CLUSTER)
    await services.controller.submit(UnregisterBroker(request.broker_id), UNREGISTER_TIMEOUT_MS)
    return UnregisterBrokerResponse()


# -- AddRaftVoter, RemoveRaftVoter -----------------------------------------------------------


async def handle_add_raft_voter(
    request: AddRaftVoterRequest, context: RequestContext, services: Services
) -> AddRaftVoterResponse:
    """Make an observer a voter (KIP-853). Needs ALTER on the cluster.

    INCONSISTENT_CLUSTER_ID; INVALID_REQUEST for an impossible node or directory id;
    DUPLICATE_VOTER; REQUEST_TIMED_OUT if the node is not reachable or too far behind, or the
    previous change is not committed in time. The listeners are ignored: nodes announce their own.
    """
    services.authorizer.authorize(context, AclOperation.ALTER, ResourceType.CLUSTER)
    _check_voter(request, services)
    command = AddRaftVoter(
        request.voter_id, request.voter_directory_id, waits=request.ack_when_committed
    )
    await services.controller.submit(command, request.timeout_ms)
    return AddRaftVoterResponse()


async def handle_remove_raft_voter(
    request: RemoveRaftVoterRequest, context: RequestContext, services: Services
) -> RemoveRaftVoterResponse:
    """Remove a voter (KIP-853). A leader that is removed resigns. Needs ALTER on the cluster.

    INCONSISTENT_CLUSTER_ID; VOTER_NOT_FOUND; INVALID_REQUEST for the last voter; REQUEST_TIMED_OUT
    if the previous change is not committed in time.
    """
    services.authorizer.authorize(context, AclOperation.ALTER, ResourceType.CLUSTER)
    _check_voter(request, services)
    command = RemoveRaftVoter(request.voter_id, request.voter_directory_id)
    await services.controller.submit(command, REMOVE_VOTER_TIMEOUT_MS)
    return RemoveRaftVoterResponse()


def _check_voter(request: AddRaftVoterRequest | RemoveRaftVoterRequest, services: Services) -> None:
    own = services.image.cluster_id
    if request.cluster_id is not None and request.cluster_id != own:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f'The given id "{request.cluster_id}" doesn\'t match the cluster id "{own}"',
        )
    if request.voter_id < 0:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid voter id {request.voter_id}: it must not be negative.",
        )


# -- DescribeQuorum --------------------------------------------------------------------------


async def handle_describe_quorum(
    request: DescribeQuorumRequest, context: RequestContext, services: Services
) -> DescribeQuorumResponse:
    """Leader, epoch and progress of the quorum. Needs DESCRIBE on the cluster."""
    services.authorizer.authorize(context, AclOperation.DESCRIBE, ResourceType.CLUSTER)
    quorum = await services.controller.describe_quorum(_TIMEOUT_MS)
    topics = [
        DescribeQuorumResponseTopicData(
            topic_name=topic.name,
            partitions=[
                _partition(topic.name, partition.partition_index, quorum)
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DescribeQuorumResponse(
        error_message=None,
        topics=topics,
        nodes=_nodes(context, services, quorum) if context.api_version >= 2 else [],
    )


def _partition(
    topic: str, partition: int, quorum: QuorumState | None
) -> DescribeQuorumResponsePartitionData:
    if topic != METADATA_TOPIC or partition != 0:
        return DescribeQuorumResponsePartitionData(
            partition_index=partition,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"Only partition 0 of {METADATA_TOPIC} has a quorum.",
        )
    if quorum is None:
        return DescribeQuorumResponsePartitionData(
            partition_index=0,
            error_code=ErrorCode.LEADER_NOT_AVAILABLE,
            error_message="The quorum has no leader that this node can reach.",
        )
    return DescribeQuorumResponsePartitionData(
        partition_index=0,
        error_message=None,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.term,
        high_watermark=quorum.high_watermark,
        current_voters=[_replica(replica) for replica in quorum.voters],
        observers=[_replica(replica) for replica in quorum.observers],
    )


def _replica(replica: QuorumReplica) -> DescribeQuorumReplicaState:
    return DescribeQuorumReplicaState(
        replica_id=replica.node_id,
        replica_directory_id=replica.directory_id,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.last_fetch_ms,
        last_caught_up_timestamp=replica.last_caught_up_ms,
    )


def _nodes(
    context: RequestContext, services: Services, quorum: QuorumState | None
) -> list[DescribeQuorumResponseNode]:
    """The voters' listeners for other nodes (KIP-853). A voter that has not announced one yet is
    listed with its address for this client; one without either is left out."""
    nodes = []
    for voter in () if quorum is None else quorum.voters:
        name, host, port = PEER_LISTENER, voter.host, voter.port
        if not port:
            broker = services.image.brokers.get(voter.node_id)
            address = address_of(broker, context, services.node_id) if broker is not None else None
            if address is None:
                continue
            name, (host, port) = context.listener_name, address
        listener = RaftVoterEndpoint(name=name, host=host, port=port)
        nodes.append(DescribeQuorumResponseNode(node_id=voter.node_id, listeners=[listener]))
    return nodes
