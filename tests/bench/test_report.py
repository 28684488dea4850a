"""The page of ratios."""

from bench.brokers import Broker
from bench.cases import BenchmarkCase, Result
from bench.report import Comparison, ratio, render, render_page


def case(*, is_lower_better: bool) -> BenchmarkCase:
    return BenchmarkCase(
        name="a case",
        unit="ms" if is_lower_better else "MB/s",
        is_lower_better=is_lower_better,
        run=lambda _broker, _bench: results(1.0)[0],
    )


def results(*values: float, cpu: float | None = 2.0) -> list[Result]:
    return [
        Result(value=value, p50_ms=None, p99_ms=None, cpu_us_per_record=cpu) for value in values
    ]


def broker(name: str) -> Broker:
    return Broker(name=name, version="1.0", port=1, pid=1, start_seconds=0.5)


def test_a_ratio_above_one_is_in_favour_of_odradek_whatever_the_unit() -> None:
    throughput, latency = case(is_lower_better=False), case(is_lower_better=True)
    assert ratio(throughput, results(100), results(150)) == 1.5
    assert ratio(latency, results(3.0), results(2.0)) == 1.5


def test_one_bad_round_does_not_move_the_ratio() -> None:
    assert ratio(case(is_lower_better=False), results(100, 100, 1), results(100, 100, 900)) == 1.0


def test_the_page_tells_figures_machine_and_command() -> None:
    compared = Comparison(
        case=case(is_lower_better=False),
        kafka=results(100, 90, 110, cpu=4.0),
        odradek=results(200, 250, 150, cpu=2.0),
    )
    page = render(
        [compared],
        kafka=broker("Kafka"),
        odradek=broker("Odradek"),
        machine={"cores": "2"},
        footprints={"Kafka": (400.0, 3.0), "Odradek": (90.0, 0.4)},
        command="make bench",
        load_average=0.2,
    )
    assert "| a case | MB/s | 100.0 (90.0 to 110.0) | 200.0 (150.0 to 250.0) | **2.00** " in page
    assert "| 4.00 | 2.00 | 2.00 |" in page
    assert "| cores | 2 |" in page
    assert "`make bench`" in page
    assert "| memory when idle (PSS), before the load | 400 MiB | 90 MiB |" in page


def test_a_figure_without_processor_time_has_none_in_the_table() -> None:
    outage = Comparison(
        case=case(is_lower_better=True),
        kafka=results(9.0, cpu=None),
        odradek=results(1.5, cpu=None),
    )
    page = render_page(
        "# A page",
        [outage],
        versions={"Kafka": "1.0"},
        machine={"cores": "2"},
        command="make bench-cluster",
        load_average=0.2,
    )
    assert page.endswith("| **6.00** | - | - | - |\n")
    assert "| Kafka | 1.0 |" in page
    assert page.startswith("# A page")
