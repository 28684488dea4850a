"""Events of a group and their observed results, in the words of docs/coordinators.

`classic_cases`, `consumer_cases` and `streams_cases` define the events; `transition_check` compares
the results with the tables.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from odradek.coordinator.group.classic.records import GroupMetadataRecord
from odradek.coordinator.group.consumer.records import (
    ConsumerCurrentRecord,
    ConsumerEpochRecord,
    ConsumerMemberRecord,
    ConsumerRegexRecord,
    ConsumerTargetEpochRecord,
    ConsumerTargetRecord,
)
from odradek.coordinator.group.offsets.records import OffsetCommitRecord
from odradek.coordinator.group.records import decode
from odradek.coordinator.group.share.records import (
    ShareCurrentRecord,
    ShareEpochRecord,
    ShareMemberRecord,
    ShareStatePartitionsRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
)
from odradek.coordinator.group.streams.records import (
    StreamsCurrentRecord,
    StreamsEpochRecord,
    StreamsMemberRecord,
    StreamsTargetEpochRecord,
    StreamsTargetRecord,
    StreamsTopologyRecord,
)
from odradek.coordinator.group.streams.requests import StreamsHeartbeatResult
from odradek.coordinator.outcome import ErrorReply
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import OffsetCommitResponse
from odradek.protocol.messages.groups import LeaveGroupResponse, MemberIdentity
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponse,
)
from tests.support.group_playbook import GroupCall, Playbook
from tests.support.transition_table import NOTHING, TransitionKey, TransitionRow

NONE = "none"
STRANGER = "stranger"

Act = Callable[[], GroupCall | None]
"""Causes the event; returns the call whose response counts, if it is a request."""
Told = tuple[str, str, Act]
"""An event, its condition, and its action."""


class TransitionCase(NamedTuple):
    """An event that is possible now. `takes_time`: the clock moves with it."""

    place: TransitionKey
    act: Act
    takes_time: bool = False


KINDS: Mapping[type, str] = {
    GroupMetadataRecord: "generation",
    OffsetCommitRecord: "offset",
    ConsumerMemberRecord: "member",
    ConsumerEpochRecord: "group epoch",
    ConsumerTargetRecord: "assignment",
    ConsumerTargetEpochRecord: "assignment",
    ConsumerCurrentRecord: "current",
    ConsumerRegexRecord: "expression",
    StreamsMemberRecord: "member",
    StreamsEpochRecord: "group epoch",
    StreamsTargetRecord: "assignment",
    StreamsTargetEpochRecord: "assignment",
    StreamsCurrentRecord: "current",
    StreamsTopologyRecord: "topology",
    ShareMemberRecord: "member",
    ShareEpochRecord: "group epoch",
    ShareTargetRecord: "assignment",
    ShareTargetEpochRecord: "assignment",
    ShareCurrentRecord: "current",
    ShareStatePartitionsRecord: "states",
}
GONE: Mapping[type, str] = {
    GroupMetadataRecord: "generation gone",
    OffsetCommitRecord: "offset gone",
    ConsumerMemberRecord: "member gone",
    ConsumerTargetRecord: "member gone",
    ConsumerCurrentRecord: "member gone",
    ConsumerEpochRecord: "group gone",
    ConsumerTargetEpochRecord: "group gone",
    ConsumerRegexRecord: "expression gone",
    StreamsMemberRecord: "member gone",
    StreamsTargetRecord: "member gone",
    StreamsCurrentRecord: "member gone",
    StreamsEpochRecord: "group gone",
    ShareMemberRecord: "member gone",
    ShareTargetRecord: "member gone",
    ShareCurrentRecord: "member gone",
    ShareEpochRecord: "group gone",
    ShareTargetEpochRecord: "group gone",
    ShareStatePartitionsRecord: "group gone",
    StreamsTargetEpochRecord: "group gone",
    StreamsTopologyRecord: "group gone",
}


def kinds_of(log: list[tuple[bytes, bytes | None]]) -> str:
    """The types of these records in order, each once; tombstones have their own."""
    found: dict[str, None] = {}
    for key, value in log:
        record = decode(key, value)
        assert record is not None
        found[(GONE if value is None else KINDS)[type(record)]] = None
    return ", ".join(found) or NOTHING


def code_of(call: GroupCall) -> str:
    """The error code of the response by name; `waits` without a response."""
    if call.answer is None:
        return "waits"
    if isinstance(call.answer, ErrorReply):
        return call.answer.error_code.name
    response = call.answer.response
    if isinstance(response, StreamsHeartbeatResult):
        response = response.response
    if isinstance(response, LeaveGroupResponse):
        return ErrorCode(response.members[0].error_code).name
    if isinstance(response, OffsetCommitResponse):
        return ErrorCode(response.topics[0].partitions[0].error_code).name
    if isinstance(response, AlterShareGroupOffsetsResponse) and not response.error_code:
        return _first(part for topic in response.responses for part in topic.partitions)
    if isinstance(response, DeleteShareGroupOffsetsResponse) and not response.error_code:
        return _first(response.responses)
    code = getattr(response, "error_code", ErrorCode.NONE)
    return ErrorCode(code).name


class _Result(Protocol):
    error_code: int


def _first(results: Iterable[_Result]) -> str:
    """The first error of several results."""
    codes = (ErrorCode(each.error_code) for each in results)
    return next((code.name for code in codes if code), ErrorCode.NONE.name)


def seen(play: Playbook, state_of: Callable[[], str], act: Act) -> TransitionRow:
    """Cause the event and return the results."""
    waiting = {at: call for at, call in play.calls.items() if call.answer is None}
    length = len(play.log)
    call = act()
    told = {
        code_of(each) for each in waiting.values() if each is not call and each.answer is not None
    }
    return TransitionRow(
        state_of(),
        kinds_of(play.log[length:]),
        NOTHING if call is None else code_of(call),
        ", ".join(sorted(told)) or NOTHING,
    )


def offsets_of(play: Playbook, state: str) -> str:
    """The condition of a commit to a group that does not exist."""
    if state != NONE:
        return NOTHING
    return "it has offsets" if play.shard.offsets.has_any("g") else "it has none"


def leave_classic(play: Playbook, member_id: str) -> GroupCall:
    """LeaveGroup of one member."""
    return play.leave_call(MemberIdentity(member_id=member_id))
