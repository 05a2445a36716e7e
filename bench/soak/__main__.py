"""Hours of mixed load with kills and faults, to check that nothing grows, slows down or gets lost.

    python -m bench.soak [--minutes 60] [--warm 5] [--kill 10] [--pages 50] [--seed 1]
                         [--disk 2048] [--directory /dev/shm]

The daemon requires tokens, uses a small fake cloud for logins, and has short retention times.
During the warm-up, the load is four times as high, so that the store then has as many old objects
as the retention permits. Clients register, update, scale, stop and dispatch jobs, one by one and in
bulk. Arrays, workflows with gates and periodic jobs run. Clients run commands in tasks, read logs
and events, and keep pages open. They log in, change variables, collect garbage, take snapshots, and
send requests beyond the limits. Traces and notifications go to receivers that often fail.

The daemon is killed after the warm-up and then every `--kill` minutes. In between, the CPUs are
busy for a minute, and the disk is full for a minute (as root, on a file system of `--disk` MiB in
memory). At the end, a ledger outside the daemon shows whether each accepted run happened exactly
once.

Each minute, the benchmark records the daemon's resources, call latencies and the host's limits. It
compares the last period between two kills with the first one, at equal times since the start of the
daemon. Latencies are also shown relative to the host's limit in the same minute, because other
processes can use the host. Job versions are never deleted, so the size of the store is measured
without them. The exit status is 1 if anything grew, slowed down, failed, was lost or ran twice.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import trio

from bench.idle import spent
from bench.limits import fdatasync_per_s, fork_exec_per_s
from bench.soak.disturbances import fill_disk, kill, receive, small_disk, use_processors
from bench.soak.ledger import Ledger
from bench.soak.load import (
    ENDLESS,
    WARMING,
    WORK,
    Soak,
    client,
    open_pages,
    prepare,
    stop_schedules,
)
from bench.soak.report import FOR_EVER, Minute, held, line, tables, verdict
from tests.fakes.collector import Collector, open_collector
from tests.fakes.receiver import Receiver, open_receiver
from tests.service.daemon import open_steward

SETTINGS = """
dev_cloud_port = 0
retention_days = 0
retention_allocs = 20
retention_evals = 20
retention_deployments = 10
retention_events = 3000
retention_notifications = 10
audit_retention_entries = 2000
gc_interval_seconds = 10
gc_max_allocs = 50
log_retention_mb = 5
job_max_groups = 100
job_max_kb = 256
job_max_count = 10000
otlp_url = "{collector}"
otlp_metrics_seconds = 10

