"""Every config of Kafka's is described as Kafka describes it: `kafka_configs.json` has its answers.

Where ours differs, the difference is listed with its reason; a difference that is gone must leave
the list.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from odradek.node.log_levels import LOGGERS
from odradek.node.router.handlers.configs import (
    handle_alter_configs,
    handle_describe_configs,
    handle_incremental_alter_configs,
)
from odradek.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from tests.support.golden_configs import (
    BROKER,
    DELETE,
    GOLDEN_FILE,
    GROUP,
    LOGGER,
    NODE,
    SET,
    TOPIC,
)
from tests.support.router_harness import RouterHarness

GOLDEN: Final = json.loads(GOLDEN_FILE.read_text())
Config = dict[str, Any]
DEFAULT: Final = 5

# (key, field) -> why ours differs.
FINEST_KEY: Final = "the default is shown for each key of which it follows, not for one of them"
WITHOUT_SYNONYM: Final = "a key that gives no default of another one shows its own default"
QUICK_BATCHES: Final = "assignments of less than a second: computing one costs little here"
QUICK_FENCING: Final = "a dead broker is fenced after a second and not after nine"
SMALL_SEGMENTS: Final = "a coordinator that moves loads its log sooner"
SYNONYM_DIFFERENCES: Final[Mapping[str, str]] = {
    "flush.ms": FINEST_KEY,
    "follower.replication.throttled.replicas": WITHOUT_SYNONYM,
    "leader.replication.throttled.replicas": WITHOUT_SYNONYM,
    "remote.log.copy.disable": WITHOUT_SYNONYM,
    "remote.log.delete.on.disable": WITHOUT_SYNONYM,
    "remote.storage.enable": WITHOUT_SYNONYM,
    "retention.ms": FINEST_KEY,
    "segment.jitter.ms": FINEST_KEY,
    "segment.ms": FINEST_KEY,
    "listeners": "127.0.0.1:9092 here, because there is no authentication by default",
    "log.flush.interval.ms": FINEST_KEY,
    "log.retention.ms": FINEST_KEY,
    "log.roll.jitter.ms": FINEST_KEY,
    "log.roll.ms": FINEST_KEY,
    "log.dir": "as log.dirs: the data folder depends on the user",
    "node.id": "0 here, so that a single node needs no configuration",
}
VALUE_DIFFERENCES: Final[Mapping[str, str]] = {
    **{
        f"{prefix}{kind}.assignment.interval.ms": QUICK_BATCHES
        for prefix in ("", "group.")
        for kind in ("consumer", "share", "streams")
    },
    "broker.heartbeat.interval.ms": QUICK_FENCING,
    "broker.session.timeout.ms": QUICK_FENCING,
    "log.flush.interval.ms": FINEST_KEY,
    "log.retention.ms": FINEST_KEY,
    "log.roll.jitter.ms": FINEST_KEY,
    "log.roll.ms": FINEST_KEY,
    "log.dir": "as log.dirs: the data folder depends on the user",
    "offsets.topic.segment.bytes": SMALL_SEGMENTS,
    "transaction.state.log.segment.bytes": SMALL_SEGMENTS,
}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path, static={"node.id": "0"})
    harness.controller.has("recorded", 1)
    harness.follow()
    yield harness
    harness.close()


def described(harness: RouterHarness, kind: int, name: str) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name)
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=True
    )
    (result,) = harness.call(handle_describe_configs, request, 4).results
    return result


def of_node(text: str | None, node: str) -> str | None:
    """A text of Kafka's, whose node was 1, with the number of the node under test."""
    return None if text is None else text.replace("xpected 1", f"xpected {node}")


ANSWERS: Final = {
    (head[0], head[1]): (head[2], head[3], kept) for head, kept in GOLDEN["described"]
}


@pytest.mark.parametrize(("kind", "name"), [key for key in ANSWERS if ANSWERS[key][0]])
def test_errors_are_those_of_kafka(harness: RouterHarness, kind: int, name: str) -> None:
    code, message, _ = ANSWERS[kind, name]
    answer = described(harness, kind, name)
    assert answer.error_code == code
    if kind in (BROKER, LOGGER):
        assert answer.error_message == of_node(message, "0")
    assert answer.configs == []


@pytest.mark.parametrize(
    ("kind", "name"), [(TOPIC, "recorded"), (GROUP, "recorded"), (BROKER, NODE)]
)
def test_all_keys_of_kafka_are_described_as_there(
    harness: RouterHarness, kind: int, name: str
) -> None:
    golden: Mapping[str, Config] = ANSWERS[kind, name][2]
    answer = described(harness, kind, "0" if name == NODE else name)
    ours = {config.name: config for config in answer.configs}
    assert golden.keys() <= ours.keys()
    synonyms, values = set(), set()
    for key, config in golden.items():
        own = ours[key]
        assert own.config_type == config["type"], key
        assert own.is_sensitive == config["sensitive"], key
        assert own.documentation, key
        # What Kafka changes while it runs changes here too, and more than that.
        assert config["read_only"] or not own.read_only, key
        defaults = [s for s in config["synonyms"] if s[2] == DEFAULT]
        own_defaults = [[s.name, s.value, s.source] for s in own.synonyms if s.source == DEFAULT]
        if [s[0] for s in defaults] != [s[0] for s in own_defaults]:
            synonyms.add(key)
        if config["source"] == DEFAULT and own.value != config["value"]:
            values.add(key)
    assert synonyms == {key for key in SYNONYM_DIFFERENCES if key in golden}
    assert values == {key for key in VALUE_DIFFERENCES if key in golden}


