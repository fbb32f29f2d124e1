"""``mtpcore imatrix``: how much the columns of a model's matrices matter, for ``quantize``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from mtpcore.calibration.collecting import Collected, collect_importance, merge_importance
from mtpcore.calibration.settings import ImportanceSettings
from mtpcore.calibration.statistics import MatrixStatistics, matrix_statistics
from mtpcore.cli import options as shared
from mtpcore.cli.progress import count_tokens
from mtpcore.cli.tables import draw_table
from mtpcore.cli.terminal import note, spell_bytes
from mtpcore.conversion.importance_file import read_sums

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Make an importance matrix of a model and its heads, by which quantize weighs columns"
EXAMPLES = """examples:
  mtpcore imatrix model-f16.gguf texts.txt -o model.imatrix.gguf
  mtpcore imatrix -m model-f16.gguf -f texts.txt -o model.imatrix.gguf --chunks 100
  mtpcore imatrix --in-file a.imatrix.gguf --in-file b.imatrix.gguf -o both.imatrix.gguf
  mtpcore quantize model-f16.gguf model-q4_k_m.gguf --outtype q4_k_m --imatrix model.imatrix.gguf
"""
_DEFAULT = ImportanceSettings()
_NAMED = 6
"""Matrices that are named where more of them have no weights."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.add_model_options(parser, runs=False)
    parser.add_argument(
        "-md",
        "--model-draft",
        "--draft-model",
        metavar="FILE",
        help="weigh the matrices of a drafter in a file of its own, which reads what MODEL makes",
    )
    group = parser.add_argument_group("texts")
    group.add_argument("texts", nargs="*", metavar="TEXT", help="files in UTF-8, read in turn")
    group.add_argument(
        "-f", "--file", action="append", default=[], metavar="TEXT", help="TEXT, as an option"
    )
    group.add_argument(
        "--parse-special", action="store_true", help="read marks such as <|im_start|> as tokens"
    )
    group.add_argument(
        "-c",
        "--ctx-size",
        type=shared.whole(2),
        default=_DEFAULT.chunk_size,
        metavar="N",
        help="tokens of a chunk, each of which is a text of its own (default: %(default)s)",
    )
    group.add_argument(
        "--chunks", type=shared.whole(-1), default=-1, metavar="N", help="read N chunks (-1: all)"
    )
    group.add_argument(
        "--chunk",
        "--from-chunk",
        type=shared.whole(0),
        default=0,
        metavar="N",
        help="pass over the first N chunks",
    )
    group = parser.add_argument_group("importance matrix")
    group.add_argument(
        "-o",
        "--output",
        "--output-file",
        default="imatrix.gguf",
        metavar="FILE",
        help="the file to write; an interrupted run goes on with what it holds (default: "
        "%(default)s)",
    )
    group.add_argument(
        "--output-format",
        choices=("gguf", "dat"),
        default="gguf",
        help="dat: the form that llama.cpp had before; no run goes on there (default: gguf)",
    )
    group.add_argument(
        "-ofreq",
        "--output-frequency",
        type=shared.whole(0),
        default=_DEFAULT.save_every,
        metavar="N",
        help="write it after every N chunks (default: %(default)s; 0: at the end)",
    )
    group.add_argument(
        "--save-frequency",
        type=shared.whole(0),
        default=0,
        metavar="N",
        help="keep a copy after every N chunks, FILE.at_N (default: 0, none)",
    )
    group.add_argument(
        "--in-file",
        action="append",
        default=[],
        metavar="FILE",
        help="add to what a file holds; of several, and without a text, what they hold together",
    )
    group.add_argument(
        "--process-output", action="store_true", help="the output matrix gets weights, too"
    )
    group.add_argument("--no-mtp", dest="heads", action="store_false", help="leave the heads out")
    group.add_argument(
        "--ppl", action="store_true", help="measure the texts' perplexity, as is done by default"
    )
    group.add_argument(
        "--no-ppl", dest="ppl", action="store_false", help="make no logits, which is faster"
    )
    group.add_argument(
        "--show-statistics",
        action="store_true",
        help="print a line for each matrix; with --in-file alone nothing is written",
    )
    parser.set_defaults(ppl=True)
    group = parser.add_argument_group("computing")
    what = "tokens that are read at once; fewer where their rows take more than 256 MiB"
    shared.add_computing_options(group, what, _DEFAULT.rows)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.path is not None and (options.model or options.hf_repo):
        options.texts, options.path = [options.path, *options.texts], None
    texts = [*options.texts, *options.file]
    if not texts and options.in_file:
        return _merge(options)
    if not texts:
        options.parser.error("give TEXT, whose words the model is to read, or files to add up")
    settings = ImportanceSettings(
        chunk_size=options.ctx_size,
        n_chunks=None if options.chunks < 0 else options.chunks,
        first_chunk=options.chunk,
        parse_special=options.parse_special,
        with_output=options.process_output,
        heads=options.heads,
        perplexity=options.ppl,
        save_every=options.output_frequency,
        keep_every=options.save_frequency,
        rows=options.batch_size,
    )
    collected = collect_importance(
        shared.model_path(options),
        texts,
        options.output,
        settings,
        count_tokens,
        mtp_path=options.mtp_path,
        draft_model=options.model_draft,
        form=options.output_format,
        merged=options.in_file,
        threads=options.threads,
        backend=options.backend,
    )
    if collected.perplexity is not None:
        print(f"perplexity {collected.perplexity:.4f}, of the second half of each chunk")
    _report(collected, options)
    return 0


