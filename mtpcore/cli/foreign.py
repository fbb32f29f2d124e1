"""llama.cpp's options that are not ours: which of ours they mean, or what there is to say.

What cannot change a text is accepted with a line that says why it does nothing. What could is
refused with what to do instead, except where its value asks for nothing.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Literal, NamedTuple, TypeVar

__all__ = ["FOREIGN", "Foreign", "Refused", "translate"]

OptionValue = Literal["", "X", "?"]
"""What follows an option: nothing, a value, or ``on``, ``off`` or ``auto`` where it is one."""
T = TypeVar("T")
_SWITCH = {"on", "off", "auto", "0", "1", "true", "false"}


class Foreign(NamedTuple):
    """An option of another program.

    ``ours`` is our option, which a value follows where it takes one. For a command that has no such
    option, and without it, ``said`` is why the option does nothing or, where ``refused``, what to
    do instead; values in ``neutral`` are accepted all the same.
    """

    value: OptionValue = ""
    said: str = ""
    ours: str = ""
    refused: bool = False
    neutral: tuple[str, ...] = ()


class Refused(Exception):
    """An option that is not available; says what to do."""


_RENAMED = {
    "-cnv --conversation": Foreign(said="a conversation is what chat has", ours="--chat"),
    "-no-cnv --no-conversation": Foreign(
        said="mtpcore run --raw continues a text", ours="--raw", refused=True
    ),
    "-r --reverse-prompt": Foreign("X", "mtpcore run --stop", ours="--stop", refused=True),
    "--no-context-shift": Foreign(said="nothing is shifted", ours="--when-full=stop"),
    "--spec-draft-model": Foreign("X", "-md", ours="-md", refused=True),
    "--spec-draft-hf": Foreign("X", "-hfd", ours="-hfd", refused=True),
    "--log-disable": Foreign(said="-q", ours="--quiet"),
}
"""Ours by another name."""

Table = dict[str, dict[OptionValue, str]]
"""What there is to say, and the options that it is said of, by what follows them."""

_NEEDLESS: Table = {
    "--backend cuda computes everything on a GPU, and the default everything on the CPU": {
        "": "-cmoe --cpu-moe -kvo --kv-offload -nkvo --no-kv-offload --op-offload --no-op-offload "
        "--no-host",
        "X": "-ngl --gpu-layers --n-gpu-layers -ngld --gpu-layers-draft --n-gpu-layers-draft "
        "--spec-draft-ngl -dev --device -devd --device-draft --spec-draft-device -sm --split-mode "
        "-ts --tensor-split -mg --main-gpu -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn "
        "-ot --override-tensor -fitt --fit-target -fitc --fit-ctx",
        "?": "-fit --fit",
    },
    "attention is always computed in one pass": {"?": "-fa --flash-attn"},
    "prompts are processed -b tokens at a time": {"X": "-ub --ubatch-size"},
    "-t is for prompts, too": {"X": "-tb --threads-batch"},
    "-t is for drafts, too": {"X": "-td --threads-draft -tbd --threads-batch-draft"},
    "the operating system places threads": {
        "X": "-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll --numa -Cb --cpu-mask-batch "
        "-Crb --cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch"
    },
    "-ctk is the type of keys and of values": {"X": "-ctv --cache-type-v"},
    "drafts need no such setting; --draft says how many": {
        "X": "-ctkd --cache-type-k-draft -ctvd --cache-type-v-draft --draft-min --draft-n-min "
        "--spec-draft-n-min --spec-draft-p-split --draft-p-split"
    },
    "one text at a time; in Python LM(n_seq_max=...)": {"X": "-np --parallel -ns --sequences"},
    "one text at a time": {"": "-cb --cont-batching -nocb --no-cont-batching"},
    "chat templates are always rendered": {"": "--jinja"},
    "weights are packed; -nr leaves them in the file": {
        "": "--mlock --mmap --no-mmap",
        "X": "-lm --load-mode",
    },
    "weights are packed by default": {"": "--repack"},
    "this is always done": {"": "--warmup --no-warmup --check-tensors"},
    "the KV cache needs no such setting": {
        "": "-kvu --kv-unified -no-kvu --no-kv-unified --swa-full",
        "X": "-cms --checkpoint-min-step -cram --cache-ram -dt --defrag-thold",
    },
    "--checkpoint-bytes": {"X": "-ctxcp --ctx-checkpoints --swa-checkpoints"},
    "in Python LM keeps what texts begin with": {
        "": "--prompt-cache-all --prompt-cache-ro",
        "X": "--prompt-cache",
    },
    "--json has the prompt": {"": "--display-prompt --no-display-prompt --verbose-prompt"},
    "-v and -q say how much is reported": {
        "": "--perf --no-perf --show-timings --no-show-timings --log-prefix --no-log-prefix "
        "--log-timestamps",
        "X": "-lv --verbosity --log-verbosity",
    },
    "notes go to standard error: 2>FILE": {"X": "--log-file"},
    "this is always so": {"": "--simple-io"},
    'lines between """ and """ are one turn': {"": "-mli --multiline-input"},
    "a prompt is taken as it is; the shell spells \\n as $'\\n'": {"": "-e --escape --no-escape"},
    "mtpcore run answers one question": {"": "-st --single-turn"},
    "the text is shown as the model writes it": {"X": "--reasoning-format"},
    "the drafter in the file is found; --drafter names one, such as lookup": {"X": "--spec-type"},
    "a drafter beside the model is found": {"": "--mtp"},
    "--lookup takes texts, or an index that mtpcore lookup wrote": {
        "X": "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic"
    },
}
"""What cannot change a text, with why it does nothing."""

_REFUSED: Table = {
    "set HF_TOKEN in the environment, or run hf auth login: tokens in a command line are seen by "
    "everybody on the machine": {"X": "-hft --hf-token"},
    "download the file first, as with curl -LO, and give its path": {"X": "-mu --model-url"},
    "take the model from the hub, with -hf OWNER/REPO": {"X": "-dr --docker-repo"},
    "run, chat, serve, bench and eval take adapters": {"X": "--lora --lora-scaled"},
    "--lora FILE:0 loads an adapter that texts have only where they ask for it": {
        "": "--lora-init-without-apply"
    },
    "not available": {"X": "--control-vector --control-vector-scaled"},
    "mtpcore run and chat give a text its form; a server's requests ask for theirs, as with "
    "response_format": {"X": "--grammar --grammar-file -j --json-schema -jf --json-schema-file"},
    "samplers run in llama.cpp's default order": {"X": "--samplers --sampler-seq --sampling-seq"},
    "there is no such sampler": {
        "X": "--mirostat --mirostat-lr --mirostat-ent --adaptive-target --adaptive-decay"
    },
    "positions are rotated as the file says": {
        "X": "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
        "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -gan --grp-attn-n "
        "-gaw --grp-attn-w"
    },
    "a file is taken as it is": {"X": "--override-kv"},
    "chat templates are for run, chat and serve": {
        "X": "--chat-template --chat-template-file --chat-template-kwargs -rea --reasoning "
        "--reasoning-effort"
    },
    "reasoning has no budget; --reasoning off leaves it out": {"X": "--reasoning-budget"},
    "chat templates are always rendered; --raw continues a text": {"": "--no-jinja"},
    '-sys "$(cat FILE)" gives the text of a file': {"X": "-sysf --system-prompt-file"},
    "-f FILE reads a text in UTF-8": {"X": "-bf --binary-file --in-file"},
    "mtpcore chat talks turn by turn": {
        "": "-i --interactive -if --interactive-first",
        "X": "--in-prefix --in-suffix",
    },
    "texts only": {"X": "-mm --mmproj -mmu --mmproj-url --image --audio --video"},
    "mtpcore serve is the server": {"X": "--host --port --api-key"},
    "one machine computes": {"X": "--rpc"},
    "--backend cuda:0 is the first GPU": {"": "--list-devices"},
}
"""What could, with what to do instead."""

_NEUTRAL = {
    "--mirostat": ("0", "0.0"),
    "--adaptive-target": ("-1", "-1.0"),
    "-gan --grp-attn-n -gaw --grp-attn-w": ("1",),
    "-rea --reasoning": ("auto",),
    "--reasoning-budget": ("-1",),
}
"""Values of these that ask for nothing."""


def _each(table: dict[str, T]) -> dict[str, T]:
    """Return what is said of several options by the name of each."""
    return {name: value for names, value in table.items() for name in names.split()}


def _rows(table: Table, refused: bool) -> dict[str, Foreign]:
    neutral = _each(_NEUTRAL)
    return {
        name: Foreign(value, said, refused=refused, neutral=neutral.get(name, ()))
        for said, options in table.items()
        for value, names in options.items()
        for name in names.split()
    }


FOREIGN = {**_each(_RENAMED), **_rows(_NEEDLESS, False), **_rows(_REFUSED, True)}


def translate(
    words: Sequence[str], known: Container[str], table: dict[str, Foreign]
) -> tuple[list[str], list[str]]:
    """Return arguments in our own spelling, and what is to be said of those that do nothing.

    Parameters
    ----------
    words : sequence of str
        The arguments.
    known : container of str
        Our options; they are left as they are.
    table : dict of str to Foreign
        Options that are not, by name.

    Raises
    ------
    Refused
        One is not available.
    """
    ours: list[str] = []
    said: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*ours, word, *rest], said
        name, equals, value = word.partition("=")
        foreign = None if name in known else table.get(name)
        if foreign is None:
            ours.append(word)
            continue
        takes = foreign.value == "X" or (foreign.value == "?" and bool(rest) and rest[0] in _SWITCH)
        if takes and not equals:
            if not rest:
                raise Refused(f"{name} takes a value")
            value = rest.pop(0)
        if foreign.ours and foreign.ours.partition("=")[0] in known:
            ours += [foreign.ours, value] if foreign.value else [foreign.ours]
        elif foreign.refused and value not in foreign.neutral:
            raise Refused(f"{name}: {foreign.said}")
        elif not foreign.refused:
            said.append(f"{name} does nothing here: {foreign.said}")
    return ours, said
