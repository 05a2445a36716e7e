"""What tasks read of variables: as much as their identity allows, like over the API."""

from collections.abc import Mapping

from daemon.acl.seal import Seal
from daemon.acl.workloads import grant_of
from daemon.variables.change import items_of
from storage.errors import Refused, Unsealable
from storage.queries import variables
from storage.queries.variables import Entry
from storage.readers import Snapshot
from storage.records.workload import Workload
from storage.store import Store


class TaskVariables:
    """The variables of a store, read for tasks. With `asks` off, each may read all."""

    def __init__(self, store: Store, seal: Seal, *, asks: bool) -> None:
        self._store, self._seal, self._asks = store, seal, asks

    def read(self, workload: Workload, namespace: str, path: str) -> Mapping[str, str] | None:
        """Return the values of a variable; None: there is none. Raises `Refused`."""

        def look(db: Snapshot) -> Entry | None:
            if self._asks and not grant_of(db, workload).may_with_variable(namespace, path, "read"):
                raise Refused(f'this task may not read the variable "{path}" in "{namespace}"')
            return variables.find(db, namespace, path)

        found = self._store.read(look)
        try:
            return None if found is None else items_of(self._seal, found)
        except Unsealable as error:
            raise Refused(str(error)) from error

    def listed(self, workload: Workload, namespace: str, prefix: str) -> list[Entry]:
        """Return the variables below a prefix that a task may list, without their values."""

        def look(db: Snapshot) -> list[Entry]:
            found = variables.listed(db, namespace, prefix)
            if not self._asks:
                return found
            grant = grant_of(db, workload)
            return [
                one for one in found if grant.may_with_variable(one.namespace, one.path, "list")
            ]

        return self._store.read(look)
