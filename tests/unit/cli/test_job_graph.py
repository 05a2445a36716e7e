"""Pictures of a graph show lists of unknown length, and needs by element."""

from daemon.cli.commands.job_graph import _dot, _mermaid
from storage.records.flow import FlowGraph, GraphEdge, GraphStep


def step(name: str, *, when: str = "success", count: int = 1, elements_of: str = "") -> GraphStep:
    return GraphStep(
        name=name,
        level=0,
        needs=[],
        when=when,
        condition="",
        count=count,
        parallel=0,
        elements_of=elements_of,
        each_of=[],
    )


GRAPH = FlowGraph(
    job_id="etl",
    namespace="default",
    version=0,
    is_workflow=True,
    steps=[
        step("plan"),
        step("load", count=0, elements_of="plan.shards"),
        step("fix", when="failure", count=0, elements_of="plan.shards"),
        step("none", count=0),
    ],
    edges=[
        GraphEdge(source="plan", to="load", is_by_element=False),
        GraphEdge(source="load", to="fix", is_by_element=True),
    ],
    levels=[],
    longest=[],
)


def test_graphviz_picture_names_the_list_of_a_step() -> None:
    lines = list(_dot(GRAPH))
    assert '  "load" [label="load x list plan.shards"];' in lines
    assert '  "none" [label="none x0"];' in lines
    assert '  "load" -> "fix" [style=dashed] [label="[i]"];' in lines


def test_mermaid_picture_names_the_list_of_a_step() -> None:
    lines = list(_mermaid(GRAPH))
    assert '  s1["load x list plan.shards"]' in lines
    assert '  s3["none x0"]' in lines
    assert '  s1 -. "failure [i]" .-> s2' in lines
