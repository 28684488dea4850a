"""What a client needs for each request: the requests of a client with one right, or with none.

Apache Kafka was asked all of them once (`record_authorization`), and its answers are in
authorization_kafka_4_3_1.json. A test asks a router the same. A request changes nothing, whatever
the client may do: it only validates, or names what does not exist.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclBinding, AclOperation, ResourceType
from odradek.node.router.authorizer import OPERATIONS_OF
from odradek.protocol.apis import ApiKey
from odradek.protocol.messages import (
    acls,
    cluster,
    configs,
    fetch,
    group_offsets,
    groups,
    metadata,
    offsets,
    produce,
    quotas,
    scram,
    share,
    share_state,
    streams,
    tokens,
    topics,
    transactions,
)
from odradek.protocol.messages.partitions import (
    PartitionNumber,
    PartitionOffset,
    TopicName,
    TopicOffsets,
    TopicPartitionNumbers,
    TopicPartitions,
)
from odradek.protocol.records import TRANSACTIONAL, Record, build_batch
from odradek.protocol.schema import fields_of
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS, ZERO_UUID

ANSWERS: Final = Path(__file__).with_name("authorization_kafka_4_3_1.json")
PRINCIPAL: Final = "User:bob"
ADMIN: Final = "User:alice"
TOPIC, NO_TOPIC = "t", "z"
"""A topic of one partition, and one that does not exist. Rights on topics are for both."""
GROUP, NO_GROUP = "g", "n"
"""A group that has committed an offset of the topic, and one that does not exist."""
TRANSACTIONAL_ID: Final = "x"
NO_USER: Final = "User:eve"
"""Who never asks."""
NO_ID: Final = b"\x07" * 16
CLUSTER_ID: Final = "AuthorizationCluster01"
NAMES: Final[Mapping[ResourceType, tuple[str, ...]]] = {
    ResourceType.TOPIC: (TOPIC, NO_TOPIC),
    ResourceType.GROUP: (GROUP, NO_GROUP),
    ResourceType.CLUSTER: (CLUSTER_NAME,),
    ResourceType.TRANSACTIONAL_ID: (TRANSACTIONAL_ID,),
    ResourceType.DELEGATION_TOKEN: ("*",),
    ResourceType.USER: (ADMIN, NO_USER),
}


class Right(NamedTuple):
    """One operation on all resources of one type that the requests name."""

    resource: ResourceType
    operation: AclOperation

    def __str__(self) -> str:
        return f"{self.resource.name}:{self.operation.name}"

    def bindings(self) -> list[AclBinding]:
        """What allows it."""
        return [
            AclBinding(self.resource, 3, name, PRINCIPAL, "*", self.operation, 3)
            for name in NAMES[self.resource]
        ]


def right(text: str) -> Right:
    """The right of a text as in TOPIC:READ."""
    resource, _, operation = text.partition(":")
    return Right(ResourceType[resource], AclOperation[operation])


RIGHTS: Final = tuple(
    Right(resource, operation) for resource in NAMES for operation in OPERATIONS_OF[resource]
)


_OTHER_CODE: Final = re.compile(r"error_code=(?!(?:29|30|31|53|65)\b)-?[0-9]+")


class Made(NamedTuple):
    """What requests name that is made anew each time."""

    topic_id: bytes
    token_hmac: bytes
    """Of a delegation token of ADMIN's."""


class Case(NamedTuple):
    """A request, given what it may name. The client has the rights `base`, and in turn one more,
    but for those that would let it change something. `version` is the newest one to ask. With
    `only_denials` errors that have nothing to do with rights may differ from Kafka's."""

    name: str
    key: ApiKey
    request: Callable[[Made], object]
    version: int = 99
    base: tuple[Right, ...] = ()
    without: tuple[Right, ...] = ()
    only_denials: bool = False

    def compared(self, answer: str) -> str:
        """What of an answer is compared."""
        return _OTHER_CODE.sub("error_code=other", answer) if self.only_denials else answer

    def rights(self) -> Iterator[tuple[Right, ...]]:
        """What the client has in each turn, beside `base`: first nothing."""
        yield ()
        for each in RIGHTS:
            if each not in self.base and each not in self.without:
                yield (each,)


def _case(
    name: str,
    key: ApiKey,
    request: Callable[[Made], object] | object,
    version: int = 99,
    *,
    base: str = "",
    without: str = "",
    only_denials: bool = False,
) -> Case:
    make = request if callable(request) else lambda _made: request
    with_rights = tuple(map(right, base.split()))
    without_rights = tuple(map(right, without.split()))
    return Case(name, key, make, version, with_rights, without_rights, only_denials)


