"""Render the templates of a task before it starts, and again when their data changes.

A task starts when all its templates are rendered. A template whose data is missing is rendered when
the data is complete. While the task runs, a template is written again only if its text has changed.
Its change action runs after that. If an error occurs while the task runs, an event records the
error, and the previous text stays.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import msgspec
import trio

from daemon.runner.core import task_events
from daemon.runner.core.notifier import wait_any
from daemon.runner.core.task_env import pairs, resolve, variable_name
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.core.task_instance import TaskInstance
from daemon.runner.setup.change_actions import ChangeAction, PendingActions
from daemon.runner.setup.given_secrets import GivenSecrets
from daemon.runner.setup.runtime import RuntimeContext
from daemon.runner.setup.template_sources import TemplateContext, TemplateSources
from daemon.templates.errors import LONGEST, TemplateError, TemplateOutputTooLong
from daemon.templates.lookups import Answers, LookupKey, missing_lookups
from daemon.templates.nodes import ParsedTemplate
from daemon.templates.render import FEW_STEPS, MOST_STEPS, RenderResult, read, render
from storage.errors import Refused
from storage.records.allocation import TaskEvent
from storage.records.base import SECOND
from storage.records.task import Template

_PACE = 0.1  # seconds between the handling of two changes
_FILES_AGAIN = 1.0  # seconds between two polls of files
_ROUNDS = 20  # rounds of lookups that depend on other lookups
_SHORT = 16 * 1024  # characters; longer templates are parsed in a thread
# Characters; a longer environment is parsed in a thread. Parsing four characters takes 2 µs.
_SHORT_ENVIRONMENT = 4 * 1024
_MOST_VARIABLES = 1000  # variables of one template
_SHOWN = 3  # missing items named in an event
_PERMISSIONS = 0o777  # permission bits only, without set-user-ID and similar
_DEFAULT_PERMISSIONS = 0o644

RESTARTED = "Template with change_mode restart re-rendered"


class TemplateWriter(msgspec.Struct, frozen=True, kw_only=True):
    """The dependencies of a `TemplateRunner`.

    `note` emits an event immediately. `environment` returns the variables of the task and the values
    of the node, such as `node.datacenter`.
    """

    host: RuntimeContext
    files: TaskFiles
    environment: Callable[[], Mapping[str, str]]
    note: Callable[[TaskEvent], None]
    secrets: GivenSecrets | None = None


class TemplateRunner:
    """Renders and rewrites the templates of one task."""

    def __init__(self, writer: TemplateWriter, instance: Callable[[], TaskInstance]) -> None:
        self._desk, self._instance = writer, instance
        ground = TemplateContext(
            store=writer.host.store,
            variables=writer.host.variables,
            files=writer.files,
        )
        self._sources = TemplateSources(ground, instance, writer.secrets)
        self._programs: dict[str, ParsedTemplate] = {}
        self._texts: dict[str, str] = {}  # last written text by destination
        self._lookups: set[LookupKey] = set()
        self._read_files: dict[str, object] = {}  # signatures from before each file was read
        self._reported = ""  # last reported missing item or error
        self._is_fresh = False  # templates rendered for an attempt whose process has not started
        self._pending = PendingActions(writer.files, "changed")
        self.environment: dict[str, str] = {}

    @property
    def secrets(self) -> GivenSecrets:
        """Return the values of the variables that the templates have read."""
        return self._sources.secrets

    def _interpolated(self) -> list[Template]:
        """Return the templates with interpolated paths."""
        task = self._instance().group.task(self._desk.files.task)
        environment = self._desk.environment()
        return [
            msgspec.structs.replace(
                template,
                source_path=resolve(template.source_path, environment, {}),
                dest_path=resolve(template.dest_path, environment, {}),
            )
            for template in (task and task.templates) or ()
        ]

    async def write_all(self) -> None:
        """Wait until the data of all templates is complete, and write them. Raises `Refused`."""
        try:
            await self._write_all()
        except (TemplateError, OSError) as error:
            raise Refused(str(error)) from error

    async def _write_all(self) -> None:
        while True:
            with self._desk.host.store.watch(*self._topics()) as changes:
                before, renderings = self._topics(), await self._fill_all()
                if self._topics() != before:
                    continue  # subscribe before reading, so that no change is missed
                missing = {
                    lookup for rendering in renderings.values() for lookup in rendering.missing
                }
                if not missing:
                    break
                self._emit_problem(_missing(missing, self._sources.refusals))
                await self._change(changes.wait, self._read_files)
        self._texts.clear()
        self.environment.clear()
        await self._store_pending(_runs_at_first)
        for template in self._interpolated():
            await self._write(template, renderings[template.dest_path].text)
        self._reported, self._is_fresh = "", True

    async def recall(self) -> None:
        """Restore the state of the templates that an earlier daemon wrote.

        Templates with pending change actions count as not written, so that they are written again.
        """
        pending = await self._pending.recall()
        for number, template in enumerate(self._interpolated()):
            with suppress(
                OSError, TemplateError, Refused
            ):  # a task may have removed or changed the file
                text = await self._read(template.dest_path)
                self._take(template, text, await self._variables(template, text))
            if number in pending:
                self._texts.pop(template.dest_path, None)
        with suppress(
            OSError, TemplateError, Refused
        ):  # render again to know the secrets of the task
            await self._fill_all()

    async def keep_current(self, tell: Callable[[list[ChangeAction]], Awaitable[None]]) -> None:
        """Write changed templates and emit their change actions, until cancelled."""
        if self._is_fresh:
            self._is_fresh = False
            scripts = [template for template in self._interpolated() if _runs_at_first(template)]
            await tell([_change_action(template) for template in scripts])
            await self._pending.forget()
        while self._interpolated():
            with self._desk.host.store.watch(*self._topics()) as changes:
                before = self._topics()
                if changed := await self._renew():
                    await trio.sleep(self._delay(changed))
                    await tell([_change_action(template) for template in changed])
                    await self._pending.forget()
                if self._topics() == before:
                    await self._change(changes.wait, self._read_files)
            await self._settle()

    async def _renew(self) -> list[Template]:
        """Write the templates whose text has changed, and return them."""
        changed = []
        try:
            renderings = await self._fill_all(again=True)
            texts = {path: item.text for path, item in renderings.items() if not item.missing}

            def differs(template: Template) -> bool:
                path = template.dest_path
                return path in texts and texts[path] != self._texts.get(path)

            due = [template for template in self._interpolated() if differs(template)]
            if any(template.change_mode != "noop" for template in due):
                await self._store_pending(differs)
            for template in due:
                await self._write(template, texts[template.dest_path])
                changed.append(template)
        except (TemplateError, Refused, OSError) as error:
            self._emit_problem(f"Template failed: {error}")
        return changed

    # --- pending change actions ---

    async def _store_pending(self, is_pending: Callable[[Template], bool]) -> None:
        """Store which templates have a pending change action. Raises `OSError`."""
        await self._pending.store(
            number for number, template in enumerate(self._interpolated()) if is_pending(template)
        )

    def _delay(self, changed: list[Template]) -> float:
        """Return a random delay in seconds, at most the longest `splay` of the templates.

        The delay prevents all tasks from restarting at the same time.
        """
        longest = max(template.splay for template in changed)
        return self._desk.host.chance() * longest / SECOND

    # --- waiting ---

    def _topics(self) -> set[str]:
        return self._sources.topics(self._lookups)

    async def _change(
        self, on_change: Callable[[], Awaitable[object]], read: Mapping[str, object] | None = None
    ) -> None:
        """Wait until an answer may have changed.

        `read` has the signatures of files from before they were read. A file that has changed since
        then ends the wait immediately.
        """
        before = {**await self._sources.signatures(self._lookups), **(read or {})}
        if before:
            await wait_any(on_change, partial(self._other_files, before))
        else:
            await on_change()

    async def _other_files(self, before: Mapping[str, object]) -> None:
        while (  # noqa: ASYNC110  # files give no notification
            await self._sources.signatures(self._lookups) == before
        ):
            await trio.sleep(_FILES_AGAIN)

    async def _settle(self) -> None:
        """Wait for further changes, within the `wait` block of the templates."""
        spans = [template.wait for template in self._interpolated() if template.wait]
        least = max((wait.min or 0 for wait in spans), default=0) / SECOND
        most = max((wait.max or wait.min or 0 for wait in spans), default=0) / SECOND
        await trio.sleep(_PACE)
        with trio.move_on_after(most):
            is_quiet = not least
            while not is_quiet:
                with (
                    self._desk.host.store.watch(*self._topics()) as changes,
                    trio.move_on_after(least) as calm,
                ):
                    await self._change(changes.wait)
                is_quiet = calm.cancelled_caught

    # --- rendering ---

    async def _fill_all(self, *, again: bool = False) -> dict[str, RenderResult]:
        """Render all templates; return the results by destination.

        With `again`, skip the templates that are rendered only once.
        """
        answers: dict[LookupKey, object] = {}
        self._lookups, self._read_files = set(), {}
        renderings = {}
        for template in self._interpolated():
            path = template.dest_path
            if not (again and template.once and path in self._texts):
                renderings[path] = await self._fill(template, answers)
        return renderings

    async def _fill(self, template: Template, answers: dict[LookupKey, object]) -> RenderResult:
        try:
            program = await self._program(template)
            for _ in range(_ROUNDS):
                rendering = await self._rendered(program, answers, template)
                self._lookups |= rendering.asked
                unknown = missing_lookups(rendering.asked, answers)
                if not unknown:
                    return rendering
                for question in unknown:
                    self._read_files |= await self._sources.signatures({question})
                    answers[question] = await self._sources.answer(question)
        except TemplateError as error:
            raise TemplateError(f"{template.dest_path}: {error}") from error
        raise TemplateError(
            f"{template.dest_path}: each lookup requires further lookups, without end"
        )

    async def _program(self, template: Template) -> ParsedTemplate:
        parsed_template = self._programs.get(template.dest_path)
        if parsed_template is not None and not template.source_path:
            return parsed_template
        text = await self._source(template)
        work = partial(read, text, template.left_delim, template.right_delim)
        if len(text) > _SHORT:
            program = await trio.to_thread.run_sync(work, limiter=self._desk.host.rendering)
        else:
            program = work()
        self._programs[template.dest_path] = program
        return program

    async def _source(self, template: Template) -> str:
        if not template.source_path:
            return template.embedded_tmpl
        try:
            return await self._read(template.source_path)
        except OSError as error:
            raise TemplateError(
                f"cannot read source {template.source_path}: {error.strerror}"
            ) from error

    async def _rendered(
        self, program: ParsedTemplate, answers: Answers, template: Template
    ) -> RenderResult:
        work = partial(
            render,
            program,
            dict(answers),
            dict(self._desk.environment()),
            now=self._desk.host.clock.now(),
            strict=template.err_missing_key,
        )
        try:
            return work(steps=FEW_STEPS)
        except TemplateOutputTooLong:
            return await trio.to_thread.run_sync(
                partial(work, steps=MOST_STEPS), limiter=self._desk.host.rendering
            )

    # --- files ---

    async def _read(self, path: str) -> str:
        files = self._desk.files
        return (await files.read(files.resolve(path), LONGEST)).decode(errors="replace")

    async def _write(self, template: Template, text: str) -> None:
        environment = await self._variables(template, text)
        await self.secrets.store()
        files, owner = self._desk.files, None
        if template.uid is not None or template.gid is not None:
            owner = (_owner_number(template.uid), _owner_number(template.gid))
        mode = int(template.perms, 8) if template.perms else _DEFAULT_PERMISSIONS
        path, content = files.resolve(template.dest_path), text.encode(errors="replace")
        await files.write(path, content, owner=owner, mode=mode & _PERMISSIONS)
        self._take(template, text, environment)

    async def _variables(self, template: Template, text: str) -> Mapping[str, str]:
        """Return the variables that an `env` template defines. Raises `TemplateError`."""
        if not template.envvars:
            return {}
        work = partial(_environment, template, text)
        if len(text) <= _SHORT_ENVIRONMENT:
            return work()
        return await trio.to_thread.run_sync(work, limiter=self._desk.host.rendering)

    def _take(self, template: Template, text: str, environment: Mapping[str, str]) -> None:
        self._texts[template.dest_path] = text
        self.environment |= environment

    def _emit_problem(self, text: str) -> None:
        """Emit an event for a problem, unless the last event had the same text."""
        if text != self._reported:
            self._reported = text
            self._desk.note(task_events.template(self._desk.host.clock.now(), text))


def _environment(template: Template, text: str) -> Mapping[str, str]:
    try:
        variables = pairs(text, _MOST_VARIABLES)
    except ValueError as error:
        raise TemplateError(f"{template.dest_path}: {error}") from error
    return {variable_name(name): value for name, value in variables.items()}


def _owner_number(number: int | None) -> int:
    return -1 if number is None else number


def _runs_at_first(template: Template) -> bool:
    script = template.change_script
    return template.change_mode == "script" and script is not None and script.run_on_first_render


def _change_action(template: Template) -> ChangeAction:
    return ChangeAction(
        mode=template.change_mode,
        signal=template.change_signal,
        script=template.change_script,
        description=RESTARTED,
    )


def _missing(missing: set[LookupKey], refusals: Mapping[LookupKey, str]) -> str:
    """Return the message about missing data, as in Nomad, with refused lookups added."""
    names = sorted(map(str, missing))
    names_text = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        names_text += f", and {len(names) - _SHOWN} more"
    denied = sorted(refusals[lookup] for lookup in missing if lookup in refusals)
    return f"Missing: {names_text}" + (f" ({denied[0]})" if denied else "")
