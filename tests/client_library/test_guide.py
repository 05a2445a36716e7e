"""The guide is correct: its examples run one after another against a real daemon."""

import ast
import inspect
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from steward_client import Client, ClientError
from steward_client import errors as error_module

from tests.client_library.programs import Backend
from tests.service.daemon import Steward

GUIDE = Path(__file__).parents[2] / "docs/client.md"
MODULES = re.findall(
    r'^```python title="(\S+)"\n(.*?)^```$', GUIDE.read_text(), re.MULTILINE | re.DOTALL
)
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


async def test_examples_run_in_order(
    backend: Backend, steward: Steward, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STEWARD_ADDR", steward.address)
    for name, text in MODULES:
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    async def program() -> None:
        names: dict[str, object] = {"__name__": "guide"}
        first, *others = EXAMPLES
        await run(first, names)
        await names["main"]()  # `main` is defined by the first example
        async with Client() as client:
            names["client"] = client
            for example in others:
                await run(example, names)

    with redirect_stdout(StringIO()) as printed:
        await backend.run(program)
    assert printed.getvalue().startswith("True 0 hello\n")


async def run(example: str, names: dict[str, object]) -> None:
    code = compile(example, str(GUIDE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = eval(code, names)  # noqa: S307  # the examples of this repository
    if inspect.isawaitable(done):
        await done


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, value in vars(error_module).items()
        if isinstance(value, type) and issubclass(value, ClientError)
    ],
)
def test_every_error_is_described(name: str) -> None:
    assert f"`{name}`" in GUIDE.read_text()


@pytest.mark.parametrize(
    "name", [name for name in vars(Client) if not name.startswith("_") and name != "request"]
)
def test_every_method_is_named(name: str) -> None:
    text = GUIDE.read_text()
    assert f"`{name}`" in text or f"client.{name}(" in text
