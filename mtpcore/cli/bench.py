"""``mtpcore bench``: plain decoding against drafting, and why one of them is faster."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, Literal

import msgspec

from mtpcore.boundary.atomic import replacing
from mtpcore.cli import options as shared
from mtpcore.cli.bench_report import (
    BenchedText,
    collect,
    collect_fetches,
    compare_drafter,
    describe,
    draw_speeds,
)
from mtpcore.cli.lora import add_adapter_options, scales_of
from mtpcore.cli.measure import ROWS, measure_costs, take_turns
from mtpcore.cli.progress import progress
from mtpcore.cli.prompts import BUILT_IN, encode, read_prompt
from mtpcore.cli.report import describe_settings
from mtpcore.cli.samplers import add_sampling_options, given_sampling, sampling_of
from mtpcore.cli.session import Session, finish, make_context, open_model, open_session
from mtpcore.cli.shapes import measure_shapes
from mtpcore.cli.terminal import harmless, note
from mtpcore.cross import link
from mtpcore.decoding import (
    Controller,
    Generator,
    SimulatedAcceptance,
    Stats,
    controller_for,
)
from mtpcore.errors import SamplingError
from mtpcore.runtime.model import Model
from mtpcore.sampling import Sampling
from mtpcore.system.memory import peak_bytes

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Compare decoding with and without drafts, and measure what each part costs"
EXAMPLES = """examples:
  mtpcore bench demo
  mtpcore bench model.gguf --draft 2 -p "Once upon a time" -n 200 -r 9
  mtpcore bench model.gguf --draft 4 --synthetic-length 3.2    as if each pass gave 3.2 tokens
  mtpcore bench demo --draft-tree 4,4,12
  mtpcore bench model.gguf --json | jq .verdict
  mtpcore bench model.gguf --prompts 128,1024 --depths 1024,8192 --sequences 1,4,16
  mtpcore bench model.gguf --drafters auto,lookup --picture speeds.svg
