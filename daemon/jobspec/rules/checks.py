"""Validation of service checks. As in Nomad, only the first error of a check is reported."""

import re
from collections.abc import Iterator

from daemon.text.go_format import duration, join_errors, quote
from storage.records.base import SECOND
from storage.records.task import Check, CheckRestart

MIN_INTERVAL = SECOND
MIN_TIMEOUT = SECOND
MAX_NOTES = 255

_NATIVE_TYPES = ("tcp", "http")
_OURS = ("script", "grpc")
_CONSUL_TYPES = ("grpc", "tcp", "http", "script")
_WITH_PORT = frozenset({"grpc", "http", "tcp"})
_STATUSES = ("passing", "warning", "critical")
_ADDRESS_MODES = frozenset({"", "host", "driver", "alloc", "alloc_ipv6"})
ON_UPDATE = ("require_healthy", "ignore_warnings", "ignore")
_METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE"}
)

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.\-]*:")
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def needs_port(check: Check) -> bool:
    """Return whether a check probes a port."""
    return check.type in _WITH_PORT


def native_fault(check: Check) -> str | None:
    """Return the first error of a check of a service with the provider `nomad`."""
    return next(_native(check), None)


def consul_fault(check: Check) -> str | None:
    """Return the first error of a check of a service with the provider `consul`."""
    return next(_consul(check), None)


def _native(check: Check) -> Iterator[str]:
    # Stricter than Nomad, whose text stays unchanged because tools match it.
    yield from _common(check, (check.type,) if check.type in _OURS else _NATIVE_TYPES)
    if check.expose:
        yield "expose may only be set for Consul service checks"
    if check.on_update == "ignore_warnings":
        yield "on_update may only be set to ignore_warnings for Consul service checks"
    if check.check_restart and check.check_restart.ignore_warnings:
        yield "ignore_warnings on check_restart only supported for Consul service checks"
    if check.address_mode == "driver":
        yield "address_mode = driver may only be set for Consul service checks"
    if check.type == "http" and check.method and check.method not in _METHODS:
        methods = ", ".join(sorted(filter(None, _METHODS)))
        yield (
            f"method type {quote(check.method)} not supported in Nomad http check, must be one of "
            f"{methods}"
        )
    if check.failures_before_warning:
        yield "failures_before_warning may only be set for Consul service checks"


def _consul(check: Check) -> Iterator[str]:
    yield from _common(check, _CONSUL_TYPES)
    if check.expose and check.type.lower() not in ("grpc", "http"):
        yield "expose may only be set on HTTP or gRPC checks"
    for name, value in _thresholds(check):
        if value and check.type not in _WITH_PORT:
            yield f"{name} not supported for check of type {quote(check.type)}"
    if len(check.notes.encode()) > MAX_NOTES:
        yield f"notes must not be longer than {MAX_NOTES} characters"


def _thresholds(check: Check) -> Iterator[tuple[str, int]]:
    yield "success_before_passing", check.success_before_passing
    yield "failures_before_critical", check.failures_before_critical
    yield "failures_before_warning", check.failures_before_warning


# --- both providers ---


def _common(check: Check, types: tuple[str, ...]) -> Iterator[str]:
    kind = check.type.lower()
    if kind not in types:
        yield f"invalid check type ({quote(kind)}), must be one of {', '.join(types)}"
    if kind == "http":
        yield from _path(check.path)
    if kind == "script" and not check.command:
        yield "script type must have a valid script path"
    yield from _times(check)
    if check.initial_status and check.initial_status not in _STATUSES:
        statuses = ", ".join(quote(status) for status in _STATUSES)
        yield f"invalid initial check state ({check.initial_status}), must be one of {statuses} or empty"
    yield from _modes(check)
    yield from _restart(check)


def _path(path: str) -> Iterator[str]:
    if not path:
        yield "http type must have http path"
    if _CONTROL.search(path) or not _is_url(path):
        yield "http type must have valid http path"
    if _SCHEME.match(path):
        yield "http type must have relative http path"


def _is_url(text: str) -> bool:
    """Return whether a string is a valid URL, absolute or relative."""
    path = text.partition("#")[0].partition("?")[0]
    if _BAD_ESCAPE.search(path) or path.startswith(":"):
        return False
    scheme = _SCHEME.match(path)
    # A colon in the first part of a relative path would look like a scheme.
    return bool(scheme) or ":" not in path.partition("/")[0]


def _times(check: Check) -> Iterator[str]:
    least = duration(MIN_INTERVAL)
    if check.interval == 0:
        yield f"missing required value interval. Interval cannot be less than {least}"
    elif check.interval < MIN_INTERVAL:
        yield f"interval ({duration(check.interval)}) cannot be lower than {least}"
    if check.timeout == 0:
        yield f"missing required value timeout. Timeout cannot be less than {least}"
    elif check.timeout < MIN_TIMEOUT:
        timeout = duration(check.timeout)
        yield f"timeout ({timeout}) is lower than required minimum timeout {least}"


def _modes(check: Check) -> Iterator[str]:
    if check.address_mode == "auto":
        yield 'invalid address_mode "auto" - auto only valid for services'
    elif check.address_mode not in _ADDRESS_MODES:
        modes = ", ".join(sorted(filter(None, _ADDRESS_MODES)))
        yield f"invalid address_mode {quote(check.address_mode)}, must be one of {modes}"
    if check.on_update and check.on_update not in ON_UPDATE:
        healthy, warnings, ignore = (quote(value) for value in ON_UPDATE)
        mode = quote(check.on_update)
        yield f"on_update must be {healthy}, {warnings}, or {ignore}; got {mode}"


def _restart(check: Check) -> Iterator[str]:
    policy, on_update = check.check_restart, quote(check.on_update)
    if policy is None:
        return
    if check.on_update == "ignore":
        yield f"on_update value {on_update} is not compatible with check_restart"
    if check.on_update == "ignore_warnings" and not policy.ignore_warnings:
        yield (
            f"on_update value {on_update} not supported with check_restart ignore_warnings "
            f'value "false"'
        )
    yield from join_errors(_restart_limits(policy))


def _restart_limits(policy: CheckRestart) -> Iterator[str]:
    if policy.limit < 0:
        yield f"limit must be greater than or equal to 0 but found {policy.limit}"
    if policy.grace is not None and policy.grace < 0:
        yield f"grace period must be greater than or equal to 0 but found {policy.grace}"
