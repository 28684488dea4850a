"""What may happen to a group on stage, and what is seen of it, in the words of docs/coordinators.

`classic_cases`, `consumer_cases` and `streams_cases` tell the cases; `transition_check` holds them
against the tables.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from odradek.coordinator.group.consumer.records import (
    CurrentStored,
    GroupEpochStored,
    MemberStored,
    RegexStored,
    TargetEpochStored,
    TargetStored,
)
from odradek.coordinator.group.records import GroupStored, OffsetCommitted, decode
from odradek.coordinator.group.requests import StreamsAnswer
from odradek.coordinator.group.share.records import (
    PartitionStatesStored,
    ShareCurrentStored,
    ShareEpochStored,
    ShareMemberStored,
    ShareTargetEpochStored,
    ShareTargetStored,
)
from odradek.coordinator.group.streams.records import (
    StreamsCurrentStored,
    StreamsEpochStored,
    StreamsMemberStored,
    StreamsTargetEpochStored,
    StreamsTargetStored,
    TopologyStored,
)
from odradek.coordinator.outcome import Refusal
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import OffsetCommitResponse
from odradek.protocol.messages.groups import LeaveGroupResponse, MemberIdentity
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponse,
)
from tests.support.group_playbook import Call, Playbook
from tests.support.transition_table import NOTHING, Place, Row

NONE = "none"
STRANGER = "stranger"

Act = Callable[[], Call | None]
"""Does what a place's event says; the call whose answer counts, if it is a request."""
Told = tuple[str, str, Act]
"""An event, its condition, and how to have it happen."""


class Case(NamedTuple):
    """Something that may happen now. `takes_time`: the clock moves with it."""

    place: Place
    act: Act
    takes_time: bool = False


KINDS: Mapping[type, str] = {
    GroupStored: "generation",
    OffsetCommitted: "offset",
    MemberStored: "member",
    GroupEpochStored: "group epoch",
    TargetStored: "assignment",
    TargetEpochStored: "assignment",
    CurrentStored: "current",
    RegexStored: "expression",
    StreamsMemberStored: "member",
    StreamsEpochStored: "group epoch",
    StreamsTargetStored: "assignment",
    StreamsTargetEpochStored: "assignment",
    StreamsCurrentStored: "current",
    TopologyStored: "topology",
    ShareMemberStored: "member",
    ShareEpochStored: "group epoch",
    ShareTargetStored: "assignment",
    ShareTargetEpochStored: "assignment",
    ShareCurrentStored: "current",
    PartitionStatesStored: "states",
}
GONE: Mapping[type, str] = {
    GroupStored: "generation gone",
    OffsetCommitted: "offset gone",
    MemberStored: "member gone",
    TargetStored: "member gone",
    CurrentStored: "member gone",
    GroupEpochStored: "group gone",
    TargetEpochStored: "group gone",
    RegexStored: "expression gone",
    StreamsMemberStored: "member gone",
    StreamsTargetStored: "member gone",
    StreamsCurrentStored: "member gone",
    StreamsEpochStored: "group gone",
    ShareMemberStored: "member gone",
    ShareTargetStored: "member gone",
    ShareCurrentStored: "member gone",
    ShareEpochStored: "group gone",
    ShareTargetEpochStored: "group gone",
    PartitionStatesStored: "group gone",
    StreamsTargetEpochStored: "group gone",
    TopologyStored: "group gone",
}


def kinds_of(log: list[tuple[bytes, bytes | None]]) -> str:
    """The kinds of these records in their order, each once; tombstones by themselves."""
    found: dict[str, None] = {}
    for key, value in log:
        record = decode(key, value)
        assert record is not None
        found[(GONE if value is None else KINDS)[type(record)]] = None
    return ", ".join(found) or NOTHING


def code_of(call: Call) -> str:
    """The answer's error code by name; `waits` without one."""
    if call.answer is None:
        return "waits"
    if isinstance(call.answer, Refusal):
        return call.answer.error_code.name
    response = call.answer.response
    if isinstance(response, StreamsAnswer):
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


def seen(play: Playbook, state_of: Callable[[], str], act: Act) -> Row:
    """Do it, and tell what came of it."""
    waiting = {at: call for at, call in play.calls.items() if call.answer is None}
    length = len(play.log)
    call = act()
    told = {
        code_of(each) for each in waiting.values() if each is not call and each.answer is not None
    }
    return Row(
        state_of(),
        kinds_of(play.log[length:]),
        NOTHING if call is None else code_of(call),
        ", ".join(sorted(told)) or NOTHING,
    )


def offsets_of(play: Playbook, state: str) -> str:
    """What a commit to no group at all depends on."""
    if state != NONE:
        return NOTHING
    return "it has offsets" if play.shard.offsets.has_any("g") else "it has none"


def leave_classic(play: Playbook, member_id: str) -> Call:
    """LeaveGroup of one member."""
    return play.leave_call(MemberIdentity(member_id=member_id))
