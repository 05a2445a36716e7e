"""What a job may name that belongs to the machine, or to others."""

from daemon.jobs.register import Surroundings, misplaced
from storage.records.group import Volume
from storage.records.job import Job
from storage.records.task import SecretsConfig
from storage.store import Store
from tests import samples


def around(**fields: object) -> Surroundings:
    return Surroundings(region="global", node_pools={"default"}, **fields)  # type: ignore[arg-type]


def mounting(*, read_only: bool) -> Job:
    volumes = {"v": Volume(name="v", type="host", source="data", read_only=read_only)}
    return samples.job("web", samples.group("web", volumes=volumes))


def faults(store: Store, job: Job, surroundings: Surroundings) -> list[str]:
    return store.read(lambda db: misplaced(db, job, surroundings))


async def test_a_host_volume_needs_a_policy_for_what_is_done_with_it(store: Store) -> None:
    reading = around(may_mount=lambda source, read_only: source == "data" and read_only)
    assert faults(store, mounting(read_only=True), reading) == []
    (fault,) = faults(store, mounting(read_only=False), reading)
    assert fault == 'the host volume "data" may not be mounted so: see its policies'


async def test_a_token_for_a_task_needs_somebody_who_could_make_it(store: Store) -> None:
    asking = samples.task("main", secrets_config=SecretsConfig(role="web"))
    job = samples.job("web", samples.group("web", asking))
    refusing = around(secrets=lambda _, block: f"no {block.role}")
    assert faults(store, job, refusing) == ['task "main" cannot have a token: no web']
    assert faults(store, job, around(secrets=lambda _, block: "")) == []


async def test_a_command_is_one_of_the_configuration(store: Store) -> None:
    job = samples.job("web", meta={"steward_notify_command": "mail"})
    said = (
        'Meta of job: "steward_notify_command" is "mail", must be one of notify_commands in the '
        "daemon's configuration: "
    )
    assert faults(store, job, around()) == [f"{said}none is there"]
    assert faults(store, job, around(commands={"page", "chat"})) == [f"{said}chat, page"]
    assert faults(store, job, around(commands={"mail"})) == []
