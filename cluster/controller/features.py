"""UpdateFeatures: upgrades and downgrades of finalized feature levels (KIP-584, KIP-778).

All updates of a command happen or none. A level that only nodes know of (SECURITY_VERSION) is
finalized with the first records that need it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
    SECURITY_VERSION,
    SUPPORTED_RANGES,
)
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import (
    RECORDS_OF_SECURITY,
    ConfigChanged,
    FeatureLevelChanged,
    Record,
)
from odradek.cluster.metadata.settings import topic_settings
from odradek.protocol.errors import ApiError, ErrorCode


class UpgradeType(IntEnum):
    """What an update may do, with the numbers of the wire."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def update_features(state: ControllerState, command: UpdateFeatures) -> ControllerResult:
    """Finalize the requested levels; with `validate_only` only check them.

    Codes: INVALID_UPDATE_VERSION for a level that is not possible, INVALID_REQUEST for a feature
    that occurs twice, FEATURE_UPDATE_FAILED for valid updates beside an invalid one.
    """
    times_named = Counter(update.name for update in command.updates)
    faults: dict[str, ApiError] = {}
    records: list[Record] = []
    for update in command.updates:
        try:
            if times_named[update.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate feature name: {update.name}")
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
    """The default of min.insync.replicas as a cluster-level config, unless there is one.

    Eligible leader replicas depend on it (KIP-966). It must not depend on the configuration file of
    the active controller.
    """
    key = "min.insync.replicas"
    if key in image.configs.of(ConfigResourceType.BROKER, CLUSTER_DEFAULT_BROKER):
        return []
    value = topic_settings(image, node_id, static, "").min_insync_replicas
    return [ConfigChanged(ConfigResourceType.BROKER, CLUSTER_DEFAULT_BROKER, key, str(value))]


def finalize_security(state: ControllerState, records: Sequence[Record]) -> Sequence[Record]:
    """The records of a command; before the first ones of security, their feature level.

    ApiError(UNSUPPORTED_VERSION) while a registered broker does not support it: that one would skip
    them, and let in whom the others refuse. From then on such a broker is not registered.
    """
    is_finalized = bool(state.image.features.get(SECURITY_VERSION))
    if is_finalized or not any(isinstance(each, RECORDS_OF_SECURITY) for each in records):
        return records
    older = [
        str(broker.broker_id)
        for broker in state.registered_brokers()
        if broker.features and SECURITY_VERSION not in {each.name for each in broker.features}
    ]
    if older:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Broker {', '.join(older)} runs a release without access control lists, client quotas"
            " and users. Install the new release on all brokers, and unregister those that do not"
            " come back.",
        )
    return (FeatureLevelChanged(SECURITY_VERSION, 1), *records)


def _failed_reply(names: list[str], faults: dict[str, ApiError]) -> FeaturesReply:
    first = next(iter(faults.values()))
    others = ApiError(
        ErrorCode.FEATURE_UPDATE_FAILED,
        "Not updated, because another update of the request is not valid.",
    )
    return FeaturesReply(
        tuple(
            FeatureResult(name, error.code, error.message)
            for name, error in ((name, faults.get(name, others)) for name in names)
        ),
        first.code,
        "The update failed for all features since the following feature had an error:"
        f" {first.message}",
    )


def _update(state: ControllerState, update: FeatureUpdate) -> Iterator[Record]:
    name, level = update.name, update.level
    current = state.image.features.get(name, 0)
    complaint = None
    if update.upgrade_type not in tuple(UpgradeType):
        complaint = "The controller does not support the given upgrade type."
    elif level < 0:
        complaint = "A feature version cannot be less than 0."
    else:
        complaint = _unsupported_reason(state, name, level)
    if complaint is not None:
        pass
    elif level < current and update.upgrade_type == UpgradeType.UPGRADE:
        complaint = (
            "Can't downgrade the version of this feature without setting the upgrade type to either"
            " safe or unsafe downgrade."
        )
    elif level > current and update.upgrade_type != UpgradeType.UPGRADE:
        complaint = "Can't downgrade to a newer version."
    elif level < current and name == KRAFT_VERSION:
        complaint = "Can't downgrade the version of this feature."
    if complaint is not None:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature {name}. {complaint}",
        )
    if level != current:
        yield FeatureLevelChanged(name, level)


def _unsupported_reason(state: ControllerState, name: str, level: int) -> str | None:
    """Why a node does not support the level; None if all do. Level 0 is off: all support it."""
    supported = SUPPORTED_RANGES.get(name)
    if supported is None:
        if level == 0:
            return f"Feature {name} not found."
        return f"Local controller {state.node_id} does not support this feature."
    if level == 0 and name != METADATA_VERSION:
        return None
    if not supported.min_level <= level <= supported.max_level:
        return (
            f"Local controller {state.node_id} only supports versions"
            f" {supported.min_level}-{supported.max_level}"
        )
    for broker in state.registered_brokers():
        ranges = {feature.name: feature for feature in broker.features}
        found = ranges.get(name)
        if not ranges or (found is not None and found.min_level <= level <= found.max_level):
            continue
        if found is None:
            return f"Broker {broker.broker_id} does not support this feature."
        return (
            f"Broker {broker.broker_id} supports versions from {found.min_level} to"
            f" {found.max_level}."
        )
    return None
