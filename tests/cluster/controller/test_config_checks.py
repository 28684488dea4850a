"""Which resources may be configured, and with which of their keys."""

import pytest

from odradek.cluster.controller.commands import (
    ConfigOperation,
    IncrementalAlterConfigs,
    ResourceOperations,
)
from odradek.cluster.controller.config_checks import (
    check_group_bounds,
    check_min_insync_replicas,
    check_resource,
    check_value,
)
from odradek.cluster.controller.state import ControllerState
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.protocol.errors import ApiError, ErrorCode
from tests.support.controller_harness import ControllerHarness

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
GROUP, METRICS = ConfigResourceType.GROUP, ConfigResourceType.CLIENT_METRICS


@pytest.fixture
def state() -> ControllerState:
    harness = ControllerHarness(brokers=2)
    harness.has("aa", 1)
    return ControllerState(harness.image, node_id=0, static={})


@pytest.mark.parametrize(
    ("kind", "name"), [(TOPIC, "aa"), (BROKER, ""), (BROKER, "1"), (GROUP, "g"), (METRICS, "m")]
)
def test_existing_resources_may_be_configured(state: ControllerState, kind: int, name: str) -> None:
    assert check_resource(state, kind, name) == kind


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "zz", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", ErrorCode.INVALID_REQUEST),
        (TOPIC, "b@d", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "7", ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (BROKER, "01", ErrorCode.INVALID_REQUEST),
        (BROKER, "-1", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (METRICS, "", ErrorCode.INVALID_REQUEST),
        (ConfigResourceType.BROKER_LOGGER, "1", ErrorCode.INVALID_REQUEST),
        (9, "aa", ErrorCode.INVALID_REQUEST),
    ],
)
def test_other_resources_may_not_be_configured(
    state: ControllerState, kind: int, name: str, code: ErrorCode
) -> None:
    with pytest.raises(ApiError) as caught:
        check_resource(state, kind, name)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("kind", "name", "key", "value"),
    [
        (TOPIC, "aa", "retention.ms", "1"),
        (BROKER, "1", "message.max.bytes", "5"),
        (BROKER, "", "message.max.bytes", "5"),
        (BROKER, "", "num.partitions", "3"),
        (BROKER, "1", "log.retention.ms", "4000"),
        (BROKER, "1", "cordoned.log.dirs", "*"),
        (BROKER, "1", "cordoned.log.dirs", ""),
    ],
)
def test_valid_values_may_be_set(kind: ConfigResourceType, name: str, key: str, value: str) -> None:
    check_value(kind, name, key, value)


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "code", "says"),
    [
        (TOPIC, "aa", "nope", "1", ErrorCode.INVALID_CONFIG, "Unknown topic config name: nope"),
        (TOPIC, "aa", "log.retention.ms", "1", ErrorCode.INVALID_CONFIG, "topic config"),
        (TOPIC, "aa", "retention.ms", "x", ErrorCode.INVALID_CONFIG, "Not a number of type"),
        (BROKER, "1", "nope", "1", ErrorCode.INVALID_CONFIG, "broker config"),
        (BROKER, "1", "node.id", "5", ErrorCode.INVALID_REQUEST, "restart"),
        (
            BROKER,
            "",
            "advertised.listeners",
            "PLAINTEXT://here:1",
            ErrorCode.INVALID_REQUEST,
            "Cannot update these configs at default cluster level: [advertised.listeners]",
        ),
        (BROKER, "1", "num.partitions", "5", ErrorCode.INVALID_REQUEST, "same on all brokers"),
        (BROKER, "", "cordoned.log.dirs", "*", ErrorCode.INVALID_REQUEST, "one broker"),
        (BROKER, "1", "cordoned.log.dirs", "data", ErrorCode.INVALID_REQUEST, "Must be *"),
        (BROKER, "", "message.max.bytes", "-5", ErrorCode.INVALID_REQUEST, "at least 0"),
        (BROKER, "", "message.max.bytes", "x", ErrorCode.INVALID_REQUEST, "Not a number of type"),
        (GROUP, "g", "nope", "1", ErrorCode.INVALID_CONFIG, "group config"),
        (METRICS, "m", "nope", "1", ErrorCode.INVALID_REQUEST, "client metrics config"),
        (METRICS, "m", "interval.ms", "abc", ErrorCode.INVALID_CONFIG, "Not a number of type INT"),
        (METRICS, "m", "metrics", "a,,b", ErrorCode.INVALID_CONFIG, "must not be empty"),
        (METRICS, "m", "match", "10", ErrorCode.INVALID_CONFIG, "Illegal client matching pattern"),
        (TOPIC, "aa", "remote.storage.enable", "true", ErrorCode.INVALID_CONFIG, "Tiered Storage"),
        (BROKER, "", "num.io.threads", "0", ErrorCode.INVALID_REQUEST, "at least 1"),
        (BROKER, "", "ssl.keystore.type", "PEM", ErrorCode.INVALID_REQUEST, "default cluster"),
        (BROKER, "1", "process.roles", "broker", ErrorCode.INVALID_REQUEST, "dynamically"),
    ],
)
def test_invalid_values_are_refused_with_the_reason(
    kind: ConfigResourceType, name: str, key: str, value: str, code: ErrorCode, says: str
) -> None:
    with pytest.raises(ApiError) as caught:
        check_value(kind, name, key, value)
    assert caught.value.code is code
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("kind", "name", "key", "value"),
    [
        (TOPIC, "aa", "remote.storage.enable", "false"),
        (TOPIC, "aa", "message.format.version", "3.0-IV1"),
        (BROKER, "", "num.io.threads", "16"),
        (BROKER, "1", "log.cleaner.threads", "2"),
        (BROKER, "1", "ssl.keystore.password", "secret"),
        (BROKER, "1", "listener.name.internal.ssl.keystore.type", "PEM"),
    ],
)
def test_kafkas_keys_without_effect_may_be_set_where_kafka_takes_them(
    kind: ConfigResourceType, name: str, key: str, value: str
) -> None:
    check_value(kind, name, key, value)


