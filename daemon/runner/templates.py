"""The templates of one task: written before it starts, and again when what they read changes.

A task does not start before all of its templates are there: one that needs a variable or a file
waits until there is one. While the task runs, a template is written anew only when its text is
another one, and the task is told of it as the template says. What goes wrong then is noted, and
the text from before stays.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import msgspec
import trio

from daemon.runner import events
from daemon.runner.changes import first_of
from daemon.runner.env import pairs, resolve
from daemon.runner.host import Host
from daemon.runner.instance import Instance
from daemon.runner.taskfiles import TaskFiles
from daemon.runner.template_sources import Ground, Sources
from daemon.runner.wishes import Wish
from daemon.templates.faults import LONGEST, Fault, TooLong
from daemon.templates.lookups import Answers, Question, unanswered
from daemon.templates.nodes import Program
from daemon.templates.render import FEW_STEPS, MOST_STEPS, Rendering, read, render
from storage.errors import Refused
from storage.records.allocation import TaskEvent
from storage.records.base import SECOND
from storage.records.task import Template

_PACE = 0.1  # seconds between two changes that are looked at
_FILES_AGAIN = 1.0  # seconds until files that were read are looked at again
_ROUNDS = 20  # of questions that lead to questions
_SHORT = 16 * 1024  # characters of a template that do not hold up who reads it
_SHOWN = 3  # missing things that an event names
_PERMISSIONS = 0o777  # no bits that give a file more rights than its reader has
_DEFAULT_PERMISSIONS = 0o644

RESTARTED = "Template with change_mode restart re-rendered"


class Desk(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to write the templates of one task. `note` tells at once what happens."""

    host: Host
    files: TaskFiles
    environment: Callable[[], Mapping[str, str]]
    note: Callable[[TaskEvent], None]


