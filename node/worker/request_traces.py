"""The worker's part of traced requests: when it got each, and what it did for it.

    worker_queue      read from the ring, until its turn carries it out
    preparation       in the preparation thread, if its records take long to check
    append            checked, and written into the turn's transaction
    commit            the turn's commit, with what durability asks for before the answer
    follower          until this in-sync replica has it, for each of them
    replication_wait  until the high watermark has passed it

A router says which requests are traced, in a message before each. One object is shared by the links
to the routers, the turns of both threads and replication; while nothing is traced `open` is empty,
which is all that others look at. Invariant: at most OPEN_COUNT_MAX requests are open.
"""

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import Any, Final

from odradek.node.bus.messages import RequestTraced, ToRouter, TracedSpan, TraceRequest

OPEN_COUNT_MAX: Final = 1_024
"""Later requests are not traced in the worker."""

TraceKey = tuple[int, int]
"""Identity of the router's state, and request id."""
Location = tuple[int, int]


class WorkerTrace:
    """One request. Times are 0 until then."""

    __slots__ = (
        "appended_ns",
        "attributes",
        "committed_ns",
        "end_offset",
        "followers",
        "location",
        "prepared_ns",
        "read_ns",
        "spans",
        "started_ns",
        "waiting_ns",
    )

    def __init__(self, read_ns: int) -> None:
        self.read_ns = read_ns
        self.location: Location = (-1, -1)
        self.attributes: tuple[tuple[str, str], ...] = ()
        self.prepared_ns = self.started_ns = self.appended_ns = 0
        self.committed_ns = self.waiting_ns = 0
        self.end_offset = 0
        self.followers: dict[int, int] = {}
        """The followers that are waited for, and when each had the batch."""
        self.spans: list[TracedSpan] = []

    def add(self, name: str, start_ns: int, end_ns: int, *attributes: tuple[str, str]) -> None:
        self.spans.append(TracedSpan(name, start_ns, end_ns, attributes))


class WorkerTraces:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.open: dict[TraceKey, WorkerTrace] = {}

    def begin(self, router: object, message: TraceRequest) -> None:
        """A router announces a request that it wants traced."""
        if len(self.open) >= OPEN_COUNT_MAX:
            # Its request may never have come: the router has restarted meanwhile.
            self.open.pop(next(iter(self.open)))
        self.open[id(router), message.request_id] = WorkerTrace(perf_counter_ns())

    def wait_for_followers(
        self,
        router: object,
        request_id: int,
        location: Location,
        end_offset: int,
        ids: Iterable[int],
    ) -> None:
        """Its answer waits until these followers have everything below `end_offset`."""
        trace = self.open.get((id(router), request_id))
        if trace is not None:
            trace.waiting_ns = perf_counter_ns()
            trace.location, trace.end_offset = location, end_offset
            trace.followers = dict.fromkeys(ids, 0)

    def note_followers(self, location: Location, end_of: Callable[[int], int]) -> None:
        """Followers of a partition have progressed: up to `end_of(broker id)`."""
        now_ns = perf_counter_ns()
        for trace in self.open.values():
            if trace.location == location and trace.waiting_ns:
                for follower, had_ns in trace.followers.items():
                    if not had_ns and end_of(follower) >= trace.end_offset:
                        trace.followers[follower] = now_ns

    def with_spans(self, router: object, replies: Sequence[ToRouter]) -> list[ToRouter]:
        """The replies, each of a traced request after what was done for it."""
        out: list[ToRouter] = []
        for reply in replies:
            request_id: int | None = getattr(reply, "request_id", None)
            trace = None if request_id is None else self.open.pop((id(router), request_id), None)
            if trace is not None and request_id is not None:
                out.append(RequestTraced(request_id, _spans_of(trace, perf_counter_ns())))
            out.append(reply)
        return out


class TurnTraces:
    """What one thread of a turn notes of the traced requests. Only called while some are open."""

    __slots__ = ("_current", "_open", "_partition_name")

    def __init__(
        self, traces: WorkerTraces, partition_name: Callable[[int, int], tuple[str, int] | None]
    ) -> None:
        self._open = traces.open
        self._partition_name = partition_name
        self._current: WorkerTrace | None = None

    def next(self, router: object, request: Any) -> None:  # noqa: ANN401 - any request of a turn
        """The turn begins to carry out a request; it is done with the one before."""
        self.end()
        trace = self._open.get((id(router), request.request_id))
        if trace is None:
            return
        self._current = trace
        now_ns = perf_counter_ns()
        if trace.started_ns and not trace.committed_ns:
            trace.prepared_ns = now_ns  # it comes back from the preparation thread
        else:
            trace.started_ns = now_ns
        trace.appended_ns = 0
        trace.location = request.store, request.number
        name = self._partition_name(request.store, request.number)
        if name is not None:
            trace.attributes = (("topic", name[0]), ("partition", str(name[1])))

    def end(self) -> None:
        """The turn has carried out the request."""
        trace, self._current = self._current, None
        if trace is not None and not trace.appended_ns:
            trace.appended_ns = perf_counter_ns()

    def committed(self, keys: Iterable[TraceKey], began_ns: int, *, is_synced: bool) -> None:
        """A transaction with the appends of these requests has been committed, since `began_ns`."""
        now_ns = perf_counter_ns()
        for key in keys:
            trace = self._open.get(key)
            if trace is None:
                continue
            if not trace.appended_ns:
                trace.appended_ns = began_ns
            trace.committed_ns = now_ns
            trace.add("commit", began_ns, now_ns, ("synced", "yes" if is_synced else "no"))


def _spans_of(trace: WorkerTrace, now_ns: int) -> tuple[TracedSpan, ...]:
    """The stages in their order, up to now, when the reply leaves."""
    started_ns = trace.started_ns or now_ns
    spans = [TracedSpan("worker_queue", trace.read_ns, started_ns)]
    if trace.prepared_ns:
        spans.append(TracedSpan("preparation", started_ns, trace.prepared_ns))
        started_ns = trace.prepared_ns
    if trace.started_ns:
        end_ns = trace.appended_ns or now_ns
        spans.append(TracedSpan("append", started_ns, end_ns, trace.attributes))
    spans += trace.spans
    if trace.waiting_ns:
        names = ",".join(map(str, sorted(trace.followers)))
        late = ",".join(str(each) for each, had in sorted(trace.followers.items()) if not had)
        attributes = (("followers", names), *((("missing", late),) if late else ()))
        for follower, had_ns in sorted(trace.followers.items()):
            if had_ns:
                spans.append(
                    TracedSpan("follower", trace.waiting_ns, had_ns, (("broker", str(follower)),))
                )
        spans.append(TracedSpan("replication_wait", trace.waiting_ns, now_ns, attributes))
    return tuple(spans)