def test_the_clusters_min_insync_replicas_stays_while_there_are_eligible_leaders() -> None:
    harness = ControllerHarness()
    harness.set_config(
        ConfigResourceType.BROKER, "", min_insync_replicas="2", log_retention_ms="5000"
    )

    def check(name: str, **wanted: str) -> None:
        state = ControllerState(harness.image, node_id=0, static={})
        keys = {key.replace("_", "."): value for key, value in wanted.items()}
        check_min_insync_replicas(state, ConfigResourceType.BROKER, name, keys)

    check("")
    harness.with_elr()
    check("0")
    check("", min_insync_replicas="1")
    with pytest.raises(ApiError) as caught:
        check("", log_retention_ms="5000")
    assert caught.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("consumer.session.timeout.ms", ("45000", "60000"), ("44999", "60001")),
        ("consumer.heartbeat.interval.ms", ("5000", "15000"), ("4999", "15001")),
        ("consumer.assignment.interval.ms", ("0", "15000"), ("-1", "15001")),
    ],
)
def test_a_groups_value_lies_within_what_the_brokers_allow(
    state: ControllerState, key: str, good: tuple[str, str], bad: tuple[str, str]
) -> None:
    for value in good:
        check_group_bounds(state, {key: value})
    for value in bad:
        with pytest.raises(ApiError, match=r"must be .* group\.consumer\.m") as refused:
            check_group_bounds(state, {key: value})
        assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_constraints_hold_for_cluster_wide_values() -> None:
    harness = ControllerHarness(brokers=2)
    key = "group.consumer.session.timeout.ms"
    operations = (ConfigOperation(key, 0, "100"),)
    command = IncrementalAlterConfigs((ResourceOperations(BROKER, "", operations),))
    ((code, message),) = harness.configs(command)
    assert code == ErrorCode.INVALID_REQUEST
    assert "group.consumer.min.session.timeout.ms" in str(message)
    harness.set_config(BROKER, "", group_consumer_min_session_timeout_ms="6000")
    harness.set_config(BROKER, "", group_consumer_session_timeout_ms="7000")
    back = (ConfigOperation("group.consumer.min.session.timeout.ms", 1, None),)
    command = IncrementalAlterConfigs((ResourceOperations(BROKER, "", back),))
    assert [code for code, _ in harness.configs(command)] == [ErrorCode.INVALID_REQUEST]
    harness.set_config(BROKER, "", message_max_bytes="2000")
