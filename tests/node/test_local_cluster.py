"""Clusters on one machine: the layout is chosen once, stored and used again."""

import itertools
import os
import stat
from pathlib import Path

import pytest

from odradek.node.local_cluster import (
    LAYOUT_NAME,
    NODES_MAX,
    SECRET_NAME,
    ClusterLayout,
    LocalCluster,
    LocalNode,
    extended_layout,
    new_layout,
    read_layout,
    write_layout,
)
from tests.support.ports import free_pair, free_port


def test_no_two_ports_of_a_layout_are_the_same() -> None:
    layout = new_layout(NODES_MAX, 9092)
    assert [node.node_id for node in layout.nodes] == list(range(NODES_MAX))
    assert [node.port for node in layout.nodes] == list(range(9092, 9092 + NODES_MAX))
    peers = [node.peer_port for node in layout.nodes]
    # Behind each peer port there is room for the workers of a node.
    assert all(later - earlier >= 17 for earlier, later in itertools.pairwise(peers))
    assert min(peers) > 9092 + NODES_MAX


@pytest.mark.parametrize("count", [0, NODES_MAX + 1])
def test_too_few_and_too_many_nodes_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="nodes"):
        new_layout(count, 9092)


def test_a_layout_is_stored_and_its_secret_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert read_layout(folder) is None
    layout = new_layout(3, 9092)
    write_layout(folder, layout)
    assert read_layout(folder) == layout
    mode = stat.S_IMODE((folder / SECRET_NAME).stat().st_mode)
    assert mode == 0o600
    assert len((folder / SECRET_NAME).read_text()) >= 32
    assert new_layout(3, 9092).cluster_id != layout.cluster_id


def test_an_extended_layout_keeps_its_bootstrap_nodes_and_its_secret(tmp_path: Path) -> None:
    layout = new_layout(1, 9092)
    write_layout(tmp_path, layout)
    secret = (tmp_path / SECRET_NAME).read_text()
    more = extended_layout(extended_layout(layout, 2), 4)
    write_layout(tmp_path, more)
    assert read_layout(tmp_path) == more
    assert (tmp_path / SECRET_NAME).read_text() == secret
    assert more.nodes == new_layout(4, 9092).nodes
    assert (more.bootstrap_nodes, more.joined) == (more.nodes[:1], more.nodes[1:])
    assert (layout.bootstrap_nodes, layout.joined) == (layout.nodes, ())


def test_added_nodes_have_join_and_not_peers(tmp_path: Path) -> None:
    write_layout(tmp_path, layout := extended_layout(new_layout(1, 9092), 2))
    nodes = LocalCluster(tmp_path, layout)
    added = nodes.join(LocalNode(2, 9094, 10200))
    first, second = nodes.nodes[0].settings, nodes.nodes[1].settings
    assert first["peers"] == f"0@127.0.0.1:{layout.nodes[0].peer_port}"
    assert second["join"] == f"127.0.0.1:{layout.nodes[0].peer_port}"
    assert second["peer.listen"] == f"127.0.0.1:{layout.nodes[1].peer_port}"
    assert {"peers", "join"} - first.keys() == {"join"}
    assert added.settings["join"].count(",") == 1
    assert nodes.layout.bootstrap_nodes == layout.bootstrap_nodes
    assert nodes.bootstrap_servers.endswith(":9094")


def test_a_damaged_layout_is_an_error(tmp_path: Path) -> None:
    (tmp_path / LAYOUT_NAME).write_text("{")
    with pytest.raises(ValueError, match=LAYOUT_NAME):
        read_layout(tmp_path)


@pytest.mark.e2e
def test_a_cluster_comes_up_again_with_its_topics_and_replicas(tmp_path: Path) -> None:
    layout = ClusterLayout(
        "cluster-of-the-test", tuple(LocalNode(n, free_port(), free_pair()) for n in range(3))
    )
    write_layout(tmp_path, layout)
    settings = {"profile": "dev", "arena.bytes": "32MiB", "socket.request.max.bytes": "8388608"}
    nodes = LocalCluster(tmp_path, layout, settings=settings)
    try:
        nodes.start()
        assert all(node.is_running for node in nodes.nodes.values())
        nodes.nodes[1].create_topic("kept", partitions=3)
        nodes.stop()
        assert not any(node.is_running for node in nodes.nodes.values())
        again = LocalCluster(tmp_path, layout, settings=settings)
        nodes = again
        again.start()
        assert again.bootstrap_servers == ",".join(f"127.0.0.1:{n.port}" for n in layout.nodes)
        with pytest.raises(Exception, match="exists"):
            again.nodes[2].create_topic("kept")
        again.stop()
    finally:
        nodes.kill()


def test_a_node_s_arguments_do_not_tell_the_secret(tmp_path: Path) -> None:
    layout = new_layout(1, 9092)
    write_layout(tmp_path, layout)
    (node,) = LocalCluster(tmp_path, layout).nodes.values()
    secret = (tmp_path / SECRET_NAME).read_text()
    assert secret not in os.sep.join(node.settings.values())
