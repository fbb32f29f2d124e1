"""From roles to drafters: which graphs and proposers of a Cross draft, and what feeds them."""

from __future__ import annotations

from collections.abc import Mapping

from mtpcore.boundary.arguments import offers
from mtpcore.declarations.proposer import Proposer
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.drafting.adapter import AdapterDrafter
from mtpcore.drafting.block import BlockDrafter
from mtpcore.drafting.chain import GraphDrafter
from mtpcore.drafting.drafters import Drafter
from mtpcore.drafting.fed import FedDrafter, FedRole
from mtpcore.drafting.heads import HeadDrafter
from mtpcore.drafting.proposers import ProposerDrafter
from mtpcore.drafting.shared_memory import SharedMemoryDrafter
from mtpcore.drafting.upstream import (
    UpstreamGraphs,
    find_graph,
    find_heads,
    find_upstream,
    head_role,
    n_heads,
)
from mtpcore.errors import LinkError
from mtpcore.graph import GraphType
from mtpcore.links.links import Links
from mtpcore.runtime.runner import GraphRunner

__all__ = ["make_drafters"]


def make_drafters(
    roles: Mapping[str, GraphRunner | Proposer | FedRole], links: Links
) -> dict[str, Drafter]:
    """Return what drafts, by role in the order of the roles, and declare its links.

    Raises
    ------
    LinkError
        Graphs that do not fit together or to the target, or a role that is neither.
    """
    runners = {name: role for name, role in roles.items() if isinstance(role, GraphRunner)}
    drafters: dict[str, Drafter] = {}
    for name, role in roles.items():
        if isinstance(role, GraphRunner):
            spec = role.drafter
            if name == "llm" or spec is None or role.graph_type != GraphType.DRAFT:
                continue
            if spec.adapter:
                _check({name: role}, runners["llm"], spec)
                drafters[name] = AdapterDrafter(name, role, runners["llm"])
            elif spec.shared_memory is not None:
                drafters[name] = _shared_memory_drafter(name, runners, links)
            elif n_heads(spec) == 1:
                drafters[name] = _graph_drafter(name, runners, links)
            elif role.head == 0:
                drafters[name] = _head_drafter(name, runners, links)
            else:  # it comes with the first head
                find_heads(name.removesuffix(head_role("", role.head)), runners)
        elif isinstance(role, FedRole):
            drafters[name] = FedDrafter(name, role, links.collect(name, role.spec))
        elif offers(role, "propose"):
            drafters[name] = ProposerDrafter(name, role)
        else:
            raise LinkError(
                "a role is a Context or a Proposer", where=name, got=type(role).__name__
            )
    return drafters


def _graph_drafter(
    name: str, runners: Mapping[str, GraphRunner], links: Links
) -> GraphDrafter | BlockDrafter:
    runner = runners[name]
    assert runner.drafter is not None
    block, further = runner.drafter.block, find_upstream(name, runners)
    names = [block.post_head] if block and block.post_head else []
    post_head = dict(find_graph(graph, name, runners) for graph in names)
    _check({name: runner, **further, **post_head}, runners["llm"], runner.drafter)
    links.declare(name)
    inboxes = {role: links.inboxes(role) for role in further}
    upstream = UpstreamGraphs(name, runner.drafter, further, inboxes)
    _refuse_together(further if block else {name: runner, **further}, runner.drafter)
    if block is not None:
        return BlockDrafter(name, runner, upstream, post_head)
    return GraphDrafter(name, runner, upstream)


def _shared_memory_drafter(
    name: str, runners: Mapping[str, GraphRunner], links: Links
) -> SharedMemoryDrafter:
    runner, target = runners[name], runners["llm"]
    assert runner.drafter is not None
    _check({name: runner}, target, runner.drafter)
    _refuse_together({name: runner}, runner.drafter)
    drafter = SharedMemoryDrafter(name, runner, target)
    links.declare(name)
    return drafter


def _head_drafter(name: str, runners: Mapping[str, GraphRunner], links: Links) -> HeadDrafter:
    heads, further = find_heads(name, runners), find_upstream(name, runners)
    spec = runners[name].drafter
    assert spec is not None
    _check({**heads, **further}, runners["llm"], spec)
    _refuse_together({**heads, **further}, spec)
    for role in heads:
        links.declare(role, name)
    inboxes = {role: links.inboxes(role) for role in further}
    return HeadDrafter(name, heads, UpstreamGraphs(name, spec, further, inboxes))


def _check(runners: Mapping[str, GraphRunner], target: GraphRunner, spec: DrafterSpec) -> None:
    """Refuse graphs of a drafter that are too small or cannot take its drafts back."""
    for role, runner in runners.items():
        if runner.n_ctx < target.n_ctx:
            raise LinkError(
                "the drafter's context is smaller than the target's",
                where=role,
                wanted=f"n_ctx {target.n_ctx}",
                got=f"n_ctx {runner.n_ctx}",
            )
    for runner in (target, *runners.values()):
        if runner.memory is not None:
            runner.memory.allow_rewind(spec.limit + 1)


def _refuse_together(runners: Mapping[str, GraphRunner], spec: DrafterSpec) -> None:
    """Refuse graphs whose rows would differ with how many a round happens to run."""
    for role, runner in runners.items():
        if runner.program.is_run_whole:
            raise LinkError(
                "rows depend on which others come with them",
                where=f"drafter {spec.full_name}, role {role}",
                wanted="rows that see what is before them: g.attention(mask='causal')",
                fix="declare the shape 'block', whose graph that drafts may see a whole block",
            )
