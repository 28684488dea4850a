"""Seeded histories of valid metadata records, and a simple model of the image."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from odradek.cluster.metadata.acls import AclBinding, AclsImage
from odradek.cluster.metadata.client_quotas import ClientQuotasImage, QuotaEntity
from odradek.cluster.metadata.delegation_tokens import DelegationToken, DelegationTokensImage
from odradek.cluster.metadata.image import (
    BrokerImage,
    BrokerListener,
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


@dataclass
class ModelImage:
    """Everything in plain dictionaries, changed in place: the expected content of the image."""

    cluster_id: str = ""
    features: dict[str, int] = field(default_factory=dict)
    brokers: dict[int, BrokerImage] = field(default_factory=dict)
    names: dict[bytes, str] = field(default_factory=dict)
    partitions: dict[bytes, list[PartitionImage]] = field(default_factory=dict)
    configs: dict[ConfigResource, dict[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    scram_credentials: dict[ScramUser, ScramCredential] = field(default_factory=dict)
    quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)
    tokens: dict[str, DelegationToken] = field(default_factory=dict)
    acls: set[AclBinding] = field(default_factory=set)
    decoy_key: bytes = b""

    def replay(self, record: Record) -> None:
        match record:
            case ClusterCreated():
                self.cluster_id = record.cluster_id
            case FeatureLevelChanged():
                self.features.pop(record.name, None)
                if record.level:
                    self.features[record.name] = record.level
            case BrokerImage():
                self.brokers[record.broker_id] = BrokerImage(
                    record.broker_id,
                    record.broker_epoch,
                    record.incarnation_id,
                    record.listeners,
                    record.rack,
                    record.features,
                    record.is_fenced,
                    record.is_in_controlled_shutdown,
                    record.log_dirs,
                )
            case BrokerChanged():
                old = self.brokers[record.broker_id]
                self.brokers[record.broker_id] = BrokerImage(
                    old.broker_id,
                    old.broker_epoch,
                    old.incarnation_id,
                    old.listeners,
                    old.rack,
                    old.features,
                    record.is_fenced,
                    record.is_in_controlled_shutdown,
                    old.log_dirs,
                )
            case BrokerUnregistered():
                del self.brokers[record.broker_id]
            case TopicCreated():
                self.names[record.topic_id] = record.name
                self.partitions[record.topic_id] = []
            case PartitionsAdded():
                self.partitions[record.topic_id].extend(record.partitions)
            case PartitionChanged():
                self.partitions[record.topic_id][record.partition] = record.state
            case TopicDeleted():
                name = self.names.pop(record.topic_id)
                del self.partitions[record.topic_id]
                self.configs.pop(ConfigResource(ConfigResourceType.TOPIC, name), None)
            case ConfigChanged():
                resource = ConfigResource(record.resource_type, record.resource_name)
                configs = self.configs.setdefault(resource, {})
                configs.pop(record.key, None)
                if record.value is not None:
                    configs[record.key] = record.value
                if not configs:
                    del self.configs[resource]
            case ClientQuotaChanged():
                quotas = self.quotas.setdefault(record.entity, {})
                quotas.pop(record.key, None)
                if record.value is not None:
                    quotas[record.key] = record.value
                if not quotas:
                    del self.quotas[record.entity]
            case ProducerIdsAllocated():
                self.next_producer_id = record.next_producer_id
            case ScramCredentialChanged():
                user = ScramUser(record.user, record.mechanism)
                self.scram_credentials[user] = record.credential
            case ScramCredentialRemoved():
                self.scram_credentials.pop(ScramUser(record.user, record.mechanism), None)
            case DelegationTokenChanged():
                self.tokens[record.token.token_id] = record.token
            case DelegationTokenRemoved():
                self.tokens.pop(record.token_id, None)
            case DecoyKeyCreated():
                self.decoy_key = record.key
            case AclCreated():
                self.acls.add(record.binding)
            case AclDeleted():
                self.acls.discard(record.binding)

    def image(self, offset: int) -> MetadataImage:
        topics = [
            TopicImage(name, topic_id, tuple(self.partitions[topic_id]))
            for topic_id, name in self.names.items()
        ]
        return MetadataImage(
            offset=offset,
            cluster_id=self.cluster_id,
            brokers=dict(self.brokers),
            topics_by_name={topic.name: topic for topic in topics},
            topics_by_id={topic.topic_id: topic for topic in topics},
            configs=ConfigsImage({key: dict(value) for key, value in self.configs.items()}),
            features=dict(self.features),
            next_producer_id=self.next_producer_id,
            scram_credentials=dict(self.scram_credentials),
            client_quotas=ClientQuotasImage(
                {key: dict(value) for key, value in self.quotas.items()}
            ),
            acls=AclsImage().after(self.acls),
            delegation_tokens=DelegationTokensImage(dict(self.tokens)),
            decoy_key=self.decoy_key,
        )


def history(seed: int, count: int) -> Iterator[Record]:
    """`count` records, each valid after those before it."""
    chance = random.Random(seed)
    names: dict[bytes, str] = {}
    sizes: dict[bytes, int] = {}
    brokers: set[int] = set()
    producer_id = 0
    yield ClusterCreated(f"cluster-{seed}")
    for step in range(count - 1):
        kind = chance.choice("tttppPPdccccbBuFasSqqAADkkKx")
        topic_id = chance.choice(sorted(names)) if names else b""
        if kind == "t" or not names:
            free = sorted({f"topic-{n}" for n in range(30)} - set(names.values()))
            topic_id = chance.randbytes(16)
            names[topic_id] = chance.choice(free) if free else f"extra-{step}"
            sizes[topic_id] = 0
            yield TopicCreated(names[topic_id], topic_id)
        elif kind == "p" or (kind == "P" and not sizes[topic_id]):
            added = chance.randint(1, 4)
            first, sizes[topic_id] = sizes[topic_id], sizes[topic_id] + added
            yield PartitionsAdded(topic_id, first, tuple(_partition(chance) for _ in range(added)))
        elif kind == "P":
            number = chance.randrange(sizes[topic_id])
            yield PartitionChanged(topic_id, number, _partition(chance))
        elif kind == "d":
            del sizes[topic_id]
            del names[topic_id]
            yield TopicDeleted(topic_id)
        elif kind == "c":
            topic = chance.random() < 0.7
            yield ConfigChanged(
                ConfigResourceType.TOPIC if topic else ConfigResourceType.BROKER,
                names[topic_id] if topic else chance.choice(["", "1"]),
                f"key-{chance.randrange(3)}",
                chance.choice([None, "a", "b"]),
            )
        elif kind in "bB" and brokers:
            yield BrokerChanged(
                chance.choice(sorted(brokers)), chance.random() < 0.5, chance.random() < 0.5
            )
        elif kind == "u" and brokers:
            broker = chance.choice(sorted(brokers))
            brokers.remove(broker)
            yield BrokerUnregistered(broker)
        elif kind == "F":
            yield FeatureLevelChanged(f"feature-{chance.randrange(3)}", chance.randrange(3))
        elif kind == "s":
            credential = ScramCredential(chance.randbytes(4), b"stored", b"server", 4096)
            yield ScramCredentialChanged(f"user-{chance.randrange(3)}", 1, credential)
        elif kind == "S":
            yield ScramCredentialRemoved(f"user-{chance.randrange(3)}", 1)
        elif kind == "q":
            user, client_id = chance.choice([None, "u"]), chance.choice([None, "c"])
            yield ClientQuotaChanged(
                chance.choice([(("client-id", client_id), ("user", user)), (("user", user),)]),
                chance.choice(["producer_byte_rate", "consumer_byte_rate"]),
                chance.choice([None, 1024.0, 0.5]),
            )
        elif kind == "a":
            producer_id += 1000
            yield ProducerIdsAllocated(1, step, producer_id)
        elif kind == "k":
            token_id = f"token-{chance.randrange(3)}"
            first, end, last = sorted(chance.randrange(99) for _ in range(3))
            yield DelegationTokenChanged(
                DelegationToken(
                    token_id, "User:a", "User:b", (), first, last, end, chance.randbytes(4), ()
                )
            )
        elif kind == "K":
            yield DelegationTokenRemoved(f"token-{chance.randrange(3)}")
        elif kind == "x":
            yield DecoyKeyCreated(chance.randbytes(4))
        elif kind == "A":
            yield AclCreated(_binding(chance))
        elif kind == "D":
            yield AclDeleted(_binding(chance))
        else:
            broker = chance.randrange(5)
            brokers.add(broker)
            yield BrokerImage(
                broker,
                step,
                chance.randbytes(16),
                (BrokerListener("PLAINTEXT", "host", broker + 1),),
                log_dirs=(chance.randbytes(16),),
            )


def _binding(chance: random.Random) -> AclBinding:
    pattern_type, name = chance.choice([(3, "a"), (3, "*"), (4, "a"), (4, "ab")])
    principal = chance.choice(["User:a", "User:*"])
    return AclBinding(2, pattern_type, name, principal, "*", chance.choice([2, 3]), 3)


def _partition(chance: random.Random) -> PartitionImage:
    replicas = tuple(chance.sample(range(5), chance.randint(1, 3)))
    return PartitionImage(
        replicas=replicas,
        in_sync_replicas=replicas[:1],
        leader=replicas[0],
        leader_epoch=chance.randrange(9),
        partition_epoch=chance.randrange(99),
    )


def have_same_content(one: MetadataImage, other: MetadataImage) -> bool:
    """Whether both images are equal but for their offsets."""
    return (
        one.cluster_id == other.cluster_id
        and one.brokers == other.brokers
        and one.topics_by_id == other.topics_by_id
        and one.topics_by_name == other.topics_by_name
        and dict(one.configs) == dict(other.configs)
        and one.features == other.features
        and one.next_producer_id == other.next_producer_id
        and one.decoy_key == other.decoy_key
        and one.scram_credentials == other.scram_credentials
        and dict(one.client_quotas) == dict(other.client_quotas)
        and dict(one.delegation_tokens) == dict(other.delegation_tokens)
        and len(one.acls) == len(other.acls)
        and set(one.acls) == set(other.acls)
    )
