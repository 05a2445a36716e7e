"""The ledger of the soak test finds lost, repeated and unknown runs."""

from pathlib import Path

import msgspec

from bench.soak.ledger import Ledger


def write(ledger: Ledger, *lines: str) -> None:
    ledger.path.write_text("".join(f"{line}\n" for line in lines))


def event(alloc_id: str, job: str, restarts: int = 0) -> bytes:
    allocation = {
        "ID": alloc_id,
        "JobID": job,
        "Name": f"{job}.g[0]",
        "TaskGroup": "g",
        "ClientStatus": "complete",
        "TaskStates": {"main": {"Restarts": restarts, "Events": None}},
    }
    payload = {"Topic": "Allocation", "Payload": {"Allocation": allocation}}
    return msgspec.json.encode({"Index": 7, "Events": [payload]})


def test_each_accepted_run_with_one_line_is_right(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.accept("element", "a", count=2)
    write(ledger, "a g 1 y", "a g 0 x")
    assert (ledger.missing(), ledger.verdict()) == (set(), [])


def test_run_without_a_line_is_lost(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.accept("element", "a", count=2)
    write(ledger, "a g 0 x")
    assert ledger.verdict() == ["lost: a g 1: no allocation was declared"]


def test_second_line_needs_a_declared_restart_or_another_allocation(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for job in ("once", "restarted", "replaced"):
        ledger.accept("dispatch", job)
        for number in range(1 + (job == "replaced")):
            ledger.hear(event(f"{job}{number}", job, restarts=int(job == "restarted")))
    write(ledger, *(f"{job} g 0 {job}0" for job in ("once", "restarted", "replaced") * 2))
    (wrong,) = ledger.verdict()
    assert wrong.startswith("twice: once g 0")
    assert ledger.index == 8


def test_line_without_an_accepted_run_is_unknown(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    write(ledger, "a g 0 x")
    assert ledger.verdict() == ["unknown: a g 0"]


def test_due_slots_follow_the_zone_of_the_job(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.zones = {"tick": "Asia/Kathmandu"}  # 5:45 hours ahead
    ledger.began, ledger.ended = 1_795_824_000.0, 1_795_824_000.0 + 500  # the start is on the hour
    assert [run.job for run in sorted(ledger.slots())] == [
        "tick/periodic-1795824240",
        "tick/periodic-1795824480",
    ]
    write(ledger, "tick/periodic-1795824240 g 0 x", "tick/periodic-1795824300 g 0 y")
    assert ledger.verdict() == [
        "lost: tick/periodic-1795824480 g 0: no allocation was declared",
        "unknown: tick/periodic-1795824300 g 0",
    ]
