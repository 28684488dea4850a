"""Effects on share states are values, with the id of the waiting request."""

from odradek.coordinator.group.share.requests import (
    DeleteStates,
    InitializeStates,
    StatesDeleted,
    StatesInitialized,
)
from odradek.coordinator.outcome import NO_REQUEST
from odradek.protocol.errors import ErrorCode

T = bytes(range(16))


def test_no_request_waits_by_default() -> None:
    for value in (
        InitializeStates("g", 1, {T: {0: -1}}),
        DeleteStates("g", {T: frozenset({0})}),
        StatesInitialized("g", {T: {0: ErrorCode.NONE}}),
        StatesDeleted("g", {T: {0: ErrorCode.NONE}}),
    ):
        assert value.request_id == NO_REQUEST


def test_instructions_are_compared_by_value() -> None:
    assert InitializeStates("g", 1, {T: {0: -1}}) == InitializeStates("g", 1, {T: {0: -1}})
    assert InitializeStates("g", 1, {T: {0: -1}}) != InitializeStates("g", 2, {T: {0: -1}})
