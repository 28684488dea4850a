"""What a turn of a worker carries out, and what it leaves to replication: requests of routers, of
replication itself, and those that come back from the preparation thread."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from odradek.node.bus.messages import (
    Append,
    AppendBytes,
    Appended,
    DeleteRecords,
    ToRouter,
    WorkerRequest,
)
from odradek.storage.append import AppendResult
from odradek.storage.log_append import LogAppend
from odradek.storage.validation import BatchRejectedError


@dataclass(slots=True)
class RouterState:
    """A router's arena, and the replies for it, which are sent at the end of the turn."""

    arena: memoryview | None = None
    replies: list[ToRouter] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class ReplicaAppend:
    """Batches fetched from a leader, at [start, start + length) of a view that belongs to this
    request. The turn sets `result`."""

    request_id: ClassVar[int] = 0
    """Not a router's request: ReplicaFetchers reads the result."""
    store: int
    number: int
    view: memoryview
    start: int = field(kw_only=True)
    length: int = field(kw_only=True)
    result: AppendResult | None = None


@dataclass(slots=True, eq=False)
class PreparedAppend:
    """A client's append that comes back from the preparation thread."""

    store: int
    number: int
    request: Append | AppendBytes
    append: LogAppend
    rejection: BatchRejectedError | None = None
    work_ns: int = 0
    """Of the preparation."""

    @property
    def request_id(self) -> int:
        """Of the router's request."""
        return self.request.request_id


Request: TypeAlias = WorkerRequest[Any] | ReplicaAppend | PreparedAppend


class DelayedProduce(NamedTuple):
    """The answer to an append with acks=all: it waits until the in-sync replicas have everything
    below `end_offset`, for `timeout_ms` at most."""

    store: int
    number: int
    end_offset: int
    timeout_ms: int
    reply: Appended
    router: RouterState


class DelayedDeleteRecords(NamedTuple):
    """The answer to DeleteRecords: it waits until the logs of the other replicas start at or above
    `offset`, for `request.timeout_ms` at most."""

    request: DeleteRecords
    offset: int
    router: RouterState
    work_ns: int = 0
    """Of the deletion, if it was measured."""
