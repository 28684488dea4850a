"""The issuer's keys: fetched when they are needed, and not more often."""

import asyncio
import http.server
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from odradek.cluster.metadata.sasl_settings import UNSECURED_TOKENS, SaslSettings
from odradek.cluster.security.access_token import TokenRefusedError, UnknownTokenKeyError
from odradek.node.router.token_verification import DOCUMENT_BYTES_MAX, TokenVerifiers
from tests.support.log_lines import log_text
from tests.support.waiting import LIVENESS_S

MODULE = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    ' unsecuredValidatorAllowableClockSkewMs="{skew}";'
)
KEYS = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("first", "second")}


def key_set(*names: str) -> bytes:
    listed = [
        json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEYS[name].public_key())) | {"kid": name}
        for name in names
    ]
    return json.dumps({"keys": listed}).encode()


def token(key: str, name: str = "alice") -> str:
    now_s = time.time()
    claims = {"sub": name, "iat": now_s, "exp": now_s + 60}
    return jwt.encode(claims, KEYS[key], algorithm="ES256", headers={"kid": key})


class Issuer:
    """An HTTP server with keys."""

    def __init__(self) -> None:
        self.document = key_set("first")
        self.count = 0
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.count += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(issuer.document)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys?secret=1"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.close()


def settings_for(url: str, **others: object) -> SaslSettings:
    return replace(SaslSettings(), sasl_oauthbearer_jwks_endpoint_url=url, **others)  # type: ignore[arg-type]  # fields of the settings


async def verified(verifiers: TokenVerifiers, settings: SaslSettings, text: str) -> str:
    """As a connection does it: fetch and try again."""
    try:
        return verifiers.verify(settings, text).name
    except UnknownTokenKeyError:
        await verifiers.fetch(settings)
        return verifiers.verify(settings, text).name


def test_keys_are_fetched_once(issuer: Issuer) -> None:
    async def scenario() -> None:
        verifiers = TokenVerifiers(asyncio.get_running_loop(), time.time)
        settings = settings_for(issuer.url)
        asked = [verified(verifiers, settings, token("first", f"user-{n}")) for n in range(5)]
        assert await asyncio.gather(*asked) == [f"user-{n}" for n in range(5)]
        assert await verified(verifiers, settings, token("first")) == "alice"
        assert issuer.count == 1

    asyncio.run(scenario())


def test_a_new_key_is_found_but_strangers_cause_no_storm(issuer: Issuer) -> None:
    async def scenario() -> None:
        verifiers = TokenVerifiers(asyncio.get_running_loop(), time.time)
        quick = settings_for(issuer.url, sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms=1)
        await verified(verifiers, quick, token("first"))
        issuer.document = key_set("first", "second")
        await asyncio.sleep(0.002)
        assert await verified(verifiers, quick, token("second")) == "alice"
        assert issuer.count == 2
        slow = settings_for(issuer.url)
        issuer.document = key_set("second")
        unknown = token("second").replace(".", ".", 1)
        header = jwt.encode({"sub": "x"}, KEYS["first"], algorithm="ES256", headers={"kid": "x"})
        for _ in range(10):
            with pytest.raises(TokenRefusedError):
                await verified(verifiers, slow, header)
        assert issuer.count == 2
        assert await verified(verifiers, slow, unknown) == "alice"

    asyncio.run(scenario())


def test_old_keys_are_fetched_again_and_kept_if_that_fails(issuer: Issuer) -> None:
    async def scenario() -> None:
        verifiers = TokenVerifiers(asyncio.get_running_loop(), time.time)
        settings = settings_for(
            issuer.url,
            sasl_oauthbearer_jwks_endpoint_refresh_ms=1,
            sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms=1,
        )
        await verified(verifiers, settings, token("first"))
        issuer.document = b"an error page"
        await asyncio.sleep(0.005)
        verifiers_again = settings_for(
            issuer.url,
            sasl_oauthbearer_jwks_endpoint_refresh_ms=1,
            sasl_oauthbearer_jwks_endpoint_retry_backoff_ms=60_000,
            sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms=60_000,
        )
        with pytest.raises(UnknownTokenKeyError):
            verifiers.verify(settings, token("first"))
        await verifiers.fetch(settings)
        assert verifiers.verify(verifiers_again, token("first")).name == "alice"
        assert issuer.count == 2

    asyncio.run(scenario())


