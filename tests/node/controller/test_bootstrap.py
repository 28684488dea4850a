"""The first records of a cluster, and the registration of a node."""

from pathlib import Path

from odradek.cluster.controller.controller import Controller
from odradek.cluster.metadata.features import (
    INITIAL_LEVELS,
    REGISTERED_FEATURES,
    has_eligible_leader_replicas,
)
from odradek.cluster.metadata.image import BrokerImage, ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import ClusterCreated
from odradek.node.config import NodeConfig, load
from odradek.node.controller.bootstrap import bootstrap_records, min_insync_warning, registration


def config_of(folder: Path, **options: str) -> NodeConfig:
    keys = {key.replace("_", "."): value for key, value in options.items()}
    return load(
        environment={},
        options={"data": str(folder), "cluster.id": "cluster-of-the-test", **keys},
    )


def started(config: NodeConfig, *, times: int = 1) -> MetadataImage:
    """The image of a new cluster after this many starts of the node."""
    controller = Controller(MetadataImage.empty(), node_id=config.node_id)
    controller.replay(bootstrap_records(config), 1)
    for start in range(times):
        result = controller.handle(registration(config, start.to_bytes(16)), 1_000)
        controller.replay(result.records, controller.image.offset + 1)
    return controller.image


def broker(image: MetadataImage, node_id: int = 0) -> BrokerImage:
    return image.brokers[node_id]


def test_a_new_cluster_has_the_id_of_the_configuration(tmp_path: Path) -> None:
    image = started(config_of(tmp_path))
    assert image.cluster_id == "cluster-of-the-test"


def test_a_new_cluster_has_all_features_of_the_release_and_its_own_min_insync_replicas(
    tmp_path: Path,
) -> None:
    image = started(config_of(tmp_path, min_insync_replicas="2"))
    assert image.features == INITIAL_LEVELS
    assert has_eligible_leader_replicas(image)
    defaults = image.configs.of(ConfigResourceType.BROKER, "")
    assert defaults == {"min.insync.replicas": "2"}
    assert broker(image).features == REGISTERED_FEATURES


def test_a_node_is_warned_if_the_clusters_min_insync_replicas_differs(tmp_path: Path) -> None:
    image = started(config_of(tmp_path, min_insync_replicas="2"))
    assert min_insync_warning(config_of(tmp_path, min_insync_replicas="2"), image) is None
    assert min_insync_warning(config_of(tmp_path), image) is None
    assert (
        min_insync_warning(config_of(tmp_path, min_insync_replicas="1"), MetadataImage.empty())
        is None
    )
    notice = min_insync_warning(config_of(tmp_path, min_insync_replicas="1"), image)
    assert notice is not None
    assert "the cluster has 2" in notice


def test_a_cluster_without_feature_levels_accepts_its_nodes(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    controller = Controller(MetadataImage.empty(), node_id=config.node_id)
    controller.replay([ClusterCreated(config.cluster_id)], 1)
    result = controller.handle(registration(config, b"first start 1234"), 1_000)
    controller.replay(result.records, 2)
    assert not broker(controller.image).is_fenced
    assert controller.image.features == {}


def test_a_single_node_registers_unfenced(tmp_path: Path) -> None:
    image = started(config_of(tmp_path, node_id="7", broker_rack="r1"))
    assert list(image.brokers) == [7]
    assert broker(image, 7).rack == "r1"
    assert not broker(image, 7).is_fenced


def test_every_start_raises_the_broker_epoch(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert broker(started(config, times=2)).broker_epoch > broker(started(config)).broker_epoch


def test_a_listener_without_an_advertised_address_has_an_empty_host(tmp_path: Path) -> None:
    """Clients then get the address at which they reached the node."""
    image = started(config_of(tmp_path, listeners="PLAINTEXT://0.0.0.0:19092"))
    listener = broker(image).listener("PLAINTEXT")
    assert listener is not None
    assert (listener.host, listener.port) == ("", 19092)


def test_advertised_addresses_are_registered(tmp_path: Path) -> None:
    image = started(
        config_of(
            tmp_path,
            listeners="INSIDE://0.0.0.0:19092,OUTSIDE://0.0.0.0:19093",
            advertised_listeners="OUTSIDE://kafka.example:443",
        )
    )
    outside, inside = broker(image).listener("OUTSIDE"), broker(image).listener("INSIDE")
    assert outside is not None
    assert inside is not None
    assert (outside.host, outside.port) == ("kafka.example", 443)
    assert outside.security_protocol == "PLAINTEXT"
    assert inside.host == ""


def test_a_new_address_is_registered_at_the_next_start(tmp_path: Path) -> None:
    before = config_of(tmp_path, listeners="PLAINTEXT://0.0.0.0:19092")
    controller = Controller(started(before), node_id=0)
    after = config_of(tmp_path, listeners="PLAINTEXT://0.0.0.0:29092")
    result = controller.handle(registration(after, b"second start 123"), 2_000)
    controller.replay(result.records, controller.image.offset + 1)
    listener = broker(controller.image).listener("PLAINTEXT")
    assert listener is not None
    assert listener.port == 29092


PEERS = "0@10.0.0.1:9192,1@10.0.0.2:9192,2@10.0.0.3:9192"


def test_a_node_of_a_cluster_registers_an_address_for_clients_of_other_nodes(
    tmp_path: Path,
) -> None:
    several = {"peers": PEERS, "cluster_secret": "sixteen characters and more", "node_id": "1"}
    on_all = config_of(tmp_path, listeners="0.0.0.0:19092", **several)
    on_one = config_of(tmp_path, listeners="192.168.1.2:19092", **several)
    told = config_of(tmp_path, listeners=":1", advertised_listeners="kafka.example:443", **several)
    hosts = [registration(config, b"i" * 16).listeners[0].host for config in (on_all, on_one, told)]
    assert hosts == ["10.0.0.2", "192.168.1.2", "kafka.example"]


def test_only_a_node_of_a_cluster_sends_its_previous_broker_epoch(tmp_path: Path) -> None:
    secret = "sixteen characters and more"
    several = config_of(tmp_path, peers=PEERS, cluster_secret=secret, node_id="1")
    told = [registration(config, b"i" * 16, 7) for config in (several, config_of(tmp_path))]
    assert [command.previous_broker_epoch for command in told] == [7, None]


def test_a_node_of_a_cluster_registers_fenced(tmp_path: Path) -> None:
    secret = "sixteen characters and more"
    config = config_of(tmp_path, peers=PEERS, cluster_secret=secret, node_id="1")
    assert broker(started(config), 1).is_fenced


def test_workers_are_registered_at_the_ports_after_the_peer_port(
    tmp_path: Path,
) -> None:
    """Also where that is mapped to the one it listens on, as a container's ports are."""
    config = config_of(
        tmp_path,
        workers="2",
        peers="0@node-0.example:31000,1@node-1.example:32000",
        peer_listen="0.0.0.0:9192",
        listeners="PLAINTEXT://0.0.0.0:19092",
        cluster_secret="the secret of the nodes of a test",
    )
    listeners = registration(config, bytes(16)).listeners
    workers = [(x.host, x.port) for x in listeners if x.name.startswith("worker-")]
    assert workers == [("node-0.example", 31001), ("node-0.example", 31002)]
    assert [config.worker_port(index) for index in range(2)] == [9193, 9194]
