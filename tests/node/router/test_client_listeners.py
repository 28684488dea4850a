"""Listeners that come, go and move while a router runs."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import BrokerImage, BrokerListener, ConfigResourceType
from odradek.cluster.metadata.records import ConfigChanged
from odradek.node.bus.arena import UNIT_BYTES, Arena
from odradek.node.bus.reply import Reply, start_coroutine
from odradek.node.config import NodeConfig, load
from odradek.node.router import client_listeners
from odradek.node.router.client_listeners import ClientListeners
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.tls_listeners import TlsListeners
from odradek.node.wire.connection import ConnectionServer, Slot
from odradek.node.wire.socket_server import SocketServer
from odradek.protocol.errors import ApiError
from tests.support.certificates import TestAuthority
from tests.support.log_lines import log_lines, log_text
from tests.support.ports import free_port
from tests.support.waiting import wait_until

MAP = "listener.security.protocol.map"


class Router:
    """The part of a router that has listeners. Its server answers with what it is sent."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.loop = uvloop.new_event_loop()
        options = {"listeners": "PLAINTEXT://127.0.0.1:0", "node.id": "0"} | {
            key.replace("_", "."): value for key, value in settings.items()
        }
        self.config: NodeConfig = load(environment={}, options=options)
        self.metadata = MetadataCache(0, self.config.broker_configs)
        self.server: ConnectionServer = SocketServer(
            loop=self.loop,
            arena=Arena.create(folder / "arena", 64 * UNIT_BYTES),
            on_request=self._answer,
        )
        self.tls = TlsListeners(self.metadata, self.loop)
        self.change_count = 0
        self.clients: list[socket.socket] = []
        self.listeners = ClientListeners(
            self.config,
            self.metadata,
            self.server,
            self.tls,
            proxies=lambda _name: None,
            on_changed=self._changed,
        )

    def _answer(self, slot: Slot, frame: memoryview, _offset: int) -> None:
        slot.complete([bytes(frame)])

    def _changed(self) -> None:
        self.change_count += 1

    def start(self) -> None:
        self.loop.run_until_complete(self.listeners.start())

    @property
    def ports(self) -> dict[str, int]:
        return {each.listener.name: each.port for each in self.listeners.acceptors}

    def check(self, **changes: str | None) -> None:
        named = {key.replace("_", "."): value for key, value in changes.items()}
        self.loop.run_until_complete(self.listeners.check(named, keeps_others=True))

    def change(self, **changes: str | None) -> None:
        delta = MetadataDelta(self.metadata.image)
        for key, value in changes.items():
            name = key.replace("_", ".")
            delta.replay(ConfigChanged(ConfigResourceType.BROKER, "0", name, value))
        self.metadata.image = delta.apply(self.metadata.image.offset + 1)
        self.listeners.follow()

    def register(self, *listeners: BrokerListener) -> None:
        delta = MetadataDelta(self.metadata.image)
        delta.replay(BrokerImage(0, 1, listeners=listeners))
        self.metadata.image = delta.apply(self.metadata.image.offset + 1)

    def run(self, seconds: float = 0.01) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def wait_for(self, name: str) -> None:
        def is_open() -> bool:
            self.run()
            return name in self.ports

        wait_until(is_open, what=f"listener {name} is open")

    def echo(self, client: socket.socket) -> bytes:
        """What a client is answered; empty when it is closed instead."""

        async def exchange() -> bytes:
            try:
                await self.loop.sock_sendall(client, b"\0\0\0\x02hi")
                return await asyncio.wait_for(self.loop.sock_recv(client, 100), 5)
            except ConnectionError:
                return b""

        return self.loop.run_until_complete(exchange())[4:]

    def connect(self, port: int) -> socket.socket:
        async def connecting() -> socket.socket:
            client = socket.socket()
            self.clients.append(client)
            client.setblocking(False)
            await self.loop.sock_connect(client, ("127.0.0.1", port))
            return client

        return self.loop.run_until_complete(connecting())


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    router = Router(tmp_path)
    router.start()
    yield router
    close(router)


def close(router: Router) -> None:
    for client in router.clients:
        client.close()
    router.listeners.stop()
    for connection in list(router.server.connections.values()):
        connection.abort()
    router.tls.close()
    router.run()
    router.loop.run_until_complete(router.loop.shutdown_default_executor())
    router.loop.close()


def test_a_listener_that_is_added_is_open_when_the_change_has_come(router: Router) -> None:
    before = router.ports
    client = router.connect(before["PLAINTEXT"])
    assert router.echo(client) == b"hi"
    port = free_port()
    added = f"PLAINTEXT://127.0.0.1:0,EXTRA://127.0.0.1:{port}"
    changes = {"listeners": added, MAP: "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT"}
    router.check(**changes)
    assert router.ports == before, "the change has not come yet"
    router.change(**changes)
    assert router.ports == {**before, "EXTRA": port}
    assert router.listeners.names == ["PLAINTEXT", "EXTRA"]
    assert router.echo(router.connect(port)) == b"hi"
    assert router.echo(client) == b"hi", "a connection of a listener that stays"
    assert router.listeners.ports() == before


def test_connections_of_a_listener_that_is_removed_are_closed(router: Router) -> None:
    port = free_port()
    router.change(
        listeners=f"PLAINTEXT://127.0.0.1:0,EXTRA://127.0.0.1:{port}",
        **{MAP: "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT"},
    )
    client, other = router.connect(port), router.connect(router.ports["PLAINTEXT"])
    assert router.echo(client) == router.echo(other) == b"hi"
    router.change(listeners=None)
    assert router.echo(client) == b""
    with pytest.raises(ConnectionRefusedError):
        router.connect(port)
    assert router.echo(other) == b"hi"


