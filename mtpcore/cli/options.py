"""Options that commands share, spelled as llama.cpp spells them where it has the same."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Literal, TypedDict

from mtpcore.boundary.texts import read_pieces
from mtpcore.cli.named import find_named_model
from mtpcore.cli.terminal import note
from mtpcore.conversion import ALIASES, MIXES, WRITABLE
from mtpcore.declarations.spec import TreeShape
from mtpcore.discovery.registry import registry
from mtpcore.drafting.draft_vocabulary import DraftVocabulary
from mtpcore.errors import MtpcoreError, SamplingError
from mtpcore.hub import ModelName, parse_name
from mtpcore.lm import default_n_ctx
from mtpcore.memory import KV_DTYPES
from mtpcore.runtime.model import Model
from mtpcore.sampling import Grammar

__all__ = [
    "PROMPTS",
    "add_colour_option",
    "add_computing_options",
    "add_context_options",
    "add_draft_options",
    "add_form_options",
    "add_memory_options",
    "add_model_options",
    "add_prompt_options",
    "add_room_options",
    "add_mtp_option",
    "add_system_option",
    "add_text_rules",
    "add_texts_option",
    "add_threads_option",
    "add_type_options",
    "check_prompt",
    "context_size",
    "draft_vocabulary_of",
    "model_path",
    "read_text",
    "text_of",
    "text_rules",
    "token_ids",
    "whole",
]

PROMPTS = "PROMPT, -p TEXT, -f FILE or --prompt-tokens IDS"
_MOST = 1 << 31
_MOST_BYTES = 1 << 53


class TextRules(TypedDict):
    """What a text is not to be; see ``Generator.add``."""

    min_tokens: int
    stop_token_ids: list[int]
    banned_strings: list[str]


def whole(least: int, end: int = _MOST) -> Callable[[str], int]:
    """Return a reader of whole numbers from ``least`` on, below ``end``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value < end:
            most = f" and < {end}" if value >= end else ""
            raise argparse.ArgumentTypeError(
                f"wanted a whole number >= {least}{most}, got {text!r}"
            )
        return value

    return read


def text_of(argument: str) -> str:
    """Return the text of an argument: UTF-8 where its bytes are that, whatever the locale says."""
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        if not any("\ud800" <= letter <= "\udfff" for letter in argument):
            return argument
        raise argparse.ArgumentTypeError("wanted text in UTF-8") from None


def backend_name(text: str) -> str:
    """Read the name of a backend, with the number of a device or without."""
    names = [spec.name for spec in registry().backends]
    if text.partition(":")[0] not in names:
        raise argparse.ArgumentTypeError(f"wanted {', '.join(names)}, got {text!r}")
    return text


def draft_length(text: str) -> int | Literal["auto"]:
    """Read a draft length."""
    return "auto" if text == "auto" else whole(0)(text)


def draft_vocabulary(text: str) -> str | int:
    """Read the path of a draft vocabulary, or how many tokens of the one beside the model."""
    return whole(1)(text) if text.isdecimal() else text


def tree_shape(text: str) -> TreeShape:
    """Read the shape of a grown tree."""
    try:
        depth, width, n_nodes = map(whole(1), text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"wanted DEPTH,WIDTH,NODES, got {text!r}") from None
    return TreeShape(depth=depth, width=width, n_nodes=n_nodes)


def threads(text: str) -> int | None:
    """Read how many threads; None: as many as there are."""
    return None if text == "-1" else whole(1)(text)


def _colour_mode(text: str) -> str:
    """Read when to colour, as llama.cpp spells it, too."""
    return {"on": "always", "off": "never"}.get(text, text)


