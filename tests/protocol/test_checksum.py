"""CRC-32C, compared with its published check value and a simple implementation."""

from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.checksum import crc32c


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, with the reflected Castagnoli polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_checksum_has_the_published_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283 == slow_crc32c(b"123456789")


@settings(derandomize=True, deadline=None, database=None)
@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_buffer_in_any_pieces_has_the_same_checksum(data: bytes, cut: int) -> None:
    view = memoryview(bytearray(b"-" + data))[1:]
    assert crc32c(view) == crc32c(view[cut:], crc32c(view[:cut])) == slow_crc32c(data)
