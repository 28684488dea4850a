"""UpdateFeatures: upgrades, downgrades and the brokers' ranges (KIP-584, KIP-778)."""

import pytest

from odradek.cluster.controller.commands import (
    AlterClientQuotas,
    AlterScramCredentials,
    CreateAcls,
    CreateDelegationToken,
    FeaturesReply,
    FeatureUpdate,
    MetadataCommand,
    QuotaChange,
    QuotaEntityChanges,
    SetScramCredential,
    UnregisterBroker,
    UpdateFeatures,
)
from odradek.cluster.metadata.acls import AclBinding
from odradek.cluster.metadata.features import (
    INITIAL_LEVELS,
    REGISTERED_FEATURES,
    SECURITY_VERSION,
    SUPPORTED_FEATURES,
)
from odradek.cluster.metadata.image import (
    NO_LEADER,
    ConfigResourceType,
    FeatureRange,
    PartitionImage,
)
from odradek.cluster.metadata.records import FeatureLevelChanged
from odradek.cluster.metadata.scram import ScramCredential
from odradek.protocol.errors import ApiError, ErrorCode
from tests.support.controller_harness import ControllerHarness
from tests.support.token_samples import token_of

UP, SAFE_DOWN, UNSAFE_DOWN = 1, 2, 3
RESTART_MS = 60_000
ELR = "eligible.leader.replicas.version"


def harness_at(**levels: int) -> ControllerHarness:
    """A cluster whose features (`_` for `.`) are at these levels; its broker supports all."""
    harness = ControllerHarness(brokers=0)
    for name, level in levels.items():
        harness.write(FeatureLevelChanged(name.replace("_", "."), level))
    harness.start(1, features=SUPPORTED_FEATURES)
    return harness


def update(
    harness: ControllerHarness, *updates: FeatureUpdate, validate_only: bool = False
) -> FeaturesReply:
    reply = harness.do(UpdateFeatures(updates, validate_only))
    assert isinstance(reply, FeaturesReply)
    assert bool(reply.error_message) == bool(reply.error_code)
    return reply


def test_an_upgrade_is_recorded() -> None:
    harness = harness_at()
    assert update(harness, FeatureUpdate("metadata.version", 25, UP)).error_code == ErrorCode.NONE
    assert harness.image.features == {"metadata.version": 25}
    assert harness.restarted().features == {"metadata.version": 25}


def test_a_downgrade_needs_its_upgrade_type() -> None:
    harness = harness_at(metadata_version=25, eligible_leader_replicas_version=1)
    update(harness, FeatureUpdate("metadata.version", 20, SAFE_DOWN))
    update(harness, FeatureUpdate("eligible.leader.replicas.version", 0, UNSAFE_DOWN))
    assert harness.image.features == {"metadata.version": 20}