def probability(text: str) -> float:
    """Read a number in 0..1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"wanted a number in 0..1, got {text!r}")
    return value


def token_ids(text: str) -> list[int]:
    """Read token ids with commas or spaces between them."""
    return [whole(0)(word) for word in text.replace(",", " ").split()]


def add_model_options(parser: argparse.ArgumentParser, *, runs: bool = True) -> None:
    """Add the model and what may complete it; where it ``runs``, how and with which drafter."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "path",
        nargs="?",
        metavar="MODEL",
        help="a GGUF file, demo, demo:FAMILY, hf:OWNER/REPO[:QUANT] of the Hugging Face hub, "
        "ollama:NAME[:TAG] or lmstudio:OWNER/REPO[:QUANT]",
    )
    group.add_argument("-m", "--model", metavar="MODEL", help="MODEL, as an option")
    group.add_argument(
        "-hf",
        "-hfr",
        "--hf-repo",
        metavar="OWNER/REPO[:QUANT]",
        help="MODEL from the hub, fetched where the cache does not hold it (without QUANT Q4_K_M, "
        "else Q8_0, else the first)",
    )
    group.add_argument(
        "-hff", "--hf-file", metavar="FILE", help="the file of that repository, instead of QUANT"
    )
    group.add_argument(
        "--offline", action="store_true", help="take what the cache holds, and never ask the hub"
    )
    group.add_argument(
        "--mtp-path",
        metavar="FILE",
        help="a file with the head that MODEL lacks, or an adapter that drafts",
    )
    if runs:
        group.add_argument(
            "-nr",
            "--no-repack",
            dest="repack",
            action="store_false",
            help="leave the weights in the mapped file: starts at once, takes less memory, is "
            "slower",
        )
        group.add_argument(
            "-md",
            "--model-draft",
            "--draft-model",
            metavar="FILE",
            help="a draft model: a drafter in its own file",
        )
        group.add_argument(
            "-hfd",
            "-hfrd",
            "--hf-repo-draft",
            metavar="OWNER/REPO[:QUANT]",
            help="the draft model, from the hub",
        )


def context_size(options: argparse.Namespace, model: Model) -> int | None:
    """Return the size that was asked for, 0 being what the model was trained on; None: none was."""
    trained: int = getattr(model.hparams, "n_ctx_train", 0)
    given: int | None = options.ctx_size
    return (trained or default_n_ctx(model)) if given == 0 else given


def model_path(options: argparse.Namespace) -> str:
    """Return the model's path, whichever way it was given; exit with code 2 where it was not.

    Models that have names are found or fetched, and their paths take the names' place in the
    options, those of drafters and heads, too.
    """
    if [options.path, options.model, options.hf_repo].count(None) != 2:
        options.parser.error("give one model: MODEL, -m MODEL or -hf OWNER/REPO")
    if options.hf_file is not None and options.hf_repo is None:
        options.parser.error("--hf-file says which file of -hf OWNER/REPO")
    if (repo := getattr(options, "hf_repo_draft", None)) is not None:
        if options.model_draft is not None:
            options.parser.error("give one draft model: -md FILE or -hfd OWNER/REPO")
        options.model_draft, options.hf_repo_draft = str(parse_name(repo, "hf")), None
    named = options.path or options.model
    if options.hf_repo is not None:
        named = str(_hub_name(options.hf_repo, options.hf_file))
    options.path, options.model, options.hf_repo, options.hf_file = named, None, None, None
    for name in ("path", "model_draft", "mtp_path"):
        given = getattr(options, name, None)
        if given is not None and (found := parse_name(given)) is not None:
            setattr(options, name, str(find_named_model(found, offline=options.offline)))
            if name == "path" and getattr(options, "alias", "") is None:
                options.alias = str(found).partition(":")[2]  # what a server calls it
    path: str = options.path
    return path


def _hub_name(repo: str, file: str | None) -> ModelName | None:
    """Return the model that ``-hf`` and ``--hf-file`` name."""
    if file is None:
        return parse_name(repo, "hf")
    return parse_name(f"{repo.partition(':')[0] if '://' not in repo else repo}/{file}", "hf")


