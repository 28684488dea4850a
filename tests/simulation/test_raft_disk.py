"""The simulated disk and the real one: a Ready goes to the metadata log unchanged.

Every write of a simulated run is made to a `MetadataLog` as well. After reopening it must have the
content of the simulated disk, and a core that is restored from it must have the same state.
"""

from pathlib import Path

import pytest

from odradek.cluster.raft.configuration import (
    Configuration,
    configuration_of,
    decode_configuration,
    encode_configuration,
)
from odradek.cluster.raft.messages import Entry, SnapshotMetadata
from odradek.cluster.raft.node import RaftNode
from odradek.cluster.raft.ready import HardState, Ready, Restored
from odradek.cluster.raft.settings import RaftSettings
from odradek.storage.metadata_log import (
    MetadataLog,
    MetadataLogEntry,
    SnapshotWriter,
    StoredHardState,
)
from tests.simulation.raft_host import RaftDisk
from tests.simulation.raft_scenario import SNAPSHOTS, RaftScenario
from tests.support.metadata_logs import append_payloads


class TwinDisk(RaftDisk):
    """Makes every write twice."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.log = MetadataLog.open(folder, map_bytes=1 << 26)
        self._writer: SnapshotWriter | None = None

    def write(self, ready: Ready) -> None:
        hard_state = ready.hard_state
        if hard_state is not None or ready.entries:
            self.log.append_entries(
                [MetadataLogEntry(entry.index, entry.term, entry.data) for entry in ready.entries],
                hard_state=None
                if hard_state is None
                else StoredHardState(hard_state.term, hard_state.vote, hard_state.commit),
            )
        chunk = ready.chunk
        if chunk is not None:
            if chunk.offset == 0:
                self._writer = self._begin(chunk.snapshot)
            assert self._writer is not None
            assert self._writer.size == chunk.offset
            self._writer.write(chunk.data)
        super().write(ready)

    def complete(self, mark: SnapshotMetadata, content: bytes) -> None:
        super().complete(mark, content)
        writer = self._writer
        if writer is None or writer.size != mark.size:
            writer = self._begin(mark)
            writer.write(content)
        stored = writer.commit()
        self._writer = None
        assert (stored.size, stored.checksum) == (mark.size, mark.checksum)

    def drop_prefix(self, first_index: int) -> None:
        super().drop_prefix(first_index)
        self.log.truncate_prefix(first_index)

    def _begin(self, mark: SnapshotMetadata) -> SnapshotWriter:
        configuration = encode_configuration(mark.configuration)
        return self.log.begin_snapshot(
            index=mark.index, term=mark.term, configuration=configuration
        )


def restored_from(log: MetadataLog) -> Restored:
    """What a driver reads at its start."""
    mark = log.snapshot
    return Restored(
        hard_state=HardState(log.hard_state.term, log.hard_state.vote, log.hard_state.commit),
        entries=tuple(Entry(e.index, e.term, e.data) for e in log.read_entries()),
        previous_term=log.term_at(log.first_index - 1),
        snapshot=None
        if mark is None
        else SnapshotMetadata(
            mark.index,
            mark.term,
            mark.size,
            mark.checksum,
            decode_configuration(mark.configuration) if mark.configuration else Configuration(),
        ),
        bootstrap=configuration_of([1, 2, 3]),
    )


@pytest.mark.parametrize("seed", [2, 4])
def test_the_metadata_log_holds_what_the_simulated_disk_holds(tmp_path: Path, seed: int) -> None:
    run = RaftScenario(seed, SNAPSHOTS)
    twins = {own_id: TwinDisk(tmp_path / str(own_id)) for own_id in run.hosts}
    for own_id, host in run.hosts.items():
        host.disk.state = twins[own_id]
    run.begin()
    run.simulation.run(5_000)
    assert any(twin.snapshot for twin in twins.values())
    assert run.checker.install_count
    for own_id, twin in twins.items():
        twin.log.close()
        log = MetadataLog.open(tmp_path / str(own_id), map_bytes=1 << 26)
        assert [(e.index, e.term, e.data) for e in log.read_entries()] == [
            (e.index, e.term, e.data) for e in twin.entries
        ]
        assert (log.first_index - 1, log.term_at(log.first_index - 1)) == (
            twin.previous_index,
            twin.previous_term,
        )
        assert log.snapshot_content() == twin.content
        node = RaftNode(own_id, RaftSettings(), restored_from(log), jitter_ms=lambda: 0, now_ms=0)
        assert (node.term, node.vote) == (twin.hard_state.term, twin.hard_state.vote)
        assert node.log.snapshot == twin.snapshot
        assert node.log.last_index == twin.last_index
        log.close()


def test_a_log_of_the_time_before_raft_is_taken_over(tmp_path: Path) -> None:
    """A quorum of one wrote term 1, and neither a hard state nor voters."""
    log = MetadataLog.open(tmp_path, map_bytes=1 << 26)
    append_payloads(log, [b"\x91one", b"\x91two"], term=1)
    writer = log.begin_snapshot(index=1, term=1)
    writer.write(b"state")
    writer.commit()
    restored = restored_from(log)
    log.close()
    alone = Restored(
        hard_state=restored.hard_state,
        entries=restored.entries,
        previous_term=restored.previous_term,
        snapshot=restored.snapshot,
        bootstrap=configuration_of([1]),
    )
    node = RaftNode(1, RaftSettings(), alone, jitter_ms=lambda: 0, now_ms=0)
    node.tick(0)
    applied: list[Entry] = []
    while (ready := node.ready()) is not None:
        applied += ready.committed
        node.advance(ready)
    assert [entry.data for entry in applied if entry.is_command] == [b"\x91two"]
    assert (node.term, node.leader_id) == (2, 1)
    assert node.log.is_configuration_recorded
