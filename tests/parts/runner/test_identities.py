"""Workload identity tokens of tasks: claims, paths and renewal."""

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from daemon.runner.core.safe_open import PathEscape
from daemon.runner.core.task_dir import directories
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.setup.workload_identity import IssuerInfo, WorkloadIdentities, lifetime
from storage.errors import Refused
from storage.records.allocation import Allocation
from storage.records.base import HOUR, SECOND
from storage.records.job import Job
from storage.records.task import Identity, Service, Task
from tests.launchers import Direct
from tests.parts.runner.world import Signer
from tests.samples import NOW, group, job, task
from tests.unit.runner.placements import placed

CLAIMS = {"team": "${job.meta.team}", "place": "${node.datacenter}/${group.name}/${task.name}"}
PLACE = IssuerInfo("http://issuer", "global", CLAIMS, {"node.datacenter": "dc1"})


def given(identity: Identity, *further: Identity) -> Task:
    return task(identity=identity, identities=list(further) or None)


def default(**fields: Any) -> Identity:
    return Identity(name="default", audience=["nomadproject.io"], **fields)


def named(name: str = "vault", **fields: Any) -> Identity:
    return Identity(name=name, audience=["them"], **fields)


class Held:
    """The identities of a task in a directory, and their current states."""

    def __init__(
        self,
        home: Path,
        wanted: Task,
        job_id: str = "web",
        owner: tuple[int, int] | None = None,
        services: Sequence[Service] = (),
        **fields: Any,
    ) -> None:
        self.home = home / "alloc"
        (self.home / "main" / "secrets").mkdir(parents=True, exist_ok=True)
        self.job: Job = job(job_id, group("web", wanted), **fields)
        plain = placed(self.job, "n", "alloc")
        placement = msgspec.structs.replace(plain.placement, signing_key_id="key-1")
        self.allocation: Allocation = msgspec.structs.replace(plain, placement=placement)
        if owner is not None:
            os.chown(self.home / "main" / "secrets", *owner)
            (self.home / "main" / "local").mkdir()
            os.chown(self.home / "main" / "local", *owner)
        files = TaskFiles(
            launcher=Direct(home),
            allocation="alloc",
            task="main",
            places=directories(str(self.home), "main"),
        )
        self.identities = WorkloadIdentities(Signer(), PLACE, files, wanted, services)

    def hand_over(self, now: int = NOW) -> None:
        trio.run(self.identities.deliver, self.allocation, self.job, now)

    def recall(self, allocation: Allocation, job: Job, started: int, now: int) -> None:
        trio.run(self.identities.recall, allocation, job, started, now)

    def renew(self, now: int) -> list[str]:
        done = trio.run(self.identities.renew, self.allocation, self.job, now)
        return [identity.name for identity in done]

    def file(self, name: str) -> Path:
        return self.home / "main" / name


