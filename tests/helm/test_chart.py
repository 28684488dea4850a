"""The chart in helm/odradek: what helm, the schemas and an API server say of it, and what a node
makes of its settings.

`HELM_GOLDEN=write` writes what is rendered to tests/helm/golden, for review.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from odradek.node.cli.main import cli
from odradek.node.config import NodeConfig, load
from odradek.node.config_sources import from_file
from tests.support.chart_readme import README, readme, undocumented_values
from tests.support.helm_chart import (
    CHART,
    ROOT,
    VALUES,
    VALUES_FILES,
    ChartError,
    Manifest,
    containers,
    named,
    notes,
    of_kind,
    only,
    pod_specs,
    pod_template,
    rendered,
    rendered_text,
    run_helm,
)
from tests.support.manifest_rules import RULES, immutable_changes

GOLDEN: Final = Path(__file__).parent / "golden"
KUBERNETES_VERSIONS: Final = ("1.30", "1.34", "1.37")
FOREIGN_KINDS: Final = frozenset({"Certificate", "TLSRoute", "ServiceMonitor", "PrometheusRule"})
"""Those of operators: Kubernetes has no schema of them."""

each_values_file = pytest.mark.parametrize("values", VALUES_FILES)


@each_values_file
def test_helm_finds_nothing_to_say(values: str) -> None:
    run_helm("lint", "--strict", str(CHART), "--values", str(VALUES / f"{values}.yaml"))


@each_values_file
def test_what_is_rendered_has_been_reviewed(values: str) -> None:
    text, golden = rendered_text(values), GOLDEN / f"{values}.yaml"
    if os.environ.get("HELM_GOLDEN") == "write":
        golden.write_text(text)
    assert text == golden.read_text(), "HELM_GOLDEN=write pytest tests/helm writes the new text"


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_schemas_of_kubernetes_accept_it(version: str) -> None:
    """The schemas of a version. An object that several files have is checked once."""
    everything = {json.dumps(each) for values in VALUES_FILES for each in rendered(values)}
    for each in map(json.loads, everything):
        if each["kind"] not in FOREIGN_KINDS:
            kubernetes_validate.validate(each, version, strict=True)


def test_the_schemas_refuse_what_is_no_field() -> None:
    broken = {**only(rendered("standard"), "PodDisruptionBudget"), "spek": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES_VERSIONS[-1], strict=True)


@each_values_file
def test_an_api_server_accepts_it(values: str) -> None:
    manifests = rendered(values)
    assert [fault for rule in RULES for fault in rule(manifests)] == []


@pytest.mark.parametrize("release", ["a", "kafka", "my-odradek", "x" * 53])
def test_names_are_valid_for_every_name_of_a_release(release: str) -> None:
    manifests = rendered("load-balancer", release=release)
    assert [fault for rule in RULES for fault in rule(manifests)] == []


@pytest.mark.parametrize(
    "setting",
    [
        *("replicas=5", "image.tag=2.0", "config.log\\.retention\\.ms=1", "resources.limits.cpu=2"),
        *("externalAccess.enabled=true,externalAccess.host=b-{ordinal}.a", "rack.enabled=true"),
        *("auth.enabled=true,auth.admin.password=secret", "commonLabels.team=data"),
        "minReadySeconds=30",
        "storage.retention.whenScaled=Delete",
    ],
)  # fmt: skip
def test_an_upgrade_changes_no_immutable_field(setting: str) -> None:
    before, after = rendered("standard"), rendered("standard", setting)
    assert before != after
    assert list(immutable_changes(before, after)) == []


def test_the_volume_of_tables_may_grow_and_not_move() -> None:
    before = rendered("pipeline")
    assert list(immutable_changes(before, rendered("pipeline", "pipeline.storage.size=1Ti"))) == []
    moved = rendered("pipeline", "pipeline.storage.storageClassName=fast")
    (fault,) = immutable_changes(before, moved)
    assert fault == "PersistentVolumeClaim kafka-odradek-tables: storageClassName cannot change"


def test_an_upgrade_of_the_volumes_would_be_refused() -> None:
    (fault,) = immutable_changes(rendered("standard"), rendered("standard", "storage.size=50Gi"))
    assert fault == "StatefulSet kafka-odradek: volumeClaimTemplates cannot change"


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("replicas=1", "replicas=1: the cluster.bootstrapVoters (3) have to stay"),
        ("replicationFactor=4", "replicationFactor=4: there are only 3 replicas"),
        ("minInSyncReplicas=4", "minInSyncReplicas: it is above the replication factor"),
        ("tls.enabled=true", "name a Secret in tls.existingSecret, or have cert-manager make one"),
        ("tls.enabled=true,tls.certManager.enabled=true", "issuerRef.name: name the issuer"),
        ("tls.certManager.enabled=true,tls.certManager.issuerRef.name=a", "needs tls.enabled"),
        ("listeners.internal.securityProtocol=SSL", "securityProtocol SSL needs tls.enabled"),
        ("listeners.internal.securityProtocol=SASL_PLAINTEXT", "needs auth.enabled"),
        ("externalAccess.enabled=true", "externalAccess.host: name the host that clients use"),
        ("externalAccess.enabled=true,externalAccess.host=a.b", "it needs {ordinal}"),
        (
            "externalAccess.enabled=true,externalAccess.host=a.b,externalAccess.type=NodePort,"
            "externalAccess.nodePort.externalTrafficPolicy=Local",
            "only a pod's own machine forwards to it",
        ),
        (
            "externalAccess.enabled=true,externalAccess.host=b{ordinal},externalAccess.type=Gateway",
            "the listener needs TLS",
        ),
        (
            "externalAccess.enabled=true,externalAccess.host=b,externalAccess.type=NodePort,"
            "externalAccess.nodePort.bootstrap=30096",
            "bootstrap=30096 is the port of a broker: they have 30094 to 30096",
        ),
        ("listeners.http.port=9092", "two of them have the same port"),
        ("listeners.http.port=9200", "9200 is one of them"),
        ("rack.enabled=true,rack.source=ordinals", "rack.ordinals: name the racks"),
        ("config.node\\.id=7", "config: node.id is set by the chart"),
        ("replica=3", "replica"),
        ("cluster.bootstrapVoters=2", "bootstrapVoters"),
        ("cluster.secret.value=short", "value"),
        ("auth.users[0].username=a", "existingSecret"),
        ("externalAccess.type=Ingress", "type"),
        ("workers=0", "workers"),
        ("pipeline.enabled=true", "pipeline.args: name the command"),
    ],
)
def test_values_that_cannot_work_are_refused(settings: str, reason: str) -> None:
    with pytest.raises(ChartError) as refused:
        rendered_text("standard", settings)
    assert reason in str(refused.value)


def test_every_value_is_documented_and_the_page_is_generated() -> None:
    assert undocumented_values((CHART / "values.yaml").read_text()) == []
    assert README.read_text() == readme(), "make docs"


def test_the_chart_is_of_this_release() -> None:
    from odradek import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


def test_generated_secrets_are_random_and_long() -> None:
    first, second = (
        only(rendered(None, "auth.enabled=true,auth.admin.existingSecret=a", *more), "Secret")
        for more in ((), ("replicas=4",))
    )
    assert first["data"] != second["data"]
    assert len(first["data"]["secret"]) >= 43


def test_notes_say_where_clients_begin(tmp_path: Path) -> None:
    said = notes("gateway", tmp_path / "gateway")
    assert "kafka-odradek-bootstrap.events.svc.cluster.local:9092    (SSL)" in said
    assert "broker-0.kafka.example.com:9094    (SSL)" in said
    said = notes("hardened", tmp_path / "hardened")
    assert "*.kafka-odradek-headless.events.svc.cluster.local" in said
    assert "kubectl get secret -n events kafka-admin" in said


@each_values_file
def test_commands_in_the_notes_are_true(values: str, tmp_path: Path) -> None:
    manifests, said = rendered(values), notes(values, tmp_path)
    lines = [line.strip() for line in said.splitlines() if line.startswith("  ")]
    commands = [line for line in lines if line.startswith(("kubectl ", "helm "))]
    assert commands[-1].startswith(("helm test -n events kafka", "kubectl exec -n events "))
    for command in commands:
        kubectl, _, words = command.partition(" -- odradek ")
        if words:
            pod = re.findall(r"-n events (\S+)-0 -c odradek$", kubectl)
            assert pod == [only(manifests, "StatefulSet")["metadata"]["name"]]
            assert CliRunner().invoke(cli, [*words.split(), "--help"]).exit_code == 0
            port = int(words.rpartition("--bootstrap localhost:")[2])
            assert port in {each["containerPort"] for each in broker_container(manifests)["ports"]}
        elif command.startswith("kubectl get secret"):
            secret, key = re.findall(r"-n events (\S+) .*\{\.data\.(\w+)\}", command)[0]
            users = {
                each["secret"]["name"]: each["secret"]["items"]
                for volume in only(manifests, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
                for each in volume.get("projected", {}).get("sources", ())
                if "secret" in each
            }
            assert key in {item["key"] for item in users[secret]}
        else:
            assert of_kind(manifests, "Pod"), "helm test has something to run"


def test_notes_say_where_racks_are_missing(tmp_path: Path) -> None:
    assert "Set rack.source=nodeLabel." in notes("rack-aware", tmp_path / "pods")
    assert "does not copy" not in notes("node-label", tmp_path / "machines")


# -- what a node makes of it -----------------------------------------------------------------------


def node_files(manifests: list[Manifest]) -> Mapping[str, str]:
    """The configuration files by name."""
    (found,) = (
        each["data"]
        for each in of_kind(manifests, "ConfigMap")
        if not each["metadata"]["name"].endswith("-dashboard")
    )
    assert isinstance(found, dict)
    return found


def broker_container(manifests: list[Manifest]) -> Manifest:
    """The one that runs the node."""
    (found,) = only(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def load_node(manifests: list[Manifest], ordinal: int, folder: Path) -> NodeConfig:
    """The configuration of one pod, as the node in it reads it. Environment variables with a label
    of the pod have the label's name as value."""
    pod = f"{only(manifests, 'StatefulSet')['metadata']['name']}-{ordinal}"
    container = broker_container(manifests)
    (argument,) = (text for text in container["args"] if text.startswith("--config="))
    name = argument.removeprefix("--config=/etc/odradek/config/").replace("$(POD_NAME)", pod)
    file, secret = folder / name, folder / "secret"
    file.write_text(node_files(manifests)[name])
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    environment = {
        variable["name"]: variable.get("value") or variable["valueFrom"]["fieldRef"]["fieldPath"]
        for variable in container["env"]
    }
    options = {"cluster.secret.file": str(secret)}
    if "${file:/run/rack.properties:broker.rack}" in file.read_text():
        options["broker.rack"] = "what an init container writes"
    return load(file=file, environment=environment, options=options)


