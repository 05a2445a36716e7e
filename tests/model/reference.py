"""The reference model: dictionaries that predict each answer of the API.

Each method returns whether the daemon must accept the request. The rules come from the reference
of the jobs API.
"""

from dataclasses import dataclass, field
from itertools import count

READ, SUBMIT = "read-job", "submit-job"

Content = tuple[int, int, str]  # priority, count, value of the meta key


@dataclass
class Version:
    """One version of a job, which never changes except for its tag."""

    content: Content
    is_stopped: bool = False
    tag: str = ""


@dataclass
class Job:
    """A job with all its versions, and its children by idempotency token."""

    is_parameterized: bool
    versions: list[Version] = field(default_factory=list)
    children: dict[str, str] = field(default_factory=dict)

    @property
    def current(self) -> Version:
        return self.versions[-1]


class Model:
    """Namespaces with jobs and variables, policies and tokens."""

    def __init__(self, prefix: str) -> None:
        self._numbers = count()
        self.prefix = prefix
        self.namespaces: dict[str, dict[str, Job]] = {}
        self.variables: dict[tuple[str, str], dict[str, str]] = {}
        self.policies: dict[str, tuple[str, str]] = {}  # name: namespace, capability
        self.tokens: dict[str, tuple[str, list[str]]] = {}  # secret: accessor, policies

    def new_name(self) -> str:
        return f"{self.prefix}-{next(self._numbers)}"

    # ---- jobs

    def register(self, namespace: str, name: str, content: Content, parameterized: bool) -> bool:
        jobs = self.namespaces.get(namespace)
        if jobs is None:
            return False
        job = jobs.get(name)
        if job is None:
            job = jobs[name] = Job(parameterized)
        elif job.is_parameterized != parameterized:
            return False
        if not job.versions or job.current.content != content or job.current.is_stopped:
            job.versions.append(Version(content))
        return True

    def stop(self, namespace: str, name: str, purge: bool) -> None:
        jobs = self.namespaces.get(namespace, {})
        if purge:
            jobs.pop(name, None)
        elif name in jobs:
            jobs[name].versions.append(Version(jobs[name].current.content, is_stopped=True))

    def revert(self, namespace: str, name: str, number: int) -> bool:
        job = self.namespaces.get(namespace, {}).get(name)
        if job is None or number not in range(len(job.versions) - 1):
            return False
        target = job.versions[number]
        job.versions.append(Version(target.content, target.is_stopped))
        return True

    def tag(self, namespace: str, name: str, number: int, tag: str) -> bool:
        job = self.namespaces.get(namespace, {}).get(name)
        if job is None or number >= len(job.versions):
            return False
        if any(one.tag == tag for other, one in enumerate(job.versions) if other != number):
            return False
        job.versions[number].tag = tag
        return True

    def untag(self, namespace: str, name: str, tag: str) -> bool:
        job = self.namespaces.get(namespace, {}).get(name)
        tagged = [version for version in job.versions if version.tag == tag] if job else []
        for version in tagged:
            version.tag = ""
        return bool(tagged)

    def may_dispatch(self, namespace: str, name: str) -> bool:
        job = self.namespaces.get(namespace, {}).get(name)
        return job is not None and job.is_parameterized and not job.current.is_stopped

    # ---- tokens

    def may(self, secret: str, capability: str, namespace: str) -> bool:
        if secret not in self.tokens:
            return False
        rules = [self.policies.get(name) for name in self.tokens[secret][1]]
        return (namespace, capability) in rules
