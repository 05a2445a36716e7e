"""Checks of services: asked again and again while the service is registered.

What they found last is known here only, and feeds the allocation's health; a daemon that begins
anew asks anew. A check never waits for longer than its timeout and keeps only the first bytes of an
answer, so an endpoint that hangs or never ends disturbs nobody. Where a service answers is the word
of whoever submits its job: what nobody may reach through the daemon no check asks either, and none
follows where an answer leads.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from urllib.parse import quote

import msgspec
import trio

from daemon.reach import Forbidden
from daemon.runner import http
from daemon.runner.drivers.driver import StartFailed
from daemon.runner.scripts import End
from daemon.runner.services import Probe
from storage.errors import NotFound, Refused
from storage.records.base import SECOND
from storage.records.service import CheckResult, CheckStatus
from storage.records.task import Check

_MOST = 3072  # bytes of an answer that are shown
_FAILED = 400  # from this status on a page is not well
_READINESS = "ignore"  # on_update: the check says nothing about the allocation's health
_AS_IT_IS = "/?&=%:@!$'()*+,;~"  # in a path; all else that no address may hold is written as %XX
_INITIAL = {"passing": CheckStatus.SUCCESS, "critical": CheckStatus.FAILURE}
_GRACE = SECOND  # after a start, if a check says no other

Restart = Callable[[str, str], None]  # a task, or all of the group, and why
Run = Callable[[str, Sequence[str]], Awaitable[End]]  # a task, and a command to run inside


class Checks:
    """The checks of one allocation. `changed` is called when one finds something else than before."""

    def __init__(
        self,
        name: str,
        now: Callable[[], int],
        changed: Callable[[], None],
        restart: Restart,
        run: Run,
        permit: http.Permit,
    ) -> None:
        self._run, self._permit = run, permit
        self._name, self._now, self._changed, self._restart = name, now, changed, restart
        self._found: dict[str, CheckResult] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._since = 0  # nanoseconds: when the picture as a whole changed last

    @property
    def results(self) -> list[CheckResult]:
        """Return what each found last."""
        return list(self._found.values())

    def healthy_since(self, probes: Iterable[Probe]) -> int | None:
        """Return since when all of these that count have passed; None while one has not."""
        counted = [probe.id for probe in probes if probe.check.on_update != _READINESS]
        found = [self._found.get(one) for one in counted]
        if any(one is None or one.status != CheckStatus.SUCCESS for one in found):
            return None
        return self._since

    def ready(self, probes: Iterable[Probe]) -> bool | None:
        """Tell whether all of these pass; None: no one fails, but not all have been asked."""
        found = [self._found.get(probe.id) for probe in probes]
        statuses = {one.status if one else CheckStatus.PENDING for one in found}
        if CheckStatus.FAILURE in statuses:
            return False
        return None if CheckStatus.PENDING in statuses else True

    def follow(self, probes: Iterable[Probe], nursery: trio.Nursery) -> None:
        """Make exactly these checks from now on."""
        wanted = {probe.id: probe for probe in probes}
        for gone in self._scopes.keys() - wanted.keys():
            self._scopes.pop(gone).cancel()
            del self._found[gone]
            self._since = self._now()
        for probe in wanted.values():
            if probe.id not in self._scopes:
                self._begin(probe, nursery)

    def _begin(self, probe: Probe, nursery: trio.Nursery) -> None:
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

    async def _repeat(self, probe: Probe, scope: trio.CancelScope) -> None:
        began, failures, in_a_row = self._now(), 0, 0
        last = CheckStatus.PENDING
        with scope:
            while True:
                with trio.move_on_after(probe.check.timeout / SECOND) as time:
                    status, code, output = await ask(probe, self._run, self._permit)
                if time.cancelled_caught:
                    status, code, output = CheckStatus.FAILURE, 0, "nomad: no answer in time"
                in_a_row = in_a_row + 1 if status == last else 1
                last = status
                counts = in_a_row >= _threshold(probe.check, status)
                self._note(probe, status if counts else None, code, output)
                failures = failures + 1 if counts and status == CheckStatus.FAILURE else 0
                if self._is_enough(probe, failures, began):
                    began, failures = self._now(), 0
                    self._restart(probe.task, f'healthcheck: check "{probe.check.name}" unhealthy')
                await trio.sleep(probe.check.interval / SECOND)

    def _is_enough(self, probe: Probe, failures: int, began: int) -> bool:
        rule = probe.check.check_restart
        if rule is None or not rule.limit:
            return False
        grace = _GRACE if rule.grace is None else rule.grace
        return failures >= rule.limit and self._now() >= began + grace

    def _note(self, probe: Probe, found: CheckStatus | None, code: int, output: str) -> None:
        """Keep what was found; None: not often enough to count."""
        before = self._found[probe.id]
        status = found or before.status
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
    """Return how often the same must be found in a row until it counts."""
    if status == CheckStatus.SUCCESS:
        return check.success_before_passing
    return check.failures_before_critical


async def ask(probe: Probe, run: Run, permit: http.Permit) -> tuple[CheckStatus, int, str]:
    """Make a check once; return what it found, the status of a page, and words for people."""
    try:
        match probe.check.type:
            case "http":
                return await _ask_http(probe, permit)
            case "script":
                return await _ask_script(probe, run)
            case "grpc":
                return await _ask_grpc(probe, permit)
        return await _ask_tcp(probe, permit)
    except (http.HTTPFailed, Forbidden) as error:
        return CheckStatus.FAILURE, 0, f"nomad: {error}"[:_MOST]


async def _ask_script(probe: Probe, run: Run) -> tuple[CheckStatus, int, str]:
    try:
        end = await run(probe.task, [probe.check.command, *(probe.check.args or ())])
    except (Refused, NotFound, StartFailed) as error:
        return CheckStatus.FAILURE, 0, f"nomad: {error}"
    status = CheckStatus.FAILURE if end.code else CheckStatus.SUCCESS
    return status, end.code, end.said[:_MOST]


async def _ask_tcp(probe: Probe, permit: http.Permit) -> tuple[CheckStatus, int, str]:
    stream = await http.connect(probe.address, probe.port, tls=False, permit=permit)
    with trio.CancelScope(shield=True):
        await trio.aclose_forcefully(stream)
    return CheckStatus.SUCCESS, 0, "nomad: tcp ok"


async def _ask_grpc(probe: Probe, permit: http.Permit) -> tuple[CheckStatus, int, str]:
    from daemon.runner.grpc import SERVING, ask_health  # few checks are of this kind

    check = probe.check
    found = await ask_health(
        probe.address,
        probe.port,
        check.grpc_service,
        tls=check.grpc_use_tls,
        verify=not check.tls_skip_verify,
        known_as=check.tls_server_name,
        permit=permit,
    )
    status = CheckStatus.SUCCESS if found == SERVING else CheckStatus.FAILURE
    return status, 0, f"nomad: grpc {found}"


async def _ask_http(probe: Probe, permit: http.Permit) -> tuple[CheckStatus, int, str]:
    check = probe.check
    host = f"[{probe.address}]" if ":" in probe.address else probe.address
    path = quote(check.path.removeprefix("/"), _AS_IT_IS)
    url = f"{check.protocol or 'http'}://{host}:{probe.port}/{path}"
    given = check.header or {}
    headers = [(name, value) for name, values in given.items() for value in values or ()]
    question = http.ask(
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
        async for piece in answer.body:
            text += piece
            if len(text) >= _MOST:
                break
        return CheckStatus.FAILURE, answer.status, text[:_MOST].decode(errors="replace")
