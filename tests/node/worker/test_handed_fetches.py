"""Fetches that a worker answers: requests compared, responses put around what a store has."""

from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import pytest

from odradek.node.bus.connection_handover import DirectFetch, FetchPosition
from odradek.node.worker.handed_fetches import (
    LEFT_TO_ROUTER,
    NEVER_S,
    RECORD_BYTES_MAX,
    HandedFetch,
    HandedFetches,
)
from odradek.node.worker.hosted_partitions import PartitionLocation
from odradek.protocol.primitives import read_uvarint
from odradek.protocol.types import NEVER
from odradek.storage.reader import StoreReader
from odradek.storage.status import ROLE, ReplicaRole
from tests.support.stores import append_now, as_stored, batch_of, create, open_store

KEY_AND_VERSION = (1 << 16) + 12
REQUEST = b"client|wait|epoc|offset..|rest"
WAIT_AT, EPOCH_AT, OFFSET_AT = 7, 12, 17
REPEATED = b"client|wait|epoc|nothing"
HEAD, MIDDLE, TAIL, UNCHANGED = b"head", b"middle", b"tail", b"unchanged"
WAIT_MS = 500
EPOCH_MAX = 2**31 - 1
_int32 = Struct(">i").pack
_int64 = Struct(">q").pack


def direct(
    number: int,
    *,
    epoch: int = -1,
    offset: int = 0,
    sent: tuple[int, int] = (-1, -1),
    is_flexible: bool = True,
    is_read_committed: bool = False,
) -> DirectFetch:
    """With a session if there is an epoch."""
    has_session = epoch >= 0
    return DirectFetch(
        store=0,
        number=number,
        is_read_committed=is_read_committed,
        bytes_max=1 << 20,
        wait_ms=WAIT_MS,
        position=FetchPosition(epoch, offset, *sent),
        request=REQUEST,
        wait_at=WAIT_AT,
        offset_at=OFFSET_AT,
        head=HEAD,
        middle=MIDDLE,
        tail=TAIL,
        is_flexible=is_flexible,
        epoch_at=EPOCH_AT if has_session else -1,
        repeated_request=REPEATED if has_session else b"",
        unchanged_response=UNCHANGED if has_session else b"",
    )


def framed(correlation_id: int, body: bytes, key_and_version: int = KEY_AND_VERSION) -> bytes:
    rest = _int32(key_and_version) + _int32(correlation_id) + body
    return _int32(len(rest)) + rest


def request(offset: int, *, epoch: int = -1, correlation_id: int = 7) -> bytes:
    body = bytearray(REQUEST)
    body[OFFSET_AT : OFFSET_AT + 8] = _int64(offset)
    if epoch >= 0:
        body[EPOCH_AT : EPOCH_AT + 4] = _int32(epoch)
    return framed(correlation_id, bytes(body))


def repeated(epoch: int, correlation_id: int = 7) -> bytes:
    body = bytearray(REPEATED)
    body[EPOCH_AT : EPOCH_AT + 4] = _int32(epoch)
    return framed(correlation_id, bytes(body))


def response(records: bytes, end: int, *, is_flexible: bool = True) -> bytes:
    length = _int32(len(records))
    if is_flexible:
        size, length = len(records) + 1, b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        length += bytes([size])
        assert read_uvarint(length, 0) == (len(records) + 1, len(length))
    offsets = _int64(end) + _int64(end) + _int64(0)
    body = b"".join((_int32(7), HEAD, offsets, MIDDLE, length, records, TAIL))
    return _int32(len(body)) + body


