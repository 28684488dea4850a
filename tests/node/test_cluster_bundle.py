"""The bundle from which the nodes of a hardened cluster are formatted."""

from pathlib import Path

import msgspec
import pytest

from odradek.node.cluster_bundle import ClusterBundle, read_bundle
from odradek.node.config_sources import ConfigurationError

BUNDLE = ClusterBundle(
    cluster_id="c",
    authority_certificate="certificate",
    authority_key="key",
    cluster_secret="a secret of the cluster",
    admin="admin",
    records=b"\x00\xff",
    settings={"peers": "0@a:1"},
)


def written(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "cluster.bundle"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_bundle_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_bundle(written(tmp_path, BUNDLE.encode())) == BUNDLE
    assert BUNDLE.authority == ("certificate", "key")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_bundle_that_others_can_reach_is_not_used(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_bundle(written(tmp_path, BUNDLE.encode(), mode))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a bundle"),
        (BUNDLE.encode()[:-9], "is not a bundle"),
        (b"{}", "is not a bundle"),
        (msgspec.structs.replace(BUNDLE, version=2).encode(), "Use the newer release"),
    ],
)
def test_a_bundle_that_is_damaged_or_newer_is_an_error_without_its_content(
    tmp_path: Path, content: bytes, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        read_bundle(written(tmp_path, content))
    assert "a secret of" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="No such file"):
        read_bundle(tmp_path / "absent")
