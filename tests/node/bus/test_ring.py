"""The ring: each message once and in order, across its end, full and empty; it wakes its reader."""

import random
import subprocess
import sys
from mmap import mmap
from pathlib import Path

import pytest

from odradek.node.bus.ring import HEADER_BYTES, RingReader, RingWriter


def _ring(capacity: int = 256) -> tuple[RingWriter, RingReader]:
    memory = memoryview(bytearray(HEADER_BYTES + capacity))
    return RingWriter(memory), RingReader(memory)


def test_messages_come_out_in_order_and_once() -> None:
    writer, reader = _ring()
    assert reader.read() is None
    for payload in (b"one", b"", b"three"):
        assert writer.write(payload)
    assert [reader.read() for _ in range(4)] == [b"one", b"", b"three", None]


def test_a_write_to_a_full_ring_fails_until_there_is_room() -> None:
    writer, reader = _ring(64)
    count = 0
    while writer.write(b"x" * 12):
        count += 1
    assert count == 4
    assert reader.read() == b"x" * 12
    assert writer.write(b"y" * 12)
    assert not writer.write(b"z" * 12)


@pytest.mark.parametrize("seed", range(20))
def test_ring_behaves_like_a_bounded_queue(seed: int) -> None:
    draw = random.Random(seed)
    writer, reader = _ring(512)
    expected: list[bytes] = []
    for _ in range(2_000):
        if draw.random() < 0.55:
            payload = draw.randbytes(draw.randrange(0, writer.message_bytes_max))
            if writer.write(payload):
                expected.append(payload)
            else:
                assert expected, "an empty ring takes any message of the promised size"
        else:
            assert reader.read() == (expected.pop(0) if expected else None)


def test_a_sleeping_reader_is_woken_once() -> None:
    writer, reader = _ring()
    assert not writer.must_wake()
    assert reader.fall_asleep()
    writer.write(b"a")
    assert writer.must_wake()
    writer.write(b"b")
    assert not writer.must_wake()


def test_a_message_before_the_sleep_keeps_the_reader_awake() -> None:
    writer, reader = _ring()
    writer.write(b"a")
    assert not reader.fall_asleep()
    assert not writer.must_wake()
    assert reader.read() == b"a"


def test_a_reader_that_wakes_by_itself_is_not_woken() -> None:
    writer, reader = _ring()
    assert reader.fall_asleep()
    reader.wake_up()
    writer.write(b"a")
    assert not writer.must_wake()


_WRITER = """
import sys
from mmap import mmap
from odradek.node.bus.ring import RingWriter
with open(sys.argv[1], "r+b") as file:
    writer = RingWriter(memoryview(mmap(file.fileno(), 0)))
for number in range(20_000):
    payload = b"%d" % number * (number % 7 + 1)
    while not writer.write(payload):
        pass
"""


def test_two_processes_pass_messages_at_full_speed(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    path.write_bytes(bytes(HEADER_BYTES + 4096))
    with path.open("r+b") as file:
        reader = RingReader(memoryview(mmap(file.fileno(), 0)))
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(path)]) as process:
        for number in range(20_000):
            payload = reader.read()
            while payload is None:
                assert process.poll() in (None, 0)
                payload = reader.read()
            assert payload == b"%d" % number * (number % 7 + 1)
        assert process.wait(10) == 0
