"""The quota of partitions that a client creates and deletes: controller_mutation_rate (KIP-599).

The active controller counts for the whole cluster, as Kafka's does. What clients have used is soft
state, like the sessions of brokers: in no image and no log, and lost with the leadership.
"""

from typing import Final

from odradek.cluster.controller.commands import MutatingClient
from odradek.cluster.controller.state import ControllerState
from odradek.cluster.metadata.client_quotas import QuotaLimit
from odradek.cluster.security.quota_rates import TokenBucket
from odradek.protocol.errors import ApiError, ErrorCode

_BUCKETS_MAX: Final = 10_000


class MutationBuckets:
    """What clients have left, by user and client id as the quotas share it."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def bucket(self, limit: QuotaLimit) -> TokenBucket:
        """The bucket of those who share the limit. Of too many, those used longest ago are
        dropped: they are full again, or nearly."""
        key = limit.user, limit.client_id
        bucket = self._buckets.pop(key, None) or TokenBucket()
        self._buckets[key] = bucket
        if len(self._buckets) > _BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        return bucket


class MutationQuota:
    """The quota of one command's client. `throttle_time_ms` is what its reply says.

    A strict quota refuses mutations while it is exhausted, with THROTTLING_QUOTA_EXCEEDED; one that
    is not exhausted allows any number at once. One that is not strict allows everything, and only
    has the client wait: for versions of requests before KIP-599.
    """

    def __init__(
        self,
        state: ControllerState,
        buckets: MutationBuckets,
        client: MutatingClient | None,
        now_ms: int,
    ) -> None:
        """Without a client nothing is counted."""
        self.throttle_time_ms = 0
        self._now_ms = now_ms
        self._limit: QuotaLimit | None = None
        if client is not None:
            limits = state.image.client_quotas.limits(client.user, client.client_id)
            self._limit = limits.controller_mutation_rate
            self._is_strict = client.is_strict
        if self._limit is not None:
            settings = state.broker_settings
            self._bucket = buckets.bucket(self._limit)
            self._burst_s = (
                settings.controller_quota_window_num * settings.controller_quota_window_size_seconds
            )

    def charge(self, partition_count: int) -> None:
        """Count partitions that are about to be created or deleted; ApiError if it is refused."""
        if self._limit is None:
            return
        bucket, rate, now_ms = self._bucket, self._limit.value, self._now_ms
        if self._is_strict:
            exhausted_ms = bucket.throttle_ms(rate, self._burst_s, now_ms)
            if exhausted_ms:
                self.throttle_time_ms = exhausted_ms
                raise ApiError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
                )
            bucket.take(partition_count, rate, self._burst_s, now_ms)
        else:
            bucket.take(partition_count, rate, self._burst_s, now_ms)
            self.throttle_time_ms = bucket.throttle_ms(rate, self._burst_s, now_ms)
