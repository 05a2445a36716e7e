"""`runs cancel`, `skip`, `accept`, `rerun`, `step`, `approve`, `reject`: operations on a run."""

import click
import msgspec

from daemon.cli.core import resolve
from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen
from storage.errors import Invalid
from storage.records.base import Record

_RUN = click.option(
    "--run",
    "number",
    type=Integer(0),
    default=0,
    metavar="N",
    help="Number of the run [default: the newest].",
)
_NOTE = click.option("--note", default="", help="Reason, stored with the run.")
_TOKEN = click.option(
    "--idempotency-token",
    default="",
    metavar="TEXT",
    help="Apply at most one operation per token.",
)
_JOB = click.argument("job_id", metavar="JOB")
_STEPS = click.argument("steps", metavar="STEP...", nargs=-1, required=True)
_STEP = click.argument("step", metavar="STEP")


class _Act(Record, frozen=True, kw_only=True):
    """The body of an operation."""

    number: int = 0
    steps: list[str] = msgspec.field(default_factory=list)
    failed: bool = False
    every: bool = False
    version: int | None = None
    now: bool = False
    preview: bool = False
    note: str = ""
    idempotency_token: str = ""
    outputs: dict[str, str] = msgspec.field(default_factory=dict)
    element: int | None = None


class _Done(Record, frozen=True, kw_only=True):
    """The run that an operation changes, and the changed steps."""

    job_id: str
    number: int
    steps: list[str]
    outputs_of: int = 0


@click.command()
@_JOB
@_RUN
@click.option("--now", is_flag=True, help="Also skip the clean-up steps.")
@_NOTE
@_TOKEN
@with_output
@with_client
def cancel(
    client: ApiClient,
    screen: Screen,
    job_id: str,
    *,
    number: int,
    now: bool,
    note: str,
    idempotency_token: str,
) -> None:
    """Cancel the newest run of JOB.

    The tasks of the run are stopped. Steps with `steward_when = "always"` still run when their
    needs have ended.

    Example: steward runs cancel -note "wrong input" nightly
    """
    done = _send(
        client,
        screen,
        job_id,
        "cancel",
        _Act(number=number, now=now, note=note, idempotency_token=idempotency_token),
    )
    _report_act(screen, done, "is canceled")


@click.command()
@_JOB
@_STEPS
@_RUN
@_NOTE
@_TOKEN
@with_output
@with_client
def skip(
    client: ApiClient,
    screen: Screen,
    job_id: str,
    steps: tuple[str, ...],
    *,
    number: int,
    note: str,
    idempotency_token: str,
) -> None:
    """Skip each STEP of JOB, if none of them has begun.

    The outcome of a skipped step is neutral: it neither succeeds nor fails.

    Example: steward runs skip nightly report
    """
    act = _Act(number=number, steps=[*steps], note=note, idempotency_token=idempotency_token)
    _report_act(screen, _send(client, screen, job_id, "skip", act), "skips")


@click.command()
@_JOB
@_STEPS
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Output of STEP for later steps; can be repeated.",
)
@click.option(
    "--index",
    type=Integer(0),
    metavar="N",
    help="Element that has the outputs, if STEP has several elements.",
)
@_RUN
@_NOTE
@_TOKEN
@with_output
@with_client
def accept(
    client: ApiClient,
    screen: Screen,
    job_id: str,
    steps: tuple[str, ...],
    *,
    outputs: tuple[str, ...],
    index: int | None,
    number: int,
    note: str,
    idempotency_token: str,
) -> None:
    """Accept each failed or canceled STEP of JOB as good.

    Steps that were skipped because of STEP wait again, and the run continues. --output adds an
    output to STEP; with this option, pass only one STEP.

    Example: steward runs accept -output rows=12 -note "loaded by hand" nightly load
    """
    act = _Act(
        number=number,
        steps=[*steps],
        note=note,
        idempotency_token=idempotency_token,
        outputs=_outputs(outputs),
        element=index,
    )
    _report_act(screen, _send(client, screen, job_id, "accept", act), "changes")


