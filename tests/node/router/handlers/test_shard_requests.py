"""What handlers make of a shard's error."""

import pytest

from odradek.node.bus.reply import Reply, drive
from odradek.node.router.handlers.shard_requests import answer_or_refuse
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.groups import HeartbeatResponse


def _refuse(error: ApiError) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error.code)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_error_becomes_a_response_of_the_api(code: ErrorCode, expected: ErrorCode) -> None:
    reply: Reply[HeartbeatResponse] = Reply()
    answers: list[HeartbeatResponse | None] = []
    drive(
        answer_or_refuse(reply, _refuse, too_large=ErrorCode.UNKNOWN_SERVER_ERROR),
        lambda answer, _error: answers.append(answer),
    )
    assert answers == []
    reply.fail(ApiError(code))
    assert answers == [HeartbeatResponse(error_code=expected)]
