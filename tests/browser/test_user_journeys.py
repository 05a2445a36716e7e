"""User journeys in a real browser against a real daemon, with the waits of a user."""

import json

from tests.browser.chromium import Tab, keep
from tests.browser.conftest import act, sign_in
from tests.service.daemon import Steward

SOURCE = """job "clock" {
  group "clock" {
    count = 2

    update {
      min_healthy_time = "0s"
    }

    task "ticker" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' TERM; echo first line; while :; do echo tick; sleep 1 & wait; done"]
      }

      action "greet" {
        command = "/bin/sh"
        args    = ["-c", "echo Hello from $NOMAD_TASK_NAME"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
"""


# Commands as users type them, and their words. None means that a quote or an escape is not
# complete.
COMMANDS = {
    " /bin/ls  -l\t/etc ": ["/bin/ls", "-l", "/etc"],
    '/bin/sh -c "echo a b"': ["/bin/sh", "-c", "echo a b"],
    "a'b  c'\"d e\"\\ f": ["ab  cd e f"],
    "'' \"\"": ["", ""],
    r"'\n' \n " + r'"\n\"\\\$"': [r"\n", "n", r"\n" + '"\\$'],
    "": [],
    "'a": None,
    'a "b': None,
    "a\\": None,
}


async def run(browser: Tab, steward: Steward, source: str) -> None:
    """Paste a job file, plan it, and run it."""
    await browser.open(f"{steward.address}/ui/run")
    await browser.write("textarea[name=source]", source)
    await browser.press("form[action='/ui/plan'] button")
    await browser.until_text("#plan", "All allocations would be placed")
    await browser.press("form[action='/ui/run'] button")


async def until_printed(browser: Tab, text: str) -> None:
    """Wait until the terminal contains a string."""
    await browser.until_text(".xterm-rows", text)


async def test_job_is_pasted_run_and_stopped(browser: Tab, steward: Steward) -> None:
    await sign_in(browser, steward)

    await run(browser, steward, SOURCE)
    assert await browser.value("location.pathname") == "/ui/job/clock"
    # No reload: the page receives the changes.
    await browser.until_text("#groups", "2 running")
    await browser.until_text("#deployment", "successful")
    await browser.until_text("#live", "live")

    await browser.press("#allocations a[title^='Log of']")
    await browser.until_text("#log", "first line")
    await browser.until_text("#log", "tick")
    await browser.write("#log-tools input[name=q]", "FIRST")
    await browser.press("#log-tools button")
    assert await browser.value("document.querySelectorAll('#log .is-match').length") == 1

    await browser.press("nav[aria-label='Allocation'] a[href$='/terminal']")
    await browser.click("#terminal-form button.main")
    await browser.until_text("#terminal-state", "connected")
    # In a custom color, which the content security policy permits in one way only.
    await browser.type("printf '\\033[38;2;1;200;3m%s\\033[0m\\n' $NOMAD_TASK_NAME $((6 * 7)); tty")
    await until_printed(browser, "42")
    await browser.until(
        "document.querySelector('.xterm-rows [style*=\"rgb(1, 200, 3)\"]') !== null"
    )
    await until_printed(browser, "/dev/pts/")
    await keep(browser, "terminal")
    await browser.type("exit 3")
    await browser.until_text("#terminal-state", "exit status 3")

    for command, words in COMMANDS.items():
        assert await browser.value(f"wordsOf({json.dumps(command)})") == words
    await browser.write("#terminal-form [name=command]", "/bin/sh -c 'exit")
    await browser.click("#terminal-form button.main")
    await browser.until_text("#terminal-state", "is not closed")
    await browser.write("#terminal-form [name=command]", '/bin/sh -c "exit 4"')
    await browser.click("#terminal-form button.main")
    await browser.until_text("#terminal-state", "exit status 4")

    await browser.open(f"{steward.address}/ui/job/clock")
    await browser.press("#actions a[href*='action=greet']")
    await browser.click("#terminal-form button.main")
    await until_printed(browser, "Hello from ticker")
    await browser.until_text("#terminal-state", "exit status 0")

    await run(browser, steward, SOURCE.replace("memory = 16", "memory = 24"))
    await browser.until_text("#deployment", "version 1")
    await browser.until_text("#deployment", "successful")

    await browser.open(f"{steward.address}/ui/job/clock/versions")
    await browser.until_text("#versions", "MemoryMB")
    await act(browser, "/ui/job/clock/revert")
    await browser.open(f"{steward.address}/ui/job/clock")
    await browser.until_text("#deployment", "version 2")

    await act(browser, "/ui/job/clock/stop")
    await browser.until_text("#head", "stopped")
    await browser.until("!document.querySelector('#allocations').textContent.includes('running')")
    assert browser.faults == []


