"""Description of the API for programs (`/v1/openapi.json`) and for people (`/v1/openapi`).

The pages are self-contained: they have no scripts and load nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from html import escape

from daemon.api.openapi import describe
from daemon.version import VERSION
from daemon.web.reply import HandlerReply
from daemon.web.request import Endpoint, ReadHandler, Request, Route
from storage.read_pool import ReadSnapshot
from storage.records.codec import Document, encode

_STYLE = """
  :root { color-scheme: light dark }
  body { font: 1rem/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
  summary { cursor: pointer; padding: .2rem 0 } code { font-size: .95em }
  details details { margin-left: 1.5rem } table { border-collapse: collapse }
  td, th { border-top: 1px solid #8884; padding: .2rem .8rem .2rem 0; text-align: left;
           vertical-align: top }
  .method { display: inline-block; font-weight: bold; width: 4.5rem }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


_HEADERS = {"Content-Security-Policy": _POLICY}
_HTML = "text/html; charset=utf-8"


def handlers(
    routes: Callable[[], Iterable[Route]], endpoints: Iterable[Endpoint]
) -> tuple[ReadHandler, ReadHandler]:
    """Return the handlers that show the OpenAPI description of the routes: as JSON, as a page."""

    @cache
    def description() -> Document:
        return describe(routes(), endpoints, VERSION)

    @cache
    def page() -> bytes:
        return "".join(_page(description())).encode()

    def document(request: Request, db: ReadSnapshot) -> HandlerReply:
        """Describe the API, in OpenAPI 3.1."""
        return HandlerReply(body=encode(description()))

    def shown(request: Request, db: ReadSnapshot) -> HandlerReply:
        """Show the description of the API."""
        return HandlerReply(body=page(), content_type=_HTML, headers=_HEADERS)

    return document, shown


def _page(description: Document) -> Iterator[str]:
    yield "<!doctype html><html lang=en><meta charset=utf-8><title>Steward: HTTP API</title>"
    yield f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
    yield f"<h1>HTTP API</h1><p>{escape(description['info']['description'])}</p>"
    yield "<p>For programs: <a href=/v1/openapi.json><code>/v1/openapi.json</code></a></p>"
    yield "<h2>Calls</h2>"
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            if method != "put":  # PUT is the same as POST
                yield from _call(method.upper(), path, operation)
    yield "<h2>Types</h2>"
    for name, schema in sorted(description["components"]["schemas"].items()):
        yield from _type(name, schema)


def _call(method: str, path: str, operation: Document) -> Iterator[str]:
    yield f"<details><summary><span class=method>{method}</span> <code>{escape(path)}</code> "
    yield f"{escape(operation['summary'])}</summary>"
    for position in ("path", "query"):
        names = [
            parameter["name"]
            for parameter in operation["parameters"]
            if parameter["in"] == position
        ]
        if names:
            yield f"<p>In the {position}: {', '.join(f'<code>{escape(name)}</code>' for name in names)}"
    if "requestBody" in operation:
        yield f"<p>Takes {_named(_schema(operation['requestBody']))}"
    for status, answer in operation["responses"].items():
        if "content" in answer:
            yield f"<p>{status}: {_named(_schema(answer))}"
    yield "</details>"


def _schema(body: Document) -> Document:
    schema: Document = next(iter(body["content"].values()))["schema"]
    return schema


def _type(name: str, schema: Document) -> Iterator[str]:
    yield f"<details id='{escape(name)}'><summary><code>{escape(name)}</code> "
    yield f"{escape(schema.get('description', ''))}</summary><table>"
    for field, kind in schema.get("properties", {}).items():
        yield f"<tr><td><code>{escape(field)}</code><td>{_named(kind)}"
    yield "</table></details>"


def describe_schema(
    schema: Document, link: Callable[[str], str], plain: Callable[[str], str] = str
) -> str:
    """Describe a schema; `link` formats the name of a type, and `plain` other text."""
    words = partial(describe_schema, link=link, plain=plain)
    if reference := schema.get("$ref"):
        return link(reference.rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(map(words, schema["anyOf"]))
    if "items" in schema:
        return f"list of {words(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {words(schema['additionalProperties'])}"
    return plain(str(schema.get("type") or schema.get("description") or "anything"))


def _named(schema: Document) -> str:
    return describe_schema(
        schema, lambda name: f"<a href='#{escape(name)}'>{escape(name)}</a>", escape
    )