[notify_receivers.unreliable]
kind = "webhook"
url = "{receiver}"
secret_file = "{secret}"
group_seconds = 2
"""
SPAN = 10  # minutes of a compared period if there are no kills
DRAINS_WITHIN = 300.0  # seconds until all accepted runs have ended


async def look(soak: Soak, number: int, age: int, disturbance: str, before: float) -> Minute:
    """Return the measurements of one minute; `before` is the CPU time at its start."""
    took, soak.took = soak.took, defaultdict(list)
    processor = (spent(soak.steward.pid) - before) / 60
    sizes_held = await trio.to_thread.run_sync(held, soak.steward)
    sizes = await trio.to_thread.run_sync(tables, soak.steward)
    sizes_held["versions_mib"] = sum(sizes.get(name, 0) for name in FOR_EVER)
    sizes_held["passing_mib"] = sum(sizes.values()) - sizes_held["versions_mib"]
    sizes_held["free_mib"] = sizes_held["store_mib"] - sizes_held["log_mib"] - sum(sizes.values())
    return Minute(
        number=number,
        age=age,
        disturbance=disturbance,
        tables=sizes,
        fork_exec_per_s=await trio.to_thread.run_sync(fork_exec_per_s, 0.3),
        fdatasync_per_s=await trio.to_thread.run_sync(fdatasync_per_s, soak.steward.directory, 0.3),
        held=sizes_held,
        processor=processor,
        took={name: statistics.median(all_) for name, all_ in sorted(took.items())},
        calls=sum(map(len, took.values())),
        faults=len(soak.faults),
    )


async def run(options: argparse.Namespace, seen: list[Minute]) -> list[str]:
    """Run the soak test, and add each minute to `seen`; return the failures."""
    with tempfile.TemporaryDirectory(prefix="steward-soak-", dir=options.directory) as name:
        place = Path(name)
        disk = place / "disk"
        (place / "secret").touch(mode=0o600)
        (place / "secret").write_text("whsec_" + "c2VjcmV0" * 4)
        async with (
            open_collector() as collector,
            open_receiver() as receiver,
            client() as http,
        ):
            config = place / "steward.toml"
            config.write_text(
                SETTINGS.format(
                    collector=collector.url, receiver=receiver.url, secret=place / "secret"
                )
            )
            with small_disk(disk, options.disk) as can_fill:
                # The log is not on the disk that gets full, so that it can report the full disk.
                log = options.log or place / "daemon.log"
                (disk / "daemon.log").symlink_to(log)
                flags = ("--dev", "--acl", "--dev-cloud", "--config", str(config))
                async with open_steward(disk, *flags, executed=True) as steward:
                    soak = Soak(steward, http, Ledger(place), random.Random(options.seed))
                    await prepare(soak)
                    await work(soak, options, seen, collector, receiver, can_fill=can_fill)
        soak.faults += soak.ledger.verdict()
        print(f"{soak.spans} spans and metrics received")
        for what, number in sorted(soak.excused.items()):
            print(f"excused: {what}: {number}")
        text = log.read_text().splitlines()
        soak.faults += [line for line in text if "Traceback" in line or " ERROR " in line][:20]
        return soak.faults


async def work(
    soak: Soak,
    options: argparse.Namespace,
    seen: list[Minute],
    collector: Collector,
    receiver: Receiver,
    *,
    can_fill: bool,
) -> None:
    """Run the load and the disturbances, and then wait until all accepted runs have ended.

    The measured minutes are added to `seen`. `can_fill` means that the disk can be filled.
    """
    async with trio.open_nursery() as endless:
        endless.start_soon(receive, soak, collector, receiver)
        for every, kind in ENDLESS:
            endless.start_soon(soak.repeat, every, kind)
        async with open_pages(soak, options.pages), trio.open_nursery() as nursery:
            for every, kind in WORK:
                nursery.start_soon(soak.repeat, every, kind)
            await pass_minutes(soak, options, seen, can_fill=can_fill)
            soak.is_ending = True
        await stop_schedules(soak)
        with trio.move_on_after(DRAINS_WITHIN):
            while soak.ledger.missing():  # noqa: ASYNC110  # no event reports a task's line
                await trio.sleep(1)
        endless.cancel_scope.cancel()


async def pass_minutes(
    soak: Soak, options: argparse.Namespace, seen: list[Minute], *, can_fill: bool
) -> None:
    """Disturb the daemon and add the measurements of each minute to `seen`.

    `can_fill` means that the disk can be filled.
    """
    span = options.kill or SPAN
    disturbances = {span * 4 // 10: "busy CPUs"} | (
        {span * 7 // 10: "full disk"} if can_fill else {}
    )
    for number in range(-options.warm, options.minutes):
        soak.pace = (
            WARMING if number < -1 else 1
        )  # the last minute of the warm-up works off the backlog
        age = number % span if number >= 0 else number + options.warm
        if options.kill and number >= 0 and not age:
            await kill(soak)
        disturbance = disturbances.get(age, "") if number >= 0 else ""
        before = spent(soak.steward.pid)
        ends = trio.current_time() + 60
        match disturbance:
            case "busy CPUs":
                await use_processors(soak)
            case "full disk":
                await fill_disk(soak)
        await trio.sleep_until(ends)
        seen.append(await look(soak, number, age, disturbance, before))
        print(line(seen[-1]), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument(
        "--kill", type=int, default=10, help="minutes between kills; 0 means no kills"
    )
    parser.add_argument("--pages", type=int, default=50, help="number of pages that stay open")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--disk", type=int, default=2048, help="size of the disk in MiB; 0 means no full disk"
    )
    parser.add_argument(
        "--directory", help="parent of the data directory, if the test has no separate disk"
    )
    parser.add_argument("--log", type=Path, help="write the daemon's log to this file, and keep it")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each start compiles all modules
    minutes: list[Minute] = []
    faults = trio.run(run, options, minutes)
    counted = [minute for minute in minutes if minute.number >= 0]
    wrong = verdict(counted, options.kill or SPAN)
    print(f"\n{sum(minute.calls for minute in minutes)} calls timed, {len(faults)} faults")
    for fault in [*faults[:100], *wrong]:
        print(fault)
    return 1 if faults or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
