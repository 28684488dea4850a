"""The bytes of private messages. No other codec has them."""

from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.messages.diagnostics import (
    DescribeLagRequest,
    DescribeLagRequestPartition,
    DescribeLagRequestTopic,
    ExplainedEvent,
    ExplainedGroup,
    ExplainGroupRequest,
    ExplainGroupResponse,
    ExplainTopicRequest,
    ExplainTopicRequestTopic,
)
from tests.support.message_samples import decode, encode

LAG = APIS[ApiKey.DESCRIBE_LAG]
GROUP = APIS[ApiKey.EXPLAIN_GROUP]
TOPIC = APIS[ApiKey.EXPLAIN_TOPIC]


def test_a_question_for_lag_has_these_bytes() -> None:
    partition = DescribeLagRequestPartition(partition_index=2, committed_offset=7)
    request = DescribeLagRequest(topics=[DescribeLagRequestTopic(name="t", partitions=[partition])])
    position = (2).to_bytes(4, "big") + (7).to_bytes(8, "big") + b"\0"
    body = b"\x02\x02t\x02" + position + b"\0" + b"\0"
    assert encode(LAG, "Request", 0, request) == body
    assert decode(LAG, "Request", 0, body) == request


def test_questions_for_all_groups_and_all_partitions_have_these_bytes() -> None:
    assert encode(GROUP, "Request", 1, ExplainGroupRequest()) == b"\0\0\0\0"
    request = ExplainTopicRequest(topics=[ExplainTopicRequestTopic(name="t")])
    assert encode(TOPIC, "Request", 0, request) == b"\x02\x02t\0\0\0"


def test_events_of_a_group_come_back_as_they_were() -> None:
    event = ExplainedEvent(at=5, kind=3, member_id="m", reason="scaling in")
    group = ExplainedGroup(group_id="g", group_type="classic", events=[event])
    response = ExplainGroupResponse(now=9, groups=[group])
    assert decode(GROUP, "Response", 1, encode(GROUP, "Response", 1, response)) == response
