"""What a task gets besides its command: what it brings along, and who it is.

Artifacts come once for an allocation, however often the task is started; a mark in the
allocation's directory says so, also to the next daemon. Identities are signed for each start.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import trio

from daemon.launcher.messages import Owner
from daemon.runner import events
from daemon.runner.artifacts.fetch import FetchFailed, Order
from daemon.runner.drivers.driver import Attempt, Mount, StartFailed
from daemon.runner.env import Directories, resolve, resolve_config, task_environment
from daemon.runner.host import Host
from daemon.runner.identities import Identities, Place
from daemon.runner.instance import Instance
from daemon.runner.restarts import Outcome
from daemon.runner.secret_token import SecretToken
from daemon.runner.taskdir import directories
from daemon.runner.taskfiles import TaskFiles
from daemon.runner.wishes import Wish
from storage.errors import Refused
from storage.records.allocation import TaskEvent
from storage.records.base import SECOND
from storage.records.group import TaskGroup, Volume
from storage.records.task import Artifact, Network, NetworkDNS, Service, Task
from storage.records.times import nanoseconds

if TYPE_CHECKING:
    from daemon.runner.templates import Templates

_RENEW_AGAIN = 30.0  # seconds until an identity that could not be renewed is tried again
# A constraint that a cluster can see to: `${attr.engine.feature.x} = true`, or that it is set.
_FEATURE = re.compile(r"\$\{attr\.engine\.feature\.([^{}]+)\}")
_IS_THERE = frozenset({("true", "="), ("true", "=="), ("true", "is"), ("true", ""), ("", "is_set")})
_TELL_AGAIN = 15 * SECOND  # from one event about a long download to the next


def places_of(host: Host, instance: Instance, task: Task) -> Directories:
    """Return where a task finds its directories, as it sees them."""
    directory = host.directory(instance.allocation.id)
    driver = host.drivers.get(task.driver)
    return driver.places(directory, task.name) if driver else directories(directory, task.name)


def environment_of(host: Host, instance: Instance, task: Task) -> dict[str, str]:
    """Return a task's environment."""
    return task_environment(
        host.environment,
        instance.allocation,
        instance.job,
        task,
        places_of(host, instance, task),
        host.values,
        parent_cgroup=host.parent_cgroup,
    )


def telling(
    source: str, now: Callable[[], int], note: Callable[[TaskEvent], None]
) -> Callable[[int], None]:
    """Return what takes how many bytes of an artifact are there, and notes it now and then."""
    told = now()

    def tell(size: int) -> None:
        nonlocal told
        if now() >= told + _TELL_AGAIN:
            told = now()
            note(events.arrived(told, source, size))

    return tell


def owner_of(host: Host, instance: Instance, task: Task) -> Owner | None:
    """Return whom the files of a task are to belong to; None: the daemon itself. Raises `OSError`."""
    driver = host.drivers.get(task.driver)
    try:
        return driver.owner(task.user, instance.allocation.id) if driver else None
    except StartFailed:  # there is no such user: the driver will say so
        return None


def _known_owner(host: Host, instance: Instance, task: Task) -> Owner | None:
    """Return the same; None, too, where there cannot be one: then the task is not run."""
    try:
        return owner_of(host, instance, task)
    except OSError:
        return None


def services_of(group: TaskGroup, task: Task) -> list[Service]:
    """Return the services of a task, and those of its group that are not another task's."""
    shared = [one for one in group.services or () if one.task_name in ("", task.name)]
    return [*shared, *(task.services or ())]


def lacking(task: Task) -> str:
    """Return why a task cannot get what it needs from this version; better not run than without."""
    return "this version of Steward cannot provide secrets" if task.secrets else ""


def _mounts(host: Host, instance: Instance, task: Task) -> Iterator[Mount]:
    """Yield the volumes of the machine that a task mounts."""
    for one in task.volume_mounts or ():
        volume = (instance.group.volumes or {}).get(one.volume) or Volume()
        index = f"[{instance.allocation.index}]" if volume.per_alloc else ""
        found = host.volumes.get(f"{volume.source}{index}")
        yield Mount(
            name=one.volume,
            source=found.path if found else "",
            destination=one.destination,
            read_only=one.read_only or volume.read_only or (found is not None and found.read_only),
        )


