"""Settings that hold for all brokers of a cluster, unless one has its own.

Kafka keeps them under the broker with the empty name, which confluent-kafka cannot ask for, so that
they are asked for over a session of our own: PLAINTEXT only. Called by config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from odradek.node.cli.cluster_client import ClusterClient, raise_on_error
from odradek.node.cli.connection import ClusterConnection
from odradek.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka.admin import ConfigEntry

DEFAULT: Final = "default"
"""What the command line calls the broker with the empty name."""

_BROKER: Final = 4
_SET: Final = 0
_DELETE: Final = 1


def read_defaults(connection: ClusterConnection) -> list[ConfigEntry]:
    """What was set for all brokers, by key. ClickException if nobody answers."""
    resource = DescribeConfigsResource(resource_type=_BROKER, resource_name="")
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    with ClusterClient(connection) as client:
        answer = client.ask(request, DescribeConfigsResponse)
    [found] = answer.results
    raise_on_error(found.error_code, found.error_message, "the default of all brokers")
    return sorted(map(_entry, found.configs), key=lambda entry: entry.name)


def alter_defaults(
    changes: Mapping[str, str | None], connection: ClusterConnection, *, is_dry_run: bool
) -> None:
    """Set keys for all brokers, or delete those whose value is None. ClickException if they are
    refused."""
    resource = IncrementalAlterConfigsResource(
        resource_type=_BROKER,
        resource_name="",
        configs=[
            IncrementalAlterableConfig(
                name=key, config_operation=_DELETE if value is None else _SET, value=value
            )
            for key, value in changes.items()
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=is_dry_run)
    with ClusterClient(connection) as client:
        answer = client.ask(request, IncrementalAlterConfigsResponse)
    [done] = answer.responses
    raise_on_error(done.error_code, done.error_message, "the default of all brokers")


def _entry(found: DescribeConfigsResourceResult) -> ConfigEntry:
    from confluent_kafka.admin import ConfigEntry, ConfigSource

    return ConfigEntry(
        found.name,
        found.value,
        source=ConfigSource(found.config_source),
        is_read_only=found.read_only,
        is_sensitive=found.is_sensitive,
        synonyms={
            f"{layer.name} {layer.source}": ConfigEntry(
                layer.name, layer.value, source=ConfigSource(layer.source), is_synonym=True
            )
            for layer in found.synonyms
        },
    )