BATCH: Final = memoryview(build_batch([Record(0, 0, None, b"v")]))
IN_TRANSACTION: Final = memoryview(
    build_batch(
        [Record(0, 0, None, b"v")], attributes=TRANSACTIONAL, producer_id=4242, producer_epoch=0
    )
)
_PARTITIONS: Final = [TopicPartitions(name=name, partitions=[0]) for name in (TOPIC, NO_TOPIC)]
_FETCHED: Final = [fetch.FetchPartition(partition=0, partition_max_bytes=1000)]


def _produce(transactional_id: str | None) -> produce.ProduceRequest:
    return produce.ProduceRequest(
        transactional_id=transactional_id,
        acks=1,
        timeout_ms=5_000,
        topic_data=[
            produce.TopicProduceData(
                name=name,
                partition_data=[
                    produce.PartitionProduceData(
                        index=0, records=BATCH if transactional_id is None else IN_TRANSACTION
                    )
                ],
            )
            for name in (TOPIC, NO_TOPIC)
        ],
    )


def _produce_by_id(made: Made) -> produce.ProduceRequest:
    return produce.ProduceRequest(
        acks=1,
        timeout_ms=5_000,
        transactional_id=None,
        topic_data=[
            produce.TopicProduceData(
                topic_id=each, partition_data=[produce.PartitionProduceData(index=0, records=BATCH)]
            )
            for each in (made.topic_id, NO_ID)
        ],
    )


def _fetch(*topics: fetch.FetchTopic, replica_id: int = -1) -> fetch.FetchRequest:
    return fetch.FetchRequest(
        replica_id=replica_id,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1000,
        session_epoch=-1,
        topics=[*topics],
    )


def _commit(*topics: group_offsets.OffsetCommitRequestTopic) -> group_offsets.OffsetCommitRequest:
    return group_offsets.OffsetCommitRequest(
        group_id=GROUP, generation_id_or_member_epoch=5, member_id="m", topics=[*topics]
    )


def _committed(**topic: Any) -> group_offsets.OffsetCommitRequestTopic:  # noqa: ANN401 - fields
    partition = group_offsets.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=None
    )
    return group_offsets.OffsetCommitRequestTopic(partitions=[partition], **topic)


def _offset_fetch(topics: list[group_offsets.OffsetFetchRequestTopic] | None) -> object:
    wanted = group_offsets.OffsetFetchRequestGroup(group_id=GROUP, member_epoch=-1, topics=topics)
    return group_offsets.OffsetFetchRequest(groups=[wanted])


def _add_partitions(transactional_id: str) -> transactions.AddPartitionsToTxnRequest:
    return transactions.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=4242,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=_PARTITIONS,
    )


def _config_resources(kind: type[Any], **fields: Any) -> list[Any]:  # noqa: ANN401 - any resource
    return [
        kind(resource_type=number, resource_name=name, **fields)
        for number, name in ((2, TOPIC), (2, NO_TOPIC), (4, "0"), (8, "0"), (32, GROUP))
    ]


def _token(owner: str | None) -> tokens.CreateDelegationTokenRequest:
    """The renewer is of a type that is refused, after what the client may do has been checked."""
    return tokens.CreateDelegationTokenRequest(
        owner_principal_type=owner and owner.partition(":")[0],
        owner_principal_name=owner and owner.partition(":")[2],
        renewers=[tokens.TokenPrincipal(principal_type="Group", principal_name="r")],
        max_lifetime_ms=-1,
    )


_ALTERED = (
    (2, TOPIC, "retention.ms", "1000000"),
    (2, NO_TOPIC, "retention.ms", "1000000"),
    (4, "", "log.retention.ms", "1000000"),
    (32, GROUP, "consumer.session.timeout.ms", "45000"),
)

# AlterConfigs removes what is not named: all brokers together have min.insync.replicas.
_REPLACED = (*(each for each in _ALTERED if each[0] != 4), (4, "0", "log.retention.ms", "1000000"))

