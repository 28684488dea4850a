"""The feature levels that this release supports, and what a finalized level means here.

A level that matters to all nodes is finalized by a record once every broker supports it (KIP-584).
A feature without a finalized level is at level 0: it is off. Brokers send their ranges when they
register, and the controller checks updates against them.
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
"""By name. Other features cannot be finalized."""

SUPPORTED_RANGES: Final = {feature.name: feature for feature in SUPPORTED_FEATURES}
INITIAL_LEVELS: Final = {feature.name: feature.max_level for feature in SUPPORTED_FEATURES}
"""The levels of a new cluster: as in Kafka, the highest that the release supports."""


def has_eligible_leader_replicas(image: MetadataImage) -> bool:
    """Whether replicas that left a too small ISR stay eligible as leaders (KIP-966)."""
    return image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) >= 1
