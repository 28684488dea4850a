"""Loggers and their levels: which there are, what gives them their level, what may be set."""

import logging
from collections.abc import Iterator

import pytest

from odradek.cluster.metadata.config_definitions import ConfigSource
from odradek.node.log_levels import (
    LEVELS,
    LOGGERS,
    ROOT_LOGGER,
    check_level,
    level_chain,
    merged_levels,
    set_log_levels,
)
from odradek.protocol.errors import ApiError, ErrorCode

WIRE = "odradek.node.wire"
CONNECTION = "odradek.node.wire.connection"


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    set_log_levels("INFO", {})
    logging.getLogger().setLevel(before)


def test_the_folders_of_loggers_are_loggers_too() -> None:
    assert {"odradek", "odradek.node", WIRE, CONNECTION, ROOT_LOGGER} <= set(LOGGERS)
    assert list(LOGGERS) == sorted(set(LOGGERS))


def test_a_logger_has_its_own_level_or_that_of_the_nearest_prefix() -> None:
    own = ConfigSource.DYNAMIC_BROKER_LOGGER
    configured = ("log.level", "WARN", ConfigSource.STATIC_BROKER)
    assert level_chain(CONNECTION, "WARNING", {}) == [configured]
    set_ones = {WIRE: "DEBUG", ROOT_LOGGER: "ERROR", "odradek.storage": "TRACE"}
    assert level_chain(CONNECTION, "WARNING", set_ones) == [
        (WIRE, "DEBUG", own),
        (ROOT_LOGGER, "ERROR", own),
        configured,
    ]
    assert level_chain(ROOT_LOGGER, "WARNING", {})[0] == configured


@pytest.mark.parametrize("level", LEVELS)
def test_levels_are_set_and_taken_away(level: str) -> None:
    set_log_levels("INFO", {WIRE: level})
    assert logging.getLogger(CONNECTION).getEffectiveLevel() == LEVELS[level]
    assert logging.getLogger("odradek.node.router.dispatch").getEffectiveLevel() == logging.INFO
    set_log_levels("WARNING", {})
    assert logging.getLogger(CONNECTION).getEffectiveLevel() == logging.WARNING
    set_log_levels("WARNING", {ROOT_LOGGER: level})
    assert logging.getLogger(CONNECTION).getEffectiveLevel() == LEVELS[level]


def test_changes_are_merged() -> None:
    assert merged_levels({"a": "INFO", "b": "WARN"}, {"a": None, "c": "DEBUG"}) == {
        "b": "WARN",
        "c": "DEBUG",
    }


@pytest.mark.parametrize(
    ("name", "level", "code"),
    [
        ("no.such.logger", "INFO", ErrorCode.INVALID_CONFIG),
        ("no.such.logger", None, ErrorCode.INVALID_CONFIG),
        (WIRE, "debug", ErrorCode.INVALID_CONFIG),
        (WIRE, "", ErrorCode.INVALID_CONFIG),
        (ROOT_LOGGER, None, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_set_is_refused(name: str, level: str | None, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        check_level(name, level)
    assert refused.value.code == code
    check_level(WIRE, None)
    check_level(ROOT_LOGGER, "FATAL")
