"""The schema registry: what is a fact about a record, and what is an outage."""

import json
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.decoded_values import BadValue
from odradek.pipeline.values.registry import ATTEMPTS, SchemaRegistry
from tests.support.ports import free_port
from tests.support.stand_in_schema_registry import StandInSchemaRegistry, running_registry


@pytest.fixture(scope="module")
def served() -> Iterator[StandInSchemaRegistry]:
    with running_registry() as registry:
        yield registry


@pytest.fixture(autouse=True)
def _fresh(served: StandInSchemaRegistry) -> None:
    served.refuse_with = None
    served.requests.clear()
    served.authorizations.clear()


def test_a_schema_is_read_once_and_travels(served: StandInSchemaRegistry) -> None:
    number = served.register("orders-value", '"string"')
    registry = SchemaRegistry(served.url + "/")
    assert registry.by_id(number).text == '"string"'
    travelled = ForkingPickler.loads(ForkingPickler.dumps(registry))
    assert travelled.by_id(number).text == '"string"'
    assert served.requests == [f"/schemas/ids/{number}"]


def test_the_newest_of_a_subject_with_all_that_it_refers_to(served: StandInSchemaRegistry) -> None:
    served.register("a/b", "old")
    served.register("inner", "inner text")
    served.register("middle", "middle", [{"name": "In", "subject": "inner", "version": 1}])
    served.register(
        "outer",
        "outer",
        [
            {"name": "Mid", "subject": "middle", "version": 1},
            {"name": "In", "subject": "inner", "version": 1},
        ],
    )
    found = SchemaRegistry(served.url).latest("outer")
    assert found.text == "outer"
    assert found.references == (("In", "inner text"), ("Mid", "middle"))


def test_an_id_that_is_not_there_is_a_fact_about_the_record(served: StandInSchemaRegistry) -> None:
    registry = SchemaRegistry(served.url)
    for _ in range(2):
        with pytest.raises(BadValue, match="has no schema 4711"):
            registry.by_id(4711)
    assert len(served.requests) == 1


def test_a_subject_that_is_not_there_ends_the_job(served: StandInSchemaRegistry) -> None:
    with pytest.raises(PipelineError, match=r"no subject lost-value: give value\.schema"):
        SchemaRegistry(served.url).latest("lost-value")


@pytest.mark.parametrize(("status", "asked"), [(500, ATTEMPTS), (503, ATTEMPTS), (401, 1)])
def test_a_refusal_is_an_outage(served: StandInSchemaRegistry, status: int, asked: int) -> None:
    served.refuse_with = status
    with pytest.raises(PipelineError, match=f"does not serve /schemas/ids/1: HTTP {status}"):
        SchemaRegistry(served.url).by_id(1)
    assert len(served.requests) == asked


def test_another_server_is_no_registry(served: StandInSchemaRegistry) -> None:
    served.refuse_with = 404
    registry = SchemaRegistry(served.url + "/wrong")
    with pytest.raises(BadValue):
        registry.by_id(1)
    served.refuse_with = 405
    with pytest.raises(PipelineError, match=r"HTTP 405; check value\.registry"):
        registry.by_id(2)


def test_nobody_there_is_an_outage() -> None:
    with pytest.raises(PipelineError, match=r"does not serve /schemas/ids/1: .*refused"):
        SchemaRegistry(f"http://127.0.0.1:{free_port()}").by_id(1)


def test_user_and_password_are_sent_and_never_shown(served: StandInSchemaRegistry) -> None:
    url = served.url.replace("//", "//key:s%40cret@")
    registry = SchemaRegistry(url)
    served.refuse_with = 403
    with pytest.raises(PipelineError) as refused:
        registry.by_id(1)
    assert "cret" not in str(refused.value)
    assert served.authorizations == {"Basic a2V5OnNAY3JldA=="}
    assert registry.name == served.url


@pytest.mark.parametrize("url", ["file:///etc/passwd", "127.0.0.1:8081", ""])
def test_only_http(url: str) -> None:
    with pytest.raises(PipelineError, match="is no URL; write http://"):
        SchemaRegistry(url)


def test_what_is_served_is_json(served: StandInSchemaRegistry) -> None:
    assert json.loads(json.dumps(served.answer("/subjects/none/versions/1")))[0] == 404
