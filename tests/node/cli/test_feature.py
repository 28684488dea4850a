"""`odradek feature` against a broker that supports what Kafka 4.3 does."""

from collections.abc import Iterator

import pytest

from odradek.cluster.metadata.kafka_releases import metadata_version_level, release_levels
from odradek.node.cli.feature import FeatureView
from odradek.protocol.messages.metadata import (
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from tests.node.cli.conftest import Run

LATER = "eligible.leader.replicas.version"
"""A feature that may be switched off for a moment."""


def says(epoch: int, level: int, **ranges: tuple[int, int]) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in ranges.items()
        ],
        finalized_features_epoch=epoch,
        finalized_features=[FinalizedFeatureKey(name="a", max_version_level=level)],
    )


def test_a_level_is_supported_if_all_brokers_support_it() -> None:
    view = FeatureView.of([says(7, 2, a=(1, 3)), says(8, 3, a=(2, 5), b=(0, 1)), says(6, 1)])
    assert view == FeatureView({"a": 3}, {"a": (2, 0), "b": (0, 0)}, 8)
    assert FeatureView.of([says(7, 2, a=(1, 3)), says(7, 2, a=(2, 5))]).ranges == {"a": (2, 3)}
    assert (view.level("a"), view.level("b"), view.names) == (3, 0, ["a", "b"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("upgrade", "Give levels as NAME=LEVEL"),
        ("upgrade a=1 --release-version 4.3", "Give levels as NAME=LEVEL"),
        ("upgrade a=1 a=2", "more than one level of a"),
        ("upgrade a", "'a' is not NAME=LEVEL"),
        ("upgrade a=-1", "'a=-1' is not NAME=LEVEL"),
        ("upgrade a=4.3", "'a=4.3' is not NAME=LEVEL"),
        ("upgrade a=99999", "'a=99999' is not NAME=LEVEL"),
        ("upgrade --release-version 9.9", "'9.9' is not a release"),
        ("downgrade metadata.version=9.9", "or as in 4.3-IV0"),
        ("disable", "Missing argument"),
    ],
)
def test_wrong_usage(odradek: Run, arguments: str, text: str) -> None:
    ran = odradek("feature", *arguments.split())
    assert (ran.exit_code, text in ran.stderr) == (2, True), ran.stderr


@pytest.fixture
def switched_on(kafka: Run) -> Iterator[None]:
    """Whatever a test does, the feature is on afterwards."""
    yield
    assert kafka("feature", "upgrade", f"{LATER}=1").exit_code == 0


def level(kafka: Run, name: str) -> object:
    rows = kafka("feature", "list", "-o", "json").json()
    assert isinstance(rows, list)
    return {row["feature"]: row["level"] for row in rows}[name]


@pytest.mark.e2e
def test_levels_are_listed_with_the_names_of_releases(kafka: Run) -> None:
    rows = kafka("feature", "list", "-o", "json").json()
    assert isinstance(rows, list)
    newest = metadata_version_level("4.3")
    assert newest is not None
    assert {row["feature"]: row["supported_max"] for row in rows} == release_levels(newest)
    (metadata,) = (row for row in rows if row["feature"] == "metadata.version")
    assert (metadata["supported_min"], metadata["newest"]) == (7, "4.3-IV0")
    assert metadata["epoch"] > 0
    brokers = kafka("broker", "list", "-o", "json").json()
    assert isinstance(brokers, list)
    ran = kafka("feature", "list", "--node", str(brokers[0]["id"]))
    assert ran.stdout.splitlines()[0].split() == [
        *("FEATURE", "LEVEL", "RELEASE", "SUPPORTED", "MIN", "SUPPORTED", "MAX", "NEWEST")
    ]
    ran = kafka("feature", "list", "--node", "77")
    assert (ran.exit_code, "77: no such node; the cluster has" in ran.stderr) == (1, True)


@pytest.mark.e2e
@pytest.mark.usefixtures("switched_on")
def test_a_feature_is_lowered_if_the_user_agrees_and_raised_again(kafka: Run) -> None:
    before = level(kafka, LATER)
    assert before == 1
    checked = kafka("feature", "downgrade", f"{LATER}=0", "--dry-run", "-o", "json").json()
    assert checked == [
        {"feature": LATER, "before": 1, "after": 0, "release": None, "result": "can be downgraded"}
    ]
    refused = kafka("feature", "downgrade", f"{LATER}=0", stdin="n\n")
    assert refused.exit_code == 1
    assert f"Lower {LATER} from 1 to 0?" in refused.stderr
    assert refused.stdout == ""
    refused = kafka("feature", "disable", LATER, "--unsafe", stdin="n\n")
    assert "Metadata that the lower levels do not have is lost." in refused.stderr
    assert level(kafka, LATER) == 1
    disabled = kafka("feature", "disable", LATER, stdin="y\n")
    assert disabled.stdout.splitlines()[1].split() == [LATER, "1", "0", "-", "disabled"]
    assert level(kafka, LATER) == 0
    checked = kafka("feature", "upgrade", f"{LATER}=1", "--dry-run")
    assert "can be upgraded" in checked.stdout
    assert level(kafka, LATER) == 0
    raised = kafka("feature", "upgrade", f"{LATER}=1", "share.version=1", "-o", "json").json()
    assert isinstance(raised, list)
    assert [(row["feature"], row["result"]) for row in raised] == [
        (LATER, "upgraded"),
        ("share.version", "unchanged"),
    ]
    assert level(kafka, LATER) == 1


@pytest.mark.e2e
def test_all_features_get_the_levels_of_a_release(kafka: Run) -> None:
    raised = kafka("feature", "upgrade", "--release-version", "4.3", "-o", "json").json()
    assert isinstance(raised, list)
    assert {row["feature"]: row["after"] for row in raised} == release_levels(30)
    assert {row["result"] for row in raised} == {"unchanged"}
    assert {row["release"] for row in raised} == {"4.3-IV0", None}
    nothing = kafka("feature", "downgrade", "--release-version", "4.3")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "No feature has to be downgraded." in nothing.stderr


@pytest.mark.e2e
def test_all_levels_change_or_none(kafka: Run) -> None:
    refused = kafka("feature", "upgrade", "group.version=77", "share.version=1")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "no level was changed: " in refused.stderr
    assert refused.stderr.endswith("(INVALID_UPDATE_VERSION)\n")
    lower = kafka("feature", "upgrade", "metadata.version=4.2")
    assert lower.exit_code == 1
    assert "`odradek feature downgrade` lowers levels." in lower.stderr
    misspelt = kafka("feature", "upgrade", "gruop.version=1")
    assert misspelt.exit_code == 1
    assert "gruop.version: no such feature; did you mean group.version?" in misspelt.stderr
