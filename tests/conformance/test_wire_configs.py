"""DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources (74),
and that what is set takes effect.
"""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse
from odradek.protocol.records import read_header
from tests.conformance.dialogue import (
    METADATA,
    DialogueCluster,
    batch_of,
    batches_of,
    fetch,
    produce,
    unique,
)
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
# Where a value comes from.
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 1, 2, 3, 4, 5
# What a value is.
BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = range(1, 10)

Change = tuple[int, str, str | None]
"""Operation, key, value."""


def describe(
    wire: WireClient,
    name: str,
    *keys: str,
    kind: int = TOPIC,
    version: int = 4,
    **include: bool,
) -> DescribeConfigsResult:
    """The configs of one resource; without keys all of them."""
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    request = DescribeConfigsRequest(resources=[resource], **include)
    (result,) = wire.ask(request, version, DescribeConfigsResponse).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def config_of(
    wire: WireClient, name: str, key: str, kind: int = TOPIC
) -> DescribeConfigsResourceResult:
    """One config of one resource, with its synonyms."""
    (config,) = describe(wire, name, key, kind=kind, include_synonyms=True).configs
    assert config.name == key
    return config


def alter(
    wire: WireClient,
    name: str,
    *changes: Change,
    kind: int = TOPIC,
    version: int = 1,
    validate_only: bool = False,
) -> int:
    """The error code of an IncrementalAlterConfigs of one resource."""
    resource = IncrementalAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
            for operation, key, value in changes
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (result,) = wire.ask(request, version, IncrementalAlterConfigsResponse).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    if result.error_code:
        assert result.error_message
    return result.error_code


def replace(
    wire: WireClient, name: str, configs: dict[str, str | None], *, version: int = 2
) -> int:
    """The error code of an AlterConfigs of one topic."""
    resource = AlterConfigsResource(
        resource_type=TOPIC,
        resource_name=name,
        configs=[AlterableConfig(name=key, value=value) for key, value in configs.items()],
    )
    request = AlterConfigsRequest(resources=[resource])
    (result,) = wire.ask(request, version, AlterConfigsResponse).responses
    return result.error_code


def wait_for_value(wire: WireClient, name: str, key: str, value: str, kind: int = TOPIC) -> None:
    """Return when the config shows that value: what is set is shown as soon as the broker knows."""
    wait_until(
        lambda: config_of(wire, name, key, kind).value == value, what=f"{key} of {name} is {value}"
    )


def broker_id(wire: WireClient) -> str:
    """The id of the broker that answers."""
    answer = wire.ask(MetadataRequest(topics=[]), METADATA, MetadataResponse)
    return str(answer.brokers[0].node_id)


@pytest.mark.parametrize("version", range(1, 5))
def test_every_config_of_a_topic_is_described(
    wire: WireClient, cluster: DialogueCluster, version: int
) -> None:
    """B.5: "null keys = all. Must list EVERY known key with its effective value, source, type,
    sensitivity"; "Empty answers break read-modify-write tools (librdkafka 0092)".
    """
    topic = cluster.new_topic(configs={"retention.ms": "1234567"})
    result = describe(wire, topic, version=version)
    assert result.error_code == ErrorCode.NONE
    configs = {each.name: each for each in result.configs}
    expected = {
        "cleanup.policy": ("delete", False, LIST),
        "compression.type": ("producer", False, STRING),
        "delete.retention.ms": ("86400000", False, LONG),
        "file.delete.delay.ms": ("60000", False, LONG),
        "flush.messages": ("9223372036854775807", False, LONG),
        "flush.ms": ("9223372036854775807", False, LONG),
        "max.compaction.lag.ms": ("9223372036854775807", False, LONG),
        "max.message.bytes": ("1048588", False, INT),
        "message.timestamp.after.max.ms": ("3600000", False, LONG),
        "message.timestamp.before.max.ms": ("9223372036854775807", False, LONG),
        "message.timestamp.type": ("CreateTime", False, STRING),
        "min.cleanable.dirty.ratio": ("0.5", False, DOUBLE),
        "min.compaction.lag.ms": ("0", False, LONG),
        "min.insync.replicas": (str(cluster.min_insync_replicas), False, INT),
        "retention.bytes": ("-1", False, LONG),
        "retention.ms": ("1234567", True, LONG),
        "segment.ms": ("604800000", False, LONG),
    }
    for key, (value, is_set, kind) in expected.items():
        config = configs[key]
        assert config.value == value, key
        assert (config.config_source == DYNAMIC_TOPIC) == is_set, key
        assert not config.is_sensitive
        assert not config.read_only
        assert config.config_type == (kind if version >= 3 else 0), key
    assert {"segment.bytes", "unclean.leader.election.enable", "preallocate"} <= configs.keys()


