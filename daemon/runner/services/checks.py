"""Run service checks periodically while their service is registered.

Results are stored in memory only and determine the health of the allocation. A new daemon repeats
all checks. A check has a timeout and reads a limited number of bytes. An endpoint that hangs or
answers endlessly therefore does no harm. The job's author chooses the address of a service. Checks
therefore obey the egress policy of the daemon and follow no redirects.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from urllib.parse import quote

import msgspec
import trio

from daemon.fences import Fences
from daemon.net import http_client
from daemon.net.egress_policy import EgressDenied
from daemon.runner.core.driver import StartFailed
from daemon.runner.core.task_script import ScriptResult
from daemon.runner.services.registrations import CheckTarget
from storage.errors import NotFound, Refused
from storage.records.base import SECOND
from storage.records.service import CheckResult, CheckStatus
from storage.records.task import Check

_FENCED = "check"
_MOST = 3072  # bytes of an answer that are shown
_FAILED = 400  # this HTTP status and all higher ones are failures
_READINESS = "ignore"  # with on_update = ignore, a check does not affect the allocation's health
# Characters that stay unchanged in a path; other invalid characters are percent-encoded.
_AS_IT_IS = "/?&=%:@!$'()*+,;~"
_INITIAL = {"passing": CheckStatus.SUCCESS, "critical": CheckStatus.FAILURE}
_GRACE = SECOND  # default grace period after a start

# Arguments: a task name, or empty for the group, and the reason.
Restart = Callable[[str, str], None]
Run = Callable[
    [str, Sequence[str]], Awaitable[ScriptResult]
]  # arguments: a task name and a command


class CheckRunner:
    """The checks of one allocation. `changed` is called when a result changes."""

    def __init__(
        self,
        name: str,
        now: Callable[[], int],
        changed: Callable[[], None],
        restart: Restart,
        run: Run,
        permit: http_client.Permit,
        fences: Fences | None = None,
    ) -> None:
        self._fences = fences
        self._run, self._permit = run, permit
        self._name, self._now, self._changed, self._restart = name, now, changed, restart
        self._found: dict[str, CheckResult] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._since = 0  # nanoseconds: time of the last change of any result

    @property
    def results(self) -> list[CheckResult]:
        """Return the latest result of each check."""
        return list(self._found.values())

    def healthy_since(self, probes: Iterable[CheckTarget]) -> int | None:
        """Return the time since which all checks have passed; None if a check has not passed.

        Checks with `on_update = ignore` do not count. The time is in nanoseconds.
        """
        counted = [probe.id for probe in probes if probe.check.on_update != _READINESS]
        results = [self._found.get(probe_id) for probe_id in counted]
        if any(result is None or result.status != CheckStatus.SUCCESS for result in results):
            return None
        return self._since

    def failing(self, probes: Iterable[CheckTarget]) -> list[CheckResult]:
        """Return the last results of the checks that have not passed.

        Checks with `on_update = ignore` do not count.
        """
        counted = [probe.id for probe in probes if probe.check.on_update != _READINESS]
        results = [self._found[probe_id] for probe_id in counted if probe_id in self._found]
        return [result for result in results if result.status != CheckStatus.SUCCESS]

    def ready(self, probes: Iterable[CheckTarget]) -> bool | None:
        """Return whether all checks pass; None if no check fails but some have no result yet."""
        results = [self._found.get(probe.id) for probe in probes]
        statuses = {result.status if result else CheckStatus.PENDING for result in results}
        if CheckStatus.FAILURE in statuses:
            return False
        return None if CheckStatus.PENDING in statuses else True

    def follow(self, probes: Iterable[CheckTarget], nursery: trio.Nursery) -> None:
        """Run the checks in `probes`, and stop all other running checks."""
        probes_by_id = {probe.id: probe for probe in probes}
        for ended_id in self._scopes.keys() - probes_by_id.keys():
            self._scopes.pop(ended_id).cancel()
            if self._fences:
                self._fences.forget(_FENCED, ended_id)
            del self._found[ended_id]
            self._since = self._now()
        for probe in probes_by_id.values():
            if probe.id not in self._scopes:
                self._begin(probe, nursery)

    def _begin(self, probe: CheckTarget, nursery: trio.Nursery) -> None:
        self._scopes[probe.id] = trio.CancelScope()
        self._since = self._now()
        self._found[probe.id] = CheckResult(
            id=probe.id,
            mode="readiness" if probe.check.on_update == _READINESS else "healthiness",
            status=_INITIAL.get(probe.check.initial_status, CheckStatus.PENDING),
            timestamp=self._now() // SECOND,
            group=self._name,
            task=probe.task,
            service=probe.service,
            check=probe.check.name,
        )
        nursery.start_soon(self._repeat, probe, self._scopes[probe.id])

    async def _repeat(self, probe: CheckTarget, scope: trio.CancelScope) -> None:
        began, failures, in_a_row = self._now(), 0, 0
        last = CheckStatus.PENDING
        with scope:
            while True:
                with trio.move_on_after(probe.check.timeout / SECOND) as time:
                    status, code, output = await self._run_check(probe)
                if time.cancelled_caught:
                    status, code, output = (
                        CheckStatus.FAILURE,
                        0,
                        "nomad: no answer within the timeout of the check",
                    )
                in_a_row = in_a_row + 1 if status == last else 1
                last = status
                counts = in_a_row >= _threshold(probe.check, status)
                self._record_result(probe, status if counts else None, code, output)
                has_failed = counts and status == CheckStatus.FAILURE
                limit = self._failure_limit(probe, began)
                failures = failures + 1 if has_failed and limit else 0
                if limit and failures >= limit:
                    began, failures = self._now(), 0
                    self._restart(probe.task, f'healthcheck: check "{probe.check.name}" unhealthy')
                await trio.sleep(probe.check.interval / SECOND)

    async def _run_check(self, probe: CheckTarget) -> tuple[CheckStatus, int, str]:
        """Run a check. An error of the check counts as a failure and affects nothing else."""
        outcome = CheckStatus.FAILURE, 0, "nomad: the check could not be made"
        with self._fences.around(_FENCED, probe.id) if self._fences else nullcontext():
            outcome = await run_check(probe, self._run, self._permit)
        return outcome  # noqa: RET504  # an error does not change the result

    def _failure_limit(self, probe: CheckTarget, began: int) -> int:
        """Return the number of failures in a row that restart the task.

        0 means that failures do not count: without a limit, or in the grace period since `began`.
        """
        rule = probe.check.check_restart
        if rule is None:
            return 0
        grace = _GRACE if rule.grace is None else rule.grace
        return rule.limit if self._now() >= began + grace else 0

    def _record_result(
        self, probe: CheckTarget, check_status: CheckStatus | None, code: int, output: str
    ) -> None:
        """Record a result of a check.

        `check_status` is None while the threshold for a new status is not reached. The
        result of a check that was removed in the meantime is ignored.
        """
        if (before := self._found.get(probe.id)) is None:
            return
        status = check_status or before.status
        self._found[probe.id] = msgspec.structs.replace(
            before,
            status=status,
            status_code=code,
            output=output,
            timestamp=self._now() // SECOND,
        )
        if before.status != status:
            self._since = self._now()
            self._changed()


def _threshold(check: Check, status: CheckStatus) -> int:
    """Return how many consecutive results with this status are required to set the status."""
    if status == CheckStatus.SUCCESS:
        return check.success_before_passing
    return check.failures_before_critical


async def run_check(
    probe: CheckTarget, run: Run, permit: http_client.Permit
) -> tuple[CheckStatus, int, str]:
    """Run a check once; return its status, the HTTP status code and a message."""
    try:
        match probe.check.type:
            case "http":
                return await _request_http(probe, permit)
            case "script":
                return await _run_script(probe, run)
            case "grpc":
                return await _request_grpc(probe, permit)
        return await _connect_tcp(probe, permit)
    except (http_client.HttpError, EgressDenied) as error:
        return CheckStatus.FAILURE, 0, f"nomad: {error}"[:_MOST]


async def _run_script(probe: CheckTarget, run: Run) -> tuple[CheckStatus, int, str]:
    try:
        end = await run(probe.task, [probe.check.command, *(probe.check.args or ())])
    except (Refused, NotFound, StartFailed) as error:
        return CheckStatus.FAILURE, 0, f"nomad: {error}"
    status = CheckStatus.FAILURE if end.code else CheckStatus.SUCCESS
    return status, end.code, end.said[:_MOST]


async def _connect_tcp(
    probe: CheckTarget, permit: http_client.Permit
) -> tuple[CheckStatus, int, str]:
    stream = await http_client.connect(probe.address, probe.port, tls=False, permit=permit)
    with trio.CancelScope(shield=True):
        await trio.aclose_forcefully(stream)
    return CheckStatus.SUCCESS, 0, "nomad: tcp ok"


async def _request_grpc(
    probe: CheckTarget, permit: http_client.Permit
) -> tuple[CheckStatus, int, str]:
    from daemon.net.grpc_health import (  # imported late, because few checks use gRPC
        SERVING,
        check_health,
    )

    check = probe.check
    serving_status = await check_health(
        probe.address,
        probe.port,
        check.grpc_service,
        tls=check.grpc_use_tls,
        verify=not check.tls_skip_verify,
        known_as=check.tls_server_name,
        permit=permit,
    )
    status = CheckStatus.SUCCESS if serving_status == SERVING else CheckStatus.FAILURE
    return status, 0, f"nomad: grpc {serving_status}"


async def _request_http(
    probe: CheckTarget, permit: http_client.Permit
) -> tuple[CheckStatus, int, str]:
    check = probe.check
    host = f"[{probe.address}]" if ":" in probe.address else probe.address
    path = quote(check.path.removeprefix("/"), _AS_IT_IS)
    url = f"{check.protocol or 'http'}://{host}:{probe.port}/{path}"
    header = check.header or {}
    headers = [(name, value) for name, values in header.items() for value in values or ()]
    question = http_client.send_request(
        url,
        method=check.method or "GET",
        headers=headers,
        body=check.body.encode(),
        verify=not check.tls_skip_verify,
        known_as=check.tls_server_name,
        permit=permit,
    )
    async with question as answer:
        if answer.status < _FAILED:
            return CheckStatus.SUCCESS, answer.status, "nomad: http ok"
        text = b""
        async for chunk in answer.body:
            text += chunk
            if len(text) >= _MOST:
                break
        return CheckStatus.FAILURE, answer.status, text[:_MOST].decode(errors="replace")
