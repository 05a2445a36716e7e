"""Permitted imports: the table of docs/architecture.md, checked against the syntax trees."""

import ast
from functools import cache
from pathlib import Path

import pytest

from daemon.acl.check import RequiredCapability, Requirement
from daemon.api.routes import ROUTES
from daemon.web.request import Route

ROOT = Path(__file__).parent.parent
MODULES = sorted([*ROOT.glob("daemon/**/*.py"), *ROOT.glob("storage/**/*.py")])

NOUNS = ("storage.records", "storage.errors")
STORAGE = ("storage",)
# Imports permitted in every package of daemon/ above these.
COMMON = (
    "daemon.app",
    "daemon.clock",
    "daemon.config",
    "daemon.fences",
    "daemon.net.port_listeners",
    "daemon.text",
    "daemon.timers",
    "daemon.version",
)

# Package or module -> its permitted imports in this project, apart from itself. The longest entry
# wins.
ALLOWED: dict[str, tuple[str, ...]] = {
    "storage": (),
    # Leaves: they import no package above them.
    "daemon.clock": NOUNS,
    "daemon.fences": (*STORAGE, "daemon.clock"),
    "daemon.timers": (),
    "daemon.version": (),
    "daemon.config": (*STORAGE, "daemon.text.hints"),
    "daemon.confinement": (),
    "daemon.launcher": (),
    "daemon.log": ("storage.request_context",),
    "daemon.net": (*NOUNS, "daemon.config.settings", "storage.request_context"),
    "daemon.text": NOUNS,
    # Rules without effects.
    "daemon.matching": (*NOUNS, "storage.loop_share"),
    "daemon.jobspec": (
        *NOUNS,
        "daemon.templates",
        "storage.loop_share",
        "storage.request_context",
        "daemon.matching",
        "daemon.text.go_format",
        "daemon.text.hints",
    ),
    "daemon.flow": (
        *NOUNS,
        "storage.loop_share",
        "daemon.jobspec",
        "daemon.text.go_format",
        "daemon.text.hints",
    ),
    "daemon.scheduler": (*NOUNS, "daemon.flow", "daemon.matching"),
    "daemon.templates": (
        *NOUNS,
        "daemon.matching",
        "daemon.text.go_format",
        "daemon.text.hints",
    ),
    # Access and identity.
    "daemon.acl": (
        *STORAGE,
        "daemon.clock",
        "daemon.config",
        "daemon.fences",
        "daemon.log.journal",
        "daemon.text",
    ),
    "daemon.identity": (
        *STORAGE,
        "daemon.acl",
        "daemon.clock",
        "daemon.config",
        "daemon.fences",
        "daemon.jobspec.cron",
        "daemon.jobspec.filter",
        "daemon.jobspec.filters.syntax",
        "daemon.net",
        "daemon.text",
        "daemon.version",
    ),
    "daemon.variables": (
        *STORAGE,
        "daemon.acl.caller_cache",
        "daemon.acl.seal",
        "daemon.acl.workload_identity",
        "daemon.clock",
        "daemon.fences",
        "daemon.text",
    ),
    # Jobs and scheduling.
    "daemon.jobs": (*STORAGE, *COMMON, "daemon.flow", "daemon.jobspec", "daemon.matching"),
    "daemon.evals": (
        *STORAGE,
        *COMMON,
        "daemon.flow",
        "daemon.jobs",
        "daemon.jobspec",
        "daemon.matching",
        "daemon.scheduler",
    ),
    "daemon.otlp": (
        *STORAGE,
        "daemon.fences",
        "daemon.net",
        "daemon.timers",
        "daemon.version",
    ),
    "daemon.notify": (
        *STORAGE,
        "daemon.acl.seal",
        "daemon.clock",
        "daemon.config.notify_receivers",
        "daemon.evals.failures",
        "daemon.evals.job_states",
        "daemon.fences",
        "daemon.net",
        "daemon.text",
        "daemon.variables.change",
    ),
    # Running tasks.
    "daemon.runner.core": (
        *STORAGE,
        "daemon.clock",
        "daemon.config",
        "daemon.confinement",
        "daemon.fences",
        "daemon.launcher",
        "daemon.scheduler.reschedule",
    ),
    "daemon.runner.logs": (*STORAGE, "daemon.fences", "daemon.launcher", "daemon.runner.core"),
    "daemon.runner": (
        *STORAGE,
        *COMMON,
        "daemon.confinement",
        "daemon.flow",
        "daemon.jobs.payload_files",
        "daemon.jobspec.steward_meta",
        "daemon.launcher",
        "daemon.net",
        "daemon.scheduler.reschedule",
        "daemon.templates",
    ),
    # HTTP.
    "daemon.app": (
        *STORAGE,
        "daemon.acl",
        "daemon.clock",
        "daemon.config",
        "daemon.fences",
        "daemon.identity",
        "daemon.jobspec.policies",
        "daemon.launcher.client",
        "daemon.log",
        "daemon.runner.core.task_log",
        "daemon.text.masking",
    ),
    "daemon.web": (*STORAGE, *COMMON, "daemon.acl"),
    "daemon.api": (
        *STORAGE,
        *COMMON,
        "daemon.acl",
        "daemon.confinement",
        "daemon.evals",
        "daemon.flow",
        "daemon.identity",
        "daemon.jobs",
        "daemon.jobspec",
        "daemon.runner.core",
        "daemon.runner.drivers.examine",
        "daemon.runner.drivers.slurm",
        "daemon.runner.exec_session",
        "daemon.runner.logs",
        "daemon.variables",
        "daemon.web",
    ),
    # Pages call the API through a UI request (`daemon/web/ui_session.py`), never directly.
    "daemon.ui": (
        *NOUNS,
        "daemon.acl.one_time_tokens",
        "daemon.flow.workflow_keys",
        "daemon.text",
        "daemon.version",
        "daemon.web",
    ),
    # Programs.
    "daemon.cli.core": (*NOUNS, "daemon.jobspec", "daemon.text", "daemon.version"),
    "daemon.cli": (*NOUNS, "daemon.jobspec", "daemon.text", "daemon.version"),
    "daemon.process": (*STORAGE, "daemon"),
    "daemon.admin": (
        *STORAGE,
        "daemon.acl",
        "daemon.cli",
        "daemon.clock",
        "daemon.config",
        "daemon.process",
        "daemon.text.control_characters",
    ),
    "daemon.__main__": ("daemon",),
    "daemon": (),
}
PURE = (
    "storage.records",
    "daemon.text.task_failure",
    "daemon.text.request_fields",
    "daemon.text.job_state",
    "daemon.text.placement_message",
    "daemon.flow",
    "daemon.identity.claim_mapping",
    "daemon.scheduler",
    "daemon.jobspec",
    "daemon.matching",
    "daemon.otlp.trace_context",
    "daemon.templates",
    "daemon.acl.builtin",
    "daemon.acl.check",
    "daemon.acl.lockout",
    "daemon.acl.grant",
    "daemon.acl.token_ttl",
    "daemon.acl.path_rules",
    "daemon.acl.policy_rules",
    "daemon.acl.policy_parser",
)
IMPURE = frozenset(
    ["trio", "sqlite3", "os", "time", "random", "uuid", "secrets", "subprocess", "socket", "httpx"]
)
# library -> the only places that may import it
ONLY_IN = {
    "sqlite3": ("storage",),
    "quart": ("daemon.web.asgi_app",),
    "quart_trio": ("daemon.web.asgi_app",),
    "httptools": ("daemon.web.fast_path",),
    "hypercorn": ("daemon.web",),
    "jinja2": ("daemon.ui",),
    "werkzeug": ("daemon.web.asgi_app",),
    "h2": ("daemon.net.grpc_health",),
    "h11": (
        "daemon.web",
        "daemon.net.http_client",
        "daemon.runner.drivers.podman.exec",
        "daemon.identity.devcloud",
    ),
    "httpx": ("daemon.identity",),
    "http.client": ("daemon.cli.core.http_client", "daemon.cli.core.cloud_metadata"),
    "cryptography": (
        "daemon.identity.devcloud",
        "daemon.identity.jwt_verification",
        "daemon.identity.keypair",
        "daemon.acl.seal",
        "daemon.jobspec.hcl.functions.crypto",
        "daemon.web.certificate_files",
    ),
    "bcrypt": ("daemon.jobspec.hcl.functions.crypto",),
    "yaml": (
        "daemon.cli.core.job_file",
        "daemon.jobspec.hcl.functions.yaml_codec",
        "daemon.templates.yaml_reader",
        "daemon.templates.documents",
    ),
    "re2": ("daemon.matching.regexp", "daemon.text.masking"),
    "prometheus_client": ("daemon.api.cluster.metrics",),
    "asyncio": (),
}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{min(route.methods)} {route.path}")
def test_every_route_declares_its_capability(route: Route) -> None:
    assert isinstance(route.needs, RequiredCapability)
    asks_for_some = route.needs.asks in (
        Requirement.NAMESPACE,
        Requirement.OBJECT,
        Requirement.VARIABLE,
        Requirement.SCOPE,
    )
    assert bool(route.needs.any_of) == asks_for_some


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def rule_of(name: str) -> str:
    return max((place for place in ALLOWED if within(name, (place,))), key=len)


