"""Values share memory only while nobody reads the one that was there."""

from harness.random_graphs import random_graphs
from harness.search import searching
from hypothesis import given, note
from hypothesis import strategies as st
from programs import trunk

from mtpcore.backends.cuda.buffers import VIEWS, share_buffers
from mtpcore.backends.cuda.fusion import fuse


def size_of(value, n_batch):
    n = 4 * n_batch
    for width in value.shape[1:]:
        n *= width
    return n


@searching(100)
@given(random_graphs(), st.sampled_from([0, 32]))
def test_every_reader_finds_what_was_made_for_it(drawn, block):
    program = drawn.program
    note(str(program))
    groups = [group.nodes for group in fuse(program, lambda node: block)]
    buffers, sizes = share_buffers(program, 3, groups)
    holds = dict.fromkeys(buffers.values())  # which value each buffer holds
    contents = {i: i for i in program.inputs.values()}  # which value's memory a view is
    for i in program.inputs.values():
        holds[buffers[i]] = i
    for nodes in groups:
        own = {i for node in nodes for i in node.outputs}
        read = {i for node in nodes for i in node.inputs} - own
        for i in read:
            assert holds[buffers[i]] == contents[i]
        for node in nodes:
            for i in node.outputs:
                is_view = node.op in VIEWS
                contents[i] = contents[node.inputs[0]] if is_view else i
                assert is_view or buffers[i] not in {buffers[j] for j in read}
                assert is_view or holds[buffers[i]] not in own
                holds[buffers[i]] = contents[i]
                assert sizes[buffers[i]] >= size_of(program.values[i], 3)
    for i in program.outputs.values():
        assert holds[buffers[i]] == contents[i]


def test_layers_share_what_they_make():
    def n_buffers(n_layers):
        program = trunk(layers=n_layers)[0]
        return len(share_buffers(program, 8, [[node] for node in program.nodes])[1])

    assert n_buffers(12) <= n_buffers(2) + 1
