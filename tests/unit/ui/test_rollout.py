"""The picture of a rollout: squares by version and health, canaries, and the deadline."""

from typing import Any

from daemon.ui.rollout import MOST, GroupRollout, RolloutPicture, rollout

NOW = 1_795_225_200_000_000_000  # 2026-11-21T01:40:00Z
MINUTE = 60 * 10**9


def group(**fields: Any) -> dict[str, Any]:
    return {
        "DesiredTotal": 2,
        "HealthyAllocs": 0,
        "UnhealthyAllocs": 0,
        "DesiredCanaries": 0,
        "PlacedCanaries": None,
        "Promoted": False,
        "AutoPromote": False,
        "ProgressDeadline": 10 * MINUTE,
        "RequireProgressBy": "2026-11-21T01:46:00Z",
        **fields,
    }


def alloc(name: str, version: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "ID": name,
        "Name": f"web.web[{name}]",
        "TaskGroup": "web",
        "JobVersion": version,
        "ClientStatus": "running",
        "DesiredStatus": "run",
        "DeploymentStatus": None,
        **fields,
    }


def drawn(*allocations: dict[str, Any], status: str = "running", **fields: Any) -> RolloutPicture:
    deployment = {"Status": status, "JobVersion": 1, "TaskGroups": {"web": group(**fields)}}
    return rollout(deployment, allocations, NOW)


def rows(rollout_picture: RolloutPicture) -> dict[str, list[str]]:
    (one,) = rollout_picture.groups
    return {row.title: [square.kind for square in row.squares] for row in one.rows}


def only(rollout_picture: RolloutPicture) -> GroupRollout:
    (one,) = rollout_picture.groups
    return one


def test_squares_show_the_health_of_the_new_version() -> None:
    found = drawn(
        alloc("a", DeploymentStatus={"Healthy": True}),
        alloc("b", DeploymentStatus={"Healthy": False}),
        alloc("c", DeploymentStatus={"Healthy": None}),
        alloc("d", ClientStatus="failed", DesiredStatus="stop"),
        DesiredTotal=6,
    )
    assert rows(found) == {
        "Version 1": ["healthy", "unhealthy", "checking", "failed", "missing", "missing"]
    }
    assert [kind for kind, _, _ in found.kinds] == [
        "healthy",
        "unhealthy",
        "failed",
        "checking",
        "missing",
    ]


def test_canaries_and_older_versions_have_separate_rows() -> None:
    found = drawn(
        alloc("a", DeploymentStatus={"Healthy": True, "Canary": True}),
        alloc("b", 0),
        alloc("c", 0, DesiredStatus="stop"),
        alloc("d", 0, ClientStatus="complete"),
        DesiredCanaries=1,
        PlacedCanaries=["a"],
    )
    assert rows(found) == {
        "Canaries": ["healthy"],
        "Version 1": ["missing"],
        "Older versions": ["older", "stopping"],
    }
    assert only(found).canaries == "1 of 1 canaries placed, not promoted"


def test_elapsed_part_of_a_deadline_is_shown() -> None:
    found = only(drawn())
    assert (found.elapsed, found.deadline) == (40, "6 min left for the next healthy allocation")


def test_passed_deadline_is_reported() -> None:
    found = only(drawn(RequireProgressBy="2026-11-21T01:39:00Z"))
    assert (found.elapsed, found.deadline) == (100, "the deadline passed 1 min ago")


def test_complete_group_has_no_deadline() -> None:
    found = only(drawn(HealthyAllocs=2))
    assert (found.elapsed, found.deadline) == (None, "")


def test_ended_rollout_shows_only_its_allocations() -> None:
    found = drawn(alloc("a", DeploymentStatus={"Healthy": True}), alloc("b", 0), status="failed")
    assert rows(found) == {"Version 1": ["healthy"]}
    assert (found.is_active, only(found).elapsed) == (False, None)


def test_number_of_squares_is_bounded() -> None:
    (row,) = only(drawn(*(alloc(str(number)) for number in range(MOST + 5)))).rows
    assert (len(row.squares), row.more) == (MOST, 5)
