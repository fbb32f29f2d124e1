"""What a model does with a text, as digests: one process for each instruction set.

Reads a JSON list of cases from stdin and prints, a line each, the case's digests. The environment
variable MTPCORE_ISA is read when mtpcore is imported, so that another set needs another process.
"""

import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np

import mtpcore
from harness.generated import N_VOCAB
from harness.generated_heads import write_family
from mtpcore._ext._cpu import available_isas

N_TOKENS = 72  # more than a page of memory
OTHERS = (1, 2)  # sequences in whose batching the text may be
BATCHINGS = ("alone", "interleaved", "beside-drafts", "forked")


class Rows(msgspec.Struct, frozen=True):
    """A text fed to an LLM context; ``family``, ``kind`` and ``kv`` alone may change its bits."""

    family: str
    kind: str
    kv: str
    isa: str = available_isas()[-1]
    threads: int = 1
    n_batch: int = 512
    repack: bool = True
    chunk: int = 1
    batching: str = "alone"


class Drafted(msgspec.Struct, frozen=True):
    """Three texts decoded together; the first four fields alone may change them."""

    family: str
    kind: str
    kv: str
    temperature: float
    isa: str = available_isas()[-1]
    threads: int = 1
    n_batch: int = 512
    repack: bool = True
    k: int = 0
    draft_sampler: str = "coupled"


def run_cases(cases, folder):
    """Return {case: digests} of cases of one type, from a child for each instruction set."""
    found = {}
    for isa in dict.fromkeys(case.isa for case in cases):
        mine = list(dict.fromkeys(case for case in cases if case.isa == isa))
        done = subprocess.run(
            [sys.executable, "-m", "harness.traces", str(folder), type(mine[0]).__name__],
            input=msgspec.json.encode(mine),
            env={
                **os.environ,
                "MTPCORE_ISA": isa,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        found |= dict(zip(mine, map(json.loads, done.stdout.splitlines()), strict=True))
    return found


# In the child


@functools.cache
def model(folder, family, kind, repack):
    path = folder / f"{family}-{kind}.gguf"
    if not path.exists():
        write_family(path, family, kind)
    return mtpcore.load_model(path, repack=repack)


def make_context(folder, way, **sizes):
    return mtpcore.Context(
        model(folder, way.family, way.kind, way.repack),
        n_batch=way.n_batch,
        kv_dtype=way.kv,
        threads=way.threads,
        **sizes,
    )


@functools.lru_cache(1)
def context_of(folder, way):
    return make_context(folder, way, n_ctx=256, n_seq_max=4, taps=["hidden"])


def digest(array):
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).hexdigest()


def text_of(seq):
    return np.random.default_rng(seq).integers(0, N_VOCAB, 4 * N_TOKENS).tolist()


def trace_rows(case, folder):
    """Feed the text of sequence 0 in chunks, in the batching asked for; digest its rows."""
    context = context_of(folder, msgspec.structs.replace(case, chunk=1, batching="alone"))
    for seq in range(context.n_seq_max):
        context.remove(seq)  # the case before may have had the same context
    text, begin = text_of(0)[:N_TOKENS], 0
    rows = {"logits": [], "hidden": []}
    if case.batching == "forked":
        # The first rows are another sequence's, which goes on otherwise: pages are shared.
        begin = case.chunk
        _keep(rows, context.process(mtpcore.Batch.of(text[:begin], seq=3, outputs="all")), 3)
        context.fork(3, 0)
        context.process(mtpcore.Batch.of(text_of(3)[:5], seq=3, pos=begin))
    while begin < N_TOKENS:
        end = min(begin + case.chunk, N_TOKENS)
        _keep(rows, context.process(_batch(context, case, text, begin, end)), 0, end - begin)
        for seq in (0, *OTHERS) if case.batching == "beside-drafts" else ():
            context.rewind(seq, end if seq == 0 else max(context.length(seq) - 3, 0))
        begin = end
    digests = {name: digest(np.concatenate(parts)) for name, parts in rows.items()}
    return digests | {"memory": context.digest(0).hex()}


def _batch(context, case, text, begin, end):
    """Return rows [begin, end) of sequence 0, with rows of others around them."""
    mine = list(zip(text[begin:end], range(begin, end), strict=True))
    queues = {0: mine}
    if case.batching == "interleaved":
        for seq in OTHERS:
            at = context.length(seq)
            tokens = text_of(seq)[at : at + case.chunk]
            queues[seq] = list(zip(tokens, range(at, at + case.chunk), strict=True))
    if case.batching == "beside-drafts":
        # Ours ends in drafts that are rejected, one neighbour drafts too, the other one prefills.
        queues[0] = [*mine, *((7, at) for at in range(end, end + 2))]
        for seq, n in zip(OTHERS, (4, 6), strict=True):
            at = context.length(seq)
            queues[seq] = [(text_of(seq)[i], i) for i in range(at, at + n)]
    rows = []
    if case.batching == "interleaved":
        while any(queues.values()):
            rows += [(seq, *queue.pop(0)) for seq, queue in queues.items() if queue]
    else:
        rows = [(seq, *row) for seq in (1, 0, 2) for row in queues.get(seq, ())]
    seqs, tokens, places = (np.array(column) for column in zip(*rows, strict=True))
    outputs = (seqs == 0) | (places % 3 == 0)
    return mtpcore.Batch(tokens, seq=seqs, pos=places, outputs=outputs)


def _keep(rows, output, seq, n=None):
    """Add the first n rows of a sequence."""
    mine = np.flatnonzero(output.seq == seq)[:n]
    rows["hidden"].append(output.tap("hidden")[mine])
    rows["logits"].append(output.logits[np.isin(output.outputs, mine)])


def trace_drafted(case, folder):
    """Decode three prompts, each in its own rhythm; digest texts and memories at one length."""
    llm = make_context(folder, case, n_ctx=128, n_seq_max=3)
    cross = mtpcore.link(llm)
    n_tokens, settings = 32, {}
    for seq in range(3):
        prompt = text_of(seq)[: 5 + 7 * seq]
        llm.process(mtpcore.Batch.of(prompt, seq=seq))
        settings[seq] = mtpcore.Sampling(temperature=case.temperature, seed=5, stream=seq)
    n_accepted = 0
    while going := [seq for seq in range(3) if llm.length(seq) <= n_tokens]:
        wanted = {seq: max(case.k - seq % 2, 0) for seq in going}
        drafts = cross.draft(wanted, sampling=settings, draft_sampler=case.draft_sampler)
        verdicts = cross.verify(drafts, settings)
        for seq, verdict in verdicts.items():
            n_accepted += verdict.accepted
            cross.accept(seq)
    for seq in range(3):
        cross.rollback(seq, n_tokens)
    digests = {f"text {seq}": digest(cross.tokens(seq)) for seq in range(3)}
    for seq in range(3):
        found = cross.digest(seq)
        digests |= {f"{role} {seq}": value.hex() for role, value in found.items()}
    return digests | {"accepted": n_accepted}


def main(folder, kind):
    case_type, trace = {"Rows": (Rows, trace_rows), "Drafted": (Drafted, trace_drafted)}[kind]
    for case in msgspec.json.decode(sys.stdin.buffer.read(), type=list[case_type]):
        print(json.dumps(trace(case, Path(folder))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
