"""External data of templates: services, variables, files and the environment. No I/O.

Rendering itself reads nothing. If a function needs an unknown value, it records the lookup and
continues with an empty value. The caller resolves the lookups and renders again until each
lookup has a result (`render.py`).
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from daemon.templates.errors import StepBudget, TemplateError
from daemon.templates.evaluate import TemplateFunction
from daemon.templates.values import StringMap, text_of, whole_of

_MOST_QUESTIONS = 256  # lookups of one template
_SECOND = 1_000_000_000


class LookupType(StrEnum):
    """The type of a lookup."""

    SERVICE = "nomad.service"  # instances of one service
    SERVICES = "nomad.services"  # names of all services
    VARIABLE = "nomad.var.block"
    VARIABLES = "nomad.var.list"
    FILE = "file"
    OUTPUT = "output"  # output of an earlier step: STEP.NAME, or STEP[3].NAME


class LookupKey(msgspec.Struct, frozen=True, order=True):
    """A lookup that a template requests. `name` may end in `@namespace`."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        """Return the lookup as shown in task events."""
        return f"{self.kind}({self.name})"


class ServiceInstance(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a service instance, with the field names that templates use."""

    ID: str
    Name: str
    Node: str
    Address: str
    Datacenter: str
    Tags: list[str]
    JobID: str
    AllocID: str
    Port: int


class ServiceStub(msgspec.Struct, frozen=True, kw_only=True):
    """A service name with the tags of all its instances."""

    Name: str
    Tags: list[str]


class VariableStub(msgspec.Struct, frozen=True, kw_only=True):
    """A variable without its values."""

    Namespace: str
    Path: str
    CreateIndex: int
    ModifyIndex: int
    CreateTime: int
    ModifyTime: int


# The results; None means that the object does not exist.
Answers = Mapping[LookupKey, object]


