"""Read access to the logs of this broker's stores, without a message to a worker.

A store is opened read-only when it is first used; its worker may not have created it yet. The
location of a partition is looked up each time, in the reader's cache of the store's catalog: a
replica that moves away and comes back has another number. Segment files that a worker has dropped
are closed within seconds, also on an idle router: until then their disk space is not free.
"""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from odradek.node.structured_log import get_logger
from odradek.storage.environment import StorageError
from odradek.storage.layout import directory_of, store_folder, store_index, store_number
from odradek.storage.mapped_pages import MAPPED_PAGES
from odradek.storage.reader import StoreReader

log = get_logger(__name__)

StoreLocation = tuple[int, int]
"""(store, store-local partition number)"""


_new_tuple = tuple.__new__


class LocatedLog(NamedTuple):
    """A partition's log: the reader of its store, and its number there."""

    reader: StoreReader
    store: int
    number: int

    def progress(self) -> int:
        """Changes whenever a consumer can read further: the sum of high watermark and last stable
        offset, neither of which moves back."""
        status = self.reader.status
        return status.high_watermark(self.number) + status.last_stable_offset(self.number)


RELEASE_INTERVAL_S = 5.0
"""How often dropped segment files are closed; a check reads one word of each store."""


class Logs:
    """All stores of this broker. In a running event loop dropped files are closed by a timer;
    elsewhere the caller does it (`release_dropped_segments`)."""

    def __init__(self, stores_folders: Sequence[Path], store_count: int) -> None:
        """`stores_folders` are those of the log directories, in their order."""
        self.folders = tuple(stores_folders)
        self._store_count = store_count
        self._directory_count = len(self.folders)
        self.offline: frozenset[int] = frozenset()
        """The places of the log directories that are offline."""
        self._places: dict[tuple[bytes, int], int] = {}
        """The store in which a partition was found last, if there are several log directories."""
        self._readers: dict[int, StoreReader] = {}
        self._failed_readers: list[StoreReader] = []
        """Not closed: a request may be reading, and that might wait for the disk."""
        self._timer: asyncio.TimerHandle | None = None
        with suppress(RuntimeError):
            self._schedule_release(asyncio.get_running_loop())

    def reader(self, store: int) -> StoreReader | None:
        """The reader of a store, or None while its worker has not created it."""
        reader = self._readers.get(store)
        if reader is None:
            folder = store_folder(self.folders, store)
            if directory_of(store) in self.offline:
                return None
            if not StoreReader.exists(folder):
                return None
            try:
                reader = self._readers[store] = StoreReader(folder)
            except StorageError as error:
                # Its worker is still creating it.
                log.info("a store cannot be read yet", store=store, reason=str(error))
                return None
        return reader

    def has_open(self, store: int, reader: StoreReader) -> bool:
        """Whether this is still the reader of the store."""
        return self._readers.get(store) is reader

    def take_offline(self, places: Collection[int]) -> None:
        """Read nothing more from the log directories at these places."""
        self.offline = frozenset(places)
        self._places.clear()
        for store in [each for each in self._readers if directory_of(each) in self.offline]:
            self._failed_readers.append(self._readers.pop(store))

    def open(self, topic_id: bytes, partition: int) -> LocatedLog | None:
        """A partition's log; None if its worker has not created it, or it does not exist."""
        location = self.locate(topic_id, partition)
        if location is None:
            return None
        store, number = location
        return _new_tuple(LocatedLog, (self._readers[store], store, number))

    def locate(self, topic_id: bytes, partition: int) -> StoreLocation | None:
        """The location of a partition's log; None as for `open`."""
        if partition < 0:
            return None
        store = store_index(topic_id, partition, self._store_count)
        if self._directory_count > 1:
            store = self._places.get((topic_id, partition), store)
        reader = self._readers.get(store) or self.reader(store)
        number = None if reader is None else reader.number_of(topic_id, partition)
        if number is None:
            return None if self._directory_count == 1 else self._search(topic_id, partition)
        return store, number

    def _search(self, topic_id: bytes, partition: int) -> StoreLocation | None:
        """The location of a partition's log in any of several directories."""
        index = store_index(topic_id, partition, self._store_count)
        for directory in range(self._directory_count):
            store = store_number(directory, index)
            reader = self.reader(store)
            number = None if reader is None else reader.number_of(topic_id, partition)
            if number is not None:
                self._places[topic_id, partition] = store
                return store, number
        return None

    def store_index(self, topic_id: bytes, partition: int) -> int:
        """The index of a partition's store in whichever log directory. It says which worker owns
        the store."""
        return store_index(topic_id, partition, self._store_count)

    def open_future(self, topic_id: bytes, partition: int) -> LocatedLog | None:
        """The future replica of a partition that is being moved to another log directory; None if
        it is not."""
        if self._directory_count == 1:
            return None
        index = store_index(topic_id, partition, self._store_count)
        for directory in range(self._directory_count):
            store = store_number(directory, index)
            reader = self.reader(store)
            number = None if reader is None else reader.future_number_of(topic_id, partition)
            if reader is not None and number is not None:
                return LocatedLog(reader, store, number)
        return None

    def set_watch(self, store: int, number: int) -> None:
        """Have the worker send PartitionsAdvanced when this partition advances next."""
        reader = self.reader(store)
        if reader is not None:
            reader.status.set_watch(number)

    def release_dropped_segments(self) -> None:
        """Close the files of segments that the workers have dropped, and unmap what was read."""
        MAPPED_PAGES.release()
        for reader in self._readers.values():
            # The next read reports the error.
            with suppress(StorageError):
                reader.refresh()

    def _schedule_release(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(RELEASE_INTERVAL_S, self._schedule_release, loop)
        self.release_dropped_segments()
        self._places.clear()
        # What is open can be read when the disk has become read-only; it cannot be opened then.
        for directory in range(self._directory_count):
            for index in range(self._store_count):
                self.reader(store_number(directory, index))

    def close(self) -> None:
        """Close all stores. Segments that responses still hold stay open."""
        if self._timer is not None:
            self._timer.cancel()
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