"""
_DEPTH = 256


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.add_model_options(parser)
    shared.add_prompt_options(parser)
    group = parser.add_argument_group("measuring", "without a prompt: code, a story and a list")
    group.add_argument(
        "-n",
        "--predict",
        "--n-predict",
        type=shared.whole(2),
        default=64,
        metavar="N",
        help="tokens of each text (default: %(default)s)",
    )
    group.add_argument(
        "-r",
        "--repetitions",
        type=shared.whole(1),
        default=5,
        metavar="N",
        help="how often each measurement is taken (default: %(default)s)",
    )
    group.add_argument(
        "--synthetic-length",
        type=float,
        metavar="L",
        help="simulate acceptance, so that a pass gives L tokens on average",
    )
    for name, said in (
        ("prompts", "read prompts of so many tokens, too"),
        ("depths", "write a token after so many others, too"),
        ("sequences", "write a token of each of so many texts in one batch, too"),
    ):
        group.add_argument(
            f"--{name}", type=_numbers, default=[], metavar="N[,N]", help=f"{said}, without drafts"
        )
    group.add_argument(
        "--drafters",
        metavar="NAME[,NAME]",
        help="compare these drafters, one after the other, as --drafter takes them",
    )
    shared.add_draft_options(parser)
    add_sampling_options(parser)
    add_adapter_options(parser)
    shared.add_context_options(parser)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--picture", metavar="FILE.svg", help="draw the speeds, too")


def _numbers(text: str) -> list[int]:
    """Read numbers of tokens or texts."""
    return [shared.whole(1)(word) for word in text.split(",")]


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    shared.check_prompt(options)
    given = given_sampling(options)
    if options.drafters and options.drafter:
        options.parser.error("give --drafter NAME, or several to compare with --drafters")
    begin = perf_counter()
    with open_model(options) as model:
        loaded = perf_counter() - begin
        sampling = sampling_of(given, model)
        prompts = _prompts(options, model)
        named = [one.strip() for one in (options.drafters or "").split(",") if one.strip()]
        results = []
        for name in named or [options.drafter]:
            options.drafter = name
            results.append(_bench(options, model, sampling, prompts))
        result = results[0]
        result["seconds"]["load"] = loaded
        if named:
            result["drafters"] = [compare_drafter(one) for one in results]
        result["shapes"] = _shapes(options, model, next(iter(prompts.values())))
        result["peak_bytes"] = peak_bytes()
    if options.picture:
        with replacing(options.picture) as part:
            part.write_text(draw_speeds(result), "utf-8")
    print(
        json.dumps(result) if options.json else harmless(describe(result, verbose=options.verbose))
    )
    return 0


def _shapes(
    options: argparse.Namespace, model: Model, tokens: list[int]
) -> dict[str, dict[str, float]]:
    """Return tokens/s of the shapes that were asked for, as llama.cpp names such tests."""
    asked = {
        "prompts": options.prompts,
        "depths": options.depths,
        "sequences": options.sequences,
    }
    n_shapes = sum(len({*sizes}) for sizes in asked.values())
    if not n_shapes:
        return {}
    if model.program().whole_slot is not None:
        note("--prompts, --depths and --sequences are of models without an encoder: left out")
        return {}
    done, total = [0], n_shapes * (options.repetitions + 1)

    def after_each() -> None:
        done[0] += 1

    with progress("measuring shapes", lambda: (done[0], total), "runs"):
        shapes = measure_shapes(
            partial(make_context, options, model),
            tokens,
            **{name: [*dict.fromkeys(sizes)] for name, sizes in asked.items()},
            n=options.repetitions,
            after_each=after_each,
        )
    return {name: msgspec.to_builtins(one) for name, one in shapes.speeds.items()}


def _bench(
    options: argparse.Namespace,
    model: Model,
    sampling: Sampling,
    prompts: dict[str, list[int]],
) -> dict[str, Any]:
    """Compare one drafter with decoding without drafts."""
    longest = max(map(len, prompts.values()))
    n_ctx = shared.context_size(options, model) or max(longest + options.predict, _DEPTH) + max(
        ROWS
    )
    begin = perf_counter()
    session = open_session(options, model, n_ctx, pack=True, with_lookup=False)
    packed = perf_counter() - begin
    controller = controller_for(session.cross) if session.auto else None
    arms = _arms(options, session, sampling, controller)
    simulated = _simulate(options, session)
    n_trees = session.draft if session.drafter and session.drafter.tree else 0
    n_costs = 1 + len({*ROWS, session.draft + 1}) + n_trees + session.draft
    done = [0]

    def after_each() -> None:
        done[0] += 1

    total = (options.repetitions + 1) * (len(prompts) * len(arms) + n_costs)
    with progress("measuring", lambda: (done[0], total), "runs"):
        texts = [
            _measure(name, arms, tokens, options, simulated, after_each)
            for name, tokens in prompts.items()
        ]
        costs = measure_costs(
            session,
            make_context(options, model, n_ctx),
            next(iter(prompts.values())),
            sampling,
            options.repetitions,
            after_each,
        )
    result = collect(describe_settings(session, arms["plain"]()), texts, costs, session.draft)
    result |= {"synthetic_length": options.synthetic_length, "predict": options.predict}
    if result["settings"]["backend"] == "cpu":
        result["fetch"] = collect_fetches()
    if controller is not None:
        result["auto"] |= controller.describe()
    return result | {"seconds": {"pack": packed}}


def _prompts(options: argparse.Namespace, model: Model) -> dict[str, list[int]]:
    given = (options.prompt, options.file, options.prompt_tokens)
    if any(value is not None for value in given):
        return {"prompt": read_prompt(options, model).tokens}
    return {name: encode(model, text) for name, text in BUILT_IN.items()}


def _arms(
    options: argparse.Namespace,
    session: Session,
    sampling: Sampling,
    controller: Controller | None,
) -> dict[str, Callable[[], Generator]]:
    """Return what makes generators to compare.

    ``plain``; with a drafter ``drafted``, of one length; and ``auto``, which goes on learning from
    text to text as in a process that runs on.
    """
    llm = make_context(options, session.model, session.llm.n_ctx)
    plain, scales = link(llm, []), scales_of(options, llm)
    arms: dict[str, Callable[[], Generator]] = {
        "plain": lambda: Generator(plain, sampling=sampling, adapters=scales)
    }
    if not session.draft:
        return arms

    def drafted(draft: int | Literal["auto"]) -> Generator:
        return Generator(
            session.cross,
            sampling=sampling,
            draft=draft,
            draft_sampler=options.draft_sampler,
            p_min=options.p_min,
            adapters=scales,
            lengths=controller,
        )

    arms["drafted"] = partial(drafted, session.draft)
    if controller is not None:
        arms["auto"] = partial(drafted, "auto")
    return arms


def _simulate(options: argparse.Namespace, session: Session) -> SimulatedAcceptance | None:
    """Let the session's drafts be accepted as is asked for; None where nothing is."""
    length = options.synthetic_length
    if length is None:
        return None
    if session.drafter is None:
        note("--synthetic-length: there is no drafter whose drafts could be accepted")
        return None
    try:
        simulated = SimulatedAcceptance.of_length(
            length, session.draft, longest=session.drafter.limit
        )
    except SamplingError as error:
        options.parser.error(f"--synthetic-length: {error}")
    simulated.install(session.cross)
    return simulated


def _measure(
    name: str,
    arms: dict[str, Callable[[], Generator]],
    prompt: list[int],
    options: argparse.Namespace,
    simulated: SimulatedAcceptance | None,
    after_each: Callable[[], None],
) -> BenchedText:
    """Write one text by each arm in turn, plainly first."""
    written: dict[str, list[int]] = {}
    stats: dict[str, list[Stats]] = {arm: [] for arm in arms}

    def write(arm: str) -> float:
        generator = arms[arm]()
        request = generator.add(prompt, max_tokens=options.predict, ignore_eos=True)
        finish(generator, request)
        written[arm] = request.tokens
        if arm == "plain" and simulated is not None:
            simulated.expect([*prompt, *request.tokens])
        stats[arm].append(generator.stats)
        return generator.stats.tokens_per_second

    runs = [partial(write, arm) for arm in arms]
    speeds = dict(zip(arms, take_turns(runs, options.repetitions, after_each), strict=True))
    equal = all(tokens == written["plain"] for tokens in written.values())
    return BenchedText(name, len(prompt), speeds, equal, stats)
