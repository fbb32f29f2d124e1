"""Time reading memory, by the number of pages that a thread reads at once.

    python benchmarks/reading.py --threads 2

prints GB/s, in turn: the median of several readings, the least and the most.
"""

from __future__ import annotations

import argparse

from timing import Reader, alternate

PAGES = (1, 2, 4, 8, 16)


def main() -> None:
    """Read with one page at a time, and with more."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    readers = [Reader(options.threads, 1 << 28, pages) for pages in PAGES]
    for reader, sample in zip(readers, alternate(readers, options.repeats), strict=True):
        middle, most, least = (
            reader.n_bytes / seconds / 1e9 for seconds in (sample.median, min(sample), max(sample))
        )
        print(f"{reader.pages:3d} pages at once {middle:6.1f} GB/s ({least:.1f} .. {most:.1f})")


if __name__ == "__main__":
    main()
