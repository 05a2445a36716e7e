"""Who may import whom: the table of docs/architecture.md, checked by reading the syntax trees."""

import ast
from functools import cache
from pathlib import Path

import pytest

from daemon.acl.check import Asks, Needs
from daemon.api.routes import ROUTES
from daemon.web.request import Route

ROOT = Path(__file__).parent.parent
MODULES = sorted([*ROOT.glob("daemon/**/*.py"), *ROOT.glob("storage/**/*.py")])

NOUNS = ("storage.records", "storage.errors")
STORAGE = ("storage",)
# What everything in daemon/ may use: the parts by what they offer, and what tells the time.
COMMON = (
    "daemon.clock",
    "daemon.config",
    "daemon.datadir",
    "daemon.feed",
    "daemon.fences",
    "daemon.fields",
    "daemon.jobspec.gotext",
    "daemon.listening",
    "daemon.parts",
    "daemon.version",
)

# folder or module -> what it may import of ours, besides itself
ALLOWED: dict[str, tuple[str, ...]] = {
    "storage": (),
    "daemon.clock": NOUNS,
    "daemon.clusters": NOUNS,
    "daemon.config": (*NOUNS, "daemon.datadir"),
    "daemon.confinement": (),
    "daemon.dashes": (),
    "daemon.datadir": ("storage.errors",),
    "daemon.moving": (*STORAGE, "daemon.datadir"),
    "daemon.fields": (*NOUNS, "daemon.jobspec.gotext"),
    "daemon.feed": STORAGE,
    "daemon.fences": (*NOUNS, "daemon.clock"),
    "daemon.journal": (),
    "daemon.kept_defaults": (*NOUNS, "daemon.config"),
    "daemon.listening": (),
    "daemon.peer_settings": NOUNS,
    "daemon.loading": (
        *NOUNS,
        "daemon.peer_settings",
        "daemon.clusters",
        "daemon.config",
        "daemon.offered",
    ),
    "daemon.logs": ("daemon.journal", "storage.origin"),
    "daemon.offered": NOUNS,
    "daemon.reach": ("daemon.config",),
    "daemon.version": (),
    "daemon.wording": NOUNS,
    "daemon.parts": (
        *STORAGE,
        "daemon.clock",
        "daemon.config",
        "daemon.acl",
        "daemon.identity",
        "daemon.feed",
        "daemon.fences",
        "daemon.jobspec.policies",
        "daemon.logs",
    ),
    "daemon.backups": (*STORAGE, "daemon.clock", "daemon.config"),
    "daemon.hardening": (),
    "daemon.health": STORAGE,
    "daemon.launcher": ("daemon.hardening",),
    "daemon.installation": (*NOUNS, "daemon.config"),
    "daemon.reloading": (
        *STORAGE,
        "daemon.acl",
        "daemon.config",
        "daemon.jobspec",
        "daemon.parts",
        "daemon.web",
    ),
    "daemon.systemd": (),
    "daemon.web": (*STORAGE, *COMMON, "daemon.acl"),
    "daemon.api": (
        *STORAGE,
        *COMMON,
        "daemon.confinement",
        "daemon.acl",
        "daemon.web",
        "daemon.jobs",
        "daemon.jobspec",
        "daemon.identity",
        "daemon.variables",
        "daemon.evals.configuration",
        "daemon.evals.dry_run",
        "daemon.evals.explain",
        "daemon.evals.gc",
        "daemon.evals.nodes",
        "daemon.evals.removal",
        "daemon.evals.steering",
        "daemon.runner.drivers.slurm.examine",
        "daemon.runner.drivers.slurm.tools",
        "daemon.runner.files",
        "daemon.runner.kept_logs",
        "daemon.runner.logs",
        "daemon.runner.inside",
        "daemon.runner.pace",
    ),
    # Pages ask the API through a visit (`daemon/web/visits.py`), never around it.
    "daemon.ui": (*NOUNS, "daemon.web", "daemon.acl.onetime", "daemon.version"),
    "daemon.acl": (
        *STORAGE,
        "daemon.clock",
        "daemon.config",
        "daemon.datadir",
        "daemon.fields",
        "daemon.jobspec.gotext",
        "daemon.journal",
    ),
    "daemon.jobs": (*STORAGE, *COMMON, "daemon.jobspec", "daemon.matching"),
    "daemon.variables": (
        *STORAGE,
        "daemon.acl.seal",
        "daemon.acl.workloads",
        "daemon.clock",
        "daemon.fences",
        "daemon.jobspec.gotext",
    ),
    "daemon.matching": NOUNS,
    "daemon.jobspec": (*NOUNS, "daemon.matching"),
    "daemon.scheduler": (*NOUNS, "daemon.matching"),
    "daemon.templates": (*NOUNS, "daemon.jobspec.gotext", "daemon.matching"),
    "daemon.evals": (
        *STORAGE,
        *COMMON,
        "daemon.scheduler",
        "daemon.jobs",
        "daemon.jobspec",
        "daemon.wording",
    ),
    "daemon.identity": (
        *STORAGE,
        "daemon.acl",
        "daemon.clock",
        "daemon.config",
        "daemon.fields",
        "daemon.jobspec.cron",
        "daemon.jobspec.gotext",
        "daemon.version",
    ),
    "daemon.runner": (
        "daemon.scheduler.reschedule",
        *STORAGE,
        *COMMON,
        "daemon.confinement",
        "daemon.launcher",
        "daemon.reach",
        "daemon.templates",
    ),
    "daemon.notify": (
        *STORAGE,
        "daemon.acl.seal",
        "daemon.clock",
        "daemon.fences",
        "daemon.reach",
        "daemon.runner.http",
        "daemon.variables.change",
    ),
    "daemon.cli": (*NOUNS, "daemon.dashes", "daemon.version", "daemon.wording", "daemon.jobspec"),
    "daemon.operator": (
        *STORAGE,
        "daemon.datadir",
        "daemon.loading",
        "daemon.rekey",
        "daemon.cli.audit",
        "daemon.cli.confinement",
        "daemon.cli.debug",
        "daemon.cli.raw",
    ),
    "daemon.rekey": (
        *STORAGE,
        "daemon.acl",
        "daemon.clock",
        "daemon.config",
        "daemon.datadir",
    ),
    "daemon.agent": (*STORAGE, "daemon"),
    "daemon.main": (*STORAGE, "daemon"),
    "daemon.__main__": ("daemon",),
    "daemon": (),
}
PURE = (
    "storage.records",
    "daemon.fields",
    "daemon.wording",
    "daemon.scheduler",
    "daemon.jobspec",
    "daemon.matching",
    "daemon.templates",
    "daemon.acl.builtin",
    "daemon.acl.check",
    "daemon.acl.failures",
    "daemon.acl.grant",
    "daemon.acl.leases",
    "daemon.acl.paths",
    "daemon.acl.policies",
    "daemon.acl.syntax",
)
IMPURE = frozenset(
    ["trio", "sqlite3", "os", "time", "random", "uuid", "secrets", "subprocess", "socket", "httpx"]
)
# library -> the only places that may import it
ONLY_IN = {
    "sqlite3": ("storage",),
    "quart": ("daemon.web.server",),
    "quart_trio": ("daemon.web.server",),
    "httptools": ("daemon.web.lean",),
    "hypercorn": ("daemon.web",),
    "jinja2": ("daemon.ui",),
    "werkzeug": ("daemon.web.server",),
    "h2": ("daemon.runner.grpc",),
    "h11": (
        "daemon.web",
        "daemon.runner.http",
        "daemon.runner.drivers.podman.session",
        "daemon.identity.devcloud",
    ),
    "httpx": ("daemon.identity",),
    "http.client": ("daemon.cli.client", "daemon.cli.metadata"),
    "cryptography": (
        "daemon.identity.devcloud",
        "daemon.identity.jwt",
        "daemon.identity.keypair",
        "daemon.acl.seal",
        "daemon.jobspec.hcl.functions.crypto",
    ),
    "bcrypt": ("daemon.jobspec.hcl.functions.crypto",),
    "yaml": ("daemon.jobspec.hcl.functions.yamlform", "daemon.templates.documents"),
    "re2": ("daemon.matching.regexp",),
    "prometheus_client": ("daemon.api.cluster.metrics",),
    "asyncio": (),
}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{min(route.methods)} {route.path}")
def test_a_route_says_what_right_it_needs(route: Route) -> None:
    assert isinstance(route.needs, Needs)
    asks_for_some = route.needs.asks in (
        Asks.NAMESPACE,
        Asks.OBJECT,
        Asks.VARIABLE,
        Asks.SCOPE,
    )
    assert bool(route.needs.any_of) == asks_for_some


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def rule_of(name: str) -> str:
    return max((place for place in ALLOWED if within(name, (place,))), key=len)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_what_its_folder_may(path: Path) -> None:
    name = name_of(path)
    rule = rule_of(name)
    ours = {one for one in imports_of(path) if within(one, ("daemon", "storage"))}
    allowed = (*ALLOWED[rule], rule)
    assert {one for one in ours if not within(one, allowed)} == set()


