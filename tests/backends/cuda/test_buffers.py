"""Values share memory only while nobody reads the one that was there."""

from gguf import GGMLQuantizationType as Type
from harness.random_graphs import random_graphs
from harness.search import searching
from hypothesis import given, note
from hypothesis import strategies as st
from programs import random_tensors, trunk

from mtpcore.backends.cuda.buffers import VIEWS, columns_of_others, share_buffers
from mtpcore.backends.cuda.fusion import fuse
from mtpcore.graph import GraphBuilder, Outputs


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
    columns = columns_of_others(program, lambda node: block)
    buffers, sizes = share_buffers(program, 3, groups, columns)
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
                of = columns[i].of if i in columns else i
                is_view = node.op in VIEWS or (node.op == "slice" and i in columns)
                is_joined = node.op == "concat" and any(
                    columns.get(j) and columns[j].of == i for j in node.inputs
                )
                contents[i] = contents[node.inputs[0]] if is_view else of
                assert is_view or is_joined or buffers[i] not in {buffers[j] for j in read}
                assert is_view or holds[buffers[i]] not in own - {of}
                holds[buffers[i]] = contents[i]
                assert sizes[buffers[i]] >= size_of(program.values[of], 3)
    for i in program.outputs.values():
        assert holds[buffers[i]] == contents[i]


def test_layers_share_what_they_make():
    def n_buffers(n_layers):
        program = trunk(layers=n_layers)[0]
        return len(share_buffers(program, 8, [[node] for node in program.nodes])[1])

    assert n_buffers(12) <= n_buffers(2) + 1


def test_parts_lie_in_rows_where_kernels_can_read_and_write_so():
    """On sixteen bytes, of no input or output, in one row, and for readers who know of it."""
    tensors = random_tensors(
        1, Type.Q8_0, embd=(20, 64), norm=(32,), other=(30,), heads=(2, 32, 32)
    )
    g = GraphBuilder("parts", tensors)
    x = g.embed(g.inputs.tokens, "embd.weight")
    low, high = (g.slice(x, at, at + 32) for at in (0, 32))
    normed = g.rms_norm(low, "norm.weight", 1e-5)
    odd = g.rms_norm(g.slice(x, 2, 32), "other.weight", 1e-5)
    heads = g.split_heads(x, 2)
    of_heads = g.slice(heads, 0, 32)
    both = g.concat(normed, g.scale(high, 2.0))
    twice = g.rms_norm(high, "norm.weight", 1e-5)
    program = g.finish(
        Outputs(
            both=both,
            odd=odd,
            product=g.merge_heads(g.head_matmul(of_heads, "heads.weight")),
            twice=g.concat(twice, twice),
        )
    )
    x, low, normed, of_heads, both = (value.id for value in (x, low, normed, of_heads, both))
    assert columns_of_others(program, lambda node: 32) == {
        low: (x, 0, 64),
        of_heads: (heads.id, 0, 32),
        normed: (both, 0, 64),
    }
    assert of_heads not in columns_of_others(program, lambda node: 0)
