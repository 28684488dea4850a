"""Batches that take long to check leave the turn, and what follows them waits in its order."""

import pytest

from odradek.node.bus.messages import Append, DeleteRecords, WriteMarker
from odradek.node.worker import append_preparation
from odradek.node.worker.append_preparation import AppendPreparation, TurnCost
from odradek.node.worker.turn_requests import PreparedAppend, RouterState
from odradek.protocol.compression import Codec
from odradek.protocol.records import Record, build_batch
from odradek.storage.log_append import LogAppend
from odradek.storage.settings import LogSettings
from odradek.storage.validation import AppendOrigin
from tests.support.stores import NOW_MS
from tests.support.waiting import wait_until

HERE = 0, 3
ROUTER = RouterState()


def check(preparation: AppendPreparation, turn: TurnCost, *, number: int = 3) -> bool:
    """Check a batch of several steps for a partition of store 0."""
    records = [Record(index, NOW_MS, None, None) for index in range(20_000)]
    append = LogAppend.of_bytes(build_batch(records, codec=Codec.ZSTD), AppendOrigin.CLIENT)
    request = Append(1, 0, number, 16, append.length)
    return preparation.check(ROUTER, request, append, LogSettings(), turn)


def test_a_batch_within_the_limits_stays_in_the_turn() -> None:
    preparation, turn = AppendPreparation(), TurnCost(NOW_MS)
    assert check(preparation, turn)
    assert 0 < turn.cost_ns < 100_000_000
    assert not preparation.waiting
    assert preparation.take() == []


@pytest.mark.parametrize("limit", ["INLINE_COST_MAX", "TURN_COST_MAX"])
def test_requests_behind_a_batch_in_preparation_come_back_with_it(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_preparation, limit, 0)
    preparation = AppendPreparation()
    assert not check(preparation, TurnCost(NOW_MS, is_measured=True))
    assert preparation.is_preparing(HERE)
    assert not preparation.is_preparing((0, 4))

    marker = WriteMarker(2, *HERE, 5, 0, 0, is_commit=True, transaction_version=2)
    behind = Append(3, *HERE, 16, 5)
    assert preparation.must_wait(ROUTER, marker)
    assert preparation.must_wait(ROUTER, behind)
    assert not preparation.must_wait(ROUTER, Append(4, 0, 4, 16, 5))
    assert not preparation.must_wait(ROUTER, DeleteRecords(5, *HERE, 0))

    (_, prepared), *others = wait_until(preparation.take)
    assert isinstance(prepared, PreparedAppend)
    assert prepared.rejection is None
    assert prepared.work_ns > 0
    assert others == [(ROUTER, marker), (ROUTER, behind)]
    assert not preparation.waiting
