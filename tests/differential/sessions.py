"""Random sessions: the requests of one client over some jobs, drawn from a seed.

A session never depends on which server answers: it never refers to a name that a server has chosen.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

SECOND = 10**9  # nanoseconds
# The IDs of the jobs, each with the type that it usually has, because servers refuse nearly every
# change of a type.
TYPES = {"one": "service", "two": "batch", "three": "system", "four": "sysbatch", "five": "batch"}
UNUSUAL = 0.4  # share of jobs with an unusual value
NUMBERS = (0, 1, 2, 3, 50, 100, 101, -1, 2**31, 2**63 - 1)
DURATIONS = (0, 1, SECOND, 30 * SECOND, 3600 * SECOND, -SECOND)
TEXTS = ("", "a", "web", "ä☃", "a b", "a/b", "${meta.none}", "x" * 130)
OPERANDS = ("=", "!=", "<", "regexp", "version", "semver", "is_set", "distinct_hosts", "near", "")
TARGETS = ("${attr.kernel.name}", "${node.class}", "${meta.zone}", "${attr.none}", "kernel", "")
VALUES = ("linux", "class-1", "a", ">= 1", "*", "(", "")
CRON = ("0 0 1 1 *", "@yearly", "* * * *", "0 0 31 2 *", "@every 1000h", "61 * * * *", "")
FILTERS = (
    'Status == "dead"',
    'ID contains "one"',
    "Stop == true",
    'Type in "service"',
    "Nothing == 1",
    "ID ==",
)


class Request(NamedTuple):
    """A request as every server gets it."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: Any = None
    is_write: bool = False  # whether evaluations may follow


def session(seed: int, length: int) -> Iterator[Request]:
    """Yield `length` random requests, which depend only on the seed."""
    chance = random.Random(seed)  # repeatable, not secret
    prefix = f"d{seed}-"
    for _ in range(length):
        yield chance.choice(OPERATIONS)(chance, prefix + chance.choice([*TYPES]))


# ---- operations ----------------------------------------------------------------------------------

Operation = Callable[[random.Random, str], Request]


def _register(chance: random.Random, job_id: str) -> Request:
    body: dict[str, Any] = {"Job": job(chance, job_id)}
    if chance.random() < 0.2:
        body |= {"EnforceIndex": True, "JobModifyIndex": chance.choice((0, 1, 10**6))}
    return Request("POST", chance.choice(("/v1/jobs", f"/v1/job/{job_id}")), {}, body, True)


def _plan(chance: random.Random, job_id: str) -> Request:
    body = {"Job": job(chance, job_id), "Diff": chance.random() < 0.8}
    return Request("POST", f"/v1/job/{job_id}/plan", {}, body)


def _validate(chance: random.Random, job_id: str) -> Request:
    return Request("POST", "/v1/validate/job", {}, {"Job": job(chance, job_id)})


def _read(chance: random.Random, job_id: str) -> Request:
    ends = ("", "/versions", "/summary", "/deployments", "/deployment", "/scale", "/submission")
    query = {"version": str(chance.choice((0, 1, 9)))} if chance.random() < 0.3 else {}
    return Request("GET", f"/v1/job/{job_id}{chance.choice(ends)}", query)


def _objects(chance: random.Random, job_id: str) -> Request:
    return Request("GET", f"/v1/job/{job_id}/{chance.choice(('allocations', 'evaluations'))}")


def _list(chance: random.Random, job_id: str) -> Request:
    query = {"prefix": job_id.rpartition("-")[0]}
    if chance.random() < 0.5:
        query["filter"] = chance.choice(FILTERS)
    if chance.random() < 0.3:
        query["per_page"] = chance.choice(("1", "2", "0", "x"))
    return Request("GET", "/v1/jobs", query)


def _scale(chance: random.Random, job_id: str) -> Request:
    body = {
        "Target": {"Group": chance.choice(("g0", "g1", "none", ""))},
        "Count": chance.choice((0, 1, 2, -1, None)),
        "Message": chance.choice(("", "more")),
    }
    return Request("POST", f"/v1/job/{job_id}/scale", {}, body, True)


