"""The audit log: who asked for which administrative change, from where, and what came of it.

One JSON object a line, for every request that changes the cluster, and for every other request that
was denied. It says what was named, never a value: configs and credentials may be secrets. A thread
writes the lines, so the router's loop waits for no disk; what does not fit into its queue is lost
and counted. All routers of a node append to one file. Whoever rotates it moves it away: the next
line begins a new one.
"""

import json
import os
import threading
from collections.abc import Awaitable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from queue import Full, Queue
from typing import Any, Final, Protocol

from odradek.node.structured_log import get_logger
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.schema import fields_of, is_struct

log = get_logger(__name__)

_CODE: Final = "error_code"

QUEUED_LINES_MAX: Final = 10_000
LISTED_MAX: Final = 100
"""Elements of a list that a line names; `...` stands for the others."""
TEXT_LENGTH_MAX: Final = 500
FILE_MODE: Final = 0o640

AUDITED: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DELETE_RECORDS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DELETE_GROUPS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.OFFSET_DELETE,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ApiKey.UNREGISTER_CONTROLLER,
        ApiKey.REWIND_GROUP,
        ApiKey.ALTER_SNAPSHOT,
    }
)
"""The requests that change the cluster and are no client's daily work."""

DENIALS: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
NAMED: Final = frozenset(
    {
        *("name", "topic", "topic_name", "topic_names", "topics", "topic_id", "topic_data"),
        *("resources", "resource_type", "resource_name", "resource_pattern_type", "creations"),
        *("filters", "resource_type_filter", "resource_name_filter", "pattern_type_filter"),
        *("principal_filter", "host_filter", "principal", "host", "operation", "permission_type"),
        *("group_id", "group_ids", "groups", "groups_names", "transactional_id", "configs"),
        *("config_operation", "deletions", "upsertions", "mechanism", "iterations", "entries"),
        *("entity", "entity_type", "entity_name", "ops", "key", "remove", "feature_updates"),
        *("feature", "max_version_level", "upgrade_type", "broker_id", "voter_id", "partitions"),
        *("partition_index", "replicas", "offset", "count", "num_partitions", "election_type"),
        *("replication_factor", "validate_only", "topic_partitions", "dirs", "path", "rewind_id"),
        *("target", "snapshot", "is_deletion", "markers", "producer_id", "owner_principal_name"),
    }
)
"""The fields of requests that a line shows: what is named, and how it shall be; no values."""


class AuditableRequestContext(Protocol):
    """What a line says of a request beside the request itself. RequestContext has it."""

    api_key: int
    api_version: int
    client_id: str | None
    client_host: str
    listener_name: str
    principal: str
    was_denied: bool


class AuditLog:
    """Appends to the file at `path`. `close` writes what is left."""

    def __init__(self, path: Path) -> None:
        self.lost_count = 0
        self._path = path
        self._queue: Queue[str | None] = Queue(QUEUED_LINES_MAX)
        self._file: int | None = None
        self._has_failed = False
        self._thread = threading.Thread(target=self._write_lines, name="audit-log", daemon=True)
        self._thread.start()

    async def recorded(
        self, response: Awaitable[Any], request: object, context: AuditableRequestContext
    ) -> Any:  # noqa: ANN401 - the API's response class
        """The response, which is recorded if it is one that the log is for."""
        try:
            answer = await response
        except ApiError as error:
            self._record(frozenset({error.code}), request, context)
            raise
        if context.api_key in AUDITED or context.was_denied:
            self._record(outcomes(answer), request, context)
        return answer

    def _record(
        self, codes: frozenset[int], request: object, context: AuditableRequestContext
    ) -> None:
        is_denied = not DENIALS.isdisjoint(codes)
        if not is_denied and context.api_key not in AUDITED:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "principal": context.principal,
            "host": context.client_host,
            "client_id": context.client_id,
            "listener": context.listener_name,
            "api": APIS[context.api_key].name,
            "version": context.api_version,
            "result": "denied" if is_denied else "failed" if any(codes) else "allowed",
            "errors": sorted(ErrorCode(code).name for code in codes if code),
            "request": _summary(request),
        }
        try:
            self._queue.put_nowait(json.dumps(line, ensure_ascii=False) + "\n")
        except Full:
            self.lost_count += 1

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what was recorded, as far as that takes no longer than this."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except Full:
            return
        self._thread.join(timeout_s)

    def _write_lines(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                file = self._open_file()
                os.write(file, line.encode())
            except OSError as error:
                self.lost_count += 1
                if not self._has_failed:
                    log.error(
                        "the audit log cannot be written", path=str(self._path), reason=str(error)
                    )
                self._has_failed = True
            else:
                self._has_failed = False
        if self._file is not None:
            os.close(self._file)

    def _open_file(self) -> int:
        """The file at the path: the one that is open, unless it was moved away."""
        if self._file is not None:
            try:
                if os.path.samestat(os.fstat(self._file), os.stat(self._path)):
                    return self._file
            except FileNotFoundError:
                pass
            os.close(self._file)
            self._file = None
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(self._path, flags, FILE_MODE)
        return self._file


def outcomes(response: object) -> frozenset[int]:
    """The error codes in a response and its parts, 0 for a part that is done: of the first
    `10 * LISTED_MAX` of them, for a response may have very many."""
    return frozenset(islice(_error_codes(response), 10 * LISTED_MAX))


def _error_codes(message: object) -> Iterator[int]:
    """That of the whole first, unless it only says that the parts have theirs."""
    own = getattr(message, _CODE, None)
    if own:
        yield own
    has_parts = False
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if isinstance(value, list):
            for each in value:
                for code in _error_codes(each) if is_struct(type(each)) else ():
                    has_parts = True
                    yield code
    if own == 0 and not has_parts:
        yield own


def _summary(value: object) -> Any:  # noqa: ANN401 - what JSON can hold
    if isinstance(value, list | tuple):
        shown = [_summary(each) for each in value[:LISTED_MAX]]
        return [*shown, "..."] if len(value) > LISTED_MAX else shown
    if isinstance(value, str):
        return value[:TEXT_LENGTH_MAX]
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | memoryview):
        # Ids of topics. Large requests are bytes too: what they name is not looked for.
        return bytes(value).hex() if len(value) == 16 else None
    return {
        field.name: _summary(getattr(value, field.name))
        for field in fields_of(type(value))
        if field.name in NAMED
    }
