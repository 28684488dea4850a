"""A hundred thousand malformed frames, while other clients work.

Frames are random bytes, well-formed requests with random content, and requests with flipped bits,
cut ends and wrong counts. Some carry record batches whose checksum is right. One seed determines
all of them; FUZZ_SEED replaces it. Sixteen connections send the frames and reconnect when they are
closed.
"""

import asyncio
import os
from collections import Counter
from random import Random
from struct import Struct
from typing import Final

import psutil
import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.apis import APIS, Api, ApiKey
from odradek.protocol.checksum import crc32c
from odradek.protocol.codec import encode_request, encode_request_header
from odradek.protocol.compression import Codec
from odradek.protocol.messages.fetch import FetchRequest
from odradek.protocol.messages.groups import JoinGroupRequest
from odradek.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.protocol.records import ATTRIBUTES_AT, CRC_AT, HEADER_BYTES, Record, build_batch
from tests.e2e.conftest import Report, StartNode
from tests.support.background_client import BackgroundClient
from tests.support.message_samples import random_message
from tests.support.waiting import wait_until
from tests.support.wire import versions_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SEED: Final = int(os.environ.get("FUZZ_SEED", "20010911"))
FRAME_COUNT: Final = 100_000
CONNECTION_COUNT: Final = 16
BURST_MAX: Final = 4
# A request may wait for data or for a rebalance. The test does not wait for it.
ANSWER_TIMEOUT_S: Final = 0.25
TIME_LIMIT_S: Final = 300
MEMORY_GROWTH_MAX: Final = 100 << 20
LATENCY_MAX_S: Final = 10.0
"""Latencies of other clients are printed; a machine with thirty busy processes stalls for seconds.
"""

FUZZED: Final = "fuzzed"
# Names that random requests contain too, so that some of them name existing topics and groups.
RANDOM_NAMES: Final = ("topic", "a")
_LENGTH: Final = Struct(">i")
_NASTY: Final = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff\x0f")


class Frames:
    """Frames from a seed, each with its length prefix; most of them of the APIs in `served`."""

    def __init__(self, seed: int, served: list[Api]) -> None:
        self._random = Random(seed)
        self._served = served
        self._known = list(APIS.values())
        self.kinds: Counter[str] = Counter()

    def next(self) -> bytes:
        """Return the next frame."""
        kind = self._random.choices(
            ("noise", "headed", "valid", "mutated", "batch"), (1, 3, 16, 12, 12)
        )[0]
        self.kinds[kind] += 1
        body: bytes = getattr(self, f"_{kind}")()
        return _LENGTH.pack(len(body)) + body

    def _noise(self) -> bytes:
        return self._random.randbytes(self._random.choice((0, 1, 7, 8, 10, 14, 40, 300, 5000)))

    def _headed(self) -> bytes:
        api, version = self._api()
        version += self._random.choice((0, 0, 0, 1, -1, 1000))
        header = encode_request_header(api.key, version, self._correlation_id(), "fuzz")
        return header + self._random.randbytes(self._random.choice((0, 2, 20, 200)))

    def _valid(self) -> bytes:
        api, version = self._api()
        request = random_message(self._random, api.request, version)
        if isinstance(request, FetchRequest):
            request.max_wait_ms = min(request.max_wait_ms, 50)
        if isinstance(request, JoinGroupRequest):
            request.group_id = self._random.choice(("", "fuzzed"))
        return self._encoded(api.key, version, request)

    def _mutated(self) -> bytes:
        return self._mutate(self._valid() if self._random.random() < 0.7 else self._batch())

    def _batch(self) -> bytes:
        version = self._random.randrange(APIS[ApiKey.PRODUCE].max_version)
        partition = PartitionProduceData(
            index=self._random.choice((0, 0, 0, 1, -1)), records=memoryview(self._records())
        )
        topic = TopicProduceData(name=FUZZED, partition_data=[partition])
        request = ProduceRequest(
            acks=self._random.choice((1, -1, 2)), timeout_ms=1000, topic_data=[topic]
        )
        return self._encoded(ApiKey.PRODUCE, version, request)

    def _records(self) -> bytes:
        records = [
            Record(index, 1, b"k" * self._random.randrange(4), b"v" * self._random.randrange(500))
            for index in range(self._random.randrange(5))
        ]
        batch = bytearray(build_batch(records, codec=self._random.choice(list(Codec))))
        fate = self._random.random()
        if fate < 0.3:
            return bytes(batch)
        batch = bytearray(self._mutate(bytes(batch)))
        if fate < 0.8 and len(batch) >= HEADER_BYTES:
            batch[16] = 2
            batch[8:12] = _LENGTH.pack(len(batch) - 12)
            batch[CRC_AT:ATTRIBUTES_AT] = crc32c(bytes(batch[ATTRIBUTES_AT:])).to_bytes(4)
        return bytes(batch)

    def _mutate(self, frame: bytes) -> bytes:
        changed = bytearray(frame)
        for _ in range(self._random.choice((1, 1, 2, 5))):
            at = self._random.randrange(len(changed) + 1)
            match self._random.randrange(5):
                case 0 if at < len(changed):
                    changed[at] ^= 1 << self._random.randrange(8)
                case 1:
                    nasty = self._random.choice(_NASTY)
                    changed[at : at + len(nasty)] = nasty
                case 2:
                    del changed[at : at + self._random.randrange(20)]
                case 3:
                    changed[at:at] = self._random.randbytes(self._random.randrange(20))
                case _:
                    del changed[at:]
        return bytes(changed)

    def _encoded(self, key: int, version: int, request: object) -> bytes:
        header = encode_request_header(key, version, self._correlation_id(), "fuzz")
        return b"".join((header, *encode_request(key, version, request)))

    def _api(self) -> tuple[Api, int]:
        api = self._random.choice(self._served if self._random.random() < 0.97 else self._known)
        return api, self._random.randint(api.min_version, api.max_version)

    def _correlation_id(self) -> int:
        return self._random.randrange(-(2**31), 2**31)


