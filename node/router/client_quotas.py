"""Client quotas: what the clients of this router use of them, and how long they have to wait.

Who has which limit is in the metadata (cluster/metadata/client_quotas.py); the arithmetic is in
cluster/security/quota_rates.py. What was used, also of the workers' time, is kept here, in memory:
a node has one router, which all its clients are connected to, so its rates are those of the broker,
as in Kafka. Other brokers count for themselves.

A request above a quota is answered at once. The answer says how long the client is throttled, and
for that time the router reads nothing from the connection (KIP-219). A fetch above its quota is
answered without records, and not counted. Nothing is counted for a client without a limit: as long
as nobody has one, a request costs a look at an empty set. Invariant: at most `USES_MAX` rates.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, NamedTuple, Protocol

from odradek.cluster.controller.commands import MutatingClient
from odradek.cluster.metadata.client_quotas import ClientLimits, QuotaKey, QuotaLimit
from odradek.cluster.security.quota_rates import BurstCredit, SampledRate
from odradek.node.router.metadata_cache import MetadataCache
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.schema import fields_of

USES_MAX: Final = 10_000
"""Rates that are kept. Of more clients, those that were counted longest ago begin anew."""
USES_REPORTED_MAX: Final = 200
"""Of the metrics: those that were throttled longest, then those that were used last."""
REPORT_MS: Final = 500
IDLE_MS: Final = 3_600_000
"""After which a rate is forgotten, as in Kafka."""
_PERCENT_PER_NS: Final = 100 / 1e9
_UNLIMITED: Final = 2**31 - 1
_EXEMPT: Final = ClientLimits(None, None, None, None)
_STRICT_SINCE: Final = {
    ApiKey.CREATE_TOPICS: 6,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DELETE_TOPICS: 5,
}
"""The versions of KIP-599: their clients know THROTTLING_QUOTA_EXCEEDED."""


class LimitedRequest(Protocol):
    """What is read and written of a request. RequestContext has it."""

    api_key: int
    api_version: int
    client_id: str | None
    principal: str
    throttle_time_ms: int


class QuotaUse:
    """The use of one quota by those who share it."""

    __slots__ = ("burst_credit", "limit", "rate", "throttle_count", "throttled_ms", "used_ms")

    def __init__(self, rate: SampledRate) -> None:
        self.rate = rate
        self.burst_credit = BurstCredit()
        """Of bytes."""
        self.limit = 0.0
        self.used_ms = 0
        """When it was counted last."""
        self.throttle_count = 0
        self.throttled_ms = 0

    def count_throttle(self, throttle_ms: int) -> None:
        """A client was told to wait, unless 0."""
        if throttle_ms:
            self.throttle_count += 1
            self.throttled_ms += throttle_ms


class QuotaUseKey(NamedTuple):
    """The key that is limited, and who shares the limit, as in QuotaLimit."""

    key: str
    user: str
    client_id: str


class ClientQuotas:
    """The quotas of one router. `clock_ms` does not go back."""

    def __init__(
        self, metadata: MetadataCache, cluster_principal: str, clock_ms: Callable[[], int]
    ) -> None:
        """Nothing limits the cluster's principal: that of other nodes."""
        self._metadata = metadata
        self._cluster_principal = cluster_principal
        self._clock_ms = clock_ms
        self._uses: OrderedDict[QuotaUseKey, QuotaUse] = OrderedDict()
        self._report: Mapping[QuotaUseKey, QuotaUse] = {}
        self._reported_ms = -REPORT_MS

    @property
    def is_active(self) -> bool:
        """Whether any client has a quota."""
        return bool(self._metadata.image.client_quotas.keys_of_clients)

    def fetch_bytes_max(self, request: LimitedRequest) -> int:
        """The bytes of one fetch that the quota allows if nothing was fetched before. A larger
        fetch would always be refused."""
        limit = self._limits(request).consumer_byte_rate
        if limit is None:
            return _UNLIMITED
        settings = self._metadata.broker_settings()
        window_s = (settings.quota_window_num - 1) * settings.quota_window_size_seconds
        return min(int(limit.value * window_s), _UNLIMITED)

    def is_fetch_throttled(self, request: LimitedRequest, byte_count: int) -> bool:
        """Count the bytes of a response to Fetch; True if it must be empty instead, and the client
        wait. Then they are not counted.

        Of a client that has fetched nothing else, a batch that is larger than the whole window
        allows is sent, and the client waits after it. In Kafka its consumer waits for ever.
        """
        limit = self._limits(request).consumer_byte_rate
        if limit is None:
            return False
        now_ms = self._clock_ms()
        use = self._use(QuotaKey.CONSUMER_BYTE_RATE, limit, now_ms)
        throttle_ms = self._record(use, limit, byte_count, now_ms)
        is_throttled = throttle_ms > 0
        if is_throttled:
            use.rate.record(-byte_count, now_ms)
            if byte_count > self.fetch_bytes_max(request) and use.rate.rate(now_ms) < 1.0:
                use.rate.record(byte_count, now_ms)
                is_throttled = False
        if not is_throttled:
            throttle_ms = max(throttle_ms, self._smooth(use, limit, byte_count, now_ms))
        use.count_throttle(throttle_ms)
        request.throttle_time_ms = max(request.throttle_time_ms, throttle_ms)
        return is_throttled

    def mutating_client(self, request: LimitedRequest) -> MutatingClient | None:
        """For a command that creates or deletes partitions: whose quota the controller counts.

        Requests that create topics besides, as Metadata does, are not refused but throttled.
        """
        if self._limits(request).controller_mutation_rate is None:
            return None
        strict_since = _STRICT_SINCE.get(request.api_key)  # type: ignore[call-overload]  # an ApiKey is an int
        is_strict = strict_since is not None and request.api_version >= strict_since
        return MutatingClient(_user(request), request.client_id or "", is_strict)

    def count_produce(self, request: LimitedRequest, byte_count: int) -> int:
        """Count a Produce request of this size, which is carried out in any case. Returns for how
        many milliseconds the client is throttled."""
        limit = self._limits(request).producer_byte_rate
        if limit is not None:
            now_ms = self._clock_ms()
            use = self._use(QuotaKey.PRODUCER_BYTE_RATE, limit, now_ms)
            throttle_ms = self._record(use, limit, byte_count, now_ms)
            # While the rate is above the limit, the throttle times are Kafka's.
            smoothing_ms = self._smooth(use, limit, byte_count, now_ms)
            request.throttle_time_ms = throttle_ms or smoothing_ms
            use.count_throttle(request.throttle_time_ms)
        return request.throttle_time_ms

    def finish(
        self, request: LimitedRequest, *, shared_bytes: int, work_ns: int, is_answered: bool
    ) -> int:
        """Count a request that is about to be answered. Returns for how many milliseconds the
        client is throttled, also for what was counted before.

        `shared_bytes` is the size of the records of a ShareFetch response: they are acquired
        already, so that they are sent. As in Kafka, the time of a request without an answer does
        not throttle.
        """
        throttle_ms = request.throttle_time_ms
        limits = self._limits(request)
        limit = limits.consumer_byte_rate
        if limit is not None and shared_bytes:
            now_ms = self._clock_ms()
            use = self._use(QuotaKey.CONSUMER_BYTE_RATE, limit, now_ms)
            share_ms = self._record(use, limit, shared_bytes, now_ms)
            smoothing_ms = self._smooth(use, limit, shared_bytes, now_ms)
            use.count_throttle(share_ms or smoothing_ms)
            throttle_ms = max(throttle_ms, share_ms or smoothing_ms)
        limit = limits.request_percentage
        if limit is not None and is_answered:
            now_ms = self._clock_ms()
            use = self._use(QuotaKey.REQUEST_PERCENTAGE, limit, now_ms)
            longest_ms = use.rate.sample_ms
            percent = work_ns * _PERCENT_PER_NS
            request_ms = self._record(use, limit, percent, now_ms, throttle_ms_max=longest_ms)
            use.count_throttle(request_ms)
            throttle_ms = max(throttle_ms, request_ms)
        return throttle_ms

    def count_time(self, request: LimitedRequest, work_ns: int) -> None:
        """Count time that was spent after `finish`. The next request is throttled for it."""
        limit = self._limits(request).request_percentage
        if limit is not None:
            now_ms = self._clock_ms()
            use = self._use(QuotaKey.REQUEST_PERCENTAGE, limit, now_ms)
            use.rate.record(work_ns * _PERCENT_PER_NS, now_ms)

    def report(self) -> Mapping[QuotaUseKey, QuotaUse]:
        """The uses for the metrics, USES_REPORTED_MAX of them. All metrics of one report get the
        same ones: to choose among all takes milliseconds."""
        now_ms = self._clock_ms()
        if now_ms - self._reported_ms < REPORT_MS:
            return self._report
        self._reported_ms = now_ms
        while self._uses:
            key, oldest = next(iter(self._uses.items()))
            if now_ms - oldest.used_ms < IDLE_MS:
                break
            del self._uses[key]
        if len(self._uses) <= USES_REPORTED_MAX:
            self._report = dict(self._uses)
        else:
            largest = heapq.nlargest(
                USES_REPORTED_MAX,
                self._uses.items(),
                key=lambda item: (item[1].throttled_ms, item[1].used_ms),
            )
            self._report = dict(largest)
        return self._report

    @property
    def use_count(self) -> int:
        """How many rates are kept."""
        return len(self._uses)

    def rate(self, use: QuotaUse) -> float:
        """The present rate of a use: per second, or percent."""
        return use.rate.rate(self._clock_ms())

    def _limits(self, request: LimitedRequest) -> ClientLimits:
        if request.principal == self._cluster_principal:
            return _EXEMPT
        return self._metadata.image.client_quotas.limits(_user(request), request.client_id or "")

    def _use(self, key: QuotaKey, limit: QuotaLimit, now_ms: int) -> QuotaUse:
        settings = self._metadata.broker_settings()
        samples = settings.quota_window_num
        sample_ms = 1000 * settings.quota_window_size_seconds
        use_key = QuotaUseKey(key, limit.user, limit.client_id)
        use = self._uses.get(use_key)
        if use is None:
            use = self._uses[use_key] = QuotaUse(SampledRate(samples, sample_ms))
            if len(self._uses) > USES_MAX:
                self._uses.popitem(last=False)
        else:
            use.rate.sample_count, use.rate.sample_ms = samples, sample_ms
            self._uses.move_to_end(use_key)
        use.used_ms = now_ms
        return use

    def _record(
        self,
        use: QuotaUse,
        limit: QuotaLimit,
        value: float,
        now_ms: int,
        *,
        throttle_ms_max: int = _UNLIMITED,
    ) -> int:
        if use.limit != limit.value:
            # The credit is in seconds of the limit.
            use.limit = limit.value
            use.burst_credit = BurstCredit()
        use.rate.record(value, now_ms)
        return min(use.rate.throttle_ms(limit.value, now_ms), throttle_ms_max)

    def _smooth(self, use: QuotaUse, limit: QuotaLimit, byte_count: int, now_ms: int) -> int:
        """Count bytes that were used for the credit, too: how long a client that has none left
        waits."""
        sample_ms = use.rate.sample_ms
        use.burst_credit.record(
            byte_count,
            limit.value,
            now_ms,
            sample_ms=sample_ms,
            credit_ms_max=(use.rate.sample_count - 1) * sample_ms,
        )
        return use.burst_credit.throttle_ms(now_ms, sample_ms)


@cache
def has_throttle_time(api_key: int, version: int) -> bool:
    """Whether the response in this version says for how long the client is throttled."""
    return any(
        field.name == "throttle_time_ms" and field.is_in(version)
        for field in fields_of(APIS[api_key].response)
    )


def _user(request: LimitedRequest) -> str:
    """The name of a principal without its type: of `User:ann`, `ann`."""
    return request.principal.partition(":")[2]