def test_keys_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(key_set("first"))

    async def scenario() -> None:
        verifiers = TokenVerifiers(asyncio.get_running_loop(), time.time)
        settings = settings_for((tmp_path / "keys.json").as_uri())
        assert await verified(verifiers, settings, token("first")) == "alice"

    asyncio.run(scenario())


@pytest.mark.parametrize("document", [b"", b"{}", key_set(), b" " * (DOCUMENT_BYTES_MAX + 1)])
def test_what_is_no_key_set_is_logged_without_the_secret(
    issuer: Issuer, document: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.document = document

    async def scenario() -> None:
        verifiers = TokenVerifiers(asyncio.get_running_loop(), time.time)
        with pytest.raises(TokenRefusedError):
            await verified(verifiers, settings_for(issuer.url), token("first"))

    asyncio.run(scenario())
    assert "cannot be fetched" in log_text(caplog)
    assert "secret" not in log_text(caplog)


def test_keys_are_fetched_before_they_are_needed_and_a_problem_is_logged_once(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.document = b""
    settings = settings_for(
        issuer.url,
        sasl_oauthbearer_jwks_endpoint_retry_backoff_ms=1,
        sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms=1,
    )

    async def scenario() -> None:
        verifiers = TokenVerifiers(asyncio.get_running_loop(), time.time)
        changes: list[tuple[str, bool]] = []
        verifiers.on_changed = lambda: changes.append(verifiers.problem(settings))
        assert verifiers.problem(settings) == ("", False)
        while issuer.count < 3:
            verifiers.refresh(settings)
            await asyncio.sleep(0.001)
        [(text, has_no_keys)] = changes
        assert "cannot be fetched" in text
        assert has_no_keys
        issuer.document = key_set("first")
        while len(changes) < 2:
            verifiers.refresh(settings)
            await asyncio.sleep(0.001)
        assert changes[1] == ("", False)
        count = issuer.count
        assert verifiers.verify(settings, token("first")).name == "alice"
        verifiers.refresh(settings)
        assert issuer.count == count

    asyncio.run(asyncio.wait_for(scenario(), LIVENESS_S))
    assert log_text(caplog).count("cannot be fetched") == 1
    assert log_text(caplog).count("are there again") == 1


def test_without_a_url_nobody_is_verified_but_with_unsecured_tokens() -> None:
    async def scenario() -> None:
        verifiers = TokenVerifiers(asyncio.get_running_loop(), time.time)
        text = jwt.encode({"sub": "bob", "exp": time.time() + 9}, "", algorithm="none")
        with pytest.raises(TokenRefusedError):
            verifiers.verify(SaslSettings(), text)
        unsecured = replace(SaslSettings(), sasl_server_callback_handler_class=UNSECURED_TOKENS)
        assert verifiers.verify(unsecured, text).name == "bob"
        # Kafka's option; sasl.oauthbearer.clock.skew.seconds is for tokens with a signature.
        expired = jwt.encode({"sub": "bob", "exp": time.time() - 9}, "", algorithm="none")
        for jaas in (None, "no login module", MODULE.format(skew=5_000)):
            with pytest.raises(TokenRefusedError):
                verifiers.verify(replace(unsecured, sasl_jaas_config=jaas), expired)
        lenient = replace(unsecured, sasl_jaas_config=MODULE.format(skew=60_000))
        assert verifiers.verify(lenient, expired).name == "bob"

    asyncio.run(scenario())
