"""`odradek feature`: the feature levels of a cluster (KIP-584, KIP-778, KIP-1022).

A level is finalized for the whole cluster, and every broker must support it. All updates of one
command happen or none. Level 0 is off. The cluster judges every update; of Kafka's releases this
side knows only the names and the levels that belong to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import click

from odradek.cluster.metadata.features import METADATA_VERSION
from odradek.cluster.metadata.kafka_releases import (
    RELEASES,
    metadata_version_level,
    metadata_version_name,
    release_levels,
)
from odradek.node.cli.cluster_client import ClusterClient, error_text, raise_on_error, with_client
from odradek.node.cli.connection import installed_version
from odradek.node.cli.not_found import FEATURE, no_such_node, not_found_among
from odradek.node.cli.output import Output, Row, known
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from odradek.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse

R = TypeVar("R")

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3
"""What an update may do, with the numbers of the wire."""
LEVEL_MAX: Final = 2**15 - 1
_COLUMNS: Final = ("feature", "level", "release", "supported_min", "supported_max", "newest")


@dataclass(frozen=True, slots=True)
class FeatureView:
    """What brokers say of features."""

    levels: Mapping[str, int]
    """The finalized ones: what is not in here is at 0."""
    ranges: Mapping[str, tuple[int, int]]
    """The lowest and the highest level that all of these brokers support."""
    epoch: int
    """Of the finalized levels; -1 if it is not known."""

    @classmethod
    def of(cls, answers: Sequence[ApiVersionsResponse]) -> FeatureView:
        """From at least one answer. The finalized levels are those of the newest answer."""
        for answer in answers:
            raise_on_error(answer, "features cannot be listed")
        newest = max(answers, key=lambda answer: answer.finalized_features_epoch)
        by_broker = [
            {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
            for answer in answers
        ]
        ranges = {}
        for name in sorted({name for of_one in by_broker for name in of_one}):
            # A broker that does not know a feature can only have it switched off.
            lowest, highest = zip(*(of_one.get(name, (0, 0)) for of_one in by_broker), strict=True)
            ranges[name] = (max(lowest), min(highest))
        return cls(
            {each.name: each.max_version_level for each in newest.finalized_features},
            ranges,
            newest.finalized_features_epoch,
        )

    def level(self, name: str) -> int:
        return self.levels.get(name, 0)

    @property
    def names(self) -> list[str]:
        return sorted({*self.levels, *self.ranges})


def feature_level(value: str) -> tuple[str, int]:
    """`group.version=1`; for metadata.version also `metadata.version=4.2` or `=4.2-IV0`."""
    name, equals, text = value.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{value!r} is not NAME=LEVEL")
    if text.isascii() and text.isdecimal() and int(text) <= LEVEL_MAX:
        return name, int(text)
    if name == METADATA_VERSION:
        return name, release(text)
    raise click.BadParameter(f"{value!r} is not NAME=LEVEL: a level is a number from 0")


def release(value: str) -> int:
    """`4.2`, `4.2.1` or `4.2-IV0` -> level of metadata.version."""
    level = metadata_version_level(value)
    if level is None:
        raise click.BadParameter(
            f"{value!r} is not a release that is known here: {', '.join(RELEASES)}, or as in"
            f" {metadata_version_name(release(RELEASES[-1]))}"
        )
    return level


def update_options(command: Callable[..., R]) -> Callable[..., R]:
    """What upgrades and downgrades have in common."""
    levels = click.argument("levels", nargs=-1, type=feature_level, metavar="[NAME=LEVEL]...")
    of_release = click.option(
        "--release-version",
        "metadata_level",
        type=release,
        metavar="RELEASE",
        help="All features as in this release of Kafka, as in 4.2 or 4.2-IV0.",
    )
    return levels(of_release(dry_run_option(command)))


dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Let the cluster check the levels, and change nothing."
)
unsafe_option = click.option(
    "--unsafe", is_flag=True, help="Even if metadata is lost that the lower level does not have."
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


@click.group()
def feature() -> None:
    """Show the feature levels of a cluster; raise and lower them."""


@feature.command("list")
@click.option("--node", type=int, metavar="ID", help="What this broker says.  [default: all]")
@with_client
def list_features(client: ClusterClient, output: Output, node: int | None) -> None:
    """List features, their levels and what brokers support.

    LEVEL is the finalized level of the cluster; 0 is off. Supported is what all brokers support.
    RELEASE and NEWEST are the names of metadata.version's level and of the highest one.
    """
    client.metadata()
    if node is not None and node not in client.broker_ids:
        raise no_such_node(node, client.broker_ids)
    answers = []
    for each in client.broker_ids if node is None else [node]:
        answer = client.ask_node(each, _request())
        if answer is not None:
            answers.append(answer)
        elif node is not None:
            raise click.ClickException(client.silence(each))
        else:
            output.hint(f"{client.silence(each)}: its levels are not considered")
    if not answers:
        raise click.ClickException("no broker answers")
    view = FeatureView.of(answers)
    rows: list[Row] = []
    for name in view.names:
        lowest, highest = view.ranges.get(name, (None, None))
        rows.append(
            {
                "feature": name,
                "level": view.level(name),
                "release": _release_name(name, view.level(name)),
                "supported_min": lowest,
                "supported_max": highest,
                "newest": None if highest is None else _release_name(name, highest),
                "epoch": known(view.epoch),
            }
        )
    output.rows(rows, _COLUMNS, empty="The cluster has no features.")


@feature.command()
@update_options
@with_client
def upgrade(
    client: ClusterClient,
    output: Output,
    levels: tuple[tuple[str, int], ...],
    metadata_level: int | None,
    dry_run: bool,
) -> None:
    """Raise feature levels.

    Do it when all brokers run the new release: an older one does not start again in a cluster with
    levels that it does not support.

    \b
    odradek feature upgrade --release-version 4.3 --dry-run
    odradek feature upgrade group.version=1 share.version=1
    """
    wanted = _wanted(levels, metadata_level)
    if metadata_level is not None:
        wanted = {name: level for name, level in wanted.items() if level > 0}
    view = _view(client)
    _update(client, view, wanted, UPGRADE, dry_run=dry_run)
    _print_updates(output, view, wanted, "upgraded", dry_run=dry_run)


@feature.command()
@update_options
@unsafe_option
@yes_option
@with_client
def downgrade(
    client: ClusterClient,
    output: Output,
    levels: tuple[tuple[str, int], ...],
    metadata_level: int | None,
    dry_run: bool,
    unsafe: bool,
    yes: bool,
) -> None:
    """Lower feature levels.

    With --release-version, features that are lower stay as they are.

    \b
    odradek feature downgrade transaction.version=1 --dry-run
    """
    wanted = _wanted(levels, metadata_level)
    view = _view(client)
    if metadata_level is not None:
        wanted = {name: level for name, level in wanted.items() if level < view.level(name)}
    _lower(client, view, wanted, unsafe=unsafe, dry_run=dry_run, yes=yes)
    _print_updates(output, view, wanted, "downgraded", dry_run=dry_run)


@feature.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@dry_run_option
@unsafe_option
@yes_option
@with_client
def disable(
    client: ClusterClient,
    output: Output,
    names: tuple[str, ...],
    dry_run: bool,
    unsafe: bool,
    yes: bool,
) -> None:
    """Switch features off: lower them to level 0."""
    wanted = dict.fromkeys(names, 0)
    view = _view(client)
    _lower(client, view, wanted, unsafe=unsafe, dry_run=dry_run, yes=yes)
    _print_updates(output, view, wanted, "disabled", dry_run=dry_run)


def _request() -> ApiVersionsRequest:
    # Both are checked (KIP-511). A local version, behind a plus sign, is not valid there.
    version = (installed_version() or "source").partition("+")[0]
    return ApiVersionsRequest(client_software_name="odradek", client_software_version=version)


def _view(client: ClusterClient) -> FeatureView:
    """What one broker says."""
    return FeatureView.of([client.ask(_request())])


def _wanted(levels: Iterable[tuple[str, int]], metadata_level: int | None) -> dict[str, int]:
    """The levels that the command names; a usage error if they are not clear."""
    levels = list(levels)
    if bool(levels) == (metadata_level is not None):
        raise click.UsageError("Give levels as NAME=LEVEL, or --release-version.")
    if metadata_level is not None:
        return release_levels(metadata_level)
    twice = [name for name, count in Counter(name for name, _ in levels).items() if count > 1]
    if twice:
        raise click.UsageError(f"There is more than one level of {', '.join(twice)}.")
    return dict(levels)


def _lower(
    client: ClusterClient,
    view: FeatureView,
    wanted: Mapping[str, int],
    *,
    unsafe: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Ask the user, and update. Abort if the answer is no."""
    lowered = [
        f"{name} from {_level_text(name, view.level(name))} to {_level_text(name, level)}"
        for name, level in wanted.items()
        if level < view.level(name)
    ]
    if lowered and not (yes or dry_run):
        loss = " Metadata that the lower levels do not have is lost." if unsafe else ""
        client.confirm(f"Lower {', '.join(lowered)}?{loss}")
    kind = UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE
    _update(client, view, wanted, kind, dry_run=dry_run)


