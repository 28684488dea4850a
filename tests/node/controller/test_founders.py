"""A node that decided alone does not become one of three by a line in a file."""

from pathlib import Path

import pytest

from node.controller.founders import check_founders
from storage.metadata_log import HardState, MetadataLog, MetadataLogError


def test_a_new_log_remembers_who_was_to_vote(tmp_path: Path) -> None:
    log = MetadataLog.open(tmp_path)
    check_founders(log, [2, 0, 1], own_id=0)
    log.close()
    log = MetadataLog.open(tmp_path)
    check_founders(log, [0, 1, 2], own_id=0)
    with pytest.raises(MetadataLogError, match=r"begun by the nodes \[0, 1, 2\]"):
        check_founders(log, [0, 1, 3], own_id=0)
    with pytest.raises(MetadataLogError, match="set peers to those again"):
        check_founders(log, [0], own_id=0)
    log.close()


@pytest.mark.parametrize("has_voted", [True, False], ids=["voted", "from before there was Raft"])
def test_a_log_that_one_node_has_written_is_its_alone(tmp_path: Path, has_voted: bool) -> None:
    log = MetadataLog.open(tmp_path)
    check_founders(log, [5], own_id=5)
    log.append([b"x"], term=1, hard_state=HardState(1, 5) if has_voted else None)
    check_founders(log, [5], own_id=5)
    with pytest.raises(MetadataLogError, match="decided by it alone"):
        check_founders(log, [4, 5, 6], own_id=5)
    log.close()
