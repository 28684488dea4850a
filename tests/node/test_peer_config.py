"""The settings about other nodes, and their errors."""

from pathlib import Path

import pytest

from odradek.node.config import NodeConfig, load
from odradek.node.config_sources import ConfigurationError
from odradek.node.peer_config import (
    PeerConfig,
    SeedConfig,
    is_loopback,
    is_wildcard_address,
    parse_join,
    parse_peers,
    parse_secrets,
)

THREE = "2@127.0.0.1:9392,0@127.0.0.1:9192,1@127.0.0.1:9292"
SECRET = "sixteen characters and more"


def configured(**options: str) -> NodeConfig:
    keys = {key.replace("_", "."): text for key, text in options.items()}
    return load(environment={}, options=keys)


def fault_of(**options: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        configured(**options)
    return str(caught.value)


def test_a_node_listens_at_its_own_entry_of_peers() -> None:
    config = configured(peers=THREE, node_id="1")
    assert config.peers == (
        PeerConfig(0, "127.0.0.1", 9192),
        PeerConfig(1, "127.0.0.1", 9292),
        PeerConfig(2, "127.0.0.1", 9392),
    )
    assert (config.peer_host, config.peer_port) == ("127.0.0.1", 9292)
    assert config.is_clustered


def test_a_node_on_its_own_has_no_peers() -> None:
    config = configured()
    assert (config.peers, config.is_clustered) == ((), False)


def test_peer_listen_may_differ_from_the_own_entry() -> None:
    peers = "0@a.example:9192,1@b.example:9192,2@c.example:9192"
    config = configured(peers=peers, peer_listen="0.0.0.0:9999", cluster_secret=SECRET)
    assert (config.peer_host, config.peer_port) == ("0.0.0.0", 9999)


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    assert parse_peers("0@[::1]:9192")[0] == PeerConfig(0, "::1", 9192)


@pytest.mark.parametrize(
    ("peers", "told"),
    [
        ("", "Must name every node"),
        ("0@127.0.0.1", "must be id@host:port"),
        ("127.0.0.1:9192", "must be id@host:port"),
        ("0@127.0.0.1:0", "a port from 1 to 65535"),
        ("0@127.0.0.1:70000", "a port from 1 to 65535"),
        ("0@127.0.0.1:1,0@127.0.0.1:2", "Node 0 is listed twice"),
        ("0@127.0.0.1:1,1@127.0.0.1:1", "Two nodes have the address 127.0.0.1:1"),
        (",".join(f"{n}@127.0.0.1:{n + 1}" for n in range(10)), "at most 9"),
        ("1@127.0.0.1:9192,2@127.0.0.1:9193", "node.id=0 is not listed"),
        ("0@127.0.0.1:9092,1@127.0.0.1:9193", "has port 9092"),
        ("0@10.0.0.1:9192,1@10.0.0.2:9192", "Set cluster.secret"),
        ("0@host.example:9192", "Set cluster.secret"),
    ],
)
def test_invalid_peers_are_reported(peers: str, told: str) -> None:
    assert told in fault_of(peers=peers)


def test_listening_on_every_address_needs_a_secret() -> None:
    assert "every address" in fault_of(peers=THREE, peer_listen=":9192")
    assert configured(peers=THREE, peer_listen=":9192", cluster_secret=SECRET).cluster_secrets


def test_listeners_in_a_cluster_need_fixed_ports() -> None:
    told = fault_of(peers=THREE, listeners="127.0.0.1:0")
    assert "listeners: with `peers` every listener needs a fixed port" in told


def test_a_joining_node_has_join_and_peer_listen() -> None:
    config = configured(
        node_id="3",
        join="a.example:9192, [::1]:9292",
        peer_listen="d.example:9192",
        cluster_secret=SECRET,
    )
    assert config.join == (SeedConfig("a.example", 9192), SeedConfig("::1", 9292))
    assert config.own_peer == PeerConfig(3, "d.example", 9192)
    assert config.is_clustered
    assert config.needs_cluster_id


def test_other_nodes_can_join_a_node_with_peer_listen() -> None:
    config = configured(peer_listen="127.0.0.1:9192")
    assert config.own_peer == PeerConfig(0, "127.0.0.1", 9192)
    assert (config.is_clustered, config.needs_cluster_id) == (True, False)


def test_peer_advertised_may_differ_from_peer_listen() -> None:
    config = configured(
        peer_listen="0.0.0.0:9192", peer_advertised="pod-0.example:29192", cluster_secret=SECRET
    )
    assert config.own_peer == PeerConfig(0, "pod-0.example", 29192)
    assert (config.peer_host, config.peer_port) == ("0.0.0.0", 9192)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"join": "127.0.0.1:9192"}, "other nodes must reach this one. Set peer.listen"),
        ({"join": "127.0.0.1"}, "must be host:port of a node of the cluster"),
        ({"join": ","}, "Must name at least one node"),
        ({"join": "127.0.0.1:9192", "peers": THREE}, "Remove one of them"),
        ({"peer_listen": "0.0.0.0:9192", "cluster_secret": SECRET}, "Set peer.advertised"),
        ({"peer_listen": "10.0.0.1:9192"}, "Set cluster.secret"),
        ({"peer_listen": "127.0.0.1:9192", "join": "a.example:9192"}, "Set cluster.secret"),
        ({"peer_listen": "127.0.0.1:9092"}, "has port 9092"),
        ({"peer_listen": "127.0.0.1:0"}, "a fixed port"),
        ({"peer_listen": "127.0.0.1:9192", "listeners": "127.0.0.1:0"}, "not 0"),
    ],
)
def test_invalid_join_settings_are_reported(options: dict[str, str], told: str) -> None:
    assert told in fault_of(**options)


