"""Committed entries become the image once, in order, and a long log becomes a snapshot."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from odradek.cluster.metadata.features import UnsupportedFeatureLevelError
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import ClusterCreated, FeatureLevelChanged, encode_records
from odradek.cluster.metadata.snapshot import image_records
from odradek.cluster.raft.messages import Entry
from odradek.node.bus.endpoint import ipc_address
from odradek.node.controller import metadata_loader
from odradek.node.controller.command_forwarding import CommandForwarding
from odradek.node.controller.failure_detector import FailureDetector
from odradek.node.controller.metadata_loader import MetadataLoader, image_of_snapshot
from odradek.node.controller.metadata_publisher import MetadataPublisher
from odradek.node.controller.peer_directory import PeerDirectory
from odradek.node.controller.process_liveness import ProcessLiveness
from odradek.node.controller.quorum_leadership import QuorumLeadership
from tests.support.child_process import node_config
from tests.support.raft_harness import RaftHarness, RaftMember


@pytest.fixture
def member(tmp_path: Path) -> Iterator[RaftMember]:
    harness = RaftHarness(tmp_path / "log", [0])
    harness.elect()
    yield harness[0]
    harness.close()


@pytest.fixture
def loader(member: RaftMember, tmp_path: Path) -> Iterator[MetadataLoader]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    config = node_config(tmp_path)
    directory = PeerDirectory(
        config, 0, refuses=lambda _header: None, watch=lambda _socket, _is_new: None
    )
    forwarding = CommandForwarding(own_id=0, send=directory.send, respond=lambda *_: None)
    publisher = MetadataPublisher(
        context,
        ipc_address(tmp_path, "controller"),
        member.driver,
        sets_back=True,
        liveness=ProcessLiveness((), timeout_ms=1_000),
    )
    leadership = QuorumLeadership(
        config,
        member.log,
        member.driver,
        directory=directory,
        forwarding=forwarding,
        failure_detector=FailureDetector(member.driver, 0),
        clock_ms=lambda: member.harness.now_ms,
        wall_ms=lambda: member.harness.now_ms,
    )
    yield MetadataLoader(MetadataImage.empty(), member.driver, publisher, leadership)
    context.destroy(0)


def created(index: int, cluster_id: str = "c") -> Entry:
    return Entry(index, 0, encode_records([ClusterCreated(cluster_id)]))


def snapshot_index(member: RaftMember) -> int:
    return 0 if member.log.snapshot is None else member.log.snapshot.index


def test_entries_are_applied_once_and_move_the_offset(loader: MetadataLoader) -> None:
    loader.on_commit((Entry(1, 0, b""), created(2)))
    assert (loader.image.offset, loader.image.cluster_id) == (2, "c")
    image = loader.image
    loader.on_commit((Entry(1, 0, b""), created(2)))
    assert loader.image is image, "the core began again"


def test_a_leaders_snapshot_replaces_the_image(loader: MetadataLoader) -> None:
    loader.on_commit((Entry(1, 0, b""), created(2)))
    content = encode_records(image_records(loader.image))
    loader.on_snapshot(9, content)
    assert (loader.image.offset, loader.image.cluster_id) == (9, "c")
    assert image_of_snapshot(content, 9).cluster_id == "c"


def test_a_long_log_is_replaced_by_a_snapshot(
    loader: MetadataLoader, member: RaftMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_loader, "SNAPSHOT_ENTRIES", 3)
    for _ in range(3):
        member.driver.propose(encode_records([ClusterCreated("c")]))
    member.harness.settle()
    loader.on_commit(tuple(member.applied[:2]))
    loader.snapshot_if_due()
    assert snapshot_index(member) == 0
    loader.on_commit(tuple(member.applied))
    loader.snapshot_if_due()
    assert snapshot_index(member) == loader.image.offset == 4


def test_what_a_newer_release_has_written_is_not_misunderstood(loader: MetadataLoader) -> None:
    # Records that this release does not know would be skipped.
    newer = encode_records([FeatureLevelChanged("of.tomorrow", 1)])
    with pytest.raises(UnsupportedFeatureLevelError):
        loader.on_commit((Entry(1, 0, newer),))
    with pytest.raises(UnsupportedFeatureLevelError):
        loader.on_snapshot(2, newer)
