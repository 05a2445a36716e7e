"""The slowest request of each write route, for `bench/stall.py` and the tests of stalls."""

import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from bench.expensive_requests import WIDE, Asked
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.ui.routes import PAGES
from daemon.web.request import Operation, WebSocketRoute, WriteRoute

BUSY = "busy"  # a job with many running allocations
LARGE = "large"  # a job with the maximum number of groups
FEW = "few"  # a parameterized job
MANY_GROUPS, MANY = 2000, 5000
_TASK = {
    "Name": "t",
    "Driver": "raw_exec",
    "Config": {"command": "/bin/true"},
    "Resources": {"CPU": 1, "MemoryMB": 10},
}
_PAYLOAD = b64encode(bytes(12 * 1024)).decode()
_ITEMS = {f"k{number}": "v" * 100 for number in range(300)}
_RULES = "\n".join(f'namespace "n{number}" {{ policy = "read" }}' for number in range(1000))
_PATHS = "\n".join(f'path "p/{number}" {{ capabilities = ["read"] }}' for number in range(1000))
_HCL = "".join(
    f'group "g{number}" {{\n task "t" {{\n driver = "raw_exec"\n config {{ command = "/bin/true" }}\n }}\n}}\n'
    for number in range(MANY_GROUPS)
)
_MANY_NAMES = [f"name-{number}" for number in range(5000)]


def job(job_id: str, groups: int = 1, count: int = 1, **fields: object) -> dict[str, Any]:
    """Return a job that requests few resources."""
    task_groups = [
        {"Name": f"g{number}", "Count": count, "Tasks": [_TASK]} for number in range(groups)
    ]
    return {"ID": job_id, "Type": "service", "TaskGroups": task_groups, **fields}


def _jobs(job_id: str) -> tuple[dict[str, Any], ...]:
    """Return jobs that are large in different ways."""
    conditions = [
        {"LTarget": "${attr.kernel.name}", "RTarget": f"x{n}", "Operand": "!="} for n in range(9000)
    ]
    checks = [
        {"Name": f"c{n}", "Type": "tcp", "Interval": 10**10, "Timeout": 10**9} for n in range(10)
    ]
    services = [{"Name": f"s{n}", "PortLabel": "p", "Checks": checks} for n in range(400)]
    return (
        job(job_id, MANY_GROUPS),
        job(job_id, count=MANY),
        job(job_id, Constraints=conditions),
        job(job_id, Meta={f"k{n}": "v" * 50 for n in range(20_000)}),
        {**job(job_id), "TaskGroups": [{"Name": "g", "Tasks": [_TASK], "Services": services}]},
        {
            **job(job_id),
            "TaskGroups": [
                {"Name": "g", "Tasks": [{**_TASK, "Name": f"t{n}"} for n in range(MANY)]}
            ],
        },
        job(
            job_id,
            Periodic={"Specs": [f"{n % 60} * 29 2 *" for n in range(100)], "Enabled": True},
            Type="batch",
        ),
    )


_ROLE = {"Name": "many", "Policies": [{"Name": "many-1"}] * 1000}
_TOKEN_ROLE = {"allowed_policies": _MANY_NAMES}
_ENTITY = {"policies": _MANY_NAMES, "metadata": dict.fromkeys(_MANY_NAMES[:60], "v")}
_GROUP = {"policies": _MANY_NAMES, "type": "internal"}
_LOGIN = {"role": "many-1", "jwt": "a." * 20_000 + "b"}


def _signed(size: int) -> Mapping[str, object]:
    """Return a login request with an unsigned token that has a claim of this many bytes."""
    now = int(time.time())
    parts = (
        {"alg": "RS256", "typ": "JWT", "kid": "k"},
        {"exp": now + 3600, "nbf": now - 60, "iat": now - 60, "aud": "api://many", "x": "v" * size},
        {"s": "0" * 250},
    )
    texts = (urlsafe_b64encode(msgspec.json.encode(part)).rstrip(b"=").decode() for part in parts)
    return {"role": "many-1", "jwt": ".".join(texts)}


_LOGINS = [({}, login) for login in (_LOGIN, _signed(100), _signed(4000), _signed(500_000))]