@each_values_file
def test_nodes_take_their_configuration(values: str, tmp_path: Path) -> None:
    """All settings are valid and have an effect. The first nodes of the one cluster vote, the
    others join them."""
    manifests = rendered(values)
    count = only(manifests, "StatefulSet")["spec"]["replicas"]
    voters = int(
        only(manifests, "StatefulSet")["metadata"]["annotations"]["odradek/bootstrap-voters"]
    )
    nodes = [load_node(manifests, ordinal, tmp_path) for ordinal in range(count)]
    assert [node.node_id for node in nodes] == list(range(count))
    assert len({node.cluster_id for node in nodes}) == 1
    assert len({node.own_peer for node in nodes}) == count
    for node in nodes:
        assert node.settings_without_effect == []
        addresses = [(peer.host, peer.port) for peer in nodes[0].peers]
        assert len(addresses) == voters
        if node.node_id < voters:
            assert node.peers == nodes[0].peers
            assert node.own_peer == node.peers[node.node_id]
        else:
            assert [(seed.host, seed.port) for seed in node.join] == addresses
        for listener in node.listeners:
            assert listener.host in ("", "::")
            assert listener.advertised_host


@each_values_file
def test_nodes_write_to_volumes_only(values: str, tmp_path: Path) -> None:
    manifests = rendered(values)
    node = load_node(manifests, 0, tmp_path)
    for container in containers(only(manifests, "StatefulSet")["spec"]["template"]["spec"]):
        if not any(word.startswith("--config=") for word in container["args"]):
            continue
        writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
        audit_log = node.static_configs.get("audit.log.path", node.data)
        for path in (*(each.path for each in node.log_dirs), node.run, audit_log):
            assert any(path.startswith(f"{mount}/") for mount in writable), path


