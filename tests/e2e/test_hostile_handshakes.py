"""Damaged ApiVersions frames and TLS records: no crash, no growth, and nobody gets in.

Every exchange is a connection of its own, which ends well or badly. `HANDSHAKE_FUZZ=100000` makes
that many exchanges of each kind, which takes some minutes; `FUZZ_SEED` makes other ones. SASL is in
tests/node/router/test_sasl_authentication.py.
"""

import asyncio
import os
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import psutil
import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from tests.e2e.conftest import Report
from tests.support.certificates import TestAuthority
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.support.wire import frame_of

pytestmark = pytest.mark.e2e

EXCHANGES: Final = int(os.environ.get("HANDSHAKE_FUZZ", "1000"))
SEED: Final = int(os.environ.get("FUZZ_SEED", "20010911"))
CONNECTIONS: Final = 32
GROWTH_BYTES_MAX: Final = 32 << 20
"""From a quarter of the exchanges on. The first thousand handshakes take 20 MB, once."""
DESCRIPTORS_MAX: Final = 8
"""More than before: a metrics client may be connected."""
ANSWER_S: Final = 5.0
MARK: Final = 0x4D455441
"""The correlation id of the one request that only those who are let in get answered."""
METADATA: Final = frame_of(MetadataRequest(topics=[]), 12, MARK)


class FuzzedNode:
    """A node with a listener of each kind."""

    def __init__(self, folder: Path) -> None:
        authority, foreign = TestAuthority(folder), TestAuthority(folder, "foreign")
        self.ports = {name: free_port() for name in ("PLAINTEXT", "CLIENTS", "SSL", "MTLS")}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CLIENTS": "SASL_PLAINTEXT"}
        names = [f"{name}:{protocols.get(name, 'SSL')}" for name in self.ports]
        self.broker = EmbeddedBroker(
            folder / "node",
            settings={
                "listeners": ",".join(f"{n}://127.0.0.1:{port}" for n, port in self.ports.items()),
                "listener.security.protocol.map": ",".join(names),
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "connection.failed.authentication.delay.ms": "0",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(authority.issue("broker.pem")),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(authority.certificate),
                "listener.name.mtls.ssl.client.auth": "required",
            },
        )
        self.stranger = ssl.create_default_context(cafile=authority.certificate)
        self.foreigner = ssl.create_default_context(cafile=authority.certificate)
        self.foreigner.load_cert_chain(foreign.issue("foreigner.pem", common_name="alice"))
        self.alice = ssl.create_default_context(cafile=authority.certificate)
        self.alice.load_cert_chain(authority.issue("alice.pem", common_name="alice"))

    @property
    def router(self) -> psutil.Process:
        return psutil.Process(self.broker.processes["router-0"])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedNode]:
    node = FuzzedNode(tmp_path_factory.mktemp("hostile-handshakes"))
    with node.broker:
        yield node


def damaged(chance: Random, data: bytes, often: float = 0.6) -> bytes:
    """The bytes with bits flipped, cut out, inserted, or as they were."""
    changed = bytearray(data)
    while changed and chance.random() < often:
        at = chance.randrange(len(changed))
        match chance.randrange(5):
            case 0:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\x7f\xff", b"\0\0"))
            case 2:
                del changed[at : at + chance.randrange(1, 40)]
            case 3:
                changed[at:at] = chance.randbytes(chance.randrange(40))
            case _:
                del changed[at:]
    return bytes(changed)


def api_versions(chance: Random) -> bytes:
    """A frame of ApiVersions, more or less damaged, its length mostly right."""
    name = chance.choice(("client", "", "-", "a b", "é" * 300, "x" * 5_000, "1.0\n2.0"))
    request = ApiVersionsRequest(client_software_name=name, client_software_version=name[:20])
    frame = bytearray(frame_of(request, chance.randrange(4), 1)[4:])
    if chance.random() < 0.3:
        frame[2:4] = struct.pack(">h", chance.choice((-1, 4, 5, 99, 32_767)))
    body = damaged(chance, bytes(frame), often=0.4)
    length = len(body) if chance.random() < 0.95 else chance.choice((-1, 0, 3, 1 << 30))
    return struct.pack(">i", length) + body


