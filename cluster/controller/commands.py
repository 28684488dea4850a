"""The commands of the controller and their replies.

Commands come from the handlers of any node's router and travel as bytes: fields may only be added
at the end of a struct, with defaults. Random values and times are part of the command (topic ids,
incarnation ids): its result depends on the image only. Replies have the command's items in its
order; a duplicate item is answered once.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from odradek.cluster.metadata.acls import AclBinding
from odradek.cluster.metadata.client_quotas import QuotaEntity
from odradek.cluster.metadata.delegation_tokens import DelegationToken
from odradek.cluster.metadata.image import BrokerListener, FeatureRange, PartitionImage
from odradek.cluster.metadata.scram import ScramCredential
from odradek.protocol.types import ZERO_UUID, Request, Uuid


class _Tagged(
    msgspec.Struct, frozen=True, array_like=True, tag=lambda name: name.removesuffix("Reply")
):
    """A command or a reply: an array that begins with its name."""


class ReplicaAssignment(msgspec.Struct, frozen=True, array_like=True):
    """The replicas of one partition, the preferred leader first."""

    partition: int
    replicas: tuple[int, ...]


class NewTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic to create. -1 is for the default; with `assignments` both counts must be -1."""

    name: str
    topic_id: Uuid
    partition_count: int = -1
    replication_factor: int = -1
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


class MutatingClient(msgspec.Struct, frozen=True, array_like=True):
    """The client whose quota of controller mutations is used. A strict quota refuses (KIP-599)."""

    user: str
    client_id: str
    is_strict: bool = True


class CreateTopics(_Tagged, Request["TopicsReply"], frozen=True):
    """Each topic succeeds or fails by itself. Without a client there is no quota."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False
    client: MutatingClient | None = None


class TopicReference(msgspec.Struct, frozen=True, array_like=True):
    """A topic by its name or by its id, not by both."""

    name: str | None
    topic_id: Uuid = ZERO_UUID


class DeleteTopics(_Tagged, Request["TopicsReply"], frozen=True):
    """Each topic succeeds or fails by itself."""

    topics: tuple[TopicReference, ...]
    client: MutatingClient | None = None


class NewPartitions(msgspec.Struct, frozen=True, array_like=True):
    """The total number of partitions of a topic; `assignments` are for the new ones."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitions(_Tagged, Request["TopicsReply"], frozen=True):
    """Each topic succeeds or fails by itself."""

    topics: tuple[NewPartitions, ...]
    validate_only: bool = False
    client: MutatingClient | None = None


class ResourceConfigs(msgspec.Struct, frozen=True, array_like=True):
    """All configs of one resource."""

    resource_type: int
    resource_name: str
    configs: tuple[tuple[str, str | None], ...]


class AlterConfigs(_Tagged, Request["ConfigsReply"], frozen=True):
    """Each resource gets exactly these configs, or keeps what it has."""

    resources: tuple[ResourceConfigs, ...]
    validate_only: bool = False


class ConfigOperation(msgspec.Struct, frozen=True, array_like=True):
    """One change: 0 set, 1 delete, 2 append to a list, 3 subtract from a list (KIP-339)."""

    key: str
    operation: int
    value: str | None = None


class ResourceOperations(msgspec.Struct, frozen=True, array_like=True):
    """The changes to one resource; they take effect together."""

    resource_type: int
    resource_name: str
    operations: tuple[ConfigOperation, ...]


class IncrementalAlterConfigs(_Tagged, Request["ConfigsReply"], frozen=True):
    """Each resource is changed as a whole or not at all."""

    resources: tuple[ResourceOperations, ...]
    validate_only: bool = False


class QuotaChange(msgspec.Struct, frozen=True, array_like=True):
    """A quota's new value; null removes it."""

    key: str
    value: float | None = None


class QuotaEntityChanges(msgspec.Struct, frozen=True, array_like=True):
    """The changes to the quotas of one entity; they take effect together."""

    entity: QuotaEntity
    changes: tuple[QuotaChange, ...]


class AlterClientQuotas(_Tagged, Request["ClientQuotasReply"], frozen=True):
    """Each entity is changed as a whole or not at all. `unresolved_hosts` are the names of ip
    entities that are neither addresses nor could be resolved."""

    entries: tuple[QuotaEntityChanges, ...]
    validate_only: bool = False
    unresolved_hosts: tuple[str, ...] = ()


