"""One round of draft and verify for all running requests, inside an open act."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from mtpcore.boundary.arguments import Length, read
from mtpcore.cross import Cross, DraftPlan, KeepDrafts, RoundDrafts, Verdict
from mtpcore.declarations.draft_tree import depth_of
from mtpcore.declarations.proposer import Proposal
from mtpcore.decoding.lengths.policy import LengthPolicy, Proposed, Round
from mtpcore.decoding.logprobs import TokenLogprobs
from mtpcore.decoding.request import Progress, Request
from mtpcore.decoding.round_logits import RoundLogits, prompt_logprobs, watches
from mtpcore.decoding.round_recorder import RoundRecorder, longest
from mtpcore.decoding.stats import Stats
from mtpcore.decoding.stopwatch import Stopwatch
from mtpcore.drafting.grammar import FORCED, LONGEST_FORCED
from mtpcore.errors import BatchError, LinkError, spell
from mtpcore.runtime.prompt import Prompt
from mtpcore.sampling import Sampling

__all__ = ["RoundResult", "check_sequences", "run_round"]

Requests = Mapping[int, Request]
_SHORT = 1 << 16
"""Lengths below need no closer look."""
_MOST_LOGITS = 1 << 22
"""Logits of a prompt that are made at once: 16 MB."""


class RoundResult(NamedTuple):
    """Where a round brings its requests, and what it cost; ``pass_seconds`` is 0 until it ends.

    ``is_chosen`` says that a policy chose lengths of it.
    """

    progress: list[tuple[Request, Progress]]
    cost: Round
    is_chosen: bool


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
    recorder = RoundRecorder(cross, stats, watch)
    ready = {seq: r for seq, r in running.items() if r.n_prefilled == len(r.prompt)}
    samplings = {seq: request.sampling for seq, request in running.items()}
    plans, automatic = _plan(cross, ready, lengths)
    recorder.planned(plans)
    keep = partial(_keep, lengths, automatic) if automatic else None
    drafted = _draft(cross, running, ready, plans, samplings, keep)
    recorder.drafted(drafted)
    prefill = _chunks(cross, running, recorder.n_verified)
    going_on = [s for s, ids in prefill.items() if not _ends_prompt(running[s], len(ids))]
    predicted = [s for s in prefill if running[s].n_prompt_logprobs is not None]
    seen = {seq: RoundLogits(request) for seq, request in running.items() if watches(request)}
    n_encoded = _encode(cross, running, prefill)
    verdicts = cross.speculation.verify(
        drafted.drafts, samplings, prefill, going_on, seen, predicted=predicted
    )
    recorder.verified(verdicts, prefill, n_encoded)
    progress = []
    for seq, verdict in verdicts.items():
        n_drafted = len(drafted.drafts[seq])
        now = _accept(cross, seq, ready[seq], n_drafted, verdict, seen.get(seq))
        recorder.accepted(seq, now)
        progress.append((ready[seq], now))
    for seq, tokens in prefill.items():
        found = prompt_logprobs(running[seq], verdicts.output, seq, len(tokens))
        now = _read(cross, seq, running[seq], len(tokens), seen.get(seq), found)
        recorder.read(running[seq], now)
        progress.append((running[seq], now))
    for seq in prefill:
        if cross.llm.runner.lengths[seq] in running[seq].stops:
            cross.speculation.settle_all(seq)  # who goes on from there shares drafters' memory, too
    return RoundResult(progress, recorder.end(), bool(automatic))


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


def _plan(
    cross: Cross, ready: Requests, lengths: LengthPolicy
) -> tuple[dict[int, DraftPlan], Collection[int]]:
    """Return whom each sequence asks for how much: no more than it has room and budget for.

    And the sequences for which a policy chose it.
    """
    room = cross.llm.n_ctx + 1
    plans: dict[int, DraftPlan] = {}
    limits: dict[int, int] = {}
    for seq, request in ready.items():
        left = min(request.max_tokens - len(request.tokens), room - request.n_held)
        left = max(left - 1, 0)
        if request.draft == "auto":
            limits[seq] = left
        else:
            k = min(request.draft, left)
            plan = cross.speculation.plan_drafts(k, request.drafters)
            plans[seq] = _with_forced(plan, request, k)
    if limits:
        fixed = {seq: longest(plan) for seq, plan in plans.items()}
        chosen, where = lengths.choose(limits, fixed), type(lengths).__name__
        if not isinstance(chosen, Mapping):
            raise BatchError("no lengths of drafts", where=where, got=spell(chosen))
        for seq, most in limits.items():
            request, wanted = ready[seq], chosen.get(seq, 0)
            asked: DraftPlan = {}
            if wanted or type(wanted) is not dict:  # mostly nobody is asked for anything
                offered = cross.speculation.plan_drafts(most, request.drafters)
                asked = _shorten(offered, wanted, where, request.drafters is None)
            plans[seq] = _with_forced(asked, request, min(most, LONGEST_FORCED))
    return plans, limits.keys()


def _with_forced(plan: DraftPlan, request: Request, k: int) -> DraftPlan:
    """Return a plan in which what a request's grammar forces is drafted before all else."""
    return plan if request.sampling.grammar is None else {FORCED: k, **plan}


