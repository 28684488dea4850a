"""Commands and replies and their bytes."""

import msgspec
import pytest

from odradek.cluster.controller.commands import (
    AclResult,
    AclsReply,
    AddRaftVoter,
    AllocateProducerIds,
    AlterClientQuotas,
    AlterConfigs,
    AlterPartition,
    AlterPartitionReassignments,
    AlterScramCredentials,
    AssignReplicasToDirs,
    BrokerHeartbeat,
    BrokerReply,
    ClientQuotasReply,
    Command,
    CommandReply,
    ConfigOperation,
    ConfigsReply,
    CreateAcls,
    CreateDelegationToken,
    CreatePartitions,
    CreateTopics,
    DelegationTokenReply,
    DeleteAcls,
    DeletedAclsReply,
    DeleteScramCredential,
    DeleteTopics,
    ElectLeaders,
    ExpireDelegationToken,
    FeatureResult,
    FeaturesReply,
    FeatureUpdate,
    HeartbeatReply,
    IncrementalAlterConfigs,
    InSyncChange,
    InSyncReplica,
    InSyncReply,
    InSyncResult,
    NewPartitions,
    NewTopic,
    PartitionChangeResult,
    PartitionReference,
    PartitionsReply,
    ProducerIdsReply,
    QuotaChange,
    QuotaEntityChanges,
    QuotaEntityResult,
    Reassignment,
    RegisterBroker,
    RemoveRaftVoter,
    RenewDelegationToken,
    ReplicaAssignment,
    ResignReplicas,
    ResourceConfigs,
    ResourceOperations,
    ResourceResult,
    ScramCredentialsReply,
    ScramCredentialsResult,
    SetScramCredential,
    TopicReference,
    TopicResult,
    TopicsReply,
    UnregisterBroker,
    UnregisteredReply,
    UpdateFeatures,
    VotersReply,
    decode_command,
    decode_reply,
    encode_command,
    encode_reply,
)
from odradek.cluster.metadata.acls import AclBinding
from odradek.cluster.metadata.image import BrokerListener, FeatureRange, PartitionImage
from odradek.cluster.metadata.scram import ScramCredential
from tests.support.token_samples import token_of

ID = bytes(range(16))
BINDING = AclBinding(2, 4, "log-", "User:bob", "*", 3, 3)
COMMANDS: list[Command] = [
    CreateTopics(
        (NewTopic("t", ID, 1, 2, (ReplicaAssignment(0, (1, 2)),), (("k", "v"), ("n", None))),), True
    ),
    DeleteTopics((TopicReference("t"), TopicReference(None, ID))),
    CreatePartitions((NewPartitions("t", 3), NewPartitions("u", 3, ((1,), ()))), True),
    AlterConfigs((ResourceConfigs(2, "t", (("k", "v"), ("n", None))),), True),
    IncrementalAlterConfigs((ResourceOperations(2, "t", (ConfigOperation("k", 1, None),)),), True),
    AllocateProducerIds(1, 2),
    RegisterBroker(
        1, ID, "c", (BrokerListener("P", "h", 1),), "r", (FeatureRange("f", 0, 1),), (ID,), True, -1
    ),
    BrokerHeartbeat(1, 2, 3, True, True),
    UnregisterBroker(1),
    ResignReplicas(1, 2, ((ID, 3), (ID, 4))),
    AssignReplicasToDirs(1, 2, ((ID, 3, ID),)),
    AlterPartition(1, 2, (InSyncChange(ID, 3, 4, 5, (InSyncReplica(6, 7), InSyncReplica(8))),)),
    ElectLeaders(0, None),
    ElectLeaders(1, (PartitionReference("t", 1),)),
    AddRaftVoter(4, ID, waits=False),
    RemoveRaftVoter(4, ID),
    AlterPartitionReassignments((Reassignment("t", 1, (2, 3)), Reassignment("t", 2, None)), False),
    UpdateFeatures((FeatureUpdate("f", 1, 2),), True),
    AlterClientQuotas(
        (QuotaEntityChanges((("ip", "h"),), (QuotaChange("k", 1.5), QuotaChange("n"))),),
        True,
        ("h",),
    ),
    CreateAcls((BINDING,)),
    AlterScramCredentials(
        (DeleteScramCredential("u", 1),),
        (
            SetScramCredential("u", 2, 4096, ScramCredential(b"salt", b"stored", b"server", 4096)),
            SetScramCredential("v", 2, 1, None),
        ),
    ),
    DeleteAcls((BINDING,)),
    CreateDelegationToken(token_of(renewers=("User:bob",)), -1),
    RenewDelegationToken(b"digest", "User:bob", -1, 5),
    ExpireDelegationToken(b"digest", "User:bob", -1, 5),
]
REPLIES: list[CommandReply] = [
    TopicsReply((TopicResult("t", 3, "no", ID, 4, 5), TopicResult(None))),
    ConfigsReply((ResourceResult(2, "t", 40, "no"), ResourceResult(4, ""))),
    ProducerIdsReply(1000, 1000),
    BrokerReply(7),
    HeartbeatReply(True, False, True, False, 200),
    UnregisteredReply(1),
    VotersReply(4),
    InSyncReply((InSyncResult(ID, 1, 0, PartitionImage((1, 2), (1,), 1)), InSyncResult(ID, 2, 74))),
    PartitionsReply((PartitionChangeResult("t", 1, 84, "no"), PartitionChangeResult("t", 2))),
    FeaturesReply((FeatureResult("f", 96, "no"),), 95, "no"),
    ClientQuotasReply((QuotaEntityResult((("user", None),), 42, "no"), QuotaEntityResult(()))),
    ScramCredentialsReply((ScramCredentialsResult("u"), ScramCredentialsResult("v", 42, "no"))),
    AclsReply((AclResult(), AclResult(42, "no"))),
    DelegationTokenReply(1, 2, 3),
    DeletedAclsReply((True, False)),
]


def test_a_registration_of_an_older_release_has_defaults_for_newer_fields() -> None:
    older = msgspec.msgpack.encode(["RegisterBroker", 1, ID, "c", [], None, []])
    command = decode_command(older)
    assert command == RegisterBroker(1, ID, "c")


def test_every_command_and_reply_is_among_the_samples() -> None:
    assert {type(command) for command in COMMANDS} == set(Command.__args__)
    assert {type(reply) for reply in REPLIES} == set(CommandReply.__args__)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_is_read_as_it_was_written(command: Command) -> None:
    assert decode_command(encode_command(command)) == command


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_a_reply_is_read_as_it_was_written(reply: CommandReply) -> None:
    assert decode_reply(encode_reply(reply)) == reply


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode(["Dance", 1])])
def test_bytes_that_are_no_command_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_command(data)
    with pytest.raises(ValueError, match=r".+"):
        decode_reply(data)