def _revert(chance: random.Random, job_id: str) -> Request:
    body = {"JobID": job_id, "JobVersion": chance.choice((0, 1, 2, 9))}
    return Request("POST", f"/v1/job/{job_id}/revert", {}, body, True)


def _tag(chance: random.Random, job_id: str) -> Request:
    path = f"/v1/job/{job_id}/versions/{chance.choice(('gold', 'x' * 130))}/tag"
    if chance.random() < 0.3:
        return Request("DELETE", path)
    return Request("POST", path, {}, {"Version": chance.choice((0, 1, 9)), "Description": "d"})


def _mostly(chance: random.Random, name: str, job_id: str) -> str:
    """Return the ID of the job `name` in two of three cases, otherwise `job_id`."""
    return chance.choice([job_id, *[f"{job_id.rpartition('-')[0]}-{name}"] * 2])


def _dispatch(chance: random.Random, job_id: str) -> Request:
    job_id = _mostly(chance, "five", job_id)
    body = {
        "Payload": chance.choice((None, "", "aGk=", "%%")),
        "Meta": chance.choice((None, {}, {"key": "v"}, {"other": "v"})),
    }
    return Request("POST", f"/v1/job/{job_id}/dispatch", {}, body, True)


def _launch(chance: random.Random, job_id: str) -> Request:
    job_id = _mostly(chance, "two", job_id)
    return Request("POST", f"/v1/job/{job_id}/periodic/force", {}, None, True)


def _evaluate(chance: random.Random, job_id: str) -> Request:
    options = {"ForceReschedule": chance.random() < 0.5}
    body = {"JobID": job_id, "EvalOptions": options}
    return Request("POST", f"/v1/job/{job_id}/evaluate", {}, body, True)


def _stop(chance: random.Random, job_id: str) -> Request:
    query = {"purge": chance.choice(("true", "false", "x"))} if chance.random() < 0.5 else {}
    return Request("DELETE", f"/v1/job/{job_id}", query, None, True)


def _search(chance: random.Random, job_id: str) -> Request:
    context = chance.choice(("jobs", "all", "none"))
    return Request("POST", "/v1/search", {}, {"Prefix": job_id, "Context": context})


def _parse(chance: random.Random, job_id: str) -> Request:
    number = chance.choice(NUMBERS)
    text = f'job "{job_id}" {{\n  type = "batch"\n  group "g" {{\n    count = {number}\n  }}\n}}\n'
    if chance.random() < 0.3:
        cut = chance.randrange(len(text))
        text = text[:cut] + chance.choice(("}", '"', "=", "${", "")) + text[cut + 1 :]
    body = {"JobHCL": text, "Canonicalize": chance.random() < 0.5}
    return Request("POST", "/v1/jobs/parse", {}, body)


OPERATIONS: Sequence[Operation] = (
    *[_register] * 5,
    *[_plan, _read, _objects] * 2,
    *(
        _validate,
        _list,
        _scale,
        _revert,
        _tag,
        _dispatch,
        _launch,
        _evaluate,
        _stop,
        _search,
        _parse,
    ),
)

# ---- jobs ----------------------------------------------------------------------------------------


def job(chance: random.Random, job_id: str) -> dict[str, Any]:
    """Return a job: mostly a valid one, else with an unusual value of the job, group or task."""
    kind = TYPES[job_id.rpartition("-")[2]]
    built: dict[str, Any] = {
        "ID": job_id,
        "Name": job_id,
        "Type": kind if chance.random() < 1 - UNUSUAL / 10 else chance.choice([*TYPES.values()]),
        "Datacenters": chance.choice((["*"], ["dc1"], ["elsewhere"])),
        "Meta": {"a": chance.choice("ab")},
        "TaskGroups": [
            _group(f"g{number}", kind, chance) for number in range(chance.choice((1, 1, 2)))
        ],
    }
    if job_id.endswith("five"):
        built["ParameterizedJob"] = {"Payload": "optional", "MetaOptional": ["key"]}
    elif kind == "batch" and chance.random() < UNUSUAL:
        built["Periodic"] = {"Enabled": True, "SpecType": "cron", "Spec": chance.choice(CRON)}
    if chance.random() < UNUSUAL:
        group = chance.choice(built["TaskGroups"])
        place, fields = chance.choice(
            ((built, JOB_FIELDS), (group, GROUP_FIELDS), (group["Tasks"][0], TASK_FIELDS))
        )
        key, choice = chance.choice([*fields.items()])
        place[key] = choice(chance)
    return built