def test_only_the_keys_that_are_asked_for_are_described(wire: WireClient, topic: str) -> None:
    result = describe(wire, topic, "retention.ms", "cleanup.policy", "no.such.config")
    assert {config.name for config in result.configs} == {"retention.ms", "cleanup.policy"}
    assert all(config.synonyms == [] for config in result.configs)
    assert all(config.documentation is None for config in result.configs)


def test_configs_explain_themselves(wire: WireClient, topic: str) -> None:
    """B.5: "docs on request"."""
    result = describe(wire, topic, include_documentation=True)
    assert all(config.documentation for config in result.configs)


@pytest.mark.parametrize("kind", [TOPIC])
def test_an_unknown_resource_has_no_configs(wire: WireClient, kind: int) -> None:
    """B.5: "Unknown topic (3)"."""
    result = describe(wire, unique("nowhere"), kind=kind)
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert result.configs == []
    assert alter(wire, unique("nowhere"), (SET, "retention.ms", "1")) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_a_broker_must_be_asked_of_itself(wire: WireClient) -> None:
    """B.5: "A broker resource must be asked of that broker"."""
    assert describe(wire, broker_id(wire), kind=BROKER).error_code == ErrorCode.NONE
    assert describe(wire, "123456", kind=BROKER).error_code == ErrorCode.INVALID_REQUEST
    assert describe(wire, "no-number", kind=BROKER).error_code == ErrorCode.INVALID_REQUEST


def test_every_config_of_a_broker_is_described(wire: WireClient) -> None:
    result = describe(wire, broker_id(wire), kind=BROKER)
    configs = {each.name: each for each in result.configs}
    assert configs["num.partitions"].config_type == INT
    assert configs["auto.create.topics.enable"].value == "true"
    for key in ("node.id", "log.dirs"):
        assert configs[key].read_only, key
        assert configs[key].value
        assert configs[key].config_source == STATIC


