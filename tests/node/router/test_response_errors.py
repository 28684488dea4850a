"""Error codes are found wherever a response has them."""

import pytest

from odradek.node.router.response_errors import ResponseErrors, error_name
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from odradek.protocol.messages.groups import HeartbeatResponse
from odradek.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_errors_of_partitions_are_counted() -> None:
    errors = ResponseErrors()
    codes = (0, LEADER, LEADER, ErrorCode.CORRUPT_MESSAGE)
    partitions = [PartitionProduceResponse(index=0, error_code=code) for code in codes]
    topic = TopicProduceResponse(name="t", partition_responses=partitions)
    for _ in range(2):
        errors.count(ApiKey.PRODUCE, ProduceResponse(responses=[topic]))
    assert errors.counts == {
        (ApiKey.PRODUCE, LEADER): 4,
        (ApiKey.PRODUCE, ErrorCode.CORRUPT_MESSAGE): 2,
    }


def test_errors_of_the_whole_and_of_its_parts_are_counted() -> None:
    errors = ResponseErrors()
    topic = FetchableTopicResponse(topic="t", partitions=[PartitionData(error_code=LEADER)])
    errors.count(ApiKey.FETCH, FetchResponse(error_code=71, responses=[topic]))
    errors.count_whole(ApiKey.FETCH, FetchResponse(error_code=71, responses=[topic]))
    assert errors.counts == {(ApiKey.FETCH, 71): 2, (ApiKey.FETCH, LEADER): 1}
    errors.count(ApiKey.HEARTBEAT, HeartbeatResponse(error_code=25))
    assert errors.counts[ApiKey.HEARTBEAT, 25] == 1


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_a_response_without_errors_counts_none(api: object) -> None:
    errors = ResponseErrors()
    found = APIS[api.key]  # type: ignore[attr-defined]  # an Api
    errors.count(found.key, found.response())
    assert not errors.counts


def test_codes_that_have_no_name_are_numbers() -> None:
    assert (error_name(3), error_name(999)) == ("UNKNOWN_TOPIC_OR_PARTITION", "999")
