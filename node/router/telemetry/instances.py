"""The client instances that ask for telemetry subscriptions and push metrics (KIP-714): who may do
so when.

A request that comes before the interval has passed gets THROTTLING_QUOTA_EXCEEDED. Not so

- GetTelemetrySubscriptions after an answer of UNKNOWN_SUBSCRIPTION_ID or
  UNSUPPORTED_COMPRESSION_TYPE: the client asks again at once;
- the first PushTelemetry after a GetTelemetrySubscriptions: a client varies its interval;
- the PushTelemetry with which a client ends. Every later one gets INVALID_REQUEST.

Pure: the time and new ids are arguments. Time is monotonic, in milliseconds. An instance is known
to one broker only, and forgotten with its connection, after EXPIRY_INTERVALS of its intervals
without a request, or when INSTANCES_MAX others were used later: a client that comes back begins
anew. When the subscriptions have changed it begins anew as well, so that it learns of it at once.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from odradek.node.router.telemetry.subscriptions import (
    ClientAttributes,
    ClientMetricsSubscriptions,
    Subscription,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import Uuid

INSTANCES_MAX: Final = 16_384
"""Kafka's limit."""
EXPIRY_MS_MIN: Final = 60_000
EXPIRY_INTERVALS: Final = 3
_EXPIRY_CHECK_MS: Final = 10_000
_NEVER_MS: Final = -(1 << 62)
_RETRIED_AT_ONCE: Final = (
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
)


class ClientInstance:
    """A client instance and its subscription."""

    __slots__ = (
        "_last_error",
        "_last_get_ms",
        "_last_push_ms",
        "attributes",
        "connection_id",
        "expires_ms",
        "instance_id",
        "is_terminated",
        "subscription",
        "version",
    )

    def __init__(
        self,
        instance_id: Uuid,
        attributes: ClientAttributes,
        subscription: Subscription,
        version: int,
        connection_id: int,
    ) -> None:
        self.instance_id = instance_id
        self.attributes = attributes
        self.subscription = subscription
        self.version = version
        """Of the subscriptions, when this one was taken from them."""
        self.connection_id = connection_id
        self.expires_ms = 0
        self.is_terminated = False
        self._last_get_ms = self._last_push_ms = _NEVER_MS
        self._last_error = ErrorCode.NONE

    @property
    def expiry_ms(self) -> int:
        """How long it is kept after its last request."""
        return max(EXPIRY_MS_MIN, EXPIRY_INTERVALS * self.subscription.interval_ms)

    def begin_get(self, now_ms: int) -> None:
        """A GetTelemetrySubscriptions request. ApiError if it comes too early."""
        last_ms = max(self._last_get_ms, self._last_push_ms)
        is_due = now_ms - last_ms >= self.subscription.interval_ms
        if not is_due and self._last_error not in _RETRIED_AT_ONCE:
            raise self.failed(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self._last_get_ms = now_ms
        self._last_error = ErrorCode.NONE

    def begin_push(self, subscription_id: int, *, is_terminating: bool, now_ms: int) -> None:
        """A PushTelemetry request. ApiError if it comes too early, after the terminating one, or
        for another subscription."""
        if self.is_terminated:
            raise self.failed(ErrorCode.INVALID_REQUEST)
        self.is_terminated = is_terminating
        is_due = (
            self._last_get_ms > self._last_push_ms
            or now_ms - self._last_push_ms >= self.subscription.interval_ms
        )
        if is_due:
            self._last_push_ms = now_ms
        elif not is_terminating:
            raise self.failed(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if subscription_id != self.subscription.subscription_id:
            raise self.failed(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        self._last_error = ErrorCode.NONE

    def failed(self, code: ErrorCode) -> ApiError:
        """The error to raise: the last answer to the client is `code`."""
        self._last_error = code
        return ApiError(code)


class ClientInstances:
    """See the module's docstring."""

    def __init__(self, subscriptions: ClientMetricsSubscriptions) -> None:
        self._subscriptions = subscriptions
        # The one that was used least recently is the first.
        self._instances: OrderedDict[Uuid, ClientInstance] = OrderedDict()
        self._by_connection: dict[int, set[Uuid]] = {}
        self._next_check_ms = 0

    def __len__(self) -> int:
        return len(self._instances)

    def __iter__(self) -> Iterator[ClientInstance]:
        return iter(self._instances.values())

    def get(self, instance_id: Uuid) -> ClientInstance | None:
        """The instance; None if it is not known."""
        return self._instances.get(instance_id)

    def use(
        self, instance_id: Uuid, attributes: ClientAttributes, connection_id: int, now_ms: int
    ) -> ClientInstance:
        """The instance that sends a request, known or new, with its subscription up to date."""
        self._expire(now_ms)
        instance = self._instances.get(instance_id)
        if instance is None or instance.version != self._subscriptions.version:
            if instance is not None:
                self._remove(instance)
            instance = ClientInstance(
                instance_id,
                attributes,
                self._subscriptions.subscription_of(attributes, instance_id),
                self._subscriptions.version,
                connection_id,
            )
            if len(self._instances) >= INSTANCES_MAX:
                self._remove(next(iter(self._instances.values())))
            self._instances[instance_id] = instance
            self._by_connection.setdefault(connection_id, set()).add(instance_id)
        else:
            self._instances.move_to_end(instance_id)
            if instance.connection_id != connection_id:
                self._unbind(instance)
                instance.connection_id = connection_id
                self._by_connection.setdefault(connection_id, set()).add(instance_id)
        instance.expires_ms = now_ms + instance.expiry_ms
        return instance

    def remove_connection(self, connection_id: int) -> None:
        """The connection is closed: its instances are forgotten."""
        for instance_id in self._by_connection.pop(connection_id, ()):
            del self._instances[instance_id]

    def _expire(self, now_ms: int) -> None:
        if now_ms < self._next_check_ms:
            return
        self._next_check_ms = now_ms + _EXPIRY_CHECK_MS
        for instance in [each for each in self if each.expires_ms <= now_ms]:
            self._remove(instance)

    def _remove(self, instance: ClientInstance) -> None:
        del self._instances[instance.instance_id]
        self._unbind(instance)

    def _unbind(self, instance: ClientInstance) -> None:
        bound = self._by_connection[instance.connection_id]
        bound.discard(instance.instance_id)
        if not bound:
            del self._by_connection[instance.connection_id]
