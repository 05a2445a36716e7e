"""What the templates of a task look up: services, variables, and files of the allocation.

Each question has an answer now, and topics of the store that tell when it may be another one. For
files nobody tells: they are looked at from time to time. What a task may not see is not there.
"""

from collections.abc import Callable, Iterable
from itertools import groupby

import msgspec

from daemon.runner.host import Variables
from daemon.runner.instance import Instance, workload_of
from daemon.runner.taskfiles import Signature, TaskFiles
from daemon.templates.faults import LONGEST
from daemon.templates.lookups import (
    Kind,
    Question,
    ServiceInstance,
    ServiceStub,
    VariableStub,
)
from daemon.templates.values import Items
from storage.errors import Refused
from storage.queries import services
from storage.queries.variables import Entry
from storage.records.service import Registration
from storage.records.workload import Workload
from storage.store import Store


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """Where a task stands: who looks for it, and which files are its own."""

    store: Store
    variables: Variables
    files: TaskFiles


class Sources:
    """The answers for the templates of one task."""

    def __init__(self, ground: Ground, instance: Callable[[], Instance]) -> None:
        self._ground, self._instance = ground, instance
        self.refusals: dict[Question, str] = {}

    async def answer(self, question: Question) -> object:
        """Return what the answer is now; None: there is no such thing, or not for this task."""
        self.refusals.pop(question, None)
        try:
            return await self._answer(question)
        except Refused as error:
            self.refusals[question] = str(error)
            return None

    async def _answer(self, question: Question) -> object:
        name, namespace = self._split(question.name)
        match question.kind:
            case Kind.SERVICE:
                return self._service(name, namespace)
            case Kind.SERVICES:
                every = await self._ground.store.read_long(
                    lambda db: services.every(db, self._namespace)
                )
                return [
                    ServiceStub(Name=key, Tags=sorted({tag for one in same for tag in one.tags}))
                    for key, same in groupby(every, lambda one: one.service_name)
                ]
            case Kind.VARIABLE:
                found = self._ground.variables.read(self._workload, namespace, name)
                return None if found is None else Items(found)
            case Kind.VARIABLES:
                listed = self._ground.variables.listed(self._workload, namespace, name)
                return [*map(_stub, listed)]
            case _:
                return await self._file(question.name)

    def topics(self, asked: Iterable[Question]) -> set[str]:
        """Return the topics that tell when an answer may be another one."""
        found = set()
        for question in asked:
            name, namespace = self._split(question.name)
            match question.kind:
                case Kind.SERVICE:
                    found.add(services.name_topic(namespace, name.rpartition(".")[2]))
                case Kind.SERVICES:
                    found.add("services")
                case Kind.VARIABLE:
                    found |= {f"variables/{namespace}/{name}", "policies"}
                case Kind.VARIABLES:
                    found |= {"variables", "policies"}
        return found

    async def signatures(self, asked: Iterable[Question]) -> dict[str, Signature | None]:
        """Return by what a change of the files that were asked for can be seen."""
        names = {one.name for one in asked if one.kind == Kind.FILE}
        return {name: await self._signature(name) for name in sorted(names)}

    @property
    def _namespace(self) -> str:
        return self._instance().allocation.namespace

    def _split(self, name: str) -> tuple[str, str]:
        """Return a name and the namespace behind its `@`; a region behind that is ours."""
        plain, at, where = name.rpartition("@")
        return (plain, where.partition(".")[0]) if at else (name, self._namespace)

    @property
    def _workload(self) -> Workload:
        """Return the task as policies name it."""
        return workload_of(self._instance(), self._ground.files.task)

    # ---- services -------------------------------------------------------------------------------

    def _service(self, name: str, namespace: str) -> list[ServiceInstance]:
        """Return the instances of a service; `tag.name` means those with a tag."""
        if namespace != self._namespace:
            raise Refused(f'this task may not look up services in "{namespace}"')
        tag, _, plain = name.rpartition(".")
        found = self._ground.store.read(lambda db: services.ready(db, namespace, plain))
        return [_instance(one) for one in found if not tag or tag in one.tags]

    # ---- files ----------------------------------------------------------------------------------

    async def _file(self, path: str) -> str | None:
        try:
            files = self._ground.files
            content = await files.read(files.meant(path), LONGEST + 1)
        except OSError:
            return None
        if len(content) > LONGEST:
            raise Refused(f"{path} has more than {LONGEST} bytes")
        return content.decode(errors="replace")

    async def _signature(self, path: str) -> Signature | None:
        try:
            return await self._ground.files.signature(self._ground.files.meant(path))
        except (OSError, Refused):
            return None


def _instance(one: Registration) -> ServiceInstance:
    return ServiceInstance(
        ID=one.id,
        Name=one.service_name,
        Node=one.node_id,
        Address=one.address,
        Datacenter=one.datacenter,
        Tags=one.tags,
        JobID=one.job_id,
        AllocID=one.alloc_id,
        Port=one.port,
    )


def _stub(entry: Entry) -> VariableStub:
    return VariableStub(
        Namespace=entry.namespace,
        Path=entry.path,
        CreateIndex=entry.create_index,
        ModifyIndex=entry.modify_index,
        CreateTime=entry.create_time,
        ModifyTime=entry.modify_time,
    )