CASES: Final = (
    _case("Produce", ApiKey.PRODUCE, _produce(None), 12),
    _case("Produce in a transaction", ApiKey.PRODUCE, _produce(TRANSACTIONAL_ID), 12),
    _case("Produce by id", ApiKey.PRODUCE, _produce_by_id),
    _case(
        "Fetch",
        ApiKey.FETCH,
        _fetch(*(fetch.FetchTopic(topic=name, partitions=_FETCHED) for name in (TOPIC, NO_TOPIC))),
        12,
    ),
    _case(
        "Fetch by id",
        ApiKey.FETCH,
        lambda made: _fetch(
            *(
                fetch.FetchTopic(topic_id=each, partitions=_FETCHED)
                for each in (made.topic_id, NO_ID)
            )
        ),
    ),
    _case(
        "Fetch of a broker",
        ApiKey.FETCH,
        _fetch(
            *(fetch.FetchTopic(topic=name, partitions=_FETCHED) for name in (TOPIC, NO_TOPIC)),
            replica_id=7,
        ),
        12,
        only_denials=True,
    ),
    _case(
        "ListOffsets",
        ApiKey.LIST_OFFSETS,
        offsets.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                offsets.ListOffsetsTopic(
                    name=name,
                    partitions=[
                        offsets.ListOffsetsPartition(
                            partition_index=0, timestamp=-1, current_leader_epoch=-1
                        )
                    ],
                )
                for name in (TOPIC, NO_TOPIC)
            ],
        ),
    ),
    _case(
        "OffsetForLeaderEpoch",
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        offsets.OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                offsets.OffsetForLeaderTopic(
                    topic=name,
                    partitions=[
                        offsets.OffsetForLeaderPartition(
                            partition=0, current_leader_epoch=-1, leader_epoch=0
                        )
                    ],
                )
                for name in (TOPIC, NO_TOPIC)
            ],
        ),
    ),
    _case(
        "Metadata",
        ApiKey.METADATA,
        metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=name) for name in (TOPIC, NO_TOPIC)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        ),
    ),
    _case(
        "Metadata of all topics",
        ApiKey.METADATA,
        metadata.MetadataRequest(topics=None, include_cluster_authorized_operations=True),
        10,
    ),
    _case(
        "Metadata by id",
        ApiKey.METADATA,
        lambda made: metadata.MetadataRequest(
            topics=[
                metadata.MetadataRequestTopic(topic_id=each, name=None)
                for each in (made.topic_id, NO_ID)
            ],
            allow_auto_topic_creation=False,
        ),
    ),
    _case(
        "Metadata that creates topics",
        ApiKey.METADATA,
        metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=NO_TOPIC)]),
        base="TOPIC:DESCRIBE",
        without="TOPIC:CREATE CLUSTER:CREATE",
    ),
    _case(
        "DescribeTopicPartitions",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        metadata.DescribeTopicPartitionsRequest(
            topics=[TopicName(name=name) for name in (TOPIC, NO_TOPIC)]
        ),
    ),
    _case(
        "DescribeTopicPartitions of all topics",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        metadata.DescribeTopicPartitionsRequest(),
    ),
    _case(
        "DescribeCluster",
        ApiKey.DESCRIBE_CLUSTER,
        metadata.DescribeClusterRequest(include_cluster_authorized_operations=True),
    ),
    *(
        _case(
            f"FindCoordinator of a {what}",
            ApiKey.FIND_COORDINATOR,
            groups.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]),
        )
        for what, kind, key in (("group", 0, GROUP), ("transaction", 1, TRANSACTIONAL_ID))
    ),
    _case(
        "OffsetCommit",
        ApiKey.OFFSET_COMMIT,
        _commit(*(_committed(name=name) for name in (TOPIC, NO_TOPIC))),
        9,
    ),
    _case(
        "OffsetCommit of a group's reader",
        ApiKey.OFFSET_COMMIT,
        _commit(*(_committed(name=name) for name in (TOPIC, NO_TOPIC))),
        9,
        base="GROUP:READ",
    ),
    _case(
        "OffsetCommit by id of a group's reader",
        ApiKey.OFFSET_COMMIT,
        lambda made: _commit(*(_committed(topic_id=each) for each in (made.topic_id, NO_ID))),
        base="GROUP:READ",
    ),
    *(
        _case(
            f"OffsetFetch{of}",
            ApiKey.OFFSET_FETCH,
            _offset_fetch(
                [
                    group_offsets.OffsetFetchRequestTopic(name=name, partition_indexes=[0])
                    for name in (TOPIC, NO_TOPIC)
                ]
            ),
            9,
            base=base,
        )
        for of, base in (("", ""), (" of a group's describer", "GROUP:DESCRIBE"))
    ),
    _case(
        "OffsetFetch of all topics", ApiKey.OFFSET_FETCH, _offset_fetch(None), 9, base="GROUP:READ"
    ),
    _case(
        "OffsetFetch by id",
        ApiKey.OFFSET_FETCH,
        lambda made: _offset_fetch(
            [
                group_offsets.OffsetFetchRequestTopic(topic_id=each, partition_indexes=[0])
                for each in (made.topic_id, NO_ID)
            ]
        ),
        base="GROUP:READ",
    ),
    _case(
        "OffsetDelete",
        ApiKey.OFFSET_DELETE,
        group_offsets.OffsetDeleteRequest(
            group_id=NO_GROUP,
            topics=[
                TopicPartitionNumbers(name=TOPIC, partitions=[PartitionNumber(partition_index=0)])
            ],
        ),
    ),
    _case(
        "OffsetDelete of a group's deleter",
        ApiKey.OFFSET_DELETE,
        group_offsets.OffsetDeleteRequest(
            group_id=NO_GROUP,
            topics=[
                TopicPartitionNumbers(name=TOPIC, partitions=[PartitionNumber(partition_index=0)])
            ],
        ),
        base="GROUP:DELETE",
        without="TOPIC:READ",
    ),
    _case(
        "Heartbeat",
        ApiKey.HEARTBEAT,
        groups.HeartbeatRequest(group_id=NO_GROUP, generation_id=3, member_id="m"),
    ),
    _case(
        "JoinGroup",
        ApiKey.JOIN_GROUP,
        groups.JoinGroupRequest(
            group_id=NO_GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="m",
            protocol_type="consumer",
            protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
    ),
    _case(
        "SyncGroup",
        ApiKey.SYNC_GROUP,
        groups.SyncGroupRequest(
            group_id=NO_GROUP,
            generation_id=3,
            member_id="m",
            protocol_type="consumer",
            protocol_name="range",
        ),
    ),
    _case(
        "LeaveGroup",
        ApiKey.LEAVE_GROUP,
        groups.LeaveGroupRequest(group_id=NO_GROUP, members=[groups.MemberIdentity(member_id="m")]),
    ),
    _case(
        "DescribeGroups",
        ApiKey.DESCRIBE_GROUPS,
        groups.DescribeGroupsRequest(groups=[GROUP], include_authorized_operations=True),
    ),
    _case("ListGroups", ApiKey.LIST_GROUPS, groups.ListGroupsRequest()),
    _case(
        "DeleteGroups",
        ApiKey.DELETE_GROUPS,
        groups.DeleteGroupsRequest(groups_names=[GROUP, NO_GROUP]),
        without="GROUP:DELETE",
    ),
    _case(
        "DeleteGroups of no group",
        ApiKey.DELETE_GROUPS,
        groups.DeleteGroupsRequest(groups_names=[NO_GROUP]),
    ),
    *(
        _case(
            f"ConsumerGroupHeartbeat{of}",
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            groups.ConsumerGroupHeartbeatRequest(
                group_id=NO_GROUP, member_id="m", member_epoch=7, subscribed_topic_names=[TOPIC]
            ),
            base=base,
        )
        for of, base in (("", ""), (" of a group's reader", "GROUP:READ"))
    ),
    *(
        _case(
            f"ShareGroupHeartbeat{of}",
            ApiKey.SHARE_GROUP_HEARTBEAT,
            share.ShareGroupHeartbeatRequest(
                group_id=NO_GROUP, member_id="m", member_epoch=7, subscribed_topic_names=[TOPIC]
            ),
            base=base,
        )
        for of, base in (("", ""), (" of a group's reader", "GROUP:READ"))
    ),
    _case(
        "StreamsGroupHeartbeat",
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        streams.StreamsGroupHeartbeatRequest(group_id=NO_GROUP, member_id="m", member_epoch=7),
    ),
    _case(
        "ConsumerGroupDescribe",
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        groups.ConsumerGroupDescribeRequest(
            group_ids=[GROUP, NO_GROUP], include_authorized_operations=True
        ),
    ),
    _case(
        "ShareGroupDescribe",
        ApiKey.SHARE_GROUP_DESCRIBE,
        share.ShareGroupDescribeRequest(group_ids=[NO_GROUP]),
    ),
    _case(
        "StreamsGroupDescribe",
        ApiKey.STREAMS_GROUP_DESCRIBE,
        streams.StreamsGroupDescribeRequest(group_ids=[NO_GROUP]),
    ),
    *(
        _case(
            f"ShareFetch{of}",
            ApiKey.SHARE_FETCH,
            lambda made: share.ShareFetchRequest(
                group_id=NO_GROUP,
                member_id="AAAAAAAAAAAAAAAAAAAAAA",
                share_session_epoch=7,
                max_bytes=1000,
                max_records=10,
                topics=[
                    share.ShareRequestTopic(
                        topic_id=made.topic_id,
                        partitions=[share.ShareRequestPartition(partition_index=0)],
                    )
                ],
            ),
            base=base,
        )
        for of, base in (("", ""), (" of a group's reader", "GROUP:READ"))
    ),
    _case(
        "ShareAcknowledge",
        ApiKey.SHARE_ACKNOWLEDGE,
        share.ShareAcknowledgeRequest(
            group_id=NO_GROUP, member_id="AAAAAAAAAAAAAAAAAAAAAA", share_session_epoch=7
        ),
    ),
    *(
        _case(
            f"DescribeShareGroupOffsets{of}",
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            share.DescribeShareGroupOffsetsRequest(
                groups=[
                    share.DescribeShareGroupOffsetsRequestGroup(
                        group_id=NO_GROUP, topics=_PARTITIONS
                    )
                ]
            ),
            base=base,
        )
        for of, base in (("", ""), (" of a group's describer", "GROUP:DESCRIBE"))
    ),
    *(
        _case(
            f"AlterShareGroupOffsets{of}",
            ApiKey.ALTER_SHARE_GROUP_OFFSETS,
            share.AlterShareGroupOffsetsRequest(
                group_id=GROUP,
                topics=[
                    TopicOffsets(
                        name=TOPIC,
                        partitions=[PartitionOffset(partition_index=0, offset=0)],
                    )
                ],
            ),
            base=base,
        )
        for of, base in (("", ""), (" of a group's reader", "GROUP:READ"))
    ),
    *(
        _case(
            f"DeleteShareGroupOffsets{of}",
            ApiKey.DELETE_SHARE_GROUP_OFFSETS,
            share.DeleteShareGroupOffsetsRequest(group_id=NO_GROUP, topics=[TopicName(name=TOPIC)]),
            base=base,
        )
        for of, base in (("", ""), (" of a group's deleter", "GROUP:DELETE"))
    ),
    _case(
        "ReadShareGroupState",
        ApiKey.READ_SHARE_GROUP_STATE,
        lambda made: share_state.ReadShareGroupStateRequest(
            group_id=NO_GROUP,
            topics=[
                share_state.ReadStateData(
                    topic_id=made.topic_id,
                    partitions=[share_state.ReadShareGroupStatePartitionData(partition=0)],
                )
            ],
        ),
        without="CLUSTER:CLUSTER_ACTION",
    ),
    _case(
        "WriteShareGroupState",
        ApiKey.WRITE_SHARE_GROUP_STATE,
        lambda made: share_state.WriteShareGroupStateRequest(
            group_id=NO_GROUP,
            topics=[
                share_state.WriteStateData(
                    topic_id=made.topic_id,
                    partitions=[share_state.WriteShareGroupStatePartitionData(partition=0)],
                )
            ],
        ),
        without="CLUSTER:CLUSTER_ACTION",
    ),
    *(
        _case(
            kind.__name__.removesuffix("Request"),
            key,
            kind(group_id=NO_GROUP),
            without="CLUSTER:CLUSTER_ACTION",
        )
        for key, kind in (
            (ApiKey.INITIALIZE_SHARE_GROUP_STATE, share_state.InitializeShareGroupStateRequest),
            (ApiKey.DELETE_SHARE_GROUP_STATE, share_state.DeleteShareGroupStateRequest),
            (ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, share_state.ReadShareGroupStateSummaryRequest),
        )
    ),
    _case(
        "StreamsGroupTopologyDescriptionUpdate",
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
        streams.StreamsGroupTopologyDescriptionUpdateRequest(group_id=NO_GROUP, member_id="m"),
    ),
    _case(
        "ApiVersions",
        ApiKey.API_VERSIONS,
        metadata.ApiVersionsRequest(client_software_name="a", client_software_version="1"),
        3,
    ),
    _case(
        "InitProducerId",
        ApiKey.INIT_PRODUCER_ID,
        transactions.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
    ),
    _case(
        "InitProducerId of a transaction",
        ApiKey.INIT_PRODUCER_ID,
        transactions.InitProducerIdRequest(
            transactional_id=TRANSACTIONAL_ID,
            transaction_timeout_ms=60_000,
            producer_id=4242,
            producer_epoch=0,
        ),
    ),
    *(
        _case(
            f"AddPartitionsToTxn{of}",
            ApiKey.ADD_PARTITIONS_TO_TXN,
            _add_partitions(TRANSACTIONAL_ID),
            3,
            base=base,
        )
        for of, base in (("", ""), (" of a transaction's writer", "TRANSACTIONAL_ID:WRITE"))
    ),
    _case(
        "AddPartitionsToTxn of a broker",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        transactions.AddPartitionsToTxnRequest(
            transactions=[
                transactions.AddPartitionsToTxnTransaction(
                    transactional_id=TRANSACTIONAL_ID,
                    producer_id=4242,
                    topics=_PARTITIONS[:1],
                    verify_only=True,
                )
            ]
        ),
    ),
    *(
        _case(
            f"AddOffsetsToTxn{of}",
            ApiKey.ADD_OFFSETS_TO_TXN,
            transactions.AddOffsetsToTxnRequest(
                transactional_id=TRANSACTIONAL_ID, producer_id=4242, group_id=GROUP
            ),
            base=base,
        )
        for of, base in (("", ""), (" of a transaction's writer", "TRANSACTIONAL_ID:WRITE"))
    ),
    _case(
        "EndTxn",
        ApiKey.END_TXN,
        transactions.EndTxnRequest(
            transactional_id=TRANSACTIONAL_ID, producer_id=4242, committed=True
        ),
    ),
    *(
        _case(
            f"TxnOffsetCommit{of}",
            ApiKey.TXN_OFFSET_COMMIT,
            transactions.TxnOffsetCommitRequest(
                transactional_id=TRANSACTIONAL_ID,
                group_id=GROUP,
                producer_id=4242,
                generation_id_or_member_epoch=5,
                member_id="m",
                topics=[
                    transactions.TxnOffsetCommitRequestTopic(
                        name=name,
                        partitions=[
                            transactions.TxnOffsetCommitRequestPartition(
                                partition_index=0, committed_metadata=None
                            )
                        ],
                    )
                    for name in (TOPIC, NO_TOPIC)
                ],
            ),
            3,
            base=base,
            only_denials=True,
        )
        for of, base in (
            ("", ""),
            (" of a transaction's writer", "TRANSACTIONAL_ID:WRITE"),
            (" of a transaction's writer and group's reader", "TRANSACTIONAL_ID:WRITE GROUP:READ"),
        )
    ),
    _case(
        "WriteTxnMarkers",
        ApiKey.WRITE_TXN_MARKERS,
        transactions.WriteTxnMarkersRequest(
            markers=[
                transactions.WritableTxnMarker(
                    producer_id=4242, topics=[TopicPartitions(name=NO_TOPIC, partitions=[0])]
                )
            ]
        ),
        1,
    ),
    _case(
        "DescribeProducers",
        ApiKey.DESCRIBE_PRODUCERS,
        transactions.DescribeProducersRequest(topics=_PARTITIONS),
    ),
    _case(
        "DescribeTransactions",
        ApiKey.DESCRIBE_TRANSACTIONS,
        transactions.DescribeTransactionsRequest(transactional_ids=[TRANSACTIONAL_ID]),
    ),
    _case("ListTransactions", ApiKey.LIST_TRANSACTIONS, transactions.ListTransactionsRequest()),
    *(
        _case(
            f"CreateTopics{of}",
            ApiKey.CREATE_TOPICS,
            topics.CreateTopicsRequest(
                topics=[
                    topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
                    for name in (TOPIC, NO_TOPIC)
                ],
                timeout_ms=5_000,
                validate_only=True,
            ),
            base=base,
        )
        for of, base in (("", ""), (" of a creator", "TOPIC:CREATE"))
    ),
    _case(
        "DeleteTopics",
        ApiKey.DELETE_TOPICS,
        topics.DeleteTopicsRequest(topic_names=[TOPIC, NO_TOPIC], timeout_ms=5_000),
        5,
        without="TOPIC:DELETE",
    ),
    _case(
        "DeleteTopics of no topic",
        ApiKey.DELETE_TOPICS,
        topics.DeleteTopicsRequest(topic_names=[NO_TOPIC], timeout_ms=5_000),
        5,
    ),
    _case(
        "DeleteTopics by id",
        ApiKey.DELETE_TOPICS,
        lambda made: topics.DeleteTopicsRequest(
            topics=[
                topics.DeleteTopicState(name=None, topic_id=each) for each in (made.topic_id, NO_ID)
            ],
            timeout_ms=5_000,
        ),
        without="TOPIC:DELETE",
    ),
    _case(
        "DeleteRecords",
        ApiKey.DELETE_RECORDS,
        offsets.DeleteRecordsRequest(
            topics=[
                TopicOffsets(name=name, partitions=[PartitionOffset(partition_index=0, offset=0)])
                for name in (TOPIC, NO_TOPIC)
            ],
            timeout_ms=5_000,
        ),
    ),
    _case(
        "CreatePartitions",
        ApiKey.CREATE_PARTITIONS,
        topics.CreatePartitionsRequest(
            topics=[
                topics.CreatePartitionsTopic(name=name, count=2, assignments=None)
                for name in (TOPIC, NO_TOPIC)
            ],
            timeout_ms=5_000,
            validate_only=True,
        ),
    ),
    _case(
        "DescribeConfigs",
        ApiKey.DESCRIBE_CONFIGS,
        configs.DescribeConfigsRequest(
            resources=_config_resources(configs.DescribeConfigsResource, configuration_keys=None)
        ),
    ),
    _case(
        "AlterConfigs",
        ApiKey.ALTER_CONFIGS,
        configs.AlterConfigsRequest(
            resources=[
                configs.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[configs.AlterableConfig(name=key, value=value)],
                )
                for kind, name, key, value in _REPLACED
            ],
            validate_only=True,
        ),
    ),
    _case(
        "IncrementalAlterConfigs",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        configs.IncrementalAlterConfigsRequest(
            resources=[
                configs.IncrementalAlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[configs.IncrementalAlterableConfig(name=key, value=value)],
                )
                for kind, name, key, value in _ALTERED
            ],
            validate_only=True,
        ),
    ),
    _case(
        "ListConfigResources", ApiKey.LIST_CONFIG_RESOURCES, configs.ListConfigResourcesRequest()
    ),
    _case(
        "AlterReplicaLogDirs",
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        cluster.AlterReplicaLogDirsRequest(
            dirs=[cluster.AlterReplicaLogDir(path="/no/such/folder", topics=_PARTITIONS[:1])]
        ),
    ),
    _case(
        "DescribeLogDirs",
        ApiKey.DESCRIBE_LOG_DIRS,
        cluster.DescribeLogDirsRequest(topics=_PARTITIONS[:1]),
    ),
    _case(
        "ElectLeaders",
        ApiKey.ELECT_LEADERS,
        cluster.ElectLeadersRequest(topic_partitions=_PARTITIONS, timeout_ms=5_000),
    ),
    _case(
        "AlterPartitionReassignments",
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        cluster.AlterPartitionReassignmentsRequest(
            topics=[
                cluster.ReassignableTopic(
                    name=TOPIC,
                    partitions=[cluster.ReassignablePartition(partition_index=0, replicas=None)],
                )
            ],
            timeout_ms=5_000,
        ),
    ),
    _case(
        "ListPartitionReassignments",
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        cluster.ListPartitionReassignmentsRequest(topics=None, timeout_ms=5_000),
    ),
    _case(
        "DescribeQuorum",
        ApiKey.DESCRIBE_QUORUM,
        cluster.DescribeQuorumRequest(
            topics=[
                TopicPartitionNumbers(
                    name="__cluster_metadata",
                    partitions=[PartitionNumber(partition_index=0)],
                )
            ]
        ),
    ),
    _case(
        "UpdateFeatures",
        ApiKey.UPDATE_FEATURES,
        cluster.UpdateFeaturesRequest(
            feature_updates=[
                cluster.FeatureUpdateKey(
                    feature="group.version", max_version_level=1, upgrade_type=1
                )
            ],
            timeout_ms=5_000,
            validate_only=True,
        ),
        only_denials=True,
    ),
    _case(
        "UnregisterBroker", ApiKey.UNREGISTER_BROKER, cluster.UnregisterBrokerRequest(broker_id=77)
    ),
    _case(
        "AddRaftVoter",
        ApiKey.ADD_RAFT_VOTER,
        cluster.AddRaftVoterRequest(
            cluster_id="not-this-one",
            timeout_ms=5_000,
            voter_id=77,
            voter_directory_id=NO_ID,
            listeners=[cluster.RaftVoterEndpoint(name="CONTROLLER", host="localhost", port=1)],
        ),
        0,
    ),
    _case(
        "RemoveRaftVoter",
        ApiKey.REMOVE_RAFT_VOTER,
        cluster.RemoveRaftVoterRequest(
            cluster_id="not-this-one", voter_id=77, voter_directory_id=NO_ID
        ),
    ),
    _case(
        "DescribeAcls",
        ApiKey.DESCRIBE_ACLS,
        acls.DescribeAclsRequest(
            resource_type_filter=6,
            resource_name_filter="nothing",
            pattern_type_filter=3,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        ),
    ),
    _case(
        "CreateAcls",
        ApiKey.CREATE_ACLS,
        acls.CreateAclsRequest(
            creations=[
                acls.AclCreation(
                    resource_type=2,
                    resource_name="",
                    principal="User:eve",
                    host="*",
                    operation=3,
                    permission_type=3,
                )
            ]
        ),
    ),
    _case(
        "DeleteAcls",
        ApiKey.DELETE_ACLS,
        acls.DeleteAclsRequest(
            filters=[
                acls.AclFilter(
                    resource_type_filter=6,
                    resource_name_filter="nothing",
                    principal_filter=None,
                    host_filter=None,
                    operation=1,
                    permission_type=1,
                )
            ]
        ),
    ),
    _case(
        "DescribeUserScramCredentials",
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        scram.DescribeUserScramCredentialsRequest(users=[scram.UserName(name="nobody")]),
    ),
    _case(
        "AlterUserScramCredentials",
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        scram.AlterUserScramCredentialsRequest(
            deletions=[scram.ScramCredentialDeletion(name="nobody", mechanism=1)]
        ),
    ),
    _case(
        "DescribeClientQuotas",
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        quotas.DescribeClientQuotasRequest(strict=True),
    ),
    _case(
        "AlterClientQuotas",
        ApiKey.ALTER_CLIENT_QUOTAS,
        quotas.AlterClientQuotasRequest(validate_only=True),
    ),
    _case("CreateDelegationToken", ApiKey.CREATE_DELEGATION_TOKEN, _token(None)),
    *(
        _case(f"CreateDelegationToken of {what}", ApiKey.CREATE_DELEGATION_TOKEN, _token(owner))
        for what, owner in (("another", ADMIN), ("nobody", NO_USER))
    ),
    _case(
        "RenewDelegationToken of another",
        ApiKey.RENEW_DELEGATION_TOKEN,
        lambda made: tokens.RenewDelegationTokenRequest(hmac=made.token_hmac, renew_period_ms=-1),
    ),
    _case(
        "RenewDelegationToken of nobody",
        ApiKey.RENEW_DELEGATION_TOKEN,
        tokens.RenewDelegationTokenRequest(hmac=NO_ID, renew_period_ms=-1),
    ),
    _case(
        "ExpireDelegationToken of another",
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        lambda made: tokens.ExpireDelegationTokenRequest(
            hmac=made.token_hmac, expiry_time_period_ms=-1
        ),
    ),
    _case(
        "ExpireDelegationToken of nobody",
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        tokens.ExpireDelegationTokenRequest(hmac=NO_ID, expiry_time_period_ms=-1),
    ),
    _case(
        "DescribeDelegationToken",
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        tokens.DescribeDelegationTokenRequest(owners=None),
    ),
    _case(
        "DescribeDelegationToken of others",
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        tokens.DescribeDelegationTokenRequest(
            owners=[
                tokens.TokenPrincipal(principal_type="User", principal_name=owner.partition(":")[2])
                for owner in (ADMIN, NO_USER)
            ]
        ),
    ),
)


