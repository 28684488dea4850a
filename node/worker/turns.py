"""One turn of a worker: it carries out all requests that have arrived, commits once per store, and
then answers.

Appends to all partitions of a store share a transaction. A turn with more than COMMIT_BYTES_MAX is
committed in between. Nothing is answered before its commit. If a commit fails (disk full), all its
appends are answered with KAFKA_STORAGE_ERROR, and the store has the state before the turn.

A turn with many bytes for several stores runs in two threads: most of the time is spent copying
into the page cache, for which LMDB releases the interpreter lock. During the turn each store
belongs to one thread. The turn ends when both threads are done.

A client's batch whose records take long to check leaves the turn (append_preparation.py).

While a client has a quota of time, each request is measured: what is done for it alone, and an
append's part of the commit by its bytes."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import TypeAlias

import msgspec

from odradek.cluster.replication.partition import ANY_EPOCH
from odradek.node.bus.messages import (
    Append,
    AppendBytes,
    Appended,
    DeleteRecords,
    DescribeProducers,
    MoveReplica,
    PartitionsAdvanced,
    ProducersDescribed,
    RecordsDeleted,
    RequestFailed,
    SetArchivedOffsets,
    ToRouter,
    WriteMarker,
)
from odradek.node.worker.append_preparation import AppendPreparation, TurnCost
from odradek.node.worker.archived_offsets import set_archived_offsets
from odradek.node.worker.hosted_partitions import HostedPartitions, PartitionLocation
from odradek.node.worker.moved_requests import relocate
from odradek.node.worker.offload_thread import OffloadThread, offloaded_share
from odradek.node.worker.request_traces import TurnTraces, WorkerTraces
from odradek.node.worker.turn_requests import (
    DelayedDeleteRecords,
    DelayedProduce,
    PreparedAppend,
    ReplicaAppend,
    Request,
    RouterState,
)
from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import producer_of
from odradek.protocol.types import NO_OFFSET
from odradek.storage.append import AppendResult, Turn
from odradek.storage.environment import StorageError
from odradek.storage.log_append import LogAppend
from odradek.storage.store import Store
from odradek.storage.validation import AppendOrigin, BatchRejectedError

COMMIT_BYTES_MAX = 2 << 20
"""The dirty pages of larger commits do not fit into the CPU caches."""

EPOCH_BUMPS_SINCE = 2
"""The transaction version from which each transaction has a producer epoch of its own (KIP-890)."""


_CLIENT = AppendOrigin.CLIENT

_Uncommitted: TypeAlias = tuple[
    RouterState, Append | AppendBytes | WriteMarker, AppendResult, int, int
]
"""An append whose answer waits for the commit, its bytes, and its time so far, in nanoseconds."""


class _OpenTurn(msgspec.Struct, eq=False):
    """A store's turn, and the requests whose answers wait for its commit."""

    turn: Turn
    byte_count: int = 0
    waiting: list[_Uncommitted] = []
    delayed: list[_Uncommitted] = []
    """Appends whose answers wait for followers."""
    fetched: list[ReplicaAppend] = []
    replicated: set[int] = set()
    """Numbers of the replicated partitions in the turn."""
    not_plain: AppendBytes | None = None
    """A request that `append_plain` has been tried with already."""


def _stores_to_offload(requests: Iterable[tuple[RouterState, Request]]) -> set[int]:
    """The stores for the offload thread: about half of the bytes, or none."""
    sizes: dict[int, int] = {}
    for _, request in requests:
        if type(request) is Append or type(request) is ReplicaAppend:
            sizes[request.store] = sizes.get(request.store, 0) + request.length
    return offloaded_share(sizes)


def _appended(request_id: int, result: AppendResult, work_ns: int = 0) -> Appended:
    return Appended(
        request_id,
        result.error_code,
        result.base_offset,
        result.log_append_time_ms,
        result.log_start_offset,
        result.record_errors,
        result.error_message,
        work_ns,
    )


def _work_ns(began_ns: int, prepared: PreparedAppend | None) -> int:
    """Since then, and what the preparation thread did; 0 if it is not measured."""
    before_ns = 0 if prepared is None else prepared.work_ns
    return perf_counter_ns() - began_ns + before_ns if began_ns else 0


