"""UpdateFeatures: finalised levels of features, up and down (KIP-584, KIP-778).

All updates of a command happen or none: the one at fault says why, the others that it was not
theirs. What a level means is decided by who reads it from the image.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import IntEnum

from odradek.cluster.controller.commands import (
    FeatureResult,
    FeaturesReply,
    FeatureUpdate,
    UpdateFeatures,
)
from odradek.cluster.controller.elections import partition_changes_after
from odradek.cluster.controller.state import ControllerResult, ControllerState
from odradek.cluster.metadata.config_layers import CLUSTER_DEFAULT_BROKER
from odradek.cluster.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    supported_range,
)
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import ConfigChanged, FeatureLevelChanged, Record
from odradek.cluster.metadata.settings import topic_settings
from odradek.protocol.errors import ApiError, ErrorCode


class UpgradeType(IntEnum):
    """What an update may do, with the numbers of the wire."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def update_features(state: ControllerState, command: UpdateFeatures) -> ControllerResult:
    """Finalise the levels asked for; with `validate_only` say whether that would do.

    Codes: INVALID_UPDATE_VERSION for a level that cannot be, INVALID_REQUEST for a feature that is
    named twice, FEATURE_UPDATE_FAILED for those that would have been good.
    """
    times_named = Counter(update.name for update in command.updates)
    faults: dict[str, ApiError] = {}
    records: list[Record] = []
    for update in command.updates:
        try:
            if times_named[update.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{update.name!r} is named twice")
            records.extend(_update(state, update))
        except ApiError as error:
            faults[update.name] = error
    names = list(times_named)
    if faults:
        return ControllerResult((), _failed_reply(names, faults))
    if command.validate_only:
        records.clear()
    if any(
        isinstance(record, FeatureLevelChanged)
        and record.name == ELIGIBLE_LEADER_REPLICAS_VERSION
        and record.level > 0
        for record in records
    ):
        records.extend(min_insync_replicas_records(state.image, state.node_id, state.static))
    records.extend(partition_changes_after(state, records))
    return ControllerResult(
        tuple(records), FeaturesReply(tuple(FeatureResult(name) for name in names))
    )


def min_insync_replicas_records(
    image: MetadataImage, node_id: int, static: Mapping[str, str]
) -> list[Record]:
    """The default of min.insync.replicas as a config of the cluster, unless it is one already.

    Who is an eligible leader depends on it (KIP-966): it must not change by the way, with the
    configuration file of the node that happens to decide.
    """
    key = "min.insync.replicas"
    if key in image.configs.of(ConfigResourceType.BROKER, CLUSTER_DEFAULT_BROKER):
        return []
    value = topic_settings(image, node_id, static, "").min_insync_replicas
    return [ConfigChanged(ConfigResourceType.BROKER, CLUSTER_DEFAULT_BROKER, key, str(value))]


def _failed_reply(names: list[str], faults: dict[str, ApiError]) -> FeaturesReply:
    first = next(iter(faults.values()))
    others = ApiError(
        ErrorCode.FEATURE_UPDATE_FAILED, "nothing was updated: see the other features"
    )
    return FeaturesReply(
        tuple(
            FeatureResult(name, error.code, error.message)
            for name, error in ((name, faults.get(name, others)) for name in names)
        ),
        first.code,
        f"no feature was updated: {first.message}",
    )


def _update(state: ControllerState, update: FeatureUpdate) -> Iterator[Record]:
    name, level = update.name, update.level
    current = state.image.features.get(name, 0)
    complaint = None
    if update.upgrade_type not in tuple(UpgradeType):
        complaint = f"{update.upgrade_type} is no type of update: 1 is up, 2 safely down, 3 down"
    elif level < 0:
        complaint = "levels are 0, which switches the feature off, and above"
    elif level < current and update.upgrade_type == UpgradeType.UPGRADE:
        complaint = f"it is at level {current}: going down has to be asked for as a downgrade"
    elif level > current and update.upgrade_type != UpgradeType.UPGRADE:
        complaint = f"it is at level {current}: that is no downgrade"
    elif level < current and name == KRAFT_VERSION:
        complaint = f"it is at level {current} and cannot go down again"
    elif level == 0 and name == METADATA_VERSION:
        complaint = "it cannot be switched off"
    else:
        complaint = _unsupported_reason(state, name, level)
    if complaint is not None:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION, f"{name} cannot go to level {level}: {complaint}"
        )
    if level != current:
        yield FeatureLevelChanged(name, level)


def _unsupported_reason(state: ControllerState, name: str, level: int) -> str | None:
    """Why some node could not live with the level; None if all can. 0 is off, and anybody can."""
    supported = supported_range(name)
    if supported is None:
        return "the controller knows no such feature"
    if level == 0:
        return None
    if not supported.min_level <= level <= supported.max_level:
        return f"the controller understands levels {supported.min_level} to {supported.max_level}"
    for broker in state.registered_brokers():
        ranges = {feature.name: feature for feature in broker.features}
        found = ranges.get(name)
        if not ranges or (found is not None and found.min_level <= level <= found.max_level):
            continue
        if found is None:
            return f"broker {broker.broker_id} does not know the feature"
        return (
            f"broker {broker.broker_id} understands levels {found.min_level} to {found.max_level}"
        )
    return None
