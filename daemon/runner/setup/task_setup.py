"""Set up a task: artifacts, templates, environment and workload identities.

Artifacts are downloaded once per allocation, for any number of attempts. A marker file in the
allocation directory records the download, so a restarted daemon does not repeat it. Identities are
signed for each attempt.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio

from daemon.flow.workflow_keys import is_workflow
from daemon.jobspec.steward_meta.step_keys import KEEP
from daemon.launcher.channel import Refusal
from daemon.runner.core import task_events
from daemon.runner.core.driver import (
    Attempt,
    DeliveredFiles,
    ExitResult,
    HostMount,
    TaskFile,
    writes_files,
)
from daemon.runner.core.restart_policy import AttemptOutcome
from daemon.runner.core.status_report import AllocReport
from daemon.runner.core.task_dir import OUTPUT_FILE, directories
from daemon.runner.core.task_env import (
    TaskDirectories,
    network_variables,
    resolve,
    resolve_config,
    task_environment,
)
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.core.task_instance import TaskInstance
from daemon.runner.setup import group_network
from daemon.runner.setup.change_actions import ChangeAction
from daemon.runner.setup.given_secrets import GivenSecrets
from daemon.runner.setup.runtime import RuntimeContext
from daemon.runner.setup.vault_token import VaultTokenRenewer
from daemon.runner.setup.workload_identity import IssuerInfo, WorkloadIdentities
from daemon.text.masking import Matcher
from storage import request_context
from storage.errors import Refused, is_descriptor_shortage
from storage.loop_share import import_in_thread
from storage.read_pool import ReadSnapshot
from storage.records.allocation import TaskEvent
from storage.records.base import SECOND
from storage.records.group import TaskGroup, Volume
from storage.records.node import HostVolume
from storage.records.task import Artifact, Network, NetworkDNS, Service, Task
from storage.records.times import nanoseconds

if TYPE_CHECKING:
    from daemon.runner.setup.artifacts.fetch import ArtifactRequest
    from daemon.runner.setup.step_data import StepData
    from daemon.runner.setup.templates import TemplateRunner

_RENEW_AGAIN = 30.0  # seconds until the renewal of an identity is retried
# A constraint on a host feature that a cluster can check: `${attr.engine.feature.x} = true`, or
# that the attribute is set.
_FEATURE = re.compile(r"\$\{attr\.engine\.feature\.([^{}]+)\}")
_IS_THERE = frozenset({("true", "="), ("true", "=="), ("true", "is"), ("true", ""), ("", "is_set")})
_FEW_SECRETS = 4096  # bytes; more secrets are prepared in a thread
_FETCH = "daemon.runner.setup.artifacts.fetch"
_TELL_AGAIN = 15 * SECOND  # time between two events about a long download


def _raise_shortage(error: Exception) -> None:
    """Raise the error if it means that no file descriptor is free; it is no failure of the task."""
    if is_descriptor_shortage(error):
        raise error


def task_dirs_of(host: RuntimeContext, instance: TaskInstance, task: Task) -> TaskDirectories:
    """Return the task directories as the task sees them."""
    directory = host.directory(instance.allocation.id)
    driver = host.drivers.get(task.driver)
    return driver.task_dirs(directory, task.name) if driver else directories(directory, task.name)


def environment_of(
    host: RuntimeContext,
    instance: TaskInstance,
    task: Task,
    values: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment of a task; references use `values`, by default the node's values."""
    return task_environment(
        host.environment,
        instance.allocation,
        instance.job,
        task,
        task_dirs_of(host, instance, task),
        host.values if values is None else values,
        parent_cgroup=host.parent_cgroup,
    )


def progress_reporter(
    source: str, now: Callable[[], int], note: Callable[[TaskEvent], None]
) -> Callable[[int], None]:
    """Return a callback that takes the number of bytes so far, and emits events at intervals."""
    noted_at = now()

    def tell(size: int) -> None:
        nonlocal noted_at
        if now() >= noted_at + _TELL_AGAIN:
            noted_at = now()
            note(task_events.download_progress(noted_at, source, size))

    return tell


