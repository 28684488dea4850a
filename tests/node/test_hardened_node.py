"""What `odradek format --hardened` writes for one node, and that an error leaves nothing."""

import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from odradek.cluster.metadata.records import ScramCredentialChanged
from odradek.node.bootstrap_credentials import read_bootstrap_credentials
from odradek.node.certificate_authority import names_of
from odradek.node.config import load
from odradek.node.config_sources import ConfigurationError
from odradek.node.hardened_node import (
    FILES,
    HardenedNode,
    format_hardened,
    formatted_already,
    new_bundle,
)

PASSWORD = 'a "password", with=signs\\'
PEERS = "0@127.0.0.1:19192,1@127.0.0.1:19292,2@127.0.0.1:19392"


def node(folder: Path, node_id: int = 0, settings: Mapping[str, str] | None = None) -> HardenedNode:
    return HardenedNode(
        folder=folder / "etc",
        data=folder / "lib" / "data",
        node_id=node_id,
        advertise="broker.example:9093",
        listen=":9093",
        names=("10.0.0.1",),
        settings=settings or {},
    )


def test_a_node_has_all_that_makes_it_safe(tmp_path: Path) -> None:
    bundle = new_bundle("admin", PASSWORD, {})
    config = format_hardened(node(tmp_path, settings={"num.partitions": "4"}), bundle, PASSWORD)
    (listener,) = config.listeners
    assert (listener.security_protocol, listener.host, listener.port) == ("SASL_SSL", "", 9093)
    assert (listener.advertised_host, listener.advertised_port) == ("broker.example", 9093)
    assert config.cluster_secrets == (bundle.cluster_secret,)
    static = config.broker_configs
    assert static["authorizer.class.name"].endswith("StandardAuthorizer")
    assert static["allow.everyone.if.no.acl.found"] == "false"
    assert static["super.users"] == "User:admin"
    assert static["sasl.enabled.mechanisms"] == "SCRAM-SHA-512"
    assert static["num.partitions"] == "4"
    assert PASSWORD not in (tmp_path / "etc" / "node.toml").read_text()
    _, names = names_of((tmp_path / "etc" / "broker.pem").read_text())
    assert names[:2] == ("broker.example", "10.0.0.1")
    assert {"localhost", "127.0.0.1"} <= {*names}
    (user,) = read_bootstrap_credentials(tmp_path / "lib" / "data")
    assert isinstance(user, ScramCredentialChanged)
    assert user.user == "admin"


def test_secrets_can_be_read_by_their_user_only(tmp_path: Path) -> None:
    format_hardened(node(tmp_path), new_bundle("admin", PASSWORD, {}), PASSWORD)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "etc").iterdir()}
    assert modes == {name: 0o644 if name == "authority.pem" else 0o600 for name in FILES}
    assert stat.S_IMODE((tmp_path / "lib" / "data").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "etc").stat().st_mode) == 0o700


def test_the_configuration_of_a_cluster_keeps_three_replicas(tmp_path: Path) -> None:
    bundle = new_bundle("admin", PASSWORD, {"peers": PEERS, "stores": "4"})
    config = format_hardened(node(tmp_path, 1), bundle, None)
    assert [peer.node_id for peer in config.peers] == [0, 1, 2]
    assert (config.node_id, config.store_count, config.cluster_id) == (1, 4, bundle.cluster_id)
    assert config.broker_configs["default.replication.factor"] == "3"
    assert config.broker_configs["min.insync.replicas"] == "2"
    assert not (tmp_path / "etc" / "cluster.bundle").exists()


def test_a_node_that_joins_later_has_no_peers(tmp_path: Path) -> None:
    bundle = new_bundle("admin", PASSWORD, {"peers": PEERS})
    later = {"join": "127.0.0.1:19192", "peer.listen": "127.0.0.1:19492"}
    joining = node(tmp_path, 3, later)
    assert format_hardened(joining, bundle, None).peers == ()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"num.partitions": "none"}, "num.partitions"),
        ({"peers": "1@127.0.0.1:19192"}, "node.id=0 is not listed"),
        ({"no.such.key": "1"}, "no.such.key"),
    ],
)
def test_an_error_leaves_nothing_behind(
    tmp_path: Path, settings: dict[str, str], says: str
) -> None:
    bundle = new_bundle("admin", PASSWORD, {})
    with pytest.raises(ConfigurationError, match=says):
        format_hardened(node(tmp_path, settings=settings), bundle, PASSWORD)
    assert not (tmp_path / "etc").exists()
    assert formatted_already(node(tmp_path)) is None
    format_hardened(node(tmp_path), bundle, PASSWORD)


def test_nothing_that_exists_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    own = tmp_path / "etc" / "cluster.secret"
    own.write_text("mine")
    with pytest.raises(ConfigurationError, match=r"has cluster\.secret of a node already"):
        format_hardened(node(tmp_path), new_bundle("admin", PASSWORD, {}), PASSWORD)
    assert own.read_text() == "mine"
    assert [each.name for each in tmp_path.rglob("*")] == ["etc", "cluster.secret"]


@pytest.mark.parametrize(
    ("admin", "password"),
    [("a=b", "p"), ("a,b", "p"), ("", "p"), ("admin", " p"), ("admin", "a\nb")],
)
def test_names_and_passwords_that_clients_could_not_have_are_errors(
    admin: str, password: str
) -> None:
    with pytest.raises(ConfigurationError):
        new_bundle(admin, password, {})


def test_the_configuration_of_the_page_is_what_is_written_here(tmp_path: Path) -> None:
    """docs/security.md shows it for those who have certificates; it has some keys more."""
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    [block] = [each for each in page.split("```")[1::2] if each.startswith("toml\n")]
    secret = tmp_path / "cluster.secret"
    secret.write_text("a secret of sufficient length")
    (tmp_path / "page.toml").write_text(
        block.removeprefix("toml\n").replace("/etc/odradek/cluster.secret", str(secret))
    )
    shown = load(file=tmp_path / "page.toml", environment={})
    ours = format_hardened(node(tmp_path), new_bundle("admin", PASSWORD, {}), PASSWORD)
    more = {"audit.log.path", "max.connections.per.ip", "http.listen"}
    assert shown.sources.keys() == ours.sources.keys() | more
    own = {"cluster.id", "data", "cluster.secret.file", "ssl.keystore.location"}
    for key in ours.sources.keys() - own:
        assert shown.sources[key][0][0] == ours.sources[key][0][0], key