class Templates:
    """The templates of one task."""

    def __init__(self, desk: Desk, instance: Callable[[], Instance]) -> None:
        self._desk, self._instance = desk, instance
        ground = Ground(
            store=desk.host.store,
            variables=desk.host.variables,
            files=desk.files,
        )
        self._sources = Sources(ground, instance)
        self._programs: dict[str, Program] = {}
        self._texts: dict[str, str] = {}  # by destination, as they were written last
        self._asked: set[Question] = set()
        self._said = ""  # of what is missing or wrong
        self._is_fresh = False  # written for an attempt, of which no script knows yet
        self.environment: dict[str, str] = {}

    def _wanted(self) -> list[Template]:
        """Return the templates, with the references in their paths filled in."""
        task = self._instance().group.task(self._desk.files.task)
        environment = self._desk.environment()
        return [
            msgspec.structs.replace(
                one,
                source_path=resolve(one.source_path, environment, {}),
                dest_path=resolve(one.dest_path, environment, {}),
            )
            for one in (task and task.templates) or ()
        ]

    async def bring(self) -> None:
        """Write all of them, as soon as everything is there that they need. Raises `Refused`."""
        try:
            await self._bring()
        except (Fault, OSError) as error:
            raise Refused(str(error)) from error

    async def _bring(self) -> None:
        while True:
            with self._desk.host.store.watch(*self._topics()) as changes:
                before, found = self._topics(), await self._fill_all()
                if self._topics() != before:
                    continue  # what is watched must be watched before it is read
                missing = {one for rendering in found.values() for one in rendering.missing}
                if not missing:
                    break
                self._say(_missing(missing, self._sources.refusals))
                await self._change(changes.wait)
        self._texts.clear()
        self.environment.clear()
        for template in self._wanted():
            await self._write(template, found[template.dest_path].text)
        self._said, self._is_fresh = "", True

    async def recall(self) -> None:
        """Go on with what an earlier daemon has written."""
        for template in self._wanted():
            with suppress(OSError, Fault, Refused):  # a task may have removed or changed it
                text = await self._read(template.dest_path)
                self._take(template, text, _environment(template, text))

    async def tend(self, tell: Callable[[list[Wish]], Awaitable[None]]) -> None:
        """Write anew what changes and say how the task wants to be told, until cancelled."""
        if self._is_fresh:
            self._is_fresh = False
            scripts = [one for one in self._wanted() if _runs_at_first(one)]
            await tell([_wish(one) for one in scripts])
        while self._wanted():
            with self._desk.host.store.watch(*self._topics()) as changes:
                before = self._topics()
                if changed := await self._renew():
                    await trio.sleep(self._delay(changed))
                    await tell([_wish(one) for one in changed])
                if self._topics() == before:
                    await self._change(changes.wait)
            await self._settle()

    async def _renew(self) -> list[Template]:
        """Write what has another text now, and return it."""
        changed = []
        try:
            found = await self._fill_all(again=True)
            for template in self._wanted():
                rendering = found.get(template.dest_path)
                if rendering is None or rendering.missing:
                    continue
                if rendering.text != self._texts.get(template.dest_path):
                    await self._write(template, rendering.text)
                    changed.append(template)
        except (Fault, Refused, OSError) as error:
            self._say(f"Template failed: {error}")
        return changed

    def _delay(self, changed: list[Template]) -> float:
        """Return for how many seconds the task is not told, so that not all tasks restart at once."""
        longest = max(one.splay for one in changed)
        return self._desk.host.chance() * longest / SECOND

    # ---- waiting --------------------------------------------------------------------------------

    def _topics(self) -> set[str]:
        return self._sources.topics(self._asked)

    async def _change(self, told: Callable[[], object]) -> None:
        """Return when an answer may have changed."""
        before = await self._sources.signatures(self._asked)
        if before:
            await first_of(told, partial(self._other_files, before))  # type: ignore[arg-type]
        else:
            await told()  # type: ignore[misc]

    async def _other_files(self, before: Mapping[str, object]) -> None:
        while (  # noqa: ASYNC110  # nobody tells
            await self._sources.signatures(self._asked) == before
        ):
            await trio.sleep(_FILES_AGAIN)

    async def _settle(self) -> None:
        """Let changes that come together come, as long as the templates allow."""
        spans = [one.wait for one in self._wanted() if one.wait]
        least = max((one.min or 0 for one in spans), default=0) / SECOND
        most = max((one.max or one.min or 0 for one in spans), default=0) / SECOND
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

    # ---- filling in -----------------------------------------------------------------------------

    async def _fill_all(self, *, again: bool = False) -> dict[str, Rendering]:
        """Fill in all of them, by destination; `again`: but those that are written only once."""
        answers: dict[Question, object] = {}
        self._asked = set()
        found = {}
        for template in self._wanted():
            path = template.dest_path
            if not (again and template.once and path in self._texts):
                found[path] = await self._fill(template, answers)
        return found

    async def _fill(self, template: Template, answers: dict[Question, object]) -> Rendering:
        try:
            program = await self._program(template)
            for _ in range(_ROUNDS):
                rendering = await self._rendered(program, answers, template)
                self._asked |= rendering.asked
                unknown = unanswered(rendering.asked, answers)
                if not unknown:
                    return rendering
                for question in unknown:
                    answers[question] = await self._sources.answer(question)
        except Fault as error:
            raise Fault(f"{template.dest_path}: {error}") from error
        raise Fault(f"{template.dest_path}: questions lead to ever more questions")

    async def _program(self, template: Template) -> Program:
        known = self._programs.get(template.dest_path)
        if known is not None and not template.source_path:
            return known
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
            raise Fault(f"source {template.source_path}: {error.strerror}") from error

    async def _rendered(self, program: Program, answers: Answers, template: Template) -> Rendering:
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
        except TooLong:
            return await trio.to_thread.run_sync(
                partial(work, steps=MOST_STEPS), limiter=self._desk.host.rendering
            )

    # ---- files ----------------------------------------------------------------------------------

    async def _read(self, path: str) -> str:
        files = self._desk.files
        return (await files.read(files.meant(path), LONGEST)).decode(errors="replace")

    async def _write(self, template: Template, text: str) -> None:
        environment = _environment(template, text)
        files, owner = self._desk.files, None
        if template.uid is not None or template.gid is not None:
            owner = (_whose(template.uid), _whose(template.gid))
        mode = int(template.perms, 8) if template.perms else _DEFAULT_PERMISSIONS
        path, content = files.meant(template.dest_path), text.encode(errors="replace")
        await files.write(path, content, owner=owner, mode=mode & _PERMISSIONS)
        self._take(template, text, environment)

    def _take(self, template: Template, text: str, environment: Mapping[str, str]) -> None:
        self._texts[template.dest_path] = text
        self.environment |= environment

    def _say(self, text: str) -> None:
        """Note what is wrong, once."""
        if text != self._said:
            self._said = text
            self._desk.note(events.template(self._desk.host.clock.now(), text))


def _environment(template: Template, text: str) -> Mapping[str, str]:
    """Return what a template says of the environment. Raises `Fault`."""
    if not template.envvars:
        return {}
    try:
        return pairs(text)
    except ValueError as error:
        raise Fault(f"{template.dest_path}: {error}") from error


def _whose(number: int | None) -> int:
    return -1 if number is None else number


def _runs_at_first(template: Template) -> bool:
    script = template.change_script
    return template.change_mode == "script" and script is not None and script.run_on_first_render


def _wish(template: Template) -> Wish:
    return Wish(
        mode=template.change_mode,
        signal=template.change_signal,
        script=template.change_script,
        said=RESTARTED,
    )


def _missing(missing: set[Question], refusals: Mapping[Question, str]) -> str:
    """Return what a task waits for, as the peer says it; and what it will not get."""
    names = sorted(map(str, missing))
    shown = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        shown += f", and {len(names) - _SHOWN} more"
    denied = sorted(refusals[one] for one in missing if one in refusals)
    return f"Missing: {shown}" + (f" ({denied[0]})" if denied else "")
