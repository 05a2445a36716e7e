"""The scripts of pages in a browser without a page: drafts, links of events, and the highlighting."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from daemon.ui.render import HERE

NODE = shutil.which("node")
STUB = Path(__file__).parent / "browser_stub.js"
DRAFTS = {"steward draft ann new": "1", "steward draft bob new": "2", "steward draft new": "3"}
LEFT = "Object.keys(localStorage).sort()"

pytestmark = pytest.mark.skipif(NODE is None, reason="there is no Node.js to run scripts")


def run(code: str, *, scripts: tuple[str, ...] = ("app.js",), **page: Any) -> Any:
    """Load the scripts, and return the value of an expression."""
    assert NODE is not None
    given = {
        "user": "",
        "index": 0,
        "path": "/ui/",
        "hash": "",
        "local": {},
        "session": {},
        "isBlocked": False,
        "scripts": [str(HERE / "static" / script) for script in scripts],
        "code": code,
        **page,
    }
    done = subprocess.run(
        [NODE, STUB], input=json.dumps(given), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_drafts_of_other_users_are_removed_at_sign_in() -> None:
    assert run(LEFT, local=DRAFTS, user="ann") == ["steward draft ann new"]
    assert run(LEFT, local=DRAFTS) == sorted(DRAFTS)


@pytest.mark.parametrize(
    ("form", "left"),
    [
        ("'/ui/sign-out'", 0),
        ("'/ui/session/1/end', ['ends_this']", 0),
        ("'/ui/token/ann/end'", 0),
        ("'/ui/session/1/end'", 1),
        ("'/ui/token/bob/end'", 1),
    ],
)
def test_drafts_end_with_the_session_of_this_browser(form: str, left: int) -> None:
    local = {"steward draft ann new": "1", "other": "2"}
    names = run(f"submit({form}); {LEFT}", local=local, user="ann")
    assert names == ["other", "steward draft ann new"][: left + 1]


def test_a_sign_out_closes_the_editor() -> None:
    code = "var closed = 0; window.editor = { close() { closed += 1; } }; submit('/ui/sign-out'); closed"
    assert run(code) == 1


@pytest.mark.parametrize(
    ("path", "left"), [("/ui/job/web", []), ("/ui/run", ["steward draft ann new"])]
)
def test_only_the_page_after_a_successful_run_deletes_the_draft(path: str, left: list[str]) -> None:
    name = "steward draft ann new"
    found = run(
        f"[{LEFT}, sessionStorage.getItem('steward ran')]",
        local={name: "1"},
        session={"steward ran": name},
        path=path,
        user="ann",
    )
    assert found == [left, None]


def test_blocked_storage_and_a_malformed_fragment_break_no_script() -> None:
    assert run("1", isBlocked=True, hash="#%E0%A4%A", user="ann") == 1
    assert run("submit('/ui/sign-out'); 1", isBlocked=True) == 1


FAKE = """
    const fields = { source: { value: "a" }, "flag.x": { value: "1" } };
    globalThis.FormData = class { *[Symbol.iterator]() {
      for (const [name, one] of Object.entries(fields)) yield [name, one.value];
    } };
    const one = Object.create(Editor.prototype);
    Object.assign(one, { form: {}, field: fields.source, name: OWN_DRAFTS + "new", first: "a" });