@each_values_file
def test_ports_are_those_of_the_listeners(values: str, tmp_path: Path) -> None:
    manifests = rendered(values)
    node = load_node(manifests, 0, tmp_path)
    ports = {port["name"]: port["containerPort"] for port in broker_container(manifests)["ports"]}
    expected = {listener.name.lower(): listener.port for listener in node.listeners}
    assert ports == expected | {"peer": node.peer_port, "http": node.http_port}


@each_values_file
def test_files_of_the_configuration_are_mounted(values: str, tmp_path: Path) -> None:
    """Every path in the configuration and in the arguments is one of a key in a volume."""
    manifests = rendered(values)
    settings = {
        key: each.text
        for name, text in node_files(manifests).items()
        for key, each in _settings(tmp_path / name, text)
    }
    for where, pod, _ in pod_specs(manifests):
        sources = {volume["name"]: volume for volume in pod["volumes"]}
        for container in containers(pod):
            mounts = {
                mount["mountPath"]: sources.get(mount["name"], {})
                for mount in container["volumeMounts"]
            }
            texts = [text.rpartition("=")[2].rstrip("]") for text in container["args"]]
            if container["name"] == "odradek":
                texts += settings.values()
            for path in (text for text in texts if text.startswith("/etc/")):
                assert any(
                    path == mount
                    or (path.startswith(f"{mount}/") and _has_file(volume, path[len(mount) + 1 :]))
                    for mount, volume in mounts.items()
                ), f"{where}, {container['name']}: {path}"


