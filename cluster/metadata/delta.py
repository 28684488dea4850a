"""From one image to the next: records are collected, then applied together.

The cost of `replay` is that of the record; the cost of `apply` is one copy of each mapping that was
touched, however many records touched it. A thousand new topics copy the
table of topics once. Parts without changes are the same objects as in the old image.

Records are not checked again: the controller that wrote them has done that. One that cannot be
applied (a partition of an unknown topic) breaks the invariant that all nodes read the same log, and
raises MetadataInvariantError.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, assert_never

import msgspec

from odradek.cluster.metadata.acls import AclBinding, AclsImage
from odradek.cluster.metadata.client_quotas import ClientQuotasImage, QuotaEntity
from odradek.cluster.metadata.delegation_tokens import DelegationToken, DelegationTokensImage
from odradek.cluster.metadata.image import (
    BrokerImage,
    ConfigResource,
    ConfigResourceType,
    ConfigsImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.cluster.metadata.records import (
    AclCreated,
    AclDeleted,
    BrokerChanged,
    BrokerUnregistered,
    ClientQuotaChanged,
    ClusterCreated,
    ConfigChanged,
    DecoyKeyCreated,
    DelegationTokenChanged,
    DelegationTokenRemoved,
    FeatureLevelChanged,
    PartitionChanged,
    PartitionsAdded,
    ProducerIdsAllocated,
    Record,
    ScramCredentialChanged,
    ScramCredentialRemoved,
    TopicCreated,
    TopicDeleted,
)
from odradek.cluster.metadata.scram import ScramCredential, ScramUser
from odradek.protocol.types import Uuid


class MetadataInvariantError(AssertionError):
    """The metadata log contradicts itself: a bug of ours, not of a client."""


class _TopicDelta(NamedTuple):
    """A topic some of whose partitions are being replaced."""

    name: str
    partitions: list[PartitionImage]


class MetadataDelta:
    """The changes upon one image. Single use: replay records, then apply."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._cluster_id = image.cluster_id
        self._next_producer_id = image.next_producer_id
        self._decoy_key = image.decoy_key
        self._changed_topics: dict[Uuid, _TopicDelta] = {}
        self._deleted_topics: dict[Uuid, TopicImage] = {}
        self._brokers: dict[int, BrokerImage] | None = None
        self._features: dict[str, int] | None = None
        self._configs: dict[ConfigResource, dict[str, str]] = {}
        self._scram_credentials: dict[ScramUser, ScramCredential] | None = None
        self._quotas: dict[QuotaEntity, dict[str, float]] = {}
        self._acls: dict[AclBinding, bool] = {}
        self._delegation_tokens: dict[str, DelegationToken] | None = None

    def replay(self, record: Record) -> None:
        """Apply one record."""
        match record:
            case PartitionChanged(topic_id, partition, state):
                self._topic(topic_id).partitions[partition] = state
            case PartitionsAdded(topic_id, first, partitions):
                topic = self._topic(topic_id)
                if first != len(topic.partitions):
                    raise MetadataInvariantError(
                        f"partitions of {topic.name} from {first} on, but it has"
                        f" {len(topic.partitions)}"
                    )
                topic.partitions.extend(partitions)
            case TopicCreated(name, topic_id):
                self._changed_topics[topic_id] = _TopicDelta(name, [])
            case TopicDeleted(topic_id):
                self._delete_topic(topic_id)
            case ConfigChanged():
                self._change_config(record)
            case ClientQuotaChanged():
                self._change_quota(record)
            case ProducerIdsAllocated():
                self._next_producer_id = record.next_producer_id
            case BrokerImage() | BrokerChanged() | BrokerUnregistered():
                self._change_broker(record)
            case FeatureLevelChanged(name, level):
                if self._features is None:
                    self._features = dict(self._image.features)
                if level:
                    self._features[name] = level
                else:
                    self._features.pop(name, None)
            case ScramCredentialChanged() | ScramCredentialRemoved():
                self._change_scram_credential(record)
            case AclCreated(binding):
                self._acls[binding] = True
            case AclDeleted(binding):
                self._acls[binding] = False
            case DelegationTokenChanged() | DelegationTokenRemoved():
                self._change_delegation_token(record)
            case ClusterCreated(cluster_id):
                self._cluster_id = cluster_id
            case DecoyKeyCreated(key):
                self._decoy_key = key
            case _:
                assert_never(record)

    def apply(self, offset: int) -> MetadataImage:
        """The image after all that was replayed; `offset` is its place in the log."""
        image = self._image
        topics_by_name, topics_by_id = self._applied_topics()
        return MetadataImage(
            offset=offset,
            cluster_id=self._cluster_id,
            brokers=image.brokers if self._brokers is None else self._brokers,
            topics_by_name=topics_by_name,
            topics_by_id=topics_by_id,
            configs=self._applied_configs(),
            features=image.features if self._features is None else self._features,
            next_producer_id=self._next_producer_id,
            scram_credentials=(
                image.scram_credentials
                if self._scram_credentials is None
                else self._scram_credentials
            ),
            client_quotas=self._applied_quotas(),
            acls=self._applied_acls(),
            delegation_tokens=(
                image.delegation_tokens
                if self._delegation_tokens is None
                else DelegationTokensImage(self._delegation_tokens)
            ),
            decoy_key=self._decoy_key,
        )

    def _topic(self, topic_id: Uuid) -> _TopicDelta:
        topic = self._changed_topics.get(topic_id)
        if topic is None:
            old = self._image.topics_by_id.get(topic_id)
            if old is None or topic_id in self._deleted_topics:
                raise MetadataInvariantError(f"no topic has the id {topic_id.hex()}")
            topic = _TopicDelta(old.name, list(old.partitions))
            self._changed_topics[topic_id] = topic
        return topic

    def _delete_topic(self, topic_id: Uuid) -> None:
        topic = self._topic(topic_id)
        del self._changed_topics[topic_id]
        old = self._image.topics_by_id.get(topic_id)
        if old is not None:
            self._deleted_topics[topic_id] = old
        self._configs[ConfigResource(ConfigResourceType.TOPIC, topic.name)] = {}

    def _change_config(self, record: ConfigChanged) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        configs = self._configs.get(resource)
        if configs is None:
            configs = dict(self._image.configs.get(resource, {}))
            self._configs[resource] = configs
        if record.value is None:
            configs.pop(record.key, None)
        else:
            configs[record.key] = record.value

    def _change_quota(self, record: ClientQuotaChanged) -> None:
        quotas = self._quotas.get(record.entity)
        if quotas is None:
            quotas = self._quotas[record.entity] = dict(self._image.client_quotas.of(record.entity))
        if record.value is None:
            quotas.pop(record.key, None)
        else:
            quotas[record.key] = record.value

    def _change_broker(self, record: BrokerImage | BrokerChanged | BrokerUnregistered) -> None:
        if self._brokers is None:
            self._brokers = dict(self._image.brokers)
        broker_id = record.broker_id
        match record:
            case BrokerImage():
                self._brokers[broker_id] = record
            case BrokerChanged():
                if broker_id not in self._brokers:
                    raise MetadataInvariantError(f"broker {broker_id} is not registered")
                self._brokers[broker_id] = msgspec.structs.replace(
                    self._brokers[broker_id],
                    is_fenced=record.is_fenced,
                    is_in_controlled_shutdown=record.is_in_controlled_shutdown,
                )
            case BrokerUnregistered():
                self._brokers.pop(broker_id, None)

    def _change_scram_credential(
        self, record: ScramCredentialChanged | ScramCredentialRemoved
    ) -> None:
        if self._scram_credentials is None:
            self._scram_credentials = dict(self._image.scram_credentials)
        user = ScramUser(record.user, record.mechanism)
        if isinstance(record, ScramCredentialChanged):
            self._scram_credentials[user] = record.credential
        else:
            self._scram_credentials.pop(user, None)

    def _change_delegation_token(
        self, record: DelegationTokenChanged | DelegationTokenRemoved
    ) -> None:
        if self._delegation_tokens is None:
            self._delegation_tokens = dict(self._image.delegation_tokens)
        if isinstance(record, DelegationTokenChanged):
            self._delegation_tokens[record.token.token_id] = record.token
        else:
            self._delegation_tokens.pop(record.token_id, None)

    def _applied_topics(self) -> tuple[Mapping[str, TopicImage], Mapping[Uuid, TopicImage]]:
        image = self._image
        if not self._changed_topics and not self._deleted_topics:
            return image.topics_by_name, image.topics_by_id
        by_name = dict(image.topics_by_name)
        by_id = dict(image.topics_by_id)
        # Deletions first: a topic may have been created anew under the same name.
        for topic_id, old in self._deleted_topics.items():
            del by_id[topic_id]
            del by_name[old.name]
        for topic_id, changed in self._changed_topics.items():
            topic = TopicImage(changed.name, topic_id, tuple(changed.partitions))
            by_id[topic_id] = topic
            by_name[changed.name] = topic
        return by_name, by_id

    def _applied_configs(self) -> ConfigsImage:
        if not self._configs:
            return self._image.configs
        if all(
            not configs and resource not in self._image.configs
            for resource, configs in self._configs.items()
        ):
            # Topics without configs were deleted: keep the old object and what was derived from it.
            return self._image.configs
        return self._image.configs.after(self._configs)

    def _applied_quotas(self) -> ClientQuotasImage:
        if not self._quotas:
            return self._image.client_quotas
        return self._image.client_quotas.after(self._quotas)

    def _applied_acls(self) -> AclsImage:
        if not self._acls:
            return self._image.acls
        added = (binding for binding, is_there in self._acls.items() if is_there)
        removed = (binding for binding, is_there in self._acls.items() if not is_there)
        return self._image.acls.after(added, removed)


def image_after(image: MetadataImage, records: Iterable[Record], offset: int) -> MetadataImage:
    """The image with these records applied, as of `offset`."""
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    return delta.apply(offset)
