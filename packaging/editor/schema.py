"""Write the JSON schema of job files in JSON and YAML, for editors.

python packaging/editor/schema.py
"""

from pathlib import Path

import msgspec

from storage.records.codec import ALIASES
from storage.records.job import JobHead, SubmittedJob

FILE = Path(__file__).parent / "job.schema.json"
_REFERENCE = "#/$defs/"
# Fields that the server sets, which an editor should not offer.
_OF_THE_SERVER = frozenset(
    {
        *(field.encode_name for field in msgspec.structs.fields(JobHead)),
        *("Dispatched", "DispatchIdempotencyToken", "ParentID", "Payload"),
    }
)

Schema = dict[str, object]


def schema() -> Schema:
    """Return the schema of a document: a job, or an object whose field `Job` is a job."""
    _, parts = msgspec.json.schema_components(
        [SubmittedJob],
        schema_hook=lambda _: {"description": "any JSON value"},
        ref_template=_REFERENCE + "{name}",
    )
    job = {"$ref": f"{_REFERENCE}SubmittedJob"}
    wrapped = {"type": "object", "properties": {"Job": job}, "required": ["Job"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Steward job file in JSON or YAML",
        "description": "A job in the form of the API. Durations are in nanoseconds.",
        "if": {"required": ["Job"]},
        "then": wrapped,
        "else": job,
        "$defs": {name: _strict(name, part) for name, part in sorted(parts.items())},
    }


def _strict(name: str, part: Schema) -> Schema:
    """Return the schema of a block, in which an editor marks unknown names as errors."""
    fields = part.get("properties")
    if not isinstance(fields, dict):
        return part
    omitted = _OF_THE_SERVER if name == "SubmittedJob" else frozenset()
    shown = {field: about for field, about in fields.items() if field not in omitted}
    shown |= {alias: shown[field] for field, alias in ALIASES.items() if field in shown}
    # Omit defaults: those of the record are for an empty object, and the server's depend on the
    # job.
    for field, about in shown.items():
        shown[field] = {key: value for key, value in about.items() if key != "default"}
    return {**part, "properties": shown, "additionalProperties": False}


def text() -> str:
    """Return the text of the generated file."""
    return msgspec.json.format(msgspec.json.encode(schema())).decode() + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
