"""`odradek certificate`: a node's certificate is renewed with the bundle of its cluster."""

from pathlib import Path

from odradek.node.certificate_authority import names_of
from tests.node.cli.conftest import Run


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