class TurnExecutor:
    """Carries out requests. `broadcast(message)` sends a message to all routers.

    `pin_offload_thread` is called once in the offload thread, to choose its processors. Without it
    there is no offload thread. The lists and sets collect what turns leave to replication, which
    empties them.
    """

    def __init__(
        self,
        partitions: HostedPartitions,
        broadcast: Callable[[ToRouter], None],
        pin_offload_thread: Callable[[], None] | None = None,
        *,
        part_of: "TurnExecutor | None" = None,
    ) -> None:
        self._partitions = partitions
        self._broadcast = broadcast
        self._open: dict[int, _OpenTurn] = {}
        self.preparation: AppendPreparation = (
            AppendPreparation(pin_offload_thread) if part_of is None else part_of.preparation
        )
        """Shared with the offload thread."""
        self._waiting = self.preparation.waiting
        self._cost = TurnCost()
        self._is_measuring = False
        self.traces: WorkerTraces = WorkerTraces() if part_of is None else part_of.traces
        """Of the requests that a router wants traced. Shared with the offload thread."""
        self._turn_traces = TurnTraces(self.traces, partitions.partition_name)
        self.awaited: set[PartitionLocation] = set() if part_of is None else part_of.awaited
        """The partitions that consumers follow whom this worker serves itself."""
        self.advanced: list[PartitionLocation] = [] if part_of is None else part_of.advanced
        """Those of them that have advanced. Whoever adds to `awaited` empties it."""
        self._offload: tuple[OffloadThread, TurnExecutor] | None = None
        """The thread, and what it executes its part of a turn with."""
        if pin_offload_thread is not None:
            executor = TurnExecutor(partitions, broadcast, part_of=self)
            self._offload = OffloadThread(pin_offload_thread), executor
        self.delayed_produces: list[DelayedProduce] = []
        self.delayed_deletes: list[DelayedDeleteRecords] = []
        self.requested_moves: list[tuple[RouterState, MoveReplica]] = []
        """To be answered after the turn."""
        self.grown: set[PartitionLocation] = set()
        """The replicated partitions that were appended to."""
        self.failed_partitions: set[PartitionLocation] = set()
        """The replicated partitions with failed commits."""
        self.failed_stores: dict[int, str] = {}
        """The stores that could not be written, with the last reason."""
        self.appended_bytes = 0
        """Bytes of batches committed."""
        self.appended_count = 0
        """Appends committed."""
        self.failed_count = 0
        """Appends and deletions of records that failed with a storage error."""

    def measure(self, *, is_on: bool) -> None:
        """Whether to measure the time of each append."""
        self._is_measuring = self._cost.is_measured = is_on
        if self._offload is not None:
            self._offload[1].measure(is_on=is_on)

    def run(self, requests: Sequence[tuple[RouterState, Request]], now_ms: int) -> None:
        """Carry out the requests, commit, and add the replies to their routers."""
        if len(requests) == 1 and self._run_alone(*requests[0], now_ms):
            return
        offload, moved = self._offload, self._partitions.moved
        has_relocated = bool(moved) and relocate(requests, moved)
        if offload is None or len(requests) == 1 or has_relocated:
            self._run(requests, now_ms)
            return
        offloaded_stores = _stores_to_offload(requests)
        if not offloaded_stores:
            self._run(requests, now_ms)
            return
        offloaded = [each for each in requests if each[1].store in offloaded_stores]
        others = [each for each in requests if each[1].store not in offloaded_stores]
        thread, executor = offload
        thread.start(partial(executor._run, offloaded, now_ms))
        try:
            self._run(others, now_ms)
        finally:
            thread.wait()
            self._take_over(executor)

    def _take_over(self, part: "TurnExecutor") -> None:
        """Add what a part of the turn has left, and empty it."""
        self.delayed_produces += part.delayed_produces
        self.delayed_deletes += part.delayed_deletes
        self.requested_moves += part.requested_moves
        self.grown |= part.grown
        self.failed_partitions |= part.failed_partitions
        self.failed_stores |= part.failed_stores
        for collected in (
            part.delayed_produces,
            part.delayed_deletes,
            part.requested_moves,
            part.grown,
            part.failed_partitions,
            part.failed_stores,
        ):
            collected.clear()
        self.appended_bytes += part.appended_bytes
        self.appended_count += part.appended_count
        self.failed_count += part.failed_count
        part.appended_bytes = part.appended_count = part.failed_count = 0

    def _run(self, requests: Iterable[tuple[RouterState, Request]], now_ms: int) -> None:
        """Carry out the requests in order, then commit each store."""
        self._cost.now_ms, self._cost.cost_ns = now_ms, 0
        waiting, traced = self._waiting, self.traces.open
        for router, request in requests:
            store = self._partitions.stores.get(request.store)
            if waiting and self.preparation.must_wait(router, request):
                continue
            if traced:
                self._turn_traces.next(router, request)
            if store is None:
                code = self._partitions.missing_store_error(request.store)
                router.replies.append(RequestFailed(request.request_id, code))
            elif type(request) is Append:
                self._append_from_arena(router, store, request)
            elif type(request) is AppendBytes:
                self._append_bytes(router, store, request)
            elif type(request) is PreparedAppend:
                self._append(router, store, request.request, request.append, request)
            elif type(request) is ReplicaAppend:
                self._append_fetched(store, request)
            elif type(request) is DeleteRecords:
                self._delete_records(router, store, request)
            elif type(request) is DescribeProducers:
                self._describe_producers(router, store, request)
            elif type(request) is WriteMarker:
                self._write_marker(router, store, request)
            elif type(request) is MoveReplica:
                self.requested_moves.append((router, request))
            elif type(request) is SetArchivedOffsets:
                router.replies.append(set_archived_offsets(self._partitions, request))
        if traced:
            self._turn_traces.end()
        for index in list(self._open):
            self._commit(index)

    def _run_alone(self, router: RouterState, request: Request, now_ms: int) -> bool:
        """A turn of one batch that is neither replicated nor measured, without what other turns
        need. False if it is not like that: then the ordinary way goes on where this one stopped."""
        partitions = self._partitions
        if (
            type(request) is not AppendBytes
            or not request.is_client
            or request.must_continue_transaction
            or self._waiting
            or self._is_measuring
            or self.traces.open
            or partitions.moved
        ):
            return False
        index, number = request.store, request.number
        store, admission = partitions.stores.get(index), partitions.admission(index, number)
        if (
            store is None
            or admission.is_replicated
            or admission.error_code
            or admission.error_code_acks_all
            or request.leader_epoch not in (ANY_EPOCH, admission.leader_epoch)
            or request.base_offset != NO_OFFSET
        ):
            return False
        view = memoryview(request.batches)
        length = len(view)
        append = LogAppend(view, 0, length, admission.leader_epoch, _CLIENT, request.version)
        turn = store.begin(now_ms)
        result = turn.append_plain(number, append)
        if result is None:
            self._open[index] = _OpenTurn(turn, not_plain=request)
            return False
        try:
            advanced = turn.commit().advanced
        except StorageError as error:
            self._fail(index, [(router, request)], str(error))
            return True
        if advanced:
            self.notify(index, advanced)
        router.replies.append(_appended(request.request_id, result))
        self.appended_bytes += length
        self.appended_count += 1
        return True

    def _append_bytes(self, router: RouterState, store: Store, request: AppendBytes) -> None:
        log = store.partitions().get(request.number) if request.must_continue_transaction else None
        if log is not None:
            error_code = log.transaction_error(*producer_of(request.batches))
            if error_code:
                router.replies.append(Appended(request.request_id, error_code))
                return
        if request.is_client:
            view = memoryview(request.batches)
            append = LogAppend(view, 0, len(view), request_version=request.version)
        else:
            append = LogAppend.of_bytes(request.batches, AppendOrigin.COORDINATOR)
        self._append(router, store, request, append)

    def _append_from_arena(self, router: RouterState, store: Store, request: Append) -> None:
        arena = router.arena
        if arena is None or request.arena_offset + request.length > len(arena):
            router.replies.append(
                RequestFailed(request.request_id, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            )
            return
        append = LogAppend(
            arena,
            request.arena_offset,
            request.length,
            origin=AppendOrigin.CLIENT if request.is_client else AppendOrigin.COORDINATOR,
            request_version=request.version,
            has_headroom=request.has_headroom,
        )
        self._append(router, store, request, append)

    def _write_marker(self, router: RouterState, store: Store, request: WriteMarker) -> None:
        log = store.partitions().get(request.number)
        entry = log.producers.get(request.producer_id) if log is not None else None
        if request.expected_transaction is not None and (
            entry is None
            or entry.producer_epoch != request.producer_epoch
            or (entry.transaction_first_offset, entry.last_timestamp)
            != request.expected_transaction
        ):
            router.replies.append(Appended(request.request_id, ErrorCode.INVALID_TXN_STATE))
            return
        if (
            log is not None
            and entry is not None
            and request.transaction_version >= EPOCH_BUMPS_SINCE
            and entry.producer_epoch >= request.producer_epoch
        ):
            admission = self._partitions.admission(request.store, request.number)
            error_code = admission.error_code_acks_all
            is_duplicate = (
                entry.producer_epoch == request.producer_epoch
                and entry.transaction_first_offset == NO_OFFSET
            )
            if not error_code and not is_duplicate:
                # A late marker: the producer's next transaction has begun.
                error_code = ErrorCode.INVALID_PRODUCER_EPOCH
            is_committed = log.high_watermark >= log.log_end_offset
            if error_code or (is_committed and request.store not in self._open):
                router.replies.append(Appended(request.request_id, error_code))
                return
            # The marker is in the log, but may not be replicated yet. A second one does no harm.
        batch = build_end_transaction_batch(
            EndTransactionMarker(
                ControlType.COMMIT if request.is_commit else ControlType.ABORT,
                request.coordinator_epoch,
            ),
            timestamp_ms=self._cost.now_ms,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
        )
        append = LogAppend.of_bytes(batch, AppendOrigin.COORDINATOR)
        self._append(router, store, request, append)

    def _append(
        self,
        router: RouterState,
        store: Store,
        request: Append | AppendBytes | WriteMarker,
        append: LogAppend,
        prepared: PreparedAppend | None = None,
    ) -> None:
        began_ns = perf_counter_ns() if self._is_measuring else 0
        rejection = None if prepared is None else prepared.rejection
        admission = self._partitions.admission(request.store, request.number)
        error_code = admission.error_code_acks_all if request.acks == -1 else admission.error_code
        if not error_code and request.leader_epoch not in (ANY_EPOCH, admission.leader_epoch):
            # A coordinator that was loaded in an earlier leader epoch.
            error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not error_code and request.base_offset != NO_OFFSET:
            log = store.partitions().get(request.number)
            if log is not None and log.log_end_offset != request.base_offset:
                # The batch before it failed. This one alone would be half a change.
                error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        if error_code:
            router.replies.append(RequestFailed(request.request_id, error_code))
            return
        append.leader_epoch = admission.leader_epoch
        length = append.length
        opened = self._open.get(request.store) or self._begin(store, request.store)
        result: AppendResult | None = None
        if rejection is None and append.origin is AppendOrigin.CLIENT and not append.is_prepared:
            assert not isinstance(request, WriteMarker)
            if opened.not_plain is not request:
                result = opened.turn.append_plain(request.number, append)
            if result is None and append.arena.readonly:
                append.replace(memoryview(bytearray(append.arena)))
            log = None if result is not None else store.partitions().get(request.number)
            try:
                if log is not None and not self.preparation.check(
                    router, request, append, log.settings, self._cost
                ):
                    return
            except BatchRejectedError as rejected:
                rejection = rejected
        if rejection is not None:
            spent_ns, refused = _work_ns(began_ns, prepared), AppendResult.of(rejection)
            router.replies.append(_appended(request.request_id, refused, spent_ns))
            return
        if result is None:
            if self._waiting:
                # The bytes before this batch may be those of a batch that is being read.
                append.has_headroom = False
            length = append.length
            result = opened.turn.append(request.number, append)
        work_ns = _work_ns(began_ns, prepared) if began_ns else 0
        uncommitted = (router, request, result, length, work_ns)
        if admission.is_replicated:
            opened.replicated.add(request.number)
            if request.acks == -1 and not result.error_code:
                opened.delayed.append(uncommitted)
            else:
                opened.waiting.append(uncommitted)
        else:
            opened.waiting.append(uncommitted)
        opened.byte_count += length
        if opened.byte_count >= COMMIT_BYTES_MAX:
            self._commit(request.store)

    def _append_fetched(self, store: Store, request: ReplicaAppend) -> None:
        opened = self._open.get(request.store) or self._begin(store, request.store)
        append = LogAppend(
            request.view,
            request.start,
            request.length,
            origin=AppendOrigin.REPLICATION,
            has_headroom=True,
        )
        request.result = opened.turn.append(request.number, append)
        opened.fetched.append(request)
        opened.replicated.add(request.number)
        opened.byte_count += request.length
        if opened.byte_count >= COMMIT_BYTES_MAX:
            self._commit(request.store)

    def _begin(self, store: Store, index: int) -> _OpenTurn:
        opened = self._open[index] = _OpenTurn(store.begin(self._cost.now_ms))
        return opened

    def _commit(self, index: int) -> None:
        opened = self._open.pop(index)
        is_traced = bool(self.traces.open)
        began_ns = perf_counter_ns() if self._is_measuring or is_traced else 0
        try:
            commit = opened.turn.commit()
            advanced = commit.advanced
        except StorageError as error:
            waiting = [each[:2] for each in opened.waiting + opened.delayed]
            self._fail(index, waiting, str(error))
            self.failed_count += len(opened.fetched)
            self.failed_partitions.update((index, number) for number in opened.replicated)
            return
        byte_ns = 0.0
        if self._is_measuring:
            byte_ns = (perf_counter_ns() - began_ns) / max(1, opened.byte_count)
        if is_traced:
            answered = [
                (id(router), request.request_id)
                for router, request, *_ in opened.waiting + opened.delayed
            ]
            self._turn_traces.committed(answered, began_ns, is_synced=commit.synced)
        if opened.replicated:
            # Readers of replicated partitions wait for the high watermark.
            grown = opened.replicated & advanced
            self.grown.update((index, number) for number in grown)
            advanced = advanced - grown
            self.delayed_produces += [
                DelayedProduce(
                    index,
                    request.number,
                    result.end_offset,
                    request.timeout_ms,
                    _appended(request.request_id, result, work_ns + int(length * byte_ns)),
                    router,
                )
                for router, request, result, length, work_ns in opened.delayed
            ]
        # Notify waiting consumers before the producers are answered.
        self.notify(index, advanced)
        for router, request, result, length, work_ns in opened.waiting:
            spent_ns = work_ns + int(length * byte_ns)
            router.replies.append(_appended(request.request_id, result, spent_ns))
        self.appended_bytes += opened.byte_count
        self.appended_count += len(opened.waiting) + len(opened.delayed) + len(opened.fetched)

    def _fail(
        self,
        index: int,
        appends: Iterable[tuple[RouterState, Append | AppendBytes | WriteMarker]],
        reason: str,
    ) -> None:
        """The commit of the store's turn with these appends has failed."""
        self.failed_stores[index] = reason
        for router, request in appends:
            self.failed_count += 1
            router.replies.append(
                RequestFailed(request.request_id, ErrorCode.KAFKA_STORAGE_ERROR, reason)
            )

    def _delete_records(self, router: RouterState, store: Store, request: DeleteRecords) -> None:
        began_ns = perf_counter_ns() if self._is_measuring else 0
        if request.store in self._open:
            # An offset of -1 means the high watermark after the appends of this turn.
            self._commit(request.store)
        admission = self._partitions.admission(request.store, request.number)
        code, low_watermark = admission.error_code, -1
        if not code:
            try:
                code, low_watermark = store.log_starts.delete_records(
                    request.number, request.offset
                )
            except StorageError as error:
                code = ErrorCode.KAFKA_STORAGE_ERROR
                self.failed_count += 1
                self.failed_stores[request.store] = str(error)
        work_ns = perf_counter_ns() - began_ns if began_ns else 0
        if admission.is_replicated and not code:
            delayed = DelayedDeleteRecords(request, low_watermark, router, work_ns)
            self.delayed_deletes.append(delayed)
        else:
            router.replies.append(RecordsDeleted(request.request_id, code, low_watermark, work_ns))
        self.notify(request.store, (request.number,))

    def _describe_producers(
        self, router: RouterState, store: Store, request: DescribeProducers
    ) -> None:
        began_ns = perf_counter_ns() if self._is_measuring else 0
        error_code = self._partitions.admission(request.store, request.number).error_code
        if request.allow_follower and request.number in store.partitions():
            error_code = ErrorCode.NONE
        producers = () if error_code else tuple(store.producers(request.number))
        work_ns = perf_counter_ns() - began_ns if began_ns else 0
        router.replies.append(
            ProducersDescribed(request.request_id, error_code, producers, work_ns)
        )

    def notify(self, index: int, numbers: Collection[int]) -> None:
        """Notify the routers that watch these partitions, and clear the watches."""
        if self.awaited:
            locations = [(index, number) for number in numbers]
            self.advanced += filter(self.awaited.__contains__, locations)
        store = self._partitions.stores.get(index)
        if store is None:
            return  # its log directory is offline
        take_watch = store.status.take_watch
        # The message goes to all routers: the watch flag does not say which one has set it.
        watched = list(filter(take_watch, numbers))
        if watched:
            self._broadcast(PartitionsAdvanced(index, tuple(watched)))
