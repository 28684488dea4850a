"""Where reading starts and ends, by the options of the stock Kafka connector."""

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import EARLIEST, LATEST, PartitionName
from odradek.pipeline.source.offset_bounds import (
    AT_EARLIEST,
    AT_LATEST,
    BoundAtOffsets,
    BoundAtTime,
    BoundAtTimes,
    ending_bound,
    partition_values,
    starting_bound,
)

FIRST = PartitionName("orders", 0)
SECOND = PartitionName("orders", 1)


def refusal_of(*, is_stream: bool = False, **options: str) -> str:
    read = ending_bound if any(name.startswith("ending") for name in options) else starting_bound
    with pytest.raises(PipelineError) as refused:
        read(options, is_stream=is_stream)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_batch_reads_all_and_a_stream_what_is_new() -> None:
    assert starting_bound({}, is_stream=False) == AT_EARLIEST
    assert starting_bound({}, is_stream=True) == AT_LATEST
    assert ending_bound({}, is_stream=False) == AT_LATEST


def test_words_and_offsets_by_partition() -> None:
    assert starting_bound({"startingoffsets": "Earliest"}, is_stream=True) == AT_EARLIEST
    options = {"startingoffsets": '{"orders":{"0":23,"1":-2}}'}
    expected = BoundAtOffsets({FIRST: 23, SECOND: EARLIEST})
    assert starting_bound(options, is_stream=False) == expected
    ends = {"endingoffsets": '{"orders":{"0":50,"1":-1}}'}
    assert ending_bound(ends, is_stream=False) == BoundAtOffsets({FIRST: 50, SECOND: LATEST})


def test_a_time_for_all_goes_before_times_by_partition_and_these_before_offsets() -> None:
    options = {
        "startingtimestamp": "1000",
        "startingoffsetsbytimestamp": '{"orders":{"0":2000}}',
        "startingoffsets": "latest",
    }
    assert starting_bound(options, is_stream=False) == BoundAtTime(1000)
    del options["startingtimestamp"]
    assert starting_bound(options, is_stream=False) == BoundAtTimes({FIRST: 2000})
    del options["startingoffsetsbytimestamp"]
    assert starting_bound(options, is_stream=True) == AT_LATEST
    assert ending_bound({"endingtimestamp": "7"}, is_stream=False) == BoundAtTime(7)
    ends = {"endingoffsetsbytimestamp": '{"orders":{"1":9}}'}
    assert ending_bound(ends, is_stream=False) == BoundAtTimes({SECOND: 9})


def test_a_batch_that_would_read_nothing_is_refused() -> None:
    assert "cannot be latest" in refusal_of(startingoffsets="latest")
    assert "cannot be latest" in refusal_of(startingoffsets='{"orders":{"0":-1}}')
    assert "cannot be earliest" in refusal_of(endingoffsets="earliest")
    assert "cannot be earliest" in refusal_of(endingoffsets='{"orders":{"0":-2}}')


@pytest.mark.parametrize("option", ["endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"])
def test_a_stream_with_an_end_is_refused(option: str) -> None:
    value = '{"orders":{"0":5}}' if option == "endingoffsetsbytimestamp" else "5"
    value = "latest" if option == "endingoffsets" else value
    assert "a stream has no end" in refusal_of(is_stream=True, **{option: value})


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"orders":5}', '{"orders":{"x":1}}', '{"orders":{"0":"1"}}', "{1:2}"]
)
def test_offsets_of_another_form_are_refused_by_the_options_name(text: str) -> None:
    with pytest.raises(PipelineError, match=r"^startingOffsets .* is not of the form"):
        partition_values("startingOffsets", text)


def test_other_words_offsets_and_times_are_refused() -> None:
    assert "neither earliest nor latest" in refusal_of(startingoffsets="beginning")
    assert "offset -3 for orders-0" in refusal_of(startingoffsets='{"orders":{"0":-3}}')
    assert "startingTimestamp '2026-01-01' is no time" in refusal_of(startingtimestamp="2026-01-01")
    assert "endingOffsetsByTimestamp '-1'" in refusal_of(
        endingoffsetsbytimestamp='{"orders":{"0":-1}}'
    )