class AllocateProducerIds(_Tagged, Request["ProducerIdsReply"], frozen=True):
    """Allocate a block of producer ids to a broker."""

    broker_id: int
    broker_epoch: int


class RegisterBroker(_Tagged, Request["BrokerReply"], frozen=True):
    """A broker has started. An empty `cluster_id`: it belongs to no cluster yet. No `features`: it
    is not known which its release supports. `log_dirs` are the ids of its log directories, with
    their paths; a wiped disk has a new one. With `starts_fenced` it serves once it has caught up.
    `previous_broker_epoch` is its last epoch if its logs have all records that it acknowledged
    then, -1 if they may not, null if unknown (KIP-966); if it is set the broker starts fenced.
    `decoy_key` is random: it becomes the cluster's, if that has none."""

    broker_id: int
    incarnation_id: Uuid
    cluster_id: str = ""
    listeners: tuple[BrokerListener, ...] = ()
    rack: str | None = None
    features: tuple[FeatureRange, ...] = ()
    log_dirs: tuple[Uuid, ...] = ()
    starts_fenced: bool = False
    previous_broker_epoch: int | None = None
    log_dir_paths: tuple[str, ...] = ()
    offline_log_dirs: tuple[Uuid, ...] = ()
    decoy_key: bytes = b""


class BrokerHeartbeat(_Tagged, Request["HeartbeatReply"], frozen=True):
    """A broker is alive and has applied the metadata log up to `metadata_offset`. With
    `wants_fence` it does not want to serve, with `wants_shut_down` a controlled shutdown."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    wants_fence: bool = False
    wants_shut_down: bool = False


class UnregisterBroker(_Tagged, Request["UnregisteredReply"], frozen=True):
    """Unregister a broker."""

    broker_id: int


class InSyncReplica(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A replica that a leader wants in the ISR; epoch -1 stands for any (KIP-903)."""

    broker_id: int
    broker_epoch: int = -1


class InSyncChange(msgspec.Struct, frozen=True, array_like=True):
    """The ISR that the leader of one partition wants, and the epochs that it knows."""

    topic_id: Uuid
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[InSyncReplica, ...]


class AlterPartition(_Tagged, Request["InSyncReply"], frozen=True):
    """A leader's changes of ISRs; each succeeds or fails by itself."""

    broker_id: int
    broker_epoch: int
    changes: tuple[InSyncChange, ...]


class ResignReplicas(_Tagged, Request["PartitionsReply"], frozen=True):
    """The disk of a broker is full for these partitions (topic id, number): other replicas lead,
    and it leaves their ISRs until it has caught up."""

    broker_id: int
    broker_epoch: int
    partitions: tuple[tuple[Uuid, int], ...]


class AssignReplicasToDirs(_Tagged, Request["PartitionsReply"], frozen=True):
    """Replicas of a broker are in these log directories now: topic id, number, id (KIP-858)."""

    broker_id: int
    broker_epoch: int
    replicas: tuple[tuple[Uuid, int, Uuid], ...]


class PartitionReference(msgspec.Struct, frozen=True, array_like=True):
    """One partition by its topic's name."""

    topic: str
    partition: int


class ElectLeaders(_Tagged, Request["PartitionsReply"], frozen=True):
    """Elect leaders: type 0 preferred, 1 unclean (KIP-460); null: of all partitions."""

    election_type: int
    partitions: tuple[PartitionReference, ...] | None


class Reassignment(msgspec.Struct, frozen=True, array_like=True):
    """The target replicas of a partition; null cancels the reassignment in progress."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class AlterPartitionReassignments(_Tagged, Request["PartitionsReply"], frozen=True):
    """Each reassignment is accepted or refused by itself (KIP-455)."""

    reassignments: tuple[Reassignment, ...]
    allow_replication_factor_change: bool = True


class FeatureUpdate(msgspec.Struct, frozen=True, array_like=True):
    """The new level of a feature; type 1 upgrade, 2 safe downgrade, 3 unsafe downgrade."""

    name: str
    level: int
    upgrade_type: int = 1


class UpdateFeatures(_Tagged, Request["FeaturesReply"], frozen=True):
    """All of the features get their levels, or none (KIP-584, KIP-778)."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