@click.command()
@_JOB
@click.argument("steps", metavar="[STEP]...", nargs=-1)
@click.option("--failed", is_flag=True, help="All steps that failed or were canceled.")
@click.option("--all", "all_steps", is_flag=True, help="All steps.")
@click.option(
    "--version",
    type=Integer(0),
    metavar="N",
    help="Start a new run with this version of the job (for a child: of its parent).",
)
@click.option("--preview", is_flag=True, help="Change nothing; list the steps that would run.")
@_RUN
@_NOTE
@_TOKEN
@with_output
@with_client
def rerun(
    client: ApiClient,
    screen: Screen,
    job_id: str,
    steps: tuple[str, ...],
    *,
    failed: bool,
    all_steps: bool,
    version: int | None,
    preview: bool,
    number: int,
    note: str,
    idempotency_token: str,
) -> None:
    """Rerun ended steps of JOB, and all steps that come after them.

    Without STEP, --failed applies. A step that failed keeps its good elements. With --version, a
    new run begins, which takes over the results of the other steps.

    Example: steward runs rerun -preview nightly load
    """
    if (failed or all_steps) and steps:
        raise Invalid("--failed and --all select the steps: do not combine them with STEP")
    act = _Act(
        number=number,
        steps=[*steps],
        failed=failed or not (all_steps or steps),
        every=all_steps,
        version=version,
        preview=preview,
        note=note,
        idempotency_token=idempotency_token,
    )
    done = _send(client, screen, job_id, "rerun", act)
    _report_act(screen, done, "would run again" if preview else "runs again")


@click.command()
@_JOB
@_STEP
@_RUN
@_NOTE
@_TOKEN
@with_output
@with_client
def approve(
    client: ApiClient,
    screen: Screen,
    job_id: str,
    step: str,
    *,
    number: int,
    note: str,
    idempotency_token: str,
) -> None:
    """Approve STEP of JOB, which is held at its gate.

    Example: steward runs approve nightly publish
    """
    act = _Act(number=number, steps=[step], note=note, idempotency_token=idempotency_token)
    _report_act(screen, _send(client, screen, job_id, "approve", act), "has an approval for")


@click.command()
@_JOB
@_STEP
@_RUN
@_NOTE
@_TOKEN
@with_output
@with_client
def reject(
    client: ApiClient,
    screen: Screen,
    job_id: str,
    step: str,
    *,
    number: int,
    note: str,
    idempotency_token: str,
) -> None:
    """Reject STEP of JOB, which is held at its gate. The outcome of the step is bad.

    Example: steward runs reject -note "figures are wrong" nightly publish
    """
    act = _Act(number=number, steps=[step], note=note, idempotency_token=idempotency_token)
    _report_act(screen, _send(client, screen, job_id, "reject", act), "rejects")


@click.command()
@_JOB
@_STEP
@click.option("--index", type=Integer(0), metavar="N", help="Run only this element of STEP.")
@click.option(
    "--run",
    "number",
    type=Integer(1),
    metavar="N",
    help="Run with the outputs of the other steps [default: the newest that has them].",
)
@_NOTE
@_TOKEN
@with_output
@with_client
def step(
    client: ApiClient,
    screen: Screen,
    job_id: str,
    step: str,
    *,
    index: int | None,
    number: int | None,
    note: str,
    idempotency_token: str,
) -> None:
    """Begin a new run of JOB, in which only STEP runs.

    All other steps are skipped. Their outputs are copied from an earlier run. The newest run must
    have ended.

    Example: steward runs step -index 3 nightly load
    """
    act = _Act(
        number=number or 0,
        steps=[step],
        note=note,
        idempotency_token=idempotency_token,
        element=index,
    )
    done = _send(client, screen, job_id, "step", act)
    element = "" if index is None else f"[{index}]"
    if done is not None:
        screen.line(
            f"run {done.number} of {done.job_id} runs only {step}{element}, with the outputs of "
            f"run {done.outputs_of}"
        )


def _outputs(items: tuple[str, ...]) -> dict[str, str]:
    """Return the outputs in the options of a command. Raises `Invalid`."""
    values = dict[str, str]()
    for argument in items:
        name, equals, text = argument.partition("=")
        if not equals:
            raise Invalid(f"-output {argument!r} is not of the form NAME=VALUE")
        if name in values:
            raise Invalid(f"-output names {name!r} twice; name it once")
        values[name] = text
    return values


def _send(client: ApiClient, screen: Screen, job_id: str, act: str, body: _Act) -> _Done | None:
    """Carry out an operation. Return its result, or print it as a document and return None."""
    line = resolve.job(client, job_id)
    path = f"/v1/job/{segment(line.id)}/run/{act}"
    answer = client.send("POST", path, msgspec.to_builtins(body), namespace=line.namespace)
    if screen.wants_document:
        screen.document(answer.checked(_Done))
        return None
    return answer.decode(_Done)


def _report_act(screen: Screen, done: _Done | None, outcome: str) -> None:
    if done is not None:
        steps = f": {', '.join(done.steps)}" if done.steps else ""
        screen.line(f"run {done.number} of {done.job_id} {outcome}{steps}")
