"""What is replaced in a hardened cluster while it runs: certificates, and their authority."""

import signal
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from odradek.node.blocking_client import BlockingClient
from odradek.protocol.apis import ApiKey
from odradek.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.e2e.conftest import Report
from tests.e2e.hardened import HardenedCluster, started
from tests.support.background_client import BackgroundClient
from tests.support.ports import free_pair, free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

PACE_S = 0.01
TOLD_S = 20.0
"""How long a node that cannot join may take to say why, its start included."""


def connected(cluster: HardenedCluster, node: int, authority: Path) -> BlockingClient:
    """A connection of a client that trusts this authority only. Raises OSError."""
    tls = ssl.create_default_context(cafile=authority)
    return BlockingClient("localhost", cluster.ports[node], 10, tls=tls)


def certificate(cluster: HardenedCluster, node: int, authority: Path) -> bytes:
    with connected(cluster, node, authority) as client:
        assert client.certificate
        return client.certificate


def challenge(cluster: HardenedCluster, node: int, user: str) -> str:
    """The salt and the number of iterations that a stranger is told for a user."""
    with connected(cluster, node, cluster.folders[0] / "authority.pem") as client:
        client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"))
        first = f"n,,n={user},r=abc".encode()
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=first))
        return bytes(answer.auth_bytes).decode().partition(",")[2]


class NewConnections:
    """Clients that come and go from `with` to the end of the block: none may be refused."""

    def __init__(self, cluster: HardenedCluster, authority: Path) -> None:
        self.failures: list[Exception] = []
        self.seen: set[bytes] = set()
        self.count = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(cluster, authority))

    def _run(self, cluster: HardenedCluster, authority: Path) -> None:
        while not self._stopped.wait(PACE_S):
            try:
                with connected(cluster, self.count % len(cluster.ports), authority) as client:
                    assert client.certificate
                    self.seen.add(client.certificate)
                    assert client.serves(ApiKey.SASL_HANDSHAKE)
            except Exception as error:
                self.failures.append(error)
            self.count += 1

    def __enter__(self) -> "NewConnections":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()


def under_load(cluster: HardenedCluster, authority: Path, change: Callable[[], None]) -> set[bytes]:
    """Make a change while clients work and others come and go; the certificates that these saw.
    A connection of each node that was there before stays."""
    topic = f"load-{authority.parent.name}"
    cluster.odradek("-p", "prod", "topic", "create", topic)
    properties = cluster.properties(ssl_ca_location=str(authority))
    bootstrap = ",".join(f"localhost:{port}" for port in cluster.ports)
    before = [connected(cluster, node, authority) for node in range(len(cluster.ports))]
    try:
        for client in before:
            assert client.serves(ApiKey.SASL_HANDSHAKE)
        with (
            BackgroundClient(bootstrap, topic, properties) as witness,
            NewConnections(cluster, authority) as others,
        ):
            wait_until(lambda: witness.consumed_count > 100 and others.count > 5, timeout_s=30)
            change()
            until = witness.consumed_count + 100
            wait_until(lambda: witness.consumed_count > until, timeout_s=30)
        for client in before:
            answer = client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"))
            assert answer.error_code == 0
    finally:
        for client in before:
            client.close()
    assert (witness.complaints, others.failures) == ([], [])
    return others.seen


def renew(cluster: HardenedCluster, bundle: Path, authority: Path, *nodes: int) -> None:
    """As the page says, and until new connections have the new certificates."""
    before = {node: certificate(cluster, node, authority) for node in nodes}
    for node in nodes:
        folder = str(cluster.folders[node])
        cluster.odradek("certificate", "renew", folder, "--from", str(bundle))
    wait_until(
        lambda: all(certificate(cluster, each, authority) != before[each] for each in nodes),
        timeout_s=15,
        what="the nodes have their new certificates",
    )


def test_a_certificate_is_renewed_under_load_and_the_salts_outlive_the_secret(
    tmp_path: Path,
) -> None:
    one = HardenedCluster(tmp_path, 1)
    [folder] = one.folders
    authority = folder / "authority.pem"
    names = [f"nobody-{index}" for index in range(8)]
    with one.running():
        bundle = folder / "cluster.bundle"
        seen = under_load(one, authority, partial(renew, one, bundle, authority, 0))
        assert len(seen) == 2
        told = [challenge(one, 0, name) for name in names]
    (folder / "cluster.secret").write_text("another-secret-than-the-one-before")
    with one.running():
        assert [challenge(one, 0, name) for name in names] == told


def test_certificates_and_the_authority_of_three_nodes_are_replaced_under_load(
    tmp_path: Path, report: Report
) -> None:
    three = HardenedCluster(tmp_path, 3)
    nodes = range(3)
    old_authority, old_bundle = (three.folders[0] / n for n in ("authority.pem", "cluster.bundle"))
    new = tmp_path / "new"
    with three.running():
        assert len({challenge(three, node, "nobody") for node in nodes}) == 1

        at_once = partial(renew, three, old_bundle, old_authority, *nodes)
        assert len(under_load(three, old_authority, at_once)) == 6
        three.odradek("certificate", "new-authority", "--from", str(old_bundle), "--into", str(new))
        both, last = new / "authority.pem", new / "authority-new.pem"

        def one_after_the_other() -> None:
            for node in nodes:
                renew(three, new / "cluster.bundle", both, node)

        assert len(under_load(three, both, one_after_the_other)) == 6
        for node in nodes:
            certificate(three, node, last)
            with pytest.raises(ssl.SSLCertVerificationError):
                certificate(three, node, old_authority)
        reason_s = join_in_vain(three, tmp_path)
        report(f"a node with an old bundle said why it cannot join after {reason_s:.1f} s")


def join_in_vain(three: HardenedCluster, folder: Path) -> float:
    """Format a node from a bundle whose secret is not the cluster's; after how many seconds it, and
    a node of the cluster, say what is wrong."""
    old, secret, later = (folder / name for name in ("old.bundle", "old.secret", "later"))
    old.write_bytes((folder / "new" / "cluster.bundle").read_bytes())
    old.chmod(0o600)
    secret.write_text("the-secret-of-this-cluster-before")
    three.odradek("certificate", "update-bundle", str(old), "--cluster-secret-file", str(secret))
    join = ("--set", f"join={three.peers[0]}", "--set", f"peer.listen=127.0.0.1:{free_pair()}")
    three.format(later, 3, free_port(), "--from", str(old), *join)
    node = started(later)
    began = time.monotonic()
    try:
        for log in (later, three.folders[0]):
            wait_until(
                lambda: "an old cluster.bundle" in (log / "node.log").read_text(),  # noqa: B023
                timeout_s=TOLD_S,
                what=f"{log.name} says what is wrong",
            )
        return time.monotonic() - began
    finally:
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=30)