def _update(
    client: ClusterClient,
    view: FeatureView,
    wanted: Mapping[str, int],
    upgrade_type: int,
    *,
    dry_run: bool,
) -> None:
    """ClickException if the cluster refuses: then no level has changed."""
    if not wanted:
        return
    answer = client.ask(
        UpdateFeaturesRequest(
            timeout_ms=int(client.timeout_s * 1000),
            feature_updates=[
                FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)
                for name, level in wanted.items()
            ],
            validate_only=dry_run,
        ),
        again=lambda answer: ErrorCode(answer.error_code).is_retriable,
    )
    refusal = _refusal(answer)
    if refusal is None:
        return
    for name in wanted:
        if view.ranges and name not in view.names:
            raise not_found_among(FEATURE, name, view.names)
    is_higher = upgrade_type == UPGRADE and any(view.level(n) > wanted[n] for n in wanted)
    advice = ". `odradek feature downgrade` lowers levels." if is_higher else ""
    raise click.ClickException(f"no level was changed: {refusal}{advice}")


def _refusal(answer: UpdateFeaturesResponse) -> str | None:
    """Up to v1 the error may be that of a feature only."""
    if answer.error_code:
        return error_text(answer)
    failed = [result for result in answer.results if result.error_code]
    return "; ".join(f"{each.feature}: {error_text(each)}" for each in failed) or None


def _print_updates(
    output: Output, view: FeatureView, wanted: Mapping[str, int], done: str, *, dry_run: bool
) -> None:
    rows: list[Row] = [
        {
            "feature": name,
            "before": view.level(name),
            "after": level,
            "release": _release_name(name, level),
            "result": "unchanged"
            if level == view.level(name)
            else f"can be {done}"
            if dry_run
            else done,
        }
        for name, level in sorted(wanted.items())
    ]
    output.rows(rows, empty=f"No feature has to be {done}.")


def _release_name(name: str, level: int) -> str | None:
    return metadata_version_name(level) if name == METADATA_VERSION else None


def _level_text(name: str, level: int) -> str:
    """`30 (4.3-IV0)`."""
    found = _release_name(name, level)
    return str(level) if found is None else f"{level} ({found})"
