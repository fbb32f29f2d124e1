"""Checkpoints of recurrent layers, counted from outside at every moment."""

from functools import wraps

from mtpcore.memory import CHECKPOINTS

_CALLS = ("reserve", "rewind", "keep", "fork", "save", "restore", "load")


def checkpoints_of(recurrent, seqs):
    """Slots that sequences hold, or can be restored to, and that are not among their two newest.

    Nor those of any other sequence: what somebody goes on from is no checkpoint.
    """
    chains = [recurrent._chains, recurrent._saved]
    newest = {held.slot for held_by in chains for chain in held_by for held in chain.held[-2:]}
    held = {one.slot for held_by in chains for seq in seqs for one in held_by[seq].held}
    return held - newest


def watch(memory, n_seq, most=None):
    """Check after every call, ended or not, that there are at most so many; None: of each one."""
    recurrent = memory.recurrent
    shares = [range(n_seq)] if most is not None else [[seq] for seq in range(n_seq)]

    def watching(call):
        @wraps(call)
        def watched(*args):
            try:
                return call(*args)
            finally:
                for seqs in shares:
                    found = checkpoints_of(recurrent, seqs)
                    assert len(found) <= (CHECKPOINTS if most is None else most), call.__name__

        return watched

    for name in _CALLS:
        setattr(recurrent, name, watching(getattr(recurrent, name)))
