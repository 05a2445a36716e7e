"""Batches as the sender makes them."""

from daemon.notify.message import Batch, Context, FailureCause, NotificationWithContext
from storage.records.base import MINUTE
from storage.records.notification import Notification, NotifyEvent
from tests.samples import NOW

FAILURE = NotificationWithContext(
    notification=Notification(
        id=7,
        namespace="default",
        job_id="backup",
        run_id="backup/periodic-1",
        event=NotifyEvent.FAILURE,
        reason="it broke",
        receiver="night",
        failures=3,
        failing_since=NOW - 12 * MINUTE,
        create_time=NOW,
        modify_time=NOW,
    ),
    context=Context(
        host="vm1",
        state="failing",
        error=FailureCause(
            summary='task "main" was ended by SIGKILL',
            group="g",
            task="main",
            allocation_id="5c1f0000",
            exit_code=137,
            signal="SIGKILL",
            oom_killed=True,
            restarts=1,
            attempt=2,
            stderr="reading <all> & more\nno password ‹masked›\n",
        ),
        failed_in_a_row=3,
        failing_since="2026-11-21T01:28:00Z",
        last_success="2026-11-20T01:40:00Z",
        link="https://vm1:4646/ui/job/backup",
        command="steward job explain backup",
    ),
)
RECOVERY = NotificationWithContext(
    notification=Notification(
        id=8,
        namespace="ops",
        job_id="web",
        run_id="web",
        event=NotifyEvent.RECOVERY,
        reason="running again after 3 failures, 12 min",
        receiver="night",
        failures=3,
        failing_since=NOW - 12 * MINUTE,
        create_time=NOW,
        modify_time=NOW,
    ),
    context=Context(host="vm1", state="running", command="steward job explain web"),
)


def batch(
    *first: NotificationWithContext, rest: tuple[Notification, ...] = (), number: str = "c-7"
) -> Batch:
    return Batch(id=number, first=first, rest=rest, node_name="vm1")
