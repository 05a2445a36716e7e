"""The pages of `steward top` as lines of text: order, filter and select the rows. No I/O."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from daemon.cli.core.formatting import format_duration
from daemon.cli.core.sparkline import sparkline
from daemon.text.job_state import ENDED, TROUBLE

_MEGABYTE = 1024 * 1024
_GIGABYTE = 1024 * _MEGABYTE
_WIDE = 110  # columns: a wider page shows the trend of the CPU usage
_TREND = 12  # columns of the trend
_WHOLE_CORE = 10.0  # percent of one core: less than this shows as a low bar
_NARROW = 76  # columns: a narrower page leaves out its least important column
_CHILDREN = ("/periodic-", "/dispatch-")
_HEAD, _FOOT = 3, 2  # lines above and below the rows


class JobRow(NamedTuple):
    """A job as a row; `wanted` is its desired number of allocations."""

    id: str
    namespace: str
    type: str
    state: str
    reason: str
    wanted: int


class AllocationRow(NamedTuple):
    """An allocation as a row. `created` is in nanoseconds since the epoch."""

    id: str
    name: str
    namespace: str
    job_id: str
    state: str
    created: int
    modify_index: int = 0
    node_id: str = ""


class NodeRow(NamedTuple):
    """A node, or a cluster pool, as a row. `about` holds its status and the requested resources."""

    id: str
    name: str
    pool: str
    state: str
    about: str = ""


class AllocationUse(NamedTuple):
    """The usage of an allocation: CPU in percent of one core, memory in bytes, and restarts.

    `recent` has the CPU usage of the last two minutes, a value for each 10 s.
    """

    cpu: float = 0.0
    memory: int = 0
    restarts: int = 0
    recent: tuple[float | None, ...] = ()

    def plus(self, other: "AllocationUse") -> "AllocationUse":
        """Return the sum of two usages."""
        return AllocationUse(
            self.cpu + other.cpu,
            self.memory + other.memory,
            self.restarts + other.restarts,
            _sums(self.recent, other.recent),
        )


def _sums(first: Sequence[float | None], other: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return the sums of two series of values.

    Both series end at the same time, so a shorter series began later.
    """
    count = max(len(first), len(other))
    pairs = zip(
        [None] * (count - len(first)) + list(first),
        [None] * (count - len(other)) + list(other),
        strict=True,
    )
    return tuple(
        None if left is None and right is None else (left or 0) + (right or 0)
        for left, right in pairs
    )


class TopFacts(NamedTuple):
    """The data of one update of the screen. `node` is a line of text about the node."""

    jobs: Sequence[JobRow] = ()
    allocations: Sequence[AllocationRow] = ()
    uses: Mapping[str, AllocationUse] = {}
    errors: Mapping[str, str] = {}
    node: str = ""
    trouble: str = ""  # why the daemon does not respond
    nodes: Sequence[NodeRow] = ()
    hidden: str = ""  # why nodes are not shown


class Row(NamedTuple):
    """A row of a page. `about` is a reason, an error, or the requested resources of a node."""

    key: tuple[str, str]  # namespace and ID of a job or an allocation; "" and the ID of a node
    state: str
    name: str
    short: str  # number of running allocations, or the prefix of an ID
    use: AllocationUse | None
    about: str
    age: str = ""


