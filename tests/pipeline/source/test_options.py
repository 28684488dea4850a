"""The options of the source: the stock connector's, checked."""

import pickle  # noqa: TID251  # as Spark sends them to tasks

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.source.offset_bounds import AT_EARLIEST, AT_LATEST
from odradek.pipeline.source.options import SourceOptions, source_options

NEEDED = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def options_of(**options: str) -> SourceOptions:
    return source_options({**NEEDED, **options}, is_stream=True)


def refusal_of(options: dict[str, str]) -> str:
    with pytest.raises(PipelineError) as refused:
        source_options({**NEEDED, **options}, is_stream=True)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_defaults_are_the_stock_connectors() -> None:
    options = options_of()
    assert options.bootstrap_servers == "127.0.0.1:9092"
    assert options.subscription.topics == ("orders",)
    assert options.starting == AT_LATEST
    assert source_options(NEEDED, is_stream=False).starting == AT_EARLIEST
    assert options.fail_on_data_loss
    assert not options.is_read_committed
    assert not options.include_headers
    assert not options.is_latest_without_match
    assert options.max_trigger_delay_ms == 15 * 60_000
    assert options.max_offsets_per_trigger is None
    assert options.timeout_s == 60.0


def test_names_are_taken_in_any_case() -> None:
    upper = {name.upper(): value for name, value in {**NEEDED, "minPartitions": "7"}.items()}
    assert source_options(upper, is_stream=False).min_partitions == 7


def test_values_are_read() -> None:
    options = options_of(
        failOnDataLoss="False",
        includeHeaders="true",
        maxOffsetsPerTrigger="1000",
        minOffsetsPerTrigger="10",
        maxBytesPerTrigger="64m",
        maxTriggerDelay="30s",
        maxRecordsPerPartition="500",
        startingOffsetsByTimestampStrategy="latest",
        commitToGroup=" orders-table ",
        pushFilters="true",
        **{
            "kafka.isolation.level": "read_committed",
            "kafka.client.rack": "eu-1a",
            "kafka.fetch.max.bytes": "1000000",
            "kafkaConsumer.pollTimeoutMs": "5000",
        },
    )
    assert not options.fail_on_data_loss
    assert options.include_headers
    assert options.max_offsets_per_trigger == 1000
    assert options.min_offsets_per_trigger == 10
    assert options.max_bytes_per_trigger == 64 << 20
    assert options.max_trigger_delay_ms == 30_000
    assert options.max_records_per_partition == 500
    assert options.is_latest_without_match
    assert options.commit_to_group == "orders-table"
    assert options.is_pushing_filters
    assert options.is_read_committed
    assert options.kafka["client.rack"] == "eu-1a"
    assert options.fetch_max_bytes == 1_000_000
    assert options.timeout_s == 5.0


def test_what_only_kafkas_consumer_needs_is_taken_and_has_no_effect() -> None:
    tuned = {
        "kafka.group.id": "orders",
        "kafka.session.timeout.ms": "10000",
        "kafka.max.poll.records": "500",
        "groupIdPrefix": "reports",
    }
    assert options_of(**tuned).commit_to_group == ""


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    assert refusal_of({"maxOffsetPerTrigger": "5"}).endswith("did you mean maxOffsetsPerTrigger?")
    assert refusal_of({"topic": "orders"}).startswith("unknown option topic")
    assert refusal_of({"kafka.isolation.levl": "read_committed"}).endswith(
        "did you mean kafka.isolation.level?"
    )
    assert refusal_of({"kafka.ssl.trustore.location": "x"}).endswith(
        "did you mean kafka.ssl.truststore.location?"
    )


def test_what_the_stock_connector_refuses_is_refused_with_what_to_do() -> None:
    assert "set startingOffsets instead" in refusal_of({"kafka.auto.offset.reset": "earliest"})
    assert "commitToGroup" in refusal_of({"kafka.enable.auto.commit": "true"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("failOnDataLoss", "no"),
        ("includeHeaders", "1"),
        ("minPartitions", "0"),
        ("maxRecordsPerPartition", "-4"),
        ("maxOffsetsPerTrigger", "many"),
        ("maxOffsetsPerTrigger", "9999999999999999999999"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "1 apple"),
        ("maxTriggerDelay", "1 week"),
        ("startingOffsetsByTimestampStrategy", "nearest"),
        ("kafka.isolation.level", "serializable"),
        ("kafka.fetch.max.bytes", "1g"),
        ("pushFilters", "maybe"),
    ],
)
def test_a_malformed_value_is_refused_by_the_options_name(name: str, value: str) -> None:
    assert refusal_of({name: value}).startswith(f"{name} {value!r}")


def test_limits_that_contradict_each_other_and_missing_servers_are_refused() -> None:
    limits = {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}
    assert "is above maxOffsetsPerTrigger 5" in refusal_of(limits)
    assert "bootstrap.servers is not set" in refusal_of({"kafka.bootstrap.servers": " "})


@pytest.mark.parametrize(
    ("text", "size"),
    [("10", 10), ("5k", 5 << 10), ("1g", 1 << 30), ("2GiB", 2 << 30), ("8mb", 8 << 20)],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert options_of(maxBytesPerTrigger=text).max_bytes_per_trigger == size


def test_options_are_pickled_and_do_not_show_passwords() -> None:
    options = options_of(**{"kafka.sasl.password": "a secret"})
    assert pickle.loads(pickle.dumps(options)) == options
    assert "a secret" not in repr(options)
