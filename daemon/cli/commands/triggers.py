"""`job triggers`: the ended runs of other jobs, and whether each run started this job."""

import click

from daemon.cli.core import resolve
from daemon.cli.core.formatting import format_time
from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen
from storage.records.flow import TriggerJoin
from storage.records.trigger import JobLinks, JobTrigger


@click.command("triggers")
@click.argument("job_id", metavar="JOB")
@click.option(
    "-n", "most", type=Integer(0), default=20, metavar="N", help="Number of runs; 0: all."
)
@with_output
@with_client
def of_job(client: ApiClient, screen: Screen, job_id: str, *, most: int) -> None:
    """List the ended runs of the jobs that JOB follows, newest first, with their effect on JOB.

    Example: steward job triggers report
    """
    line = resolve.job(client, job_id)
    path = f"/v1/job/{segment(line.id)}/triggers"
    query = {"per_page": most} if most else {}
    answer = client.read(path, namespace=line.namespace, **query)
    if screen.wants_document:
        screen.document(answer.checked(list[JobTrigger]))
        return
    show_links(client, screen, line.id, line.namespace)
    triggers = answer.decode(list[JobTrigger])
    if not triggers:
        screen.line("No runs")
        return
    rows = [
        [
            f"{trigger.source_namespace}/{trigger.run_job_id}",
            str(trigger.number),
            trigger.status,
            format_time(trigger.ended),
            trigger.state,
            trigger.child_id or trigger.reason,
        ]
        for trigger in triggers
    ]
    screen.table(["Run Of", "Run", "Status", "Ended", "Effect", "Child Or Reason"], rows)


def show_links(client: ApiClient, screen: Screen, job_id: str, namespace: str) -> None:
    """Print the jobs that a job follows, and the jobs that follow it, if there are any."""
    links = client.fetch(f"/v1/job/{segment(job_id)}/links", JobLinks, namespace=namespace)
    facts = []
    if links.sources:
        names = [
            f"{source.namespace}/{source.job_id}"
            + (f" ({source.waiting} waiting)" if source.waiting else "")
            + ("" if source.exists else " (does not exist)")
            for source in links.sources
        ]
        joins = links.join == TriggerJoin.ALL and len(names) > 1
        how = f"{links.when} of {'all' if joins else 'each'}"
        facts.append(("Follows", f"{', '.join(names)}; {how}"))
    if links.followers:
        names = [
            f"{follower.namespace}/{follower.job_id} ({follower.when})"
            for follower in links.followers
        ]
        facts.append(("Followed By", ", ".join(names)))
    if facts:
        screen.title("Jobs Before And After")
        screen.facts(facts)
