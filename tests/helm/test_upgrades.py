"""What the chart makes of a release that is installed: what it keeps, and what cannot change."""

import pytest

from tests.support.helm_chart import ChartError, Manifest, named, of_kind, rendered
from tests.support.installed_release import InstalledRelease, installed


def jobs(manifests: list[Manifest]) -> list[str]:
    return [each["metadata"]["name"] for each in of_kind(manifests, "Job")]


def refusal(release: InstalledRelease, values: str, *settings: str) -> str:
    with pytest.raises(ChartError) as refused:
        release.upgrade(values, *settings)
    return str(refused.value)


def test_jobs_run_when_the_number_of_nodes_changes() -> None:
    with installed(rendered("standard", "replicas=4")) as release:
        auto = "scaleUp.hook=auto"
        assert jobs(release.upgrade("standard", auto, "replicas=4")) == []
        fewer = ["kafka-odradek-scale-down", "kafka-odradek-scale-down-end"]
        assert sorted(jobs(release.upgrade("standard", auto))) == fewer
        assert jobs(release.upgrade("standard", "scaleDown.hook=never")) == []
        assert jobs(release.upgrade("standard", auto, "replicas=5")) == ["kafka-odradek-scale-up"]
        assert jobs(release.upgrade("standard", "replicas=5")) == [], "that is never, by default"


def test_generated_secrets_stay() -> None:
    generated = ("cluster.secret.existingSecret=null", "auth.enabled=true")
    before = rendered("standard", *generated)
    assert len(of_kind(before, "Secret")) == 2
    with installed(before) as release:
        after = release.upgrade("standard", *generated)
        for secret in of_kind(before, "Secret"):
            name = secret["metadata"]["name"]
            assert named(after, "Secret", name)["data"] == secret["data"]
        changed = release.upgrade("standard", *generated, "auth.admin.password=new-password")
        admin = "kafka-odradek-admin"
        before_data, data = (named(each, "Secret", admin)["data"] for each in (before, changed))
        assert before_data["password"] != data["password"]


def test_the_voters_that_a_cluster_began_with_cannot_change() -> None:
    with installed(rendered("standard")) as release:
        said = refusal(release, "standard", "cluster.bootstrapVoters=1")
    assert "cluster.bootstrapVoters: the cluster began with 3, which cannot change" in said


def test_volume_claims_cannot_change_and_what_to_do_is_said() -> None:
    recreate = "kubectl delete statefulset -n events kafka-odradek --cascade=orphan"
    one_disk = "storage.extraLogDirs=null"
    with installed(rendered("rack-aware", "storage.size=1Ti")) as release:
        release.upgrade("rack-aware", "storage.size=1024Gi")
        said = refusal(release, "rack-aware", "storage.size=2Ti")
        assert "data of the StatefulSet have 1Ti, which cannot become 2Ti there" in said
        assert "kubectl patch pvc" in said
        assert recreate in said
        said = refusal(release, "rack-aware", "storage.size=1Ti", one_disk)
        assert "it has disk-b. Move its replicas away (odradek logdir move)" in said
    with installed(rendered("rack-aware", one_disk)) as release:
        assert "it has no disk-b: run kubectl delete" in refusal(release, "rack-aware")
    with installed([]) as release:
        assert release.upgrade("rack-aware", "storage.size=2Ti"), "it was deleted: pods stay"
