"""ISR proposals: commands to the controller and their results."""

from odradek.cluster.controller.commands import (
    AlterPartition,
    AssignReplicasToDirs,
    InSyncReply,
    InSyncResult,
    ResignReplicas,
    decode_command,
    encode_reply,
)
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.replication.leader import IsrProposal
from odradek.node.bus.messages import CommandSubmitted, SubmitCommand
from odradek.node.worker.alter_partition_sender import RESIGN_MS, TIMEOUT_MS, AlterPartitionSender
from odradek.protocol.errors import ErrorCode

TOPIC = bytes(16)
FIRST = IsrProposal(TOPIC, 0, 5, 7, ((1, -1), (2, 12)))
SECOND = IsrProposal(TOPIC, 1, 5, 7, ((1, -1),))


def sent() -> tuple[AlterPartitionSender, list[SubmitCommand]]:
    told: list[SubmitCommand] = []
    proposals = AlterPartitionSender(1, told.append)
    proposals.send([FIRST, SECOND], MetadataImage.empty(), 1_000)
    return proposals, told


def test_proposals_of_one_call_are_one_command_with_a_result_for_each() -> None:
    proposals, (submit,) = sent()
    command = decode_command(submit.command)
    assert isinstance(command, AlterPartition)
    assert [change.partition for change in command.changes] == [0, 1]
    assert [(r.broker_id, r.broker_epoch) for r in command.changes[0].in_sync] == [(1, -1), (2, 12)]
    reply = InSyncReply(
        (InSyncResult(TOPIC, 0), InSyncResult(TOPIC, 1, ErrorCode.INELIGIBLE_REPLICA))
    )
    answer = CommandSubmitted(submit.request_id, ErrorCode.NONE, encode_reply(reply))
    assert list(proposals.on_response(answer)) == [
        (FIRST, ErrorCode.NONE),
        (SECOND, ErrorCode.INELIGIBLE_REPLICA),
    ]
    assert list(proposals.on_response(answer)) == []
    assert list(proposals.expired(1 << 50)) == []


def test_a_failed_command_fails_all_its_proposals() -> None:
    proposals, (submit,) = sent()
    answer = CommandSubmitted(submit.request_id, ErrorCode.STALE_BROKER_EPOCH, b"")
    assert [code for _, code in proposals.on_response(answer)] == [ErrorCode.STALE_BROKER_EPOCH] * 2


def test_a_proposal_without_an_answer_in_time_times_out() -> None:
    proposals, _ = sent()
    assert list(proposals.expired(1_000 + TIMEOUT_MS - 1)) == []
    assert list(proposals.expired(1_000 + TIMEOUT_MS)) == [
        (FIRST, ErrorCode.REQUEST_TIMED_OUT),
        (SECOND, ErrorCode.REQUEST_TIMED_OUT),
    ]


def test_replicas_resign_at_most_once_per_interval_without_waiting_for_an_answer() -> None:
    told: list[SubmitCommand] = []
    proposals = AlterPartitionSender(1, told.append)
    image = MetadataImage.empty()
    proposals.resign([(TOPIC, 0), (TOPIC, 3)], image, 10_000)
    proposals.resign([(TOPIC, 4)], image, 10_000 + RESIGN_MS - 1)
    (submit,) = told
    assert decode_command(submit.command) == ResignReplicas(1, -1, ((TOPIC, 0), (TOPIC, 3)))
    answer = CommandSubmitted(submit.request_id, ErrorCode.STALE_BROKER_EPOCH, b"")
    assert list(proposals.on_response(answer)) == []
    assert list(proposals.expired(1 << 50)) == []
    proposals.resign([(TOPIC, 4)], image, 10_000 + RESIGN_MS)
    assert len(told) == 2


def test_replicas_that_fail_between_two_commands_are_in_the_next_one() -> None:
    """Frequent failures in another store must not hide a failure in this one."""
    told: list[SubmitCommand] = []
    proposals = AlterPartitionSender(1, told.append)
    image = MetadataImage.empty()
    proposals.resign([(TOPIC, 0)], image, 10_000)
    proposals.resign([(TOPIC, 4)], image, 10_001)
    proposals.resign([(TOPIC, 0)], image, 10_000 + RESIGN_MS)
    proposals.resign([], image, 10_000 + 2 * RESIGN_MS)
    assert [decode_command(submit.command) for submit in told] == [
        ResignReplicas(1, -1, ((TOPIC, 0),)),
        ResignReplicas(1, -1, ((TOPIC, 4), (TOPIC, 0))),
    ]


def test_log_directories_are_told_again_and_again() -> None:
    told: list[SubmitCommand] = []
    sender = AlterPartitionSender(1, told.append)
    directories = {(TOPIC, 3): bytes(range(16))}
    for at in (0, RESIGN_MS - 1, RESIGN_MS):
        sender.assign(directories, MetadataImage.empty(), at)
    assert [decode_command(each.command) for each in told] == [
        AssignReplicasToDirs(1, -1, ((TOPIC, 3, bytes(range(16))),))
    ] * 2
    assert list(sender.expired(1 << 50)) == []