def _shorten(plan: DraftPlan, chosen: object, where: str, reorders: bool) -> DraftPlan:
    """Return a plan with the lengths that were chosen, one for all or one for each drafter."""
    if type(chosen) is not dict:
        chosen = chosen if isinstance(chosen, Mapping) else dict.fromkeys(plan, chosen)
    lengths: dict[str, int] = {}
    for role, k in chosen.items():
        length = _read_length(k, "draft", where)
        if role in plan:
            lengths[role] = min(length, plan[role])
    return lengths if reorders else {role: lengths.get(role, 0) for role in plan}


def _draft(
    cross: Cross,
    running: Requests,
    ready: Requests,
    plans: Mapping[int, DraftPlan],
    samplings: Mapping[int, Sampling],
    keep: KeepDrafts | None,
) -> RoundDrafts:
    """Draft as planned; ``keep`` where a policy chose lengths."""
    if not any(map(longest, plans.values())):
        return RoundDrafts({seq: [] for seq in plans}, {}, {}, {})
    # A policy learns what drafts cost, and what passes cost: they have to be calls of their own.
    may_join = keep is None and not cross.llm.runner.backend.on_host and len(ready) == len(running)
    verified = samplings if may_join and not any(map(watches, running.values())) else {}
    return cross.speculation.draft(
        plans,
        lambda seq: ready[seq].draft_settings,
        verified=verified,  # by the pass that follows
        keep=keep,
    )


def _keep(
    lengths: LengthPolicy, automatic: Collection[int], role: str, made: Mapping[int, Proposal]
) -> dict[int, int]:
    """Return how deep drafts are to be verified: as a policy says where it chooses lengths."""
    depths = {seq: depth_of(one.draft) for seq, one in made.items()}
    proposed = {
        seq: Proposed(depths[seq], len(one.draft), one.confidence)
        for seq, one in made.items()
        if seq in automatic
    }
    kept = lengths.keep(role, proposed) if proposed else {}
    where = type(lengths).__name__
    if not isinstance(kept, Mapping) or kept.keys() < proposed.keys():
        raise BatchError("no depths of drafts", where=where, got=spell(kept))
    for seq in proposed:
        depths[seq] = min(_read_length(kept[seq], "a depth", where), depths[seq])
    return depths


def _read_length(k: object, what: str, where: str) -> int:
    """Return a number of tokens that a policy gave; each round asks this of each sequence."""
    if type(k) is int and 0 <= k < _SHORT:
        return k
    return int(read(k, Length, f"{what} is a number of tokens", where=where))


def _chunks(cross: Cross, running: Requests, taken: int) -> dict[int, list[int] | Prompt]:
    """Share what the batch has left among prompts that are not processed yet."""
    room = max(cross.llm.n_batch - taken, 1)
    chunks: dict[int, list[int] | Prompt] = {}
    for seq, request in running.items():
        begin = request.n_prefilled
        if begin == len(request.prompt):
            continue
        most = room
        if request.n_prompt_logprobs is not None:
            most = min(room, max(_MOST_LOGITS // cross.llm.model.hparams.n_vocab, 1))
        end = min([begin + most, *(stop for stop in request.stops if stop > begin)])
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
    encoder = cross.speculation.encoder
    if encoder is not None:
        encoder.read(sources)
    return sum(map(len, sources.values()))


def _ends_prompt(request: Request, n: int) -> bool:
    """Say whether n further tokens are all that is left of a prompt."""
    return request.n_prefilled + n == len(request.prompt)


def _read(
    cross: Cross,
    seq: int,
    request: Request,
    n: int,
    logits: RoundLogits | None,
    found: Sequence[TokenLogprobs],
) -> Progress:
    """Return where a chunk of its prompt brings a request: its end brings the first token."""
    tokens: Sequence[int] = ()
    is_stuck = False
    if _ends_prompt(request, n) and request.max_tokens:
        token = cross.speculation.states.try_choose(seq, request.sampling, logits)
        is_stuck, tokens = token is None, () if token is None else (token,)
    is_full = bool(tokens) and cross.llm.runner.lengths[seq] >= cross.llm.n_ctx
    logprobs = logits.logprobs(tokens) if logits else ()
    return request.advance(
        tokens,
        0,
        n_prompt=n,
        logprobs=logprobs,
        prompt_logprobs=found,
        is_full=is_full,
        is_stuck=is_stuck,
    )


def _accept(
    cross: Cross,
    seq: int,
    request: Request,
    n_drafted: int,
    verdict: Verdict,
    logits: RoundLogits | None,
) -> Progress:
    """Keep what was accepted of a draft, and return where that brings the request."""
    cross.speculation.accept(seq)
    return request.advance(
        verdict.tokens,
        verdict.accepted,
        n_drafted=n_drafted,
        logprobs=logits.logprobs(verdict.tokens) if logits else (),
        is_full=cross.llm.runner.lengths[seq] >= cross.llm.n_ctx,
        is_stuck=verdict.is_stuck,
    )