def test_a_listener_may_have_another_name_or_another_port(router: Router) -> None:
    port = router.ports["PLAINTEXT"]
    renamed = {"listeners": f"CLIENTS://127.0.0.1:{port}", MAP: "CLIENTS:PLAINTEXT"}
    router.check(**renamed)
    router.change(**renamed)
    assert router.ports == {"CLIENTS": port}
    client = router.connect(port)
    moved = free_port()
    router.check(listeners=f"CLIENTS://127.0.0.1:{moved}")
    router.change(listeners=f"CLIENTS://127.0.0.1:{moved}")
    assert router.ports == {"CLIENTS": moved}
    assert router.listeners.bootstrap() == f"127.0.0.1:{moved}"
    assert router.echo(client) == b"hi"


@pytest.mark.parametrize(
    ("changes", "right"),
    [
        ({"listeners": "OTHER://127.0.0.1:1"}, "OTHER is not in listener.security.protocol.map"),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:{port}"}, "this release serves"),
        ({"listeners": "SSL://127.0.0.1:{port}"}, "listener SSL: "),
        ({"listeners": "PLAINTEXT://127.0.0.1:{used}"}, "cannot bind"),
        (
            {MAP: "PLAINTEXT:SSL"},
            "Security protocol cannot be updated for existing listener PLAINTEXT",
        ),
    ],
)
def test_what_cannot_be_opened_is_refused(
    router: Router, changes: dict[str, str], right: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        used = other.getsockname()[1]
        with pytest.raises(ApiError, match=right):
            router.check(**{k: v.format(port=free_port(), used=used) for k, v in changes.items()})


def test_what_was_bound_for_a_change_that_did_not_come_is_closed(router: Router) -> None:
    port = free_port()
    router.check(listeners=f"PLAINTEXT://127.0.0.1:{port}")
    router.connect(port).close()
    router.listeners.discard()
    with pytest.raises(ConnectionRefusedError):
        router.connect(port)


def test_a_change_from_elsewhere_that_cannot_be_bound_is_tried_again(
    router: Router, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_listeners, "RETRY_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as other, caplog.at_level(logging.ERROR):
        port = other.getsockname()[1]
        router.change(
            listeners=f"PLAINTEXT://127.0.0.1:0,EXTRA://127.0.0.1:{port}",
            **{MAP: "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT"},
        )
        router.run(0.1)
        assert router.listeners.problems.keys() == {"EXTRA"}
        assert router.listeners.names == ["PLAINTEXT", "EXTRA"]
    assert len(caplog.records) == 1
    for _ in range(100):
        router.run(0.02)
        if not router.listeners.problems:
            break
    assert router.ports["EXTRA"] == port


def test_what_contradicts_the_nodes_own_configuration_changes_nothing(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    before = router.ports
    router.change(listeners="OTHER://127.0.0.1:1")
    assert router.ports == before
    assert "settings contradict each other key=listeners reason='Listener OTHER" in log_text(caplog)


def test_the_configuration_file_changes_listeners(router: Router) -> None:
    port = free_port()
    listeners = f"PLAINTEXT://127.0.0.1:0,SECOND://127.0.0.1:{port}"
    before = router.ports
    router.listeners.follow(load(environment={}, options={"listeners": listeners}))
    assert router.ports == {**before, "SECOND": port}
    assert router.listeners.ports() == router.ports
    assert router.listeners.items("listeners")[1] == f"SECOND://127.0.0.1:{port}"


def test_a_listener_with_tls_is_added_and_removed(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    store = authority.issue("broker.pem")
    router = Router(tmp_path, ssl_keystore_type="PEM", ssl_keystore_location=str(store))
    router.start()
    port = free_port()
    added = {"listeners": f"PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:{port}"}
    router.check(**added)
    router.change(**added)
    assert router.ports["SSL"] == port
    assert router.tls.get("SSL") is not None
    router.change(listeners=None)
    assert router.tls.get("SSL") is None
    close(router)


def test_a_listener_of_the_nodes_own_configuration_must_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        router = Router(tmp_path, listeners=f"PLAINTEXT://127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(OSError, match="listener PLAINTEXT cannot bind"):
            router.start()
        close(router)


def test_a_listener_that_is_added_and_open_to_strangers_is_warned_of(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    own = "PLAINTEXT://127.0.0.1:0"
    names = {MAP: "PLAINTEXT:PLAINTEXT,OPEN:PLAINTEXT,LOCAL:PLAINTEXT"}
    with caplog.at_level(logging.WARNING):
        router.start()
        local = f"{own},LOCAL://127.0.0.1:{free_port()}"
        router.change(listeners=local, **names)
        router.wait_for("LOCAL")
        assert log_lines(caplog) == []
        router.change(listeners=f"{local},OPEN://:{free_port()}")
        router.wait_for("OPEN")
        router.change(**{"num.partitions": "3"})
        router.run()
    (warning,) = log_lines(caplog)
    assert "reason='Anybody who reaches OPEN://:" in warning
    assert "may read and change everything" in warning


def test_others_learn_of_a_change_before_it_is_answered(router: Router) -> None:
    advertised = "PLAINTEXT://outside:7"
    router.register(BrokerListener("PLAINTEXT", "", 0))
    router.change(advertised_listeners=advertised)
    waiting: Reply[None] = start_coroutine(router.listeners.wait_until_registered())
    router.run()
    assert not waiting.is_done
    router.register(BrokerListener("PLAINTEXT", "outside", 7))
    router.listeners.on_image()
    assert waiting.is_done
