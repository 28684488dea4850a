"""kafka-configs.sh, for each type of entity: what it shows, sets, takes away and refuses."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.conformance.dialogue import DialogueCluster
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there"),
    pytest.mark.no_restarts("log levels are lost with the broker"),
]

CONFIGS = "kafka.admin.ConfigCommand"
TIMEOUT_S = 60.0

Configs = Callable[..., str]


@pytest.fixture
def configs(cluster: DialogueCluster, tmp_path: Path) -> Configs:
    """Runs the tool; all that it prints. It must end well, or with `fails` it must not."""

    def run(action: str, entity: str, *arguments: str, fails: bool = False) -> str:
        done = run_java_tool(
            CONFIGS,
            *("--bootstrap-server", cluster.bootstrap),
            *(f"--{action}", "--entity-type", entity),
            *arguments,
            directory=tmp_path,
            timeout_s=TIMEOUT_S,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def named(name: str) -> tuple[str, str]:
    return "--entity-name", name


@pytest.fixture
def broker(wire: WireClient) -> str:
    """The id of a broker."""
    metadata = wire.ask(MetadataRequest(topics=[]), 12, MetadataResponse)
    return str(min(each.node_id for each in metadata.brokers))


def test_topics(configs: Configs, topic: str) -> None:
    completed = f"Completed updating config for topic {topic}."
    added = "--add-config", "retention.ms=77,cleanup.policy=[compact,delete]"
    assert completed in configs("alter", "topics", *named(topic), *added)
    shown = configs("describe", "topics", *named(topic))
    assert f"Dynamic configs for topic {topic} are:" in shown
    assert re.search(r"retention.ms=77 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:", shown)
    assert "cleanup.policy=compact,delete sensitive=false" in shown
    refused = configs(
        "alter", "topics", *named(topic), "--add-config", "retention.ms=soon", fails=True
    )
    assert "Invalid value soon for configuration retention.ms: Not a number of type LONG" in refused
    configs("alter", "topics", *named(topic), "--delete-config", "retention.ms,cleanup.policy")
    assert "retention.ms" not in configs("describe", "topics", *named(topic))


def test_brokers_and_their_defaults(configs: Configs, broker: str) -> None:
    key = "max.connections.per.ip"
    default = "Completed updating default config for brokers in the cluster."
    assert default in configs(
        "alter", "brokers", "--entity-default", "--add-config", f"{key}=77777"
    )
    one = f"Completed updating config for broker {broker}."
    assert one in configs("alter", "brokers", *named(broker), "--add-config", f"{key}=88888")
    shown = configs("describe", "brokers", *named(broker))
    assert re.search(
        rf"{key}=88888 sensitive=false synonyms=\{{DYNAMIC_BROKER_CONFIG:{key}=88888,"
        rf" DYNAMIC_DEFAULT_BROKER_CONFIG:{key}=77777, DEFAULT_CONFIG:{key}=2147483647\}}",
        shown,
    )
    refused = configs("alter", "brokers", *named(broker), "--add-config", "node.id=99", fails=True)
    assert "Cannot update these configs dynamically" in refused
    configs("alter", "brokers", *named(broker), "--delete-config", key)
    shown = configs("describe", "brokers", "--entity-default")
    assert f"{key}=77777 sensitive=false" in shown
    configs("alter", "brokers", "--entity-default", "--delete-config", key)
    assert key not in configs("describe", "brokers", "--entity-default")
    everything = configs("describe", "brokers", *named(broker), "--all")
    assert f"All configs for broker {broker} are:" in everything
    assert re.search(r"num.partitions=\d+ sensitive=false", everything)


def test_loggers_of_a_broker(configs: Configs, broker: str) -> None:
    shown = configs("describe", "broker-loggers", *named(broker))
    names = dict(re.findall(r"^\s*([\w.$]+)=([A-Z]+) sensitive=false", shown, re.MULTILINE))
    assert "root" in names
    # One that both have and that has a level of its own, or none.
    logger = next(name for name in names if name.startswith(("odradek.node.wire", "kafka.log")))
    done = f"Completed updating config for broker-logger {broker}."
    change = "--add-config", f"{logger}=TRACE"
    assert done in configs("alter", "broker-loggers", *named(broker), *change)
    assert f"{logger}=TRACE sensitive=false" in configs(
        "describe", "broker-loggers", *named(broker)
    )
    refused = configs(
        "alter", "broker-loggers", *named(broker), "--add-config", f"{logger}=LOUD", fails=True
    )
    assert "is not a supported log level" in refused
    assert done in configs("alter", "broker-loggers", *named(broker), "--delete-config", logger)
    assert f"{logger}={names[logger]} sensitive=false" in configs(
        "describe", "broker-loggers", *named(broker)
    )


def test_groups(configs: Configs, group: str) -> None:
    key = "consumer.session.timeout.ms"
    done = f"Completed updating config for group {group}."
    assert done in configs("alter", "groups", *named(group), "--add-config", f"{key}=50000")
    # It may ask a node that has not heard of it.
    wait_until(
        lambda: f"{key}=50000 sensitive=false" in configs("describe", "groups", *named(group)),
        what="the config is known",
    )
    refused = configs("alter", "groups", *named(group), "--add-config", f"{key}=10", fails=True)
    assert f"{key} must be greater than or equal to group.consumer.min.session.timeout.ms" in (
        refused
    )
    assert done in configs("alter", "groups", *named(group), "--delete-config", key)
    wait_until(
        lambda: key not in configs("describe", "groups", *named(group)),
        what="the config is deleted everywhere",
    )
