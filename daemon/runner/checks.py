"""Checks of services: asked again and again while the service is registered.

What they found last is known here only, and feeds the allocation's health; a daemon that begins
anew asks anew. A check never waits for longer than its timeout and keeps only the first bytes of an
answer, so an endpoint that hangs or never ends disturbs nobody.
"""

from collections.abc import Callable, Iterable

import msgspec
import trio

from daemon.runner import http
from daemon.runner.services import Probe
from storage.records.base import SECOND
from storage.records.service import CheckResult, CheckStatus

_MOST = 3072  # bytes of an answer that are shown
_FAILED = 400  # from this status on a page is not well
_READINESS = "ignore"  # on_update: the check says nothing about the allocation's health
_INITIAL = {"passing": CheckStatus.SUCCESS, "critical": CheckStatus.FAILURE}
_GRACE = SECOND  # after a start, if a check says no other

Restart = Callable[[str, str], None]  # a task, and why


class Checks:
    """The checks of one allocation. `changed` is called when one finds something else than before."""

    def __init__(
        self,
        name: str,
        now: Callable[[], int],
        changed: Callable[[], None],
        restart: Restart,
    ) -> None:
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
        began, failures = self._now(), 0
        with scope:
            while True:
                with trio.move_on_after(probe.check.timeout / SECOND) as time:
                    status, code, output = await ask(probe)
                if time.cancelled_caught:
                    status, code, output = CheckStatus.FAILURE, 0, "nomad: no answer in time"
                self._note(probe, status, code, output)
                failures = failures + 1 if status == CheckStatus.FAILURE else 0
                if self._is_enough(probe, failures, began):
                    began, failures = self._now(), 0
                    self._restart(probe.task, f'healthcheck: check "{probe.check.name}" unhealthy')
                await trio.sleep(probe.check.interval / SECOND)

    def _is_enough(self, probe: Probe, failures: int, began: int) -> bool:
        rule = probe.check.check_restart
        if rule is None or not rule.limit or not probe.task:
            return False
        grace = _GRACE if rule.grace is None else rule.grace
        return failures >= rule.limit and self._now() >= began + grace

    def _note(self, probe: Probe, status: CheckStatus, code: int, output: str) -> None:
        before = self._found[probe.id]
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


async def ask(probe: Probe) -> tuple[CheckStatus, int, str]:
    """Make a check once; return what it found, the status of a page, and words for people."""
    if probe.check.type == "http":
        return await _ask_http(probe)
    return await _ask_tcp(probe)


async def _ask_tcp(probe: Probe) -> tuple[CheckStatus, int, str]:
    try:
        stream = await trio.open_tcp_stream(probe.address, probe.port)
    except OSError as error:
        return CheckStatus.FAILURE, 0, f"nomad: {http.reason(error)}"
    with trio.CancelScope(shield=True):
        await trio.aclose_forcefully(stream)
    return CheckStatus.SUCCESS, 0, "nomad: tcp ok"


async def _ask_http(probe: Probe) -> tuple[CheckStatus, int, str]:
    check = probe.check
    host = f"[{probe.address}]" if ":" in probe.address else probe.address
    url = f"{check.protocol or 'http'}://{host}:{probe.port}{check.path or '/'}"
    headers = [(name, value) for name, values in (check.header or {}).items() for value in values]
    question = http.ask(
        url,
        method=check.method or "GET",
        headers=headers,
        body=check.body.encode(),
        verify=not check.tls_skip_verify,
    )
    try:
        async with question as answer:
            if answer.status < _FAILED:
                return CheckStatus.SUCCESS, answer.status, "nomad: http ok"
            text = b""
            async for piece in answer.body:
                text += piece
                if len(text) >= _MOST:
                    break
            return CheckStatus.FAILURE, answer.status, text[:_MOST].decode(errors="replace")
    except http.HTTPFailed as error:
        return CheckStatus.FAILURE, 0, f"nomad: {error}"
