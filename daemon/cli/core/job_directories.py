"""Add the directories of `--with` to the request of a job, as uploaded files and artifacts."""

import http

import msgspec

from daemon.cli.core.directories import packed, with_artifacts
from daemon.cli.core.http_client import ApiClient, RequestRejected
from daemon.cli.core.job_file import namespace_of
from daemon.cli.core.output import ProgressRow, Screen
from daemon.cli.core.uploads import digest_of, upload
from storage.errors import Invalid


def with_directories(
    client: ApiClient,
    screen: Screen,
    request: dict[str, object],
    directories: tuple[str, ...],
    *,
    uploads: bool,
) -> dict[str, object]:
    """Return the request with directories for the tasks. With `uploads`, upload the directories."""
    if not directories:
        return request
    # Imported late, because few jobs have directories.

    job = request["Job"]
    named = msgspec.convert(job, dict[str, object]).get("Namespace")
    namespace = namespace_of(client, job) or str(named or "")
    files = dict[str, str]()
    with packed(directories) as archives:
        for packed_directory in archives:
            if not uploads:
                files[packed_directory.file] = digest_of(packed_directory.path)
                continue
            with screen.progress() as progress:

                def tell(sent: int, size: int, name: str = packed_directory.name) -> None:
                    percent = f"{100 * sent // max(size, 1)} %"
                    progress.show([ProgressRow("directory", name, "", "uploading", percent)])

                try:
                    files[packed_directory.file] = upload(
                        client,
                        packed_directory.path,
                        namespace,
                        tell,
                        members=packed_directory.members,
                    )
                except RequestRejected as error:
                    if error.status != http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                        raise
                    raise Invalid(f"--with {packed_directory.name}: {error}") from error
        return {**request, "Job": with_artifacts(job, archives), "Files": files}
