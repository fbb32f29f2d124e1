"""Memory kinds for tests: a store that remembers plain rows, and a recurrent kind."""

import ast
import hashlib

import numpy as np

from mtpcore.errors import CapacityError
from mtpcore.memory import PAGE


class ListStore:
    """A store whose rows are Python values, written by the test."""

    n_bytes, place_bytes = 0, 64

    def __init__(self, n_pages):
        self.pages = [[None] * PAGE for _ in range(n_pages)]

    def copy(self, src, dst):
        self.pages[dst] = list(self.pages[src])

    def move(self, src_page, src_row, dst_page, dst_row):
        self.pages[dst_page][dst_row] = self.pages[src_page][src_row]

    def read(self, page, row, n):
        found = self.pages[page][row : row + n]
        return b"".join(repr(one).encode().ljust(self.place_bytes) for one in found)

    def write(self, page, row, data):
        size = self.place_bytes
        for at in range(0, len(data), size):
            one = ast.literal_eval(bytes(data[at : at + size]).decode().strip())
            self.pages[page][row + at // size] = one


class RunningSum:
    """A recurrent kind: one number a sequence, with snapshots of the newest rows.

    It can take back as many rows as ``allow_rewind`` was told; the next rows drop older snapshots.
    """

    def __init__(self, n_seq, n_ctx):
        self.n_ctx, self.spare = n_ctx, 0
        self.states = [[(0, 0.0)] for _ in range(n_seq)]
        self.starts = [0] * n_seq

    def allow_rewind(self, n):
        if n > 16:
            raise CapacityError("a running sum keeps 16 snapshots", wanted="at most 16", got=n)
        self.spare = max(self.spare, n)

    def first(self, seq):
        return self.starts[seq]

    def length(self, seq):
        return self.states[seq][-1][0]

    def reserve(self, rows):
        for seq, (_, end) in rows.items():
            if end > self.n_ctx:
                raise CapacityError("context is full", where=f"sequence {seq}")
        for seq, (begin, _) in rows.items():
            if len(self.states[seq]) == 1 and self.states[seq][0][1] == 0.0:
                self.states[seq] = [(begin, 0.0)]
                self.starts[seq] = begin
            kept = [one for one in self.states[seq] if one[0] >= begin - self.spare]
            self.states[seq] = kept or self.states[seq][-1:]

    def give_back(self, rows):
        for seq, (begin, _) in rows.items():
            self.rewind(seq, begin)

    def write(self, seq, place, value):
        assert place == self.length(seq)
        snapshots = self.states[seq]
        snapshots.append((place + 1, np.float64(snapshots[-1][1] * 0.5 + value)))

    def check_rewind(self, seq, length):
        if self.starts[seq] < length < self.length(seq) and length not in dict(self.states[seq]):
            raise CapacityError("snapshot is gone", where=f"sequence {seq}", got=length)

    def rewind(self, seq, length):
        self.check_rewind(seq, length)
        if length <= self.starts[seq]:
            self.states[seq] = [(0, 0.0)]
            self.starts[seq] = 0
        else:
            self.states[seq] = [s for s in self.states[seq] if s[0] <= length]

    def save(self):
        return [list(states) for states in self.states], list(self.starts)

    def restore(self, saved):
        self.states, self.starts = [list(states) for states in saved[0]], list(saved[1])

    def keep(self, seq, begin, path):
        if path != list(range(len(path))):
            raise CapacityError("a running sum has no trees", where=f"sequence {seq}")
        self.rewind(seq, begin + len(path))

    def fork(self, seq, new):
        self.states[new] = list(self.states[seq])
        self.starts[new] = self.starts[seq]

    def digest(self, seq):
        return hashlib.blake2b(repr((self.starts[seq], self.states[seq][-1])).encode()).digest()
