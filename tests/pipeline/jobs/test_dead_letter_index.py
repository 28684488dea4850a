"""Digests tell apart everything that a dead letter carries."""

from dataclasses import replace

from odradek.pipeline.jobs.dead_letter_index import DeadLetterIndex, digest_of
from odradek.pipeline.kafka_types import PartitionName, PartitionRange
from odradek.pipeline.tables.rows import BadRecord

LETTER = BadRecord("orders", 3, 17, 1_000, "no JSON", b"k", b"v", (("a", b"b"), ("c", None)))


def test_everything_but_reason_and_place_is_in_the_digest() -> None:
    changed = [
        replace(LETTER, timestamp_ms=1_001),
        replace(LETTER, key=None),
        replace(LETTER, key=b""),
        replace(LETTER, value=None),
        replace(LETTER, key=b"kv", value=b""),
        replace(LETTER, headers=LETTER.headers[:1]),
        replace(LETTER, headers=LETTER.headers[::-1]),
        replace(LETTER, headers=(("a", b"b"), ("c", b""))),
        replace(LETTER, headers=(("ab", b""), ("c", None))),
    ]
    assert len({digest_of(each) for each in [LETTER, *changed]}) == len(changed) + 1
    assert digest_of(replace(LETTER, reason="other")) == digest_of(LETTER)


def test_letters_are_found_by_the_offsets_of_their_records() -> None:
    index = DeadLetterIndex(replace(LETTER, offset=offset) for offset in (30, 10, 20, 10))

    assert index.partitions() == (PartitionName("orders", 3),)
    assert index.offsets(PartitionRange("orders", "", 3, 10, 30)) == [10, 20]
    assert index.offsets(PartitionRange("orders", "", 4, 0, 100)) == []
    assert len(index.digests(PartitionName("orders", 3), 10)) == 2
