"""A node's member id and bootstrap voters, which do not change with its configuration."""

from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from odradek.cluster.raft.configuration import is_bootstrap_voter, member_id
from odradek.node.config import NodeConfig, load
from odradek.node.controller.bootstrap_voters import (
    QuorumIdentity,
    drop_bootstrap_voters,
    quorum_identity,
)
from odradek.storage.metadata_log import MetadataLog, MetadataLogError, StoredHardState
from tests.support.metadata_logs import append_payloads

DIRECTORY = UUID(int=7 << 100)
THREE = "0@127.0.0.1:9192,1@127.0.0.1:9292,2@127.0.0.1:9392"


def config(*, node_id: int = 0, **options: str) -> NodeConfig:
    keys = {key.replace("_", "."): text for key, text in options.items()}
    loaded = load(environment={}, options={"node.id": str(node_id), **keys})
    return msgspec.structs.replace(loaded, directory_id=str(DIRECTORY))


JOINING = config(node_id=5, join="127.0.0.1:9192", peer_listen="127.0.0.1:9692")
REPLICA = member_id(5, DIRECTORY.bytes)


def part(folder: Path, configured: NodeConfig) -> QuorumIdentity:
    log = MetadataLog.open(folder)
    try:
        return quorum_identity(log, configured)
    finally:
        log.close()


def test_a_new_log_stores_its_bootstrap_voters(tmp_path: Path) -> None:
    for _ in range(2):
        assert part(tmp_path, config(peers=THREE)) == QuorumIdentity(0, (0, 1, 2))
    other = THREE.replace("2@", "3@")
    with pytest.raises(MetadataLogError, match=r"bootstrapped by the nodes \[0, 1, 2\]"):
        part(tmp_path, config(peers=other))
    with pytest.raises(MetadataLogError, match="Set peers to those nodes"):
        part(tmp_path, config())
    with pytest.raises(MetadataLogError, match=r"join is set, but .* bootstrapped by the nodes"):
        part(tmp_path, config(join="127.0.0.1:9292", peer_listen="127.0.0.1:9192"))


@pytest.mark.parametrize("has_voted", [True, False], ids=["voted", "from before there was Raft"])
def test_a_log_bootstrapped_by_a_single_node_rejects_peers(tmp_path: Path, has_voted: bool) -> None:
    assert part(tmp_path, config(node_id=5)) == QuorumIdentity(5, (5,))
    log = MetadataLog.open(tmp_path)
    append_payloads(log, [b"x"], term=1, hard_state=StoredHardState(1, 5) if has_voted else None)
    log.close()
    assert part(tmp_path, config(node_id=5)) == QuorumIdentity(5, (5,))
    with pytest.raises(MetadataLogError, match="bootstrapped a single-node cluster"):
        part(tmp_path, config(node_id=5, peers=THREE.replace("2@", "5@")))
    with pytest.raises(
        MetadataLogError, match=r"join is set, but .* bootstrapped a single-node cluster"
    ):
        part(tmp_path, JOINING)


def test_a_single_node_keeps_its_identity_when_it_gets_peer_listen(tmp_path: Path) -> None:
    assert part(tmp_path, config()) == QuorumIdentity(0, (0,))
    assert part(tmp_path, config(peer_listen="127.0.0.1:9192")) == QuorumIdentity(0, (0,))


def test_a_joining_node_has_the_member_id_of_its_data_folder(tmp_path: Path) -> None:
    assert part(tmp_path, JOINING) == QuorumIdentity(REPLICA, ())
    assert not is_bootstrap_voter(REPLICA)


def test_a_joined_node_stays_one_whatever_is_configured(tmp_path: Path) -> None:
    part(tmp_path, JOINING)
    listening = config(node_id=5, peer_listen="127.0.0.1:9692")
    assert part(tmp_path, listening) == QuorumIdentity(REPLICA, ())
    peers = config(node_id=5, peers=THREE.replace("2@", "5@"))
    assert part(tmp_path, peers) == QuorumIdentity(REPLICA, ())
    with pytest.raises(MetadataLogError, match="Set join and peer"):
        part(tmp_path, config(node_id=5))


def test_a_removed_bootstrap_voter_returns_as_an_observer(tmp_path: Path) -> None:
    three = config(peers=THREE)
    part(tmp_path, three)
    log = MetadataLog.open(tmp_path)
    drop_bootstrap_voters(log)
    log.close()
    assert part(tmp_path, three) == QuorumIdentity(member_id(0, DIRECTORY.bytes), ())


def test_a_data_folder_without_a_directory_id_cannot_join(tmp_path: Path) -> None:
    with pytest.raises(MetadataLogError, match="start with a new data folder"):
        part(tmp_path, msgspec.structs.replace(JOINING, directory_id=""))
