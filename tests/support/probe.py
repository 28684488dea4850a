"""A process that measures how long a broker makes a well-behaved client wait.

It has one connection each for Metadata, Produce, Fetch and Heartbeat, sends the next request
INTERVAL_S after the last one was sent, but never two at a time, and records the longest wait of
each. A process of its own, so that the work of a test is not measured. `python -m
tests.support.probe BOOTSTRAP TOPIC` answers every line on its standard input with a line of JSON:
the longest waits since the last one in milliseconds, requests that still wait included.
"""

import json
import selectors
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from odradek.protocol.codec import decode_response, decode_response_header
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.protocol.records import Record, build_batch
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, api_of, frame_of

INTERVAL_S: Final = 0.005
ANSWER_TIMEOUT_S: Final = 120.0
SESSION_TIMEOUT_MS: Final = 300_000


class Probe:
    """The process, from `with` to the end of the block."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        """`topic` exists, and no other client uses it."""
        command = [sys.executable, "-m", "tests.support.probe", bootstrap, topic]
        self._process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self.longest_ms()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def longest_ms(self) -> dict[str, float]:
        """The longest wait of each request since the last call, by its name."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the probe has ended: a request of it failed"
        waits: dict[str, float] = json.loads(line)
        return waits


class _Lane:
    """One request that is sent again and again over a connection of its own."""

    def __init__(self, bootstrap: str, request: object, version: int) -> None:
        self.name = api_of(request).name
        self.wire = WireClient(bootstrap, timeout_s=ANSWER_TIMEOUT_S)
        self.longest_s = 0.0
        self.sent_s = 0.0
        self.is_waiting = False
        self._key, self._version = api_of(request).key, version
        self._frame = frame_of(request, version, 1)

    def send(self, now_s: float) -> None:
        self.sent_s, self.is_waiting = now_s, True
        self.wire.send_raw(self._frame)

    def receive(self) -> None:
        frame = self.wire.receive_frame()
        self.longest_s = max(self.longest_s, time.monotonic() - self.sent_s)
        self.is_waiting = False
        _, at = decode_response_header(self._key, self._version, frame)
        response = decode_response(self._key, self._version, frame, at)
        assert not _error_of(response), f"{self.name} got error {_error_of(response)}"

    def take_longest_ms(self, now_s: float) -> float:
        """The longest wait since the last call."""
        longest_s = self.longest_s
        if self.is_waiting:
            longest_s = max(longest_s, now_s - self.sent_s)
        self.longest_s = 0.0
        return round(1000 * longest_s, 1)


def _error_of(response: object) -> int:
    """The first error code in a response of the probe's requests."""
    code: int = getattr(response, "error_code", 0)
    for name in ("responses", "topics", "partition_responses", "partitions"):
        for part in getattr(response, name, ()):
            code = code or _error_of(part)
    return code


def _heartbeat(bootstrap: str, topic: str) -> HeartbeatRequest:
    """Of the one member of a new group."""
    group_id = f"{topic}-group"
    join = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=SESSION_TIMEOUT_MS,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0" * 10)],
    )
    with WireClient(bootstrap) as wire:
        find = FindCoordinatorRequest(key=group_id)

        def has_coordinator() -> bool:
            return not wire.ask(find, 1, FindCoordinatorResponse).error_code

        wait_until(has_coordinator, what="the group has a coordinator")
        joined = wire.ask(join, 3, JoinGroupResponse)
        assert not joined.error_code
        sync = SyncGroupRequest(
            group_id=group_id, generation_id=joined.generation_id, member_id=joined.member_id
        )
        assert not wire.ask(sync, 3, SyncGroupResponse).error_code
    return HeartbeatRequest(
        group_id=group_id, generation_id=joined.generation_id, member_id=joined.member_id
    )


def _lanes(bootstrap: str, topic: str) -> list[_Lane]:
    batch = memoryview(build_batch([Record(0, int(1000 * time.time()), None, b"probe")]))
    return [
        _Lane(bootstrap, MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 9),
        _Lane(
            bootstrap,
            ProduceRequest(
                acks=-1,
                timeout_ms=30_000,
                topic_data=[
                    TopicProduceData(
                        name=topic, partition_data=[PartitionProduceData(index=0, records=batch)]
                    )
                ],
            ),
            9,
        ),
        _Lane(
            bootstrap,
            FetchRequest(
                topics=[
                    FetchTopic(
                        topic=topic,
                        partitions=[FetchPartition(fetch_offset=0, partition_max_bytes=1000)],
                    )
                ],
                max_bytes=1000,
            ),
            12,
        ),
        _Lane(bootstrap, _heartbeat(bootstrap, topic), 3),
    ]


def main() -> None:
    """Probe until standard input ends."""
    lanes = _lanes(*sys.argv[1:3])
    selector = selectors.DefaultSelector()
    for lane in lanes:
        selector.register(lane.wire.socket, selectors.EVENT_READ, lane)
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    for lane in lanes:
        lane.send(time.monotonic())
        lane.receive()
    while True:
        now_s = time.monotonic()
        for lane in lanes:
            if not lane.is_waiting and now_s - lane.sent_s >= INTERVAL_S:
                lane.send(now_s)
        idle = [lane.sent_s for lane in lanes if not lane.is_waiting]
        until_s = min(idle, default=now_s + 1) + INTERVAL_S
        for key, _ in selector.select(max(0.0, until_s - now_s)):
            if key.data is not None:
                key.data.receive()
                continue
            if not sys.stdin.readline():
                return
            now_s = time.monotonic()
            waits = {lane.name: lane.take_longest_ms(now_s) for lane in lanes}
            sys.stdout.write(json.dumps(waits) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