@pytest.mark.parametrize(
    "path", [path for path in MODULES if within(name_of(path), PURE)], ids=name_of
)
def test_a_pure_module_touches_nothing_outside(path: Path) -> None:
    assert {one.split(".")[0] for one in imports_of(path)} & IMPURE == set()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_library_is_used_only_where_it_belongs(path: Path) -> None:
    name = name_of(path)
    misplaced = {
        library
        for library, places in ONLY_IN.items()
        if any(within(one, (library,)) for one in imports_of(path)) and not within(name, places)
    }
    assert misplaced == set()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_an_error_is_made_where_it_is_raised(path: Path) -> None:
    # One that is raised again and again keeps the frames of every time, and with them the requests.
    raised = [
        node.exc for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)
    ]
    constants = {one.id for one in raised if isinstance(one, ast.Name) and one.id.isupper()}
    assert constants == set()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_pattern_of_files_is_made_of_what_changes(path: Path) -> None:
    """Each pattern that there ever was stays compiled in the interpreter, up to 32,768 of them."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    patterns = [
        call.args[0]
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("glob", "rglob", "fnmatch")
    ]
    made = [one for one in patterns if not isinstance(one, ast.Constant)]
    assert not made or name_of(path) == "storage.schema"  # once at a start


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = {name_of(path) for path in MODULES}
    edges = {
        name_of(path): {
            candidate
            for one in imports_of(path)
            for candidate in (one, one.rpartition(".")[0])
            if candidate in names and candidate != name_of(path)
        }
        for path in MODULES
    }
    while leaves := [name for name, targets in edges.items() if not targets & edges.keys()]:
        for leaf in leaves:
            del edges[leaf]
    # A package stands for what it holds; of ours, none imports from its own modules.
    assert sorted(edges) == []
