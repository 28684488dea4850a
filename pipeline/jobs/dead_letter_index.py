"""The dead letters of a job by the offsets of their records, with a digest of what each holds.

Kept in memory as a whole, so only digests are: about 200 bytes for each dead letter.
"""

from bisect import bisect_left
from collections.abc import Iterable
from hashlib import blake2b

from odradek.pipeline.jobs.findings import FindingKind, Findings
from odradek.pipeline.kafka_types import PartitionName, PartitionRange
from odradek.pipeline.tables.rows import BadRecord

_DIGEST_BYTES = 16


class DeadLetterIndex:
    """Which records have dead letters, and what these hold."""

    def __init__(self, letters: Iterable[BadRecord] = (), *, is_complete: bool = True) -> None:
        self.is_complete = is_complete
        """False if some of the dead-letter topic's log is deleted: a letter may have been there."""
        self._digests: dict[PartitionName, dict[int, list[bytes]]] = {}
        for letter in letters:
            of_partition = self._digests.setdefault(
                PartitionName(letter.topic, letter.partition), {}
            )
            of_partition.setdefault(letter.offset, []).append(digest_of(letter))
        self._offsets = {name: sorted(found) for name, found in self._digests.items()}

    def partitions(self) -> tuple[PartitionName, ...]:
        """All partitions that have records with dead letters, in order."""
        return tuple(sorted(self._offsets))

    def offsets(self, window: PartitionRange) -> list[int]:
        """Offsets of the window whose records have dead letters, ascending, each once."""
        found = self._offsets.get(window.name, [])
        return found[bisect_left(found, window.start) : bisect_left(found, window.end)]

    def digests(self, name: PartitionName, offset: int) -> list[bytes]:
        """One for each dead letter of the record."""
        return self._digests.get(name, {}).get(offset, [])


def digest_of(letter: BadRecord) -> bytes:
    """Of all that the record had; the reason is only for people."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    parts: list[bytes | None] = [letter.key, letter.value]
    for name, value in letter.headers:
        parts += [name.encode(), value]
    digest.update(letter.timestamp_ms.to_bytes(8, "big", signed=True))
    for part in parts:
        length = -1 if part is None else len(part)
        digest.update(length.to_bytes(8, "big", signed=True))
        digest.update(part or b"")
    return digest.digest()


def compare_letters(
    window: PartitionRange,
    bad: Iterable[BadRecord],
    is_gone: Iterable[range],
    index: DeadLetterIndex,
    findings: Findings,
) -> int:
    """Compare the window's bad records with the dead letters; how many letters cannot be checked.

    `is_gone` has the offsets whose records are deleted: their letters were right when they were
    sent. A letter that may be deleted itself is no finding; it counts as one that is not checked.
    """
    unchecked = 0
    expected = {each.offset: digest_of(each) for each in bad}
    for offset, digest in expected.items():
        found = index.digests(window.name, offset)
        if not found and index.is_complete:
            findings.add(FindingKind.DEAD_LETTER_MISSING, window.name, [offset])
        elif not found:
            unchecked += 1
        if any(each != digest for each in found):
            findings.add(FindingKind.DEAD_LETTER_ALTERED, window.name, [offset])
    gone = tuple(is_gone)
    for offset in index.offsets(window):
        times = len(index.digests(window.name, offset))
        if times > 1:
            text = f"{times} times"
            findings.add(FindingKind.DEAD_LETTER_DOUBLED, window.name, [offset], text)
        if offset in expected:
            continue
        if any(offset in each for each in gone):
            unchecked += 1
        else:
            findings.add(FindingKind.DEAD_LETTER_UNEXPECTED, window.name, [offset])
    return unchecked
