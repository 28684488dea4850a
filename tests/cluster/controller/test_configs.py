"""AlterConfigs and IncrementalAlterConfigs: B.5, code by code, as a Kafka 4.3.1 answers."""

import random

import pytest

from odradek.cluster.controller.commands import (
    AlterConfigs,
    ConfigOperation,
    IncrementalAlterConfigs,
    ResourceConfigs,
    ResourceOperations,
)
from odradek.cluster.controller.configs import AlterConfigOperation
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.records import ConfigChanged
from odradek.cluster.metadata.settings import topic_settings
from odradek.protocol.errors import ErrorCode
from tests.support.controller_harness import ControllerHarness

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
SET, DELETE, APPEND, SUBTRACT = AlterConfigOperation
Row = tuple[str, int, str | None]


@pytest.fixture
def harness() -> ControllerHarness:
    harness = ControllerHarness()
    harness.has("aa", 1)
    return harness


def resource(name: str, *rows: Row, kind: int = TOPIC) -> ResourceOperations:
    return ResourceOperations(kind, name, tuple(ConfigOperation(*row) for row in rows))


def change(harness: ControllerHarness, *resources: ResourceOperations) -> list[int]:
    answers = harness.configs(IncrementalAlterConfigs(resources))
    assert all(message for code, message in answers if code)
    return [code for code, _ in answers]


def replace(harness: ControllerHarness, *resources: ResourceConfigs) -> list[int]:
    answers = harness.configs(AlterConfigs(resources))
    assert all(message for code, message in answers if code)
    return [code for code, _ in answers]


def of(harness: ControllerHarness, name: str, kind: ConfigResourceType = TOPIC) -> dict[str, str]:
    return dict(harness.image.configs.of(kind, name))


# -- IncrementalAlterConfigs -----------------------------------------------------------------


def test_a_key_is_set_and_deleted_and_the_others_stay(harness: ControllerHarness) -> None:
    assert change(harness, resource("aa", ("flush.ms", SET, " 7 "), ("segment.ms", SET, "8"))) == [
        0
    ]
    assert of(harness, "aa") == {"flush.ms": "7", "segment.ms": "8"}
    assert change(harness, resource("aa", ("flush.ms", DELETE, None))) == [0]
    assert of(harness, "aa") == {"segment.ms": "8"}


def test_a_change_is_in_effect_with_the_next_image(harness: ControllerHarness) -> None:
    change(harness, resource("aa", ("retention.ms", SET, "77")))
    assert topic_settings(harness.image, 0, {}, "aa").retention_ms == 77


def test_a_list_is_appended_to_and_subtracted_from(harness: ControllerHarness) -> None:
    # What was not set before counts with the value in effect.
    change(harness, resource("aa", ("cleanup.policy", APPEND, "compact")))
    assert of(harness, "aa") == {"cleanup.policy": "delete,compact"}
    change(harness, resource("aa", ("cleanup.policy", APPEND, "compact, delete")))
    assert of(harness, "aa") == {"cleanup.policy": "delete,compact"}
    change(harness, resource("aa", ("cleanup.policy", SUBTRACT, "delete")))
    assert of(harness, "aa") == {"cleanup.policy": "compact"}
    change(harness, resource("aa", ("cleanup.policy", SUBTRACT, "delete,compact")))
    assert of(harness, "aa") == {"cleanup.policy": ""}


def test_a_list_of_the_cluster_counts_when_the_topic_has_none(harness: ControllerHarness) -> None:
    assert change(harness, resource("", ("log.cleanup.policy", SET, "compact"), kind=BROKER)) == [0]
    change(harness, resource("aa", ("cleanup.policy", APPEND, "delete")))
    assert of(harness, "aa") == {"cleanup.policy": "compact,delete"}
    change(harness, resource("", ("log.cleanup.policy", APPEND, "delete"), kind=BROKER))
    assert of(harness, "", BROKER) == {"log.cleanup.policy": "compact,delete"}


def test_lists_of_tls_and_sasl_begin_with_the_default(harness: ControllerHarness) -> None:
    """ConfigurationControlManager.getParts: Kafka's controller does not know what the broker was
    started with either."""
    rows = (
        ("ssl.enabled.protocols", SUBTRACT, "TLSv1.2"),
        ("sasl.enabled.mechanisms", APPEND, "PLAIN, GSSAPI"),
        ("ssl.cipher.suites", APPEND, "TLS_AES_256_GCM_SHA384"),
    )
    assert change(harness, resource("0", *rows, kind=BROKER)) == [0]
    assert of(harness, "0", BROKER) == {
        "ssl.enabled.protocols": "TLSv1.3",
        "sasl.enabled.mechanisms": "GSSAPI,PLAIN",
        "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
    }
    row = ("sasl.enabled.mechanisms", SUBTRACT, "GSSAPI,SCRAM-SHA-256")
    assert change(harness, resource("0", row, kind=BROKER)) == [0]
    assert of(harness, "0", BROKER)["sasl.enabled.mechanisms"] == "PLAIN"


