"""The disk format: the store of a partition, the files of a store, the layout of keys.

All functions are pure. None of this may change, or a node does not find its data again.
"""

from collections.abc import Sequence
from pathlib import Path
from struct import Struct

FILE_MODE = 0o600
"""Records, and what proves who somebody is, are for the user of the node."""
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
"""Precedes every batch in its value: partition number, turn (the low 32 bits of the LMDB
transaction id), and the log end offset before this append. With the number, a batch that was found
by scanning pages can be assigned to its partition. The offset distinguishes a gap that the log
always had (compacted or replicated) from a lost batch."""
STAMP_SIZE = STAMP.size

NUMBER_MAX = 2**32 - 1

FUTURE_PARTITION = 1 << 31
"""Added to the partition's number in the key of a future replica, which is copied from another log
directory: only who asks for it finds it (KIP-113)."""

STORES_PER_DIRECTORY_MAX = 1024
"""Store numbers count through the log directories of a node: a store's number is this times the
place of its directory, plus its index there. The first directory has the place 0."""

_SEGMENT_PREFIX = "segment-"
_SEGMENT_SUFFIX = ".mdb"
_JOURNAL_PREFIX = "journal-"


def store_index(topic_id: bytes, partition: int, store_count: int) -> int:
    """The store, in [0, store_count), of a partition: the same on all nodes with this store count.

    Consecutive partitions of a topic are in consecutive stores, and topics start at different
    stores, so that partitions are spread evenly.
    """
    return (int.from_bytes(topic_id[:4], "big") + partition) % store_count


def store_number(directory: int, index: int) -> int:
    """The number of the store with this index in the log directory at this place."""
    return directory * STORES_PER_DIRECTORY_MAX + index


def index_of(store: int) -> int:
    """The index of a store in its log directory. It says which worker owns the store."""
    return store % STORES_PER_DIRECTORY_MAX


def directory_of(store: int) -> int:
    """The place of the log directory of a store; 0 is the first."""
    return store // STORES_PER_DIRECTORY_MAX


def store_folder(stores_folders: Sequence[Path], store: int) -> Path:
    """The folder of a store. `stores_folders` is `<directory>/stores` for each log directory."""
    return stores_folders[directory_of(store)] / str(index_of(store))


def segment_path(directory: Path, segment_id: int) -> Path:
    """The file of a segment. LMDB's lock table is `<file>-lock`."""
    return directory / f"{_SEGMENT_PREFIX}{segment_id:08d}{_SEGMENT_SUFFIX}"


def lock_path(path: Path) -> Path:
    """The file of LMDB's lock table for an environment."""
    return path.with_name(path.name + "-lock")


def reserve_path(path: Path) -> Path:
    """The file that reserves disk space for an environment."""
    return path.with_name(path.name + "-reserve")


def journal_path(directory: Path, segment_id: int) -> Path:
    return directory / f"{_JOURNAL_PREFIX}{segment_id:08d}"


def segment_ids(directory: Path) -> list[int]:
    """The ids of all segment files in the folder, ascending."""
    return _ids(directory, _SEGMENT_PREFIX, _SEGMENT_SUFFIX)


def journal_ids(directory: Path) -> list[int]:
    """The ids of all segments with a journal in the folder, ascending."""
    return _ids(directory, _JOURNAL_PREFIX, "")


def unlink_segment(directory: Path, segment_id: int) -> None:
    """Remove a segment's files. Processes that have it open can still read it. The space is free
    when the last one has closed it."""
    path = segment_path(directory, segment_id)
    path.unlink(missing_ok=True)
    lock_path(path).unlink(missing_ok=True)
    unlink_journal(directory, segment_id)


def unlink_journal(directory: Path, segment_id: int) -> None:
    journal_path(directory, segment_id).unlink(missing_ok=True)


def _ids(directory: Path, prefix: str, suffix: str) -> list[int]:
    ids = [
        int(digits)
        for path in directory.glob(f"{prefix}*{suffix}")
        if (digits := path.name[len(prefix) : len(path.name) - len(suffix)]).isdigit()
    ]
    return sorted(ids)
