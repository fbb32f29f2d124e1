"""The definition of every operation in NumPy: slow and simple."""

from mtpcore.backends.reference.backend import ReferenceBackend, ReferencePlan
from mtpcore.backends.reference.run import Operation, Run, by_row
from mtpcore.backends.reference.store import ReferenceStore

__all__ = ["Operation", "ReferenceBackend", "ReferencePlan", "ReferenceStore", "Run", "by_row"]