async def api_versions_exchange(node: FuzzedNode, chance: Random) -> str:
    """Some frames, and a request that a stranger must not get answered. How it ended."""
    is_stranger = chance.random() < 0.7
    port = node.ports["CLIENTS" if is_stranger else "PLAINTEXT"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for _ in range(chance.randrange(1, 4)):
            writer.write(api_versions(chance))
        writer.write(METADATA)
        writer.write_eof()
        received = await asyncio.wait_for(reader.read(-1), ANSWER_S)
    except TimeoutError:
        return "kept waiting"
    except OSError:
        return "reset"
    finally:
        writer.transport.abort()
    if MARK.to_bytes(4) in received:
        return "let in" if is_stranger else "served"
    return "answered" if received else "closed"


def other_records(chance: Random) -> bytes:
    """TLS records that belong to no handshake: alerts, floods, data, SSL 2, and noise."""
    match chance.randrange(5):
        case 0:
            return chance.randbytes(chance.choice((1, 5, 300, 20_000)))
        case 1:  # change_cipher_spec, which TLS 1.3 ignores
            return b"\x14\x03\x03\x00\x01\x01" * chance.choice((1, 40, 2_000))
        case 2:
            return b"\x15\x03\x03\x00\x02" + chance.randbytes(2)
        case 3:
            size = chance.choice((0, 1, 16_384, 16_640, 65_535))
            return b"\x17\x03\x03" + size.to_bytes(2) + chance.randbytes(min(size, 17_000))
        case _:
            return b"\x80\x2e\x01\x03\x01" + chance.randbytes(44)


async def tls_exchange(
    port: int, context: ssl.SSLContext, damage: Callable[[bytes], bytes]
) -> bool:
    """A handshake and a request, whose bytes go through `damage`. Whether there was an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        for _ in range(8):
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                is_done = False
            else:
                is_done = True
                tls.write(METADATA)
            intact = outgoing.read()
            sent = damage(intact)
            writer.write(sent)
            is_last = is_done or sent != intact
            if is_last:
                # What is damaged may be the begin of something; the broker waits for the rest.
                writer.write_eof()
            chunk = await asyncio.wait_for(reader.read(1 << 16), ANSWER_S)
            while is_done and chunk:
                incoming.write(chunk)
                try:
                    return MARK.to_bytes(4) in tls.read(1 << 16)
                except ssl.SSLWantReadError:
                    chunk = await asyncio.wait_for(reader.read(1 << 16), ANSWER_S)
            if is_last or not chunk:
                return False
            incoming.write(chunk)
    except TimeoutError:
        raise
    except OSError:
        return False
    finally:
        writer.transport.abort()
    return False


async def fuzzed_tls_exchange(node: FuzzedNode, chance: Random) -> str:
    listener = chance.choice(("SSL", "MTLS", "MTLS"))
    context = chance.choice((node.stranger, node.foreigner))
    spared = chance.randrange(3)
    """Flights that are sent as they are: the damage may come in any of them."""

    def damage(flight: bytes) -> bytes:
        nonlocal spared
        spared -= 1
        if spared >= 0:
            return flight
        if chance.random() < 0.2:
            return other_records(chance) + flight
        return damaged(chance, flight)

    try:
        is_answered = await tls_exchange(node.ports[listener], context, damage)
    except TimeoutError:
        return "kept waiting"
    if is_answered:
        return "let in" if listener == "MTLS" else "served"
    return "closed"


def private_bytes(process: psutil.Process) -> int:
    """Without the arena, which has a fixed size, and files."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def attack(
    node: FuzzedNode, exchange: Callable[[FuzzedNode, Random], Awaitable[str]], report: Report
) -> Counter[str]:
    """Make the exchanges, and assert that they leave nothing behind."""
    chance, ends = Random(SEED), Counter[str]()
    router = node.router
    descriptors, resident = router.num_fds(), 0

    async def whole() -> None:
        nonlocal resident
        for number in range(0, EXCHANGES, CONNECTIONS):
            ends.update(
                await asyncio.gather(
                    *(exchange(node, Random(chance.random())) for _ in range(CONNECTIONS))
                )
            )
            if not resident and number >= EXCHANGES // 4:
                resident = private_bytes(router)

    asyncio.run(whole())
    wait_until(
        lambda: router.num_fds() <= descriptors + DESCRIPTORS_MAX, what="all connections are closed"
    )
    growth = private_bytes(router) - resident
    report(f"{exchange.__name__}: {dict(ends)}; private memory {growth / 1e6:+.1f} MB")
    assert growth < GROWTH_BYTES_MAX
    assert node.router.pid == router.pid, "the router lives"
    assert "Traceback" not in node.broker.log()
    return ends


def test_damaged_api_versions_frames(node: FuzzedNode, report: Report) -> None:
    ends = attack(node, api_versions_exchange, report)
    assert ends["let in"] == 0
    assert ends["kept waiting"] <= EXCHANGES // 100
    assert min(ends["answered"], ends["served"], ends["closed"]) > 0, "all of it was reached"


def test_damaged_tls_records(node: FuzzedNode, report: Report) -> None:
    ends = attack(node, fuzzed_tls_exchange, report)
    assert ends["let in"] == 0
    assert ends["kept waiting"] <= EXCHANGES // 100
    assert min(ends["served"], ends["closed"]) > 0, "all of it was reached"

    def with_certificate(listener: str, context: ssl.SSLContext) -> bool:
        return asyncio.run(tls_exchange(node.ports[listener], context, lambda intact: intact))

    assert with_certificate("MTLS", node.alice), "those with a certificate are served"
    assert not with_certificate("MTLS", node.foreigner)
    assert with_certificate("SSL", node.foreigner)
