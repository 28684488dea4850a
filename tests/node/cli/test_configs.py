"""Configs of topics and brokers, read and changed over a client."""

from collections.abc import Iterator

import pytest

from odradek.node.cli import configs
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import ClusterConnection
from odradek.protocol.errors import ErrorCode

pytestmark = pytest.mark.e2e


@pytest.fixture
def client(bootstrap: str) -> Iterator[ClusterClient]:
    with ClusterClient(ClusterConnection(bootstrap=bootstrap, timeout_s=10.0)) as client:
        client.metadata()
        yield client


def test_what_is_set_on_a_topic_is_described_with_its_source(
    client: ClusterClient, topic: str
) -> None:
    [done] = configs.alter(client, configs.TOPIC, {topic: {"retention.ms": "5"}})
    assert done.error_code == ErrorCode.NONE
    [found] = configs.describe(client, configs.TOPIC, [topic], ["retention.ms"])
    [entry] = found.configs
    assert (entry.value, entry.config_source) == ("5", configs.DYNAMIC_TOPIC)
    configs.alter(client, configs.TOPIC, {topic: {"retention.ms": None}})
    [found] = configs.describe(client, configs.TOPIC, [topic], ["retention.ms"])
    assert configs.SOURCES[found.configs[0].config_source] == "default_config"


def test_a_dry_run_changes_nothing_and_a_topic_that_is_gone_is_an_error(
    client: ClusterClient, topic: str
) -> None:
    configs.alter(client, configs.TOPIC, {topic: {"retention.ms": "5"}}, is_dry_run=True)
    [found] = configs.describe(client, configs.TOPIC, [topic], ["retention.ms"])
    assert found.configs[0].config_source != configs.DYNAMIC_TOPIC
    [refused] = configs.alter(client, configs.TOPIC, {"no-such-topic": {"retention.ms": "5"}})
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_only_the_broker_itself_knows_its_configs(client: ClusterClient) -> None:
    [node_id] = client.broker_ids
    [found] = configs.describe(client, configs.BROKER, [str(node_id)], ["num.partitions"])
    assert [entry.name for entry in found.configs] == ["num.partitions"]
    assert configs.describe(client, configs.BROKER, ["9999"], ["num.partitions"]) == []
    assert configs.describe(client, configs.TOPIC, []) == []
    assert configs.alter(client, configs.TOPIC, {}) == []