def test_lists_of_one_listener_are_set_as_a_whole(harness: ControllerHarness) -> None:
    """KafkaConfigSchema.isSplittable: Kafka has no definition of these keys there."""
    for key in ("ssl.enabled.protocols", "sasl.enabled.mechanisms"):
        named = f"listener.name.secure.{key}"
        [(code, message)] = harness.configs(
            IncrementalAlterConfigs((resource("0", (named, APPEND, "TLSv1.3"), kind=BROKER),))
        )
        assert code == 40
        assert message == f"Can't APPEND to key {named} because its type is not LIST."
    assert not of(harness, "0", BROKER)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([("nope", SET, "1")], 40),
        ([("retention.ms", SET, "x")], 40),
        ([("retention.ms", APPEND, "1")], 40),
        ([("retention.ms", SUBTRACT, "1")], 40),
        ([("nope", APPEND, "1")], 40),
        ([("cleanup.policy", APPEND, "foo")], 40),
        ([("cleanup.policy", SUBTRACT, "foo")], 40),
        ([("retention.ms", SET, None)], 42),
        ([("cleanup.policy", APPEND, None)], 42),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], 42),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], 42),
        ([("retention.ms", 9, "1")], 42),
        ([("retention.ms", -1, "1")], 42),
        ([("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")], 40),
    ],
)
def test_invalid_changes_are_refused(
    harness: ControllerHarness, rows: list[Row], code: int
) -> None:
    before = harness.image
    assert change(harness, resource("aa", *rows)) == [code]
    assert harness.image is before


def test_a_resource_is_changed_as_a_whole_or_not_at_all(harness: ControllerHarness) -> None:
    rows: list[Row] = [("retention.ms", SET, "1"), ("segment.ms", SET, "x")]
    assert change(harness, resource("aa", *rows)) == [ErrorCode.INVALID_CONFIG]
    assert of(harness, "aa") == {}


def test_a_failed_resource_does_not_fail_others(harness: ControllerHarness) -> None:
    row: Row = ("cleanup.policy", SET, "compact")
    assert change(harness, resource("aa", row), resource("zz", row)) == [0, 3]
    assert of(harness, "aa") == {"cleanup.policy": "compact"}


def test_a_resource_named_twice_fails_each_time(harness: ControllerHarness) -> None:
    rows = [resource("aa", ("retention.ms", SET, value)) for value in "12"]
    assert change(harness, *rows) == [42, 42]
    assert of(harness, "aa") == {}


def test_values_are_validated_together_with_existing_ones(
    harness: ControllerHarness,
) -> None:
    assert change(harness, resource("aa", ("max.compaction.lag.ms", SET, "5"))) == [0]
    assert change(harness, resource("aa", ("min.compaction.lag.ms", SET, "6"))) == [40]
    assert change(harness, resource("aa", ("min.compaction.lag.ms", SET, "5"))) == [0]


def test_deleting_an_unset_key_succeeds(harness: ControllerHarness) -> None:
    assert change(harness, resource("aa", ("flush.ms", DELETE, None), ("nope", DELETE, None))) == [
        0
    ]


def test_no_change_makes_no_record(harness: ControllerHarness) -> None:
    assert change(harness, resource("aa", ("flush.ms", SET, "7"))) == [0]
    written = len(harness.records)
    assert change(harness, resource("aa", ("flush.ms", SET, "7")), resource("", kind=BROKER)) == [
        0,
        0,
    ]
    assert len(harness.records) == written


def test_validate_only_changes_nothing(harness: ControllerHarness) -> None:
    command = IncrementalAlterConfigs((resource("aa", ("flush.ms", SET, "7")),), validate_only=True)
    assert harness.configs(command) == [(0, None)]
    assert of(harness, "aa") == {}
    bad = IncrementalAlterConfigs((resource("aa", ("flush.ms", SET, "x")),), validate_only=True)
    assert [code for code, _ in harness.configs(bad)] == [40]


# -- AlterConfigs ----------------------------------------------------------------------------


