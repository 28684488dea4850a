"""Settings of a node that are set through the cluster."""

import pytest

from odradek.cluster.metadata.config_definitions import ConfigScope
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS
from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import ConfigChanged
from odradek.node.config import NodeConfig, load
from odradek.node.config_sources import ConfigurationError
from odradek.node.node_overrides import (
    NODE_OVERRIDES,
    node_overrides,
    overrides_after,
    with_overrides,
)


def image(*configs: tuple[str, str, str]) -> MetadataImage:
    delta = MetadataDelta(MetadataImage.empty())
    for broker, key, value in configs:
        delta.replay(ConfigChanged(ConfigResourceType.BROKER, broker, key, value))
    return delta.apply(1)


def own(**options: str) -> NodeConfig:
    named = {key.replace("_", "."): value for key, value in options.items()}
    return load(environment={}, options={"data": "/data", **named})


def test_the_value_of_the_broker_wins_over_that_of_all() -> None:
    found = image(
        ("", "log.level", "ERROR"),
        ("", "arena.bytes", "536870912"),
        ("4", "log.level", "DEBUG"),
        ("4", "num.partitions", "3"),
        ("5", "processor.placement", "shared"),
    )
    assert node_overrides(found, 4) == {"log.level": "DEBUG", "arena.bytes": "536870912"}
    assert node_overrides(found, 6) == {"log.level": "ERROR", "arena.bytes": "536870912"}


def test_what_will_be_set_after_a_change() -> None:
    found = image(("", "log.level", "ERROR"), ("4", "log.level", "DEBUG"))

    def after(broker: str, *, keeps: bool = True, **changes: str | None) -> dict[str, str]:
        named = {key.replace("_", "."): value for key, value in changes.items()}
        return overrides_after(found, 4, broker, named, keeps_others=keeps)

    assert after("4", log_level=None) == {"log.level": "ERROR"}
    assert after("", log_level=None) == {"log.level": "DEBUG"}
    assert after("", log_level="INFO", log_format="json") == {
        "log.level": "DEBUG",
        "log.format": "json",
    }
    assert after("4", keeps=False, num_partitions="3") == {"log.level": "ERROR"}
    assert after("", keeps=False) == {"log.level": "DEBUG"}


def test_they_replace_the_nodes_own_and_give_it_back() -> None:
    node = own(arena_bytes="300MiB")
    changed = with_overrides(
        node, node, {"arena.bytes": "536870912", "processor.placement": "shared"}
    )
    assert (changed.arena_bytes, changed.processor_placement) == (512 << 20, "shared")
    # What the node was started with is still said to be that.
    assert changed.broker_configs == node.broker_configs
    assert with_overrides(changed, node, {}) == node


def test_what_a_node_cannot_have_is_refused() -> None:
    node = own(socket_request_max_bytes=str(100 << 20))
    with pytest.raises(ConfigurationError, match=r"at least twice socket.request.max.bytes"):
        with_overrides(node, node, {"arena.bytes": str(64 << 20)})
    with pytest.raises(ConfigurationError, match=r"log.level=LOUD: String must be one of"):
        with_overrides(node, node, {"log.level": "LOUD"})


def test_they_are_the_keys_that_clients_may_set() -> None:
    keys = {
        key
        for key, each in BROKER_CONFIGS.items()
        if each.enforced_by == "odradek.node.config" and each.scope is not ConfigScope.READ_ONLY
    }
    assert keys == NODE_OVERRIDES
