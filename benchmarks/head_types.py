"""Say how often drafts are accepted, by the type of the heads' matrices and of the trunk's.

    python benchmarks/head_types.py demo [--trunks f16,q8_0,q4_0] [--heads f16,q8_0,q5_1,q4_0]

The prompts are pieces of Python's own library, which the model continues greedily, one draft a
round: the share does not depend on the machine.
"""

from __future__ import annotations

import argparse
import sysconfig
import tempfile
from pathlib import Path

from mtpcore import LM
from mtpcore.conversion import quantize


def prompts() -> list[str]:
    """Return pieces of forty files."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [p for p in sorted(library.glob("*.py")) if 4000 < p.stat().st_size < 40000]
    return [path.read_text("utf-8", "ignore")[1000:1400] for path in files[:40]]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--trunks", default="f16,q8_0,q4_0")
    parser.add_argument("--heads", default="f16,q8_0,q5_1,q4_0")
    args = parser.parse_args()
    heads = args.heads.split(",")
    print("| trunk |", " | ".join(heads), "|")
    print("|---" * (len(heads) + 1) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for trunk in args.trunks.split(","):
            shares = []
            for head in heads:
                made = Path(folder) / "model.gguf"
                quantize(args.model, made, outtype=trunk, mtp_type=head)
                with LM(made, draft=1) as lm:
                    lm.generate(prompts(), max_tokens=64, temperature=0)
                    shares.append(f"{lm.stats.accepted / lm.stats.drafted:.3f}")
            print(f"| {trunk} |", " | ".join(shares), "|")


if __name__ == "__main__":
    main()
