"""The cluster's metadata at one offset of its log: topics, brokers, configs, quotas, ACLs, users,
delegation tokens.

A `MetadataImage` never changes. Every process of a node holds one and replaces it when further
records are committed: a request that keeps an image sees one consistent state. Parts that two
images share are the same object in both, so that changes are found by identity. Only
`delta.MetadataDelta` and tests construct images; `snapshot` writes them out. `offset` is that of
the last applied entry.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from odradek.cluster.metadata.acls import AclsImage
from odradek.cluster.metadata.client_quotas import ClientQuotasImage
from odradek.cluster.metadata.delegation_tokens import DelegationTokensImage
from odradek.cluster.metadata.scram import ScramImage
from odradek.protocol.types import ZERO_UUID, Uuid

NO_LEADER: Final = -1
"""The leader of a partition without one."""


class ConfigResourceType(IntEnum):
    """What a configuration belongs to, with the numbers of the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A resource with configs. The broker named "" stands for all brokers of the cluster."""

    type: int
    name: str


class ReplicaDirectory(NamedTuple):
    """The log directory of the replica of a broker, by the id in its meta.properties."""

    broker_id: int
    directory_id: Uuid


class PartitionImage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of one partition.

    `replicas` is in order of preference; the first is the preferred leader. `elr` are the
    eligible leader replicas: those that left the ISR when it was smaller than
    min.insync.replicas and therefore have all that was committed. `last_known_elr` holds the
    last leader once the ISR is empty (KIP-966). `adding_replicas` and `removing_replicas` are
    the parts of `replicas` that a reassignment adds and removes. `partition_epoch` grows with
    every change, `leader_epoch` with every change of leader. `directories` names the log directory
    of each replica that is not in the first one of its broker (KIP-858). The struct travels inside
    records: fields may only be added at the end, with a default.
    """

    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    directories: tuple[ReplicaDirectory, ...] = ()

    def directory_of(self, broker_id: int) -> Uuid | None:
        """The log directory of the replica of a broker; None: the first one of the broker."""
        for replica, directory_id in self.directories:
            if replica == broker_id:
                return directory_id
        return None


class TopicImage(msgspec.Struct, frozen=True, gc=False):
    """One topic; the index of a partition in the tuple is its number."""

    name: str
    topic_id: Uuid
    partitions: tuple[PartitionImage, ...]


class BrokerListener(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An address at which clients reach a broker. Fields may only be added at the end.

    An empty host or port 0 means that nothing is advertised: the client gets the address at which
    it reached the broker.
    """

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class FeatureRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The levels of one feature that a broker's release supports, both ends included."""

    name: str
    min_level: int
    max_level: int


class BrokerImage(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """One registered broker. `broker_epoch` is that of its latest registration.

    `incarnation_id` is new with each start of the broker: a second broker with the same id has
    another one. A fenced broker leads nothing, and clients do not see it.
    `log_dirs` are the ids of its log directories: a wiped disk has a new one. The first is that of
    its data folder. `log_dir_paths` are their paths, in the same order. Those of
    `offline_log_dirs` have failed: the replicas there cannot be written or read (KIP-112). The
    struct is also the record of a registration: fields may only be added at the end, with a
    default.
    """

    broker_id: int
    broker_epoch: int
    incarnation_id: Uuid = ZERO_UUID
    listeners: tuple[BrokerListener, ...] = ()
    rack: str | None = None
    features: tuple[FeatureRange, ...] = ()
    is_fenced: bool = False
    is_in_controlled_shutdown: bool = False
    log_dirs: tuple[Uuid, ...] = ()
    log_dir_paths: tuple[str, ...] = ()
    offline_log_dirs: tuple[Uuid, ...] = ()

    def is_online(self, directory_id: Uuid | None) -> bool:
        """Whether the replicas of a log directory can be used. None is the first one."""
        if directory_id is None:
            return not self.log_dirs or self.log_dirs[0] not in self.offline_log_dirs
        return directory_id in self.log_dirs and directory_id not in self.offline_log_dirs

    def listener(self, name: str) -> BrokerListener | None:
        """The listener of that name, or None if the broker has none."""
        for listener in self.listeners:
            if listener.name == name:
                return listener
        return None


_NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})


