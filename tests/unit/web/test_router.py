"""From paths to routes: identifiers may hold slashes, endpoints are found by the end of the path."""

import pytest

from daemon.api.routes import ROUTES
from daemon.web.request import ReadRoute, WriteRoute
from daemon.web.router import Router

ROUTER = Router(ROUTES)


@pytest.mark.parametrize(
    ("path", "route", "parameters"),
    [
        ("/v1/jobs", "/v1/jobs", {}),
        ("/v1/job/web", "/v1/job/{job_id}", {"job_id": "web"}),
        ("/v1/job/a/b/c", "/v1/job/{job_id}", {"job_id": "a/b/c"}),
        ("/v1/job/a/b/summary", "/v1/job/{job_id}/summary", {"job_id": "a/b"}),
        ("/v1/job/web/", "/v1/job/{job_id}", {"job_id": "web/"}),
        ("/v1/job/", "/v1/job/{job_id}", {"job_id": ""}),
        ("/v1/job/web/unknown", "/v1/job/{job_id}", {"job_id": "web/unknown"}),
        (
            "/v1/job/a/dispatch/payload",
            "/v1/job/{job_id}/dispatch/payload",
            {"job_id": "a"},
        ),
        (
            "/v1/evaluation/1-2/allocations",
            "/v1/evaluation/{eval_id}/allocations",
            {"eval_id": "1-2"},
        ),
        ("/v1/evaluations/count", "/v1/evaluations/count", {}),
    ],
)
def test_path_is_routed_to_its_route(path: str, route: str, parameters: dict[str, str]) -> None:
    routes, found = ROUTER.find(path)
    assert {route.path for route in routes} == {route}
    assert found == parameters


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/jobs/", "/v1/unknown", "/jobs", "/v2/jobs"])
def test_other_paths_are_not_found(path: str) -> None:
    assert ROUTER.find(path) == ([], {})


@pytest.mark.parametrize(("path", "expected"), [("/v1/job", True), ("/v1/jobs", False)])
def test_path_above_routes_is_known(path: str, expected: bool) -> None:
    assert ROUTER.is_folder(path) is expected


def test_route_table_has_no_duplicates() -> None:
    rows = [(route.path, method) for route in ROUTES for method in route.methods]
    assert len(rows) == len(set(rows))


def test_post_and_put_are_equal() -> None:
    routes = [route for route in ROUTES if isinstance(route, WriteRoute)]
    assert {route.methods for route in routes} <= {
        frozenset({"POST", "PUT"}),
        frozenset({"DELETE"}),
    }


def test_read_routes_accept_get_and_few_accept_a_body() -> None:
    reads = {route.path: route.methods for route in ROUTES if isinstance(route, ReadRoute)}
    assert {path: methods for path, methods in reads.items() if methods != {"GET"}} == {
        "/v1/jobs/statuses": {"GET", "POST"},
        "/v1/search": {"POST", "PUT"},
        "/v1/search/fuzzy": {"POST", "PUT"},
    }


def test_path_has_two_parameters() -> None:
    (route, *_), found = ROUTER.find("/v1/job/a/b/versions/first/tag")
    assert route.path == "/v1/job/{job_id}/versions/{name}/tag"
    assert found == {"job_id": "a/b", "name": "first"}
