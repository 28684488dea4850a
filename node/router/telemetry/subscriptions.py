"""Which metrics a client pushes, and how often (KIP-714): the client metrics subscriptions that
match it, taken together.

A subscription matches a client whose attributes all match its patterns. The client pushes the
metrics of all of them at the shortest of their intervals. As in Kafka a client that no subscription
matches has no metrics and the default interval: it asks again then.

Pure but for RE2's compiled expressions. `follow` is called with the configs of each image before a
client is matched; `version` grows whenever they have changed.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from odradek.cluster.metadata.client_metrics_settings import (
    ALL_METRICS,
    INTERVAL_MS_DEFAULT,
    ClientMetricsSettings,
    illegal_pattern,
    match_patterns,
)
from odradek.cluster.metadata.config_definitions import ConfigError
from odradek.cluster.metadata.settings import own_values
from odradek.node.router.patterns import Pattern, compile_pattern
from odradek.node.structured_log import get_logger
from odradek.protocol.checksum import crc32c
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import Uuid

log = get_logger(__name__)

UNKNOWN_SOFTWARE: Final = "unknown"
"""Name and version of the software of a client that has not told them (KIP-511)."""


class ClientAttributes(NamedTuple):
    """What patterns match, in the order and with the names of their parameters."""

    client_instance_id: str
    client_id: str | None
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str


class Subscription(NamedTuple):
    """What one client pushes. `metrics` are prefixes of names, or the one text `*` for all; empty:
    nothing. `subscription_id` is the same on all brokers, and changes with the other two."""

    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int


class _CompiledSubscription(NamedTuple):
    metrics: tuple[str, ...]
    interval_ms: int
    patterns: tuple[tuple[int, Pattern], ...]
    """Each with the index of the attribute that it matches."""

    def matches(self, attributes: ClientAttributes) -> bool:
        """Whether all patterns match; without patterns, always."""
        for index, pattern in self.patterns:
            text = attributes[index]
            if text is None or pattern.fullmatch(text) is None:
                return False
        return True


class ClientMetricsSubscriptions:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.version = 0
        self._configs: Mapping[str, Mapping[str, str]] = {}
        self._compiled: tuple[_CompiledSubscription, ...] = ()

    def follow(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Use the configs of the subscriptions by name, the same object while none changes."""
        if configs is self._configs:
            return
        if configs != self._configs:
            self.version += 1
            each = (_compiled(name, configs[name]) for name in sorted(configs))
            self._compiled = tuple(compiled for compiled in each if compiled is not None)
        self._configs = configs

    def subscription_of(self, attributes: ClientAttributes, instance_id: Uuid) -> Subscription:
        """What a client pushes."""
        interval_ms = INTERVAL_MS_DEFAULT
        wanted: set[str] = set()
        for each in self._compiled:
            if each.matches(attributes):
                wanted.update(each.metrics)
                interval_ms = min(interval_ms, each.interval_ms)
        metrics = (ALL_METRICS,) if ALL_METRICS in wanted else tuple(sorted(wanted))
        return Subscription(
            metrics, interval_ms, _subscription_id(metrics, interval_ms, instance_id)
        )


def check_match(text: str) -> None:
    """ApiError(INVALID_CONFIG) if a pattern of a subscription's `match` is not valid in RE2. The
    form of the list of patterns is not checked here."""
    items = [item.strip() for item in text.split(",")]
    try:
        patterns = match_patterns(items)
    except ConfigError:
        return  # the controller says what is wrong
    for parameter, expression in patterns:
        try:
            compile_pattern(expression, parameter)
        except ApiError as error:
            reason = error.message.rpartition(" is not a valid regular expression: ")[2]
            text = f"{illegal_pattern(f'{parameter}={expression}')}: {reason}"
            raise ApiError(ErrorCode.INVALID_CONFIG, text) from None


def _compiled(name: str, configs: Mapping[str, str]) -> _CompiledSubscription | None:
    settings = ClientMetricsSettings(**own_values(ClientMetricsSettings, configs))
    try:
        patterns = tuple(
            (ClientAttributes._fields.index(parameter), compile_pattern(expression, parameter))
            for parameter, expression in settings.match
        )
    except ApiError as error:
        # It was checked when it was set, by a release with another RE2.
        log.warning(
            "a client metrics subscription matches no client",
            subscription=name,
            reason=error.message,
        )
        return None
    return _CompiledSubscription(settings.metrics, settings.interval_ms, patterns)


def _subscription_id(metrics: tuple[str, ...], interval_ms: int, instance_id: Uuid) -> int:
    checksum = crc32c(f"{','.join(metrics)} {interval_ms}".encode(), crc32c(instance_id))
    return checksum - (1 << 32) if checksum >= 1 << 31 else checksum