# Queries and bodies by method and path. Other routes receive only hostile bodies.
BODIES: Mapping[str, Sequence[tuple[Mapping[str, object], object]]] = {
    "POST /v1/jobs": [({}, {"Job": job}) for job in _jobs(LARGE)],
    "POST /v1/job/{job_id}": [({}, {"Job": body}) for body in (job(WIDE, count=MANY), job(BUSY))],
    "POST /v1/validate/job": [({}, {"Job": job}) for job in _jobs(LARGE)],
    "POST /v1/job/{job_id}/plan": [
        ({}, {"Job": job, "Diff": True})
        for job in (*_jobs(LARGE), job(WIDE, MANY_GROUPS), job(BUSY))
    ],
    "POST /v1/jobs/parse": [
        ({}, {"JobHCL": f'job "x" {{\n{_HCL}\n}}', "Canonicalize": True}),
        ({}, {"JobHCL": f'job "x" {{ meta {{ a = {"(" * 5000}1{")" * 5000} }} }}'}),
    ],
    "DELETE /v1/job/{job_id}": [
        ({"purge": "true"}, None),
        ({}, None),
        ({"no_shutdown_delay": "true"}, None),
    ],
    "POST /v1/job/{job_id}/evaluate": [({}, {"EvalOptions": {"ForceReschedule": True}})],
    "POST /v1/job/{job_id}/dispatch": [({}, {"Payload": _PAYLOAD, "Meta": {}})],
    "POST /v1/job/{job_id}/dispatch/payload": [({}, bytes(12 * 1024))],
    "POST /v1/job/{job_id}/dispatch/bulk": [
        ({}, msgspec.json.encode({"Payload": _PAYLOAD}) + b"\n"),
        ({}, b'{"Meta": {}}\n' * 2000),
        ({"idempotency_token": "t"}, b"x\n" * 10_000),
    ],
    "POST /v1/job/{job_id}/scale": [({}, {"Count": MANY, "Target": {"Group": "web"}})],
    "POST /v1/job/{job_id}/revert": [({}, {"JobID": BUSY, "JobVersion": 0})],
    "POST /v1/job/{job_id}/stable": [({}, {"JobID": BUSY, "JobVersion": 0, "Stable": True})],
    "POST /v1/job/{job_id}/versions/{name}/tag": [({}, {"Version": 0, "Description": "d"})],
    "POST /v1/job/{job_id}/periodic/force": [({}, {})],
    "DELETE /v1/evaluations": [
        ({"filter": 'Status == "complete"'}, {}),
        ({}, {"EvalIDs": _MANY_NAMES}),
    ],
    "POST /v1/deployment/allocation-health/{deployment_id}": [
        ({}, {"HealthyAllocationIDs": _MANY_NAMES})
    ],
    "POST /v1/node/{node_id}/drain": [
        ({}, {"DrainSpec": {"Deadline": -1}}),
        ({}, {"DrainSpec": {"Deadline": 10**12}}),
    ],
    "POST /v1/node/{node_id}/eligibility": [({}, {"Eligibility": "ineligible"})],
    "POST /v1/node/{node_id}/evaluate": [({}, {})],
    "POST /v1/node/{node_id}/purge": [({}, {})],
    "POST /v1/node/pools": [({}, {"Name": "p", "Meta": dict.fromkeys(_MANY_NAMES, "v")})],
    "POST /v1/node/pool/{name}": [
        ({}, {"Name": "many-1", "Meta": dict.fromkeys(_MANY_NAMES, "v")})
    ],
    "POST /v1/client/identity/renew": [({}, {})],
    "POST /v1/client/metadata": [({}, {"Meta": dict.fromkeys(_MANY_NAMES, "v")})],
    "POST /v1/system/gc": [({}, {})],
    "POST /v1/system/reconcile/summaries": [({}, {})],
    "POST /v1/var/{path}": [({}, {"Items": _ITEMS}), ({"lock-acquire": ""}, {"Items": _ITEMS})],
    "DELETE /v1/var/{path}": [({}, None)],
    "POST /v1/acl/token": [({}, {"Name": "n", "Type": "client", "Policies": _MANY_NAMES})],
    "POST /v1/acl/policy/{name}": [({}, {"Name": "many-1", "Rules": _RULES})],
    "DELETE /v1/acl/policy/{name}": [({}, None)],
    "POST /v1/acl/explain": [({}, {"Method": "GET", "Path": "/v1/jobs"})],
    "POST /v1/acl/role": [({}, _ROLE)],
    "POST /v1/acl/role/{role_id}": [({}, _ROLE)],
    "POST /v1/namespace": [({}, {"Name": "n", "Meta": dict.fromkeys(_MANY_NAMES, "v")})],
    "POST /v1/namespace/{name}": [
        ({}, {"Name": "many-1", "Meta": dict.fromkeys(_MANY_NAMES, "v")})
    ],
    "POST /v1/sys/policies/acl/{policy}": [({}, {"policy": _PATHS})],
    "POST /v1/sys/policy/{policy}": [({}, {"policy": _PATHS})],
    "POST /v1/sys/capabilities-self": [({}, {"paths": _MANY_NAMES})],
    "POST /v1/sys/capabilities": [({}, {"paths": _MANY_NAMES, "token": "x"})],
    "POST /v1/sys/wrapping/wrap": [({}, {"x": "v" * 100_000})],
    "POST /v1/auth/token/create": [({}, {"policies": _MANY_NAMES})],
    "POST /v1/auth/token/create-orphan": [({}, {"policies": _MANY_NAMES})],
    "POST /v1/auth/token/create/{name}": [({}, {"policies": _MANY_NAMES})],
    "POST /v1/auth/token/tidy": [({}, {})],
    "POST /v1/auth/token/roles/{name}": [({}, _TOKEN_ROLE)],
    "POST /v1/sys/leases/revoke-prefix/{prefix}": [({}, {})],
    "POST /v1/sys/leases/tidy": [({}, {})],
    "DELETE /v1/sys/auth/{path}": [({}, None)],
    "POST /v1/sys/remount": [({}, {"from": "auth/many", "to": "auth/other"})],
    "POST /v1/auth/{mount}/login": _LOGINS,
    "POST /v1/auth/{mount}/explain": _LOGINS,
    "POST /v1/auth/{mount}/role/{name}": [({}, {"bound_group_ids": _MANY_NAMES})],
    "POST /v1/identity/entity": [({}, _ENTITY)],
    "POST /v1/identity/entity/id/{entity}": [({}, _ENTITY)],
    "POST /v1/identity/entity/name/{entity}": [({}, _ENTITY)],
    "POST /v1/identity/group": [({}, _GROUP)],
    "POST /v1/identity/group/id/{group}": [({}, _GROUP)],
    "POST /v1/identity/lookup/entity": [({}, {"name": "entity-1"})],
}
FORMS: Mapping[str, Mapping[str, object]] = {
    "POST /ui/plan": {"source": f'job "x" {{\n{_HCL}\n}}'},
    "POST /ui/run": {"source": f'job "x" {{\n{_HCL}\n}}'},
    "POST /ui/job/{job_id}/stop": {"purge": "on"},
    "POST /ui/job/{job_id}/scale": {"group": "web", "count": MANY},
    "POST /ui/job/{job_id}/dispatch": {"payload": "x" * 12_000},
    "POST /ui/policies": {"name": "many", "rules": _RULES},
    "POST /ui/node/{node_id}/drain": {"enable": "on"},
    "POST /ui/variables": {
        "path": "x",
        **{f"name.{n}": f"k{n}" for n in range(90)},
        **{f"value.{n}": "v" * 100 for n in range(90)},
    },
}


