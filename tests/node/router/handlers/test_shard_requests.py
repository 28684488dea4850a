"""The response to a shard's error."""

import pytest

from odradek.node.bus.reply import Reply, drive
from odradek.node.router.handlers.shard_requests import answer_of
from odradek.protocol.errors import ApiError, ErrorCode


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_record_that_is_too_large_is_not_retriable(code: ErrorCode, expected: ErrorCode) -> None:
    reply: Reply[None] = Reply()
    errors: list[BaseException | None] = []
    drive(answer_of(reply), lambda _answer, error: errors.append(error))
    assert errors == []
    reply.fail(ApiError(code))
    [error] = errors
    assert isinstance(error, ApiError)
    assert error.code is expected