async def test_slow_network_breaks_no_page(browser: Tab, steward: Steward) -> None:
    await browser.tell("Network.enable")
    await browser.tell(
        "Network.emulateNetworkConditions",
        offline=False,
        latency=400,  # milliseconds
        downloadThroughput=50_000,  # bytes a second
        uploadThroughput=20_000,
    )
    await sign_in(browser, steward)
    await run(browser, steward, SOURCE)
    await browser.until_text("#groups", "2 running")
    await browser.press("#allocations a[title^='Log of']")
    await browser.until_text("#log", "tick")
    await browser.press("nav[aria-label='Allocation'] a[href$='/terminal']")
    await browser.click("#terminal-form button.main")
    await browser.until_text("#terminal-state", "connected")
    await browser.type("echo $((6 * 7))")
    await until_printed(browser, "42")
    assert browser.faults == []


async def test_empty_part_of_a_page_appears_and_disappears_with_its_objects(
    browser: Tab, steward: Steward
) -> None:
    async def register(count: int, memory: int) -> None:
        task = {"Name": "main", "Driver": "raw_exec", "Config": {"command": "/bin/cat"}}
        task["Resources"] = {"CPU": 20, "MemoryMB": memory}
        group = {"Name": "g", "Count": count, "Update": {"MinHealthyTime": 0}, "Tasks": [task]}
        await steward.post("/v1/jobs", {"Job": {"ID": "shop", "TaskGroups": [group]}})

    await sign_in(browser, steward)
    await register(0, 16)
    await browser.open(f"{steward.address}/ui/job/shop")
    await browser.until_text("#live", "live")
    assert await browser.value("document.querySelector('#waiting, #deployment')") is None
    await register(1, 10_000_000)
    await browser.until_text("#waiting + #groups", "1 queued")
    await browser.until_text("#groups + #deployment", "running")
    await register(1, 16)
    await browser.until("document.getElementById('waiting') === null")
    assert browser.faults == []


async def test_permissions_are_granted_and_explained(browser: Tab, steward: Steward) -> None:
    await sign_in(browser, steward)
    await browser.open(f"{steward.address}/ui/access")
    await browser.click("#policies > details summary")
    await browser.write("#policies input[name=name]", "lookers")
    await browser.press("form[action='/ui/policies'] button.main")
    assert await browser.value("location.pathname") == "/ui/policy/lookers"
    await browser.write("#explain input[name=path]", "/v1/jobs")
    await browser.press("#explain button")
    await browser.until_text("h1", "allowed")

    await browser.open(f"{steward.address}/ui/access")
    await browser.click("#tokens > details summary")
    await browser.write("#tokens input[name=name]", "robot")
    await browser.click("#tokens input[name='policy.lookers']")
    await keep(browser, "access")
    await browser.press("form[action='/ui/tokens'] button.main")
    secret = await browser.value("document.getElementById('secret').textContent")
    steward.token = secret
    assert await steward.get("/v1/jobs") == []
    assert browser.faults == []


async def test_ended_session_redirects_to_sign_in(browser: Tab, steward: Steward) -> None:
    made = await steward.post("/v1/acl/token", {"Type": "management", "Name": "short"})
    await browser.open(f"{steward.address}/ui/jobs")
    await browser.write("input[name=token]", made["SecretID"])
    await browser.press("#sign-in button")
    assert await browser.value("location.pathname") == "/ui/jobs"
    await browser.until_text("#live", "live")
    answer = await steward.request("DELETE", f"/v1/acl/token/{made['AccessorID']}")
    assert answer.is_success
    # The page notices the revocation without a reload, because its event stream ends.
    await browser.until("location.pathname === '/ui/sign-in'")
    await browser.until_text("main", "Your session ended")


async def test_a_login_method_and_its_roles_are_edited(browser: Tab, steward: Steward) -> None:
    await sign_in(browser, steward)
    await browser.open(f"{steward.address}/ui/access")
    await browser.press("#methods a.button")
    await browser.write("#path", "azure")
    await browser.press("form[action='/ui/methods'] button")
    assert await browser.value("location.pathname") == "/ui/method/azure"
    await browser.press("#config a.button")
    await browser.write("#tenant_id", "7f6ad4f4-1f4a-4a04-8a08-2ac4b2e7f001")
    await browser.write("#resource", "https://management.azure.com/")
    await browser.press("form[action$='/config'] button")
    await browser.until_text("#config", "https://management.azure.com/")

    await browser.press("#login-roles a.button")
    await browser.write("#name", "web")
    await browser.write("#bound_locations", "westeurope")
    await browser.write("#token_ttl", "2h")
    await browser.write("#token_max_ttl", "1h")
    await browser.press("form[action$='/roles'] button")
    await browser.until_text("#token_max_ttl-about", "cannot be greater than")
    assert await browser.value("document.getElementById('bound_locations').value") == "westeurope"
    await keep(browser, "login-role")
    await browser.value("document.getElementById('token_max_ttl').value = ''")
    await browser.write("#token_max_ttl", "4h")
    await browser.press("form[action$='/roles'] button")
    assert await browser.value("location.pathname") == "/ui/method/azure"
    await browser.until_text("#login-roles", "westeurope")
    await browser.press("#login-roles h3 a")
    await browser.value("document.getElementById('bound_locations').value = 'northeurope'")
    await browser.press("form[action$='/role/web'] button")
    await browser.until_text("#login-roles", "northeurope")
