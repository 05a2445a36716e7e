"""Files for other tools parse, and name only commands, routes, settings, metrics and fields that exist."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from daemon.__main__ import command_line
from daemon.api.cluster.metric_help import MEANINGS
from daemon.api.routes import ROUTES
from daemon.config.settings import FIELDS
from daemon.text.job_state import State
from daemon.text.option_syntax import normalize_options, short_option

PACKAGING = Path(__file__).parents[2] / "packaging"
METRICS = {re.sub(r"[.-]", "_", name) for name in MEANINGS} | {"up"}
FUNCTIONS = {"sum", "by", "increase", "rate", "topk", "max", "or", "vector", "label_values"}
ALERTS = yaml.safe_load((PACKAGING / "monitoring/alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((PACKAGING / "monitoring/dashboard.json").read_text())
ACTION = yaml.safe_load((PACKAGING / "automation/github-action.yml").read_text())
PLAYS = yaml.safe_load((PACKAGING / "automation/ansible.yml").read_text())


# --- Prometheus and Grafana ---


def queries() -> Iterator[str]:
    yield from (rule["expr"] for rule in ALERTS)
    yield from (target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])


def names_in(query: str) -> set[str]:
    """Return the metrics of a query: words outside of selectors, label lists and ranges."""
    outside = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", " ", query)
    return set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_]*", outside)) - FUNCTIONS


@pytest.mark.parametrize("query", [*queries()])
def test_query_names_only_existing_metrics(query: str) -> None:
    names = names_in(query)
    assert names
    assert names - METRICS == set()


@pytest.mark.parametrize("query", [*queries()])
def test_query_names_only_existing_states(query: str) -> None:
    named = re.findall(r'state=~?"([^"]*)"', query)
    assert {state for text in named for state in text.split("|")} <= {*State}


@pytest.mark.parametrize("query", [*queries()])
def test_query_has_balanced_parentheses(query: str) -> None:
    depth = 0
    for character in query:
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_alert_has_a_severity_and_an_action(rule: dict[str, Any]) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"].keys() == {"summary", "action"}
    for command in re.findall(r"`(steward [^`]*)`", rule["annotations"]["action"]):
        check_command(command)


def test_alert_names_are_unique() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(names) == len(set(names))


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    cells = [
        (column, row)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(column for column, _ in cells) < 24
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


# --- GitHub and Ansible ---


def check_command(line: str) -> None:
    """Raise an error of click unless the command line accepts a command."""
    program, *typed = shlex.split(line.partition(" || ")[0])
    assert program == "steward"
    words = [short_option(word) for word in normalize_options(typed)]
    command: click.Command = command_line()
    context = click.Context(command, info_name="steward", **command.context_settings)
    while isinstance(command, click.Group):
        _, command, words = command.resolve_command(context, words)
        assert command is not None
    command.make_context("example", words, parent=context).close()


def test_commands_of_the_action_are_accepted() -> None:
    steps = [step for job in ACTION["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    assert len(commands) == 3
    for command in commands:
        check_command(command)


def test_playbook_names_only_existing_routes_and_settings() -> None:
    tasks = [task for play in PLAYS for task in play["tasks"]]
    routes = {(method, route.path) for route in ROUTES for method in route.methods}
    uris = [task["ansible.builtin.uri"] for task in tasks if "ansible.builtin.uri" in task]
    called = {(item.get("method", "GET"), item["url"].partition(":4646")[2]) for item in uris}
    assert called
    assert called <= routes
    (text,) = [
        task["ansible.builtin.copy"]["content"]
        for task in tasks
        if "content" in task.get("ansible.builtin.copy", {})
    ]
    assert tomllib.loads(text).keys() <= {*FIELDS}


def test_handlers_of_the_playbook_exist() -> None:
    for play in PLAYS:
        handlers = {handler["name"] for handler in play.get("handlers", ())}
        assert {task["notify"] for task in play["tasks"] if "notify" in task} <= handlers


# --- editors ---


def schema_module() -> Any:
    spec = spec_from_file_location("schema", PACKAGING / "editor/schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCHEMA = json.loads((PACKAGING / "editor/job.schema.json").read_text())


def test_schema_matches_the_records() -> None:
    text = schema_module().text()
    assert text == (PACKAGING / "editor/job.schema.json").read_text(), (
        "run python packaging/editor/schema.py"
    )


def problems(value: object, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the differences of a value from a schema, for the keywords that the schema uses."""
    if "$ref" in schema:
        yield from problems(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], path)
    elif "anyOf" in schema:
        found = [list(problems(value, item, path)) for item in schema["anyOf"]]
        if all(found):
            yield from found[0]
    elif isinstance(value, dict) and "properties" in schema:
        for name, entry in value.items():
            if name in schema["properties"]:
                yield from problems(entry, schema["properties"][name], f"{path}.{name}")
            else:
                yield f"{path}.{name} is unknown"
        yield from (f"{path}.{name} is missing" for name in schema["required"] if name not in value)
    elif isinstance(value, list) and "items" in schema:
        for number, entry in enumerate(value):
            yield from problems(entry, schema["items"], f"{path}[{number}]")
    elif schema.get("type") not in (None, kind_of(value)):
        yield f"{path} is no {schema['type']}"


def kind_of(value: object) -> str:
    kinds = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def in_schema(document: dict[str, Any]) -> list[str]:
    return [*problems(document.get("Job", document), SCHEMA["else"], "job")]


@pytest.mark.parametrize("name", ["hello.json", "count.json"])
def test_examples_follow_the_schema(name: str) -> None:
    assert in_schema(json.loads((PACKAGING / "examples" / name).read_text())) == []


def test_schema_finds_unknown_names_and_wrong_types() -> None:
    task = {"Name": "main", "Driver": "raw_exec", "Comand": "x", "KillTimeout": "5s"}
    job = {"ID": "a", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}
    place = "job.TaskGroups[0].Tasks[0]"
    assert in_schema(job) == [f"{place}.Comand is unknown", f"{place}.KillTimeout is no integer"]


def test_yaml_of_the_page_is_valid() -> None:
    text = (PACKAGING.parent / "docs/integrations.md").read_text()
    job, scrape = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert in_schema(yaml.safe_load(job)) == []
    assert yaml.safe_load(scrape)["scrape_configs"][0]["metrics_path"] in {
        route.path for route in ROUTES
    }


def test_keys_of_the_editor_are_those_of_job_files() -> None:
    spec = spec_from_file_location("keys", PACKAGING / "editor/keys.py")
    assert spec is not None
    assert spec.loader is not None
    keys: Any = module_from_spec(spec)
    spec.loader.exec_module(keys)
    assert keys.FILE.read_text() == keys.text(), "run python packaging/editor/keys.py"
