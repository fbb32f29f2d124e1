"""One round of draft and verify for all running requests, inside an open act."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from mtpcore.boundary.arguments import Length, read
from mtpcore.cross import Cross, Draft, Drafted, DraftPlan, Verdict
from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.decoding.lengths.policy import LengthPolicy, Round
from mtpcore.decoding.request import Progress, Request
from mtpcore.decoding.round_logits import RoundLogits, watches
from mtpcore.decoding.stats import Stats
from mtpcore.decoding.stopwatch import Stopwatch
from mtpcore.errors import BatchError, LinkError, spell
from mtpcore.runtime.prompt import Prompt
from mtpcore.sampling import Sampling

__all__ = ["RoundResult", "check_sequences", "run_round"]

Requests = Mapping[int, Request]


class RoundResult(NamedTuple):
    """Where a round brings its requests, and what it cost; ``pass_seconds`` is 0 until it ends."""

    progress: list[tuple[Request, Progress]]
    cost: Round


def run_round(
    cross: Cross,
    running: Requests,
    lengths: LengthPolicy,
    stats: Stats,
    watch: Stopwatch,
) -> RoundResult:
    """Run a round for these requests, by sequence; none of them is changed.

    What follows the target's choice is in the watch's next lap.
    """
    ready = {seq: r for seq, r in running.items() if r.n_prefilled == len(r.prompt)}
    samplings = {seq: request.sampling for seq, request in running.items()}
    invalid, paused, chosen_before = cross.invalid, cross.paused, cross.speculation.choose_seconds
    plans = _plan(cross, ready, lengths)
    stats.length_seconds += watch.lap()
    # "auto" learns what drafts cost, and what passes cost: they have to be calls of their own.
    is_timed = any(request.draft == "auto" for request in running.values())
    is_whole = len(ready) == len(running) and not any(map(watches, running.values()))
    drafts, makers, seconds_of = _draft(
        cross, ready, plans, samplings, [*plans] if is_whole and not is_timed else ()
    )
    draft_seconds = watch.lap()
    asked = {seq: _asked(plan, makers.get(seq)) for seq, plan in plans.items()}
    prefill = _chunks(cross, running, sum(len(draft) + 1 for draft in drafts.values()))
    going_on = [s for s, ids in prefill.items() if not _ends_prompt(running[s], len(ids))]
    seen = {seq: RoundLogits(request) for seq, request in running.items() if watches(request)}
    n_encoded = _encode(cross, running, prefill)
    verdicts = cross.speculation.verify(drafts, samplings, prefill, going_on, seen)
    pass_seconds = watch.lap()
    choose_seconds = cross.speculation.choose_seconds - chosen_before
    progress = [
        (
            ready[seq],
            _accept(
                cross, seq, ready[seq], drafts[seq], verdict, seen.get(seq), stats, makers.get(seq)
            ),
        )
        for seq, verdict in verdicts.items()
    ]
    progress += [
        (running[seq], _read(cross, seq, running[seq], len(tokens), seen.get(seq), stats))
        for seq, tokens in prefill.items()
    ]
    for seq in prefill:
        if cross.llm.runner.lengths[seq] in running[seq].stops:
            cross.speculation.settle_all(seq)  # who goes on from there shares drafters' memory, too
    n_prompt = sum(map(len, prefill.values())) + n_encoded
    used = cross.contexts.values() if any(asked.values()) else [cross.llm]
    stats.draft_seconds += draft_seconds
    stats.invalid += cross.invalid - invalid
    stats.paused += cross.paused - paused
    if verdicts:
        stats.passes += 1
        stats.verify_seconds += pass_seconds - choose_seconds
        stats.choose_seconds += choose_seconds
        for k in asked.values():
            stats.lengths[k] = stats.lengths.get(k, 0) + 1
    else:
        stats.prefill_seconds += pass_seconds
        stats.prefill_tokens += n_prompt
    cost = Round(
        asked=asked,
        made={seq: len(draft) for seq, draft in drafts.items()},
        accepted={seq: verdict.accepted for seq, verdict in verdicts.items()},
        rows=sum(len(draft) + 1 for draft in drafts.values()) + n_prompt,
        prompt_rows=n_prompt,
        draft_seconds=draft_seconds,
        pass_seconds=0.0,
        choose_seconds=choose_seconds,
        makers=makers,
        seconds_of=seconds_of,
        is_warm=all(context.runner.is_warm for context in used),
    )
    return RoundResult(progress, cost)


def check_sequences(cross: Cross, running: Requests) -> None:
    """Raise LinkError where a sequence does not hold what its request says."""
    held = cross.llm.runner.lengths
    for seq, request in running.items():
        is_read = request.n_prefilled == len(request.prompt)
        n = request.n_held - 1 if is_read else request.n_prefilled
        if held[seq] != n:
            raise LinkError(
                "the sequence of a running request was changed by others",
                where=f"sequence {seq}, {request!r}",
                wanted=f"{n} tokens",
                got=f"{held[seq]} tokens",
                fix="cancel() the request, and leave sequences to the generator that uses them",
            )


def _plan(cross: Cross, ready: Requests, lengths: LengthPolicy) -> dict[int, DraftPlan]:
    """Return whom each sequence asks for how much: no more than it has room and budget for."""
    room = cross.llm.n_ctx + 1
    plans: dict[int, DraftPlan] = {}
    limits: dict[int, int] = {}
    for seq, request in ready.items():
        left = min(request.max_tokens - len(request.tokens), room - request.n_held)
        left = max(left - 1, 0)
        if request.draft == "auto":
            limits[seq] = left
        else:
            plans[seq] = cross.speculation.plan_drafts(min(request.draft, left), request.drafters)
    if limits:
        fixed = {seq: _asked(plan) for seq, plan in plans.items()}
        chosen, where = lengths.choose(limits, fixed), type(lengths).__name__
        if not isinstance(chosen, Mapping):
            raise BatchError("no lengths of drafts", where=where, got=spell(chosen))
        for seq, most in limits.items():
            plan = cross.speculation.plan_drafts(most, ready[seq].drafters)
            plans[seq] = _shorten(plan, chosen.get(seq, 0), where, ready[seq].drafters is None)
    return plans


def _shorten(plan: DraftPlan, chosen: object, where: str, reorders: bool) -> DraftPlan:
    """Return a plan with the lengths that were chosen, one for all or one for each drafter."""
    by_role = chosen if isinstance(chosen, Mapping) else dict.fromkeys(plan, chosen)
    lengths = {
        role: read(k, Length, "draft is a number of tokens", where=where)
        for role, k in by_role.items()
    }
    order = lengths if reorders else plan
    return {role: min(lengths.get(role, 0), plan[role]) for role in order if role in plan}


def _asked(plan: DraftPlan, maker: str | None = None) -> int:
    """Return how many drafts were asked for: of who made them, or at most."""
    return max(plan.values(), default=0) if maker is None else plan[maker]


def _draft(
    cross: Cross,
    ready: Requests,
    plans: Mapping[int, DraftPlan],
    samplings: Mapping[int, Sampling],
    verified: Sequence[int],
) -> Drafted:
    """Draft as planned; ``verified`` are all sequences of the pass that follows, where known."""
    wanted = {seq: plan for seq, plan in plans.items() if _asked(plan)}
    if not wanted:
        return Drafted({seq: [] for seq in plans}, {}, {})
    samplers = {seq: ready[seq].draft_sampler for seq in wanted}
    least = {seq: ready[seq].p_min for seq in wanted}
    processors = {seq: p for seq in wanted if (p := ready[seq].logits_processor) is not None}
    drafted = cross.speculation.draft(
        wanted, samplings, samplers, least, processors=processors, verified=verified
    )
    return drafted._replace(drafts={seq: drafted.drafts.get(seq, []) for seq in plans})


def _chunks(cross: Cross, running: Requests, taken: int) -> dict[int, list[int] | Prompt]:
    """Share what the batch has left among prompts that are not processed yet."""
    room = max(cross.llm.n_batch - taken, 1)
    chunks: dict[int, list[int] | Prompt] = {}
    for seq, request in running.items():
        begin = request.n_prefilled
        end = min([begin + room, *(stop for stop in request.stops if stop > begin)])
        whole = cross.llm.program.sees_spans
        rows = request.chunk(begin, end, whole=whole) if room > 0 else []
        if len(rows):
            chunks[seq] = rows
            room -= len(rows)
    return chunks


def _encode(cross: Cross, running: Requests, prefill: Collection[int]) -> int:
    """Let the encoder read the prompts of texts that begin; return how many tokens it read."""
    sources = {
        seq: running[seq].source
        for seq in prefill
        if running[seq].source and not running[seq].n_prefilled
    }
    cross.speculation.encode(sources)
    return sum(map(len, sources.values()))


def _ends_prompt(request: Request, n: int) -> bool:
    """Say whether n further tokens are all that is left of a prompt."""
    return request.n_prefilled + n == len(request.prompt)


def _read(
    cross: Cross, seq: int, request: Request, n: int, logits: RoundLogits | None, stats: Stats
) -> Progress:
    """Return where a chunk of its prompt brings a request: its end brings the first token."""
    if request.n_prefilled == request.n_cached:
        stats.prompt_tokens += len(request.given)
        stats.cached_tokens += request.n_cached
        stats.cached_prompts += request.n_cached > 0
    tokens: Sequence[int] = ()
    is_stuck = False
    if _ends_prompt(request, n):
        token = cross.speculation.states.try_choose(seq, request.sampling, logits)
        is_stuck, tokens = token is None, () if token is None else (token,)
    is_full = bool(tokens) and cross.llm.runner.lengths[seq] >= cross.llm.n_ctx
    logprobs = logits.logprobs(tokens) if logits else ()
    progress = request.advance(
        tokens, 0, n_prompt=n, logprobs=logprobs, is_full=is_full, is_stuck=is_stuck
    )
    stats.prompts += len(progress.tokens)
    stats.tokens += len(progress.tokens)
    return progress


def _accept(
    cross: Cross,
    seq: int,
    request: Request,
    draft: Draft,
    verdict: Verdict,
    logits: RoundLogits | None,
    stats: Stats,
    maker: str | None,
) -> Progress:
    """Keep what was accepted of a draft, and return where that brings the request."""
    cross.speculation.accept(seq)
    progress = request.advance(
        verdict.tokens,
        verdict.accepted,
        n_drafted=len(draft),
        logprobs=logits.logprobs(verdict.tokens) if logits else (),
        is_full=cross.llm.runner.lengths[seq] >= cross.llm.n_ctx,
        is_stuck=verdict.is_stuck,
    )
    stats.tokens += len(progress.tokens)
    if len(draft):
        depth = draft.depth.max() if isinstance(draft, DraftTree) else len(draft)
        stats.count(len(draft), int(depth), sum(progress.drafted))
        if maker is not None:
            stats.count_maker(cross.speculation.names[maker], len(draft), sum(progress.drafted))
    return progress
