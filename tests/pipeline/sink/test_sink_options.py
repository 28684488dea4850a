"""The options of the sink."""

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.sink.sink_options import SinkOptions, sink_options

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def options_of(**options: str) -> SinkOptions:
    return sink_options({**SERVERS, **options})


def test_without_options_topics_come_from_the_rows() -> None:
    found = options_of()
    assert found.topic is None
    assert found.prefix is None
    assert not found.keeps_timestamp
    assert found.timeout_s == 60


def test_names_are_taken_in_any_case() -> None:
    found = options_of(
        Topic="orders", transactionalIdPrefix="copy", keeptimestamp="True", queryName="q"
    )
    assert (found.topic, found.prefix, found.keeps_timestamp) == ("orders", "copy", True)


def test_a_key_goes_to_the_partition_that_a_java_producer_would_choose() -> None:
    assert options_of().producer_properties["partitioner"] == "murmur2_random"


def test_what_the_user_sets_for_the_producer_wins() -> None:
    found = sink_options({**SERVERS, "kafka.transaction.timeout.ms": "1000"})
    assert found.producer_properties["transaction.timeout.ms"] == "1000"


def test_max_block_ms_bounds_each_request() -> None:
    assert sink_options({**SERVERS, "kafka.max.block.ms": "1500"}).timeout_s == 1.5


def test_passwords_are_not_in_its_text() -> None:
    found = sink_options({**SERVERS, "kafka.sasl.password": "secret"})
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topik": "x"}, "option topik is unknown to the sink: it has topic"),
        ({"topic": " "}, "option topic is empty"),
        ({"transactionalIdPrefix": ""}, "transactionalIdPrefix is empty"),
        ({"keepTimestamp": "yes"}, "keepTimestamp is yes: it is true or false"),
        ({"kafka.max.block.ms": "soon"}, "kafka.max.block.ms is soon: it is a number"),
        ({"kafka.transactional.id": "x"}, "set the option transactionalIdPrefix"),
        ({"kafka.nonsense": "x"}, "kafka.nonsense is not an option"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError) as refused:
        sink_options({**SERVERS, **options})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_servers_are_told() -> None:
    with pytest.raises(PipelineError, match=r"kafka\.bootstrap\.servers is not set"):
        sink_options({"topic": "x"})