def _group(name: str, kind: str, chance: random.Random) -> dict[str, Any]:
    counts = (1,) if "sys" in kind else (0, 1, 1, 2)
    # A task of a service never ends, so no state depends on the time of a restart.
    command = "true" if "batch" in kind and chance.random() < 0.5 else "sleep"
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": f"/bin/{command}", "args": ["3600"]},
        "Resources": {"CPU": 1, "MemoryMB": 10},
    }
    return {"Name": name, "Count": chance.choice(counts), "Tasks": [task]}


def _constraint(chance: random.Random) -> list[dict[str, Any]]:
    one = {
        "LTarget": chance.choice(TARGETS),
        "Operand": chance.choice(OPERANDS),
        "RTarget": chance.choice(VALUES),
    }
    return [one]


def _affinity(chance: random.Random) -> list[dict[str, Any]]:
    return [one | {"Weight": chance.choice(NUMBERS[:7])} for one in _constraint(chance)]


def _restart(chance: random.Random) -> dict[str, Any]:
    return {
        "Attempts": chance.choice((0, 1, -1)),
        "Interval": chance.choice(DURATIONS),
        "Delay": chance.choice(DURATIONS),
        "Mode": chance.choice(("fail", "delay", "never")),
    }


def _update(chance: random.Random) -> dict[str, Any]:
    return {
        "MaxParallel": chance.choice((0, 1, 2, -1)),
        "Canary": chance.choice((0, 1, -1)),
        "MinHealthyTime": chance.choice(DURATIONS),
        "AutoRevert": chance.random() < 0.5,
    }


def _resources(chance: random.Random) -> dict[str, Any]:
    return {"CPU": chance.choice(NUMBERS[:7]), "MemoryMB": chance.choice(NUMBERS[:7])}


Fields = Mapping[str, Callable[[random.Random], Any]]

JOB_FIELDS: Fields = {
    "ParameterizedJob": lambda chance: {
        "Payload": chance.choice(("required", "forbidden", "some"))
    },
    "Priority": lambda chance: chance.choice(NUMBERS),
    "Meta": lambda chance: chance.choice((None, {}, {"a": chance.choice(TEXTS)})),
    "Constraints": _constraint,
    "Affinities": _affinity,
    "Update": _update,
    "Namespace": lambda chance: chance.choice(("default", "none")),
    "AllAtOnce": lambda chance: chance.choice((True, False, None)),
    "Name": lambda chance: chance.choice(TEXTS),
    "Datacenters": lambda chance: chance.choice((None, [], ["*"], ["dc*"], [""])),
    "TaskGroups": lambda chance: chance.choice((None, [])),
    "Region": lambda chance: chance.choice(("global", "none", "")),
}
GROUP_FIELDS: Fields = {
    "Count": lambda chance: chance.choice((0, 3, -1)),
    "RestartPolicy": _restart,
    "Constraints": _constraint,
    "Update": _update,
    "EphemeralDisk": lambda chance: {"SizeMB": chance.choice(NUMBERS[:7])},
    "Meta": lambda chance: {"a": chance.choice(TEXTS)},
    "Name": lambda chance: chance.choice(TEXTS),
    "Tasks": lambda chance: chance.choice((None, [])),
}
TASK_FIELDS: Fields = {
    "Driver": lambda chance: chance.choice(("", "none", "raw_exec")),
    "Resources": _resources,
    "Env": lambda chance: {"A": chance.choice(TEXTS)},
    "KillTimeout": lambda chance: chance.choice(DURATIONS),
    "Name": lambda chance: chance.choice(TEXTS),
    "Meta": lambda chance: {"a": chance.choice(TEXTS)},
    "Constraints": _constraint,
}