def test_an_address_to_join_by_is_named_once() -> None:
    assert parse_join("a:1,b:2,a:1") == (SeedConfig("a", 1), SeedConfig("b", 2))
    assert is_wildcard_address("0.0.0.0")
    assert not is_wildcard_address("127.0.0.1")


def test_a_secret_may_stand_in_a_file_or_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    config = configured(cluster_secret_file=str(file))
    assert (config.cluster_secrets, config.secret_file) == ((SECRET,), str(file))
    environment = {"ODRADEK_CLUSTER_SECRET": SECRET}
    config = load(environment=environment, options={})
    assert (config.cluster_secrets, config.secret_file) == ((SECRET,), "")
    assert "Cannot read it" in fault_of(cluster_secret_file=str(tmp_path / "none"))


def test_a_secret_that_is_too_short_is_refused_and_not_repeated() -> None:
    told = fault_of(cluster_secret="hunter2")
    assert "at least 16 random characters" in told
    assert "hunter2" not in told
    assert parse_secrets(f" {SECRET} ") == (SECRET,)


def test_two_secrets_are_the_one_in_use_and_another_that_is_accepted() -> None:
    other = "the secret that comes after it"
    assert parse_secrets(f"{SECRET}\n\n  {other}\n") == (SECRET, other)
    for text in (f"{SECRET}\n{SECRET}", f"{SECRET}\n{other}\nand a third of them all", "\n"):
        with pytest.raises(ValueError, match="Must have") as caught:
            parse_secrets(text)
        assert SECRET not in str(caught.value)
    with pytest.raises(ValueError, match="at least 16 random characters"):
        parse_secrets(f"{SECRET}\nshort")


def test_the_secret_is_not_a_broker_config() -> None:
    config = configured(peers=THREE, cluster_secret=SECRET)
    assert SECRET not in str(config.broker_configs)


def test_only_addresses_of_this_machine_are_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1")))
    assert not any(map(is_loopback, ("", "0.0.0.0", "::", "10.0.0.1", "host.example")))
