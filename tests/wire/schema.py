"""Validation of a value against a schema, for the part of JSON Schema that the API description
uses."""

from collections.abc import Iterator, Mapping
from typing import Any

_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class Schemas:
    """The types of a description."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._types = description["components"]["schemas"]

    def problems(self, schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[str]:
        """Yield the differences between a value and its schema, each with its path."""
        if reference := schema.get("$ref"):
            yield from self.problems(self._types[reference.rpartition("/")[2]], value, path)
        elif choices := schema.get("anyOf"):
            found = [list(self.problems(choice, value, path)) for choice in choices]
            yield from min(found, key=len)
        elif "enum" in schema:
            if value not in schema["enum"]:
                yield f"{path}: {value!r} is none of {schema['enum']}"
        elif not _is(value, schema.get("type")):
            yield f"{path}: {value!r} is no {schema['type']}"
        elif isinstance(value, dict):
            yield from self._object(schema, value, path)
        elif isinstance(value, list) and "items" in schema:
            for number, item in enumerate(value):
                yield from self.problems(schema["items"], item, f"{path}/{number}")

    def _object(self, schema: Mapping[str, Any], value: Any, path: str) -> Iterator[str]:
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{path}/{name} is missing"
        others = schema.get("additionalProperties")
        for name, item in value.items():
            inner = properties.get(name, others)
            if isinstance(inner, dict):
                yield from self.problems(inner, item, f"{path}/{name}")


def _is(value: Any, kind: str | None) -> bool:
    if kind is None:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _KINDS[kind])


def without_nulls(value: Any) -> Any:
    """Return a request without null fields, because null means absent."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
