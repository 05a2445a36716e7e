"""The data sources of templates: services, variables, and files of the allocation.

Each lookup has a current answer. Topics of the store signal when the answer changes. Files are
polled, because nothing signals their changes. Data that the task is not permitted to read appears
as missing.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby

import msgspec

from daemon.runner.core.task_files import Signature, TaskFiles
from daemon.runner.core.task_instance import TaskInstance, workload
from daemon.runner.setup.given_secrets import GivenSecrets
from daemon.runner.setup.runtime import VariableReader
from daemon.templates.errors import LONGEST
from daemon.templates.lookups import (
    LookupKey,
    LookupType,
    ServiceInstance,
    ServiceStub,
    VariableStub,
)
from daemon.templates.values import StringMap
from storage.errors import Refused
from storage.queries import services
from storage.queries.variables import VariableRow
from storage.records.service import Registration
from storage.records.workload import Workload
from storage.store import Store


class TemplateContext(msgspec.Struct, frozen=True, kw_only=True):
    """The identity and the files of the task that looks data up."""

    store: Store
    variables: VariableReader
    files: TaskFiles


class TemplateSources:
    """The lookups of one task's templates."""

    def __init__(
        self,
        ground: TemplateContext,
        instance: Callable[[], TaskInstance],
        secrets: GivenSecrets | None = None,
    ) -> None:
        """Initialize. `secrets` receives the values of all variables that the templates read."""
        self._ground, self._instance = ground, instance
        self.refusals: dict[LookupKey, str] = {}
        self.secrets = secrets or GivenSecrets()

    async def answer(self, question: LookupKey) -> object:
        """Return the current answer of a lookup; None if it is missing or not permitted."""
        self.refusals.pop(question, None)
        try:
            return await self._answer(question)
        except Refused as error:
            self.refusals[question] = str(error)
            return None

    async def _answer(self, question: LookupKey) -> object:
        name, namespace = self._split(question.name)
        match question.kind:
            case LookupType.SERVICE:
                return self._service(name, namespace)
            case LookupType.SERVICES:
                rows = await self._ground.store.read_long(
                    lambda db: services.list_all(db, self._namespace)
                )
                return [
                    ServiceStub(
                        Name=key, Tags=sorted({tag for service in same for tag in service.tags})
                    )
                    for key, same in groupby(rows, lambda row: row.service_name)
                ]
            case LookupType.VARIABLE:
                variable = await self._ground.variables.read(self._workload, namespace, name)
                self.secrets.add(f"variable {namespace} {name}", *(variable or {}).values())
                return None if variable is None else StringMap(variable)
            case LookupType.VARIABLES:
                listed = await self._ground.variables.listed(self._workload, namespace, name)
                return [*map(_stub, listed)]
            case LookupType.OUTPUT:
                from daemon.runner.setup import step_data  # imported late: few jobs are workflows

                work = partial(step_data.read_output, instance=self._instance(), text=question.name)
                return await self._ground.store.read_long(work)
            case _:
                return await self._file(question.name)

    def topics(self, lookups: Iterable[LookupKey]) -> set[str]:
        """Return the topics that signal a changed answer."""
        result = set()
        for question in lookups:
            name, namespace = self._split(question.name)
            match question.kind:
                case LookupType.SERVICE:
                    result.add(services.name_topic(namespace, name.rpartition(".")[2]))
                case LookupType.SERVICES:
                    result.add("services")
                case LookupType.VARIABLE:
                    result |= {f"variables/{namespace}/{name}", "policies"}
                case LookupType.VARIABLES:
                    result |= {"variables", "policies"}
        return result

    async def signatures(self, lookups: Iterable[LookupKey]) -> dict[str, Signature | None]:
        """Return the signature of each file that was read, by path; None for a missing file."""
        names = {lookup.name for lookup in lookups if lookup.kind == LookupType.FILE}
        return {name: await self._signature(name) for name in sorted(names)}

    @property
    def _namespace(self) -> str:
        return self._instance().allocation.namespace

    def _split(self, name: str) -> tuple[str, str]:
        """Split a name at its `@` into name and namespace.

        Without an `@`, the namespace is that of the task. A region after the namespace is ignored.
        """
        plain, at_sign, where = name.rpartition("@")
        return (plain, where.partition(".")[0]) if at_sign else (name, self._namespace)

    @property
    def _workload(self) -> Workload:
        """Return the workload identity of the task."""
        return workload(self._instance(), self._ground.files.task)

    # --- services ---

    def _service(self, name: str, namespace: str) -> list[ServiceInstance]:
        """Return the instances of a service; for `TAG.NAME`, only the instances with this tag."""
        if namespace != self._namespace:
            raise Refused(f'this task may not look up services in "{namespace}"')
        tag, _, plain = name.rpartition(".")
        instances = self._ground.store.read(lambda db: services.ready(db, namespace, plain))
        return [_instance(instance) for instance in instances if not tag or tag in instance.tags]

    # --- files ---

    async def _file(self, path: str) -> str | None:
        try:
            files = self._ground.files
            content = await files.read(files.resolve(path), LONGEST + 1)
        except OSError:
            return None
        if len(content) > LONGEST:
            raise Refused(f"{path} has more than {LONGEST} bytes")
        return content.decode(errors="replace")

    async def _signature(self, path: str) -> Signature | None:
        try:
            return await self._ground.files.signature(self._ground.files.resolve(path))
        except (OSError, Refused):
            return None


def _instance(instance: Registration) -> ServiceInstance:
    return ServiceInstance(
        ID=instance.id,
        Name=instance.service_name,
        Node=instance.node_id,
        Address=instance.address,
        Datacenter=instance.datacenter,
        Tags=instance.tags,
        JobID=instance.job_id,
        AllocID=instance.alloc_id,
        Port=instance.port,
    )


def _stub(entry: VariableRow) -> VariableStub:
    return VariableStub(
        Namespace=entry.namespace,
        Path=entry.path,
        CreateIndex=entry.create_index,
        ModifyIndex=entry.modify_index,
        CreateTime=entry.create_time,
        ModifyTime=entry.modify_time,
    )
