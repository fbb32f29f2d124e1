"""Values share memory only while nobody reads the one that was there."""

from harness.random_graphs import random_graphs
from harness.search import searching
from hypothesis import given, note
from programs import trunk

from mtpcore.backends.cuda.buffers import VIEWS, share_buffers


def size_of(value, n_batch):
    n = 4 * n_batch
    for width in value.shape[1:]:
        n *= width
    return n


@searching(100)
@given(random_graphs())
def test_every_reader_finds_what_was_made_for_it(drawn):
    program = drawn.program
    note(str(program))
    buffers, sizes = share_buffers(program, 3)
    holds = dict.fromkeys(buffers.values())  # which value each buffer holds
    contents = {i: i for i in program.inputs.values()}  # which value's memory a view is
    for i in program.inputs.values():
        holds[buffers[i]] = i
    for node in program.nodes:
        for i in node.inputs:
            assert holds[buffers[i]] == contents[i]
        for i in node.outputs:
            is_view = node.op in VIEWS
            contents[i] = contents[node.inputs[0]] if is_view else i
            assert is_view or not {buffers[i]} & {buffers[j] for j in node.inputs}
            holds[buffers[i]] = contents[i]
            assert sizes[buffers[i]] >= size_of(program.values[i], 3)
    for i in program.outputs.values():
        assert holds[buffers[i]] == contents[i]


def test_layers_share_what_they_make():
    few, many = (len(share_buffers(trunk(layers=n)[0], 8)[1]) for n in (2, 12))
    assert many <= few + 1
