"""A picture of speeds: bars in SVG, with the least and largest of each."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from mtpcore.cli.measure import Sample

__all__ = ["draw_bars"]

_LEFT, _BAR, _RIGHT = 260, 480, 110
_ROW, _TOP = 26, 48
_COLOURS = ("#4c72b0", "#55a868")


def draw_bars(title: str, unit: str, bars: Sequence[tuple[str, Sample, bool]]) -> str:
    """Return a picture in SVG, which any browser shows.

    Parameters
    ----------
    title, unit : str
    bars : sequence of (str, Sample, bool)
        What each is called, its values, and whether drafts made it: those have a colour of theirs.
        A bar is as long as its median; a line goes from the least to the largest.
    """
    largest = max((sample.high for _, sample, _ in bars), default=0.0) or 1.0
    width, height = _LEFT + _BAR + _RIGHT, _TOP + _ROW * len(bars) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="26" font-size="15">{escape(title)}</text>',
    ]
    for i, (name, sample, is_drafted) in enumerate(bars):
        top = _TOP + _ROW * i
        low, middle, high = (
            _LEFT + _BAR * value / largest for value in (sample.low, sample.median, sample.high)
        )
        across = top + _ROW / 2 - 3
        lines += [
            f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="bar" x="{_LEFT}" y="{top}" width="{middle - _LEFT:.2f}" '
            f'height="{_ROW - 6}" fill="{_COLOURS[is_drafted]}"/>',
            f'<line x1="{low:.2f}" y1="{across}" x2="{high:.2f}" y2="{across}" stroke="black"/>',
            f'<text x="{high + 6:.2f}" y="{top + 14}">{sample.median:,.1f} {escape(unit)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