class LookupResults:
    """Provides the functions of one rendering, and records the lookups that they request.

    `environment` is the environment of the task; `now` is in nanoseconds since the epoch.
    """

    def __init__(self, answers: Answers, environment: Mapping[str, str], now: int) -> None:
        self._answers, self._environment, self._now = answers, environment, now
        self.asked: set[LookupKey] = set()
        self.missing: set[LookupKey] = set()  # required lookups without a result

    @property
    def functions(self) -> dict[str, TemplateFunction]:
        """Return the functions by name."""
        return {
            "env": TemplateFunction(self._env, 1, 1),
            "envOrDefault": TemplateFunction(self._env_or, 2, 2),
            "mustEnv": TemplateFunction(self._must_env, 1, 1),
            "file": TemplateFunction(self._file, 1, 1),
            "nomadService": TemplateFunction(self._service, 1, 3),
            "nomadServices": TemplateFunction(self._services, 0, 0),
            "nomadVar": TemplateFunction(self._variable, 1, 1),
            "nomadVarExists": TemplateFunction(self._has_variable, 1, 1),
            "nomadVarList": TemplateFunction(self._variables, 0, 1),
            "nomadVarListSafe": TemplateFunction(self._variables, 0, 1),
            "output": TemplateFunction(self._output, 2, 3),
            "timestamp": TemplateFunction(self._timestamp, 0, 1),
        }

    def _result(self, kind: LookupType, name: object = "") -> object:
        """Return the result of a lookup.

        The result is None if the lookup is not resolved yet, or if the object does not exist.
        """
        question = LookupKey(kind, text_of(name))
        self.asked.add(question)
        if len(self.asked) > _MOST_QUESTIONS:
            raise TemplateError(f"the template has more than {_MOST_QUESTIONS} lookups")
        return self._answers.get(question)

    def _require(self, kind: LookupType, name: object) -> object:
        """Return the result of a lookup, and record it as missing if the object does not exist."""
        answer = self._result(kind, name)
        question = LookupKey(kind, text_of(name))
        if answer is None and question in self._answers:
            self.missing.add(question)
        return answer

    def _env(self, _: StepBudget, name: object) -> str:
        return self._environment.get(text_of(name), "")

    def _must_env(self, _: StepBudget, name: object) -> str:
        variable = text_of(name)
        if variable not in self._environment:
            raise TemplateError(f"the environment variable {variable} is not set")
        return self._environment[variable]

    def _env_or(self, _: StepBudget, name: object, default: object) -> str:
        return self._environment.get(text_of(name)) or text_of(default)

    def _file(self, budget: StepBudget, path: object) -> str:
        result = self._require(LookupType.FILE, path)
        text = result if isinstance(result, str) else ""
        budget.make(len(text))
        return text

    def _service(self, budget: StepBudget, *arguments: object) -> list[ServiceInstance]:
        """Return the instances of a service.

        `arguments` are the service's name, or a number, a key and the name. With a number, the key
        selects this many instances.
        """
        result = self._result(LookupType.SERVICE, arguments[-1])
        instances = result if isinstance(result, list) else []
        budget.spend(len(instances))
        if len(arguments) == 1:
            return instances
        if len(arguments) == 2:  # a count and a key
            raise TemplateError("nomadService takes a name, or a number, a key and a name")
        count, key = whole_of(arguments[0]), text_of(arguments[1])
        if count < 0:
            raise TemplateError("nomadService needs a number of instances that is not negative")
        return sorted(instances, key=lambda instance: _weight(key, instance.ID))[:count]

    def _services(self, budget: StepBudget) -> list[ServiceStub]:
        result = self._result(LookupType.SERVICES)
        stubs = result if isinstance(result, list) else []
        budget.spend(len(stubs))
        return stubs

    def _variable(self, budget: StepBudget, path: object) -> StringMap:
        result = self._require(LookupType.VARIABLE, path)
        items = result if isinstance(result, StringMap) else StringMap()
        budget.spend(len(items))
        return items

    def _has_variable(self, _: StepBudget, path: object) -> bool:
        return self._result(LookupType.VARIABLE, path) is not None

    def _variables(self, budget: StepBudget, prefix: object = "") -> list[VariableStub]:
        result = self._result(LookupType.VARIABLES, prefix)
        stubs = result if isinstance(result, list) else []
        budget.spend(len(stubs))
        return stubs

    def _output(self, budget: StepBudget, step: object, name: object, *element: object) -> str:
        index = f"[{whole_of(element[0])}]" if element else ""
        result = self._require(LookupType.OUTPUT, f"{text_of(step)}{index}.{text_of(name)}")
        text = result if isinstance(result, str) else ""
        budget.make(len(text))
        return text

    def _timestamp(self, _: StepBudget, layout: object = "2006-01-02T15:04:05Z") -> str:
        form = text_of(layout)
        if form == "unix":
            return str(self._now // _SECOND)
        moment = datetime.fromtimestamp(self._now // _SECOND, UTC)
        return _LAYOUT.sub(lambda match: moment.strftime(_PARTS[match[0]]), form)


def _weight(key: str, instance: str) -> str:
    """Return the selection weight of an instance for a key, independent of other instances."""
    return hashlib.md5(f"{key}\0{instance}".encode(), usedforsecurity=False).hexdigest()


# Go's time layouts are written with the parts of a fixed second in 2006.
_PARTS = {
    "2006": "%Y",
    "January": "%B",
    "Monday": "%A",
    "Jan": "%b",
    "Mon": "%a",
    "MST": "UTC",
    "Z07:00": "Z",
    "-07:00": "+00:00",
    "-0700": "+0000",
    "01": "%m",
    "02": "%d",
    "15": "%H",
    "03": "%I",
    "04": "%M",
    "05": "%S",
    "06": "%y",
    "PM": "%p",
}
_LAYOUT = re.compile("|".join(map(re.escape, _PARTS)))


def missing_lookups(lookup_keys: Iterable[LookupKey], answers: Answers) -> list[LookupKey]:
    """Return the lookups without a result."""
    return sorted(question for question in lookup_keys if question not in answers)