class CreateAcls(_Tagged, Request["AclsReply"], frozen=True):
    """Each binding is created or refused by itself; one that exists is created again."""

    bindings: tuple[AclBinding, ...]


class DeleteAcls(_Tagged, Request["DeletedAclsReply"], frozen=True):
    """Delete bindings. The router finds what filters mean: looking through all bindings in one
    command would hold the controller."""

    bindings: tuple[AclBinding, ...]


class AddRaftVoter(_Tagged, Request["VotersReply"], frozen=True):
    """Make an observer a voter, with the data folder of this id (KIP-853). Without `waits` the
    reply comes when the change is in the leader's log."""

    voter_id: int
    voter_directory_id: Uuid
    waits: bool = True


class RemoveRaftVoter(_Tagged, Request["VotersReply"], frozen=True):
    """Remove a voter with the data folder of this id (KIP-853)."""

    voter_id: int
    voter_directory_id: Uuid


class DeleteScramCredential(msgspec.Struct, frozen=True, array_like=True):
    """A credential to delete. The mechanism is the wire's number, known or not."""

    user: str
    mechanism: int


class SetScramCredential(msgspec.Struct, frozen=True, array_like=True):
    """A credential to set. It has keys, not the salted password that they were made of; null if the
    client's salt or salted password cannot be used."""

    user: str
    mechanism: int
    iterations: int
    credential: ScramCredential | None


class AlterScramCredentials(_Tagged, Request["ScramCredentialsReply"], frozen=True):
    """The changes of a user take effect together or not at all (KIP-554)."""

    deletions: tuple[DeleteScramCredential, ...]
    upsertions: tuple[SetScramCredential, ...]


class CreateDelegationToken(_Tagged, Request["DelegationTokenReply"], frozen=True):
    """Create this token. The controller sets its times, from `issue_ms` on. Without a
    `lifetime_ms` above 0 it lives as long as tokens may."""

    token: DelegationToken
    lifetime_ms: int


class RenewDelegationToken(_Tagged, Request["DelegationTokenReply"], frozen=True):
    """Move the end of a token. Without a `period_ms` above 0 that is as late as it may be."""

    hmac_digest: bytes
    principal: str
    period_ms: int
    now_ms: int


class ExpireDelegationToken(_Tagged, Request["DelegationTokenReply"], frozen=True):
    """Move the end of a token, or remove it at once, if `period_ms` is negative."""

    hmac_digest: bytes
    principal: str
    period_ms: int
    now_ms: int


VoterChangeCommand: TypeAlias = AddRaftVoter | RemoveRaftVoter
"""The quorum's own entries of the log have the voters; no record of the metadata does."""

MetadataCommand: TypeAlias = (
    CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | IncrementalAlterConfigs
    | AllocateProducerIds
    | RegisterBroker
    | BrokerHeartbeat
    | UnregisterBroker
    | AlterPartition
    | ResignReplicas
    | AssignReplicasToDirs
    | ElectLeaders
    | AlterPartitionReassignments
    | UpdateFeatures
    | AlterScramCredentials
    | AlterClientQuotas
    | CreateAcls
    | DeleteAcls
    | CreateDelegationToken
    | RenewDelegationToken
    | ExpireDelegationToken
)

Command: TypeAlias = MetadataCommand | VoterChangeCommand


class TopicResult(msgspec.Struct, frozen=True, array_like=True):
    """The result for one topic. Counts are -1 if the command failed or changes none."""

    name: str | None
    error_code: int = 0
    error_message: str | None = None
    topic_id: Uuid = ZERO_UUID
    partition_count: int = -1
    replication_factor: int = -1


class TopicsReply(_Tagged, frozen=True):
    """Answers CreateTopics, DeleteTopics and CreatePartitions. The client has to wait for
    `throttle_time_ms` before its next request."""

    results: tuple[TopicResult, ...]
    throttle_time_ms: int = 0


class ResourceResult(msgspec.Struct, frozen=True, array_like=True):
    """The result for one resource."""

    resource_type: int
    resource_name: str
    error_code: int = 0
    error_message: str | None = None


class ConfigsReply(_Tagged, frozen=True):
    """Answers AlterConfigs and IncrementalAlterConfigs: one result per resource named, in order."""

    results: tuple[ResourceResult, ...]


