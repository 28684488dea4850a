"""What tests/support/stateful_set_player.py makes of the rendered chart."""

from pathlib import Path

import pytest

from odradek.node.config import load
from tests.support.helm_chart import VALUES_FILES, rendered
from tests.support.service_player import PlayedService, services_of
from tests.support.stateful_set_player import (
    SERVICE_ACCOUNT,
    Machine,
    PlayedPod,
    PlayedProbe,
    Secrets,
    pod_of,
    pods_of_stateful_set,
    rollout_of,
)

SECRETS: Secrets = {
    name: {
        "secret": b"0123456789abcdef0123456789abcdef",
        "password": name.encode(),
        "client.properties": b"sasl.username=root\n",
        "tls-combined.pem": b"key and chain",
        "ca.crt": b"authority",
        "token": b"token",
    }
    for name in (
        *("kafka-cluster-secret", "shared-cluster-secret", "kafka-tls", "kafka-client-authority"),
        *("kafka-admin", "kafka-app", "kafka-reports", "kafka-archive", "kafka-odradek-tls"),
        SERVICE_ACCOUNT,
    )
}
MACHINES = [Machine(f"machine-{ordinal}", f"10.0.0.{ordinal}") for ordinal in range(3)]


def played(values: str) -> list[PlayedPod]:
    domain = "k8s.example" if values == "rack-ordinals" else "cluster.local"
    return pods_of_stateful_set(
        rendered(values),
        SECRETS,
        cluster_domain=domain,
        labels={"topology.kubernetes.io/zone": "zone-a"},
        machines=MACHINES,
    )


def write(pod: PlayedPod, folder: Path) -> Path:
    """The files of the node's container below `folder`."""
    for mount in pod.containers[0].mounts:
        for path, content in (mount.files or {}).items():
            file = folder / mount.path.lstrip("/") / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    return folder


@pytest.mark.parametrize("values", VALUES_FILES)
def test_every_node_starts_with_its_own_files_and_reaches_the_others_by_name(
    values: str, tmp_path: Path
) -> None:
    pods = played(values)
    names = {name: pod.name for pod in pods for name in pod.dns_names}
    for ordinal, pod in enumerate(pods):
        root = write(pod, tmp_path / pod.name)
        (container,) = pod.containers
        assert container.command[:3] == ("odradek", "node", "start")
        config = root / container.command[3].partition("=")[2].lstrip("/")
        options = {"cluster.secret.file": str(root / "etc/odradek/cluster/secret")}
        if values == "node-label":
            options["broker.rack"] = "what an init container writes"
        node = load(file=config, environment=container.environment, options=options)
        assert node.node_id == ordinal
        assert node.cluster_secrets
        assert node.own_peer is not None
        assert names[node.own_peer.host] == pod.name
        others = [peer.host for peer in node.peers] + [seed.host for seed in node.join]
        assert set(others) <= names.keys(), "each name leads to a pod"
        assert node.listeners[0].advertised_host in pod.dns_names
        for probe in (pod.liveness, pod.readiness):
            assert probe is not None
            assert probe.port == node.http_port
        for mount in container.mounts:
            assert not (mount.files and not mount.is_read_only)
        store = node.static_configs.get("ssl.keystore.location")
        assert store is None or (root / store.lstrip("/")).read_bytes() == b"key and chain"


def test_volumes_are_those_of_the_pod() -> None:
    pods = played("rack-aware")
    claims = [
        sorted(mount.claim for mount in pod.containers[0].mounts if mount.claim) for pod in pods
    ]
    assert claims[2] == ["data-kafka-odradek-2", "disk-b-kafka-odradek-2"]
    assert len({claim for of_pod in claims for claim in of_pod}) == 2 * len(pods)


def test_labels_of_the_machine_become_the_rack() -> None:
    assert {
        pod.containers[0].environment["ODRADEK_BROKER_RACK"] for pod in played("rack-aware")
    } == {"zone-a"}


def test_clients_outside_get_the_address_of_the_machine_of_each_pod(tmp_path: Path) -> None:
    for ordinal, pod in enumerate(played("node-label")):
        (container,) = pod.containers
        root = write(pod, tmp_path / pod.name)
        config = root / container.command[3].partition("=")[2].lstrip("/")
        options = {
            "cluster.secret.file": str(root / "etc/odradek/cluster/secret"),
            "broker.rack": "a",
        }
        node = load(file=config, environment=container.environment, options=options)
        listener = node.listeners[1]
        assert listener.advertised_host == f"10.0.0.{ordinal}"
        assert listener.advertised_port == 30_094 + ordinal


def test_only_the_container_that_asks_for_the_machine_has_the_token() -> None:
    pod = played("node-label")[1]
    rack, *others = (*pod.initial, *pod.containers)
    assert rack.command[3] == "--machine=machine-1"
    folder = next(word.partition("=")[2] for word in rack.command if "--credentials" in word)
    files = {mount.path: mount.files for mount in rack.mounts}
    assert files[folder] == {"token": b"token", "ca.crt": b"authority"}
    assert not any(mount.path == folder for each in others for mount in each.mounts)