"""
EDITOR = ("app.js", "editor.js")


def test_variable_value_is_part_of_the_plan_state() -> None:
    code = FAKE + "const before = one.state(); fields['flag.x'].value = '2'; before !== one.state()"
    assert run(code, scripts=EDITOR) is True


def test_any_field_of_the_form_makes_the_plan_stale() -> None:
    code = (
        FAKE
        + """
      let listener, calls = 0;
      const place = { addEventListener() {} };
      Object.assign(fields.source, place);
      Object.assign(one, { list: place, problems: place, markStale() { calls += 1; } });
      one.form.addEventListener = (kind, called) => { if (kind === "input") listener = called; };
      one.listen();
      listener({ target: { name: "flag.x" } });
      listener({ target: { name: "" } }); // a field that is not sent
      calls
    """
    )
    assert run(code, scripts=EDITOR) == 1


def test_a_closed_editor_stores_no_draft() -> None:
    code = (
        FAKE
        + f"fields.source.value = 'b'; one.due = 7; one.close(); one.keepDraft(); [{LEFT}, cleared.includes(7)]"
    )
    assert run(code, scripts=EDITOR) == [[], True]


def test_a_draft_is_stored_for_its_user() -> None:
    code = FAKE + f"fields.source.value = 'b'; one.keepDraft(); {LEFT}"
    assert run(code, scripts=EDITOR, user="ann") == ["steward draft ann new"]


@pytest.mark.parametrize("word", ["a", "a-", " ", "a ", "\\n a", '"'])
def test_line_with_a_million_characters_is_split(word: str) -> None:
    """An expression that scans a word again from each character would need hours."""
    code = f"const text = '{word}'.repeat(1000000 / '{word}'.length); pieces(text).every((one) => one.text)"
    assert run(code, scripts=EDITOR) is True


@pytest.mark.parametrize(
    ("event", "page"),
    [
        ({"Topic": "Job", "Key": "20260101-report", "FilterKeys": []}, "/ui/job/20260101-report"),
        (
            {"Topic": "Run", "Key": "20260101-report/3", "FilterKeys": ["20260101-report"]},
            "/ui/job/20260101-report/run?number=3",
        ),
        (
            {"Topic": "Step", "Key": "a/b/3/load", "FilterKeys": ["a/b"], "Namespace": "ops"},
            "/ui/job/a%2Fb/run?number=3&namespace=ops",
        ),
        ({"Topic": "Service", "Key": "x"}, ""),
    ],
)
def test_events_link_to_their_object(event: dict[str, object], page: str) -> None:
    assert run(f"pageOfEvent({json.dumps({'Namespace': 'default', **event})})") == page


def test_job_named_like_an_identifier_is_named_in_full() -> None:
    code = "[UUID.test('20260101-report'), UUID.test('5f1c2a34-0000-4000-8000-000000000000')]"
    assert run(code) == [False, True]


def test_search_aborts_its_predecessor_and_starts_with_two_characters() -> None:
    code = """
      const one = Object.create(Palette.prototype);
      Object.assign(one, { input: { value: "w" }, results: {}, number: 0, request: new AbortController() });
      one.show();
      const few = fetched.length;
      for (const text of ["we", "web"]) { one.input.value = text; one.show(); }
      [few, fetched.map((each) => each.signal.aborted)]
    """
    assert run(code) == [0, [True, False]]


_RELOADS = """
  document.hidden = false;
  const delays = [];
  for (const quiet of QUIET) { // milliseconds between a reload and the next change
    clock += quiet;
    refreshSoon();
    refreshSoon();
    const { work, delay } = timers.pop();
    delays.push(delay);
    clock += delay;
    work();
  }
  [delays, fetched.length, timers.length]
"""


@pytest.mark.parametrize(
    ("quiet", "delays"),
    [
        ((0, 0, 0, 0, 0), [50, 1000, 2000, 4000, 8000]),
        ((0, 600, 5000, 18000, 100), [50, 400, 50, 50, 900]),
    ],
)
def test_pauses_between_reloads_grow_during_continuous_changes(
    quiet: tuple[int, ...], delays: list[int]
) -> None:
    code = _RELOADS.replace("QUIET", json.dumps(quiet))
    assert run(code) == [delays, len(delays), 0]


def test_page_older_than_a_change_is_reloaded_again() -> None:
    code = "wanted = 7; reach(5); reach(5); [index, timers.length]"
    assert run(code, index=3) == [5, 1]


def test_page_that_missed_changes_before_its_connection_is_reloaded() -> None:
    code = (
        "hear({ open: true, index: 9 }); timers.length = 0; waiting = null; reach(8); timers.length"
    )
    assert run(code, index=3) == 1
    assert run(code.replace("reach(8)", "reach(9)"), index=3) == 0


UPLOAD = ("app.js", "upload.js")
LENGTHS = (0, 1, 55, 56, 63, 64, 65, 119, 1000)


def test_upload_script_computes_the_digests_of_files() -> None:
    found = run(
        f"{json.dumps(LENGTHS)}.map((n) => {{ const hash = new Sha256();"
        " const bytes = Uint8Array.from({length: n}, (_, at) => at % 251);"
        " hash.add(bytes.subarray(0, n - (n % 128))); hash.add(bytes.subarray(n - (n % 128)));"
        " return hash.hex(); })",
        scripts=UPLOAD,
    )
    contents = [bytes(at % 251 for at in range(length)) for length in LENGTHS]
    assert found == [hashlib.sha256(content).hexdigest() for content in contents]