def test_synonyms_come_in_the_order_in_which_they_win(wire: WireClient, topic: str) -> None:
    """B.5: "synonyms in precedence order"."""
    config = config_of(wire, topic, "max.message.bytes")
    assert [(each.name, each.value, each.source) for each in config.synonyms] == [
        ("message.max.bytes", "1048588", DEFAULT)
    ]
    alter(wire, topic, (SET, "max.message.bytes", "5000"))
    wait_for_value(wire, topic, "max.message.bytes", "5000")
    config = config_of(wire, topic, "max.message.bytes")
    assert [(each.name, each.value, each.source) for each in config.synonyms] == [
        ("max.message.bytes", "5000", DYNAMIC_TOPIC),
        ("message.max.bytes", "1048588", DEFAULT),
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_a_config_is_set_and_deleted(wire: WireClient, topic: str, version: int) -> None:
    """B.5: "applied without restart and visible at once to DescribeConfigs"."""
    change = (SET, "retention.ms", "86400001")
    assert alter(wire, topic, change, version=version) == ErrorCode.NONE
    wait_for_value(wire, topic, "retention.ms", "86400001")
    assert config_of(wire, topic, "retention.ms").config_source == DYNAMIC_TOPIC
    assert alter(wire, topic, (DELETE, "retention.ms", None), version=version) == ErrorCode.NONE
    wait_for_value(wire, topic, "retention.ms", "604800000")
    assert config_of(wire, topic, "retention.ms").config_source in (DEFAULT, STATIC)


def test_lists_are_appended_to_and_subtracted_from(wire: WireClient, topic: str) -> None:
    """B.5: "SET 0, DELETE 1, APPEND 2, SUBTRACT 3"."""
    for change, expected in (
        ((APPEND, "cleanup.policy", "compact"), "delete,compact"),
        ((APPEND, "cleanup.policy", "compact"), "delete,compact"),
        ((SUBTRACT, "cleanup.policy", "delete"), "compact"),
        ((SUBTRACT, "cleanup.policy", "delete"), "compact"),
    ):
        assert alter(wire, topic, change) == ErrorCode.NONE
        wait_for_value(wire, topic, "cleanup.policy", expected)


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_only_lists_can_be_appended_to(wire: WireClient, topic: str, operation: int) -> None:
    """B.5: "APPEND/SUBTRACT only for list keys (40)"."""
    code = alter(wire, topic, (operation, "retention.ms", "5"))
    assert code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ((SET, "no.such.config", "1"), ErrorCode.INVALID_CONFIG),
        ((SET, "retention.ms", "soon"), ErrorCode.INVALID_CONFIG),
        ((SET, "cleanup.policy", "burn"), ErrorCode.INVALID_CONFIG),
        ((SET, "min.cleanable.dirty.ratio", "1.5"), ErrorCode.INVALID_CONFIG),
        ((SET, "segment.ms", "0"), ErrorCode.INVALID_CONFIG),
        ((SET, "retention.ms", None), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_change_must_make_sense(
    wire: WireClient, topic: str, change: Change, expected: ErrorCode
) -> None:
    """B.5: "unknown key on topics INVALID_CONFIG (40)"."""
    assert alter(wire, topic, change) == expected


def test_a_key_changes_once_in_a_request(wire: WireClient, topic: str) -> None:
    """B.5: "same key twice or same resource twice INVALID_REQUEST"."""
    once, again = (SET, "retention.ms", "1"), (SET, "retention.ms", "2")
    assert alter(wire, topic, once, again) == ErrorCode.INVALID_REQUEST
    resource = IncrementalAlterConfigsResource(resource_type=TOPIC, resource_name=topic)
    request = IncrementalAlterConfigsRequest(resources=[resource, resource])
    answer = wire.ask(request, 1, IncrementalAlterConfigsResponse)
    assert {each.error_code for each in answer.responses} == {ErrorCode.INVALID_REQUEST}


def test_the_changes_of_a_resource_are_all_made_or_none(wire: WireClient, topic: str) -> None:
    """B.5: "atomic per resource"."""
    good, bad = (SET, "retention.ms", "1"), (SET, "segment.ms", "never")
    assert alter(wire, topic, good, bad) == ErrorCode.INVALID_CONFIG
    assert config_of(wire, topic, "retention.ms").value == "604800000"


def test_validating_changes_nothing(wire: WireClient, topic: str) -> None:
    for change, expected in (
        ((SET, "retention.ms", "1"), ErrorCode.NONE),
        ((SET, "retention.ms", "x"), ErrorCode.INVALID_CONFIG),
    ):
        assert alter(wire, topic, change, validate_only=True) == expected
    assert config_of(wire, topic, "retention.ms").value == "604800000"


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_all_there_is(wire: WireClient, topic: str, version: int) -> None:
    """B.5: "Replaces the whole dynamic set of the resource (keys not named are reset)"."""
    assert replace(wire, topic, {"retention.ms": "1", "segment.ms": "2"}, version=version) == 0
    wait_for_value(wire, topic, "segment.ms", "2")
    assert replace(wire, topic, {"retention.ms": "3"}, version=version) == ErrorCode.NONE
    wait_for_value(wire, topic, "retention.ms", "3")
    assert config_of(wire, topic, "segment.ms").value == "604800000"
    assert replace(wire, topic, {"retention.ms": "x"}) == ErrorCode.INVALID_CONFIG
    assert replace(wire, topic, {"nonsense": "x"}) == ErrorCode.INVALID_CONFIG
    assert config_of(wire, topic, "retention.ms").value == "3"


def test_a_read_only_config_of_a_broker_stays(wire: WireClient) -> None:
    """B.5: "read-only broker key (42)"."""
    me = broker_id(wire)
    change = (SET, "log.dirs", "elsewhere")
    assert alter(wire, me, change, kind=BROKER) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_config_of_a_broker_changes_at_run_time(wire: WireClient, everywhere: bool) -> None:
    """B.5: "BROKER 4 ("" = cluster default)"; sources 2 and 3."""
    me = broker_id(wire)
    key = "log.cleaner.delete.retention.ms"
    name, source = ("", DYNAMIC_DEFAULT) if everywhere else (me, DYNAMIC_BROKER)
    assert alter(wire, name, (SET, key, "4242"), kind=BROKER) == ErrorCode.NONE
    try:
        wait_for_value(wire, me, key, "4242", BROKER)
        assert config_of(wire, me, key, BROKER).config_source == source
    finally:
        assert alter(wire, name, (DELETE, key, None), kind=BROKER) == ErrorCode.NONE
    wait_for_value(wire, me, key, "86400000", BROKER)


def test_a_topic_follows_its_brokers_default(wire: WireClient, topic: str) -> None:
    """B.5: the default of a topic's key is the broker's; the topic's own value wins."""
    key = "log.cleaner.delete.retention.ms"
    assert alter(wire, "", (SET, key, "777"), kind=BROKER) == ErrorCode.NONE
    try:
        wait_for_value(wire, topic, "delete.retention.ms", "777")
        config = config_of(wire, topic, "delete.retention.ms")
        assert config.config_source == DYNAMIC_DEFAULT
        assert [(each.name, each.value, each.source) for each in config.synonyms] == [
            (key, "777", DYNAMIC_DEFAULT),
            (key, "86400000", DEFAULT),
        ]
    finally:
        assert alter(wire, "", (DELETE, key, None), kind=BROKER) == ErrorCode.NONE
    wait_for_value(wire, topic, "delete.retention.ms", "86400000")


def test_a_new_limit_holds_at_once(wire: WireClient, topic: str) -> None:
    """B.5: "applied without restart"."""
    batch = batch_of(b"x" * 1000)
    assert produce(wire, topic, batch).error_code == ErrorCode.NONE
    assert alter(wire, topic, (SET, "max.message.bytes", "500")) == ErrorCode.NONE
    wait_until(
        lambda: produce(wire, topic, batch).error_code == ErrorCode.MESSAGE_TOO_LARGE,
        what="the limit holds",
    )
    assert alter(wire, topic, (DELETE, "max.message.bytes", None)) == ErrorCode.NONE
    wait_until(lambda: produce(wire, topic, batch).error_code == ErrorCode.NONE, what="no limit")


def test_a_new_timestamp_type_holds_at_once(wire: WireClient, topic: str) -> None:
    change = (SET, "message.timestamp.type", "LogAppendTime")
    assert alter(wire, topic, change) == ErrorCode.NONE
    stamped = wait_until(
        lambda: [
            result
            for result in [produce(wire, topic, batch_of(b"a"))]
            if result.log_append_time_ms > 0
        ],
        what="batches are stamped",
    )
    data = fetch(wire, topic, stamped[0].base_offset)
    assert read_header(batches_of(data)[0]).is_log_append_time


def test_what_has_configs_is_listed(wire: WireClient, topic: str) -> None:
    """B.10: "v1 types topic, broker, [...] empty = all; other types UNSUPPORTED_VERSION (35)"."""

    def ask(*kinds: int) -> set[tuple[int, str]]:
        request = ListConfigResourcesRequest(resource_types=list(kinds))
        answer = wire.ask(request, 1, ListConfigResourcesResponse)
        assert answer.error_code == ErrorCode.NONE
        return {(each.resource_type, each.resource_name) for each in answer.config_resources}

    assert (TOPIC, topic) in ask(TOPIC)
    assert (BROKER, broker_id(wire)) in ask(BROKER)
    assert {(TOPIC, topic), (BROKER, broker_id(wire))} <= ask()
    assert {kind for kind, _ in ask(TOPIC)} == {TOPIC}
    request = ListConfigResourcesRequest(resource_types=[77])
    answer = wire.ask(request, 1, ListConfigResourcesResponse)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