def test_module_imports_only_packages_that_its_folder_may_import() -> None:
    wrong = []
    for path in MODULES:
        rule = rule_of(name_of(path))
        ours = {module for module in imports_of(path) if within(module, ("daemon", "storage"))}
        allowed = (*ALLOWED[rule], rule)
        wrong += [
            f"{name_of(path)} imports {module}" for module in ours if not within(module, allowed)
        ]
    assert wrong == []


def hidden_imports(tree: ast.Module) -> list[int]:
    """Return the lines of calls that import a module by a constant name."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")
        and any(isinstance(part, ast.Constant) for part in node.args[:1])
    ]


def test_no_import_is_hidden_in_a_call() -> None:
    """Neither this file nor the lint rules for modules with weaknesses see such an import."""
    assert [
        f"{name_of(path)}:{line}" for path in MODULES for line in hidden_imports(tree_of(path))
    ] == []


def test_hidden_imports_are_detected() -> None:
    text = "import_module(name)\nimportlib.import_module('pickle')\n__import__('pickle')\n"
    assert hidden_imports(ast.parse(text)) == [2, 3]


def test_pure_module_has_no_side_effects() -> None:
    pure = [path for path in MODULES if within(name_of(path), PURE)]
    assert [
        f"{name_of(path)} imports {module}"
        for path in pure
        for module in imports_of(path)
        if module.split(".")[0] in IMPURE
    ] == []


def test_library_is_used_only_in_its_package() -> None:
    assert [
        f"{name_of(path)} imports {library}"
        for path in MODULES
        for library, places in ONLY_IN.items()
        if any(within(module, (library,)) for module in imports_of(path))
        and not within(name_of(path), places)
    ] == []


def test_error_is_created_at_its_raise_statement() -> None:
    # An exception that is raised repeatedly retains the frames of every raise, and their requests.
    assert [
        f"{name_of(path)} raises {node.exc.id}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Raise)
        if isinstance(node.exc, ast.Name) and node.exc.id.isupper()
    ] == []


def test_no_file_pattern_is_built_from_variable_text() -> None:
    """The interpreter caches every compiled pattern, up to 32,768 of them."""
    made = [
        name_of(path)
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("glob", "rglob", "fnmatch")
        and not isinstance(node.args[0], ast.Constant)
    ]
    assert set(made) <= {"storage.schema"}  # used once, at the start


# A separate package, although it is inside another one.
PARTS = ("daemon.cli", "daemon.runner")


def package_of(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[: 3 if within(name, PARTS) and len(parts) > 3 else 2])


def test_packages_have_no_import_cycles() -> None:
    names = {name_of(path) for path in MODULES}
    edges: dict[str, set[str]] = {}
    for path in MODULES:
        package = package_of(name_of(path))
        if package.startswith("daemon."):
            targets = {
                module if module in names else module.rpartition(".")[0]
                for module in imports_of(path)
            }
            edges.setdefault(package, set()).update(
                {package_of(target) for target in targets & names} - {package}
            )
    while leaves := [name for name, targets in edges.items() if not targets & edges.keys()]:
        for leaf in leaves:
            del edges[leaf]
    assert sorted(edges) == []


def test_no_two_public_classes_share_a_name() -> None:
    found: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name_of(path))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_modules_have_no_import_cycles() -> None:
    names = {name_of(path) for path in MODULES}
    edges = {
        name_of(path): {
            candidate
            for module in imports_of(path)
            for candidate in (module, module.rpartition(".")[0])
            if candidate in names and candidate != name_of(path)
        }
        for path in MODULES
    }
    while leaves := [name for name, targets in edges.items() if not targets & edges.keys()]:
        for leaf in leaves:
            del edges[leaf]
    # A package represents its contents; no Steward package imports from its own modules.
    assert sorted(edges) == []