def test_passwords_of_the_first_users_are_for_the_format_only() -> None:
    pod = played("hardened")[0]
    (init,) = pod.initial
    files = {
        f"{mount.path}/{path}": content
        for mount in init.mounts
        for path, content in (mount.files or {}).items()
    }
    assert files["/etc/odradek/users/root/password"] == b"kafka-admin"
    assert files["/etc/odradek/users/app/password"] == b"kafka-app"
    added = [word.rpartition("password-file=")[2].rstrip("]") for word in init.command[4:]]
    assert set(added) == {path for path in files if path.startswith("/etc/odradek/users")}
    assert not any("users" in mount.path for mount in pod.containers[0].mounts)


def test_pods_are_restricted_and_stop_in_time() -> None:
    pod = played("standard")[0]
    assert pod.user == "10001:10001"
    for container in (*pod.initial, *pod.containers):
        assert container.is_root_read_only
        assert container.dropped_capabilities == ("ALL",)
        assert not container.may_escalate
        assert (container.memory_bytes_max, container.cpus_max) == (2 << 30, 0)
    assert (pod.pre_stop_s, pod.stop_s) == (3, 60)
    assert pod.readiness == PlayedProbe(
        path="/readyz", port=8080, period_s=3, timeout_s=3, failure_threshold=2, stop_s=60
    )
    assert pod.liveness == PlayedProbe(
        path="/livez", port=8080, period_s=10, timeout_s=5, failure_threshold=6, stop_s=20
    )


def test_pods_start_at_the_same_time_and_are_replaced_in_turn() -> None:
    rollout = rollout_of(rendered("standard"))
    assert (rollout.is_parallel, rollout.partition, rollout.min_ready_s) == (True, 0, 5)
    staged = "updateStrategy.rollingUpdate.partition=2"
    assert rollout_of(rendered("standard", staged)).partition == 2
    assert rollout_of(rendered("standard", "updateStrategy.type=OnDelete")).partition == 3


def test_pods_have_no_names_while_the_quorum_forms_if_only_ready_ones_have_some() -> None:
    manifests = rendered("standard")
    changed = [
        {**each, "spec": {**each["spec"], "publishNotReadyAddresses": False}}
        if each["metadata"]["name"].endswith("-headless")
        else each
        for each in manifests
    ]
    assert all(pod.dns_names for pod in pods_of_stateful_set(manifests, SECRETS))
    assert not any(pod.dns_names for pod in pods_of_stateful_set(changed, SECRETS))


@pytest.mark.parametrize("values", VALUES_FILES)
def test_services_lead_to_pods(values: str) -> None:
    names = [pod.name for pod in played(values)]
    services = services_of(rendered(values))
    (bootstrap,) = (each for each in services if each.name.endswith("bootstrap") and not _out(each))
    assert list(bootstrap.pods) == names
    assert not bootstrap.publishes_not_ready, "clients begin at brokers that are ready"
    single = [each for each in services if each.publishes_not_ready]
    assert [each.pods for each in single] == [(name,) for name in names if single]
    if values == "node-port":
        assert [each.node_port for each in single] == [30_094, 30_095, 30_096]
    if values == "gateway":
        assert single[1].server_names == ("broker-1.kafka.example.com",)


def _out(service: PlayedService) -> bool:
    return "external" in service.name


def test_commands_of_the_chart_reach_the_bootstrap_service() -> None:
    manifests = rendered("rack-aware", "pipeline.enabled=true,pipeline.args={lag}")
    names = {name for each in services_of(manifests) for name in each.dns_names}
    for pod in (
        pod_of(manifests, "Pod", "kafka-odradek-test", SECRETS),
        pod_of(manifests, "Job", "kafka-odradek-scale-down", SECRETS),
        pod_of(manifests, "CronJob", "kafka-odradek-pipeline", SECRETS),
    ):
        for container in (*pod.initial, *pod.containers):
            (address,) = (w for w in container.command if w.startswith("--bootstrap="))
            assert address.partition("=")[2].partition(":")[0] in names


def test_the_job_of_the_pipeline_has_its_login_and_its_volume() -> None:
    pod = pod_of(rendered("pipeline"), "CronJob", "kafka-odradek-pipeline", SECRETS)
    (container,) = pod.containers
    mounts = {each.path: each for each in container.mounts}
    assert mounts["/etc/odradek/client"].files == {"client.properties": b"sasl.username=root\n"}
    assert mounts["/var/lib/tables"].claim == "kafka-odradek-tables"
    assert not mounts["/var/lib/tables"].is_read_only


def test_a_key_that_a_secret_lacks_is_found() -> None:
    with pytest.raises(KeyError):
        pods_of_stateful_set(rendered("standard"), {"kafka-cluster-secret": {"other": b""}})
