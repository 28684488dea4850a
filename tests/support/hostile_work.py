"""A node under attack, and how long others wait meanwhile.

`attack` sends hostile requests while a probe (tests.support.probe) sends Metadata, Produce, Fetch
and Heartbeat every 5 ms over its own connections. The probe's longest wait is printed and asserted.
What holds a process does so every time: the limit holds for the best of ATTEMPTS, so that a busy
machine fails no test.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.apis import ApiKey
from odradek.protocol.codec import (
    decode_request_header,
    decode_response,
    decode_response_header,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from odradek.protocol.schema import FieldKind, fields_of
from odradek.protocol.types import uuid_to_text
from tests.support.probe import Probe
from tests.support.waiting import wait_until
from tests.support.wire import ClosedByPeer, WireClient, frame_of

PROMISED_MS: Final = 50.0
"""Nobody waits longer for another's request, on a busy machine."""
WAIT_MS_MAX: Final = 3 * PROMISED_MS
ATTEMPTS: Final = 3
MEMORY_BYTES_MAX: Final = 300 << 20
ANSWER_TIMEOUT_S: Final = 60.0
WIDE: Final = "wide"
WIDE_PARTITIONS: Final = 1_000
GROUP: Final = "attacked"
TRANSACTIONAL_ID: Final = "attacker"
NO_COORDINATOR: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""An attack with such an answer has not begun."""
CLOSED: Final = "closed"
"""Instead of an answer: the connection was closed."""

_FRAME_LENGTH_SIZE: Final = 4


class Ground(NamedTuple):
    """The node under attack, with a topic WIDE, and its probe."""

    broker: EmbeddedBroker
    probe: Probe
    wide_id: bytes
    baseline_ms: float
    """What the machine itself makes the probe wait."""
    processes: dict[str, int]


class AttackOutcome(NamedTuple):
    """One attempt: the probe's waits, and the largest memory of a process."""

    waits: dict[str, float]
    memory_bytes: int
    answer: memoryview | None
    """The last one; None if the connection was closed."""
    took_ms: float

    @property
    def wait_ms(self) -> float:
        """The longest wait."""
        return max(self.waits.values())


@contextmanager
def ground_of(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[Ground]:
    """A node, from `with` to the end of the block."""
    with EmbeddedBroker(directory, settings=settings) as broker:
        broker.create_topic("probe")
        broker.create_topic(WIDE, partitions=WIDE_PARTITIONS)
        wide = MetadataRequest(topics=[MetadataRequestTopic(name=WIDE)])
        with WireClient(broker.bootstrap_servers) as wire:
            wide_id = wire.ask(wide, 12, MetadataResponse).topics[0].topic_id
            group = f"{GROUP}:{uuid_to_text(wide_id)}:0"
            for key_type, key in enumerate((GROUP, TRANSACTIONAL_ID, group)):
                _find_coordinator(wire, key, key_type)
        with Probe(broker.bootstrap_servers, "probe") as probe:
            ground = Ground(broker, probe, wide_id, 0.0, broker.processes)
            harmless = [frame_of(wide, 12, 1)] * 100
            baseline_ms = min(_attempt(ground, harmless).wait_ms for _ in range(ATTEMPTS))
            yield ground._replace(baseline_ms=baseline_ms)


def attack(
    ground: Ground,
    frames: Sequence[bytes],
    report: Callable[[str], None],
    *,
    errors: Mapping[int, int] | None = None,
) -> object:
    """Send the frames one after the other, each after the answer to the one before; up to ATTEMPTS
    times, if the probe waits too long. Returns the last answer, decoded.

    `errors` are the error codes of the last answer and their counts, if given; CLOSED is returned
    if the connection was closed.
    """
    limit_ms = WAIT_MS_MAX + ground.baseline_ms
    outcomes: list[AttackOutcome] = []
    while len(outcomes) < ATTEMPTS and not any(each.wait_ms <= limit_ms for each in outcomes):
        outcomes.append(_attempt(ground, frames))
    best = min(outcomes, key=lambda each: each.wait_ms)
    memory_bytes = max(each.memory_bytes for each in outcomes)
    answer = _decoded(frames[-1], best.answer)
    found = Counter(error_codes(answer)) if answer is not CLOSED else Counter()
    slowest = max(best.waits, key=best.waits.__getitem__)
    size = "closed" if best.answer is None else f"{len(best.answer) >> 10} KiB"
    names = ", ".join(f"{count} {ErrorCode(code).name}" for code, count in found.most_common(3))
    report(
        f"{slowest} waited {best.wait_ms:.0f} ms (without attack {ground.baseline_ms:.0f});"
        f" {memory_bytes >> 20} MiB; {sum(map(len, frames)) >> 10} KiB, answered {size}"
        f" in {best.took_ms:.0f} ms: {names or '-'}"
    )
    assert ground.broker.processes == ground.processes, "a process was restarted"
    assert best.wait_ms <= limit_ms, best.waits
    assert memory_bytes < MEMORY_BYTES_MAX
    assert errors is None or found == errors
    return answer


def _find_coordinator(wire: WireClient, key: str, key_type: int) -> None:
    """Have the coordinator's topic created, and wait until it is there."""
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])

    def is_found() -> bool:
        return not wire.ask(request, 6, FindCoordinatorResponse).coordinators[0].error_code

    wait_until(is_found, what=f"{key} has a coordinator")


