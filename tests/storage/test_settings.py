"""Settings: Kafka's defaults, and rows that stay readable."""

import msgspec

from odradek.protocol.types import NEVER
from odradek.storage.settings import LogSettings, StoreOptions, TimestampType


def test_settings_are_stored_without_defaults() -> None:
    settings = LogSettings(
        retention_ms=7, message_timestamp_type=TimestampType.LOG_APPEND_TIME, flush_ms=3
    )
    row = msgspec.msgpack.encode(settings)
    assert msgspec.msgpack.decode(row, type=LogSettings) == settings
    assert len(msgspec.msgpack.encode(LogSettings())) <= 3


def test_a_row_with_a_setting_of_a_newer_version_is_still_read() -> None:
    row = msgspec.msgpack.encode({"retention_ms": 7, "invented_later": 1})
    assert msgspec.msgpack.decode(row, type=LogSettings).retention_ms == 7


def test_defaults_are_kafkas() -> None:
    settings = LogSettings()
    assert settings.max_message_bytes == 1_048_588
    assert settings.segment_bytes == 1 << 30
    assert settings.retention_ms == 7 * 86_400_000
    assert settings.message_timestamp_after_max_ms == 3_600_000
    assert settings.flush_messages == settings.flush_ms == NEVER


def test_a_segments_map_has_room_beyond_its_size() -> None:
    assert StoreOptions().map_bytes() > 2 * StoreOptions().segment_bytes
    assert StoreOptions(segment_map_bytes=123).map_bytes() == 123