def test_all_keys_of_ours_say_what_they_are(harness: RouterHarness) -> None:
    for kind, name in ((TOPIC, "recorded"), (GROUP, "recorded"), (BROKER, "0"), (LOGGER, "0")):
        for config in described(harness, kind, name).configs:
            assert config.documentation, config.name
            assert config.config_type, config.name
            assert config.config_source, config.name


# -- loggers ---------------------------------------------------------------------------------


def alter_logger(
    harness: RouterHarness, name: str, *changes: tuple[str, int, str | None], is_dry: bool = False
) -> tuple[int, str | None]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=LOGGER,
                resource_name=name,
                configs=[
                    IncrementalAlterableConfig(name=logger, config_operation=operation, value=level)
                    for logger, operation, level in changes
                ],
            )
        ],
        validate_only=is_dry,
    )
    (answer,) = harness.call(handle_incremental_alter_configs, request, 1).responses
    assert (answer.resource_type, answer.resource_name) == (LOGGER, name)
    return answer.error_code, answer.error_message


def levels(harness: RouterHarness) -> dict[str, str | None]:
    return {config.name: config.value for config in described(harness, LOGGER, "0").configs}


@pytest.mark.parametrize("case", GOLDEN["loggers"], ids=lambda case: "-".join(map(str, case[:5])))
def test_a_change_of_a_level_is_answered_as_by_kafka(
    harness: RouterHarness, case: list[Any]
) -> None:
    name, logger, operation, level, is_dry, wanted = case
    answer = alter_logger(
        harness, "0" if name == NODE else name, (logger, operation, level), is_dry=is_dry
    )
    if wanted["error_code"] == -1:
        # Kafka has an exception of its own there.
        text = "Unknown operation type 9 is not allowed for the BROKER_LOGGER resource"
        assert answer == (42, text)
    else:
        assert answer == (wanted["error_code"], of_node(wanted["error_message"], "0"))
    is_changed = answer[0] == 0 and not is_dry
    assert levels(harness)["root"] == (level if is_changed else "INFO")


def test_alter_configs_has_no_loggers(harness: RouterHarness) -> None:
    resource = AlterConfigsResource(resource_type=LOGGER, resource_name="0", configs=[])
    request = AlterConfigsRequest(resources=[resource])
    (answer,) = harness.call(handle_alter_configs, request, 2).responses
    assert (answer.error_code, answer.error_message) == tuple(GOLDEN["replaced"].values())


def test_each_logger_of_ours_is_listed_and_can_be_changed(harness: RouterHarness) -> None:
    assert levels(harness) == dict.fromkeys(LOGGERS, "INFO")
    changes = [("odradek.node", SET, "DEBUG"), ("odradek.node.wire.connection", SET, "FATAL")]
    assert alter_logger(harness, "0", *changes) == (0, None)
    now = levels(harness)
    assert now["odradek.node.wire.connection"] == "FATAL"
    assert now["odradek.node.wire.acceptor"] == "DEBUG"
    assert now["odradek.storage.maintenance"] == now["root"] == "INFO"
    alter_logger(harness, "0", ("odradek.node", DELETE, None))
    assert levels(harness)["odradek.node.wire.acceptor"] == "INFO"
    (config,) = [
        each
        for each in described(harness, LOGGER, "0").configs
        if each.name == "odradek.node.wire.connection"
    ]
    assert (config.config_source, config.read_only, config.is_sensitive) == (6, False, False)
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("odradek.node.wire.connection", "FATAL", 6),
        ("log.level", "INFO", 4),
    ]


def test_a_resource_with_one_bad_level_changes_nothing(harness: RouterHarness) -> None:
    code, _ = alter_logger(harness, "0", ("root", SET, "ERROR"), ("odradek", SET, "LOUD"))
    assert code == 40
    code, _ = alter_logger(harness, "0", ("root", SET, "ERROR"), ("root", SET, "WARN"))
    assert code == 42
    assert levels(harness)["root"] == "INFO"


def test_loggers_and_other_resources_share_a_request(harness: RouterHarness) -> None:
    def resource(kind: int, name: str, key: str, value: str) -> IncrementalAlterConfigsResource:
        config = IncrementalAlterableConfig(name=key, config_operation=SET, value=value)
        return IncrementalAlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[config]
        )

    request = IncrementalAlterConfigsRequest(
        resources=[
            resource(TOPIC, "recorded", "flush.ms", "7"),
            resource(LOGGER, "0", "root", "WARN"),
            resource(LOGGER, "5", "root", "WARN"),
            resource(TOPIC, "no-such-topic", "flush.ms", "7"),
        ]
    )
    answers = harness.call(handle_incremental_alter_configs, request, 1).responses
    assert [(a.resource_type, a.resource_name, a.error_code) for a in answers] == [
        (TOPIC, "recorded", 0),
        (LOGGER, "0", 0),
        (LOGGER, "5", 42),
        (TOPIC, "no-such-topic", 3),
    ]
    assert levels(harness)["root"] == "WARN"
