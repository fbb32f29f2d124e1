"""What the kernels compute, to the last bit, in plain NumPy: a definition without their code.

A float32 result depends on the order of sums and on what is rounded. Both are written down here,
one file for each kind of operation; nothing compiled is called. The ``cpu`` backend must give these
bits for every row, on every instruction set.
"""

from mtpcore.backends.reference.arithmetic.recurrent import advance
from mtpcore.backends.reference.arithmetic.table import OPERATIONS, load

__all__ = ["OPERATIONS", "advance", "load"]