def _settings(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    file.write_text(text)
    yield from from_file(file).items()


def _has_file(volume: Mapping[str, Any], path: str) -> bool:
    """Whether a volume has the file; one without a list of items has every file of its object."""
    sources = [volume.get("secret", {}), volume.get("configMap", {})]
    for source in volume.get("projected", {}).get("sources", ()):
        sources += source.values()
    return any(
        source and (not source.get("items") or path in {each["path"] for each in source["items"]})
        for source in sources
    )


def test_a_hardened_cluster_lets_in_only_who_logs_in(tmp_path: Path) -> None:
    manifests = rendered("hardened")
    node = load_node(manifests, 0, tmp_path)
    assert {listener.security_protocol for listener in node.listeners} == {"SASL_SSL"}
    assert node.static_configs["allow.everyone.if.no.acl.found"] == "false"
    assert node.static_configs["super.users"] == "User:root;User:ops;User:CN=deploy"
    assert node.static_configs["log.retention.ms"] == "604800000"
    (init,) = only(manifests, "StatefulSet")["spec"]["template"]["spec"]["initContainers"]
    added = [text for text in init["args"] if text.startswith("--add-scram")]
    assert [text.partition("name=")[2].partition(",")[0] for text in added] == [
        *("root", "app", "reports")
    ]
    policy = only(manifests, "NetworkPolicy")["spec"]
    assert all(entry["from"] for entry in policy["ingress"])
    assert policy["ingress"][0]["ports"][0]["port"] == node.peer_port


def test_a_single_node_takes_what_it_has(tmp_path: Path) -> None:
    node = load_node(rendered("dev"), 0, tmp_path)
    assert node.static_configs["default.replication.factor"] == "1"
    assert node.static_configs["min.insync.replicas"] == "1"
    assert node.static_configs["internal.topics.replication.adaptive"] == "true"
    assert node.is_clustered, "others can join it"


def test_racks_are_those_of_the_pod_or_of_the_list(tmp_path: Path) -> None:
    node = load_node(rendered("rack-aware"), 4, tmp_path)
    label = "metadata.labels['topology.kubernetes.io/zone']"
    assert node.broker_configs["broker.rack"] == label
    racks = [
        load_node(rendered("rack-ordinals"), ordinal, tmp_path).broker_configs["broker.rack"]
        for ordinal in range(4)
    ]
    assert racks == ["a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("values", "ordinal", "address"),
    [
        ("node-port", 2, ("kafka.example.com", 30_096)),
        ("load-balancer", 1, ("broker-1.kafka.example.com", 9094)),
        ("gateway", 1, ("broker-1.kafka.example.com", 9094)),
    ],
)
def test_clients_outside_learn_the_address_of_each_broker(
    values: str, ordinal: int, address: tuple[str, int], tmp_path: Path
) -> None:
    manifests = rendered(values)
    listener = load_node(manifests, ordinal, tmp_path).listeners[1]
    assert (listener.advertised_host, listener.advertised_port) == address
    service = named(manifests, "Service", f"kafka-odradek-external-{ordinal}")
    assert service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"].endswith(f"-{ordinal}")
    (port,) = service["spec"]["ports"]
    if values == "node-port":
        assert port["nodePort"] == address[1]
    elif values == "load-balancer":
        assert port["port"] == address[1]
        annotations = service["metadata"]["annotations"]
        assert annotations["external-dns.alpha.kubernetes.io/hostname"] == address[0]
    else:
        route = named(manifests, "TLSRoute", f"kafka-odradek-external-{ordinal}")
        assert route["spec"]["hostnames"] == [address[0]]
        certificate = only(manifests, "Certificate")
        assert address[0] in certificate["spec"]["dnsNames"]


def test_addresses_are_no_names_in_a_certificate() -> None:
    outside = "externalAccess.enabled=true,externalAccess.type=NodePort,externalAccess.host="
    more = "tls.certManager.extraIpAddresses[0]=fd00::7"
    spec = only(rendered("cert-manager", f"{outside}203.0.113.7,{more}"), "Certificate")["spec"]
    assert spec["ipAddresses"] == ["203.0.113.7", "fd00::7"]
    assert not any(name.startswith(("203", "fd00")) for name in spec["dnsNames"])
    assert "ipAddresses" not in only(rendered("cert-manager"), "Certificate")["spec"]


def test_an_init_container_may_get_machines_and_nothing_else() -> None:
    manifests = rendered("node-label")
    role, binding = only(manifests, "ClusterRole"), only(manifests, "ClusterRoleBinding")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == "events-kafka-odradek-machines"
    account = only(manifests, "ServiceAccount")["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == (account, "events")
    init = only(manifests, "StatefulSet")["spec"]["template"]["spec"]["initContainers"][0]
    assert CliRunner().invoke(cli, [*init["args"], "--help"]).exit_code == 0
    assert of_kind(rendered("rack-aware"), "ClusterRole") == []


def test_pods_restart_for_another_configuration_if_that_is_wanted() -> None:
    def template(*settings: str, values: str = "standard") -> object:
        return only(rendered(values, *settings), "StatefulSet")["spec"]["template"]

    changed = "config.num\\.partitions=7"
    assert template(changed) == template()
    assert template(changed, values="rack-aware") != template(values="rack-aware")
    assert template("replicas=6", values="rack-aware") == template(values="rack-aware")


def test_the_image_sets_nothing_that_would_win_over_the_configuration_file() -> None:
    of_image = set(re.findall(r"\b(ODRADEK_[A-Z_]+)=", (ROOT / "Dockerfile").read_text()))
    assert of_image <= {"ODRADEK_SERVE_DEFAULTS"}


@pytest.mark.parametrize("file", ["Dockerfile", "pipeline/Dockerfile"])
def test_the_user_of_the_images_is_that_of_the_pods(file: str) -> None:
    user, group = re.findall(r"^USER (\d+):(\d+)$", (ROOT / file).read_text(), re.MULTILINE)[0]
    context = only(rendered("standard"), "StatefulSet")["spec"]["template"]["spec"][
        "securityContext"
    ]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user), int(group))


