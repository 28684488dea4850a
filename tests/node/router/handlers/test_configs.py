"""The configuration APIs as clients see them, in every version (B.5, B.10)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS, TOPIC_CONFIGS
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.router import cooperative_iteration
from odradek.node.router.handlers.configs import (
    handle_alter_configs,
    handle_describe_configs,
    handle_incremental_alter_configs,
    handle_list_config_resources,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from tests.support.router_harness import RouterHarness

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
LOGGER = ConfigResourceType.BROKER_LOGGER
GROUP, METRICS = ConfigResourceType.GROUP, ConfigResourceType.CLIENT_METRICS


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path, static={"num.partitions": "3", "node.id": "0"})
    harness.controller.has("aa", 1)
    harness.follow()
    yield harness
    harness.close()


def describe(
    harness: RouterHarness,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResult:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    (result,) = harness.call(handle_describe_configs, request, version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    assert bool(result.error_message) == bool(result.error_code)
    return result


def only_config(result: DescribeConfigsResult) -> DescribeConfigsResourceResult:
    (config,) = result.configs
    return config


# -- DescribeConfigs -------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("keys", [None, []])
def test_all_keys_are_listed_in_any_version(
    harness: RouterHarness, version: int, keys: list[str] | None
) -> None:
    # B.5: empty answers break read-modify-write tools (librdkafka 0092).
    topic = describe(harness, TOPIC, "aa", keys, version=version)
    assert [config.name for config in topic.configs] == list(TOPIC_CONFIGS)
    broker = describe(harness, BROKER, "0", keys, version=version)
    assert [config.name for config in broker.configs] == list(BROKER_CONFIGS)
    assert all(config.value is not None for config in topic.configs)


def test_only_the_requested_keys_are_listed_and_unknown_ones_left_out(
    harness: RouterHarness,
) -> None:
    result = describe(harness, TOPIC, "aa", ["cleanup.policy", "nope"])
    config = only_config(result)
    assert (config.name, config.value, config.config_source, config.config_type) == (
        "cleanup.policy",
        "delete",
        5,
        7,
    )


def test_version_0_marks_default_values(harness: RouterHarness) -> None:
    harness.controller.set_config(TOPIC, "aa", flush_ms="7")
    harness.follow()
    rows = {c.name: c.is_default for c in describe(harness, TOPIC, "aa", version=0).configs}
    assert not rows["flush.ms"]
    assert rows["retention.ms"]


@pytest.mark.parametrize("version", range(1, 5))
def test_synonyms_are_listed_on_request(harness: RouterHarness, version: int) -> None:
    harness.controller.set_config(TOPIC, "aa", retention_ms="5")
    harness.controller.set_config(BROKER, "0", log_retention_ms="4000")
    harness.follow()
    plain = only_config(describe(harness, TOPIC, "aa", ["retention.ms"], version=version))
    assert plain.synonyms == []
    config = only_config(
        describe(harness, TOPIC, "aa", ["retention.ms"], version=version, synonyms=True)
    )
    assert (config.value, config.config_source) == ("5", 1)
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("retention.ms", "5", 1),
        ("log.retention.ms", "4000", 2),
        ("log.retention.hours", "168", 5),
    ]


@pytest.mark.parametrize("version", [3, 4])
def test_documentation_is_included_on_request(harness: RouterHarness, version: int) -> None:
    plain = only_config(describe(harness, TOPIC, "aa", ["flush.ms"], version=version))
    assert plain.documentation is None
    described = only_config(
        describe(harness, TOPIC, "aa", ["flush.ms"], version=version, documentation=True)
    )
    assert described.documentation
    assert described.config_type == 5


def test_a_broker_lists_static_configs_and_marks_read_only_ones(harness: RouterHarness) -> None:
    rows = {config.name: config for config in describe(harness, BROKER, "0").configs}
    assert (rows["num.partitions"].value, rows["num.partitions"].config_source) == ("3", 4)
    assert rows["node.id"].read_only
    assert not rows["num.partitions"].read_only


def test_the_cluster_default_lists_dynamic_default_configs(harness: RouterHarness) -> None:
    assert describe(harness, BROKER, "").configs == []
    harness.controller.set_config(BROKER, "", num_partitions="9")
    harness.follow()
    config = only_config(describe(harness, BROKER, "", synonyms=True))
    assert (config.name, config.value, config.config_source) == ("num.partitions", "9", 3)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "zz", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "b@d", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "7", ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (LOGGER, "7", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (METRICS, "", ErrorCode.INVALID_REQUEST),
        (9, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_resource_that_does_not_exist_cannot_be_described(
    harness: RouterHarness, kind: int, name: str, code: ErrorCode
) -> None:
    result = describe(harness, kind, name)
    assert (result.error_code, result.configs) == (code, [])


def test_each_resource_fails_by_itself(harness: RouterHarness) -> None:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=TOPIC, resource_name=name, configuration_keys=None
            )
            for name in ("zz", "aa")
        ]
    )
    response = harness.call(handle_describe_configs, request)
    assert [result.error_code for result in response.results] == [3, 0]


DENIALS = [
    (TOPIC, "aa", ResourceType.TOPIC, "aa", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    (TOPIC, "zz", ResourceType.TOPIC, "zz", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    (GROUP, "g", ResourceType.GROUP, "g", ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (BROKER, "0", ResourceType.CLUSTER, CLUSTER_NAME, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    (METRICS, "m", ResourceType.CLUSTER, CLUSTER_NAME, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
]


@pytest.mark.parametrize(("kind", "name", "resource", "named", "code"), DENIALS)
def test_describing_needs_describe_configs(
    harness: RouterHarness,
    kind: int,
    name: str,
    resource: ResourceType,
    named: str,
    code: ErrorCode,
) -> None:
    harness.deny(AclOperation.DESCRIBE_CONFIGS, resource, named)
    result = describe(harness, kind, name)
    assert (result.error_code, result.configs) == (code, [])


# -- AlterConfigs and IncrementalAlterConfigs ------------------------------------------------

SET, DELETE, APPEND = 0, 1, 2


def change(
    harness: RouterHarness,
    *resources: tuple[int, str, list[tuple[str, int, str | None]]],
    version: int = 1,
    validate: bool = False,
) -> list[int]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in rows
                ],
            )
            for kind, name, rows in resources
        ],
        validate_only=validate,
    )
    response = harness.call(handle_incremental_alter_configs, request, version)
    answered = [(answer.resource_type, answer.resource_name) for answer in response.responses]
    assert answered == [(kind, name) for kind, name, _ in resources]
    assert all(bool(a.error_code) == bool(a.error_message) for a in response.responses)
    return [answer.error_code for answer in response.responses]


def replace(
    harness: RouterHarness, kind: int, name: str, version: int = 2, **configs: str | None
) -> int:
    request = AlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    AlterableConfig(name=key.replace("_", "."), value=value)
                    for key, value in configs.items()
                ],
            )
        ]
    )
    (answer,) = harness.call(handle_alter_configs, request, version).responses
    return answer.error_code


@pytest.mark.parametrize("version", range(2))
def test_a_change_is_visible_to_describe_at_once(harness: RouterHarness, version: int) -> None:
    rows: list[tuple[str, int, str | None]] = [
        ("flush.ms", SET, "7"),
        ("cleanup.policy", APPEND, "compact"),
    ]
    assert change(harness, (TOPIC, "aa", rows), version=version) == [0]
    assert only_config(describe(harness, TOPIC, "aa", ["flush.ms"])).value == "7"
    assert only_config(describe(harness, TOPIC, "aa", ["cleanup.policy"])).value == "delete,compact"
    assert change(harness, (TOPIC, "aa", [("flush.ms", DELETE, None)]), version=version) == [0]
    assert only_config(describe(harness, TOPIC, "aa", ["flush.ms"])).config_source == 5


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_resets_keys_that_are_not_named(harness: RouterHarness, version: int) -> None:
    assert replace(harness, TOPIC, "aa", version, flush_ms="7") == 0
    assert replace(harness, TOPIC, "aa", version, segment_ms="8") == 0
    assert only_config(describe(harness, TOPIC, "aa", ["flush.ms"])).config_source == 5
    assert only_config(describe(harness, TOPIC, "aa", ["segment.ms"])).value == "8"


def test_each_resource_is_answered_in_order(harness: RouterHarness) -> None:
    row: list[tuple[str, int, str | None]] = [("flush.ms", SET, "7")]
    harness.deny(AclOperation.ALTER_CONFIGS, ResourceType.TOPIC, "secret")
    codes = change(
        harness,
        (TOPIC, "zz", row),
        (TOPIC, "secret", row),
        (TOPIC, "aa", row),
        (BROKER, "0", [("node.id", SET, "4")]),
        (9, "x", []),
    )
    assert codes == [3, 29, 0, 42, 42]


def test_validate_only_changes_nothing(harness: RouterHarness) -> None:
    assert change(harness, (TOPIC, "aa", [("flush.ms", SET, "7")]), validate=True) == [0]
    assert only_config(describe(harness, TOPIC, "aa", ["flush.ms"])).config_source == 5


@pytest.mark.parametrize(("kind", "name", "resource", "named", "code"), DENIALS)
def test_altering_needs_alter_configs(
    harness: RouterHarness,
    kind: int,
    name: str,
    resource: ResourceType,
    named: str,
    code: ErrorCode,
) -> None:
    harness.deny(AclOperation.ALTER_CONFIGS, resource, named)
    assert change(harness, (kind, name, [])) == [code]
    assert replace(harness, kind, name) == code
    assert not harness.link.timeouts_ms, "nothing that is denied reaches the controller"


def test_who_may_do_everything_is_changed_by_who_may_change_acls(harness: RouterHarness) -> None:
    # Otherwise ALTER_CONFIGS would be enough to become a super user.
    super_users: list[tuple[str, int, str | None]] = [("super.users", SET, "User:eve")]
    others: list[tuple[str, int, str | None]] = [("num.partitions", SET, "2")]
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert change(harness, (BROKER, "", super_users)) == [0]
    harness.deny(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    assert change(harness, (BROKER, "", super_users)) == [denied]
    mechanisms: list[tuple[str, int, str | None]] = [("sasl.enabled.mechanisms", SET, "PLAIN")]
    assert change(harness, (BROKER, "", mechanisms)) == [denied]
    assert change(harness, (BROKER, "", [("authorizer.class.name", DELETE, None)])) == [denied]
    assert change(harness, (BROKER, "", others)) == [0]
    # AlterConfigs removes what is not named.
    assert replace(harness, BROKER, "") == denied
    assert replace(harness, BROKER, "0") == 0


def test_a_resource_is_changed_by_one_command_whatever_their_number(
    harness: RouterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cooperative_iteration, "COMMAND_ITEMS_MAX", 1)
    group, broker = ConfigResourceType.GROUP, ConfigResourceType.BROKER
    named = [(group, "a"), (broker, ""), (group, "a"), (group, "b")]
    keys = {group: "consumer.session.timeout.ms", broker: "message.max.bytes"}
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[IncrementalAlterableConfig(name=keys[kind], value="50000")],
            )
            for kind, name in named
        ]
    )
    answers = harness.call(handle_incremental_alter_configs, request).responses
    assert [(answer.resource_type, answer.resource_name) for answer in answers] == named
    # Named twice, which the controller must see.
    twice = ErrorCode.INVALID_REQUEST
    assert [answer.error_code for answer in answers] == [twice, 0, twice, 0]
    assert len(harness.link.timeouts_ms) == 3


def test_a_controller_that_does_not_answer_fails_each_resource(harness: RouterHarness) -> None:
    harness.link.failure = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    assert change(harness, (TOPIC, "aa", []), (BROKER, "", [])) == [7, 7]
    assert replace(harness, TOPIC, "aa") == 7


# -- ListConfigResources ---------------------------------------------------------------------


def listed(harness: RouterHarness, *types: int, version: int = 1) -> list[tuple[int, str]]:
    request = ListConfigResourcesRequest(resource_types=list(types))
    response = harness.call(handle_list_config_resources, request, version)
    assert response.error_code == 0
    return [(found.resource_type, found.resource_name) for found in response.config_resources]


def test_all_types_are_listed_when_none_is_named(harness: RouterHarness) -> None:
    assert set(listed(harness)) == {(TOPIC, "aa"), (BROKER, "0"), (LOGGER, "0")}


def test_types_that_were_named_are_listed(harness: RouterHarness) -> None:
    assert listed(harness, BROKER, TOPIC, BROKER) == [(BROKER, "0"), (TOPIC, "aa")]
    assert listed(harness, GROUP, METRICS) == []


def test_version_0_lists_client_metrics_only(harness: RouterHarness) -> None:
    assert listed(harness, version=0) == []
    alter_metrics(harness, "sub", SET, "metrics", "*")
    assert listed(harness, version=0) == listed(harness, METRICS) == [(METRICS, "sub")]
    alter_metrics(harness, "sub", DELETE, "metrics", None)
    assert listed(harness, version=0) == []


def test_an_unknown_resource_type_is_an_unsupported_version(harness: RouterHarness) -> None:
    request = ListConfigResourcesRequest(resource_types=[TOPIC, 3])
    response = harness.call(handle_list_config_resources, request)
    assert (response.error_code, response.config_resources) == (35, [])


def test_listing_needs_describe_configs_on_the_cluster(harness: RouterHarness) -> None:
    harness.deny(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    with pytest.raises(ApiError) as refused:
        harness.call(handle_list_config_resources, ListConfigResourcesRequest())
    assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_group_configs_are_described_for_any_group_id(harness: RouterHarness) -> None:
    """As in Kafka, a group need not exist to be configured."""
    harness.controller.set_config(GROUP, "g", consumer_session_timeout_ms="50000")
    harness.follow()
    described = {
        config.name: config for config in describe(harness, GROUP, "g", synonyms=True).configs
    }
    assert {name for name in described if name.startswith("consumer.")} == {
        "consumer.assignment.interval.ms",
        "consumer.heartbeat.interval.ms",
        "consumer.session.timeout.ms",
    }
    own, default = (
        described["consumer.session.timeout.ms"],
        described["consumer.heartbeat.interval.ms"],
    )
    assert (own.value, own.config_source) == ("50000", 8)
    assert (default.value, default.config_source) == ("5000", 5)
    assert [synonym.name for synonym in own.synonyms] == [
        "consumer.session.timeout.ms",
        "group.consumer.session.timeout.ms",
    ]


def test_the_ephemeral_config_of_a_group_has_its_source(harness: RouterHarness) -> None:
    harness.controller.set_config(BROKER, "", group_ephemeral_patterns="console-*")
    harness.controller.set_config(GROUP, "console-kept", group_ephemeral="false")
    harness.follow()

    def described(name: str) -> tuple[str | None, int, list[str]]:
        configs = describe(harness, GROUP, name, synonyms=True).configs
        [config] = [config for config in configs if config.name == "group.ephemeral"]
        return config.value, config.config_source, [s.name for s in config.synonyms]

    patterns, own = "group.ephemeral.patterns", "group.ephemeral"
    assert described("other") == ("false", 5, [own])
    assert described("console-1") == ("true", 3, [patterns, own])
    assert described("console-kept") == ("false", 8, [own, patterns, own])


# -- client metrics subscriptions (KIP-714) --------------------------------------------------

SET, DELETE, APPEND, SUBTRACT = range(4)


def alter_metrics(
    harness: RouterHarness, name: str, operation: int, key: str, value: str | None
) -> tuple[int, str | None]:
    config = IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=METRICS, resource_name=name, configs=[config]
            )
        ]
    )
    [answer] = harness.call(handle_incremental_alter_configs, request).responses
    return answer.error_code, answer.error_message


# What Kafka 4.3.1 answers to IncrementalAlterConfigs of the client metrics resource `sub`: the
# operation, the error code and message, and the value that DescribeConfigs has after it. In order.
KAFKA_ANSWERS: list[tuple[int, str, str | None, int, str | None, str]] = [
    (
        *(SET, "interval.ms", "99", 42),
        "Invalid value 99 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        "300000",
    ),
    (
        *(SET, "interval.ms", "3600001", 42),
        "Invalid value 3600001 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        "300000",
    ),
    (
        *(SET, "interval.ms", "abc", 40),
        "Invalid value abc for configuration interval.ms: Not a number of type INT",
        "300000",
    ),
    (
        *(SET, "interval.ms", "", 40),
        "Invalid value  for configuration interval.ms: Not a number of type INT",
        "300000",
    ),
    (SET, "interval.ms", " 100 ", 0, None, "100"),
    (SET, "metrics", "", 0, None, ""),
    (SET, "metrics", "*", 0, None, "*"),
    (SET, "metrics", "a,b,a", 0, None, "a,b"),
    (SET, "metrics", "a,,b", 40, "Configuration 'metrics' values must not be empty.", "a,b"),
    (SET, "metrics", None, 42, "Null value not supported for : metrics", "a,b"),
    (SET, "match", "10", 40, "Illegal client matching pattern: 10", ""),
    (SET, "match", "client_id=a=b", 40, "Illegal client matching pattern: client_id=a=b", ""),
    (SET, "match", "nope=1", 40, "Illegal client matching pattern: nope=1", ""),
    (SET, "match", "client_id=", 40, "Illegal client matching pattern: client_id=", ""),
    (SET, "match", "=x", 40, "Illegal client matching pattern: =x", ""),
    (SET, "match", "CLIENT_ID=a", 40, "Illegal client matching pattern: CLIENT_ID=a", ""),
    (SET, "match", "client_id=a=", 0, None, "client_id=a="),
    (
        SET,
        "match",
        " client_id = a , client_source_port=1",
        0,
        None,
        "client_id = a,client_source_port=1",
    ),
    (SET, "match", "client_id=a,client_id=b", 0, None, "client_id=a,client_id=b"),
    (SET, "match", "", 0, None, ""),
    (
        *(APPEND, "interval.ms", "5", 40),
        "Can't APPEND to key interval.ms because its type is not LIST.",
        "100",
    ),
]


def test_client_metrics_are_altered_as_in_kafka(harness: RouterHarness) -> None:
    for operation, key, value, code, message, described in KAFKA_ANSWERS:
        assert alter_metrics(harness, "sub", operation, key, value) == (code, message), value
        assert only_config(describe(harness, METRICS, "sub", [key])).value == described, value
    unknown = "Unknown client metrics configuration: nope"
    assert alter_metrics(harness, "sub", SET, "nope", "1") == (42, unknown)
    assert alter_metrics(harness, "sub", DELETE, "nope", None) == (0, None)
    nameless = "Subscription name can't be empty"
    assert alter_metrics(harness, "", SET, "metrics", "*") == (42, nameless)


def test_an_expression_that_re2_does_not_have_is_refused(harness: RouterHarness) -> None:
    code, message = alter_metrics(harness, "sub", SET, "match", "client_id=[")
    assert code == ErrorCode.INVALID_CONFIG
    assert message is not None
    assert message.startswith("Illegal client matching pattern: client_id=[: ")
    assert listed(harness, METRICS) == []


def test_lists_of_client_metrics_can_be_appended_to(harness: RouterHarness) -> None:
    # Kafka 4.3.1 does not know that they are lists.
    alter_metrics(harness, "sub", SET, "metrics", "a")
    assert alter_metrics(harness, "sub", APPEND, "metrics", "b,a") == (0, None)
    assert only_config(describe(harness, METRICS, "sub", ["metrics"])).value == "a,b"
    assert alter_metrics(harness, "sub", SUBTRACT, "metrics", "a") == (0, None)
    assert only_config(describe(harness, METRICS, "sub", ["metrics"])).value == "b"


def test_client_metrics_are_described_for_any_name(harness: RouterHarness) -> None:
    def rows(name: str) -> list[tuple[str, str | None, int, int, int]]:
        return [
            (each.name, each.value, each.config_source, each.config_type, len(each.synonyms))
            for each in describe(harness, METRICS, name, synonyms=True).configs
        ]

    alter_metrics(harness, "sub", SET, "metrics", "a")
    assert rows("sub") == [
        ("interval.ms", "300000", 5, 3, 0),
        ("match", "", 5, 7, 0),
        ("metrics", "a", 7, 7, 1),
    ]
    assert rows("nobody")[2] == ("metrics", "", 5, 7, 0)
    refused = describe(harness, METRICS, "")
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "Client metrics subscription name must not be empty",
    )


def test_alter_configs_without_configs_deletes_a_subscription(harness: RouterHarness) -> None:
    alter_metrics(harness, "sub", SET, "metrics", "a")
    request = AlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=METRICS, resource_name="sub")]
    )
    [answer] = harness.call(handle_alter_configs, request).responses
    assert answer.error_code == 0
    assert listed(harness, METRICS) == []
