"""Recovery: whether a segment that was being written when the machine went down can be used.

Only a power loss (or a kernel crash) tears a segment: what a killed process has committed is with
the operating system and stays whole. So `may_be_torn` asks whether the machine is still the one
that the store was last open on, and nothing is checked if it is. Otherwise `examine` walks the
file's trees and checks every batch, without LMDB, for a torn file would take the process down with
it; and if something does not hold, or the tree knows less than the pages and the journal do,
`salvaged_batches` hands out what is left. What was synced once is always left: large batches in
overflow pages, which are not used again, small ones in the journal (journal.py says why the leaf
pages that have them do not suffice).

A segment that passed is used as it is, but never written again: its list of free pages was not
proven. The store seals it and goes on in a new one. Called by Store.open.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from odradek.storage.journal import map_journal
from odradek.storage.layout import KEY, KEY_SIZE
from odradek.storage.pages import Meta, PageError, PageFile
from odradek.storage.salvage import Salvage, parse_whole_value

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BATCHES = b"batches"


def boot_id() -> str:
    """Names this run of the machine's kernel; empty where none can be told, which never equals."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def may_be_torn(*, was_closed: bool, boot_id_then: str, boot_id_now: str) -> bool:
    """Whether writes of the store's last owner may be missing from the disk.

    `was_closed` says that it synced and closed. A same boot id says that the kernel which took the
    writes still runs, however its processes ended.
    """
    return not was_closed and (boot_id_then != boot_id_now or not boot_id_now)


class SalvagedBatch(NamedTuple):
    """A batch to be appended again as it stands, header and all."""

    number: int
    base_offset: int
    batch: memoryview


class Examination:
    """A segment file after a power loss. Valid as long as nobody writes the file.

    `log_ends` are the partitions' log end offsets at the segment's creation, 0 for those that are
    not in it. `journal` is where its journal is,
    if it has one.
    """

    def __init__(
        self,
        path: Path,
        *,
        log_ends: Mapping[int, int],
        journal: Path | None = None,
    ) -> None:
        self._pages = PageFile.open(path)
        self._log_ends = log_ends
        self._salvage = Salvage(self._pages, map_journal(journal) if journal else memoryview(b""))
        self.fault: str | None = None
        """Why the file must not be used as it is; None if it may."""
        try:
            meta = self._pages.meta()
            ends = self._walk(meta)
        except PageError as error:
            self.fault = str(error)
            self._salvage.scan()
        else:
            self._salvage.scan()
            self.fault = self._goes_on(ends)

    @property
    def is_whole(self) -> bool:
        return self.fault is None

    def _walk(self, meta: Meta) -> dict[int, int]:
        """Walks every named tree and checks every batch; returns the log ends found."""
        pages = self._pages
        ends: dict[int, int] = {}
        for name, tree in pages.named_trees(meta).items():
            nodes = pages.walk(tree, meta.last_page)
            if name != _BATCHES:
                for _ in nodes:
                    pass
                continue
            for node in nodes:
                value = parse_whole_value(node.data, is_exact=True)
                if value is None or len(node.key) != KEY_SIZE:
                    raise PageError(f"the batch under key {node.key.hex()} is corrupt")
                number, _, log_end_before, base_offset, end_offset, _ = value
                if KEY.unpack(node.key) != (number, base_offset):
                    raise PageError(f"key {node.key.hex()} has the value of another batch")
                if ends.get(number, self._log_ends.get(number, 0)) != log_end_before:
                    raise PageError(f"partition {number} has a gap before offset {base_offset}")
                ends[number] = end_offset
        return ends

    def _goes_on(self, ends: Mapping[int, int]) -> str | None:
        """A tree may be whole and old: pages of later turns reached the disk, the one that leads to
        them did not, and under the newest meta page may stand the main page of an older turn. Names
        a partition whose log goes on in pages that the tree does not know."""
        for number in self._salvage.numbers:
            start = ends.get(number, self._log_ends.get(number, 0))
            beyond = self._salvage.chain(number, start)
            if beyond:
                end_offset = beyond[-1].end_offset
                return (
                    f"partition {number} has batches up to {end_offset} that the tree does not have"
                )
        return None

    def salvaged_batches(self) -> Iterator[SalvagedBatch]:
        """Every partition's log as far as it is whole and without a gap: partitions ascending, each
        in the order of its offsets, batches as views of the file."""
        for number in self._salvage.numbers:
            start = self._log_ends.get(number, 0)
            for found in self._salvage.chain(number, start):
                yield SalvagedBatch(number, found.base_offset, self._salvage.batch(found))