def test_replacing_resets_the_keys_that_are_not_named(harness: ControllerHarness) -> None:
    change(harness, resource("aa", ("flush.ms", SET, "7"), ("segment.ms", SET, "8")))
    assert replace(harness, ResourceConfigs(TOPIC, "aa", (("segment.ms", "9"),))) == [0]
    assert of(harness, "aa") == {"segment.ms": "9"}
    assert replace(harness, ResourceConfigs(TOPIC, "aa", ())) == [0]
    assert of(harness, "aa") == {}


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ((("retention.ms", None),), 42),
        ((("x", "1"),), 40),
        ((("retention.ms", "x"),), 40),
        ((("retention.ms", "5"), ("retention.ms", "6")), 42),
        ((("min.compaction.lag.ms", "6"), ("max.compaction.lag.ms", "5")), 40),
    ],
)
def test_invalid_replacements_are_refused(
    harness: ControllerHarness, configs: tuple[tuple[str, str | None], ...], code: int
) -> None:
    change(harness, resource("aa", ("flush.ms", SET, "7")))
    assert replace(harness, ResourceConfigs(TOPIC, "aa", configs)) == [code]
    assert of(harness, "aa") == {"flush.ms": "7"}


def test_a_replacement_is_validated_without_the_old_values(harness: ControllerHarness) -> None:
    change(harness, resource("aa", ("max.compaction.lag.ms", SET, "5")))
    assert replace(harness, ResourceConfigs(TOPIC, "aa", (("min.compaction.lag.ms", "6"),))) == [0]


def test_a_replaced_resource_named_twice_fails_each_time(harness: ControllerHarness) -> None:
    both = [ResourceConfigs(TOPIC, "aa", (("flush.ms", value),)) for value in "12"]
    assert replace(harness, *both) == [42, 42]


def test_replacing_records_only_the_differences(harness: ControllerHarness) -> None:
    change(harness, resource("aa", ("flush.ms", SET, "7"), ("segment.ms", SET, "8")))
    written = len(harness.records)
    replace(harness, ResourceConfigs(TOPIC, "aa", (("flush.ms", "7"), ("retention.ms", "1"))))
    assert harness.records[written:] == [
        ConfigChanged(TOPIC, "aa", "segment.ms", None),
        ConfigChanged(TOPIC, "aa", "retention.ms", "1"),
    ]


@pytest.mark.parametrize("seed", range(10))
def test_random_changes_give_the_configs_of_a_simple_model(
    harness: ControllerHarness, seed: int
) -> None:
    chance = random.Random(seed)
    twin: dict[str, str] = {}
    for step in range(150):
        key = chance.choice(["flush.ms", "retention.ms", "cleanup.policy", "nope"])
        values = ["delete", "compact"] if key == "cleanup.policy" else ["1", "2"]
        value = chance.choice([*values, "bad!"])
        operation = chance.choice([SET, DELETE, APPEND, SUBTRACT])
        (code,) = change(harness, resource("aa", (key, operation, value)))
        is_list = key == "cleanup.policy"
        is_good = operation == DELETE or (
            value != "bad!" and key != "nope" and (operation == SET or is_list)
        )
        assert (code == 0) == is_good, (seed, step)
        if is_good and operation == DELETE:
            twin.pop(key, None)
        elif is_good and operation == SET:
            twin[key] = value
        elif is_good:
            items = [item for item in twin.get(key, "delete").split(",") if item != value]
            twin[key] = ",".join(item for item in items if item)
            if operation == APPEND:
                before = twin.get(key, "")
                had = [value] if not before else [*before.split(","), value]
                twin[key] = ",".join(had)
        have = of(harness, "aa")
        assert {k: set(v.split(",")) for k, v in have.items()} == {
            k: set(v.split(",")) for k, v in twin.items()
        }, (seed, step)


def test_the_clusters_min_insync_replicas_can_be_changed_but_not_deleted_with_elr(
    harness: ControllerHarness,
) -> None:
    harness.with_elr()
    key = "min.insync.replicas"
    assert change(harness, resource("", (key, SET, "2"), kind=BROKER)) == [0]
    assert change(harness, resource("", (key, DELETE, None), kind=BROKER)) == [40]
    assert replace(harness, ResourceConfigs(BROKER, "", (("log.retention.ms", "1000"),))) == [40]
    assert replace(harness, ResourceConfigs(BROKER, "", ((key, "1"),))) == [0]
    assert of(harness, "", BROKER) == {key: "1"}
