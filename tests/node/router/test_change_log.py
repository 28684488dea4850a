"""Administrative changes are in the log, with who asked for them."""

import asyncio
import logging

import pytest

from odradek.node.router.change_log import LOGGED, WORDS_MAX, logged
from odradek.node.router.context import RequestContext
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.support.log_lines import log_lines

WHO = "principal=User:admin client_id=tool client_address=10.0.0.7 client_port=5555 listener=A"
SAID = f"an administrative request api=CreateTopics {WHO}"


def context() -> RequestContext:
    return RequestContext(
        api_key=ApiKey.CREATE_TOPICS,
        api_version=7,
        correlation_id=1,
        client_id="tool",
        client_host="10.0.0.7",
        client_port=5555,
        local_host="",
        local_port=0,
        listener_name="A",
        principal="User:admin",
    )


def line_of(
    caplog: pytest.LogCaptureFixture,
    request: object,
    answer: CreateTopicsResponse | ApiError,
) -> list[str]:
    async def respond() -> CreateTopicsResponse:
        if isinstance(answer, ApiError):
            raise answer
        return answer

    caplog.clear()
    with caplog.at_level(logging.INFO, "odradek.node.router.change_log"):
        if isinstance(answer, ApiError):
            with pytest.raises(ApiError):
                asyncio.run(logged(respond(), request, context()))
        else:
            assert asyncio.run(logged(respond(), request, context())) is answer
    return log_lines(caplog)


def created(*names: str, is_dry_run: bool = False) -> CreateTopicsRequest:
    topics = [CreatableTopic(name=name, num_partitions=3, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=topics, validate_only=is_dry_run)


def results(*codes: int) -> CreateTopicsResponse:
    topics = [CreatableTopicResult(name="t", error_code=code) for code in codes]
    return CreateTopicsResponse(topics=topics)


def test_a_line_says_what_who_and_from_where(caplog: pytest.LogCaptureFixture) -> None:
    [line] = line_of(caplog, created("orders"), results(0))
    assert line.startswith(f"{SAID} names='orders, 3, 1")


def test_errors_are_named(caplog: pytest.LogCaptureFixture) -> None:
    [line] = line_of(caplog, created("a", "b"), results(0, ErrorCode.TOPIC_ALREADY_EXISTS))
    assert line.startswith(f"{SAID} errors=TOPIC_ALREADY_EXISTS names='a, 3, 1")
    [line] = line_of(caplog, created("a"), ApiError(ErrorCode.NOT_CONTROLLER))
    assert "errors=NOT_CONTROLLER" in line


def test_what_changes_nothing_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert not line_of(caplog, created("a", is_dry_run=True), results(0))
    denied = ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert not line_of(caplog, created("a"), denied)
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not line_of(caplog, created("a", "b"), results(code, code))
    assert ApiKey.PRODUCE not in LOGGED
    assert ApiKey.METADATA not in LOGGED


def test_what_is_denied_in_part_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    [line] = line_of(caplog, created("a", "b"), results(0, code))
    assert "errors=TOPIC_AUTHORIZATION_FAILED names='a, 3, 1, b" in line


def test_a_line_has_a_limited_length(caplog: pytest.LogCaptureFixture) -> None:
    names = [f"{index}{'x' * 10_000}" for index in range(1_000)]
    [line] = line_of(caplog, created(*names), results(0))
    assert len(line) < 200 + 110 * WORDS_MAX
    assert line.endswith(", ...'")
    [line] = line_of(caplog, b"a large request, not decoded", results(0))
    assert line == SAID