class Scene:
    """A store with one partition, and the fetches of one worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = open_store(folder / "0")
        self.number = create(self.store)
        self.store.status.set(self.number, ROLE, ReplicaRole.LEADER)
        self.end = 0
        self.awaited: set[PartitionLocation] = set()
        self.advanced: list[PartitionLocation] = []
        self.fetches = HandedFetches[str](
            lambda store: StoreReader(folder / str(store)), self.awaited, self.advanced
        )

    def append(self, size: int = 10) -> bytes:
        """The stored form."""
        batch = batch_of(1, size=size)
        (offset,) = append_now(self.store, self.number, batch)
        self.end = offset + 1
        return as_stored(batch, offset)

    def close(self) -> None:
        self.fetches.close()
        self.store.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


@pytest.mark.parametrize("is_flexible", [True, False])
@pytest.mark.parametrize("size", [10, 50, 60, 16_300, 16_320, 60_000])
def test_the_records_are_in_the_response(scene: Scene, size: int, is_flexible: bool) -> None:
    fetch = HandedFetch(direct(scene.number, is_flexible=is_flexible), KEY_AND_VERSION)
    expected = scene.append(size) + scene.append()
    assert fetch.accept(request(0), 1.0)
    found = scene.fetches.answer(fetch)
    assert found == response(expected, 2, is_flexible=is_flexible)
    assert fetch.take_fetched() == (2, len(expected), 0)
    assert fetch.take_fetched() == (0, 0, 0)


def test_a_fetch_that_finds_nothing_waits_for_its_time(scene: Scene) -> None:
    fetch = HandedFetch(direct(scene.number), KEY_AND_VERSION)
    assert scene.fetches.next_ms() == NEVER
    scene.fetches.follow("me", fetch)
    assert scene.awaited == {(0, scene.number)}
    assert scene.fetches.next_ms() == NEVER, "nothing is asked"
    assert fetch.accept(request(0), 1.0)
    assert scene.fetches.answer(fetch) is None
    assert scene.fetches.next_ms() == 1_501
    fetch.watch_s = 1.2
    assert scene.fetches.next_ms() == 1_201
    fetch.watch_s = NEVER_S
    assert scene.fetches.answer(fetch, is_due=True) == response(b"", 0)
    assert scene.fetches.next_ms() == NEVER
    scene.fetches.end("me", fetch)
    scene.fetches.end("me", fetch)
    assert not scene.awaited


def test_all_that_follow_a_partition_are_woken_once(scene: Scene) -> None:
    following = [HandedFetch(direct(scene.number), KEY_AND_VERSION) for _ in range(3)]
    for name, fetch in enumerate(following):
        scene.fetches.follow(str(name), fetch)
    scene.advanced += [(0, scene.number), (5, 5), (0, scene.number)]
    assert scene.fetches.woken() == [(str(name), fetch) for name, fetch in enumerate(following)]
    assert scene.fetches.woken() == []
    scene.fetches.end("1", following[1])
    assert scene.awaited, "others follow it"


@pytest.mark.parametrize(
    "data",
    [
        request(0)[:-1],
        request(0) + b"x",
        request(0) + request(0),
        framed(7, request(0)[12:], KEY_AND_VERSION + 1),
        request(0).replace(b"client", b"others"),
        request(0).replace(b"rest", b"tser"),
        repeated(4),
        framed(7, b""),
        b"",
    ],
)
def test_other_requests_are_not_accepted(scene: Scene, data: bytes) -> None:
    fetch = HandedFetch(direct(scene.number), KEY_AND_VERSION)
    assert not fetch.accept(data, 1.0)
    assert fetch.release(1.0) == b""


@pytest.mark.parametrize("epoch", [1, 7, EPOCH_MAX])
def test_a_session_counts_its_epochs(scene: Scene, epoch: int) -> None:
    fetch = HandedFetch(direct(scene.number, epoch=epoch, sent=(0, 0)), KEY_AND_VERSION)
    following = 1 if epoch == EPOCH_MAX else epoch + 1
    for wrong in (0, following):
        assert not fetch.accept(request(0, epoch=wrong), 1.0)
        assert not fetch.accept(repeated(wrong), 1.0)
    # Nothing has changed.
    assert fetch.accept(repeated(epoch), 1.0)
    body = _int32(7) + UNCHANGED
    assert scene.fetches.answer(fetch, is_due=True) == _int32(len(body)) + body
    expected = scene.append()
    assert not fetch.accept(repeated(epoch), 1.0)
    assert fetch.accept(repeated(following), 1.0)
    assert scene.fetches.answer(fetch) == response(expected, 1)
    assert fetch.position == FetchPosition(following + 1, 0, 1, 0)
    # The high watermark is new, there are no records: it is told.
    scene.append()
    assert fetch.accept(request(2, epoch=following + 1), 1.0)
    assert scene.fetches.answer(fetch, is_due=True) == response(b"", 2)
    assert fetch.position == FetchPosition(following + 2, 2, 2, 0)


def test_a_request_that_is_released_has_the_rest_of_its_time(scene: Scene) -> None:
    fetch = HandedFetch(direct(scene.number, epoch=3), KEY_AND_VERSION)
    for data in (request(5, epoch=3, correlation_id=99), repeated(3, correlation_id=99)):
        for now_s, left_ms in ((10.0, 500), (10.125, 375), (10.5, 0), (11.0, 0)):
            assert fetch.accept(data, 10.0)
            expected = bytearray(request(5, epoch=3, correlation_id=99))
            expected[12 + WAIT_AT : 16 + WAIT_AT] = _int32(left_ms)
            assert fetch.release(now_s) == expected
            assert fetch.release(now_s) == b""
    assert fetch.position.epoch == 3


def test_what_the_router_has_to_answer_is_left_to_it(scene: Scene) -> None:
    """Each with the request that is not answered."""
    scene.append()
    scene.append(RECORD_BYTES_MAX + 1)
    scene.append()
    for offset in (-1, scene.end + 1, 1):
        fetch = HandedFetch(direct(scene.number), KEY_AND_VERSION)
        assert fetch.accept(request(offset), 1.0)
        assert scene.fetches.answer(fetch) == LEFT_TO_ROUTER
        assert fetch.release(1.0)
    fetch = HandedFetch(direct(scene.number), KEY_AND_VERSION)
    assert fetch.accept(request(2), 1.0)
    scene.store.status.set(scene.number, ROLE, ReplicaRole.FOLLOWER)
    assert scene.fetches.answer(fetch) == LEFT_TO_ROUTER


def test_a_store_that_cannot_be_read_is_left_to_the_router(scene: Scene, tmp_path: Path) -> None:
    opened: list[int] = []

    def open_reader(store: int) -> StoreReader:
        opened.append(store)
        return StoreReader(tmp_path / "absent")

    fetches = HandedFetches[str](open_reader, set(), [])
    fetch = HandedFetch(direct(scene.number), KEY_AND_VERSION)
    assert fetch.accept(request(0), 1.0)
    assert fetches.answer(fetch) == LEFT_TO_ROUTER
    assert fetches.answer(fetch) == LEFT_TO_ROUTER
    assert opened == [0, 0]