def services_of(group: TaskGroup, task: Task) -> list[Service]:
    """Return the services of a task, including group services not assigned to another task."""
    shared = [service for service in group.services or () if service.task_name in ("", task.name)]
    return [*shared, *(task.services or ())]


def missing_inputs(task: Task) -> str:
    """Return why this version of Steward cannot run a task, or an empty string.

    Starting a task without a feature that it needs could be unsafe.
    """
    return "this version of Steward cannot provide secrets" if task.secrets else ""


def _mounts(
    host: RuntimeContext, instance: TaskInstance, task: Task, filled: Callable[[str], str]
) -> Iterator[HostMount]:
    """Yield the host volumes that a task mounts; `filled` interpolates a text."""
    for mount in task.volume_mounts or ():
        volume = (instance.group.volumes or {}).get(mount.volume) or Volume()
        index = f"[{instance.allocation.index}]" if volume.per_alloc else ""
        source = f"{volume.source}{index}"
        mounted = _volume(host, instance, source)
        yield HostMount(
            name=mount.volume,
            source=mounted.path if mounted else "",
            volume=source,
            destination=filled(mount.destination),
            read_only=mount.read_only
            or volume.read_only
            or (mounted is not None and mounted.read_only),
        )


def _volume(host: RuntimeContext, instance: TaskInstance, name: str) -> HostVolume | None:
    """Return a configured volume, or a volume that the API created in the job's namespace."""
    if volume := host.volumes.get(name):
        return volume
    # Imported late, because few jobs have volumes.
    from storage.queries import host_volumes
    from storage.records.host_volume import READY

    host_volume = host.store.read(lambda db: host_volumes.named(db, name))
    if (
        host_volume is None
        or host_volume.state != READY
        or (host_volume.namespace, host_volume.node_id) != (instance.job.namespace, host.node_id)
    ):
        return None
    return HostVolume(name=name, path=host_volume.host_path, read_only=host_volume.is_read_only)


def _features(instance: TaskInstance, task: Task) -> Iterator[str]:
    """Yield the host features that the constraints of a task require from a cluster."""
    for block in (instance.job.constraints, instance.group.constraints, task.constraints):
        for feature in block or ():
            match = _FEATURE.fullmatch(feature.l_target)
            if match and (feature.r_target, feature.operand) in _IS_THERE:
                yield match[1]


def _names(
    dns: NetworkDNS | None, environment: Mapping[str, str], values: Mapping[str, str]
) -> NetworkDNS | None:
    """Return a `dns` block with its references interpolated."""
    if dns is None:
        return None

    def filled(texts: list[str] | None) -> list[str]:
        return [resolve(text, environment, values) for text in texts or ()]

    return NetworkDNS(
        servers=filled(dns.servers), searches=filled(dns.searches), options=filled(dns.options)
    )


