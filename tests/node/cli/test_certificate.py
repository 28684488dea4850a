"""`odradek certificate`: a node's certificate is renewed with the bundle of its cluster."""

import ssl
from pathlib import Path

import msgspec
import pytest

from odradek.node.bus.curve import cluster_keys
from odradek.node.certificate_authority import names_of
from odradek.node.cluster_bundle import read_bundle
from tests.node.cli.conftest import Run
from tests.support.certificates import handshake


def test_a_certificate_is_renewed_and_may_get_more_names(tmp_path: Path, odradek: Run) -> None:
    folder = tmp_path / "node"
    assert odradek("format", "--hardened", "--into", str(folder)).exit_code == 0
    store = folder / "broker.pem"
    before, mode = store.read_text(), store.stat().st_mode
    renewed = odradek("certificate", "renew", str(folder), "--name", "b.example", "-o", "json")
    told = renewed.json()
    assert isinstance(told, dict)
    assert told["certificate_names"].endswith(", b.example")
    after = store.read_text()
    assert names_of(after) == (names_of(before)[0], (*names_of(before)[1], "b.example"))
    assert after.split("CERTIFICATE")[0] != before.split("CERTIFICATE")[0]
    assert store.stat().st_mode == mode
    assert not list(folder.glob(".broker*"))


def test_the_bundle_of_another_cluster_renews_nothing(tmp_path: Path, odradek: Run) -> None:
    for name in ("a", "b"):
        assert odradek("format", "--hardened", "--into", str(tmp_path / name)).exit_code == 0
    before = (tmp_path / "a" / "broker.pem").read_bytes()
    bundle = str(tmp_path / "b" / "cluster.bundle")
    ran = odradek("certificate", "renew", str(tmp_path / "a"), "--from", bundle)
    assert ran.exit_code == 1
    assert "and the bundle to cluster" in ran.stderr
    assert (tmp_path / "a" / "broker.pem").read_bytes() == before
    assert odradek("certificate", "renew", str(tmp_path)).exit_code == 1


def test_a_new_authority_is_made_beside_the_old_one(tmp_path: Path, odradek: Run) -> None:
    folder, new = tmp_path / "node", tmp_path / "new"
    assert odradek("format", "--hardened", "--into", str(folder)).exit_code == 0
    arguments = ("certificate", "new-authority", "--from", str(folder / "cluster.bundle"))
    old, old_store = (folder / "authority.pem").read_text(), (folder / "broker.pem").read_text()
    told = odradek(*arguments, "--into", str(new), "-o", "json").json()
    assert told == {
        "bundle": str(new / "cluster.bundle"),
        "for_clients_now": str(new / "authority.pem"),
        "for_clients_at_the_end": str(new / "authority-new.pem"),
    }
    assert (new / "cluster.bundle").stat().st_mode & 0o777 == 0o600
    assert (folder / "broker.pem").read_text() == old_store, "no node has changed"
    ran = odradek("certificate", "renew", str(folder), "--from", str(new / "cluster.bundle"))
    assert ran.exit_code == 0, ran.stderr
    new_store = (folder / "broker.pem").read_text()
    both, only_new = ((new / name).read_text() for name in ("authority.pem", "authority-new.pem"))
    handshake(tmp_path, old_store, both, "localhost")
    handshake(tmp_path, new_store, both, "localhost")
    handshake(tmp_path, new_store, only_new, "localhost")
    for store, authority in ((new_store, old), (old_store, only_new)):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(tmp_path, store, authority, "localhost")
    again = odradek(*arguments, "--into", str(new))
    assert again.exit_code == 1
    assert "File exists" in again.stderr


def test_a_bundle_gets_the_secret_that_the_cluster_has_now(tmp_path: Path, odradek: Run) -> None:
    folder, secret = tmp_path / "node", tmp_path / "secret"
    assert odradek("format", "--hardened", "--into", str(folder)).exit_code == 0
    bundle = folder / "cluster.bundle"
    arguments = ("certificate", "update-bundle", str(bundle), "--cluster-secret-file", str(secret))
    before = read_bundle(bundle)
    # While the secret is replaced, and after that.
    for text in ("secret-of-tomorrow\nsecret-of-yesterday\n", "secret-of-tomorrow\n"):
        secret.write_text(text)
        ran = odradek(*arguments, "-o", "json")
        assert ran.exit_code == 0, ran.stderr
        told = ran.json()
        assert isinstance(told, dict)
        keys = cluster_keys(text.split())
        assert told["secrets"] == ", ".join(each.fingerprint for each in keys)
        assert "tomorrow" not in ran.stdout
        assert read_bundle(bundle) == msgspec.structs.replace(before, cluster_secret=text.strip())
        assert bundle.stat().st_mode & 0o777 == 0o600
    later = tmp_path / "later"
    joins = ("--set", "join=127.0.0.1:9192", "--set", "peer.listen=127.0.0.1:9292")
    ran = odradek(
        *("format", "--hardened", "--into", str(later), "--from", str(bundle), "--node-id", "7"),
        *joins,
    )
    assert ran.exit_code == 0, ran.stderr
    assert (later / "cluster.secret").read_text() == secret.read_text()


@pytest.mark.parametrize("text", ["", "short", "the same secret\nthe same secret"])
def test_a_bundle_keeps_its_secret_if_the_new_one_cannot_be_used(
    text: str, tmp_path: Path, odradek: Run
) -> None:
    folder, secret = tmp_path / "node", tmp_path / "secret"
    assert odradek("format", "--hardened", "--into", str(folder)).exit_code == 0
    bundle = folder / "cluster.bundle"
    before = bundle.read_bytes()
    secret.write_text(text)
    arguments = ("certificate", "update-bundle", str(bundle), "--cluster-secret-file", str(secret))
    ran = odradek(*arguments)
    assert ran.exit_code == 1
    assert f"Error: {secret}: Must have" in ran.stderr
    assert not text or text.splitlines()[0] not in ran.stderr
    assert bundle.read_bytes() == before