class ScreenLine(NamedTuple):
    """A line of the screen and its style."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """A column: its title, its width, and whether it is right-aligned."""

    title: str
    width: int
    right: bool = False


SORTS = {"t": "state", "c": "CPU", "m": "memory", "r": "restarts", "n": "name"}
_STYLES = {
    "running": "green",
    "complete": "green",
    "scheduled": "green",
    "ready": "green",
    "down": "red",
    "disconnected": "red",
    "draining": "yellow",
    "ineligible": "yellow",
    "failed": "red",
    "failing": "red",
    "lost": "red",
    "blocked": "yellow",
    "degraded": "yellow",
    "pending": "yellow",
    "stopping": "yellow",
    "deploying": "yellow",
}
_KEYS = {
    "jobs": "Enter allocations  o nodes  l logs  w explain  x stop  / filter  t c m r n sort  q quit",
    "nodes": "Esc jobs  w status  / filter  t c m n sort  q quit",
    "allocations": "Esc jobs  l logs  e exec  w explain  x stop  / filter  t c m r n sort  q quit",
}


_REASONS = {"jobs": "REASON", "nodes": "REQUESTED", "allocations": "LAST ERROR"}


def parent_of(job_id: str) -> str:
    """Return the job whose row includes this job: the parent of a child, else the job itself."""
    for mark in _CHILDREN:
        if mark in job_id:
            return job_id.rpartition(mark)[0]
    return job_id


def job_rows(facts: TopFacts) -> list[Row]:
    """Return a row for each job, with the usage of its allocations and of its children."""
    uses: dict[tuple[str, str], AllocationUse] = {}
    running: Counter[tuple[str, str]] = Counter()
    for alloc in facts.allocations:
        key = (alloc.namespace, parent_of(alloc.job_id))
        running[key] += alloc.state == "running"
        if (use := facts.uses.get(alloc.id)) is not None:
            before = uses.get(key, AllocationUse())
            uses[key] = before.plus(use)
    rows = []
    for job in facts.jobs:
        key = (job.namespace, job.id)
        count = f"{running[key]}/{job.wanted}" if job.wanted else str(running[key])
        rows.append(Row(key, job.state, job.id, count, uses.get(key), job.reason, job.type))
    return rows


def allocation_rows(facts: TopFacts, now: int, of_job: tuple[str, str] | None) -> list[Row]:
    """Return a row for each allocation: of all jobs, or of the job `of_job` and its children."""
    return [
        Row(
            (alloc.namespace, alloc.id),
            alloc.state,
            alloc.name,
            alloc.id[:8],
            facts.uses.get(alloc.id),
            facts.errors.get(alloc.id, ""),
            format_duration(now - alloc.created) if alloc.created else "",
        )
        for alloc in facts.allocations
        if of_job in (None, (alloc.namespace, parent_of(alloc.job_id)))
    ]


def node_rows(facts: TopFacts) -> list[Row]:
    """Return a row for each node, with the usage and the requested resources of its allocations."""
    uses: dict[str, AllocationUse] = {}
    running: Counter[str] = Counter()
    for alloc in facts.allocations:
        running[alloc.node_id] += alloc.state == "running"
        if (use := facts.uses.get(alloc.id)) is not None:
            uses[alloc.node_id] = uses.get(alloc.node_id, AllocationUse()).plus(use)
    return [
        Row(
            ("", node.id),
            node.state,
            node.name,
            str(running[node.id]),
            uses.get(node.id),
            node.about,
            node.pool,
        )
        for node in facts.nodes
    ]


def _rank(state: str) -> int:
    if state in TROUBLE or state in ("failed", "lost", "down", "disconnected"):
        return 0
    return 2 if state in ENDED else 1


def ordered(rows: Iterable[Row], sort: str) -> list[Row]:
    """Return the rows in the order `sort`: by state, by decreasing usage, or by name.

    The order by state begins with problems.
    """
    named = sorted(rows, key=lambda row: (row.name, row.key))
    nothing = AllocationUse()
    match sort:
        case "CPU":
            return sorted(named, key=lambda row: -(row.use or nothing).cpu)
        case "memory":
            return sorted(named, key=lambda row: -(row.use or nothing).memory)
        case "restarts":
            return sorted(named, key=lambda row: -(row.use or nothing).restarts)
        case "name":
            return named
        case _:
            return sorted(named, key=lambda row: _rank(row.state))


class View:
    """The state of the display: page, order, filter and selection; keys change it."""

    def __init__(self) -> None:
        self.page = "jobs"
        self.sort = "state"
        self.filter = ""
        self.is_typing = False  # the filter is edited
        self.of_job: tuple[str, str] | None = None
        self.confirming: Row | None = None  # the row whose stop needs a confirmation
        self.message = ""
        self.rows: list[Row] = []
        self._selected: tuple[str, str] | None = None
        self._first = 0

    @property
    def selected(self) -> Row | None:
        """Return the selected row, or None if there are no rows."""
        return next((row for row in self.rows if row.key == self._selected), None)

    def arrange(self, facts: TopFacts, now: int) -> None:
        """Replace the rows with newer data; the selection stays on its row."""
        index = self._selected_index()
        match self.page:
            case "jobs":
                rows = job_rows(facts)
            case "nodes":
                rows = node_rows(facts)
            case _:
                rows = allocation_rows(facts, now, self.of_job)
        part = self.filter.casefold()
        rows = [row for row in rows if part in f"{row.name} {row.short} {row.state}".casefold()]
        self.rows = ordered(rows, self.sort)
        if self.selected is None and self.rows:
            self._selected = self.rows[min(index, len(self.rows) - 1)].key

    def _selected_index(self) -> int:
        keys = [row.key for row in self.rows]
        return keys.index(self._selected) if self._selected in keys else 0

    def shown(self, height: int) -> list[Row]:
        """Return the rows that fit into this height, including the selected row."""
        height_of_rows = max(1, height - _HEAD - _FOOT)
        index = self._selected_index()
        self._first = max(min(self._first, index), index - height_of_rows + 1, 0)
        self._first = min(self._first, max(0, len(self.rows) - height_of_rows))
        return self.rows[self._first : self._first + height_of_rows]

    # --- keys ---
    def press(self, key: str, height: int) -> str:
        """Handle a key; return an action for the caller, or an empty string.

        The actions are `logs`, `exec`, `explain` and `stop` for the selected row, and `quit`.
        """
        self.message = ""
        if self.is_typing:
            self._type(key)
            return ""
        if self.confirming is not None:
            self.confirming = None
            return "stop" if key == "y" else ""
        if key in SORTS:
            self.sort = SORTS[key]
        elif key in _MOVES:
            self._move(key, height)
        elif key == "/":
            self.is_typing, self.filter = True, ""
        elif key == "o":
            self._open("jobs" if self.page == "nodes" else "nodes", None)
        elif key in ("enter", "tab", "escape"):
            self._change_page(key)
        else:
            return self._act(key)
        return ""

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self.is_typing = False
            self.filter = "" if key == "escape" else self.filter
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def _move(self, key: str, height: int) -> None:
        if not self.rows:
            return
        page = max(1, height - _HEAD - _FOOT - 1)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page}
        steps |= {"home": -len(self.rows), "end": len(self.rows)}
        index = min(max(self._selected_index() + steps[key], 0), len(self.rows) - 1)
        self._selected = self.rows[index].key

    def _change_page(self, key: str) -> None:
        if key == "escape" and self.filter:
            self.filter = ""
            return
        if key == "tab":
            self._open("allocations" if self.page == "jobs" else "jobs", None)
        elif key == "enter" and self.page == "jobs" and self.selected is not None:
            self._open("allocations", self.selected.key)
        elif key == "escape" and self.page != "jobs":
            back = self.of_job
            self._open("jobs", None)
            self._selected = back

    def _open(self, page: str, of_job: tuple[str, str] | None) -> None:
        self.page, self.of_job, self.filter = page, of_job, ""
        self.rows, self._selected, self._first = [], None, 0

    def _act(self, key: str) -> str:
        if key == "q":
            return "quit"
        row = self.selected
        if row is None:
            return ""
        if self.page == "nodes":
            return "explain" if key == "w" else ""
        if key == "x":
            self.confirming = row
        if key == "e" and self.page == "jobs":
            self.message = "exec needs an allocation: open the allocations with Enter"
            return ""
        return {"l": "logs", "e": "exec", "w": "explain"}.get(key, "")

    # --- lines ---
    def lines(self, facts: TopFacts, width: int, height: int) -> list[ScreenLine]:
        """Return all lines of the screen."""
        rows = self.shown(height)
        columns = _columns(self.page, width)
        body = [_row(row, columns, is_selected=row.key == self._selected) for row in rows]
        empty = [ScreenLine("")] * max(0, height - _HEAD - _FOOT - len(body))
        screen_lines = [
            ScreenLine(self._title(facts), "red" if facts.trouble else "bold"),
            ScreenLine(self._summary(facts)),
            ScreenLine(_cells([column.title for column in columns], columns), "reverse"),
            *(body or [ScreenLine("Nothing to show")]),
            *(empty if body else empty[1:]),
            ScreenLine(self._status_text(), "bold"),
            ScreenLine(self._footer(), "dim"),
        ]
        return [ScreenLine(cut(line.text, width), line.style) for line in screen_lines[:height]]

    def _title(self, facts: TopFacts) -> str:
        if self.page == "nodes":
            return facts.trouble or facts.hidden or facts.node
        return facts.trouble or facts.node or facts.hidden

    def _summary(self, facts: TopFacts) -> str:
        states = Counter(job.state for job in facts.jobs)
        jobs = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        running = sum(alloc.state == "running" for alloc in facts.allocations)
        where = f" of {self.of_job[1]}" if self.of_job else ""
        page = f"{self.page}{where} by {self.sort}"
        if self.filter:
            page += f", filter {self.filter!r}"
        return f"{page}  |  jobs: {jobs or 'none'}  |  {running} allocations running"

    def _status_text(self) -> str:
        row = self.selected
        if self.confirming is not None:
            return f"stop {self.confirming.name}? y: yes, any other key: no"
        if self.message or row is None:
            return self.message
        return f"{row.name}: {row.about or row.state}"

    def _footer(self) -> str:
        if self.is_typing:
            return f"filter: {self.filter}_"
        return _KEYS[self.page]


_MOVES = frozenset({"up", "down", "k", "j", "page up", "page down", "home", "end"})


def _columns(page: str, width: int) -> list[Column]:
    """Return the columns of a page.

    The column of names gets the remaining width. On a wide screen, it shares this width with the
    last column.
    """
    if page == "nodes":
        columns = [Column("STATE", 12), Column("RUN", 5, right=True)]
        extra = Column("POOL", 10)
    elif page == "jobs":
        columns = [Column("STATE", 10), Column("RUN", 7, right=True)]
        extra = Column("TYPE", 8)
    else:
        columns = [Column("STATE", 10), Column("ID", 8)]
        extra = Column("AGE", 6, right=True)
    columns += [Column("CPU%", 6, right=True), Column("MEMORY", 8, right=True)]
    columns += [Column("RST", 4, right=True)]
    if width >= _NARROW:
        columns.append(extra)
    if width >= _WIDE:
        columns.append(Column("CPU TREND", _TREND))
    left = max(8, width - sum(column.width + 1 for column in columns))
    if width < _NARROW:
        return [Column("NAME", left), *columns]
    name = min(max(20, left // 2), left)
    reason = left - name - 1
    title = _REASONS[page]
    return [
        Column("NAME", name),
        *columns,
        *([Column(title, reason)] if reason > len(title) else []),
    ]


def _row(row: Row, columns: Sequence[Column], *, is_selected: bool) -> ScreenLine:
    use = row.use
    values = {
        "NAME": row.name,
        "STATE": row.state,
        "RUN": row.short,
        "ID": row.short,
        "CPU%": f"{use.cpu:.1f}" if use else "-",
        "MEMORY": size(use.memory) if use else "-",
        "RST": str(use.restarts) if use else "-",
        "CPU TREND": sparkline(use.recent, _WHOLE_CORE).rjust(_TREND) if use else "",
        "TYPE": row.age,
        "AGE": row.age,
        "REASON": row.about,
        "LAST ERROR": row.about,
        "REQUESTED": row.about,
        "POOL": row.age,
    }
    style = "selected" if is_selected else _STYLES.get(row.state, "")
    return ScreenLine(_cells([values[column.title] for column in columns], columns), style)


def _cells(cells: Sequence[str], columns: Sequence[Column]) -> str:
    return " ".join(
        _pad(cell, column.width, right=column.right)
        for cell, column in zip(cells, columns, strict=True)
    )


def _pad(text: str, width: int, *, right: bool) -> str:
    short = cut(text, width)
    blanks = " " * (width - _columns_of(short))
    return blanks + short if right else short + blanks


def cut(text: str, width: int) -> str:
    """Return a text cut to a number of columns, without control characters."""
    if not text.isprintable():
        text = "".join(character if character.isprintable() else "?" for character in text)
    if _columns_of(text) <= width:
        return text
    while text and _columns_of(text) >= width:
        text = text[: min(len(text) - 1, width)]
    return f"{text}…" if width > 0 else ""


def _columns_of(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def size(count: int) -> str:
    """Format a number of bytes in MiB or GiB.

    >>> size(3 * 2**30)
    '3.0G'
    """
    if count >= _GIGABYTE:
        return f"{count / _GIGABYTE:.1f}G"
    return f"{count / _MEGABYTE:.0f}M"
