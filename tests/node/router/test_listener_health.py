"""The problems of listeners: found, told to the supervisor when they change, logged once."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from odradek.node.metrics.registry import Metrics
from odradek.node.observability import ListenerReport
from odradek.node.router.listener_health import ListenerHealth
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.tls_listeners import TlsListeners
from odradek.node.router.token_verification import TokenVerifiers
from odradek.node.wire.listeners import ClientListener
from tests.support.certificates import TestAuthority
from tests.support.log_lines import log_lines
from tests.support.waiting import wait_until

DAY_S = 86_400
TOKENS = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "file:///there/is/no/such/file",
}


class Router:
    """The part of a router that has to do with its listeners."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.authority = TestAuthority(folder)
        self.reports: list[ListenerReport] = []

    def start(
        self,
        *listeners: ClientListener,
        valid_s: float = 90.0 * DAY_S,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        store = self.authority.issue("broker.pem", valid_s=valid_s)
        static = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            **(settings or {}),
        }
        metadata = MetadataCache(0, static)
        self.tls = TlsListeners(metadata, self.loop)
        for each in listeners:
            self.loop.run_until_complete(self.tls.open(each))
        tokens = TokenVerifiers(self.loop, time.time)
        self.health = ListenerHealth(metadata, self.tls, tokens, self.reports.append)
        self.health.start(listeners, self.loop)

    def run_until_reported(self, count: int) -> None:
        def run() -> bool:
            self.loop.run_until_complete(asyncio.sleep(0.001))
            return len(self.reports) >= count

        wait_until(run)

    def close(self) -> None:
        self.health.close()
        self.tls.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    router = Router(tmp_path)
    yield router
    router.close()


SECURE = ClientListener(name="A", security_protocol="SSL")
PLAIN = ClientListener(name="B")
LOGIN = ClientListener(name="C", security_protocol="SASL_PLAINTEXT")


def test_without_a_problem_the_node_serves(router: Router) -> None:
    router.start(SECURE, PLAIN)
    router.health.look()
    assert router.reports == [ListenerReport([], is_serving=True)]
    metrics = Metrics("router-0")
    router.health.register_metrics(metrics)
    assert [part.lines for part in metrics.collect()] == [
        'odradek_listener_problems{process="router-0",listener="A"} 0\n'
        'odradek_listener_problems{process="router-0",listener="B"} 0\n'
    ]


def test_a_certificate_that_expires_soon_is_told_once(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    router.start(SECURE, valid_s=20.5 * DAY_S)
    router.health.look()
    text = "listener A: its certificate expires in 20 days"
    assert router.reports == [ListenerReport([text], is_serving=True)]
    assert log_lines(caplog) == [
        "a listener has a problem listener=A reason='its certificate expires in 20 days'"
    ]


def test_listeners_that_are_added_have_problems_as_well(router: Router) -> None:
    router.start(PLAIN, valid_s=20.5 * DAY_S)
    assert router.reports[-1].problems == []
    router.loop.run_until_complete(router.tls.open(SECURE))
    router.health.follow([PLAIN, SECURE])
    assert len(router.reports[-1].problems) == 1
    router.tls.forget(SECURE.name)
    router.health.follow([PLAIN])
    assert router.reports[-1].problems == []


@pytest.mark.parametrize(("listeners", "is_serving"), [((SECURE,), False), ((SECURE, PLAIN), True)])
def test_an_expired_certificate_blocks_its_listener(
    router: Router, listeners: tuple[ClientListener, ...], is_serving: bool
) -> None:
    router.start(*listeners, valid_s=-60)
    [report] = router.reports
    assert report.is_serving == is_serving
    assert report.problems == ["listener A: its certificate has expired, and clients refuse it"]


def test_a_store_that_is_refused_is_told_until_it_is_mended(router: Router) -> None:
    router.start(SECURE)
    secured = router.tls.get("A")
    assert secured is not None
    assert secured.current is not None
    settings = secured.current.settings
    router.authority.folder.joinpath("broker.pem").write_text("no store")
    secured.follow(settings)
    router.health.look()
    router.authority.issue("broker.pem")
    secured.follow(settings)
    router.health.look()
    texts = [report.problems for report in router.reports]
    assert [len(each) for each in texts] == [0, 1, 0]
    assert "its newest key or trust store is not in use" in texts[1][0]
    assert all(each.is_serving for each in router.reports)


def test_a_listener_without_a_usable_store_is_blocked(router: Router) -> None:
    nowhere = {"listener.name.a.ssl.keystore.location": "/nowhere"}
    router.start(SECURE, settings=nowhere)
    [report] = router.reports
    assert not report.is_serving
    assert "and accepts nobody: ssl.keystore.location=/nowhere" in report.problems[0]


@pytest.mark.parametrize(
    ("listeners", "mechanisms", "is_serving"),
    [
        ((LOGIN,), "OAUTHBEARER", False),
        ((LOGIN,), "OAUTHBEARER,SCRAM-SHA-512", True),
        ((LOGIN, PLAIN), "OAUTHBEARER", True),
    ],
)
def test_keys_of_tokens_that_cannot_be_read_are_told_before_a_client_comes(
    router: Router, listeners: tuple[ClientListener, ...], mechanisms: str, is_serving: bool
) -> None:
    router.start(*listeners, settings={**TOKENS, "sasl.enabled.mechanisms": mechanisms})
    router.run_until_reported(2)
    report = router.reports[-1]
    assert report.is_serving == is_serving
    [text] = report.problems
    assert text.startswith("listener C: the keys at file:///there/is/no/such/file cannot be")
