"""Checks messages by themselves. `node` drops and counts invalid ones.

The decoder checks types; this module checks ranges of numbers, the order of entries, and
configurations. What depends on the receiver's state (an old term, an unknown sender, an index
beyond the log) is checked there.
"""

import msgspec

from odradek.cluster.raft.configuration import decode_configuration
from odradek.cluster.raft.messages import (
    ALL_MEMBERS,
    AppendRequest,
    FollowRequest,
    LeaderHint,
    Message,
    SnapshotChunk,
    VoteRequest,
    VoteResponse,
)

NUMBER_MAX = 2**62
"""The maximum of terms, indexes and sizes: sums still fit into 64 bits."""


def is_plausible(message: Message) -> bool:
    """Whether every number and entry of the message is possible."""
    sender, to, *others = msgspec.structs.astuple(message)
    if to < 0 and not (to == ALL_MEMBERS and isinstance(message, FollowRequest)):
        return False
    if not _are_numbers(sender, *(value for value in others if type(value) is int)):
        return False
    match message:
        case FollowRequest() | LeaderHint():
            return True
        case VoteResponse():
            # A member in term 0 may refuse a pre-vote.
            return message.term > 0 or (message.is_pre_vote and not message.is_granted)
        case AppendRequest():
            return _is_append_plausible(message)
        case VoteRequest():
            return message.term > 0 and _is_log_position(message.last_index, message.last_term)
        case SnapshotChunk():
            return _is_chunk_plausible(message)
        case _:
            return message.term > 0


def _are_numbers(*numbers: int) -> bool:
    return all(0 <= number <= NUMBER_MAX for number in numbers)


def _is_log_position(index: int, term: int) -> bool:
    """A log position: both are zero before the first entry, neither elsewhere."""
    return _are_numbers(index, term) and (index == 0) == (term == 0)


def _is_append_plausible(message: AppendRequest) -> bool:
    if message.term == 0 or not _is_log_position(message.previous_index, message.previous_term):
        return False
    index, term = message.previous_index, message.previous_term
    for entry in message.entries:
        index += 1
        if entry.index != index or not term <= entry.term <= message.term or entry.term == 0:
            return False
        if entry.is_configuration:
            try:
                decode_configuration(entry.data)
            except ValueError:
                return False
        term = entry.term
    return term <= message.term


def _is_chunk_plausible(message: SnapshotChunk) -> bool:
    mark = message.snapshot
    if message.term == 0 or mark.index == 0 or not _is_log_position(mark.index, mark.term):
        return False
    if not _are_numbers(mark.size, mark.checksum, message.offset) or mark.term > message.term:
        return False
    ids = mark.configuration.voter_ids
    if not ids or list(ids) != sorted(set(ids)):
        return False
    length = len(message.data)
    # Only an empty snapshot has an empty chunk.
    is_whole = mark.size == 0 and message.offset == 0 and length == 0
    return length == message.length and (
        is_whole or (length > 0 and message.offset + length <= mark.size)
    )