class TaskSetup:
    """Prepares the inputs of a task. `note` emits an event, `tell` runs change actions."""

    def __init__(
        self,
        host: RuntimeContext,
        instance: Callable[[], TaskInstance],
        task: Task,
        note: Callable[[TaskEvent], None],
        tell: Callable[[list[ChangeAction]], Awaitable[None]],
        report: AllocReport,
    ) -> None:
        self._host, self._instance, self._name = host, instance, task.name
        self._note, self._tell, self._report = note, tell, report
        # This is the origin of the allocation's span. Later changes of the allocation have another
        # origin.
        self._origin = instance().allocation.request_id
        self._root = host.directory(instance().allocation.id)
        self._files = TaskFiles(
            launcher=host.launcher,
            allocation=instance().allocation.id,
            task=task.name,
            places=task_dirs_of(host, instance(), task),
        )
        self._secrets = GivenSecrets(host.secret_keeper, instance().allocation.id, task.name)
        self._identities = WorkloadIdentities(
            host.signer,
            IssuerInfo(host.issuer, host.values.get("node.region", ""), host.claims, host.values),
            self._files,
            task,
            services_of(instance().group, task),
            self._secrets,
        )
        self._token = VaultTokenRenewer(
            host.credentials,
            instance,
            task.name,
            self._files,
            host.clock.now,
            note,
            self._secrets,
        )
        self._templates = self._writer()
        self._step: StepData | None = None  # data of the step, in a workflow

    def _writer(self) -> "TemplateRunner | None":
        """Create the template runner of the task; return None if it has no templates."""
        host, task = self._host, self._task
        if not task.templates:
            return None
        # Imported late, because few tasks have templates.
        from daemon.runner.setup.templates import TemplateRunner, TemplateWriter

        writer = TemplateWriter(
            host=host,
            files=self._files,
            environment=lambda: self._own_environment() | host.values,
            note=self._note,
            secrets=self._secrets,
        )
        return TemplateRunner(writer, self._instance)

    @property
    def _task(self) -> Task:
        return self._instance().group.task(self._name) or Task(name=self._name)

    def environment(self) -> dict[str, str]:
        """Return the environment of the task, including its secrets."""
        added = self._templates.environment if self._templates else {}
        return self._own_environment() | added

    def _own_environment(self) -> dict[str, str]:
        """Return the environment without the variables from templates."""
        instance, task = self._instance(), self._task
        env = environment_of(self._host, instance, task, self._values)
        env |= network_variables(instance.allocation, task, self._report.network)
        env |= self._identities.environment
        env |= self._token.environment
        task_directories = task_dirs_of(self._host, instance, task)
        if self._step is not None:
            env["STEWARD_OUTPUT"] = f"{task_directories.local}/{OUTPUT_FILE}"
            env |= self._step.environment
        if self._identities.identities and task_directories.secrets.startswith(self._root):
            # In a sandbox the host path of the socket does not exist.
            env["NOMAD_UNIX_ADDR"] = f"unix:{self._host.task_socket}"
        return env

    def span_parts(self, number: int) -> tuple[str, ...]:
        """Return the parts of the span ID of an attempt."""
        return (self._instance().allocation.id, self._name, str(number))

    def attempt(self, number: int) -> Attempt:
        """Return the attempt with this number, including its environment, mounts and limits."""
        task, instance, host = self._task, self._instance(), self._host
        network = next(iter(instance.group.networks or ()), Network())
        env, values = self.environment(), self._values
        if (recorder := request_context.TRACING.recorder) is not None:
            env = recorder.environment(self._origin, *self.span_parts(number)) | env
        config = {
            name: resolve_config(value, env, values) for name, value in (task.config or {}).items()
        }
        allocated = instance.allocation.placement.resources
        task_resources = allocated.tasks.get(task.name)
        return Attempt(
            alloc_id=instance.allocation.id,
            task=task.name,
            number=number,
            directory=self._root,
            config=config,
            env=env,
            user=task.user,
            resources=msgspec.structs.replace(
                task.resources,
                memory_max_mb=task_resources.memory.memory_max_mb if task_resources else 0,
            ),
            cores=tuple((task_resources and task_resources.cpu.reserved_cores) or ()),
            mhz=task_resources.cpu.cpu_shares if task_resources else 0,
            log=task.log_config,
            logs=host.logs.of(instance.allocation.id, task),
            beside=f"{host.logs.moved}/{instance.allocation.id}",
            network_mode=network.mode,
            dns=_names(network.dns, env, values),
            ports=tuple(allocated.ports_of(task.name)),
            mounts=tuple(_mounts(host, instance, task, lambda text: resolve(text, env, values))),
            priority=instance.job.priority,
            longest=instance.group.max_run_duration or 0,
            disk_mb=instance.group.ephemeral_disk.size_mb,
            features=tuple(_features(instance, task)),
            family=(instance.job.namespace, instance.job.parent_id or instance.job.id),
            outputs=f"{task.name}/local/{OUTPUT_FILE}" if self._step is not None else "",
            keep=self._kept_patterns,
            files=self._step_files,
        )

    # --- steps of workflows ---

    @property
    def _values(self) -> Mapping[str, str]:
        """Return the values for references: those of the node, and the outputs of earlier steps."""
        node = self._host.values
        return {**node, **self._step.values} if self._step and self._step.values else node

    async def load_step(self) -> None:
        """Load the results of earlier steps. Raises `Refused`."""
        if not self._in_workflow or self._step is not None:
            return
        from daemon.runner.setup import step_data

        instance, store = self._instance(), self._host.store
        if step_data.is_independent(instance):
            self._step = step_data.StepData()
        else:
            self._step = await store.read_any(lambda db: step_data.load(db, instance))

    @property
    def _in_workflow(self) -> bool:
        return is_workflow(self._instance().job)

    @property
    def _step_files(self) -> tuple[TaskFile, ...]:
        """Return the files that the driver writes when it starts the task."""
        step, driver = self._step, self._host.drivers.get(self._task.driver)
        if step is None or not step.is_short or not writes_files(driver):
            return ()
        from daemon.runner.setup import step_data

        return step_data.files_of(self._files, step)

    async def collect_outputs(self, report: AllocReport, end: ExitResult) -> str:
        """Add the outputs of the ended task to a report.

        Return why a successful task counts as failed, or an empty string.
        """
        if not self._in_workflow:
            return ""
        from daemon.runner.setup import step_data

        return await step_data.collect(self._host.store, self._files, self._instance(), report, end)

    @property
    def _kept_patterns(self) -> tuple[str, ...]:
        return KEEP.of(self._task.meta) or KEEP.of(self._instance().group.meta)

    async def keep_files(self, delivered: DeliveredFiles) -> list[TaskEvent]:
        """Keep the files of the ended task that match `steward_keep`; return the resulting events.

        If the task ran on a cluster, its host has already sent the files.
        """
        instance, patterns = self._instance(), self._kept_patterns
        if not patterns:
            return []
        now = self._now()
        if self._host.file_keeper is None:
            number, size = self._host.store.read(self._kept_on_cluster)
            reasons = delivered.not_kept
            if not (number or reasons):
                reasons = ("the task's host has sent no files",)
        else:
            keeper = self._host.file_keeper()
            done = await keeper.keep(self._files, instance.job.namespace, patterns, now)
            number, size, reasons = done.number, done.size, done.reasons
        events = [task_events.file_not_kept(now, reason) for reason in reasons]
        return [task_events.files_kept(now, number, size), *events] if number else events

    def _kept_on_cluster(self, db: ReadSnapshot) -> tuple[int, int]:
        """Return the number and the total bytes of the files that the task's host has sent."""
        from storage.queries import kept_files  # imported late, because few jobs have kept files

        files = kept_files.page(db, self._instance().allocation.id)
        sizes = [file.size for file in files if file.task == self._name]
        return len(sizes), sum(sizes)

    async def _prepare_step(self) -> AttemptOutcome | None:
        """Write the results of earlier steps, and an empty file for outputs.

        Return an outcome only if this failed.
        """
        if self._step is None or self._step_files:
            return None
        from daemon.runner.setup import step_data

        try:
            await step_data.prepare(self._files, self._step)
        except (Refused, OSError) as error:
            _raise_shortage(error)
            text = f"the results of earlier steps cannot be written: {error}"
            self._note(task_events.setup_failure(self._now(), text))
            return AttemptOutcome.FAILED
        self.forget_results()
        return None

    def forget_results(self) -> None:
        """Release the memory of the written results.

        The results can be several megabytes, and later attempts use the written file.
        """
        if self._step is not None and self._step.needs:
            self._step = msgspec.structs.replace(self._step, needs=b"")

    async def matcher(self) -> Matcher:
        """Return the matcher that masks the task's secrets in output."""
        secrets = [*self._secrets]
        if sum(map(len, secrets)) <= _FEW_SECRETS:
            return Matcher(secrets)
        return await trio.to_thread.run_sync(Matcher, secrets)

    # --- before a start ---

    @property
    def may_be_slow(self) -> bool:
        """Return whether the setup of the task may take noticeable time."""
        task = self._task
        return bool(task.artifacts or task.templates or task.secrets_config)

    async def prepare(self) -> AttemptOutcome | None:
        """Set up the task; return an outcome only if the setup failed.

        Raises an error if no file descriptor is free; the caller repeats the setup.
        """
        instance, task = self._instance(), self._task
        try:
            await self.load_step()
        except Refused as error:
            text = f"cannot provide the results of earlier steps: {error}"
            self._note(task_events.setup_failure(self._now(), text))
            return AttemptOutcome.UNRECOVERABLE
        try:
            await self._secrets.add_of_job(
                instance.job.namespace, instance.job.parent_id or instance.job.id
            )
        except Refused as error:
            _raise_shortage(error)
            self._note(task_events.setup_failure(self._now(), str(error)))
            return AttemptOutcome.FAILED
        if (outcome := await self._connect_network()) is not None:
            return outcome
        if task.secrets_config or task.templates or self._identities.identities:
            await self._host.secret_dirs.mount_secrets(
                instance.allocation.id, task.name, task.resources.secrets_mb
            )
        if (outcome := await self._fetch_artifacts()) is not None:
            return outcome
        try:
            await self._identities.deliver(instance.allocation, instance.job, self._now())
        except (Refused, OSError) as error:
            _raise_shortage(error)
            self._note(
                task_events.setup_failure(self._now(), f"the task got no identity token: {error}")
            )
            return AttemptOutcome.UNRECOVERABLE
        try:
            if self._task.secrets_config is not None:
                await self._token.deliver()
        except (Refused, OSError) as error:
            _raise_shortage(error)
            self._note(
                task_events.secrets_failure(self._now(), f"the task got no Vault token: {error}")
            )
            return AttemptOutcome.UNRECOVERABLE
        if (outcome := await self._prepare_step()) is not None:
            return outcome
        return await self._write_templates()

    async def _connect_network(self) -> AttemptOutcome | None:
        """Connect the group to the bridge if required; return an outcome only if this failed."""
        instance = self._instance()
        network = next(iter(instance.group.networks or ()), Network())
        try:
            names = _names(network.dns, self._host.environment, self._values)
            self._report.network = await group_network.connect(self._host, instance, names)
        except (Refused, Refusal) as error:
            self._note(task_events.setup_failure(self._now(), f"the group has no network: {error}"))
            return AttemptOutcome.UNRECOVERABLE
        except OSError as error:
            _raise_shortage(error)
            text = f"the group has no network: {error.strerror}"
            self._note(task_events.setup_failure(self._now(), text))
            return AttemptOutcome.FAILED
        return None

    async def _write_templates(self) -> AttemptOutcome | None:
        if self._templates is None:
            return None
        try:
            await self._templates.write_all()
        except Refused as error:
            _raise_shortage(error)
            self._note(task_events.template(self._now(), f"Template failed: {error}"))
            return AttemptOutcome.UNRECOVERABLE
        return None

    async def _fetch_artifacts(self) -> AttemptOutcome | None:
        task = self._task
        if not task.artifacts or await self._files.recall("fetched") is not None:
            return None
        try:  # imported late, because few tasks have artifacts
            await import_in_thread(_FETCH)
            from daemon.runner.setup.artifacts.fetch import FetchFailed
        except (ImportError, OSError) as error:
            _raise_shortage(error)
            text = f"the module that downloads artifacts cannot be loaded: {error}"
            self._note(task_events.download_failed(self._now(), text))
            return AttemptOutcome.FAILED
        self._note(task_events.downloading(self._now()))
        env, matcher = self.environment(), await self.matcher()
        try:
            fetcher = self._host.fetcher()
            with request_context.span("artifacts"):
                for artifact in task.artifacts:
                    await fetcher.fetch(self._order(artifact, env, matcher))
        except FetchFailed as error:
            _raise_shortage(error)
            message = matcher.mask_text(str(error))
            self._note(task_events.download_failed(self._now(), message))
            return AttemptOutcome.FAILED if error.recoverable else AttemptOutcome.UNRECOVERABLE
        await self._files.write_note("fetched", "")
        return None

    def _order(
        self, artifact: Artifact, env: Mapping[str, str], matcher: Matcher
    ) -> "ArtifactRequest":
        from daemon.runner.setup.artifacts.fetch import ArtifactRequest

        filled = resolve_config(msgspec.to_builtins(artifact), env, self._values)
        return ArtifactRequest(
            artifact=msgspec.convert(filled, Artifact),
            files=self._files,
            payload=self._digest_of,
            kept_digest=self._kept_digest,
            namespace=self._instance().job.namespace,
            arrived=progress_reporter(
                matcher.mask_text(artifact.getter_source), self._now, self._note
            ),
        )

    def _digest_of(self, name: str) -> str:
        """Return the digest of a named file of the job or its parent; empty if there is none."""
        from storage.queries import payload_files  # imported late, because few jobs have files

        job = self._instance().job
        store, find = self._host.store, partial(payload_files.digest_of, namespace=job.namespace)
        own = store.read(partial(find, job_id=job.id, name=name))
        if own or not job.parent_id:
            return own
        return store.read(partial(find, job_id=job.parent_id, name=name))

    async def _kept_digest(self, step: str, element: int | None, path: str) -> str:
        """Return the digest of a file that an earlier step has kept; empty if there is none.

        If `element` is None, the file is from the element that has the same index as the task's own
        element. If the outputs of `step` are not lists, it is from element 0.
        """
        from daemon.flow import lists
        from storage.queries import kept_files  # imported late, because few jobs have kept files

        instance = self._instance()
        allocation, group = instance.allocation, lists.resolved_group(instance.job, step)
        if group is None:
            return ""
        if element is None:
            element = max(allocation.index, 0) if lists.is_array(group) else 0
        digest = partial(
            kept_files.digest_in_run,
            namespace=allocation.namespace,
            job_id=allocation.job_id,
            version=allocation.job_version,
            group=step,
            element=element,
            path=path,
        )
        return await self._host.store.read_long(digest)

    # --- while the task runs ---

    @property
    def may_change(self) -> bool:
        """Return whether any input of the task can change while it runs."""
        has_more = self._templates is not None or self._task.secrets_config is not None
        identities = self._identities
        return has_more or identities.next_renewal() is not None or bool(identities.pending_actions)

    async def recall(self, started_at: str) -> None:
        """Restore the inputs that an earlier daemon gave to the task."""
        instance = self._instance()
        try:  # the rules for forwarding ports may have been deleted
            await group_network.connect(self._host, instance, None)
        except (Refused, OSError) as error:
            self._note(task_events.setup_failure(self._now(), f"the group has no network: {error}"))
        await self._secrets.recall()
        began = nanoseconds(started_at) if started_at else self._now()
        try:
            await self._identities.recall(instance.allocation, instance.job, began, self._now())
        except (Refused, OSError) as error:
            self._note(
                task_events.setup_failure(self._now(), f"the task got no identity token: {error}")
            )
        if self._task.secrets_config is not None:
            await self._token.recall()
        if self._templates is not None:
            await self._templates.recall()
        with suppress(Refused):  # the next delivery tries again
            await self._secrets.store()

    async def keep_current(self) -> None:
        """Renew and update the inputs, and run the change actions, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._renew_identities)
            if self._task.secrets_config is not None:
                nursery.start_soon(self._keep_token)
            if self._templates is not None:
                nursery.start_soon(self._templates.keep_current, self._tell)

    async def _keep_token(self) -> None:
        while True:
            await self._tell(await self._token.renew_when_due())
            await self._token.forget_action()

    async def _renew_identities(self) -> None:
        """Renew each workload identity token at half of its lifetime."""
        await self._act_on_renewals()  # those of an earlier daemon
        while (due := self._identities.next_renewal()) is not None:
            await trio.sleep(max(0, due - self._now()) / SECOND)
            instance, problem = self._instance(), ""
            try:
                await self._identities.renew(instance.allocation, instance.job, self._now())
            except (Refused, OSError) as error:
                problem = f"the task got no new identity token: {error}"
                self._note(task_events.setup_failure(self._now(), problem))
            await self._act_on_renewals()
            if problem:
                await trio.sleep(_RENEW_AGAIN)

    async def _act_on_renewals(self) -> None:
        """Run the change actions of renewed identities."""
        if actions := self._identities.pending_actions:
            await self._tell(actions)
            await self._identities.forget_actions()

    def _now(self) -> int:
        return self._host.clock.now()
