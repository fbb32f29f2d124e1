"""Time the choice of one token, Python included: ``python benchmarks/sampling.py [--isa base]``.

Logits are normal with a few likely tokens. Prints the median and the 10th and 90th percentile in
microseconds for each vocabulary and chain.
"""

import argparse
import time

import numpy as np

from mtpcore._ext import _cpu
from mtpcore.sampling import Sampler, Sampling, Scratch

CHAINS = {
    "greedy": {"temperature": 0.0},
    "greedy, probability": {"temperature": 0.0},
    "temperature 1": {},
    "temperature 0.7": {"temperature": 0.7},
    "top-k 40": {"top_k": 40},
    "top-p 0.95": {"top_p": 0.95},
    "min-p 0.05": {"min_p": 0.05},
    "top-k, top-p, min-p": {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "penalties over 1000": {"repetition_penalty": 1.1, "top_k": 40},
}


def measure(chain: str, n_vocab: int, n_calls: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    logits = (rng.normal(size=n_vocab) * 2).astype(np.float32)
    logits[rng.integers(0, n_vocab, 20)] += np.linspace(12, 18, 20, dtype=np.float32)
    history = rng.integers(0, n_vocab, 1000).astype(np.int32)
    sampler = Sampler(Sampling(seed=1, **CHAINS[chain]), Scratch(n_vocab))
    choose = sampler.choose_with_probability if "probability" in chain else sampler.choose
    times = []
    for index in range(n_calls):
        begin = time.perf_counter()
        choose(logits, history, 0, index)
        times.append((time.perf_counter() - begin) * 1e6)
    return np.percentile(times, [50, 10, 90])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--isa", help="base, avx2, avxvnni, avx512 or amx; by default the best")
    parser.add_argument("--calls", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.isa:
        _cpu.use_isa(arguments.isa)
    for n_vocab in (2_048, 32_768, 151_936):
        for chain in CHAINS:
            median, low, high = measure(chain, n_vocab, arguments.calls)
            print(f"{n_vocab:7d}  {chain:20s}  {median:8.1f} us  ({low:.1f} .. {high:.1f})")


if __name__ == "__main__":
    main()
