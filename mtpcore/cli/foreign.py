"""llama.cpp's options that are not ours: which of ours they mean, or what there is to say.

What cannot change a text is accepted with a line that says why it does nothing. What could is
refused with what to do instead, except where its value asks for nothing.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Literal, NamedTuple

__all__ = ["FOREIGN", "Foreign", "Refused", "translate"]

Value = Literal["", "X", "?"]
"""What follows an option: nothing, a value, or ``on``, ``off`` or ``auto`` where it is one."""
_SWITCH = {"on", "off", "auto", "0", "1", "true", "false"}


class Foreign(NamedTuple):
    """An option of another program.

    ``ours`` is our option, which a value follows where it takes one. For a command that has no such
    option, and without it, ``said`` is why the option does nothing or, where ``refused``, what to
    do instead; values in ``neutral`` are accepted all the same.
    """

    value: Value = ""
    said: str = ""
    ours: str = ""
    refused: bool = False
    neutral: tuple[str, ...] = ()


class Refused(Exception):
    """An option that is not available; says what to do."""


def _named(rows: Sequence[tuple[str, Foreign]]) -> dict[str, Foreign]:
    return {name: foreign for names, foreign in rows for name in names.split()}


def _does_nothing(value: Value, said: str) -> Foreign:
    return Foreign(value, said)


def _refused(value: Value, said: str, *neutral: str) -> Foreign:
    return Foreign(value, said, refused=True, neutral=neutral)


_DOWNLOAD = "download the file first, as with hf download OWNER/REPO FILE.gguf, and give its path"
_GRAMMAR = "not available; in Python a LogitsProcessor can allow only some tokens"
_DEVICE = "--backend cuda computes everything on a GPU, and the default everything on the CPU"
_PLACED = "the operating system places threads"
_KEPT = "the KV cache needs no such setting"
_TEMPLATE = (
    "the model's own template is used; in Python LM.chat(template_options=...) sets variables"
)
_SAMPLER = "there is no such sampler; --top-k, --top-p, --min-p and --temp are what there is"
_ROTATED = "positions are rotated as the file says"
_TURNS = "mtpcore chat talks turn by turn"
_SERVER = "there is no server in this package"
_DRAFTS = "drafts need no such setting; --draft says how many"

FOREIGN: dict[str, Foreign] = _named(
    [
        # Ours by another name.
        ("-cnv --conversation", Foreign(said="a conversation is what chat has", ours="--chat")),
        (
            "-no-cnv --no-conversation",
            Foreign(said="mtpcore run --raw continues a text", ours="--raw", refused=True),
        ),
        ("-r --reverse-prompt", Foreign("X", "mtpcore run --stop", ours="--stop", refused=True)),
        ("--no-context-shift", Foreign(said="nothing is shifted", ours="--when-full=stop")),
        ("--spec-draft-model", Foreign("X", "-md", ours="-md", refused=True)),
        ("--log-disable", Foreign(said="-q", ours="--quiet")),
        # What cannot change a text.
        ("-ngl --gpu-layers --n-gpu-layers", _does_nothing("X", _DEVICE)),
        (
            "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl",
            _does_nothing("X", _DEVICE),
        ),
        ("-dev --device -devd --device-draft --spec-draft-device", _does_nothing("X", _DEVICE)),
        ("-sm --split-mode -ts --tensor-split -mg --main-gpu", _does_nothing("X", _DEVICE)),
        (
            "-ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -ot --override-tensor",
            _does_nothing("X", _DEVICE),
        ),
        ("-cmoe --cpu-moe -kvo --kv-offload -nkvo --no-kv-offload", _does_nothing("", _DEVICE)),
        ("--op-offload --no-op-offload --no-host", _does_nothing("", _DEVICE)),
        ("-fit --fit", _does_nothing("?", _DEVICE)),
        ("-fitt --fit-target -fitc --fit-ctx", _does_nothing("X", _DEVICE)),
        ("-fa --flash-attn", _does_nothing("?", "attention is always computed in one pass")),
        ("-ub --ubatch-size", _does_nothing("X", "prompts are processed -b tokens at a time")),
        ("-tb --threads-batch", _does_nothing("X", "-t is for prompts, too")),
        (
            "-td --threads-draft -tbd --threads-batch-draft",
            _does_nothing("X", "-t is for drafts, too"),
        ),
        (
            "-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll --numa",
            _does_nothing("X", _PLACED),
        ),
        ("-Cb --cpu-mask-batch -Crb --cpu-range-batch", _does_nothing("X", _PLACED)),
        ("--cpu-strict-batch --prio-batch --poll-batch", _does_nothing("X", _PLACED)),
        ("-ctv --cache-type-v", _does_nothing("X", "-ctk is the type of keys and of values")),
        ("-ctkd --cache-type-k-draft -ctvd --cache-type-v-draft", _does_nothing("X", _DRAFTS)),
        ("-np --parallel", _does_nothing("X", "one text at a time; in Python LM(n_seq_max=...)")),
        ("-ns --sequences", _does_nothing("X", "one text at a time; in Python LM(n_seq_max=...)")),
        ("-cb --cont-batching -nocb --no-cont-batching", _does_nothing("", "one text at a time")),
        ("--jinja", _does_nothing("", "chat templates are always rendered")),
        (
            "--mlock --mmap --no-mmap",
            _does_nothing("", "weights are packed; -nr leaves them in the file"),
        ),
        ("-lm --load-mode", _does_nothing("X", "weights are packed; -nr leaves them in the file")),
        ("--repack", _does_nothing("", "weights are packed by default")),
        ("--warmup --no-warmup --check-tensors", _does_nothing("", "this is always done")),
        ("-kvu --kv-unified -no-kvu --no-kv-unified --swa-full", _does_nothing("", _KEPT)),
        ("-ctxcp --ctx-checkpoints --swa-checkpoints", _does_nothing("X", "--checkpoint-bytes")),
        ("-cms --checkpoint-min-step -cram --cache-ram", _does_nothing("X", _KEPT)),
        ("-dt --defrag-thold", _does_nothing("X", _KEPT)),
        ("--prompt-cache", _does_nothing("X", "in Python LM keeps what texts begin with")),
        (
            "--prompt-cache-all --prompt-cache-ro",
            _does_nothing("", "in Python LM keeps what texts begin with"),
        ),
        (
            "--display-prompt --no-display-prompt --verbose-prompt",
            _does_nothing("", "--json has the prompt"),
        ),
        (
            "--perf --no-perf --show-timings --no-show-timings",
            _does_nothing("", "-v and -q say how much is reported"),
        ),
        (
            "-lv --verbosity --log-verbosity",
            _does_nothing("X", "-v and -q say how much is reported"),
        ),
        (
            "--log-prefix --no-log-prefix --log-timestamps",
            _does_nothing("", "-v and -q say how much is reported"),
        ),
        ("--log-file", _does_nothing("X", "notes go to standard error: 2>FILE")),
        ("--simple-io --offline", _does_nothing("", "this is always so")),
        ("-mli --multiline-input", _does_nothing("", 'lines between """ and """ are one turn')),
        (
            "-e --escape --no-escape",
            _does_nothing("", "a prompt is taken as it is; the shell spells \\n as $'\\n'"),
        ),
        ("-st --single-turn", _does_nothing("", "mtpcore run answers one question")),
        ("--reasoning-format", _does_nothing("X", "the text is shown as the model writes it")),
        (
            "--spec-type",
            _does_nothing(
                "X", "the drafter in the file is found; --drafter names one, such as lookup"
            ),
        ),
        ("--draft-min --draft-n-min --spec-draft-n-min", _does_nothing("X", _DRAFTS)),
        ("--spec-draft-p-split --draft-p-split", _does_nothing("X", _DRAFTS)),
        ("--mtp", _does_nothing("", "a drafter beside the model is found")),
        (
            "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
            _does_nothing("X", "--drafter lookup needs no file"),
        ),
        # What could.
        ("-hf -hfr --hf-repo -hff --hf-file -hft --hf-token", _refused("X", _DOWNLOAD)),
        ("-hfd -hfrd --hf-repo-draft --spec-draft-hf", _refused("X", f"{_DOWNLOAD} with -md")),
        ("-mu --model-url -dr --docker-repo", _refused("X", _DOWNLOAD)),
        (
            "--lora --lora-scaled",
            _refused(
                "X", "merge the adapter into a model file first, as export-lora of llama.cpp does"
            ),
        ),
        ("--control-vector --control-vector-scaled", _refused("X", "not available")),
        ("--grammar --grammar-file", _refused("X", _GRAMMAR)),
        ("-j --json-schema -jf --json-schema-file", _refused("X", _GRAMMAR)),
        ("-l --logit-bias", _refused("X", "in Python: LM.generate(logit_bias=...)")),
        (
            "--samplers --sampler-seq --sampling-seq",
            _refused("X", "the order is fixed: penalties, top-k, top-p, min-p, temp"),
        ),
        (
            "--repeat-last-n",
            _refused("X", "--repeat-penalty counts the prompt and the whole text", "-1"),
        ),
        (
            "--mirostat --xtc-probability --dry-multiplier --dynatemp-range",
            _refused("X", _SAMPLER, "0", "0.0"),
        ),
        ("--typical --typical-p", _refused("X", _SAMPLER, "1", "1.0")),
        ("--top-nsigma --top-n-sigma --adaptive-target", _refused("X", _SAMPLER, "-1", "-1.0")),
        ("--mirostat-lr --mirostat-ent --xtc-threshold --dry-base", _refused("X", _SAMPLER)),
        (
            "--dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker",
            _refused("X", _SAMPLER),
        ),
        ("--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale", _refused("X", _ROTATED)),
        ("--yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor", _refused("X", _ROTATED)),
        ("--yarn-beta-slow --yarn-beta-fast", _refused("X", _ROTATED)),
        ("-gan --grp-attn-n -gaw --grp-attn-w", _refused("X", _ROTATED, "1")),
        ("--override-kv", _refused("X", "a file is taken as it is")),
        ("--chat-template --chat-template-file --chat-template-kwargs", _refused("X", _TEMPLATE)),
        (
            "-rea --reasoning --reasoning-budget --reasoning-effort",
            _refused("X", _TEMPLATE, "auto", "-1"),
        ),
        ("--no-jinja", _refused("", "chat templates are always rendered; --raw continues a text")),
        (
            "-sysf --system-prompt-file",
            _refused("X", '-sys "$(cat FILE)" gives the text of a file'),
        ),
        ("-bf --binary-file --in-file", _refused("X", "-f FILE reads a text in UTF-8")),
        ("-i --interactive -if --interactive-first", _refused("", _TURNS)),
        ("--in-prefix --in-suffix", _refused("X", _TURNS)),
        ("-mm --mmproj -mmu --mmproj-url --image --audio --video", _refused("X", "texts only")),
        ("--host --port --api-key", _refused("X", _SERVER)),
        ("--rpc", _refused("X", "one machine computes")),
        ("--list-devices", _refused("", "--backend cuda:0 is the first GPU")),
    ]
)


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
