"""Listeners follow the configuration and the files, and a change that they cannot is refused."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.records import ConfigChanged
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.tls_listeners import TlsListeners
from odradek.node.wire.listeners import ClientListener
from odradek.protocol.errors import ApiError
from tests.support.certificates import TestAuthority
from tests.support.log_lines import log_text
from tests.support.waiting import wait_until

LOCATION = "listener.name.ssl.ssl.keystore.location"


class Router:
    """The part of a router that has to do with TLS."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.authority = TestAuthority(folder)
        self.store = self.authority.issue("broker.pem")
        static = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.store)}
        self.metadata = MetadataCache(0, static)
        self.listeners = TlsListeners(self.metadata, self.loop)

    def open(self) -> None:
        for listener in (
            ClientListener(name="PLAINTEXT"),
            ClientListener(name="SSL", security_protocol="SSL"),
            ClientListener(name="OTHER", security_protocol="SASL_SSL"),
        ):
            self.loop.run_until_complete(self.listeners.open(listener))

    def change(self, key: str, value: str | None) -> None:
        delta = MetadataDelta(self.metadata.image)
        delta.replay(ConfigChanged(ConfigResourceType.BROKER, "0", key, value))
        self.metadata.image = delta.apply(self.metadata.image.offset + 1)
        self.listeners.follow()

    def check(self, key: str, value: str | None, *, keeps_others: bool = True) -> None:
        self.loop.run_until_complete(self.listeners.check({key: value}, keeps_others=keeps_others))

    def context_of(self, name: str) -> object:
        listener = self.listeners.get(name)
        assert listener is not None
        assert listener.current is not None
        return listener.current.context


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    router = Router(tmp_path)
    router.open()
    yield router
    router.listeners.close()
    router.loop.run_until_complete(router.loop.shutdown_default_executor())
    router.loop.close()


def test_only_listeners_with_tls_have_some(router: Router) -> None:
    assert router.listeners.get("PLAINTEXT") is None
    assert router.listeners.seconds_left().keys() == {"SSL", "OTHER"}
    assert min(router.listeners.seconds_left().values()) > 80_000


def test_a_change_that_cannot_be_used_is_refused_before_it_is_made(router: Router) -> None:
    before = router.context_of("SSL")
    with pytest.raises(ApiError, match="cannot be read"):
        router.check(LOCATION, "/nowhere")
    router.check(LOCATION, None)
    router.check("num.partitions", "3")
    assert router.context_of("SSL") is before


def test_what_was_checked_is_what_is_used(router: Router) -> None:
    following = router.authority.issue("following.pem")
    before, other = router.context_of("SSL"), router.context_of("OTHER")
    router.check(LOCATION, str(following))
    assert router.context_of("SSL") is before, "it is not in force yet"
    router.change(LOCATION, str(following))
    assert router.context_of("SSL") is not before
    assert router.context_of("OTHER") is other
    # AlterConfigs removes what it does not name: this would go back to the static one.
    router.store.unlink()
    with pytest.raises(ApiError, match="cannot be read"):
        router.check("num.partitions", "3", keeps_others=False)


def test_a_change_that_was_not_checked_here_is_followed_or_shown(router: Router) -> None:
    before = router.context_of("SSL")
    router.change(LOCATION, "/nowhere")
    assert router.context_of("SSL") is before
    assert router.listeners.problems() == {"SSL": 1, "OTHER": 0}
    router.change(LOCATION, None)
    router.change(LOCATION, str(router.authority.issue("following.pem")))
    assert router.listeners.problems() == {"SSL": 0, "OTHER": 0}
    assert router.listeners.reloads()["SSL", "failed"] == 1


def test_files_are_read_again_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.node.router.tls_listeners.RELOAD_S", 0.01)
    router = Router(tmp_path)
    router.open()
    before = router.context_of("SSL")
    router.authority.issue("broker.pem")

    def are_replaced() -> bool:
        router.loop.run_until_complete(asyncio.sleep(0.01))
        return before not in (router.context_of("SSL"), router.context_of("OTHER"))

    wait_until(are_replaced, what="the new certificate")
    router.listeners.close()
    router.loop.run_until_complete(router.loop.shutdown_default_executor())
    router.loop.close()


def test_a_listener_whose_stores_cannot_be_used_has_none_until_they_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router(tmp_path)
    router.change(LOCATION, "/nowhere")
    router.open()
    broken, other = router.listeners.get("SSL"), router.listeners.get("OTHER")
    assert broken is not None
    assert other is not None
    assert (broken.current, other.problem) == (None, "")
    assert router.listeners.seconds_left().keys() == {"OTHER"}
    assert "listener=SSL reason='ssl.keystore.location=/nowhere" in log_text(caplog)
    router.change("num.partitions", "3")
    assert log_text(caplog).count("accepts nobody") == 1
    router.check(LOCATION, None)
    router.change(LOCATION, None)
    assert broken.current is not None
    assert broken.problem == ""
    router.listeners.close()
    router.loop.close()
