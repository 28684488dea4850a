"""DescribeConfigs and IncrementalAlterConfigs (KIP-339) for the commands that need configs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.cli.cluster_client import ClusterClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

TOPIC: Final = ConfigResourceType.TOPIC
BROKER: Final = ConfigResourceType.BROKER
GROUP: Final = ConfigResourceType.GROUP
BROKER_LOGGER: Final = ConfigResourceType.BROKER_LOGGER
CLIENT_METRICS: Final = ConfigResourceType.CLIENT_METRICS
SET: Final = 0
DELETE: Final = 1
SOURCES: Final[Mapping[int, str]] = {
    0: "unknown_config",
    1: "dynamic_topic_config",
    2: "dynamic_broker_config",
    3: "dynamic_default_broker_config",
    4: "static_broker_config",
    5: "default_config",
    6: "dynamic_broker_logger_config",
    7: "dynamic_client_metrics_config",
    8: "group_config",
}
"""As Kafka's ConfigSource names them."""
DYNAMIC_TOPIC: Final = 1
_OWN_SOURCES: Final[Mapping[int, int]] = {TOPIC: DYNAMIC_TOPIC, BROKER: 2, GROUP: 8}
"""The source of a config that is set on the resource itself."""


def describe(
    client: ClusterClient,
    kind: int,
    names: Collection[str],
    keys: Collection[str] | None = None,
    *,
    synonyms: bool = False,
) -> list[DescribeConfigsResult]:
    """The configs of resources of one kind. A broker describes its own; empty if it does not
    answer."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=kind,
                resource_name=name,
                configuration_keys=None if keys is None else list(keys),
            )
            for name in names
        ],
        include_synonyms=synonyms,
    )
    if kind in (BROKER, BROKER_LOGGER) and any(names):
        (name,) = names
        answer = client.ask_node(int(name), request)
        return [] if answer is None else answer.results
    return client.ask(request).results if names else []


def own_configs(
    client: ClusterClient, kind: int, names: Collection[str], keys: Collection[str] | None = None
) -> dict[str, dict[str, str | None]]:
    """The configs that are set on resources of one kind themselves, by resource and key. A resource
    of which the configs may not be described has none."""
    return {
        result.resource_name: {
            entry.name: entry.value
            for entry in sorted(result.configs or (), key=lambda entry: entry.name)
            if entry.config_source == _OWN_SOURCES[kind]
        }
        for result in describe(client, kind, names, keys)
    }


def alter(
    client: ClusterClient,
    kind: int,
    changes: Mapping[str, Mapping[str, str | None]],
    *,
    is_dry_run: bool = False,
) -> list[AlterConfigsResourceResponse]:
    """Set keys of resources of one kind, or delete those whose value is None. A broker is asked to
    change its own, which Kafka requires, and any broker if it does not answer."""
    if not changes:
        return []
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalAlterableConfig(
                        name=key, config_operation=DELETE if value is None else SET, value=value
                    )
                    for key, value in configs.items()
                ],
            )
            for name, configs in changes.items()
        ],
        validate_only=is_dry_run,
    )
    answer = None
    if kind in (BROKER, BROKER_LOGGER) and any(changes):
        (name,) = changes
        answer = client.ask_node(int(name), request)
        if kind == BROKER_LOGGER:
            # Nobody else knows its loggers.
            return [] if answer is None else answer.responses
    if answer is None or any(ErrorCode(each.error_code).is_retriable for each in answer.responses):
        answer = client.ask(
            request,
            again=lambda answer: any(_may_pass(each.error_code) for each in answer.responses),
        )
    return answer.responses


def _may_pass(code: int) -> bool:
    """Whether another attempt may succeed; a topic that is unknown stays unknown."""
    return ErrorCode(code).is_retriable and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
