"""How bad it is what a stranger finds."""

import pytest

from odradek.cluster.metadata.acls import AclOperation
from odradek.node.cli.exposure import Access, Exposure
from odradek.node.cli.exposure_findings import exposure_findings, login_findings, rights, sights
from odradek.node.cli.probe import Address

ADDRESS = Address("broker.example", 9092)
OPEN = "without credentials"


def findings(found: Exposure) -> list[tuple[str, str]]:
    told = list(exposure_findings(found))
    assert all(each.advice.endswith(".") for each in told)
    assert {each.address for each in told} <= {"broker.example:9092"}
    return [(each.severity, each.finding) for each in told]


def exposed(protocol: str, *ways_in: Access, mechanisms: tuple[str, ...] = ()) -> Exposure:
    return Exposure(ADDRESS, protocol=protocol, mechanisms=mechanisms, ways_in=[*ways_in])


def test_a_cluster_without_authorizer_is_serious() -> None:
    [(severity, text)] = findings(exposed("PLAINTEXT", Access(OPEN, has_authorizer=False)))
    assert severity == "serious"
    assert "may do everything, without credentials" in text


def test_rights_of_strangers_are_serious_and_sights_are_a_warning() -> None:
    topics = {
        "a": frozenset({AclOperation.READ, AclOperation.DESCRIBE}),
        "b": frozenset({AclOperation.DESCRIBE}),
    }
    access = Access(
        OPEN,
        frozenset({AclOperation.ALTER}),
        topics,
        has_authorizer=True,
        can_create_topics=True,
        group_count=1,
    )
    assert rights(access) == [
        "create topics",
        "read the records of 1 of 2 topics",
        "change ACLs, users and the layout of the cluster",
    ]
    assert sights(access) == ["the names of 2 topics", "1 group"]
    [(severity, text)] = findings(exposed("SSL", access))
    assert severity == "serious"
    assert "may create topics, read the records of 1 of 2 topics and change ACLs" in text
    harmless = Access(OPEN, topic_operations={"b": topics["b"]}, has_authorizer=True)
    [(severity, text)] = findings(exposed("SSL", harmless))
    assert severity == "warning"
    assert "sees the names of 1 topic; ACLs forbid the rest" in text


@pytest.mark.parametrize(
    "entrance",
    [
        "with an access token that nobody has signed",
        "as admin with a password of Kafka's documentation (PLAIN)",
    ],
)
def test_to_be_somebody_is_serious_without_any_right(entrance: str) -> None:
    way_in = Access(entrance, has_authorizer=True)
    [(severity, text)] = findings(exposed("SASL_SSL", way_in, mechanisms=("PLAIN",)))
    assert (severity, text) == ("serious", f"anybody can authenticate {entrance}")


@pytest.mark.parametrize(
    ("mechanisms", "severity", "says"),
    [
        (("PLAIN", "SCRAM-SHA-512"), "serious", "PLAIN without encryption"),
        (("OAUTHBEARER",), "serious", "has the tokens of all clients"),
        (("SCRAM-SHA-256",), "warning", "records cross the network without encryption"),
    ],
)
def test_logins_without_encryption(mechanisms: tuple[str, ...], severity: str, says: str) -> None:
    [(found, text)] = findings(exposed("SASL_PLAINTEXT", mechanisms=mechanisms))
    assert found == severity
    assert says in text
    assert findings(exposed("SASL_SSL", mechanisms=mechanisms)) == []


@pytest.mark.parametrize(
    ("facts", "severity", "says"),
    [
        ({"certificate_days": 29.0}, "warning", "expires in 29 days"),
        ({"certificate_days": -1.0}, "serious", "has expired"),
        ({"certificate_days": -1.0, "certificate_problem": "expired"}, "serious", "has expired"),
        ({"certificate_problem": "self-signed certificate"}, "warning", "not trusted here"),
        ({"certificate_problem": "mismatch", "is_wrong_name": True}, "serious", "other names"),
        ({"old_tls_versions": ("TLSv1", "TLSv1.1")}, "serious", "TLSv1 and TLSv1.1"),
    ],
)
def test_tls(facts: dict[str, object], severity: str, says: str) -> None:
    found = exposed("SASL_SSL")
    for name, value in facts.items():
        setattr(found, name, value)
    [(told, text)] = findings(found)
    assert told == severity
    assert says in text


def test_a_safe_address_has_no_finding() -> None:
    found = exposed("SASL_SSL", mechanisms=("SCRAM-SHA-512",))
    found.certificate_days = 31
    assert findings(found) == []


@pytest.mark.parametrize("has_authorizer", [True, False])
def test_a_login_shows_whether_there_is_an_authorizer(has_authorizer: bool) -> None:
    told = list(login_findings(str(ADDRESS), has_authorizer=has_authorizer))
    assert [each.severity for each in told] == ([] if has_authorizer else ["warning"])
