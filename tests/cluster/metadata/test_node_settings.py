"""What DescribeConfigs says of the keys of a node; node/config.py reads and checks them."""

from pathlib import Path

from odradek.cluster.metadata.config_definitions import ConfigSource
from odradek.cluster.metadata.config_description import describe_broker
from odradek.cluster.metadata.config_schema import fields_of
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.node_settings import StartupSettings
from odradek.node.config import NodeConfig, load

SET = {
    "profile": "dev",
    "run": "/tmp/run",
    "stores": "4",
    "routers": "1",
    "arena.bytes": "300MiB",
    "processor.placement": "shared",
    "log.level": "ERROR",
    "log.format": "json",
    "http.listen": "[::1]:7",
    "controlled.shutdown.timeout.ms": "5",
    "cluster.id": "mine",
    "cluster.secret": "s" * 40,
    "peers": "0@10.0.0.1:9093,1@10.0.0.2:9093",
    "peer.listen": "10.0.0.1:9093",
    "peer.advertised": "there:9093",
}


def described(config: NodeConfig) -> dict[str, tuple[str | None, int]]:
    names = {field.definition.name for field in fields_of(StartupSettings)}
    rows = describe_broker(MetadataImage.empty(), config.node_id, config.broker_configs)
    return {row.name: (row.value, row.config_source) for row in rows if row.name in names}


def test_every_key_is_described_with_what_was_set(tmp_path: Path) -> None:
    config = load(environment={}, options={"data": str(tmp_path), **SET})
    shown = described(config)
    assert shown.pop("join") == (None, ConfigSource.DEFAULT)
    assert shown.pop("cluster.secret") == (None, ConfigSource.STATIC_BROKER)
    wanted = {key: text for key, text in SET.items() if key != "cluster.secret"}
    wanted["arena.bytes"] = str(300 << 20)
    assert shown == {key: (text, ConfigSource.STATIC_BROKER) for key, text in wanted.items()}
    assert "s" * 40 not in config.broker_configs.values()


def test_what_is_not_set_has_its_default(tmp_path: Path) -> None:
    options = {"data": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:9092"}
    shown = described(load(environment={}, options=options))
    assert shown["log.level"] == ("INFO", ConfigSource.DEFAULT)
    assert shown["http.listen"] == (None, ConfigSource.DEFAULT)
    assert shown["stores"] == (None, ConfigSource.DEFAULT)
    # The folder of the sockets depends on the machine.
    assert shown["run"][1] == ConfigSource.STATIC_BROKER
    joining = load(
        environment={},
        options={
            **options,
            "cluster.id": "c",
            "cluster.secret": "s" * 40,
            "node.id": "5",
            "join": "10.0.0.1:9093",
            "peer.listen": "10.0.0.5:9093",
        },
    )
    assert described(joining)["join"] == ("10.0.0.1:9093", ConfigSource.STATIC_BROKER)
