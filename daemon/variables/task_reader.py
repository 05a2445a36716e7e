"""Reads of variables by tasks, with the same access control as in the API."""

from collections.abc import Mapping

from daemon.acl.caller_cache import CapabilitySetCache
from daemon.acl.seal import EnvelopeCipher
from storage.errors import Refused, Unsealable
from storage.queries import variables
from storage.queries.pages import PageRequest
from storage.queries.variables import VariableRow
from storage.read_pool import ReadSnapshot
from storage.records.workload import Workload
from storage.store import Store


class TaskVariableReader:
    """Reader of stored variables for tasks. If `asks` is false, tasks can read all variables."""

    def __init__(self, store: Store, seal: EnvelopeCipher, *, asks: bool) -> None:
        self._store, self._seal, self._asks = store, seal, asks
        self._grants = CapabilitySetCache()

    async def read(self, workload: Workload, namespace: str, path: str) -> Mapping[str, str] | None:
        """Return the items of a variable; None if it does not exist. Raises `Refused`."""

        def look(db: ReadSnapshot) -> VariableRow | None:
            if self._asks and not self._grants.of_task(db, workload).may_with_variable(
                namespace, path, "read"
            ):
                raise Refused(f'this task may not read the variable "{path}" in "{namespace}"')
            return variables.find(db, namespace, path)

        row = await self._store.read_long(look)
        try:
            if row is None:
                return None
            # imported late: few tasks read variables
            from daemon.variables.change import decrypt_items

            return decrypt_items(self._seal, row)
        except Unsealable as error:
            raise Refused(str(error)) from error

    async def listed(self, workload: Workload, namespace: str, prefix: str) -> list[VariableRow]:
        """Return, without items, the variables below a path prefix that the task may list."""

        def look(db: ReadSnapshot) -> list[VariableRow]:
            rows = list(variables.page(db, PageRequest(namespace=namespace, prefix=prefix)))
            if not self._asks:
                return rows
            grant = self._grants.of_task(db, workload)
            return [
                variable
                for variable in rows
                if grant.may_with_variable(variable.namespace, variable.path, "list")
            ]

        return await self._store.read_long(look)
