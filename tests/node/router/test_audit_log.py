"""The audit log: what a line says and does not say, and the file."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from odradek.node.router import audit_log
from odradek.node.router.audit_log import AuditLog, outcomes
from odradek.node.router.context import RequestContext
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from odradek.protocol.messages.group_offsets import OffsetDeleteResponse
from odradek.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from odradek.protocol.messages.partitions import PartitionResult, TopicPartitionResults
from odradek.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from odradek.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse

TOPICS = 300


def context_of(key: ApiKey, *, was_denied: bool = False) -> RequestContext:
    return RequestContext(
        api_key=key,
        api_version=APIS[key].max_version,
        correlation_id=1,
        client_id="tool",
        client_host="10.0.0.1",
        client_port=50_000,
        local_host="127.0.0.1",
        local_port=9092,
        listener_name="CLIENTS",
        principal="User:bob",
        was_denied=was_denied,
    )


def record(
    log: AuditLog,
    key: ApiKey,
    request: object,
    response: object | ApiError,
    *,
    was_denied: bool = False,
) -> None:
    async def respond() -> object:
        if isinstance(response, ApiError):
            raise response
        return response

    async def run() -> None:
        answer = await log.recorded(respond(), request, context_of(key, was_denied=was_denied))
        assert answer is response

    if isinstance(response, ApiError):
        with pytest.raises(ApiError):
            asyncio.run(run())
    else:
        asyncio.run(run())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_change_is_recorded_with_who_from_where_and_what_came_of_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    request = DeleteTopicsRequest(topic_names=["orders"])
    record(log, ApiKey.DELETE_TOPICS, request, DeleteTopicsResponse())
    record(log, ApiKey.DELETE_TOPICS, request, ApiError(ErrorCode.REQUEST_TIMED_OUT))
    record(log, ApiKey.DELETE_TOPICS, request, ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    log.close()
    allowed, failed, denied = lines(path)
    assert allowed.pop("time").endswith("+00:00")
    assert allowed == {
        "principal": "User:bob",
        "host": "10.0.0.1",
        "client_id": "tool",
        "listener": "CLIENTS",
        "api": "DeleteTopics",
        "version": 6,
        "result": "allowed",
        "errors": [],
        "request": {"topics": [], "topic_names": ["orders"]},
    }
    assert (failed["result"], failed["errors"]) == ("failed", ["REQUEST_TIMED_OUT"])
    assert (denied["result"], denied["errors"]) == ("denied", ["CLUSTER_AUTHORIZATION_FAILED"])
    assert path.stat().st_mode & 0o007 == 0


def test_values_and_credentials_are_never_recorded(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    config = IncrementalAlterableConfig(name="ssl.key.password", value="geheim")
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(resource_type=4, resource_name="1", configs=[config])
        ]
    )
    result = AlterConfigsResourceResponse(error_code=ErrorCode.INVALID_CONFIG)
    response = IncrementalAlterConfigsResponse(responses=[result])
    record(log, ApiKey.INCREMENTAL_ALTER_CONFIGS, request, response)
    upsertion = ScramCredentialUpsertion(name="u", salt=b"geheim", salted_password=b"geheim" * 6)
    users = AlterUserScramCredentialsRequest(upsertions=[upsertion])
    answer = AlterUserScramCredentialsResponse()
    record(log, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, users, answer)
    log.close()
    text = path.read_text()
    assert "geheim" not in text
    assert b"geheim".hex() not in text
    assert "ssl.key.password" in text
    assert [line["result"] for line in lines(path)] == ["failed", "allowed"]


def test_other_requests_are_recorded_only_if_they_are_denied(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    request = HeartbeatRequest(group_id="g")
    denied = HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    record(log, ApiKey.HEARTBEAT, request, HeartbeatResponse())
    # A list that leaves out what may not be seen denies nothing.
    record(log, ApiKey.HEARTBEAT, request, HeartbeatResponse(), was_denied=True)
    record(log, ApiKey.HEARTBEAT, request, ApiError(ErrorCode.NOT_COORDINATOR))
    record(log, ApiKey.HEARTBEAT, request, denied, was_denied=True)
    log.close()
    [line] = lines(path)
    assert (line["api"], line["request"]) == ("Heartbeat", {"group_id": "g"})


def test_a_file_that_was_moved_away_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text("{}\n")
    log = AuditLog(path)
    path.rename(tmp_path / "audit.log.1")
    record(log, ApiKey.DELETE_TOPICS, DeleteTopicsRequest(), DeleteTopicsResponse())
    log.close()
    assert len(lines(path)) == 1
    assert lines(tmp_path / "audit.log.1") == [{}]


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    names = [f"topic-{number}" for number in range(TOPICS)]
    request = DeleteTopicsRequest(topic_names=names)
    record(log, ApiKey.DELETE_TOPICS, request, DeleteTopicsResponse())
    log.close()
    [line] = lines(tmp_path / "audit.log")
    assert line["request"]["topic_names"] == [*names[: audit_log.LISTED_MAX], "..."]


def test_a_file_that_cannot_be_written_delays_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(tmp_path / "absent" / "audit.log")
    for _ in range(3):
        record(log, ApiKey.DELETE_TOPICS, DeleteTopicsRequest(), DeleteTopicsResponse())
    log.close()
    assert log.lost_count == 3
    assert len([each for each in caplog.records if "cannot be written" in each.message]) == 1


def test_outcomes_are_those_of_the_parts_and_of_the_whole_if_that_failed() -> None:
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def deleted(*codes: int, whole: int = 0) -> OffsetDeleteResponse:
        partitions = [PartitionResult(error_code=code) for code in codes]
        topics = [TopicPartitionResults(partitions=partitions)] if codes else []
        return OffsetDeleteResponse(error_code=whole, topics=topics)

    assert outcomes(deleted()) == {0}
    assert outcomes(deleted(denied)) == {denied}
    assert outcomes(deleted(denied, 0)) == {denied, 0}
    assert outcomes(deleted(0, whole=16)) == {16, 0}


def test_of_very_many_outcomes_the_first_ones_are_looked_at() -> None:
    partitions = [PartitionResult(error_code=0)] * 500_000
    response = OffsetDeleteResponse(topics=[TopicPartitionResults(partitions=partitions)])
    began = time.thread_time()
    assert outcomes(response) == {0}
    assert time.thread_time() - began < 0.02
