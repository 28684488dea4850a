"""TxnOffsetCommit: which producers may commit offsets inside their transactions.

Members of the group are fenced as in OffsetCommit (KIP-447), but a rebalance is no reason to refuse
a commit. A producer whose transaction is not known to this shard is only let in once the
transaction coordinator has confirmed that the group takes part in it (KIP-890). The confirmation
carries the guard that was issued before it was requested: if a transaction of that producer has
ended since, it must be verified again. Called by `offset_commands`.
"""

from typing import Any, Final

from odradek.coordinator.group.classic.group import ClassicGroup
from odradek.coordinator.group.modern.group_type import GroupType
from odradek.coordinator.group.requests import CommitInTransaction
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transactions import TxnOffsetCommitRequest

_NEWEST_COMMIT: Final = APIS[ApiKey.OFFSET_COMMIT].max_version
_MEMBER_EPOCHS_SINCE: Final = 6


def membership_error(
    group: ClassicGroup | None, request: TxnOffsetCommitRequest, *, has_offsets: bool
) -> ErrorCode:
    """Whether the member that the producer commits for is one, in the group's generation. A group
    that has nothing but offsets, or not even those, is one without members."""
    generation_id = request.generation_id_or_member_epoch
    member_id, instance_id = request.member_id, request.group_instance_id
    if generation_id < 0 and not member_id and instance_id is None:
        # A producer that knows no groups: any group will do.
        return ErrorCode.NONE
    if group is None:
        if generation_id < 0:
            return ErrorCode.NONE
        return ErrorCode.UNKNOWN_MEMBER_ID if has_offsets else ErrorCode.ILLEGAL_GENERATION
    error = group.commit_error(member_id, instance_id, generation_id)
    return ErrorCode.NONE if error is ErrorCode.REBALANCE_IN_PROGRESS else error


def modern_error(known: GroupType[Any], request: TxnOffsetCommitRequest, version: int) -> ErrorCode:
    """The same for a newer type of group. As in OffsetCommit, an older epoch is valid for
    partitions that the member has had since before it (KIP-1251). Producers before v6 know no
    member epochs."""
    epoch, member_id = request.generation_id_or_member_epoch, request.member_id
    if epoch < 0 and not member_id and request.group_instance_id is None:
        # A producer without group metadata, which is no member.
        return known.fetch_error(request.group_id, None, epoch)
    error = known.commit_error(request, _NEWEST_COMMIT)
    if error is ErrorCode.STALE_MEMBER_EPOCH and version < _MEMBER_EPOCHS_SINCE:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def needs_verification(asked: CommitInTransaction, *, is_open: bool, ended_count: int) -> bool:
    """Whether the transaction's coordinator must be asked (again) before this may be written."""
    return not asked.is_verified and not is_open and asked.guard != ended_count
