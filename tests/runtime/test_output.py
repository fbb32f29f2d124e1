"""What a device computed stays there until somebody asks for it on the host."""

import numpy as np
import pytest
from harness.hashed import HashBackend, HashModel

from mtpcore import Batch, BatchError, Context, link
from mtpcore.backends.host_rows import HostRows


class OnDevice:
    """An array that notes when it comes to the host."""

    def __init__(self, values, copied, name):
        self.values, self.copied, self.name = values, copied, name
        self.shape, self.dtype = values.shape, values.dtype

    def __len__(self):
        return len(self.values)

    def __getitem__(self, which):
        return OnDevice(self.values[which], self.copied, self.name)

    def find_not_finite(self, others):
        return []

    def __array__(self, dtype=None, copy=None):
        self.copied.append(self.name)
        return np.array(self.values, dtype)


class DeviceRows(HostRows):
    """Takes rows from the device without a way over the host."""

    def write(self, at, parts):
        super().write(at, [getattr(part, "values", part) for part in parts])


class DeviceBackend(HashBackend):
    def __init__(self):
        super().__init__()
        self.copied = []

    def row_buffer(self, n_rows, width):
        return DeviceRows(n_rows, width)

    def plan(self, *arguments, **options):
        plan = super().plan(*arguments, **options)
        run = plan.run
        plan.run = lambda rows, memory: {
            name: OnDevice(values, self.copied, name) if name == "hidden" else values
            for name, values in run(rows, memory).items()
        }
        return plan


def test_rows_between_contexts_of_a_device_do_not_leave_it():
    backend = DeviceBackend()
    cross = link(Context(HashModel(), 64, backend=backend))
    output = cross.llm.process(Batch.of([1, 2, 3]))
    assert backend.copied == []
    assert cross.links.inboxes("draft")["hidden"].length(0) == 3
    wanted = link(Context(HashModel(), 64, backend=HashBackend())).llm.process(Batch.of([1, 2, 3]))
    assert np.array_equal(output.tap("hidden"), wanted.tap("hidden"))
    assert backend.copied == ["hidden"]
    with pytest.raises(BatchError, match="no such output"):
        output.as_computed("nothing")
