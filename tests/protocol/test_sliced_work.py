from odradek.protocol.sliced_work import SlicedWork, finish


def test_work_gets_the_results_of_what_it_yields() -> None:
    def work() -> SlicedWork[list[bytes | None]]:
        found = []
        for task in (None, lambda: b"a", None, lambda: None, lambda: b"b"):
            found.append((yield task))  # noqa: PERF401 - a yield
        return found

    assert finish(work()) == [None, b"a", None, None, b"b"]