class ConfigsImage(Mapping[ConfigResource, Mapping[str, str]]):
    """The dynamic configs by resource: the texts as they were set, without defaults.

    `cache` holds what is computed from these configs and nothing else that changes: key -> (what it
    was computed from besides, value). `broker_cache` holds what is computed from the brokers'
    configs alone: images share it as long as those stay. `settings` uses
    both. `client_metrics` are the configs of the client metrics subscriptions by name, the same
    object as long as none of them changes.
    """

    __slots__ = ("_by_resource", "broker_cache", "cache", "client_metrics")

    def __init__(self, by_resource: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        self._by_resource = dict(by_resource)
        self.cache: dict[object, tuple[object, object]] = {}
        self.broker_cache: dict[object, tuple[object, object]] = {}
        self.client_metrics: Mapping[str, Mapping[str, str]] = {
            name: configs
            for (kind, name), configs in by_resource.items()
            if kind == ConfigResourceType.CLIENT_METRICS
        }

    def after(self, changes: Mapping[ConfigResource, Mapping[str, str]]) -> "ConfigsImage":
        """This with the configs of some resources replaced; empty ones are removed. Costs a copy of
        the resources."""
        by_resource = self._by_resource.copy()
        for resource, configs in changes.items():
            if configs:
                by_resource[resource] = configs
            else:
                by_resource.pop(resource, None)
        kinds = {each.type for each in changes}
        if ConfigResourceType.CLIENT_METRICS in kinds:
            result = ConfigsImage(by_resource)
        else:
            result = ConfigsImage({})
            result._by_resource = by_resource
            result.client_metrics = self.client_metrics
        if ConfigResourceType.BROKER not in kinds:
            result.broker_cache = self.broker_cache
        return result

    def changed_since(self, before: "ConfigsImage") -> list[ConfigResource]:
        """The resources whose configs are others than they were `before`, or may be."""
        old, new = before._by_resource, self._by_resource
        changed = [each for each, configs in new.items() if old.get(each) is not configs]
        if len(new) - len(changed) < len(old):
            # Some of the old ones changed or were removed.
            changed += [each for each in old if each not in new]
        return changed

    def copy(self) -> "ConfigsImage":
        """The same configs, of which nothing is computed yet."""
        result = ConfigsImage({})
        result._by_resource, result.client_metrics = self._by_resource, self.client_metrics
        return result

    def __getitem__(self, resource: ConfigResource) -> Mapping[str, str]:
        return self._by_resource[resource]

    def __iter__(self) -> Iterator[ConfigResource]:
        return iter(self._by_resource)

    def __len__(self) -> int:
        return len(self._by_resource)

    def of(self, resource_type: ConfigResourceType, name: str) -> Mapping[str, str]:
        """The configs of one resource; empty if nothing was set."""
        return self._by_resource.get(ConfigResource(resource_type, name), _NO_CONFIGS)


class MetadataImage(msgspec.Struct, frozen=True, eq=False):
    """The whole metadata. Its mappings are never modified."""

    offset: int = 0
    cluster_id: str = ""
    brokers: Mapping[int, BrokerImage] = {}
    topics_by_name: Mapping[str, TopicImage] = {}
    topics_by_id: Mapping[Uuid, TopicImage] = {}
    configs: ConfigsImage = msgspec.field(default_factory=lambda: ConfigsImage({}))
    features: Mapping[str, int] = {}
    next_producer_id: int = 0
    scram_credentials: ScramImage = {}
    client_quotas: ClientQuotasImage = msgspec.field(default_factory=lambda: ClientQuotasImage({}))
    acls: AclsImage = msgspec.field(default_factory=AclsImage)
    delegation_tokens: DelegationTokensImage = msgspec.field(
        default_factory=lambda: DelegationTokensImage({})
    )
    decoy_key: bytes = b""
    """From it come the salts of users who do not exist; empty before the cluster has one."""

    @classmethod
    def empty(cls) -> "MetadataImage":
        """The image before the first record."""
        return cls()

    def partition(self, topic_id: Uuid, partition: int) -> PartitionImage | None:
        """One partition by its topic's id, or None if there is no such topic or number."""
        topic = self.topics_by_id.get(topic_id)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]
