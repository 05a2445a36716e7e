"""The state machine: each rule sends a request, and compares the answer with the model."""

import base64
from typing import Any

import httpx
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from tests.model.process import Daemon
from tests.model.reference import READ, SUBMIT, Content, Model

CONTENTS = st.tuples(st.sampled_from([1, 50, 70]), st.just(0), st.sampled_from(["", "a", "b"]))
NAMES = st.sampled_from(["one", "two", "three"])
NUMBERS = st.integers(0, 6)
TAGS = st.sampled_from(["gold", "silver"])
PATHS = st.sampled_from(["app", "app/a", "app/b", "other"])
CRASHES = 7  # not 0, because Hypothesis draws 0 most often
VALUES = st.sampled_from(["1", "2", "ä☃"])


class ApiMachine(RuleBasedStateMachine):
    """Random requests; a subclass has the daemon."""

    daemon: Daemon
    model: Model
    has_crashed = False
    last = ""  # the namespace of the last request

    namespaces = Bundle("namespaces")
    secrets = Bundle("secrets")
    policies = Bundle("policies")

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(self.daemon.next_prefix())

    # ---- namespaces

    @rule(target=namespaces)
    def create_namespace(self) -> str:
        name = self.model.new_name()
        self.expect(True, "POST", f"/v1/namespace/{name}", {"Name": name})
        self.model.namespaces[name] = {}
        return name

    @rule(namespace=namespaces)
    def delete_namespace(self, namespace: str) -> None:
        variables = [key for key in self.model.variables if key[0] == namespace]
        answer = self.send("DELETE", f"/v1/namespace/{namespace}")
        if namespace not in self.model.namespaces or variables:
            assert answer.status_code >= 400, answer.text
        elif answer.is_success:  # only jobs that have ended may be left
            del self.model.namespaces[namespace]
        else:
            assert self.model.namespaces[namespace], answer.text

    # ---- jobs

    @rule(namespace=namespaces, name=NAMES, content=CONTENTS, parameterized=st.booleans())
    def register(self, namespace: str, name: str, content: Content, parameterized: bool) -> None:
        body = {"Job": document(namespace, name, content, parameterized)}
        good = self.model.register(namespace, name, content, parameterized)
        self.expect(good, "POST", "/v1/jobs", body, namespace=namespace)

    @rule(namespace=namespaces, name=NAMES, content=CONTENTS, is_right=st.booleans())
    def register_with_index(
        self, namespace: str, name: str, content: Content, is_right: bool
    ) -> None:
        job = self.model.namespaces.get(namespace, {}).get(name)
        if namespace not in self.model.namespaces:
            return
        index = 0
        if job is not None:
            shown = self.send("GET", f"/v1/job/{name}", namespace=namespace).json()
            index = shown["JobModifyIndex"]
        if not is_right:
            index += 1
        kind = job is not None and job.is_parameterized
        body = {
            "Job": document(namespace, name, content, kind),
            "EnforceIndex": True,
            "JobModifyIndex": index,
        }
        if is_right:
            self.model.register(namespace, name, content, kind)
        self.expect(is_right, "POST", "/v1/jobs", body, namespace=namespace)

    @rule(namespace=namespaces, name=NAMES, purge=st.booleans())
    def stop(self, namespace: str, name: str, purge: bool) -> None:
        self.model.stop(namespace, name, purge)
        text = "true" if purge else "false"
        self.expect(True, "DELETE", f"/v1/job/{name}", namespace=namespace, purge=text)

    @rule(namespace=namespaces, name=NAMES, number=NUMBERS)
    def revert(self, namespace: str, name: str, number: int) -> None:
        good = self.model.revert(namespace, name, number)
        body = {"JobID": name, "JobVersion": number}
        self.expect(good, "POST", f"/v1/job/{name}/revert", body, namespace=namespace)

    @rule(namespace=namespaces, name=NAMES, number=NUMBERS, tag=TAGS)
    def tag(self, namespace: str, name: str, number: int, tag: str) -> None:
        good = self.model.tag(namespace, name, number, tag)
        path = f"/v1/job/{name}/versions/{tag}/tag"
        self.expect(good, "POST", path, {"Version": number}, namespace=namespace)

    @rule(namespace=namespaces, name=NAMES, tag=TAGS)
    def untag(self, namespace: str, name: str, tag: str) -> None:
        good = self.model.untag(namespace, name, tag)
        self.expect(good, "DELETE", f"/v1/job/{name}/versions/{tag}/tag", namespace=namespace)

    @rule(namespace=namespaces, name=NAMES, token=st.sampled_from(["", "x", "y"]))
    def dispatch(self, namespace: str, name: str, token: str) -> None:
        good = self.model.may_dispatch(namespace, name)
        query = {"idempotency_token": token} if token else {}
        body = {"Payload": base64.b64encode(b"input").decode()}
        path = f"/v1/job/{name}/dispatch"
        answer = self.expect(good, "POST", path, body, namespace=namespace, **query)
        if not good:
            return
        child = answer.json()["DispatchedJobID"]
        children = self.model.namespaces[namespace][name].children
        key = token or child
        assert children.setdefault(key, child) == child
        assert len(set(children.values())) == len(children)

    # ---- variables

    @rule(namespace=namespaces, path=PATHS, value=VALUES, check=st.sampled_from(["", "ok", "no"]))
    def put_variable(self, namespace: str, path: str, value: str, check: str) -> None:
        exists = namespace in self.model.namespaces
        query = self._check_and_set(namespace, path, check)
        good = exists and check != "no"
        body = {"Namespace": namespace, "Path": path, "Items": {"key": value}}
        self.expect(good, "PUT", f"/v1/var/{path}", body, namespace=namespace, **query)
        if good:
            self.model.variables[namespace, path] = {"key": value}

    @rule(namespace=namespaces, path=PATHS, check=st.sampled_from(["", "ok", "no"]))
    def delete_variable(self, namespace: str, path: str, check: str) -> None:
        query = self._check_and_set(namespace, path, check)
        if namespace not in self.model.namespaces:
            return
        good = check != "no"
        self.expect(good, "DELETE", f"/v1/var/{path}", namespace=namespace, **query)
        if good:
            self.model.variables.pop((namespace, path), None)

    def _check_and_set(self, namespace: str, path: str, check: str) -> dict[str, str]:
        """Return the query of a write: `cas` with the right or a wrong index, or no `cas`."""
        if not check:
            return {}
        shown = self.send("GET", f"/v1/var/{path}", namespace=namespace)
        index = shown.json()["ModifyIndex"] if shown.is_success else 0
        return {"cas": str(index if check == "ok" else index + 1)}

    # ---- tokens

    @rule(target=policies, namespace=namespaces, capability=st.sampled_from([READ, SUBMIT]))
    def put_policy(self, namespace: str, capability: str) -> str:
        name = self.model.new_name()
        rules = f'namespace "{namespace}" {{ capabilities = ["{capability}"] }}'
        self.expect(True, "POST", f"/v1/acl/policy/{name}", {"Name": name, "Rules": rules})
        self.model.policies[name] = (namespace, capability)
        return name

    @rule(policy=consumes(policies))
    def delete_policy(self, policy: str) -> None:
        self.expect(True, "DELETE", f"/v1/acl/policy/{policy}")
        del self.model.policies[policy]

    @rule(target=secrets, names=st.lists(policies, min_size=1, max_size=3, unique=True))
    def create_token(self, names: list[str]) -> Any:
        body = {"Name": "t", "Type": "client", "Policies": names}
        made = self.expect(True, "POST", "/v1/acl/token", body).json()
        self.model.tokens[made["SecretID"]] = (made["AccessorID"], names)
        return multiple(made["SecretID"])

    @rule(secret=secrets)
    def delete_token(self, secret: str) -> None:
        known = self.model.tokens.pop(secret, None)
        if known is not None:
            self.expect(True, "DELETE", f"/v1/acl/token/{known[0]}")

    @rule(secret=secrets, namespace=namespaces, name=NAMES)
    def read_as(self, secret: str, namespace: str, name: str) -> None:
        status = self.as_(secret, "GET", f"/v1/job/{name}", namespace=namespace).status_code
        if not self.model.may(secret, READ, namespace):
            assert status == 403
        else:
            assert status == (200 if name in self.model.namespaces.get(namespace, {}) else 404)

    @rule(secret=secrets, namespace=namespaces, name=NAMES, content=CONTENTS)
    def register_as(self, secret: str, namespace: str, name: str, content: Content) -> None:
        body = {"Job": document(namespace, name, content, parameterized=False)}
        answer = self.as_(secret, "POST", "/v1/jobs", body, namespace=namespace)
        if not self.model.may(secret, SUBMIT, namespace):
            assert answer.status_code == 403, answer.text
        else:
            good = self.model.register(namespace, name, content, parameterized=False)
            assert answer.is_success == good, answer.text

    # ---- the daemon

    @precondition(lambda self: not self.has_crashed)
    @rule(dice=st.integers(0, 9))
    def crash(self, dice: int) -> None:
        """Kill the daemon, once in some of the examples: all earlier responses must be durable."""
        if dice == CRASHES:
            self.has_crashed = True
            self.daemon.kill_and_restart()
            self.teardown()

    # ---- properties after each request

    @invariant()
    def the_last_namespace_is_as_in_the_model(self) -> None:
        if self.last in self.model.namespaces:
            self._same(self.last)

    def teardown(self) -> None:
        for namespace in self.model.namespaces:
            self._same(namespace)

    def _same(self, namespace: str) -> None:
        self._same_jobs(namespace, self.model.namespaces[namespace])
        self._same_variables(namespace)

    def _same_jobs(self, namespace: str, jobs: dict[str, Any]) -> None:
        listed = self.pages("/v1/jobs", namespace)
        own = {page["ID"] for page in listed if "/dispatch-" not in page["ID"]}
        assert own == set(jobs)
        for name, job in jobs.items():
            shown = self.send("GET", f"/v1/job/{name}/versions", namespace=namespace).json()
            found = [version_of(version) for version in reversed(shown["Versions"])]
            expected = [
                (number, one.content, one.is_stopped, one.tag)
                for number, one in enumerate(job.versions)
            ]
            assert found == expected
            current = self.send("GET", f"/v1/job/{name}", namespace=namespace).json()
            assert version_of(current) == expected[-1]
            children = {page["ID"] for page in listed if page["ID"].startswith(f"{name}/dispatch-")}
            assert set(job.children.values()) <= children

    def _same_variables(self, namespace: str) -> None:
        expected = {
            key[1]: items for key, items in self.model.variables.items() if key[0] == namespace
        }
        listed = self.pages("/v1/vars", namespace)
        assert [page["Path"] for page in listed] == sorted(expected)
        for path, items in expected.items():
            shown = self.send("GET", f"/v1/var/{path}", namespace=namespace).json()
            assert shown["Items"] == items

    def pages(self, path: str, namespace: str) -> list[Any]:
        """Return a list that is read two entries at a time."""
        found: list[Any] = []
        token = ""
        while True:
            query = {"next_token": token} if token else {}
            answer = self.send("GET", path, namespace=namespace, per_page="2", **query)
            found += answer.json()
            token = answer.headers.get("X-Service-NextToken", "")
            if not token:
                return found

    # ---- requests

    def send(self, method: str, path: str, body: object = None, **query: str) -> httpx.Response:
        """Return the response to the management token; it must not be an internal error."""
        answer = self.as_(self.daemon.token, method, path, body, **query)
        assert answer.status_code < 500 or path_may_fail(answer), answer.text
        return answer

    def as_(
        self, token: str, method: str, path: str, body: object = None, **query: str
    ) -> httpx.Response:
        self.last = query.get("namespace", self.last)
        headers = {"X-Service-Token": token}
        return self.daemon.http.request(method, path, json=body, params=query, headers=headers)

    def expect(
        self, good: bool, method: str, path: str, body: object = None, **query: str
    ) -> httpx.Response:
        answer = self.send(method, path, body, **query)
        assert answer.is_success == good, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer


def path_may_fail(answer: httpx.Response) -> bool:
    """Return whether a 5xx has a reason in plain words.

    The jobs API reports many invalid requests with such a status.
    """
    return answer.status_code == 500 and bool(answer.text) and "Internal" not in answer.text


def document(namespace: str, name: str, content: Content, parameterized: bool) -> dict[str, Any]:
    priority, number, value = content
    task = {"Name": "t", "Driver": "mock_driver", "Config": {"run_for": "1ms"}}
    job: dict[str, Any] = {
        "ID": name,
        "Name": name,
        "Namespace": namespace,
        "Type": "service",
        "Priority": priority,
        "Meta": {"key": value} if value else None,
        "TaskGroups": [{"Name": "g", "Count": number, "Tasks": [task]}],
    }
    if parameterized:
        job |= {"Type": "batch", "ParameterizedJob": {"Payload": "optional"}}
    return job


def version_of(shown: Any) -> tuple[int, Content, bool, str]:
    group = shown["TaskGroups"][0]
    content = (shown["Priority"], group["Count"], (shown["Meta"] or {}).get("key", ""))
    return shown["Version"], content, shown["Stop"], (shown["VersionTag"] or {}).get("Name", "")
