"""Charts: their geometry and their text."""

from typing import Any

from daemon.ui.charts import charts_of, rounded_up

FIRST = 1_795_225_200_000_000_000  # 2026-11-21T01:40:00Z


def history(limit: float = 0, **fields: list[float | None]) -> dict[str, Any]:
    nothing: list[float | None] = []
    names = ("CPUPercent", "Memory", "Disk", "Received", "Sent", "Restarts", "Allocations")
    series = {"Task": "", **dict.fromkeys(names, nothing), **fields}
    return {
        "From": FIRST,
        "To": FIRST + 180 * 10**9,
        "Step": 60,
        "NoNetwork": "",
        "Series": [series],
        "Limits": [{"Task": "", "CPUPercent": limit, "Memory": 0, "Disk": 0}],
    }


def test_gap_splits_a_line() -> None:
    (chart,) = charts_of(history(CPUPercent=[10, None, 20]))
    assert chart.lines[0].path == "M0,60 0.5,60 1,60 M2,20 2.5,20 3,20"
    assert chart.lines[0].area.count("Z") == 2


def test_each_measured_value_has_a_text_with_its_time() -> None:
    (chart,) = charts_of(history(CPUPercent=[10, None, 20]))
    assert [(bar.x, bar.text) for bar in chart.bars] == [
        (0, "2026-11-21 01:40:00 UTC: 10 %"),
        (2, "2026-11-21 01:42:00 UTC: 20 %"),
    ]


def test_text_alternative_names_extremes_limit_and_latest_value() -> None:
    (chart,) = charts_of(history(limit=40, CPUPercent=[10, None, 20]))
    assert chart.spoken == (
        "CPU from 2026-11-21 01:40:00 UTC to 2026-11-21 01:43:00 UTC: "
        "highest 20 %, limit 40 %, mean 15 %, latest 20 %"
    )


def test_limit_near_the_values_is_drawn() -> None:
    (chart,) = charts_of(history(limit=40, CPUPercent=[10, 20]))
    assert chart.limit == 20


def test_limit_far_above_the_values_is_only_text() -> None:
    (chart,) = charts_of(history(limit=4000, CPUPercent=[10, 20]))
    assert (chart.limit, chart.summary) == (None, "highest 20 % · limit 4000 %")


def test_restarts_are_marked() -> None:
    (chart,) = charts_of(history(CPUPercent=[10, 20], Restarts=[0, 2]))
    assert [(restart.x, restart.text) for restart in chart.restarts] == [
        (1, "2026-11-21 01:41:00 UTC: 2 restarts")
    ]


def test_network_has_two_lines_in_one_chart() -> None:
    (chart,) = charts_of(history(Received=[1024, 2048], Sent=[None, 512]))
    assert [line.name for line in chart.lines] == ["Received", "Sent"]
    assert chart.now == "received 2.0 KiB/s, sent 512 B/s"
    assert chart.bars[0].text.endswith("Received 1.0 KiB/s")


def test_idle_object_has_a_line_at_the_bottom() -> None:
    (chart,) = charts_of(history(CPUPercent=[0, 0]))
    assert chart.lines[0].path == "M0,100 0.5,100 1.5,100 2,100"


def test_object_without_measurements_has_no_charts() -> None:
    assert charts_of(history(CPUPercent=[None, None])) == []
    assert charts_of(history(CPUPercent=[1]), "other") == []


def test_table_has_few_rows_with_the_highest_values() -> None:
    (chart,) = charts_of(history(CPUPercent=[float(number) for number in range(60)]))
    assert len(chart.rows) == 12
    assert chart.rows[0] == (FIRST + 55 * 60 * 10**9, ["59 %"])


def test_bytes_are_rounded_in_their_unit() -> None:
    assert rounded_up(53 * 1024**2, 1024) == 60 * 1024**2
