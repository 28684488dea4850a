"""`odradek node rack` against an HTTPS server that answers as the API server of Kubernetes."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from odradek.node.certificate_authority import CertificateAuthority
from odradek.node.config import load
from tests.node.cli.conftest import Run
from tests.support.kubernetes_api import TOKEN, KubernetesApi

LABEL = "topology.kubernetes.io/zone"


@pytest.fixture
def api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    server = KubernetesApi(tmp_path, {"machine-a": {LABEL: "zone-a"}, "bare": {}})
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.close()


def arguments(folder: Path, machine: str = "machine-a") -> tuple[str, ...]:
    where = (f"--credentials={folder}", f"--file={folder}/rack.properties")
    return ("node", "rack", f"--machine={machine}", f"--label={LABEL}", *where)


def test_the_label_becomes_the_rack_of_the_node(
    api_server: KubernetesApi, tmp_path: Path, odradek: Run
) -> None:
    api_server.refusals = [503, 429]
    ran = odradek(*arguments(tmp_path))
    assert (ran.exit_code, ran.stdout) == (0, "The rack of machine-a is zone-a.\n"), ran.stderr
    provider = "config.providers.file.class"
    options = {
        "config.providers": "file",
        provider: "org.apache.kafka.common.config.provider.FileConfigProvider",
        "broker.rack": f"${{file:{tmp_path}/rack.properties:broker.rack}}",
    }
    config = load(environment={}, options=options)
    assert config.static_configs["broker.rack"] == "zone-a"


@pytest.mark.parametrize(
    ("machine", "refusals", "reason"),
    [
        ("bare", (), f"the machine bare has no label {LABEL}: kubectl label node bare"),
        ("elsewhere", (), "there is no machine elsewhere"),
        ("machine-a", (403,), "it needs a ClusterRole with the verb get for nodes"),
        ("machine-a", (500,) * 9, "the API server does not answer: 500"),
    ],
)
def test_a_pod_without_a_rack_does_not_start(
    api_server: KubernetesApi,
    tmp_path: Path,
    odradek: Run,
    machine: str,
    refusals: tuple[int, ...],
    reason: str,
) -> None:
    api_server.refusals = list(refusals)
    ran = odradek(*arguments(tmp_path, machine), "--timeout", "0.1")
    assert ran.exit_code == 1
    assert reason in ran.stderr
    assert TOKEN not in ran.stderr
    assert not (tmp_path / "rack.properties").exists()


def test_a_server_of_another_authority_gets_no_token(
    api_server: KubernetesApi, tmp_path: Path, odradek: Run
) -> None:
    other = CertificateAuthority.create("another authority", datetime.now(UTC))
    (tmp_path / "ca.crt").write_text(other.certificate)
    ran = odradek(*arguments(tmp_path))
    assert ran.exit_code == 1
    assert "certificate verify failed" in ran.stderr


def test_credentials_are_missing_outside_of_a_pod(tmp_path: Path, odradek: Run) -> None:
    ran = odradek(*arguments(tmp_path))
    assert ran.exit_code == 1
    assert f"cannot read the credentials in {tmp_path}" in ran.stderr