def test_an_unchanged_level_makes_no_record() -> None:
    harness = harness_at(metadata_version=25)
    written = len(harness.records)
    for kind in (UP, SAFE_DOWN):
        assert update(harness, FeatureUpdate("metadata.version", 25, kind)).error_code == 0
    assert len(harness.records) == written


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (FeatureUpdate("metadata.version", 24, UP), "downgrade"),
        (FeatureUpdate("metadata.version", 26, SAFE_DOWN), "downgrade to a newer"),
        (FeatureUpdate("metadata.version", 1000, UP), "only supports versions"),
        (FeatureUpdate("metadata.version", 6, UNSAFE_DOWN), "only supports versions"),
        (FeatureUpdate("metadata.version", 0, UNSAFE_DOWN), "only supports versions"),
        (FeatureUpdate("metadata.version", -1, UNSAFE_DOWN), "0"),
        (FeatureUpdate("metadata.version", 26, 0), "given upgrade type"),
        (FeatureUpdate("kraft.version", 0, UNSAFE_DOWN), "Can't downgrade"),
        (FeatureUpdate("flying.version", 1, UP), "does not support this feature"),
        (FeatureUpdate("", 1, UP), "does not support this feature"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_invalid_updates_are_refused_with_the_reason(wanted: FeatureUpdate, says: str) -> None:
    harness = harness_at(metadata_version=25, kraft_version=1)
    reply = update(harness, wanted)
    assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert says in str(reply.results[0].error_message)
    assert harness.image.features == {"metadata.version": 25, "kraft.version": 1}


@pytest.mark.parametrize(
    ("features", "says"),
    [
        ((FeatureRange("metadata.version", 7, 24),), "Broker 2 supports versions from 7 to 24"),
        (
            (FeatureRange("eligible.leader.replicas.version", 0, 1),),
            "Broker 2 does not support this feature",
        ),
    ],
)
def test_every_broker_must_support_a_level(features: tuple[FeatureRange, ...], says: str) -> None:
    harness = harness_at()
    harness.start(2, features=features)
    reply = update(harness, FeatureUpdate("metadata.version", 25, UP))
    assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert says in str(reply.error_message)


def test_a_broker_without_feature_ranges_does_not_prevent_an_upgrade() -> None:
    harness = harness_at()
    harness.start(2)
    assert update(harness, FeatureUpdate("metadata.version", 25, UP)).error_code == 0


def test_all_features_are_updated_or_none() -> None:
    harness = harness_at()
    reply = update(
        harness,
        FeatureUpdate("eligible.leader.replicas.version", 1, UP),
        FeatureUpdate("flying.version", 1, UP),
    )
    assert [(result.name, result.error_code) for result in reply.results] == [
        ("eligible.leader.replicas.version", ErrorCode.FEATURE_UPDATE_FAILED),
        ("flying.version", ErrorCode.INVALID_UPDATE_VERSION),
    ]
    assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert harness.image.features == {}


def test_a_feature_that_is_named_twice_is_refused() -> None:
    reply = update(harness_at(), FeatureUpdate(ELR, 1), FeatureUpdate(ELR, 0))
    assert {result.error_code for result in reply.results} == {ErrorCode.INVALID_REQUEST}


def default_min_insync(harness: ControllerHarness) -> str | None:
    return harness.image.configs.of(ConfigResourceType.BROKER, "").get("min.insync.replicas")


def test_with_eligible_leaders_the_default_of_min_insync_replicas_is_the_clusters() -> None:
    """As in Kafka (KIP-966): it must not depend on which node is the active controller."""
    harness = ControllerHarness(brokers=0, static={"min.insync.replicas": "2"})
    harness.start(1, features=SUPPORTED_FEATURES)
    assert update(harness, FeatureUpdate(ELR, 1), validate_only=True).error_code == 0
    assert default_min_insync(harness) is None
    update(harness, FeatureUpdate(ELR, 1))
    assert default_min_insync(harness) == "2"


def test_an_existing_cluster_default_is_kept() -> None:
    harness = harness_at()
    harness.set_config(ConfigResourceType.BROKER, "", min_insync_replicas="3")
    update(harness, FeatureUpdate(ELR, 1))
    assert default_min_insync(harness) == "3"


def test_a_new_cluster_begins_with_levels_that_the_release_supports() -> None:
    assert set(INITIAL_LEVELS) == {feature.name for feature in REGISTERED_FEATURES}
    for feature in REGISTERED_FEATURES:
        assert feature.min_level <= INITIAL_LEVELS[feature.name] <= feature.max_level


def test_validate_only_does_everything_but_update() -> None:
    harness = harness_at()
    before = harness.image
    good = FeatureUpdate("eligible.leader.replicas.version", 1, UP)
    assert update(harness, good, validate_only=True).error_code == 0
    bad = FeatureUpdate("eligible.leader.replicas.version", 9, UP)
    assert update(harness, bad, validate_only=True).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert harness.image is before


def test_switching_eligible_leaders_off_leaves_no_partition_with_an_empty_isr() -> None:
    harness = harness_at(eligible_leader_replicas_version=1)
    harness.place("t", 1, PartitionImage((1, 2), (), NO_LEADER, elr=(2, 1), last_known_elr=(1,)))
    update(harness, FeatureUpdate(ELR, 0, SAFE_DOWN))
    partition = harness.partition("t")
    assert (partition.in_sync_replicas, partition.elr, partition.last_known_elr) == ((2, 1), (), ())
    assert harness.image.features == {}


SECURING: dict[str, MetadataCommand] = {
    "ACLs": CreateAcls((AclBinding(2, 3, "t", "User:bob", "*", 3, 2),)),
    "quotas": AlterClientQuotas(
        (QuotaEntityChanges((("user", "bob"),), (QuotaChange("producer_byte_rate", 1.0),)),)
    ),
    "credentials": AlterScramCredentials(
        (), (SetScramCredential("bob", 1, 4096, ScramCredential(b"s", b"k", b"v", 4096)),)
    ),
    "tokens": CreateDelegationToken(token_of(issue_ms=1_000_000), -1),
}


@pytest.mark.parametrize("kind", SECURING)
def test_a_broker_of_a_release_without_security_keeps_the_cluster_without_it(kind: str) -> None:
    # It would skip the record of a DENY, and let in whom the others refuse.
    harness = harness_at()
    harness.start(2, features=SUPPORTED_FEATURES)
    harness.now_ms += RESTART_MS
    harness.start(1, incarnation=7, features=REGISTERED_FEATURES)
    before = harness.image
    with pytest.raises(ApiError, match="Broker 2 runs a release without") as raised:
        harness.do(SECURING[kind])
    assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert harness.image is before
    # It gets the new release and registers again.
    harness.now_ms += RESTART_MS
    harness.start(2, incarnation=8, features=REGISTERED_FEATURES)
    harness.do(SECURING[kind])
    assert harness.image.features == {SECURITY_VERSION: 1}
    count = len(harness.records)
    harness.do(SECURING["ACLs"])
    assert all(not isinstance(each, FeatureLevelChanged) for each in harness.records[count:])


def test_a_broker_that_does_not_come_back_is_unregistered_for_that() -> None:
    harness = harness_at()
    harness.start(2, features=REGISTERED_FEATURES)
    with pytest.raises(ApiError, match="Broker 1 runs a release without"):
        harness.do(SECURING["ACLs"])
    harness.do(UnregisterBroker(1))
    harness.do(SECURING["ACLs"])
    assert len(harness.image.acls) == 1


def test_after_that_no_broker_of_such_a_release_is_registered() -> None:
    harness = ControllerHarness()
    harness.do(SECURING["ACLs"])
    with pytest.raises(ApiError, match=r"finalized version 1 of odradek\.security") as raised:
        harness.start(2, features=SUPPORTED_FEATURES)
    assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert 2 not in harness.image.brokers


def test_clients_cannot_change_a_level_that_only_nodes_know() -> None:
    harness = ControllerHarness()
    harness.do(SECURING["ACLs"])
    for level, kind in ((0, UNSAFE_DOWN), (0, SAFE_DOWN), (1, UP)):
        reply = update(harness, FeatureUpdate(SECURITY_VERSION, level, kind))
        assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert harness.image.features == {SECURITY_VERSION: 1}
