"""Registration checks for jobs that start after other jobs: capabilities, limits and warnings."""

from collections import deque
from collections.abc import Callable, Iterator

from storage.queries import jobs, triggers
from storage.read_pool import ReadSnapshot
from storage.records.flow import Source, sources_of
from storage.records.job import Job, JobType
from storage.records.trigger import MOST_FOLLOWERS

_MOST_LOOKED_AT = 1000  # jobs that the search for circular chains examines


def follow_errors(
    db: ReadSnapshot, job: Job, may_read: Callable[[str], bool], may_dispatch: Callable[[str], bool]
) -> Iterator[str]:
    """Yield why a job cannot follow its sources: missing capabilities, or too many followers.

    `may_read` and `may_dispatch` return whether the caller has the capability in a namespace.
    """
    sources = sources_of(job)
    if sources and not may_dispatch(job.namespace):
        yield (
            "steward_after starts the job automatically, so it needs the capability dispatch-job or "
            f'submit-job in namespace "{job.namespace}"'
        )
    for namespace in dict.fromkeys(source.namespace for source in sources):
        if not may_read(namespace):
            yield (
                "steward_after needs the capability read-job in namespace "
                f'"{namespace}", whose jobs it lists'
            )
    for source in sources:
        follower_lines = triggers.followers(db, source.namespace, source.job_id)
        number_of_others = sum(
            (row.namespace, row.job_id) != (job.namespace, job.id) for row in follower_lines
        )
        if number_of_others >= MOST_FOLLOWERS:
            yield f'{number_of_others} jobs follow "{source}" already; the maximum is {MOST_FOLLOWERS}'


def follow_warnings(db: ReadSnapshot, job: Job, may_read: Callable[[str], bool]) -> Iterator[str]:
    """Yield warnings about sources that never end or do not exist, and about circular chains.

    The warnings omit jobs of namespaces that the caller cannot read.
    """
    for reference in sources_of(job):
        source = (
            jobs.current(db, reference.namespace, reference.job_id)
            if may_read(reference.namespace)
            else None
        )
        if source is None:
            if (reference.namespace, reference.job_id) != (job.namespace, job.id):
                yield f'steward_after names "{reference}", which does not exist yet'
        elif source.type not in (JobType.BATCH, JobType.SYSBATCH):
            yield f'steward_after names "{reference}", which is of type {source.type} and never ends'
    if chain := _cycle(db, job):
        names = " -> ".join(
            str(link) if may_read(link.namespace) else "a job of another namespace"
            for link in chain
        )
        yield f"the chain of jobs is circular: {names}; it ends after 32 runs"


def _cycle(db: ReadSnapshot, job: Job) -> tuple[Source, ...]:
    """Return the shortest chain of sources that leads from a job back to this job.

    The chain is in the order of the runs. It is empty if none was found.
    """
    start = Source(job.namespace, job.id)
    behind: dict[Source, Source] = {}
    queue = deque([start])
    while queue and len(behind) < _MOST_LOOKED_AT:
        current = queue.popleft()
        sources = (
            sources_of(job)
            if current == start
            else triggers.sources(db, current.namespace, current.job_id)
        )
        for source in sources:
            if source == start:
                chain = [start, current]
                while chain[-1] != start:
                    chain.append(behind[chain[-1]])
                return tuple(chain)
            if source not in behind:
                behind[source] = current
                queue.append(source)
    return ()
