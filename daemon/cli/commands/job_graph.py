"""`job graph`: the steps of a workflow, as text or for a program that draws graphs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from daemon.cli.core import resolve
from daemon.cli.core.http_client import ApiClient, ClientResponse, segment
from daemon.cli.core.job_file import (
    VariableArguments,
    namespace_of,
    read_source,
    registration,
    with_variables,
)
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen
from daemon.text.go_format import quote
from daemon.text.placement_message import count_noun
from storage.errors import Invalid
from storage.records.flow import FlowGraph, GraphStep


@click.command()
@click.argument("source", metavar="JOB|FILE")
@click.option(
    "--version", "number", type=Integer(0), metavar="N", help="Version of the stored job."
)
@click.option("--dot", is_flag=True, help="Write the graph for Graphviz.")
@click.option("--mermaid", is_flag=True, help="Write the graph for Mermaid.")
@with_variables
@with_output
@with_client
def graph(
    client: ApiClient,
    screen: Screen,
    source: str,
    *,
    number: int | None,
    dot: bool,
    mermaid: bool,
    variables: VariableArguments,
) -> None:
    """Show the steps of a workflow: of the stored JOB, or of the job in FILE.

    An existing file is preferred to a job of the same name; - reads standard input. A step is below
    all steps that it needs.

    Example: steward job graph -mermaid nightly.hcl
    """
    if dot and mermaid:
        raise Invalid("--dot and --mermaid exclude each other; choose one")
    answer = _read(client, source, number, variables)
    flow_graph = answer.decode(FlowGraph)
    if dot:
        lines = _dot(flow_graph)
    elif mermaid:
        lines = _mermaid(flow_graph)
    elif screen.wants_document:
        screen.document(answer.body)
        return
    else:
        _show(screen, flow_graph)
        return
    for line in lines:
        screen.line(line)


def _read(
    client: ApiClient, source: str, number: int | None, variable_arguments: VariableArguments
) -> ClientResponse:
    if source == "-" or Path(source).is_file():
        job = registration(read_source(source), source, variable_arguments)["Job"]
        return client.send(
            "POST", "/v1/jobs/graph", {"Job": job}, namespace=namespace_of(client, job)
        )
    line = resolve.job(client, source)
    path = f"/v1/job/{segment(line.id)}/graph"
    if number is not None:
        return client.read(path, namespace=line.namespace, version=str(number))
    return client.read(path, namespace=line.namespace)


def _show(screen: Screen, flow_graph: FlowGraph) -> None:
    steps, levels = (
        count_noun(len(flow_graph.steps), "step"),
        count_noun(len(flow_graph.levels), "level"),
    )
    screen.line(f'job "{flow_graph.job_id}": {steps} in {levels}')
    by_name = {step.name: step for step in flow_graph.steps}
    rows = [
        (str(number), name, _elements(by_name[name]), _waits(by_name[name]))
        for number, names in enumerate(flow_graph.levels, 1)
        for name in names
    ]
    screen.table(("Level", "Step", "Elements", "Begins"), rows)
    if len(flow_graph.longest) > 1:
        screen.line(f"Longest chain: {' -> '.join(flow_graph.longest)}")


def _elements(step: GraphStep) -> str:
    number = f"list {step.elements_of}" if step.elements_of else str(step.count)
    return f"{number}, {step.parallel} at a time" if step.parallel else number


_AFTER = {
    "success": "after success of {}",
    "failure": "after failure of {}",
    "always": "after {}",
}


def _waits(step: GraphStep) -> str:
    """Return the conditions under which a step begins, as a phrase."""
    needs = [f"{need}[i]" if need in step.each_of else need for need in step.needs]
    begins = _AFTER[step.when].format(_listed(needs)) if needs else "immediately"
    parts = [
        begins,
        step.condition and f"if {step.condition}",
        _gate(step),
        step.not_before and f"not before {step.not_before}",
        step.not_after and f"not after {step.not_after}",
        f"while calendar {quote(step.calendar)} is open" if step.calendar else "",
        _queues(step),
    ]
    return ", ".join(filter(None, parts))


def _gate(step: GraphStep) -> str:
    number = "approval" if step.approvals == 1 else f"{step.approvals} approvals"
    return f"with {number} ({step.gate})" if step.gate else ""


def _queues(step: GraphStep) -> str:
    number = "a slot" if step.slots == 1 else f"{step.slots} slots"
    return f"with {number} of {' and of '.join(map(quote, step.queues))}" if step.queues else ""


def _listed(names: Sequence[str]) -> str:
    names_shown = ", ".join(names[:6])
    return f"{names_shown} and {len(names) - 6} more" if len(names) > 6 else names_shown


_STYLES = {"success": "", "failure": " [style=dashed]", "always": " [style=dotted]"}
_ARROWS = {"success": "-->", "failure": "-. failure .->", "always": "-. always .->"}
_ELEMENT_ARROWS = {
    "success": '-- "[i]" -->',
    "failure": '-. "failure [i]" .->',
    "always": '-. "always [i]" .->',
}


def _label(step: GraphStep) -> str:
    if step.elements_of:
        return f"{step.name} x list {step.elements_of}"
    return step.name if step.count == 1 else f"{step.name} x{step.count}"


def _dot(flow_graph: FlowGraph) -> Iterator[str]:
    yield f"digraph {_quoted(flow_graph.job_id)} {{"
    yield "  rankdir=LR;"
    for step in flow_graph.steps:
        label = _label(step)
        yield f"  {_quoted(step.name)} [label={_quoted(label)}];"
    by_name = {step.name: step for step in flow_graph.steps}
    for edge in flow_graph.edges:
        style = _STYLES[by_name[edge.to].when]
        label = ' [label="[i]"]' if edge.is_by_element else ""
        yield f"  {_quoted(edge.source)} -> {_quoted(edge.to)}{style}{label};"
    yield "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _mermaid(flow_graph: FlowGraph) -> Iterator[str]:
    """Yield lines of Mermaid. Node names are numbers, because Mermaid reserves some words."""
    yield "flowchart LR"
    number = {
        graph_step.name: f"s{number_of_step}"
        for number_of_step, graph_step in enumerate(flow_graph.steps)
    }
    for step in flow_graph.steps:
        label = _label(step)
        yield f'  {number[step.name]}["{label.replace(chr(34), "#quot;")}"]'
    by_name = {step.name: step for step in flow_graph.steps}
    for edge in flow_graph.edges:
        arrow = _ARROWS[by_name[edge.to].when]
        if edge.is_by_element:
            arrow = _ELEMENT_ARROWS[by_name[edge.to].when]
        yield f"  {number[edge.source]} {arrow} {number[edge.to]}"
