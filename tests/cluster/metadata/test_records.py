"""Records and their bytes: round trips, and what a newer release may add."""

import msgspec
import pytest

from odradek.cluster.metadata.acls import AclBinding
from odradek.cluster.metadata.image import BrokerImage, BrokerListener, FeatureRange, PartitionImage
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
    decode_record,
    decode_records,
    encode_records,
)
from odradek.cluster.metadata.scram import ScramCredential
from tests.support.token_samples import token_of

TOPIC_ID = bytes(range(16))
PARTITION = PartitionImage(
    replicas=(1, 2, 3),
    in_sync_replicas=(1, 3),
    leader=1,
    leader_epoch=4,
    partition_epoch=9,
    elr=(2,),
    last_known_elr=(3,),
    adding_replicas=(4,),
    removing_replicas=(2,),
)
EVERY_RECORD: list[Record] = [
    ClusterCreated("cluster"),
    FeatureLevelChanged("metadata.version", 3),
    BrokerImage(
        broker_id=2,
        broker_epoch=17,
        incarnation_id=TOPIC_ID,
        listeners=(BrokerListener("PLAINTEXT", "host", 9092), BrokerListener("TLS", "", 0, "SSL")),
        rack="a",
        features=(FeatureRange("metadata.version", 1, 3),),
        is_fenced=True,
        is_in_controlled_shutdown=True,
        log_dirs=(TOPIC_ID,),
    ),
    BrokerChanged(2, False, True),
    BrokerUnregistered(2),
    TopicCreated("topic", TOPIC_ID),
    PartitionsAdded(TOPIC_ID, 0, (PARTITION, PartitionImage((1,), (1,), 1))),
    PartitionChanged(TOPIC_ID, 1, PARTITION),
    TopicDeleted(TOPIC_ID),
    ConfigChanged(2, "topic", "retention.ms", "1"),
    ConfigChanged(2, "topic", "retention.ms", None),
    ProducerIdsAllocated(1, 17, 3000),
    ScramCredentialChanged("alice", 2, ScramCredential(b"salt", b"stored", b"server", 4096)),
    ScramCredentialRemoved("alice", 2),
    ClientQuotaChanged((("client-id", "c"), ("user", None)), "producer_byte_rate", 1024.0),
    ClientQuotaChanged((("ip", "127.0.0.1"),), "connection_creation_rate", None),
    AclCreated(AclBinding(2, 4, "log-", "User:bob", "*", 3, 3)),
    AclDeleted(AclBinding(2, 4, "log-", "User:bob", "*", 3, 3)),
    DelegationTokenChanged(token_of(renewers=("User:bob",), issue_ms=1, max_ms=3, expiry_ms=2)),
    DelegationTokenRemoved("token-1"),
    DecoyKeyCreated(bytes(32)),
]


def test_every_kind_of_record_is_among_the_samples() -> None:
    assert {type(record) for record in EVERY_RECORD} == set(Record.__args__)


@pytest.mark.parametrize("record", EVERY_RECORD, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert decode_records(encode_records([record])) == [record]


def test_an_entry_holds_its_records_in_order() -> None:
    assert decode_records(encode_records(EVERY_RECORD)) == EVERY_RECORD


def test_tags_never_change() -> None:
    # Changing one would make every existing log unreadable.
    tags = [fields[0] for fields in msgspec.msgpack.decode(encode_records(EVERY_RECORD))]
    assert tags == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 11, 14, 15, 16, 16, 12, 13, 17, 18, 19]


def test_fields_that_a_newer_release_added_are_skipped() -> None:
    newer = msgspec.msgpack.encode([1, "cluster", "something new", {"more": 1}])
    assert decode_record(newer) == ClusterCreated("cluster")
    partition = [*msgspec.to_builtins(PARTITION), ["a directory"]]
    newer = msgspec.msgpack.encode([8, TOPIC_ID, 1, partition])
    assert decode_record(newer) == PartitionChanged(TOPIC_ID, 1, PARTITION)


def test_fields_that_an_older_release_did_not_write_have_their_defaults() -> None:
    older = msgspec.msgpack.encode([3, 2, 17, TOPIC_ID, []])
    assert decode_record(older) == BrokerImage(2, 17, TOPIC_ID, ())


def test_a_record_of_a_newer_release_is_skipped() -> None:
    assert decode_record(msgspec.msgpack.encode([99, "what", "ever"])) is None
    entry = msgspec.msgpack.encode([[99, "what"], [1, "cluster"], [98]])
    assert decode_records(entry) == [ClusterCreated("cluster")]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode("text"),
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode([1, 7]),
        msgspec.msgpack.encode(["one", "cluster"]),
    ],
)
def test_malformed_records_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_record(data)


def test_a_malformed_record_makes_its_entry_invalid() -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_records(msgspec.msgpack.encode([[1, "cluster"], [1, 7]]))
