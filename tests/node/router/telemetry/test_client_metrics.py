"""The latest metrics of clients, and what of them is exported."""

import pytest

from odradek.node.metrics.exposition import exposition
from odradek.node.metrics.registry import Metrics
from odradek.node.router.telemetry import client_metrics as module
from odradek.node.router.telemetry.client_metrics import (
    CLIENT_LABEL_BYTES_MAX,
    PUSHES_KEPT,
    TERMINATED_KEPT_MS,
    ClientMetricsStore,
    PushedMetrics,
    PushedSeries,
    PushingClient,
)

KEPT_MS = 100_000
A = PushingClient(bytes(range(16)), "orders", "java", "4.3", "10.0.0.7")
B = A._replace(instance_id=bytes(16), client_id="billing")
AGE = PushedSeries("odradek_client_age", (), "gauge", "age")
SENT = PushedSeries("odradek_client_sent_total", (("topic", "t"),), "counter", "sent.total")


class Pushes:
    def __init__(self) -> None:
        self.store = ClientMetricsStore()
        self.now_ms = 0

    def push(
        self,
        client: PushingClient = A,
        *,
        values: dict[PushedSeries, float] | None = None,
        deltas: dict[PushedSeries, float] | None = None,
        last: bool = False,
        omitted: int = 0,
    ) -> None:
        pushed = PushedMetrics(values or {}, deltas or {}, (("group_id", "g"),), omitted)
        self.store.record(client, pushed, now_ms=self.now_ms, kept_ms=KEPT_MS, is_terminating=last)

    def told(self, client: PushingClient = A) -> dict[str, float]:
        metrics = self.store.get(client.instance_id)
        return {} if metrics is None else {key.name: value for key, value in metrics.series()}


@pytest.fixture
def pushes() -> Pushes:
    return Pushes()


def test_values_are_replaced_and_deltas_added(pushes: Pushes) -> None:
    pushes.push(values={AGE: 1.0}, deltas={SENT: 5.0})
    pushes.push(values={AGE: 3.0}, deltas={SENT: 2.0})
    assert pushes.told() == {AGE.name: 3.0, SENT.name: 7.0}
    assert pushes.store.series_count == 2


def test_each_client_has_its_own_series(pushes: Pushes) -> None:
    pushes.push(A, deltas={SENT: 5.0})
    pushes.push(B, deltas={SENT: 1.0})
    metrics = Metrics("router-0")
    metrics.samples(lambda: pushes.store.samples(0))
    text = exposition(metrics.collect())
    head = 'odradek_client_sent_total{process="router-0",'
    assert (
        f'{head}client_id="orders",client_instance_id="AAECAwQFBgcICQoLDA0ODw",topic="t"}} 5.0'
    ) in text.splitlines()
    assert (
        f'{head}client_id="billing",client_instance_id="AAAAAAAAAAAAAAAAAAAAAA",topic="t"}} 1.0'
    ) in text.splitlines()
    assert "# TYPE odradek_client_sent_total counter" in text
    assert (
        'odradek_telemetry_client_info{process="router-0",client_id="orders",'
        'client_instance_id="AAECAwQFBgcICQoLDA0ODw",software_name="java",'
        'software_version="4.3",host="10.0.0.7",group_id="g"} 1.0'
    ) in text.splitlines()


def test_a_series_that_is_not_pushed_any_more_goes(pushes: Pushes) -> None:
    pushes.push(values={AGE: 1.0}, deltas={SENT: 5.0})
    for _ in range(PUSHES_KEPT):
        pushes.push(deltas={SENT: 1.0})
        assert AGE.name in pushes.told()
    pushes.push(deltas={SENT: 1.0})
    assert pushes.told() == {SENT.name: 9.0}
    assert pushes.store.series_count == 1


def test_a_client_that_does_not_push_is_forgotten(pushes: Pushes) -> None:
    pushes.push(A, values={AGE: 1.0})
    pushes.now_ms = KEPT_MS - 1
    pushes.push(B, values={AGE: 1.0})
    assert len(list(pushes.store.clients(pushes.now_ms))) == 2
    assert [each.client for each in pushes.store.clients(KEPT_MS)] == [B]
    assert pushes.store.series_count == 1


def test_the_last_push_of_a_client_is_kept_until_it_is_scraped(pushes: Pushes) -> None:
    pushes.push(values={AGE: 1.0}, last=True)
    assert len(pushes.store.samples(TERMINATED_KEPT_MS - 1)) == 2
    assert pushes.store.samples(TERMINATED_KEPT_MS) == []


def test_pushes_forget_clients_as_well(pushes: Pushes) -> None:
    pushes.push(A, values={AGE: 1.0})
    pushes.now_ms = 2 * KEPT_MS
    pushes.push(B, values={AGE: 1.0})
    assert len(pushes.store) == 1


def test_series_over_the_limit_are_counted(pushes: Pushes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 1)
    pushes.push(A, values={AGE: 1.0}, deltas={SENT: 1.0}, omitted=4)
    assert pushes.told() == {AGE.name: 1.0}
    assert pushes.store.omitted_count == 5
    metrics = pushes.store.get(A.instance_id)
    assert metrics is not None
    assert metrics.omitted_count == 5
    # What is known already goes on.
    pushes.push(A, values={AGE: 2.0})
    assert pushes.told() == {AGE.name: 2.0}


def test_clients_over_the_limit_are_counted(
    pushes: Pushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLIENTS_MAX", 1)
    pushes.push(A, values={AGE: 1.0})
    pushes.push(B, values={AGE: 1.0}, deltas={SENT: 1.0}, omitted=1)
    assert (len(pushes.store), pushes.store.omitted_count) == (1, 3)


def test_a_client_whose_id_is_too_long_is_not_exported(pushes: Pushes) -> None:
    pushes.push(A._replace(client_id="ü" * CLIENT_LABEL_BYTES_MAX), values={AGE: 1.0})
    assert pushes.store.samples(0) == []
    assert pushes.told() == {AGE.name: 1.0}


def test_an_instance_that_has_become_another_client_begins_anew(pushes: Pushes) -> None:
    pushes.push(A, deltas={SENT: 5.0})
    pushes.push(A._replace(client_id="renamed"), deltas={SENT: 1.0})
    assert pushes.told() == {SENT.name: 1.0}
    [info, sample] = pushes.store.samples(0)
    assert info.labels[0] == sample.labels[0] == ("client_id", "renamed")
    assert pushes.store.series_count == 1