class Attack:
    """Connections that share one source of frames.

    A frame counts after its effect: a response, the end of its connection, or a wait beyond our
    timeout. Frames after the end of a connection do not count.
    """

    def __init__(self, bootstrap: str, frames: Frames, frame_count: int) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = (host, int(port))
        self._frames = frames
        self._frame_count = frame_count
        self._random = Random(SEED)
        self.outcomes: Counter[str] = Counter()

    async def run(self) -> None:
        """Send all frames."""
        async with asyncio.TaskGroup() as attackers:
            for _ in range(CONNECTION_COUNT):
                attackers.create_task(self._attack())

    async def _attack(self) -> None:
        while self.outcomes.total() < self._frame_count:
            reader, writer = await asyncio.open_connection(*self._address)
            try:
                while await self._burst(reader, writer):
                    if self.outcomes.total() >= self._frame_count:
                        break
            finally:
                writer.transport.abort()

    async def _burst(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send some frames and read the same number of responses; False if the connection has
        ended."""
        count = self._random.randint(1, BURST_MAX)
        writer.write(b"".join(self._frames.next() for _ in range(count)))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                for _ in range(count):
                    size = _LENGTH.unpack(await reader.readexactly(4))[0]
                    await reader.readexactly(size)
                    self.outcomes["answered"] += 1
        except TimeoutError:
            self.outcomes["kept waiting"] += 1
            return False
        except (ConnectionError, asyncio.IncompleteReadError):
            self.outcomes["closed"] += 1
            return False
        return True


def memory_of(broker: EmbeddedBroker) -> dict[str, int]:
    """Resident bytes by process."""
    return {name: psutil.Process(pid).memory_info().rss for name, pid in broker.processes.items()}


def test_nonsense_hurts_nobody_but_its_sender(start_node: StartNode, report: Report) -> None:
    """Issue 3: "random and mutated frames (at least 100,000 in a seeded fuzz test) [...]: the
    offender's connection closes or is throttled, memory stays bounded, others notice nothing"."""
    broker = start_node()
    for name in (FUZZED, *RANDOM_NAMES):
        broker.create_topic(name, partitions=2)
    broker.create_topic("witness")
    pids = broker.processes
    served = [APIS[key] for key in sorted(versions_of(broker.bootstrap_servers)) if key in APIS]
    frames = Frames(SEED, served)
    attack = Attack(broker.bootstrap_servers, frames, FRAME_COUNT)

    async def attack_in_time() -> None:
        async with asyncio.timeout(TIME_LIMIT_S):
            await attack.run()

    with BackgroundClient(broker.bootstrap_servers, "witness") as witness:
        wait_until(lambda: witness.consumed_count > 100, what="the witness is at work")
        before = memory_of(broker)
        asyncio.run(attack_in_time())
        after = memory_of(broker)
    seen = f"seed {SEED}, {dict(frames.kinds)}, {dict(attack.outcomes)}"
    assert witness.complaints == [], seen
    assert witness.slowest_s < LATENCY_MAX_S, seen
    assert broker.processes == pids, seen
    failures = [line for line in broker.log().splitlines() if '"level":"error"' in line]
    assert failures == [], "a request that the broker cannot digest is the broker's fault"
    assert sum(after.values()) - sum(before.values()) < MEMORY_GROWTH_MAX, f"{before} {after}"
    assert attack.outcomes.total() >= FRAME_COUNT
    assert attack.outcomes["answered"] > FRAME_COUNT // 4, seen
    assert attack.outcomes["closed"] > FRAME_COUNT // 20, seen
    report(f"{seen}; the witness waited for {1000 * witness.slowest_s:.0f} ms at most")
    report(f"memory before {before}, after {after}")
