"""Settings of a node that are set through the cluster, as configs of its broker.

The metadata log wins over the node's own configuration, as with every config of a broker. The
controller process tells the supervisor what is set; configuration_updates.py has it take effect.
Pure.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from odradek.cluster.metadata.config_layers import CLUSTER_DEFAULT_BROKER, broker_layers
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.node.config import NodeConfig
from odradek.node.config_parsers import parse_arena_bytes, parse_choice, parse_count
from odradek.node.config_sources import ConfigurationError

_FIELDS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "arena.bytes": ("arena_bytes", parse_arena_bytes),
    "controlled.shutdown.timeout.ms": ("controlled_shutdown_ms", parse_count(0, 3_600_000)),
    "log.format": ("log_format", parse_choice("auto", "text", "json")),
    "log.level": ("log_level", parse_choice("DEBUG", "INFO", "WARNING", "ERROR")),
    "processor.placement": ("processor_placement", parse_choice("split", "shared")),
}
NODE_OVERRIDES: Final = frozenset(_FIELDS)
"""The keys of a node that can be set through the cluster."""


def node_overrides(image: MetadataImage, node_id: int) -> dict[str, str]:
    """What is set for this node through the cluster."""
    found: dict[str, str] = {}
    for layer in broker_layers(image.configs, node_id, {}):
        for key in NODE_OVERRIDES & layer.configs.keys():
            found.setdefault(key, layer.configs[key])
    return found


def overrides_after(
    image: MetadataImage,
    node_id: int,
    broker: str,
    changes: Mapping[str, str | None],
    *,
    keeps_others: bool,
) -> dict[str, str]:
    """What will be set for this node when the configs of `broker`, a broker's name or the empty one
    of all, are so changed (None: removed). With `keeps_others` those that are not named stay."""
    own = dict(image.configs.of(ConfigResourceType.BROKER, str(node_id)))
    of_all = dict(image.configs.of(ConfigResourceType.BROKER, CLUSTER_DEFAULT_BROKER))
    changed = of_all if broker == CLUSTER_DEFAULT_BROKER else own
    if not keeps_others:
        changed.clear()
    for key, value in changes.items():
        changed.pop(key, None)
        if value is not None:
            changed[key] = value
    return {key: value for key, value in (of_all | own).items() if key in NODE_OVERRIDES}


def with_overrides(config: NodeConfig, own: NodeConfig, overrides: Mapping[str, str]) -> NodeConfig:
    """`config` with these values, and those of `own`, the node's own configuration, where nothing
    is set. Raises ConfigurationError if the node cannot have them."""
    fields: dict[str, object] = {}
    for key, (name, parse) in _FIELDS.items():
        fields[name] = getattr(own, name)
        if key in overrides:
            try:
                fields[name] = parse(overrides[key])
            except ValueError as error:
                raise ConfigurationError(f"{key}={overrides[key]}: {error}") from error
    static = own.broker_configs
    hidden = {key: static.get(key, BROKER_CONFIGS[key].default or "") for key in overrides}
    changed = msgspec.structs.replace(config, overridden=hidden, **fields)
    if problem := changed.arena_problem:
        raise ConfigurationError(problem)
    return changed