def hostile(size: int) -> tuple[bytes, ...]:
    """Return bodies of this size in bytes that take long to parse."""
    return (
        b'{"x":[' + b"0," * (size // 2) + b"0]}",
        b"[" * size,
        b'{"x":' * (size // 5),
        b'{"' + b"x" * size + b'":1}',
        b"{" + b",".join(b'"%d":{}' % n for n in range(size // 10)) + b"}",
        b'{"x":"' + b"\\n" * (size // 8) + b'","y":[' + b"1.5e300," * (size // 16) + b"0]}",
    )


def writes(size: int) -> Iterator[Asked]:
    """Yield the requests to the write routes; hostile bodies have this size in bytes."""
    bodies = hostile(size)
    for row, method, path in _routes():
        for query, body in BODIES.get(row, ()):
            yield Asked(row, method, path, query, body)
            if "{job_id}" in path:
                for name in (WIDE, BUSY, FEW):
                    yield Asked(row, method, path.replace("{job_id}", name), query, body)
        if row in FORMS:
            yield Asked(row, method, path, {}, urlencode(FORMS[row]).encode())
            if "{job_id}" in path:
                yield Asked(
                    row, method, path.replace("{job_id}", BUSY), {}, urlencode(FORMS[row]).encode()
                )
        if method == "POST":
            for body in bodies:
                yield Asked(row, method, path, {}, body)
        elif row not in BODIES:
            yield Asked(row, method, path)


def _routes() -> Iterator[tuple[str, str, str]]:
    for route in ROUTES:
        if isinstance(route, WriteRoute):
            yield f"{route.method} {route.path}", route.method, route.path
        elif isinstance(route, WebSocketRoute):
            yield f"TALK {route.path}", "GET", route.path
    for endpoint in ENDPOINTS:
        for operation, method in ((Operation.WRITE, "POST"), (Operation.DELETE, "DELETE")):
            if endpoint.handler(operation):
                yield f"{method} {endpoint.path}", method, endpoint.path
    for page in PAGES:
        if page.method != "GET":
            yield f"{page.method} {page.path}", page.method, page.path


def rows() -> set[str]:
    """Return the method and path of every write route."""
    return {row for row, _, _ in _routes()}
