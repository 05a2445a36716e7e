"""The author of a job, who may only submit jobs, tries to get access beyond the job."""

import io
import tarfile
from pathlib import Path

import msgspec
import pytest

from storage.records.job import Job
from storage.records.task import Artifact, Lifecycle, Network, NetworkDNS
from tests.attacks.conftest import is_untouched
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.test_artifacts import Site
from tests.parts.runner.world import World, batch, script

pytestmark = needs_root
RESOLVER = NetworkDNS(servers=["10.9.8.7"])


def resolving(job: Job, dns: NetworkDNS) -> Job:
    """Return a job whose group has these DNS settings."""
    assert job.task_groups is not None
    group = msgspec.structs.replace(job.task_groups[0], networks=[Network(dns=dns)])
    return msgspec.structs.replace(job, task_groups=[group])


@pytest.mark.usefixtures("walls")
async def test_link_in_a_task_directory_does_not_redirect_writes_of_root(
    node: World, victim: Path
) -> None:
    plant = f"ln -s {victim} ../main/private/resolv.conf; exit 0"
    before = script(plant, "before", user="nobody", lifecycle=Lifecycle(hook="prestart"))
    main = script("cat /etc/resolv.conf", driver="exec")
    alloc_id = await node.place(resolving(batch(before, main), RESOLVER))
    await node.until_done(alloc_id)
    assert is_untouched(victim)
    assert node.output(alloc_id) == "nameserver 10.9.8.7\n"


@pytest.mark.usefixtures("walls")
@pytest.mark.parametrize("driver", ["exec", "raw_exec"])
async def test_archive_writes_only_into_the_directories_of_its_task(
    node: World, site: Site, victim: Path, driver: str
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        link = tarfile.TarInfo("private/resolv.conf")
        link.type, link.linkname = tarfile.SYMTYPE, "../local/link"
        archive.addfile(link)
    source = site.put("/x.tar", packed.getvalue())
    main = script(
        f"test -e local/link || {{ ln -s {victim} local/link; exit 1; }}",
        driver=driver,
        artifacts=[Artifact(getter_source=source, relative_dest="./")],
    )
    alloc_id = await node.place(resolving(batch(main), RESOLVER))
    await node.until_done(alloc_id)
    assert is_untouched(victim)
    assert "Failed Artifact Download" in node.types(alloc_id)


@pytest.mark.usefixtures("walls")
async def test_name_server_cannot_inject_a_line(node: World) -> None:
    dns = NetworkDNS(servers=['${env["LINES"]}'])
    main = script("exit 0", driver="exec", env={"LINES": "1.1.1.1\n* * * * * root id"})
    alloc_id = await node.place(resolving(batch(main), dns))
    await node.until_done(alloc_id)
    assert "Failed Validation" in node.types(alloc_id)
    assert not list(node.directory(alloc_id).rglob("*resolv*"))