def add_context_options(parser: argparse.ArgumentParser) -> None:
    """Add sizes, threads and backend."""
    group = parser.add_argument_group("context")
    group.add_argument(
        "-c",
        "--ctx-size",
        type=whole(0),
        metavar="N",
        help="context size: most tokens of prompt and text together; 0: as many as the model was "
        "trained on (default: as many as needed)",
    )
    add_computing_options(group, "prompt tokens processed at once", 512)
    add_memory_options(group)


def add_computing_options(
    group: argparse._ArgumentGroup, what_a_batch_is: str, n_batch: int
) -> None:
    """Add the size of a batch, threads and backend."""
    group.add_argument(
        "-b",
        "--batch-size",
        type=whole(1),
        default=n_batch,
        metavar="N",
        help=f"{what_a_batch_is} (default: %(default)s)",
    )
    add_threads_option(group)
    group.add_argument(
        "--backend",
        type=backend_name,
        default="cpu",
        metavar="NAME",
        help="cpu, reference, cuda (cuda:1 is the second device), or the name of a plugin's "
        "(default: %(default)s)",
    )


def add_threads_option(group: argparse._ArgumentGroup) -> None:
    """Add how many threads compute."""
    group.add_argument(
        "-t",
        "--threads",
        type=threads,
        metavar="N",
        help="threads that compute (default, or -1: as many as the machine grants this process)",
    )


def add_texts_option(group: argparse._ArgumentGroup, what: str = "one or several") -> None:
    """Add the texts that a command reads."""
    group.add_argument(
        "-f",
        "--file",
        required=True,
        action="extend",
        nargs="+",
        metavar="TEXT",
        help=f"texts in UTF-8, {what}",
    )


def add_special_option(group: argparse._ArgumentGroup) -> None:
    """Add whether the text shows control tokens."""
    group.add_argument(
        "-sp", "--special", action="store_true", help="show control tokens, as <|im_start|>"
    )


def add_text_rules(group: argparse._ArgumentGroup) -> None:
    """Add what a text is not to be; ``text_rules`` reads it."""
    group.add_argument(
        "--min-tokens",
        type=whole(0),
        default=0,
        metavar="N",
        help="nothing ends the text before it has N tokens (default: 0)",
    )
    group.add_argument(
        "--stop-token-ids",
        type=token_ids,
        default=[],
        metavar="IDS",
        help="the text ends before these tokens",
    )
    group.add_argument(
        "--banned-string",
        dest="banned_strings",
        type=text_of,
        action="append",
        default=[],
        metavar="TEXT",
        help="the text never has it; repeatable",
    )


def text_rules(options: argparse.Namespace) -> TextRules:
    """Return what a text is not to be, as the options of a request."""
    return TextRules(
        min_tokens=options.min_tokens,
        stop_token_ids=options.stop_token_ids,
        banned_strings=options.banned_strings,
    )


def add_colour_option(group: argparse._ArgumentGroup) -> None:
    """Add whether accepted drafts have a colour."""
    group.add_argument(
        "-co",
        "--color",
        type=_colour_mode,
        choices=("auto", "always", "never"),
        default="auto",
        help="default: auto",
    )


def add_room_options(group: argparse._ArgumentGroup) -> None:
    """Add what happens when the context is full."""
    group.add_argument(
        "--when-full",
        choices=("stop", "shift"),
        default="stop",
        help="when the context is full the text ends, or half of what lies after the first tokens "
        "is dropped, the rest is processed again, and the text goes on (default: %(default)s)",
    )
    group.add_argument(
        "--context-shift",
        dest="when_full",
        action="store_const",
        const="shift",
        help="the same as --when-full shift",
    )
    group.add_argument(
        "--keep",
        type=whole(0),
        metavar="N",
        help="first tokens that a shift never drops (default: the prompt, if it takes no more than "
        "half of the context)",
    )


