"""Names and keys: which store a partition lives in, which files a store has, how keys look.

Everything here is a pure function of its arguments and part of the format on disk: a node finds its
data again only as long as none of it changes.
"""

from pathlib import Path
from struct import Struct

CATALOG_NAME = "catalog.mdb"
STATUS_NAME = "status"
OWNER_LOCK_NAME = "owner.lock"
RESERVE_NAME = "reserve"

KEY = Struct(">IQ")
"""Key of a batch: store-local partition number, base offset. Big-endian, so that the order of keys
is the order of the log."""
KEY_SIZE = KEY.size
NUMBER = Struct(">I")
OFFSET = Struct(">Q")
EPOCH_KEY = Struct(">II")
"""Key of a leader epoch: number, epoch."""

STAMP = Struct(">IIQ")
"""What stands before every batch in its value: partition number, turn (the low 32 bits of the LMDB
transaction's id) and the partition's log end offset before this append. The number makes a batch
found by scanning pages belong to somebody; the offset tells a gap that was always there (a
compacted or replicated log) from a batch that was lost."""
STAMP_SIZE = STAMP.size

NUMBER_MAX = 2**32 - 1

_SEGMENT_PREFIX = "segment-"
_SEGMENT_SUFFIX = ".mdb"
_JOURNAL_PREFIX = "journal-"


def store_index(topic_id: bytes, partition: int, store_count: int) -> int:
    """The store, in [0, store_count), that holds this partition on every node of that store count.

    Consecutive partitions of a topic fall into consecutive stores, and topics start at different
    ones, so that both a few wide topics and many narrow ones spread evenly.
    """
    return (int.from_bytes(topic_id[:4], "big") + partition) % store_count


def store_folder(stores_folder: Path, store: int) -> Path:
    """Where store number `store` of a node lives; `stores_folder` is `<data>/stores`."""
    return stores_folder / str(store)


def segment_path(directory: Path, segment_id: int) -> Path:
    """The file of a segment; LMDB keeps its lock table beside it as `<file>-lock`."""
    return directory / f"{_SEGMENT_PREFIX}{segment_id:08d}{_SEGMENT_SUFFIX}"


def lock_path(path: Path) -> Path:
    """The lock table LMDB keeps beside an environment's file."""
    return path.with_name(path.name + "-lock")


def reserve_path(path: Path) -> Path:
    """The file whose room is kept back for an environment's file."""
    return path.with_name(path.name + "-reserve")


def journal_path(directory: Path, segment_id: int) -> Path:
    """The journal of an active segment, if it has one."""
    return directory / f"{_JOURNAL_PREFIX}{segment_id:08d}"


def segment_ids(directory: Path) -> list[int]:
    """The ids of all segment files in the folder, known to the catalog or not, ascending."""
    return _ids(directory, _SEGMENT_PREFIX, _SEGMENT_SUFFIX)


def journal_ids(directory: Path) -> list[int]:
    """The ids of the segments of which there is a journal in the folder, ascending."""
    return _ids(directory, _JOURNAL_PREFIX, "")


def unlink_segment(directory: Path, segment_id: int) -> None:
    """Remove a segment's files. Whoever has it open keeps reading: the space returns with the last
    of them."""
    path = segment_path(directory, segment_id)
    path.unlink(missing_ok=True)
    lock_path(path).unlink(missing_ok=True)
    unlink_journal(directory, segment_id)


def unlink_journal(directory: Path, segment_id: int) -> None:
    """Remove a segment's journal: the segment is sealed, or synced with every turn."""
    journal_path(directory, segment_id).unlink(missing_ok=True)


def _ids(directory: Path, prefix: str, suffix: str) -> list[int]:
    ids = [
        int(digits)
        for path in directory.glob(f"{prefix}*{suffix}")
        if (digits := path.name[len(prefix) : len(path.name) - len(suffix)]).isdigit()
    ]
    return sorted(ids)
