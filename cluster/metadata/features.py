"""The feature levels that this release supports, and what a finalized level means here.

A level that matters to all nodes is finalized by a record once every broker supports it (KIP-584).
A feature without a finalized level is at level 0: it is off. Brokers send their ranges when they
register, and the controller checks updates against them. Clients see those that Kafka has.

SECURITY_VERSION is ours: whether the metadata log may have records of security, which a release
that does not know them would skip. New clusters have it from their first record on, others finalize
it with the first such record (`controller/features.py`).
"""

from typing import Final

from odradek.cluster.metadata.image import FeatureRange, MetadataImage

METADATA_VERSION: Final = "metadata.version"
GROUP_VERSION: Final = "group.version"
SHARE_VERSION: Final = "share.version"
KRAFT_VERSION: Final = "kraft.version"
ELIGIBLE_LEADER_REPLICAS_VERSION: Final = "eligible.leader.replicas.version"
STREAMS_VERSION: Final = "streams.version"
TRANSACTION_VERSION: Final = "transaction.version"
SECURITY_VERSION: Final = "odradek.security.version"

SUPPORTED_FEATURES: Final = (
    FeatureRange(ELIGIBLE_LEADER_REPLICAS_VERSION, 0, 1),
    # 1 switches on the consumer group protocol (KIP-848).
    FeatureRange(GROUP_VERSION, 0, 1),
    FeatureRange(KRAFT_VERSION, 0, 1),
    # Kafka's numbers: 7 is 3.3-IV3, where its quorums begin, 30 is 4.3-IV0.
    FeatureRange(METADATA_VERSION, 7, 30),
    # 1 switches on share groups (KIP-932).
    FeatureRange(SHARE_VERSION, 0, 1),
    # 1 switches on the streams group protocol (KIP-1071).
    FeatureRange(STREAMS_VERSION, 0, 1),
    # 1: records have the previous producer id; 2: an epoch for each transaction (KIP-890).
    FeatureRange(TRANSACTION_VERSION, 0, 2),
)
"""By name. Clients see these, and can change their levels."""

# 1: ACLs, client quotas, SCRAM credentials and delegation tokens.
REGISTERED_FEATURES: Final = (*SUPPORTED_FEATURES, FeatureRange(SECURITY_VERSION, 0, 1))
"""What a broker registers: also what only nodes have to know of each other."""

SUPPORTED_RANGES: Final = {feature.name: feature for feature in SUPPORTED_FEATURES}
INITIAL_LEVELS: Final = {feature.name: feature.max_level for feature in REGISTERED_FEATURES}
"""The levels of a new cluster: as in Kafka, the highest that the release supports."""


class UnsupportedFeatureLevelError(Exception):
    """The metadata log was written by a newer release, and this one would misunderstand it."""


def check_finalized_levels(image: MetadataImage) -> None:
    """Raise UnsupportedFeatureLevelError if this release does not support a finalized level."""
    ranges = {feature.name: feature for feature in REGISTERED_FEATURES}
    for name, level in image.features.items():
        found = ranges.get(name)
        if found is None or not found.min_level <= level <= found.max_level:
            raise UnsupportedFeatureLevelError(
                f"The cluster has finalized level {level} of {name}, which this release does not"
                " support. Start the newer release that this node had before, or restore a backup."
            )


def has_eligible_leader_replicas(image: MetadataImage) -> bool:
    """Whether replicas that left a too small ISR stay eligible as leaders (KIP-966)."""
    return image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) >= 1