def produce(topic: str, records: bytes, transactional_id: str | None = None) -> ProduceRequest:
    """One batch for partition 0 of the topic, with acks=all."""
    partition = PartitionProduceData(index=0, records=memoryview(records))
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[partition])],
    )


def init_producer(wire: WireClient, transactional_id: str) -> InitProducerIdResponse:
    """A producer id. Waits for the coordinator of the id, whose topic is created if need be."""
    _find_coordinator(wire, transactional_id, 1)
    init = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=900_000)

    def answer() -> InitProducerIdResponse | None:
        found = wire.ask(init, 4, InitProducerIdResponse)
        return None if found.error_code else found

    found = wait_until(answer, what="the producer has an id")
    assert found is not None
    return found


def error_codes(message: object) -> Iterator[int]:
    """All error codes in a response."""
    for declared in fields_of(type(message)):
        value = getattr(message, declared.name)
        if declared.name == "error_code":
            yield int(value)
        elif declared.kind is FieldKind.ARRAY and isinstance(declared.element, type):
            for element in value or ():
                yield from error_codes(element)


def _attempt(ground: Ground, frames: Sequence[bytes]) -> AttackOutcome:
    memory_bytes = 0
    answer: memoryview | None = None

    def look() -> None:
        nonlocal memory_bytes
        memory_bytes = max(memory_bytes, *map(_memory_of, ground.processes.values()))

    ground.probe.longest_ms()
    started_s = time.monotonic()
    with WireClient(ground.broker.bootstrap_servers, timeout_s=ANSWER_TIMEOUT_S) as wire:
        try:
            for frame in frames:
                wire.send_raw(frame)
                while wire.is_silent(0.02):
                    look()
                    assert time.monotonic() - started_s < ANSWER_TIMEOUT_S, "no answer"
                answer = wire.receive_frame()
            look()
        except ClosedByPeer:
            answer = None
    took_ms = 1000 * (time.monotonic() - started_s)
    return AttackOutcome(ground.probe.longest_ms(), memory_bytes, answer, took_ms)


def _memory_of(process: int) -> int:
    """Private bytes of a process, without its files and the arena."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the process has no RssAnon")


def _decoded(request: bytes, answer: memoryview | None) -> object:
    if answer is None:
        return CLOSED
    header = decode_request_header(request[_FRAME_LENGTH_SIZE:])
    key, version = ApiKey(header.api_key), header.api_version
    _, at = decode_response_header(key, version, answer)
    return decode_response(key, version, answer, at)
