"""One turn of a worker: everything that has arrived is decided, written with one commit a store,
then answered.

Appends of all partitions of a store share a transaction; a turn whose bytes pass the bound is
committed in the middle and goes on. Nothing is answered before its commit. If a commit fails (disk
full), every append of it is answered KAFKA_STORAGE_ERROR and the store is as it was before the
turn.

A turn with many bytes for several stores is carried out by two threads: copying into the page
cache is most of its cost, and LMDB lets go of the interpreter for that. Each store is one thread's
alone for the length of the turn, and the turn ends when both have.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from node.bus.messages import (
    Advanced,
    Append,
    AppendBytes,
    Appended,
    DeleteRecords,
    DescribeProducers,
    Failed,
    ProducersDescribed,
    RecordsDeleted,
    ToRouter,
)
from node.worker.helper import Helper
from node.worker.partitions import Partitions
from protocol.errors import ErrorCode
from storage.append import AppendResult, Turn
from storage.environment import StorageError
from storage.store import Store
from storage.validation import AppendOrigin

COMMIT_BYTES_MAX = 2 << 20
"""Above this a commit's dirty pages no longer fit the caches, and each byte costs more."""

HELPED_BYTES_MIN = 64 << 10
"""What the helper must have to do at least: waking it costs as much as a few dozen KiB."""

Request = Append | AppendBytes | DeleteRecords | DescribeProducers


@dataclass(slots=True)
class RouterState:
    """One router as the worker knows it: its arena, and what it is owed at the end of the turn."""

    arena: memoryview | None = None
    replies: list[ToRouter] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    """A store's open transaction and the answers that wait for its commit."""

    turn: Turn
    byte_count: int = 0
    waiting: list[tuple[RouterState, int, AppendResult]] = field(default_factory=list)


class Turns:
    """Carries requests out against the stores. `broadcast(message)` reaches every router.

    `settle_helper` is called once in the helper thread, to choose its processors; without it there
    is no helper.
    """

    def __init__(
        self,
        partitions: Partitions,
        broadcast: Callable[[ToRouter], None],
        settle_helper: Callable[[], None] | None = None,
    ) -> None:
        self._lane = _Lane(partitions, broadcast)
        self._helped_lane = _Lane(partitions, broadcast)
        self._helper = Helper(settle_helper) if settle_helper is not None else None

    @property
    def appended_bytes(self) -> int:
        """Bytes of batches committed."""
        return self._lane.appended_bytes + self._helped_lane.appended_bytes

    @property
    def appended_count(self) -> int:
        """Appends committed."""
        return self._lane.appended_count + self._helped_lane.appended_count

    @property
    def failed_count(self) -> int:
        """Appends that the disk did not take."""
        return self._lane.failed_count + self._helped_lane.failed_count

    def run(self, requests: Sequence[tuple[RouterState, Request]], now_ms: int) -> None:
        """Carry the requests out, commit, and leave the replies with their routers."""
        helper = self._helper
        if helper is None or len(requests) == 1:
            self._lane.run(requests, now_ms)
            return
        helped_stores = _share_of_helper(requests)
        if not helped_stores:
            self._lane.run(requests, now_ms)
            return
        helped = [each for each in requests if each[1].store in helped_stores]
        others = [each for each in requests if each[1].store not in helped_stores]
        helper.start(partial(self._helped_lane.run, helped, now_ms))
        try:
            self._lane.run(others, now_ms)
        finally:
            helper.wait()

    def notify(self, index: int, numbers: Iterable[int]) -> None:
        """Tell the routers of those partitions that somebody watches; the watch is taken."""
        self._lane.notify(index, numbers)


def _share_of_helper(requests: Iterable[tuple[RouterState, Request]]) -> set[int]:
    """The stores whose requests the helper takes: about half of the bytes, or none."""
    sizes: dict[int, int] = {}
    for _, request in requests:
        if type(request) is Append:
            sizes[request.store] = sizes.get(request.store, 0) + request.length
    total = sum(sizes.values())
    if len(sizes) < 2 or total < 2 * HELPED_BYTES_MIN:
        return set()
    share: set[int] = set()
    rest = total // 2
    for store in sorted(sizes, key=sizes.__getitem__):
        if sizes[store] <= rest:
            share.add(store)
            rest -= sizes[store]
    return share if total // 2 - rest >= HELPED_BYTES_MIN else set()


