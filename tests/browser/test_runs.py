"""Runs in a real browser: the reason for a failure, and dispatches with a payload and with an input
file.
"""

from pathlib import Path

from tests.browser.chromium import Tab, keep
from tests.browser.sample_jobs import small
from tests.service.daemon import Steward, open_steward

BYTES = 3 * 1024 * 1024 + 17  # several chunks of an upload, the last one incomplete
LOG = 50 * 1024 * 1024  # bytes
LINES = f"yes 'a line of a long log, which says little' | head -c {LOG}; echo; echo the needle"
READ = 'cat local/input; wc -c < "local/data.bin"'


async def test_cause_of_a_failure_is_two_clicks_from_the_overview(
    browser: Tab, filled: Steward
) -> None:
    script = "echo all is well; echo the disk is on fire >&2; exit 3"
    await filled.register(small("billing", "/bin/sh", "-c", script))
    await filled.until("/v1/job/billing", lambda shown: shown["Status"] == "dead")
    await browser.open(f"{filled.address}/ui/")
    await browser.until_text("main", "exited with code 3")
    await browser.press("main a[href='/ui/job/billing']")
    await browser.until_text("main", "the disk is on fire")
    await browser.press("main a[href*='/logs']")
    await browser.until_text("#log", "the disk is on fire")
    assert browser.faults == []


async def test_dispatch_form_sends_a_payload_and_an_input_file(
    browser: Tab, tmp_path: Path
) -> None:
    (tmp_path / "input.bin").write_bytes(bytes(range(256)) * (BYTES // 256) + bytes(BYTES % 256))
    job = small("count", "/bin/sh", "-c", READ, ParameterizedJob={"Payload": "required"})
    (task,) = job["TaskGroups"][0]["Tasks"]
    task["DispatchPayload"] = {"File": "input"}
    task["Artifacts"] = [{"GetterSource": "payload://data.bin", "RelativeDest": "local/"}]
    async with open_steward(tmp_path, "--dev") as steward:
        await steward.register(job)
        await browser.open(f"{steward.address}/ui/job/count/launches")
        await browser.write("textarea[name=payload]", "from the form\n")
        await browser.choose("input[type=file]", tmp_path / "input.bin")
        await keep(browser, "upload")
        await browser.press("form[action^='/ui/job/count/dispatch'] button.main")
        await browser.until_text("#head", "complete")
        await browser.press("#allocations a[title^='Log of']")
        await browser.until_text("#log", "from the form")
        await browser.until_text("#log", str(BYTES))
        assert browser.faults == []


async def test_a_log_of_50_mb_is_searched(browser: Tab, tmp_path: Path) -> None:
    job = small("chatty", "/bin/sh", "-c", LINES)
    (task,) = job["TaskGroups"][0]["Tasks"]
    task["LogConfig"] = {"MaxFiles": 10, "MaxFileSizeMB": 10}
    async with open_steward(tmp_path, "--dev") as steward:
        await steward.register(job)
        (alloc,) = await steward.allocations("chatty", "complete")
        await browser.open(f"{steward.address}/ui/allocation/{alloc['ID']}/logs")
        await browser.write("main input[name=q]", "NEEDLE")
        await browser.press("main form:has(input[name=q]) button")
        await browser.until_text("main", "1 line with")
        await browser.until_text("#log .is-match", "the needle")
        assert await browser.value("document.querySelectorAll('#log .line').length") <= 10
        assert browser.faults == []


async def test_expired_token_redirects_to_sign_in(browser: Tab, steward: Steward) -> None:
    rules = 'namespace "default" { policy = "read" }'
    policy = {"Name": "lookers", "Rules": rules}
    assert (await steward.request("POST", "/v1/acl/policy/lookers", policy)).is_success
    lasting = {"policies": ["lookers"], "ttl": "5s"}
    made = (await steward.post("/v1/auth/token/create", lasting))["auth"]
    await browser.open(f"{steward.address}/ui/jobs")
    await browser.write("input[name=token]", made["client_token"])
    await browser.press("#sign-in button")
    # The page's event stream ends when the token expires.
    await browser.until("location.pathname === '/ui/sign-in'")
    await browser.until_text("main", "Your session ended")
