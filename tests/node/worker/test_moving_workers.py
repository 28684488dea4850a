"""Workers see which others move replicas."""

from pathlib import Path

from odradek.node.worker.moving_workers import MovingWorkers


def test_each_worker_sees_how_many_move_replicas(tmp_path: Path) -> None:
    first, second, third = (MovingWorkers(tmp_path, worker, 3) for worker in range(3))
    assert first.count == 1, "whoever asks is about to move something"
    first.tell(is_moving=True)
    assert (first.count, second.count) == (1, 1)
    second.tell(is_moving=True)
    third.tell(is_moving=True)
    assert {each.count for each in (first, second, third)} == {3}
    second.tell(is_moving=False)
    assert {each.count for each in (first, second, third)} == {2}


def test_the_successor_of_a_killed_worker_begins_anew(tmp_path: Path) -> None:
    first, second = (MovingWorkers(tmp_path, worker, 2) for worker in range(2))
    first.tell(is_moving=True)
    second.tell(is_moving=True)
    assert first.count == 2
    MovingWorkers(tmp_path, 1, 2)
    assert first.count == 1
    # With fewer workers than before, nobody waits for one that is no more.
    second.tell(is_moving=True)
    assert MovingWorkers(tmp_path, 0, 1).count == 1