class _Lane:
    """One thread's part of a turn: requests in order, each store's commit at the end."""

    def __init__(self, partitions: Partitions, broadcast: Callable[[ToRouter], None]) -> None:
        self._partitions = partitions
        self._broadcast = broadcast
        self._open: dict[int, _Open] = {}
        self.appended_bytes = 0
        self.appended_count = 0
        self.failed_count = 0

    def run(self, requests: Iterable[tuple[RouterState, Request]], now_ms: int) -> None:
        """See Turns.run."""
        for router, request in requests:
            store = self._partitions.stores.get(request.store)
            if store is None:
                router.replies.append(Failed(request.request_id, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            elif type(request) is Append:
                self._append_from_arena(router, store, request, now_ms)
            elif type(request) is AppendBytes:
                self._append_bytes(router, store, request, now_ms)
            elif type(request) is DeleteRecords:
                self._delete_records(router, store, request)
            elif type(request) is DescribeProducers:
                self._describe_producers(router, store, request)
        for index in list(self._open):
            self._commit(index)

    def _append_from_arena(
        self, router: RouterState, store: Store, request: Append, now_ms: int
    ) -> None:
        arena = router.arena
        if arena is None or request.arena_offset + request.length > len(arena):
            router.replies.append(Failed(request.request_id, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        self._append(
            router,
            store,
            request,
            arena,
            request.arena_offset,
            request.length,
            AppendOrigin.CLIENT if request.is_client else AppendOrigin.COORDINATOR,
            now_ms,
        )

    def _append_bytes(
        self, router: RouterState, store: Store, request: AppendBytes, now_ms: int
    ) -> None:
        batches = bytearray(request.batches)
        origin = AppendOrigin.CLIENT if request.is_client else AppendOrigin.COORDINATOR
        self._append(router, store, request, memoryview(batches), 0, len(batches), origin, now_ms)

    def _append(
        self,
        router: RouterState,
        store: Store,
        request: Append | AppendBytes,
        view: memoryview,
        start: int,
        length: int,
        origin: AppendOrigin,
        now_ms: int,
    ) -> None:
        admission = self._partitions.admission(request.store, request.number)
        refusal = admission.refusal_of_acks_all if request.acks == -1 else admission.refusal
        if refusal:
            router.replies.append(Failed(request.request_id, refusal))
            return
        opened = self._open.get(request.store)
        if opened is None:
            opened = self._open[request.store] = _Open(store.begin(now_ms))
        result = opened.turn.append(
            request.number,
            view,
            start,
            length,
            leader_epoch=admission.leader_epoch,
            origin=origin,
            request_version=request.version,
            may_scratch_before=type(request) is Append and request.may_scratch_before,
        )
        opened.waiting.append((router, request.request_id, result))
        opened.byte_count += length
        if opened.byte_count >= COMMIT_BYTES_MAX:
            self._commit(request.store)

    def _commit(self, index: int) -> None:
        opened = self._open.pop(index)
        try:
            advanced = opened.turn.commit().advanced
        except StorageError as error:
            self.failed_count += len(opened.waiting)
            for router, request_id, _ in opened.waiting:
                router.replies.append(Failed(request_id, ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
            return
        # First those who wait for records: who appended waits less for having been told second.
        self.notify(index, advanced)
        for router, request_id, result in opened.waiting:
            router.replies.append(
                Appended(
                    request_id,
                    result.error_code,
                    result.base_offset,
                    result.log_append_time_ms,
                    result.log_start_offset,
                    result.record_errors,
                    result.error_message,
                )
            )
        self.appended_bytes += opened.byte_count
        self.appended_count += len(opened.waiting)

    def _delete_records(self, router: RouterState, store: Store, request: DeleteRecords) -> None:
        if request.store in self._open:
            # The high watermark that -1 stands for includes what came before in this turn.
            self._commit(request.store)
        code, low_watermark = (
            self._partitions.admission(request.store, request.number).refusal,
            -1,
        )
        if not code:
            try:
                code, low_watermark = store.delete_records(request.number, request.offset)
            except StorageError:
                code = ErrorCode.KAFKA_STORAGE_ERROR
        router.replies.append(RecordsDeleted(request.request_id, code, low_watermark))
        self.notify(request.store, (request.number,))

    def _describe_producers(
        self, router: RouterState, store: Store, request: DescribeProducers
    ) -> None:
        refusal = self._partitions.admission(request.store, request.number).refusal
        producers = () if refusal else tuple(store.producers(request.number))
        router.replies.append(ProducersDescribed(request.request_id, refusal, producers))

    def notify(self, index: int, numbers: Iterable[int]) -> None:
        """Tell the routers of those partitions that somebody watches; the watch is taken."""
        status = self._partitions.stores[index].status
        # `take_watch` is a bit per router; with a shared bus message all of them hear of it, and
        # those that did not ask find nobody waiting.
        watched = tuple(number for number in numbers if status.take_watch(number))
        if watched:
            self._broadcast(Advanced(index, watched))