# -- answers -------------------------------------------------------------------------------------

_NAMES_OF_THINGS: Final = ("name", "topic", "group_id", "resource_name", "transactional_id")


def outcome(response: object, topic_id: bytes) -> str:
    """What of a response depends on rights: error codes, names beside them, authorized operations,
    and whether a list of other things is empty. Kafka has no order in most lists."""
    return _outcome(response, topic_id, is_element=False)


def _outcome(message: object, topic_id: bytes, *, is_element: bool) -> str:
    said = []
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if field.name.endswith(("error_code", "authorized_operations")):
            if value != NO_AUTHORIZED_OPERATIONS:
                said.append(f"{field.name}={int(value)}")
        elif field.name == "topic_id" and value != ZERO_UUID:
            said.append("id=t" if value == topic_id else "id=other")
        elif field.name in _NAMES_OF_THINGS and is_element and value:
            said.append(f"{field.name}={value}")
        elif isinstance(value, list | None) and _is_struct(field.element):
            if value is not None and _has_errors(field.element):
                each = sorted(_outcome(one, topic_id, is_element=True) for one in value)
                said.append(f"{field.name}=[{', '.join(each)}]")
            else:
                said.append(f"{field.name}={'some' if value else 'none'}")
    text = " ".join(said)
    return f"({text})" if is_element else text


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and bool(fields_of(kind))


def _has_errors(kind: Any) -> bool:  # noqa: ANN401 - a class of messages
    return any(
        field.name.endswith("error_code")
        or (_is_struct(field.element) and _has_errors(field.element))
        for field in fields_of(kind)
    )


class Recorded(NamedTuple):
    """The answers to one case: the version asked, what a client without a right gets, and what it
    gets with other rights."""

    version: int
    denied: str
    others: Mapping[str, str]

    def expected(self, has: tuple[Right, ...]) -> str:
        """The answer to a client with these rights beside the base."""
        return self.others.get(" ".join(map(str, has)), self.denied)


def recorded_answers() -> dict[str, Recorded]:
    """What Kafka has answered, by the case's name."""
    read = json.loads(ANSWERS.read_text())
    return {
        name: Recorded(
            answers["version"],
            answers["denied"],
            {having: text for text, rights in answers["with"].items() for having in rights},
        )
        for name, answers in read["cases"].items()
    }
