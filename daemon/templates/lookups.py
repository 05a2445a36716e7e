"""What templates look up outside of themselves: services, variables, files, the environment. Pure.

Filling in asks nobody. A function that needs something which is not known yet notes the question
and goes on with an empty value; whoever fills in finds the answer and fills in once more, until
nothing is left to ask (`render.py`).
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from daemon.templates.evaluate import Known
from daemon.templates.faults import Budget, Fault
from daemon.templates.values import Items, text_of, whole_of

_MOST_QUESTIONS = 256  # of one template
_SECOND = 1_000_000_000


class Kind(StrEnum):
    """What is asked for."""

    SERVICE = "nomad.service"  # the instances of one
    SERVICES = "nomad.services"  # the names of all
    VARIABLE = "nomad.var.block"
    VARIABLES = "nomad.var.list"
    FILE = "file"


class Question(msgspec.Struct, frozen=True, order=True):
    """What a template needs to know. A name may end in `@namespace`."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        """Return it as the events of tasks name it."""
        return f"{self.kind}({self.name})"


class ServiceInstance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a service answers; the names are those that templates use."""

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
    """A service by name, with the tags of all its instances."""

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


# The answers; None: there is no such thing.
Answers = Mapping[Question, object]


class Lookups:
    """The functions of one filling in, and what they asked for.

    `environment` is the task's, `now` nanoseconds.
    """

    def __init__(self, answers: Answers, environment: Mapping[str, str], now: int) -> None:
        self._answers, self._environment, self._now = answers, environment, now
        self.asked: set[Question] = set()
        self.missing: set[Question] = set()  # that there has to be, and is not

    @property
    def functions(self) -> dict[str, Known]:
        """Return the functions by name."""
        return {
            "env": Known(self._env, 1, 1),
            "envOrDefault": Known(self._env_or, 2, 2),
            "file": Known(self._file, 1, 1),
            "nomadService": Known(self._service, 1, 3),
            "nomadServices": Known(self._services, 0, 0),
            "nomadVar": Known(self._variable, 1, 1),
            "nomadVarExists": Known(self._has_variable, 1, 1),
            "nomadVarList": Known(self._variables, 0, 1),
            "timestamp": Known(self._timestamp, 0, 1),
        }

    def _ask(self, kind: Kind, name: object = "") -> object:
        """Return the answer to a question; None if it is not known yet, or there is no such thing."""
        question = Question(kind, text_of(name))
        self.asked.add(question)
        if len(self.asked) > _MOST_QUESTIONS:
            raise Fault(f"the template asks for more than {_MOST_QUESTIONS} things")
        return self._answers.get(question)

    def _need(self, kind: Kind, name: object) -> object:
        """Return the answer to a question, without which the template cannot be written."""
        answer = self._ask(kind, name)
        question = Question(kind, text_of(name))
        if answer is None and question in self._answers:
            self.missing.add(question)
        return answer

    def _env(self, _: Budget, name: object) -> str:
        return self._environment.get(text_of(name), "")

    def _env_or(self, _: Budget, name: object, default: object) -> str:
        return self._environment.get(text_of(name)) or text_of(default)

    def _file(self, budget: Budget, path: object) -> str:
        found = self._need(Kind.FILE, path)
        text = found if isinstance(found, str) else ""
        budget.make(len(text))
        return text

    def _service(self, budget: Budget, *given: object) -> list[ServiceInstance]:
        """Return the instances of a service: all, or a number of them chosen by a key."""
        found = self._ask(Kind.SERVICE, given[-1])
        instances = found if isinstance(found, list) else []
        budget.spend(len(instances))
        if len(given) == 1:
            return instances
        if len(given) == 2:  # a number and a name
            raise Fault("nomadService takes a name, or a number, a key and a name")
        count, key = whole_of(given[0]), text_of(given[1])
        if count < 0:
            raise Fault("nomadService needs a number of instances that is not negative")
        return sorted(instances, key=lambda one: _weight(key, one.ID))[:count]

    def _services(self, budget: Budget) -> list[ServiceStub]:
        found = self._ask(Kind.SERVICES)
        stubs = found if isinstance(found, list) else []
        budget.spend(len(stubs))
        return stubs

    def _variable(self, budget: Budget, path: object) -> Items:
        found = self._need(Kind.VARIABLE, path)
        items = found if isinstance(found, Items) else Items()
        budget.spend(len(items))
        return items

    def _has_variable(self, _: Budget, path: object) -> bool:
        return self._ask(Kind.VARIABLE, path) is not None

    def _variables(self, budget: Budget, prefix: object = "") -> list[VariableStub]:
        found = self._ask(Kind.VARIABLES, prefix)
        stubs = found if isinstance(found, list) else []
        budget.spend(len(stubs))
        return stubs

    def _timestamp(self, _: Budget, layout: object = "2006-01-02T15:04:05Z") -> str:
        form = text_of(layout)
        if form == "unix":
            return str(self._now // _SECOND)
        moment = datetime.fromtimestamp(self._now // _SECOND, UTC)
        return _LAYOUT.sub(lambda match: moment.strftime(_PARTS[match[0]]), form)


def _weight(key: str, instance: str) -> str:
    """Return by what the instances for a key are chosen: few change places when one comes or goes."""
    return hashlib.md5(f"{key}\0{instance}".encode(), usedforsecurity=False).hexdigest()


# How Go names the parts of a time: by those of a certain second of 2006.
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


def unanswered(asked: Iterable[Question], answers: Answers) -> list[Question]:
    """Return the questions without an answer."""
    return sorted(question for question in asked if question not in answers)
