"""Listeners of a running node: its own configuration with what was changed through the cluster."""

import pytest

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import ConfigChanged
from odradek.node.config import NodeConfig, load
from odradek.node.config_sources import ConfigurationError
from odradek.node.listener_configs import effective_config, effective_listeners, listener_items

MAP = "listener.security.protocol.map"


def configured(**settings: str) -> NodeConfig:
    options = {"listeners": "PLAINTEXT://127.0.0.1:9092", "node.id": "7"}
    options |= {key.replace("_", "."): value for key, value in settings.items()}
    return load(environment={}, options=options)


def texts(config: NodeConfig, own: dict[str, str]) -> list[str]:
    return [
        f"{each.name}:{each.security_protocol}@{each.host}:{each.port}"
        + (f">{each.advertised_host}:{each.advertised_port}" if each.advertised_host else "")
        for each in effective_listeners(config, own)
    ]


def test_what_was_not_changed_is_as_in_the_nodes_own_configuration() -> None:
    config = configured(
        listeners="A://:1,B://:2",
        advertised_listeners="A://a:11,B://b:12",
        listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT,C:SSL",
    )
    assert effective_listeners(config, {"num.partitions": "3"}) is config.listeners
    assert texts(config, {"listeners": "A://:1,C://127.0.0.1:3"}) == [
        "A:PLAINTEXT@:1>a:11",
        "C:SSL@127.0.0.1:3",
    ]
    assert texts(config, {"advertised.listeners": "B://b:22"}) == [
        "A:PLAINTEXT@:1",
        "B:PLAINTEXT@:2>b:22",
    ]
    own = {"listeners": "B://:2,D://:4", MAP: "B:PLAINTEXT,D:SSL"}
    assert texts(config, own) == ["B:PLAINTEXT@:2>b:12", "D:SSL@:4"]


def test_any_port_is_the_one_that_is_bound() -> None:
    config = configured()
    assert texts(config, {"listeners": "PLAINTEXT://127.0.0.1:0"}) == [
        "PLAINTEXT:PLAINTEXT@127.0.0.1:9092"
    ]


@pytest.mark.parametrize(
    ("own", "right"),
    [
        ({"listeners": "PLAINTEXT://:1,OTHER://:2"}, "OTHER is not in listener.security.protocol"),
        ({MAP: "OTHER:SSL", "listeners": "X://:1"}, "X is not in listener.security.protocol.map"),
        ({"listeners": "SSL://:0"}, "SSL must have a fixed port"),
        ({"listeners": "SSL://:5,PLAINTEXT://:5"}, "a different port, but several have 5"),
        (
            {"advertised.listeners": "SSL://a:1"},
            "Advertised listeners 'SSL' must be a subset of listeners 'PLAINTEXT'",
        ),
        ({"listeners": "nonsense"}, "must be host:port"),
    ],
)
def test_what_cannot_be_is_an_error(own: dict[str, str], right: str) -> None:
    with pytest.raises(ConfigurationError, match=right):
        effective_listeners(configured(), own)


def test_a_node_has_its_own_changes_only() -> None:
    config = configured()
    image = MetadataImage.empty()
    for broker in ("", "8"):
        image = changed(image, broker, "listeners", "PLAINTEXT://:1")
    assert effective_config(config, image) is config
    image = changed(image, "7", "listeners", "PLAINTEXT://:1")
    [listener] = effective_config(config, image).listeners
    assert (listener.host, listener.port) == ("", 1)


def changed(image: MetadataImage, broker: str, key: str, value: str) -> MetadataImage:
    delta = MetadataDelta(image)
    delta.replay(ConfigChanged(ConfigResourceType.BROKER, broker, key, value))
    return delta.apply(image.offset + 1)


def test_the_items_are_those_of_the_listeners() -> None:
    config = configured(
        listeners="A://[::1]:1,B://:2",
        advertised_listeners="A://a:11",
        listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT,C:SSL",
    )
    keys = ("listeners", "advertised.listeners")
    items = {key: listener_items(key, config.listeners) for key in keys}
    assert items == {"listeners": ["A://[::1]:1", "B://:2"], "advertised.listeners": ["A://a:11"]}
    own = {key: ",".join(values) for key, values in items.items()}
    assert effective_listeners(config, own) == config.listeners
