"""Configs of topics and brokers, read and changed over a client."""

from collections.abc import Iterator

import pytest

from odradek.node.cli import configs
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import ClusterConnection
from odradek.protocol.errors import ErrorCode
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def client(bootstrap: str) -> Iterator[ClusterClient]:
    with ClusterClient(ClusterConnection(bootstrap=bootstrap, timeout_s=10.0)) as client:
        client.metadata()
        yield client


def retention(client: ClusterClient, topic: str) -> tuple[str | None, int]:
    """Value and source of the topic's retention.ms, once the broker knows the topic."""

    def found() -> list[tuple[str | None, int]]:
        [result] = configs.describe(client, configs.TOPIC, [topic], ["retention.ms"])
        return [(entry.value, entry.config_source) for entry in result.configs]

    return wait_until(found)[0]


def test_a_config_of_a_topic_is_described_with_its_source(
    client: ClusterClient, topic: str
) -> None:
    [done] = configs.alter(client, configs.TOPIC, {topic: {"retention.ms": "5"}})
    assert done.error_code == ErrorCode.NONE
    wait_until(lambda: retention(client, topic) == ("5", configs.DYNAMIC_TOPIC))
    configs.alter(client, configs.TOPIC, {topic: {"retention.ms": None}})
    wait_until(lambda: configs.SOURCES[retention(client, topic)[1]] == "default_config")


def test_a_dry_run_changes_nothing_and_an_unknown_topic_is_an_error(
    client: ClusterClient, topic: str
) -> None:
    configs.alter(client, configs.TOPIC, {topic: {"retention.ms": "5"}}, is_dry_run=True)
    assert retention(client, topic)[1] != configs.DYNAMIC_TOPIC
    [refused] = configs.alter(client, configs.TOPIC, {"no-such-topic": {"retention.ms": "5"}})
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_broker_describes_its_own_configs(client: ClusterClient) -> None:
    [node_id] = client.broker_ids
    [found] = configs.describe(client, configs.BROKER, [str(node_id)], ["num.partitions"])
    assert [entry.name for entry in found.configs] == ["num.partitions"]
    assert configs.describe(client, configs.BROKER, ["9999"], ["num.partitions"]) == []
    assert configs.describe(client, configs.TOPIC, []) == []
    assert configs.alter(client, configs.TOPIC, {}) == []