def test_a_job_of_the_pipeline_has_options_that_its_image_knows() -> None:
    assert of_kind(rendered("hardened"), "CronJob") == []
    (container,) = pod_template(only(rendered("pipeline"), "CronJob"))["spec"]["containers"]
    assert container["command"] == ["odradek"]
    # The files of the pod are not here.
    words = [each for each in container["args"] if not each.startswith("--client-config=")]
    done = CliRunner().invoke(cli, [*words, "--help"])
    assert done.exit_code == 0, done.output
    assert "--table" in done.output
    own = only(rendered("pipeline", "pipeline.existingLoginSecret="), "CronJob")
    assert "kafka-admin" in json.dumps(own)
    claimed = rendered("pipeline", "pipeline.storage.existingClaim=lake")
    assert of_kind(claimed, "PersistentVolumeClaim") == []
    assert '"claimName": "lake"' in json.dumps(only(claimed, "CronJob"))


def test_jobs_move_replicas_away_before_pods_are_stopped_and_to_new_ones_after_it() -> None:
    assert of_kind(rendered("standard"), "Job") == []
    hooks = []
    for job in of_kind(rendered("rack-aware", "replicas=4"), "Job"):
        (container,) = job["spec"]["template"]["spec"]["containers"]
        command = [*container["args"], "--help"]
        assert CliRunner().invoke(cli, command).exit_code == 0, "the command has these options"
        annotations = job["metadata"]["annotations"]
        hook, weight = annotations["helm.sh/hook"], int(annotations["helm.sh/hook-weight"])
        hooks.append((hook, weight, container["args"]))
    bootstrap = "--bootstrap=kafka-odradek-bootstrap.events.svc.cluster.local:9092"
    fewer = ["cluster", "scale-down", "4", "--yes", "--throttle=50M"]
    more = ["cluster", "scale-up", "4", "--yes", "--timeout=600", "--throttle=50M"]
    assert sorted(hooks) == [
        ("post-upgrade", 0, [*fewer, "--wait", "--timeout=600", bootstrap]),
        ("post-upgrade", 1, [*more, bootstrap]),
        ("pre-upgrade", 0, [*fewer, bootstrap]),
    ]


def test_the_test_of_a_release_runs_commands_that_exist() -> None:
    for container in containers(only(rendered("standard"), "Pod")["spec"]):
        ran = CliRunner().invoke(cli, [*container["args"], "--help"])
        assert ran.exit_code == 0, ran.output


def test_a_node_has_the_time_that_it_needs_to_stop() -> None:
    """Sleep, handover of leadership, and 15 s for routers, workers and controller each."""
    spec = only(rendered("standard"), "StatefulSet")["spec"]["template"]["spec"]
    sleep = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] >= sleep + 10 + 3 * 15
