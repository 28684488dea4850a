"""A router asks its supervisor to change the whole node; a socket pair stands in for that."""

import logging
import socket

import msgspec
import pytest

from odradek.node.bus.reply import Reply
from odradek.node.config import NodeConfig
from odradek.node.log_levels import set_log_levels
from odradek.node.observability import (
    LINK_KIND,
    ChangeLogLevels,
    ChangeSettings,
    LogLevelsChanged,
    ProcessHeartbeat,
    SettingsChanged,
    SupervisorLink,
    decode_from_child,
    encode_link,
)
from odradek.node.router.node_control import NodeControl
from odradek.protocol.errors import ApiError, ErrorCode

WIRE = "odradek.node.wire"
CONFIG = NodeConfig(node_id=0, data="data", run="run", listeners=())


def told(connection: socket.socket) -> list[msgspec.Struct]:
    messages: list[msgspec.Struct] = []
    connection.setblocking(False)
    while True:
        try:
            message = decode_from_child(connection.recv(65_536))
        except BlockingIOError:
            return messages
        if not isinstance(message, ProcessHeartbeat):
            messages.append(message)


def turn(link: SupervisorLink) -> None:
    link._next_poll = 0.0
    link.poll()


def test_a_change_is_done_when_the_supervisor_says_so() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, LINK_KIND)
    with ours, SupervisorLink(theirs, "router-0") as link:
        control = NodeControl(link, CONFIG)
        first = control.change_log_levels({WIRE: "DEBUG"})
        second = control.change_log_levels({WIRE: None})
        assert told(ours) == [ChangeLogLevels(1, {WIRE: "DEBUG"}), ChangeLogLevels(2, {WIRE: None})]
        assert [first.is_done, second.is_done] == [False, False]
        ours.send(encode_link(LogLevelsChanged(1)))
        ours.send(encode_link(LogLevelsChanged(1)))
        turn(link)
        assert [first.is_done, second.is_done] == [True, False]
        ours.send(encode_link(LogLevelsChanged(2, "no space left")))
        turn(link)
        assert_failed(second, ErrorCode.KAFKA_STORAGE_ERROR)


def test_settings_are_there_when_the_supervisor_says_so() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, LINK_KIND)
    with ours, SupervisorLink(theirs, "router-0") as link:
        control = NodeControl(link, CONFIG)
        trial = control.change_settings({"log.level": "DEBUG"}, is_trial=True)
        change = control.change_settings({"arena.bytes": "1"}, is_trial=False)
        assert told(ours) == [
            ChangeSettings(1, {"log.level": "DEBUG"}, is_trial=True),
            ChangeSettings(2, {"arena.bytes": "1"}, is_trial=False),
        ]
        ours.send(encode_link(SettingsChanged(1)))
        turn(link)
        assert [trial.is_done, change.is_done] == [True, False]
        ours.send(encode_link(SettingsChanged(2, "too small")))
        ours.send(encode_link(SettingsChanged(2, "too small")))
        turn(link)
        assert_failed(change, ErrorCode.INVALID_CONFIG)
    by_hand = NodeControl(SupervisorLink(None, "router-0"), CONFIG)
    assert by_hand.change_settings({}, is_trial=True).is_done


def assert_failed(reply: Reply[None], code: ErrorCode) -> None:
    with pytest.raises(ApiError) as failed:
        reply.result()
    assert failed.value.code == code


def test_a_router_that_was_started_by_hand_changes_itself() -> None:
    control = NodeControl(SupervisorLink(None, "router-0"), CONFIG)
    before = logging.getLogger().level
    try:
        assert control.change_log_levels({WIRE: "ERROR"}).is_done
        assert control.config.log_levels == {WIRE: "ERROR"}
        assert logging.getLogger(WIRE).level == logging.ERROR
    finally:
        set_log_levels("INFO", {})
        logging.getLogger().setLevel(before)