def add_memory_options(group: argparse._ArgumentGroup) -> None:
    """Add the type of keys and values, and what checkpoints may take."""
    group.add_argument(
        "-ctk",
        "--cache-type-k",
        "--kv-dtype",
        dest="kv_dtype",
        choices=KV_DTYPES,
        default="f16",
        help="type of stored keys and values (default: %(default)s)",
    )
    group.add_argument(
        "--checkpoint-bytes",
        type=whole(0, _MOST_BYTES),
        metavar="N",
        help="bytes that checkpoints of recurrent layers may take; 0: no checkpoints (default: "
        "as many as six of them)",
    )


def add_draft_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add how drafts are made, and return the group for more of it."""
    group = parser.add_argument_group("drafting", "none of these changes the text")
    group.add_argument(
        "--draft",
        "--spec-draft-n-max",
        "--draft-max",
        "--draft-n",
        type=draft_length,
        default="auto",
        metavar="N",
        help="most tokens drafted for each pass; 0: no drafts; auto (the default) measures which "
        "length is fastest, 0 included, while it generates",
    )
    group.add_argument(
        "--draft-tree",
        type=tree_shape,
        metavar="DEPTH,WIDTH,NODES",
        help="draft a tree: at each of DEPTH levels the WIDTH best nodes get WIDTH children each; "
        "the NODES best of all are verified; --draft N limits the depth",
    )
    group.add_argument(
        "--drafter",
        metavar="NAME[,NAME]",
        help="which drafter, if several fit (default: the draft model or the head in the file, and "
        "with --draft auto or without a head lookup, which copies from earlier in the text); of "
        "several, as in lookup,auto, the first that proposes anything drafts",
    )
    group.add_argument(
        "--lookup",
        action="append",
        default=[],
        metavar="FILE",
        help="draft what followed in FILE, too, a text or an index that mtpcore lookup wrote; "
        "repeatable; lookup then drafts first, unless --drafter says where",
    )
    group.add_argument(
        "--draft-sampler",
        choices=("coupled", "argmax"),
        default="coupled",
        help="coupled (the default) shares the noise with the target, so that drafts of sampled "
        "text are accepted more often",
    )
    group.add_argument(
        "--p-min",
        "--spec-draft-p-min",
        "--draft-p-min",
        type=probability,
        default=0.0,
        metavar="P",
        help="stop drafting at a draft less probable than P (default: %(default)s)",
    )
    group.add_argument(
        "--draft-vocabulary",
        type=draft_vocabulary,
        metavar="FILE|N",
        help="draft only some tokens: those in FILE, which mtpcore vocabulary wrote, or the N most "
        "frequent in the file beside the model (for a demo, in the current folder)",
    )
    return group


def draft_vocabulary_of(options: argparse.Namespace, model: Model) -> DraftVocabulary | None:
    """Return the tokens that may be drafted; None: all.

    Raises
    ------
    ModelFileError
        The file cannot be read.
    """
    given: str | int | None = options.draft_vocabulary
    if given is None:
        return None
    if isinstance(given, str):
        return DraftVocabulary.read(given)
    path = DraftVocabulary.beside(model)
    every = DraftVocabulary.read(path)
    if given > len(every):
        note(f"--draft-vocabulary {given}: all {len(every)} tokens of {path}, which has no more")
    return every.cut(given)


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """Add the ways to give a prompt; ``check_prompt`` reads them."""
    prompt = parser.add_argument_group("prompt")
    prompt.add_argument(
        "text", nargs="?", type=text_of, metavar="PROMPT", help="the text to continue"
    )
    group = prompt.add_mutually_exclusive_group()
    group.add_argument("-p", "--prompt", type=text_of, metavar="TEXT", help="PROMPT, as an option")
    group.add_argument("-f", "--file", metavar="FILE", help="read the prompt; -: from stdin")
    group.add_argument("--prompt-tokens", type=token_ids, metavar="IDS", help="token ids, as 1,2,3")


def add_system_option(group: argparse._ArgumentGroup) -> None:
    """Add the system prompt."""
    group.add_argument(
        "-sys",
        "--system",
        "--system-prompt",
        type=text_of,
        metavar="TEXT",
        help="the system prompt of the chat template",
    )


def check_prompt(options: argparse.Namespace) -> None:
    """Let a prompt that is the second word be ``-p``; exit with code 2 where there are two."""
    if options.text is None:
        return
    if any(option is not None for option in (options.prompt, options.file, options.prompt_tokens)):
        options.parser.error(f"give one prompt: {PROMPTS}")
    options.prompt = options.text


def _schema(text: str) -> Grammar:
    return _of(Grammar.of_schema, text_of(text))


def _schema_file(path: str) -> Grammar:
    return _of(Grammar.of_schema, read_text(path))


def _grammar(text: str) -> Grammar:
    return _of(Grammar, text_of(text))


def _grammar_file(path: str) -> Grammar:
    return _of(Grammar, read_text(path))


def _regex(text: str) -> Grammar:
    return _of(Grammar.of_regex, text_of(text))


def _of(make: Callable[[str], Grammar], text: str) -> Grammar:
    try:
        return make(text)
    except SamplingError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def read_text(path: str) -> str:
    """Return the text of a file, as the value of an option."""
    try:
        return "".join(read_pieces(path))
    except MtpcoreError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_FORMS: tuple[tuple[tuple[str, ...], Callable[[str], Grammar], str, str], ...] = (
    (("-j", "--json-schema"), _schema, "SCHEMA", "the text is JSON as this schema says; {}: any"),
    (("-jf", "--json-schema-file"), _schema_file, "FILE", "as the schema in a file says"),
    (("--grammar",), _grammar, "GRAMMAR", "the text is of this form, in GBNF or Lark's notation"),
    (("--grammar-file",), _grammar_file, "FILE", "of the form in a file"),
    (("--regex",), _regex, "PATTERN", "the text matches this regular expression as a whole"),
)
"""Options that give a text its form, one of them: names, reader, and what help says."""


def add_form_options(parser: argparse.ArgumentParser) -> None:
    """Add what gives a text its form; ``given_sampling`` reads it."""
    group = parser.add_argument_group("form of the text", "in a chat template after the reasoning")
    form = group.add_mutually_exclusive_group()
    for names, reads, metavar, text in _FORMS:
        form.add_argument(*names, dest="grammar", type=reads, metavar=metavar, help=text)


def add_mtp_option(group: argparse._ArgumentGroup) -> None:
    """Add the choice of trunk and heads."""
    group.add_argument(
        "--mtp",
        choices=("keep", "only", "drop"),
        default="keep",
        help="keep trunk and heads (the default), only the heads with the tables that they share "
        "with the trunk, or drop the heads",
    )


def add_type_options(
    parser: argparse.ArgumentParser, default: str | None
) -> argparse._ArgumentGroup:
    """Add the types that tensors are stored in; return their group.

    ``default`` says what holds where no type is given; None: one must be.
    """
    group = parser.add_argument_group("types", "vectors, norms and routers are not quantised")
    group.add_argument(
        "--outtype",
        type=_mix,
        choices=tuple(MIXES),
        metavar="TYPE",
        required=default is None,
        help=f"type of matrices, or a mix of types as llama.cpp makes it: {', '.join(MIXES)}"
        + (f" (default: {default})" if default else ""),
    )
    group.add_argument(
        "--mtp-type",
        type=str.lower,
        choices=(*WRITABLE, "mix"),
        metavar="TYPE",
        help="type of the heads' matrices, in a draft model of all; mix: as --outtype has them "
        "(default: q8_0, or as --outtype where that is a type of floats)",
    )
    return group


def _mix(text: str) -> str:
    return ALIASES.get(text.lower(), text.lower())
