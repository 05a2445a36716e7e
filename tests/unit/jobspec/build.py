"""Small job documents for tests, and the errors about them."""

from typing import Any

from daemon.jobspec.canonicalize import canonicalize
from daemon.jobspec.validate import validate
from storage.records.codec import Document
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.task import Service, Task
from tests.unit.jobspec.recorded import document


def task(name: str = "main", **fields: Any) -> Document:
    return {"Name": name, "Driver": "raw_exec", **fields}


def group(*tasks: Document, **fields: Any) -> Document:
    return {"Name": "web", "Tasks": list(tasks) or [task()], **fields}


def job(*groups: Document, **fields: Any) -> Document:
    return {"ID": "g", "TaskGroups": list(groups) or [group()], **fields}


def complete(given: Document) -> Job:
    """Return the complete job for a job document as a client sends it."""
    return canonicalize(document(given))


def only_group(given: Document) -> TaskGroup:
    (one,) = complete(given).task_groups or []
    return one


def only_task(given: Document) -> Task:
    (one,) = only_group(given).tasks or []
    return one


def only_service(given: Document) -> Service:
    (one,) = only_group(given).services or []
    return one


def errors(given: Document) -> list[str]:
    """Return the errors of a job, as the validate endpoint lists them."""
    return list(validate(complete(given)).errors)


def in_group(*texts: str, name: str = "web") -> list[str]:
    """Return the errors of a job in which only one group is wrong."""
    return [f"Task group {name} validation failed: {nested(*texts)}"]


def in_task(*texts: str, name: str = "main") -> list[str]:
    """Return the errors of a job in which only one task is wrong."""
    return in_group(f"Task {name} validation failed: {nested(*texts)}")


def nested(*texts: str) -> str:
    head = "1 error" if len(texts) == 1 else f"{len(texts)} errors"
    points = "\n\t".join(f"* {text}" for text in texts)
    return f"{head} occurred:\n\t{points}\n\n"