class QuotaEntityResult(msgspec.Struct, frozen=True, array_like=True):
    """The result for one entity."""

    entity: QuotaEntity
    error_code: int = 0
    error_message: str | None = None


class ClientQuotasReply(_Tagged, frozen=True):
    """Answers AlterClientQuotas: one result per entity, in order."""

    results: tuple[QuotaEntityResult, ...]


class ProducerIdsReply(_Tagged, frozen=True):
    """The producer ids [first, first + count) are allocated to the broker."""

    first: int
    count: int


class BrokerReply(_Tagged, frozen=True):
    """The broker is registered with this epoch; its commands carry it."""

    broker_epoch: int


class HeartbeatReply(_Tagged, frozen=True):
    """The state of a broker. It serves while it is not fenced, and stops when it should shut down.
    `is_caught_up`: its metadata has its own registration. `next_heartbeat_ms` is a duration."""

    is_caught_up: bool
    is_fenced: bool
    is_in_controlled_shutdown: bool
    should_shut_down: bool
    next_heartbeat_ms: int


class UnregisteredReply(_Tagged, frozen=True):
    """The broker is not registered any more."""

    broker_id: int


class InSyncResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of one InSyncChange, with the partition's new state if it was accepted."""

    topic_id: Uuid
    partition: int
    error_code: int = 0
    state: PartitionImage | None = None


class InSyncReply(_Tagged, frozen=True):
    """Answers AlterPartition, one result for each change in order."""

    results: tuple[InSyncResult, ...]


class PartitionChangeResult(msgspec.Struct, frozen=True, array_like=True):
    """The result for one partition."""

    topic: str
    partition: int
    error_code: int = 0
    error_message: str | None = None


class PartitionsReply(_Tagged, frozen=True):
    """Answers ElectLeaders and AlterPartitionReassignments."""

    results: tuple[PartitionChangeResult, ...]


class FeatureResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of one feature's update."""

    name: str
    error_code: int = 0
    error_message: str | None = None


class FeaturesReply(_Tagged, frozen=True):
    """Answers UpdateFeatures: all updates were done, or `error_code` says why none was."""

    results: tuple[FeatureResult, ...]
    error_code: int = 0
    error_message: str | None = None


class ScramCredentialsResult(msgspec.Struct, frozen=True, array_like=True):
    """The result for one user."""

    user: str
    error_code: int = 0
    error_message: str | None = None


class ScramCredentialsReply(_Tagged, frozen=True):
    """Answers AlterScramCredentials: one result for each user, in the order of the first naming."""

    results: tuple[ScramCredentialsResult, ...]


class AclResult(msgspec.Struct, frozen=True, array_like=True):
    """The result for one binding."""

    error_code: int = 0
    error_message: str | None = None


class AclsReply(_Tagged, frozen=True):
    """Answers CreateAcls: one result for each binding, in order."""

    results: tuple[AclResult, ...]


class DeletedAclsReply(_Tagged, frozen=True):
    """Answers DeleteAcls: whether there was such a binding, for each, in order."""

    were_there: tuple[bool, ...]


class DelegationTokenReply(_Tagged, frozen=True):
    """The times of a token as they are now, in milliseconds since the epoch."""

    issue_ms: int
    expiry_ms: int
    max_ms: int


class VotersReply(_Tagged, frozen=True):
    """The node has become a voter, or is none any more."""

    voter_id: int


CommandReply: TypeAlias = (
    TopicsReply
    | ConfigsReply
    | ProducerIdsReply
    | BrokerReply
    | HeartbeatReply
    | UnregisteredReply
    | InSyncReply
    | PartitionsReply
    | FeaturesReply
    | AclsReply
    | DeletedAclsReply
    | VotersReply
    | ScramCredentialsReply
    | ClientQuotasReply
    | DelegationTokenReply
)

encode_command: Callable[[Request[object]], bytes] = msgspec.msgpack.Encoder().encode
encode_reply: Callable[[CommandReply], bytes] = msgspec.msgpack.Encoder().encode

# Both raise ValueError if the bytes are malformed.
decode_command: Callable[[bytes | memoryview], Command] = msgspec.msgpack.Decoder(Command).decode
decode_reply: Callable[[bytes | memoryview], CommandReply] = msgspec.msgpack.Decoder(
    CommandReply
).decode
