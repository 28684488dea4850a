"""The fields that the responses of many APIs begin with."""

from __future__ import annotations

from odradek.protocol.schema import int16, int32, string, struct


@struct
class ErrorCodeResponse:
    """A response with an error code for the whole request."""

    throttle_time_ms: int = int32()
    error_code: int = int16()


@struct
class ErrorMessageResponse(ErrorCodeResponse):
    """A response with an error code and a message for the whole request."""

    error_message: str | None = string(nullable_since=0, default=None)