def _features(instance: Instance, task: Task) -> Iterator[str]:
    """Yield what the constraints of a task ask of the hosts of a cluster."""
    for block in (instance.job.constraints, instance.group.constraints, task.constraints):
        for one in block or ():
            found = _FEATURE.fullmatch(one.l_target)
            if found and (one.r_target, one.operand) in _IS_THERE:
                yield found[1]


def _names(
    dns: NetworkDNS | None, environment: Mapping[str, str], values: Mapping[str, str]
) -> NetworkDNS | None:
    """Return a `dns` block with its references filled in."""
    if dns is None:
        return None

    def filled(texts: list[str] | None) -> list[str]:
        return [resolve(text, environment, values) for text in texts or ()]

    return NetworkDNS(
        servers=filled(dns.servers), searches=filled(dns.searches), options=filled(dns.options)
    )


class Provisions:
    """What one task gets. `note` tells at once what happens, `tell` the task itself."""

    def __init__(
        self,
        host: Host,
        instance: Callable[[], Instance],
        task: Task,
        note: Callable[[TaskEvent], None],
        tell: Callable[[list[Wish]], Awaitable[None]],
    ) -> None:
        self._host, self._instance, self._name = host, instance, task.name
        self._note, self._tell = note, tell
        self._root = host.directory(instance().allocation.id)
        self._files = TaskFiles(
            launcher=host.launcher,
            allocation=instance().allocation.id,
            task=task.name,
            places=places_of(host, instance(), task),
        )
        self._identities = Identities(
            host.signer,
            Place(host.issuer, host.values.get("node.region", ""), host.claims, host.values),
            self._files,
            task,
            services_of(instance().group, task),
        )
        self._token = SecretToken(
            host.credentials,
            instance,
            task.name,
            self._files,
            host.clock.now,
            note,
        )
        self._templates = self._writer()

    def _writer(self) -> "Templates | None":
        """Return what writes the templates of the task; None: it has none."""
        host, task = self._host, self._task
        if not task.templates:
            return None
        from daemon.runner.templates import Desk, Templates  # few tasks have any

        desk = Desk(
            host=host,
            files=self._files,
            environment=self._own_environment,
            note=self._note,
        )
        return Templates(desk, self._instance)

    @property
    def _task(self) -> Task:
        return self._instance().group.task(self._name) or Task(name=self._name)

    def environment(self) -> dict[str, str]:
        """Return the task's environment, with what only it may know."""
        added = self._templates.environment if self._templates else {}
        return self._own_environment() | added

    def _own_environment(self) -> dict[str, str]:
        """Return the environment without what templates add to it."""
        instance, task = self._instance(), self._task
        env = environment_of(self._host, instance, task) | self._identities.environment
        env |= self._token.environment
        places = places_of(self._host, instance, task)
        if self._identities.wanted and places.secrets.startswith(self._root):
            # Behind walls of its own the task would not find it.
            env["NOMAD_UNIX_ADDR"] = f"unix:{self._host.task_socket}"
        return env

    def attempt(self, number: int) -> Attempt:
        """Return the attempt of this number with everything that belongs to it."""
        task, instance, host = self._task, self._instance(), self._host
        network = next(iter(instance.group.networks or ()), Network())
        env = self.environment()
        config = {
            name: resolve_config(value, env, host.values)
            for name, value in (task.config or {}).items()
        }
        given = instance.allocation.placement.resources
        held = given.tasks.get(task.name)
        return Attempt(
            alloc_id=instance.allocation.id,
            task=task.name,
            number=number,
            directory=self._root,
            config=config,
            env=env,
            user=task.user,
            resources=msgspec.structs.replace(
                task.resources, memory_max_mb=held.memory.memory_max_mb if held else 0
            ),
            cores=tuple((held and held.cpu.reserved_cores) or ()),
            mhz=held.cpu.cpu_shares if held else 0,
            log=task.log_config,
            network_mode=network.mode,
            dns=_names(network.dns, env, host.values),
            ports=tuple(given.ports_of(task.name)),
            mounts=tuple(_mounts(host, instance, task)),
            priority=instance.job.priority,
            longest=instance.group.max_run_duration or 0,
            disk_mb=instance.group.ephemeral_disk.size_mb,
            features=tuple(_features(instance, task)),
        )

    # ---- before a start --------------------------------------------------------------------------

    @property
    def take_time(self) -> bool:
        """Tell whether the task may have to wait for what it needs."""
        task = self._task
        return bool(task.artifacts or task.templates or task.secrets_config)

    async def bring(self) -> Outcome | None:
        """Bring what the task needs; return how the attempt ended if that cannot be had."""
        instance, task = self._instance(), self._task
        if task.secrets_config or task.templates or self._identities.wanted:
            secrets = directories(self._root, task.name).secrets
            await self._host.secret_dirs.seclude(
                secrets, task.resources.secrets_mb, _known_owner(self._host, self._instance(), task)
            )
        if (outcome := await self._fetch_artifacts()) is not None:
            return outcome
        try:
            await self._identities.hand_over(instance.allocation, instance.job, self._now())
        except (Refused, OSError) as error:
            self._note(events.setup_failure(self._now(), f"no identity can be given: {error}"))
            return Outcome.UNRECOVERABLE
        try:
            if self._task.secrets_config is not None:
                await self._token.bring()
        except (Refused, OSError) as error:
            self._note(events.secrets_failure(self._now(), f"no token can be given: {error}"))
            return Outcome.UNRECOVERABLE
        return await self._write_templates()

    async def _write_templates(self) -> Outcome | None:
        if self._templates is None:
            return None
        try:
            await self._templates.bring()
        except Refused as error:
            self._note(events.template(self._now(), f"Template failed: {error}"))
            return Outcome.UNRECOVERABLE
        return None

    async def _fetch_artifacts(self) -> Outcome | None:
        task = self._task
        if not task.artifacts or await self._files.recall("fetched") is not None:
            return None
        self._note(events.downloading(self._now()))
        env = self.environment()
        try:
            for artifact in task.artifacts:
                await self._host.fetcher.fetch(self._order(artifact, env))
        except FetchFailed as error:
            self._note(events.download_failed(self._now(), str(error)))
            return Outcome.FAILED if error.recoverable else Outcome.UNRECOVERABLE
        await self._files.note("fetched", "")
        return None

    def _order(self, artifact: Artifact, env: Mapping[str, str]) -> Order:
        host, task = self._host, self._task
        filled = resolve_config(msgspec.to_builtins(artifact), env, host.values)
        return Order(
            artifact=msgspec.convert(filled, Artifact),
            root=self._root,
            base=task.name,
            places=places_of(host, self._instance(), task),
            owner=_known_owner(host, self._instance(), task) if artifact.chown else None,
            arrived=telling(artifact.getter_source, self._now, self._note),
        )

    # ---- while it runs ---------------------------------------------------------------------------

    @property
    def may_change(self) -> bool:
        """Tell whether something that the task was given may have to be given anew."""
        has_more = self._templates is not None or self._task.secrets_config is not None
        return has_more or self._identities.next_renewal() is not None

    async def recall(self, started_at: str) -> None:
        """Go on with what an earlier daemon has given to the task."""
        instance = self._instance()
        began = nanoseconds(started_at) if started_at else self._now()
        try:
            await self._identities.recall(instance.allocation, instance.job, began, self._now())
        except (Refused, OSError) as error:
            self._note(events.setup_failure(self._now(), f"no identity can be given: {error}"))
        if self._task.secrets_config is not None:
            await self._token.recall()
        if self._templates is not None:
            await self._templates.recall()

    async def tend(self) -> None:
        """Give anew what ends or changes, and tell the task of it, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._renew_identities)
            if self._task.secrets_config is not None:
                nursery.start_soon(self._keep_token)
            if self._templates is not None:
                nursery.start_soon(self._templates.tend, self._tell)

    async def _keep_token(self) -> None:
        while True:
            await self._tell(await self._token.keep())

    async def _renew_identities(self) -> None:
        """Make a new token whenever one is at half of its life."""
        while (due := self._identities.next_renewal()) is not None:
            await trio.sleep(max(0, due - self._now()) / SECOND)
            instance = self._instance()
            try:
                renewed = await self._identities.renew(
                    instance.allocation, instance.job, self._now()
                )
            except (Refused, OSError) as error:
                self._note(events.setup_failure(self._now(), f"no new identity: {error}"))
                await trio.sleep(_RENEW_AGAIN)
                continue
            await self._tell(
                [Wish(mode=one.change_mode, signal=one.change_signal) for one in renewed]
            )

    def _now(self) -> int:
        return self._host.clock.now()
