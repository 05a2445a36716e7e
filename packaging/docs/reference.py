"""Reference pages, which are generated from the program when the documentation is built.

mkdocs calls `on_files` and `on_page_markdown`. `pages` needs no package except Steward.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from daemon.__main__ import command_line
from daemon.api.cluster.metric_help import MEANINGS
from daemon.api.openapi import describe
from daemon.api.openapi_page import describe_schema
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.cli.core.http_client import HttpConnection
from daemon.config.loading import PREFIX
from daemon.config.settings import FIELDS
from daemon.process.agent import agent
from daemon.version import VERSION

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parents[2] / "docs"
_OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+(?:bench|packaging)[^)]*\)")


def pages() -> dict[str, str]:
    """Return the text of each generated page, by its path."""
    pages_by_path = {
        "reference/commands.md": _commands(),
        "reference/http.md": _http(),
        "reference/settings.md": _settings(),
        "reference/metrics.md": _metrics(),
    }
    return {path: "\n".join(lines) + "\n" for path, lines in pages_by_path.items()}


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the generated pages to the documentation."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: "Page", **_: object) -> str:
    """Return a page in which links to files outside the documentation are plain text."""
    if page.file.src_uri == "decisions/README.md":
        markdown += "\n" + "\n".join(_decisions()) + "\n"
    return _OUTSIDE.sub(r"\1", markdown)


def _decisions() -> Iterator[str]:
    for path in sorted((DOCS / "decisions").glob("0*.md")):
        yield f"- [{path.read_text().splitlines()[0].lstrip('# ')}]({path.name})"


# ---- commands --------------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    yield "# Commands\n"
    yield f"All commands of Steward {VERSION}, as `--help` describes them. [The command line](../command-line.md)"
    yield "describes their common options, such as the options for the address and the token.\n"
    root = command_line()
    yield from _group(root, click.Context(root, info_name="steward", **root.context_settings))


def _group(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _group(command, inner)
            continue
        yield f"## {inner.command_path}\n"
        about, _, example = (command.help or "").partition("Example:")
        yield f"{_plain(about)}\n"
        yield f"```\n{inner.command_path} {' '.join(command.collect_usage_pieces(inner))}\n```\n"
        yield from _options(command, inner)
        if example:
            yield f"Example: `{' '.join(example.split())}`\n"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    records = [
        record
        for parameter in command.params
        if isinstance(parameter, click.Option)
        and parameter.name not in HttpConnection.__struct_fields__
        and (record := parameter.get_help_record(context))
    ]
    if records:
        yield "| Option | Meaning |\n|---|---|"
        yield from (f"| `{_cell(names)}` | {_cell(words)} |" for names, words in records)
        yield ""


def _plain(text: str) -> str:
    """Return the paragraphs of a help text, escaped for Markdown."""
    paragraphs = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    return re.sub(r"([<>*_\[\]{}])", r"\\\1", "\n\n".join(paragraphs))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# ---- the API ---------------------------------------------------------------------------------------


def _http() -> Iterator[str]:
    description = describe(ROUTES, ENDPOINTS, VERSION)
    yield "# HTTP\n"
    yield f"{description['info']['description']} A daemon serves the whole description, for programs, at `/v1/openapi.json`.\n"
    yield "| Request | Query parameters | Body | Response |\n|---|---|---|---|"
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            if method != "put":  # PUT is the same as POST
                yield _call(method.upper(), path, operation)
    yield "\n## Types\n"
    for name, schema in sorted(description["components"]["schemas"].items()):
        yield f"### {name}\n\n{_plain(schema.get('description', ''))}\n"
        fields = schema.get("properties", {})
        if fields:
            yield "| Field | Type |\n|---|---|"
            yield from (f"| `{field}` | {_typed(kind)} |" for field, kind in fields.items())
            yield ""


def _call(method: str, path: str, operation: dict[str, Any]) -> str:
    query = (
        parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "query"
    )
    takes = _typed(_schema(operation["requestBody"])) if "requestBody" in operation else ""
    answers = {
        _typed(_schema(answer)) for answer in operation["responses"].values() if "content" in answer
    }
    names = ", ".join(f"`{name}`" for name in query)
    about = f"`{method} {path}`<br>{_cell(_plain(operation['summary']))}"
    return f"| {about} | {names} | {takes} | {' or '.join(sorted(answers))} |"


def _schema(body: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = next(iter(body["content"].values()))["schema"]
    return schema


def _typed(schema: dict[str, Any]) -> str:
    return describe_schema(schema, lambda name: f"[{name}](#{name.lower()})")


# ---- settings and metrics ----------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    flags = {
        parameter.name: parameter.opts[-1]
        for parameter in agent.params
        if isinstance(parameter, click.Option)
    }
    yield "# Settings\n"
    yield "Each setting with its kind, and its names in the file, in the environment and on the command line."
    yield "[Configuration](../configuration.md) explains the settings.\n"
    yield "| In the file | Kind | Default | In the environment | Option |\n|---|---|---|---|---|"
    for name, field in FIELDS.items():
        flag = f"`{flags[name]}`" if name in flags else ""
        default = msgspec.NODEFAULT if field.default is msgspec.NODEFAULT else field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        shown = (
            ""
            if str(default) in ("", ".")
            else f"`{msgspec.json.encode(default, enc_hook=str).decode()}`"
        )
        kind = _kind(msgspec.inspect.type_info(field.type))
        yield f"| `{name}` | {kind} | {shown} | `{PREFIX}{name.upper()}` | {flag} |"


def _kind(kind: msgspec.inspect.Type) -> str:
    """Return the type and range of a setting in words."""
    match kind:
        case msgspec.inspect.IntType(ge=least, le=most):
            above = "" if least is None else f" from {least}"
            return f"number{above}" + ("" if most is None else f" to {most}")
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.ListType(item_type=item_type):
            return f"list of {_kind(item_type)}s"
        case msgspec.inspect.DictType(value_type=value):
            return f"{_kind(value)}s by name"
        case msgspec.inspect.UnionType(types=types):
            type_list = [
                type_ for type_ in types if not isinstance(type_, msgspec.inspect.NoneType)
            ]
            return " or ".join(map(_kind, type_list))
        case msgspec.inspect.StructType():
            return "table"
        case msgspec.inspect.CustomType():
            return "path"
        case _:
            return "text"


def _metrics() -> Iterator[str]:
    yield "# Metrics\n"
    yield "The metrics of `GET /v1/metrics`. With `?format=prometheus`, names have `_` in place of each point. The daemon"
    yield "computes the values when a request arrives.\n"
    yield "| Metric | Meaning |\n|---|---|"
    for name, words in MEANINGS.items():
        yield f"| `{name}` | {_cell(words)} |"