def _merge(options: argparse.Namespace) -> int:
    """Write what several files hold together, or show what one holds."""
    if options.show_statistics:
        if len(options.in_file) > 1:
            options.parser.error("--show-statistics is of one --in-file")
        _print_statistics(Path(options.in_file[0]))
        return 0
    merged = merge_importance(
        options.in_file, options.output, form=options.output_format, chunk_size=options.ctx_size
    )
    _report(merged, options)
    return 0


def _report(collected: Collected, options: argparse.Namespace) -> None:
    """Say what was written, and what has no weights."""
    path = collected.path
    before = f", {collected.n_before} of them by an earlier run" if collected.n_before else ""
    note(
        f"wrote {path}, {spell_bytes(path.stat().st_size)}: {collected.n_matrices} matrices, "
        f"{collected.n_chunks} chunks{before}"
    )
    if collected.partial:
        unseen = sum(n - seen for seen, n in collected.partial.values())
        note(
            f"{unseen} matrices of {len(collected.partial)} stacks saw no rows, and get equal "
            "weights: a longer text may reach those experts"
        )
    if collected.missing:
        names = collected.missing if options.verbose else collected.missing[:_NAMED]
        more = ", ..." if len(names) < len(collected.missing) else ""
        note(
            f"without weights, for no graph that read the text multiplies by them: "
            f"{len(collected.missing)} matrices: {', '.join(names)}{more}"
        )
    if options.show_statistics:
        _print_statistics(path)


def _print_statistics(path: Path) -> None:
    rows = [_HEADINGS, *map(_spelled, matrix_statistics(read_sums(path)))]
    print(draw_table(rows))


_HEADINGS: Sequence[str] = (
    *("matrix", "sum", "least", "most", "mean", "deviation", "active", "columns", "entropy"),
    *("of most", "outliers", "similarity"),
)


def _spelled(of: MatrixStatistics) -> Sequence[str]:
    most = math.log2(of.n)
    return (
        of.name,
        f"{of.total:.2f}",
        f"{of.least:.4f}",
        f"{of.most:.4f}",
        f"{of.mean:.4f}",
        f"{of.deviation:.4f}",
        f"{of.active:.2%}",
        str(of.n),
        f"{of.entropy:.4f}",
        f"{of.entropy / most if most else 1:.2%}",
        f"{of.outliers:.2%}",
        "" if of.similarity is None else f"{of.similarity:.4f}",
    )
