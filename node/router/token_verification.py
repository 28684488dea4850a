"""The verification of access tokens with the keys of their issuer (KIP-768).

The keys are a JSON Web Key Set at a URL, fetched in a thread: when the router starts, when they
are old, and when a token names a key that is not among them. A client that sends tokens with
unknown keys does not cause more than one fetch in
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms. Keys that were fetched once are used until
others could be fetched.
"""

import asyncio
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Final

from odradek.cluster.metadata.sasl_settings import UNSECURED_TOKENS, SaslSettings
from odradek.cluster.security.access_token import (
    TokenKey,
    TokenRefusedError,
    TokenRules,
    UnknownTokenKeyError,
    VerifiedToken,
    keys_of,
    unsecured_token,
    verify_token,
)
from odradek.cluster.security.jaas import JaasError, parse_jaas
from odradek.node.structured_log import get_logger

log = get_logger(__name__)

FETCH_TIMEOUT_S: Final = 10.0
DOCUMENT_BYTES_MAX: Final = 1 << 20
_UNSECURED_SKEW: Final = "unsecuredValidatorAllowableClockSkewMs"
_RESUMED_EVERY_S: Final = 0.001


class TokenVerifiers:
    """The issuers' keys, by URL. `now_s` is the wall clock, in seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_s: Callable[[], float]) -> None:
        self._loop = loop
        self._now_s = now_s
        self._sources: dict[str, _KeySource] = {}
        self.on_changed: Callable[[], None] = lambda: None
        """Called when keys cannot be fetched, and when they can again."""

    def verify(self, settings: SaslSettings, token: str) -> VerifiedToken:
        """Who the bearer of a token is. Raises TokenRefusedError; UnknownTokenKeyError if `fetch`
        may find the key."""
        rules = TokenRules(
            expected_audiences=settings.sasl_oauthbearer_expected_audience,
            expected_issuer=settings.sasl_oauthbearer_expected_issuer,
            clock_skew_s=settings.sasl_oauthbearer_clock_skew_seconds,
            scope_claim=settings.sasl_oauthbearer_scope_claim_name,
            sub_claim=settings.sasl_oauthbearer_sub_claim_name,
        )
        if settings.sasl_server_callback_handler_class == UNSECURED_TOKENS:
            skew_s = _unsecured_skew_ms(settings.sasl_jaas_config) / 1000
            return unsecured_token(token, replace(rules, clock_skew_s=skew_s), self._now_s())
        source = self._source(settings)
        may_fetch = source.may_fetch(settings, self._loop.time())
        if may_fetch and source.is_old(settings, self._loop.time()):
            raise UnknownTokenKeyError
        try:
            return verify_token(token, source.keys, rules, self._now_s())
        except UnknownTokenKeyError:
            if may_fetch:
                raise
            raise TokenRefusedError("no key of its issuer has its key id") from None

    async def fetch(self, settings: SaslSettings) -> None:
        """Fetch the keys. A failure is logged, and the old keys stay."""
        await self._source(settings).fetch(self._loop)

    def refresh(self, settings: SaslSettings) -> None:
        """Have the keys fetched if they are old, so that no client has to wait for that."""
        if settings.sasl_oauthbearer_jwks_endpoint_url is None:
            return
        source, now_s = self._source(settings), self._loop.time()
        if source.is_old(settings, now_s) and source.may_fetch(settings, now_s):
            source.begin(self._loop)

    def problem(self, settings: SaslSettings) -> tuple[str, bool]:
        """Why the keys could not be fetched, empty if they could, and whether there are none."""
        if settings.sasl_oauthbearer_jwks_endpoint_url is None:
            return "", False
        source = self._source(settings)
        return source.problem, bool(source.problem) and not source.keys

    def _source(self, settings: SaslSettings) -> "_KeySource":
        url = settings.sasl_oauthbearer_jwks_endpoint_url
        if url is None:
            raise TokenRefusedError("sasl.oauthbearer.jwks.endpoint.url is not set")
        if url not in self._sources:
            self._sources[url] = _KeySource(url, lambda: self.on_changed())
        return self._sources[url]


class _KeySource:
    """The keys at one URL."""

    def __init__(self, url: str, on_changed: Callable[[], None]) -> None:
        self._url = url
        self._on_changed = on_changed
        self.keys: tuple[TokenKey, ...] = ()
        self.problem = ""
        """Why the last fetch failed; empty: it did not."""
        self._fetched_at_s: float | None = None
        self._tried_at_s: float | None = None
        self._failure_count = 0
        self._waiting: list[asyncio.Future[None]] | None = None
        """Those that wait for the fetch in progress; None if there is none."""

    def is_old(self, settings: SaslSettings, now_s: float) -> bool:
        """Whether the keys were never fetched, or too long ago."""
        if self._fetched_at_s is None:
            return True
        age_ms = (now_s - self._fetched_at_s) * 1000
        return age_ms > settings.sasl_oauthbearer_jwks_endpoint_refresh_ms

    def may_fetch(self, settings: SaslSettings, now_s: float) -> bool:
        """Whether the last attempt was long enough ago, or is still going on."""
        if self._tried_at_s is None or self._waiting is not None:
            return True
        pause_ms = settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms
        if self._failure_count:
            first_ms = settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms
            pause_ms = min(pause_ms, first_ms << min(self._failure_count - 1, 20))
        return (now_s - self._tried_at_s) * 1000 >= pause_ms

    async def fetch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fetch the keys, or wait for the fetch in progress."""
        done = loop.create_future()
        self.begin(loop).append(done)
        await done

    def begin(self, loop: asyncio.AbstractEventLoop) -> "list[asyncio.Future[None]]":
        """Begin to fetch the keys, unless that is in progress; those that wait for it."""
        if self._waiting is None:
            self._waiting = []
            # A router that stops must not wait for an issuer that is silent.
            threading.Thread(target=self._fetch_in_thread, args=(loop,), daemon=True).start()
        return self._waiting

    def _fetch_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        fetched: tuple[TokenKey, ...] | Exception
        try:
            fetched = _fetch(self._url)
        except Exception as error:
            fetched = error
        with suppress(RuntimeError):  # the loop is closed: the router has stopped
            loop.call_soon_threadsafe(self._on_fetched, loop, fetched)

    def _on_fetched(
        self, loop: asyncio.AbstractEventLoop, fetched: tuple[TokenKey, ...] | Exception
    ) -> None:
        self._tried_at_s = loop.time()
        if isinstance(fetched, Exception):
            self._failure_count += 1
            self._set_problem(f"the keys at {_shown(self._url)} cannot be fetched: {fetched}")
        else:
            self.keys = fetched
            self._fetched_at_s = loop.time()
            self._failure_count = 0
            self._set_problem("")
        waiting, self._waiting = self._waiting or [], None
        for number, each in enumerate(waiting):
            # Not all in one iteration of the loop: each verifies a signature now.
            loop.call_later(number * _RESUMED_EVERY_S, _resolve, each)

    def _set_problem(self, problem: str) -> None:
        """Each problem is logged once, however often the fetch is repeated."""
        if problem and problem != self.problem:
            log.warning(
                "access tokens cannot be verified",
                reason=problem,
                action="the old keys stay in use meanwhile"
                if self.keys
                else "clients with an access token cannot log in until they can be",
            )
        elif self.problem and not problem:
            log.warning("the keys of access tokens are there again", url=_shown(self._url))
        before, self.problem = self.problem, problem
        if problem != before:
            self._on_changed()


def _resolve(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def _fetch(url: str) -> tuple[TokenKey, ...]:
    """Runs in a thread. Raises OSError and ValueError."""
    with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as response:
        document = response.read(DOCUMENT_BYTES_MAX + 1)
    if len(document) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"the answer is longer than {DOCUMENT_BYTES_MAX} bytes")
    keys = keys_of(document)
    if not keys:
        raise ValueError("there is no key that verifies signatures")
    return keys


@lru_cache(maxsize=16)
def _unsecured_skew_ms(jaas: str | None) -> int:
    """Kafka's option of OAuthBearerLoginModule; 0 if it is not set, or is no number."""
    try:
        text = parse_jaas(jaas).options.get(_UNSECURED_SKEW, "") if jaas else ""
    except JaasError:
        return 0
    return int(text) if text.isdecimal() else 0


def _shown(url: str) -> str:
    """The URL without what may be a secret."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
