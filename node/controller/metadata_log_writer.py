"""The metadata log as the Raft core's storage: writes in a thread, snapshots, the state at a start.

`persist` runs in a thread of its own, so that the controller's loop does not wait for a sync. One
write is under way at a time; between `persist` and its result the log belongs to the thread.
Called by `raft_driver`.
"""

import os
import threading
from queue import SimpleQueue
from typing import NamedTuple

from odradek.cluster.raft.configuration import (
    Configuration,
    decode_configuration,
    encode_configuration,
)
from odradek.cluster.raft.messages import Entry, SnapshotMetadata
from odradek.cluster.raft.ready import HardState, Ready, ReceivedChunk, Restored
from odradek.node.structured_log import get_logger
from odradek.storage.metadata_log import (
    MetadataLog,
    MetadataLogEntry,
    MetadataLogError,
    SnapshotManifest,
    SnapshotWriter,
    StoredHardState,
)

log = get_logger(__name__)


class WriteResult(NamedTuple):
    """What became of a write: the exception that it raised, or none."""

    error: Exception | None
    is_snapshot_corrupt: bool = False
    """Whether the received snapshot cannot be used and has to be sent again."""


class MetadataLogWriter:
    """See the module's docstring. `fileno` becomes readable when a write has ended."""

    def __init__(self, metadata_log: MetadataLog) -> None:
        self._log = metadata_log
        self._writes: SimpleQueue[tuple[Ready, bool] | None] = SimpleQueue()
        self._results: SimpleQueue[WriteResult] = SimpleQueue()
        self._incoming: SnapshotWriter | None = None
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="metadata-log", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """What a poller watches."""
        return self._reading

    def persist(self, ready: Ready, *, may_use_reserve: bool) -> None:
        """Begin to write hard state, entries and chunk of `ready`; `take_result` follows."""
        self._writes.put((ready, may_use_reserve))

    def take_result(self) -> WriteResult | None:
        """The result of a write that has ended since the last call. Does not block."""
        return None if self._results.empty() else self.wait_result()

    def wait_result(self) -> WriteResult:
        """The result of the write under way. Blocks until it has ended."""
        result = self._results.get()
        os.read(self._reading, 1)
        return result

    def close(self) -> None:
        """Finish the write under way and end the thread. The log stays open."""
        self._writes.put(None)
        self._thread.join()
        os.close(self._reading)
        os.close(self._writing)

    # -- in the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while (write := self._writes.get()) is not None:
            try:
                result = self._write(*write)
            except Exception as error:
                result = WriteResult(error)
            os.write(self._writing, b"!")
            self._results.put(result)

    def _write(self, ready: Ready, may_use_reserve: bool) -> WriteResult:
        hard_state = ready.hard_state
        if hard_state is not None or ready.entries:
            self._log.append_entries(
                [MetadataLogEntry(entry.index, entry.term, entry.data) for entry in ready.entries],
                hard_state=None
                if hard_state is None
                else StoredHardState(hard_state.term, hard_state.vote, hard_state.commit),
                may_use_reserve=may_use_reserve,
            )
        is_corrupt = ready.chunk is not None and not self._write_chunk(ready.chunk)
        return WriteResult(None, is_corrupt)

    def _write_chunk(self, chunk: ReceivedChunk) -> bool:
        """Write a chunk of the leader's snapshot; False if the snapshot must be sent again."""
        metadata = chunk.snapshot
        try:
            if chunk.offset == 0:
                self._incoming = self._begin(metadata.index, metadata.term, metadata.configuration)
            writer = self._incoming
            if writer is None or writer.size != chunk.offset:
                return False
            writer.write(chunk.data)
            if not chunk.is_last:
                return True
            self._incoming = None
            if (writer.size, writer.checksum) != (metadata.size, metadata.checksum):
                log.error("the received metadata snapshot is corrupt and is fetched again")
                writer.abort()
                return False
            writer.commit()
        except (OSError, MetadataLogError) as error:
            log.error("the received metadata snapshot cannot be stored", reason=str(error))
            if self._incoming is not None:
                self._incoming.abort()
                self._incoming = None
            return False
        return True

    # -- while no write is under way ---------------------------------------------------------------

    def restored(self, bootstrap: Configuration) -> Restored:
        """The persisted state, as the core wants it at its start."""
        metadata_log = self._log
        first_index = metadata_log.first_index
        hard_state = metadata_log.hard_state
        return Restored(
            hard_state=HardState(hard_state.term, hard_state.vote, hard_state.commit),
            entries=tuple(
                Entry(entry.index, entry.term, entry.data) for entry in metadata_log.read_entries()
            ),
            previous_term=metadata_log.term_at(first_index - 1),
            snapshot=self.snapshot,
            bootstrap=bootstrap,
        )

    @property
    def snapshot(self) -> SnapshotMetadata | None:
        """The newest complete snapshot."""
        manifest = self._log.snapshot
        return None if manifest is None else _snapshot_metadata(manifest)

    def take_snapshot(
        self,
        content: bytes,
        *,
        index: int,
        term: int,
        configuration: Configuration,
        retained_entries: int,
    ) -> SnapshotMetadata | None:
        """Replace the entries up to `index` by `content`, except for the last `retained_entries`.

        None if that failed, for example on a full disk: then the log stays as it is.
        """
        writer: SnapshotWriter | None = None
        try:
            writer = self._begin(index, term, configuration)
            writer.write(content)
            manifest = writer.commit()
            first_index = max(self._log.first_index, index + 1 - retained_entries)
            self._log.truncate_prefix(first_index)
        except (MetadataLogError, OSError) as error:
            log.error(
                "a metadata snapshot cannot be written and is tried again later", reason=str(error)
            )
            if writer is not None:
                writer.abort()
            return None
        return _snapshot_metadata(manifest)

    def _begin(self, index: int, term: int, configuration: Configuration) -> SnapshotWriter:
        return self._log.begin_snapshot(
            index=index, term=term, configuration=encode_configuration(configuration)
        )


def _snapshot_metadata(manifest: SnapshotManifest) -> SnapshotMetadata:
    """Snapshots written before there was Raft name no voters."""
    voters = manifest.configuration
    configuration = decode_configuration(voters) if voters else Configuration()
    return SnapshotMetadata(
        manifest.index, manifest.term, manifest.size, manifest.checksum, configuration
    )
