"""The records that are replayed at loading, and their order."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.coordinator.loader import (
    BUFFERED_RECORDS_MAX,
    CoordinatorLoader,
    LogEntry,
    TransactionalEntry,
)
from odradek.coordinator.outcome import TransactionalRecord, TransactionMarker
from odradek.coordinator.timeline import Timeline
from odradek.protocol.errors import ProtocolError

COMMIT = TransactionMarker(7, 1, 3, is_commit=True)


class Scribe:
    """Keeps every record that is replayed, and the position it was replayed at."""

    def __init__(self, *, is_log_compacted: bool = True) -> None:
        self.timeline = Timeline()
        self.is_log_compacted = is_log_compacted
        self.replayed: list[object] = []
        self.positions: list[int] = []

    def decode(self, key: bytes, value: bytes | None) -> tuple[bytes, bytes | None] | None:
        if value == b"malformed":
            raise ProtocolError("malformed")
        return None if key == b"somebody else's" else (key, value)

    def replay(self, record: object) -> None:
        self.replayed.append(record)
        self.positions.append(self.timeline.position)


def replayed(*slices: Sequence[LogEntry], is_log_compacted: bool = True) -> list[object]:
    """The records of the slices that are replayed."""
    scribe = Scribe(is_log_compacted=is_log_compacted)
    loader = CoordinatorLoader(scribe)
    for entries in slices:
        loader.replay(entries, is_committed=True)
    loader.finish()
    return scribe.replayed


def test_only_the_newest_record_of_a_key_is_replayed_in_its_place() -> None:
    first: list[LogEntry] = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]
    second: list[LogEntry] = [(b"c", b"1"), (b"b", None)]
    assert replayed(first, second) == [(b"a", b"2"), (b"c", b"1"), (b"b", None)]


def test_all_records_of_a_log_without_compaction_are_replayed() -> None:
    entries: list[LogEntry] = [(b"a", b"1"), (b"a", b"2")]
    assert replayed(entries, is_log_compacted=False) == entries


def test_records_without_a_key_and_of_unknown_types_are_skipped() -> None:
    assert replayed([(None, b"1"), (b"somebody else's", b"1"), (b"a", b"1")]) == [(b"a", b"1")]


def test_records_before_a_transactional_record_are_replayed_before_it() -> None:
    """The order in the log decides between a commit and a pending transactional one."""
    entries: list[LogEntry] = [
        (b"a", b"1"),
        TransactionalEntry(7, 0, b"a", b"2"),
        (b"a", b"3"),
        COMMIT,
        (b"a", b"4"),
        (b"a", b"5"),
    ]
    assert replayed(entries) == [
        (b"a", b"1"),
        TransactionalRecord(7, 0, (b"a", b"2")),
        (b"a", b"3"),
        COMMIT,
        (b"a", b"5"),
    ]


def test_all_transactional_records_are_replayed() -> None:
    entry = TransactionalEntry(7, 0, b"a", b"1")
    assert replayed([entry, entry]) == [TransactionalRecord(7, 0, (b"a", b"1"))] * 2


def test_all_uncommitted_records_are_replayed_after_the_committed_ones() -> None:
    scribe = Scribe()
    loader = CoordinatorLoader(scribe)
    loader.replay([(b"a", b"1"), (b"a", b"2")], is_committed=True)
    loader.replay([(b"a", b"3"), (None, b""), (b"a", b"4")], is_committed=False)
    loader.finish()
    assert scribe.replayed == [(b"a", b"2"), (b"a", b"3"), (b"a", b"4")]
    assert scribe.positions == [0, 1, 2]


def test_the_buffer_is_limited() -> None:
    scribe = Scribe()
    loader = CoordinatorLoader(scribe)
    keys = [b"%d" % number for number in range(BUFFERED_RECORDS_MAX)]
    loader.replay([(key, b"1") for key in keys], is_committed=True)
    loader.replay([(keys[0], b"2")], is_committed=True)
    assert scribe.replayed == []
    loader.replay([(b"one more", b"1")], is_committed=True)
    assert scribe.replayed == [*((key, b"1") for key in keys[1:]), (keys[0], b"2")]
    loader.finish()
    assert scribe.replayed[-1] == (b"one more", b"1")


def test_a_malformed_record_fails_the_loading() -> None:
    with pytest.raises(ProtocolError):
        replayed([(b"a", b"malformed")])


@given(
    st.lists(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.binary(max_size=1)))),
)
def test_the_slices_of_a_log_make_no_difference(
    slices: list[list[tuple[bytes | None, bytes | None]]],
) -> None:
    entries = [entry for part in slices for entry in part]
    newest = {key: at for at, (key, _) in enumerate(entries)}
    assert replayed(*slices) == [entries[at] for at in sorted(newest.values())]
