"""Recovery: whether the active segment is usable after the machine crashed.

Only a power loss or a kernel crash tears a segment. What a killed process has committed is in the
page cache. So `may_be_torn` compares boot ids, and nothing is checked if the machine has not been
restarted. Otherwise `Examination` walks the file's trees and checks every batch. It does so without
LMDB, which crashes on torn files. If a check fails, or if the pages and the journal have batches
that the tree does not have, `salvaged_batches` returns all intact batches. Everything that was
synced is among them: large batches are in overflow pages, which are not reused, small ones in the
journal (journal.py).

A segment that passes is used as it is, but not written again, because its list of free pages is not
checked. The store seals it and starts a new one. Called by Store.open.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from odradek.storage.journal import map_file
from odradek.storage.layout import KEY, KEY_SIZE
from odradek.storage.mapped_pages import MAPPED_PAGES
from odradek.storage.pages import Meta, PageError, PageFile
from odradek.storage.salvage import Salvage, parse_whole_value

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BATCHES = b"batches"


def boot_id() -> str:
    """The id of the kernel's current boot. Empty if it is not known."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def may_be_torn(*, was_closed: bool, boot_id_then: str, boot_id_now: str) -> bool:
    """Whether writes of the store's last owner may be missing on disk.

    They are not if it synced and closed (`was_closed`), or if the boot id is the same: then the
    kernel that has the writes is still running.
    """
    return not was_closed and (boot_id_then != boot_id_now or not boot_id_now)


class Examination:
    """A segment file after a power loss. Valid as long as the file is not written.

    `log_ends` are the partitions' log end offsets when the segment was created, by number.
    `journal` is where its journal is, if it has one."""

    def __init__(
        self,
        path: Path,
        *,
        log_ends: Mapping[int, int],
        journal: Path | None = None,
    ) -> None:
        self._pages = PageFile(map_file(path))
        self._log_ends = log_ends
        self._salvage = Salvage(self._pages, map_file(journal) if journal else memoryview(b""))
        self.fault: str | None = None
        """Why the file must not be used. None if it may."""
        try:
            ends = self._walk(self._pages.meta())
        except PageError as error:
            self.fault = str(error)
            self._salvage.scan()
        else:
            self._salvage.scan()
            self.fault = self._fault_of_old_tree(ends)

    @property
    def is_whole(self) -> bool:
        return self.fault is None

    def _walk(self, meta: Meta) -> dict[int, int]:
        """Walk every named tree and check every batch. Returns the log end offsets."""
        pages = self._pages
        ends: dict[int, int] = {}
        for name, tree in pages.named_trees(meta).items():
            nodes = pages.walk(tree, meta.last_page)
            if name != _BATCHES:
                for _ in nodes:
                    pass
                continue
            for node in nodes:
                MAPPED_PAGES.note(node.size)
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

    def _fault_of_old_tree(self, ends: Mapping[int, int]) -> str | None:
        """A tree may be valid but old: pages of later turns were written, but not the page that
        refers to them. Returns an error for a partition that has later batches than the tree."""
        for number in self._salvage.numbers:
            start = ends.get(number, self._log_ends.get(number, 0))
            beyond = self._salvage.chain(number, start)
            if beyond:
                end_offset = beyond[-1].end_offset
                return (
                    f"partition {number} has batches up to {end_offset} that the tree does not have"
                )
        return None

    def salvaged_batches(self) -> Iterator[tuple[int, memoryview]]:
        """(number, batch) of every partition's log up to the first gap: partitions ascending, each
        in the order of its offsets. Batches are views of the file, to be appended unchanged."""
        for number in self._salvage.numbers:
            start = self._log_ends.get(number, 0)
            for found in self._salvage.chain(number, start):
                yield number, self._salvage.batch(found)