def claims(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    found: dict[str, Any] = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=="))
    return found


# ---- claims -------------------------------------------------------------------------------------


def test_token_names_its_task(tmp_path: Path) -> None:
    held = Held(tmp_path, given(default(env=True)))
    held.hand_over()
    said = claims(held.identities.environment["NOMAD_TOKEN"])
    assert said["sub"] == "global:default:web:web:main:default"
    assert (said["iss"], said["aud"]) == ("http://issuer", ["nomadproject.io"])
    assert said["iat"] == said["nbf"] == NOW // SECOND
    assert said["nomad_allocation_id"] == "alloc"
    assert (said["nomad_job_id"], said["nomad_task"]) == ("web", "main")


def test_token_has_the_requested_extra_claims(tmp_path: Path) -> None:
    wanted = given(named(env=True, extra_claims=["team", "place"]), default(env=True))
    held = Held(tmp_path, wanted, meta={"team": "red"})
    held.hand_over()
    said = claims(held.identities.environment["NOMAD_TOKEN_vault"])
    assert (said["team"], said["place"]) == ("red", "dc1/web/main")
    assert "team" not in claims(held.identities.environment["NOMAD_TOKEN"])


def test_undefined_claim_is_refused(tmp_path: Path) -> None:
    held = Held(tmp_path, given(named(env=True, extra_claims=["role"])))
    with pytest.raises(Refused, match="identity_claims has no claim 'role'"):
        held.hand_over()


def test_a_token_of_a_service_names_the_service(tmp_path: Path) -> None:
    given_to = [
        Service(name="web-api", identity=Identity(audience=["them"], env=True, file=True)),
        Service(name="plain"),
        Service(name="other", identity=Identity(audience=["them"])),
    ]
    held = Held(tmp_path, given(default()), services=given_to)
    held.hand_over()
    assert list(held.identities.environment) == ["NOMAD_TOKEN_service_web_api"]
    said = claims(held.file("secrets/nomad_service_web-api.jwt").read_text())
    assert said["sub"] == "global:default:web:web:web-api:service_web-api"
    assert said["nomad_service"] == "web-api"
    assert "nomad_task" not in said


def test_task_token_cannot_name_a_service(tmp_path: Path) -> None:
    held = Held(tmp_path, given(default(env=True, service_name="web-api")))
    held.hand_over()
    said = claims(held.identities.environment["NOMAD_TOKEN"])
    assert (said["nomad_task"], "nomad_service" in said) == ("main", False)


def test_token_of_a_child_names_its_parent(tmp_path: Path) -> None:
    held = Held(tmp_path, given(default(env=True)), "web/dispatch-1", parent_id="web")
    held.hand_over()
    assert claims(held.identities.environment["NOMAD_TOKEN"])["nomad_job_id"] == "web"


def test_tokens_are_unique(tmp_path: Path) -> None:
    held = Held(tmp_path, given(default(env=True), named(env=True)))
    held.hand_over()
    one, other = held.identities.environment.values()
    assert claims(one)["jti"] != claims(other)["jti"]


def test_token_without_an_expiry_uses_the_key_of_the_allocation(tmp_path: Path) -> None:
    held = Held(tmp_path, given(default(env=True), named(env=True, ttl=HOUR)))
    held.hand_over()
    tokens = held.identities.environment
    assert tokens["NOMAD_TOKEN"].endswith(".key-1")
    assert "exp" not in claims(tokens["NOMAD_TOKEN"])
    assert tokens["NOMAD_TOKEN_vault"].endswith(".")
    assert claims(tokens["NOMAD_TOKEN_vault"])["exp"] == NOW // SECOND + 3600


def test_token_expires_before_its_key_is_deleted(tmp_path: Path) -> None:
    assert lifetime(named(ttl=365 * 24 * HOUR)) == 30 * 24 * HOUR


# ---- paths --------------------------------------------------------------------------------------


def test_task_without_an_identity_block_gets_no_token(tmp_path: Path) -> None:
    held = Held(tmp_path, given(default()))
    held.hand_over()
    assert held.identities.environment == {}
    assert list(held.file("secrets").iterdir()) == []


@pytest.mark.parametrize(
    ("identity", "path"),
    [
        (default(file=True), "secrets/nomad_token"),
        (named(file=True), "secrets/nomad_vault.jwt"),
        (named(file=True, filepath="local/deep/token"), "local/deep/token"),
    ],
)
def test_token_file_is_readable_only_by_its_owner(
    tmp_path: Path, identity: Identity, path: str
) -> None:
    held = Held(tmp_path, given(default(), identity))
    held.hand_over()
    assert claims(held.file(path).read_text())["nomad_task"] == "main"
    assert held.file(path).stat().st_mode & 0o777 == 0o600
    assert held.identities.environment == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
def test_token_file_belongs_to_the_user_of_the_task(tmp_path: Path) -> None:
    held = Held(tmp_path, given(default(file=True)), owner=(65534, 65534))
    held.hand_over()
    assert held.file("secrets/nomad_token").stat().st_uid == 65534


@pytest.mark.parametrize("path", ["../out", "/../../out", "a/../../out"])
def test_token_file_outside_of_the_task_directory_is_refused(tmp_path: Path, path: str) -> None:
    held = Held(tmp_path, given(default(), named(file=True, filepath=path)))
    with pytest.raises(PathEscape):
        held.hand_over()
    assert not (tmp_path / "out").exists()


def test_link_out_of_the_task_directory_is_not_followed(tmp_path: Path) -> None:
    held = Held(tmp_path, given(default(), named(file=True, filepath="local/token")))
    held.file("local").symlink_to(tmp_path)
    with pytest.raises((PathEscape, OSError)):
        held.hand_over()
    assert not (tmp_path / "token").exists()


def test_link_instead_of_a_token_file_is_replaced(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    held = Held(tmp_path, given(default(file=True)))
    held.file("secrets/nomad_token").symlink_to(precious)
    held.hand_over()
    assert precious.read_text() == "kept"
    assert not held.file("secrets/nomad_token").is_symlink()


# ---- renewal -------------------------------------------------------------------------------------


def test_token_is_renewed_at_half_of_its_ttl(tmp_path: Path) -> None:
    held = Held(tmp_path, given(default(), named(file=True, ttl=HOUR)))
    held.hand_over()
    assert held.identities.next_renewal() == NOW + HOUR // 2
    assert held.renew(NOW + HOUR // 2 - 1) == []
    assert held.renew(NOW + HOUR // 2) == ["vault"]
    assert claims(held.file("secrets/nomad_vault.jwt").read_text())["iat"] == NOW // SECOND + 1800
    assert held.identities.next_renewal() == NOW + HOUR


def test_token_without_an_expiry_is_never_renewed(tmp_path: Path) -> None:
    held = Held(tmp_path, given(default(file=True)))
    held.hand_over()
    assert held.identities.next_renewal() is None


@pytest.mark.parametrize(("mode", "renewed"), [("restart", True), ("noop", False), ("", False)])
def test_identity_used_only_in_the_environment_is_renewed_with_its_task(
    tmp_path: Path, mode: str, renewed: bool
) -> None:
    held = Held(tmp_path, given(default(), named(env=True, ttl=HOUR, change_mode=mode)))
    held.hand_over()
    assert (held.identities.next_renewal() is not None) is renewed


# ---- after a restart of the daemon ------------------------------------------------------------------


def test_token_file_determines_the_next_renewal(tmp_path: Path) -> None:
    wanted = given(default(), named(file=True, ttl=HOUR))
    before = Held(tmp_path, wanted)
    before.hand_over()
    token = before.file("secrets/nomad_vault.jwt").read_text()
    after = Held(tmp_path, wanted)
    after.recall(after.allocation, after.job, NOW - HOUR, NOW + SECOND)
    assert after.identities.next_renewal() == NOW + HOUR // 2
    assert after.file("secrets/nomad_vault.jwt").read_text() == token


def test_deleted_token_file_is_written_again(tmp_path: Path) -> None:
    held = Held(tmp_path, given(default(), named(file=True, ttl=HOUR)))
    held.recall(held.allocation, held.job, NOW, NOW + SECOND)
    assert held.file("secrets/nomad_vault.jwt").exists()


def test_task_start_determines_the_renewal_of_a_token_in_the_environment(tmp_path: Path) -> None:
    held = Held(tmp_path, given(default(), named(env=True, ttl=HOUR, change_mode="restart")))
    held.recall(held.allocation, held.job, NOW, NOW + SECOND)
    assert held.identities.next_renewal() == NOW + HOUR // 2
    assert "NOMAD_TOKEN_vault" in held.identities.environment


def acting(home: Path) -> Held:
    """Return two identities with change actions that are renewed at the same time."""
    first = named(file=True, ttl=HOUR, change_mode="signal", change_signal="SIGUSR1")
    second = named("other", file=True, ttl=HOUR, change_mode="restart")
    return Held(home, given(default(), first, second, named("quiet", file=True, ttl=HOUR)))


def actions(held: Held) -> list[str]:
    return [action.mode for action in held.identities.pending_actions]


def test_change_actions_are_pending_in_a_later_daemon_until_they_have_run(tmp_path: Path) -> None:
    before = acting(tmp_path)
    before.hand_over()
    before.renew(NOW + HOUR // 2)
    for _ in range(2):
        later = acting(tmp_path)
        later.recall(later.allocation, later.job, NOW, NOW + HOUR // 2 + SECOND)
        assert actions(later) == ["signal", "restart"]
    trio.run(later.identities.forget_actions)
    assert actions(later) == []
    last = acting(tmp_path)
    last.recall(last.allocation, last.job, NOW, NOW + HOUR // 2 + SECOND)
    assert actions(last) == []


def test_next_attempt_has_no_pending_change_actions(tmp_path: Path) -> None:
    held = acting(tmp_path)
    held.hand_over()
    held.renew(NOW + HOUR // 2)
    held.hand_over(NOW + HOUR)
    later = acting(tmp_path)
    later.recall(later.allocation, later.job, NOW + HOUR, NOW + HOUR + SECOND)
    assert actions(held) == actions(later) == []


def test_failed_renewal_of_an_identity_keeps_the_actions_of_others(tmp_path: Path) -> None:
    held = acting(tmp_path)
    held.hand_over()
    obstacle = held.file("secrets/nomad_other.jwt")
    obstacle.unlink()
    obstacle.mkdir()
    with pytest.raises(OSError, match="directory"):
        held.renew(NOW + HOUR // 2)
    assert actions(held) == ["signal"]
