"""Coordinators with one bug each that only clients of transaction version 2 meet (KIP-890). All of
them were ours."""

from typing import Any

import msgspec

from odradek.coordinator.group.offset_commands import OffsetCommands
from odradek.coordinator.group.requests import EndProducerTransaction
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import Command, Outcome, respond
from odradek.coordinator.transaction import shard
from odradek.coordinator.transaction.shard import TransactionShard
from odradek.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionState,
    prepare_commit_or_abort,
)
from odradek.protocol.errors import ApiError, ErrorCode
from tests.simulation.planted_cluster_bugs import PlantedBug
from tests.simulation.trouble import LEAVERS

_end_transaction = OffsetCommands.end_transaction


def _looks_at_the_state_before_the_pending_transition(
    known: TransactionMetadata | None, *owner: int, is_commit: bool, **fields: int
) -> TransactionMetadata:
    if known is not None and known.state.is_prepared:
        was_commit = known.state is TransactionState.PREPARE_COMMIT
        if was_commit is not is_commit:
            raise ApiError(ErrorCode.INVALID_TXN_STATE)
    return prepare_commit_or_abort(known, *owner, is_commit=is_commit, **fields)


def _refuses_whoever_asks(_self: TransactionShard, command: Command, answer: object) -> Any:  # noqa: ANN401 - an Outcome
    return respond(command, answer)


def _takes_every_marker(
    self: OffsetCommands, command: Command, request: EndProducerTransaction, step: GroupStep
) -> Outcome[Any]:
    request = msgspec.structs.replace(request, transaction_version=1)
    return _end_transaction(self, command, request, step)


PLANTED_IN_TRANSACTIONS: dict[str, PlantedBug] = {
    "the other decision is an error while markers are written": PlantedBug(
        shard,
        "prepare_commit_or_abort",
        _looks_at_the_state_before_the_pending_transition,
        LEAVERS,
        "refused with INVALID_TXN_STATE",
    ),
    "a deposed coordinator refuses for good": PlantedBug(
        TransactionShard,
        "_answer_after_commit",
        _refuses_whoever_asks,
        LEAVERS,
        "refused with (INVALID|PRODUCER_FENCED)",
        seed=26,
    ),
    "a second marker ends the next transaction of a group": PlantedBug(
        OffsetCommands,
        "end_transaction",
        _takes_every_marker,
        LEAVERS,
        "the offset is|the offset of|do not end",
    ),
}
