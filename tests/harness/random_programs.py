"""Random programs, and batches to feed them: shapes, types and units no family has together."""

from typing import NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from hypothesis import strategies as st
from programs import Raw, Tensor

from harness.generated import FLOATS, QUANTISED, random_matrix
from mtpcore.graph import (
    GraphBuilder,
    Outputs,
    adapt_products,
    adapted_products,
    adapted_tables,
    adapted_vectors,
)
from mtpcore.graph.ops import ACTIVATIONS
from mtpcore.graph.program import Program
from mtpcore.memory import LOG

N_VOCAB = 23

seeds = st.integers(0, 2**32 - 1)
few = st.integers(1, 3)
odd_widths = st.integers(1, 70)
widths = odd_widths | st.sampled_from([32, 64, 96, 256])
head_widths = st.integers(1, 40) | st.sampled_from([32, 64])
LIMITS = st.sampled_from([0.0, 0.0, 0.7])


class Drawn(NamedTuple):
    """A program, its tensors, and what it reads.

    ``sees_batch``: a row reads other rows of its sequence in the same batch, later ones too.
    """

    program: Program
    tensors: dict[str, Tensor]
    slots: dict[str, int]
    n_axes: int
    has_embeddings: bool
    sees_batch: bool


class Writer:
    """Writes a program unit by unit; each unit reads a value and adds one."""

    def __init__(self, draw):
        self.draw, self.rng = draw, np.random.default_rng(draw(seeds))
        self.tensors, self.layer, self.state, self.sees_batch = {}, 0, 0, False
        self.stored = []
        self.slots = draw(st.dictionaries(st.sampled_from(["a", "b"]), odd_widths))
        self.n_axes = draw(few)
        self.g = GraphBuilder("random", self.tensors, slots=self.slots, axes=self.n_axes)

    # Weights

    def matrix(self, *shape):
        """Add a matrix of a type that its rows are whole in; quantised ones are likelier."""
        fits = [k for k in QUANTISED if shape[-1] % GGML_QUANT_SIZES[Type[k]][0] == 0]
        kind = self.draw(st.sampled_from([*fits, *FLOATS]))
        return self.add(Raw(random_matrix(self.rng, kind, *shape), kind, shape))

    def vector(self, *shape, around=0.0):
        return self.add(Tensor(around + self.rng.normal(0, 0.3, shape)))

    def add(self, tensor):
        name = f"w{len(self.tensors)}.weight"
        self.tensors[name] = tensor
        return name

    def maybe(self, *shape):
        return self.vector(*shape) if self.draw(st.booleans()) else None

    # Shorthands

    def product(self, x, width):
        return self.g.matmul(x, self.matrix(width, x.shape[1]), self.maybe(width))

    def heads(self, x, n_heads, width):
        return self.g.split_heads(self.product(x, n_heads * width), n_heads)

    def widened(self, x):
        """Return x, or a product as wide as quantised rows are."""
        width = self.draw(st.sampled_from([0, 32, 64, 256]))
        return self.product(x, width) if width else x

    # Units

    def norm(self, x):
        weight, eps = self.maybe(x.shape[-1]), self.draw(st.sampled_from([1e-5, 1e-6]))
        kind = self.draw(st.sampled_from(["rms", "layer", "l2"]))
        if kind == "rms":
            return self.g.rms_norm(x, weight and self.around_one(weight), eps)
        if kind == "l2":
            return self.g.l2_norm(x, eps)
        return self.g.layer_norm(x, weight, self.maybe(x.shape[-1]), eps)

    def around_one(self, name):
        return self.add(Tensor(1 + self.tensors[name].array()))

    def project(self, x):
        return self.product(self.widened(x), self.draw(widths))

    def combine(self, x):
        other = self.product(x, x.shape[1])
        hows = ["add", "mul", "gated", "activation", "scale", "scale_by", "shift_by", "clamp"]
        hows += ["xielu", "gaussian_topk"]
        how = self.draw(st.sampled_from(hows))
        if how == "activation":
            return self.g.activation(x, self.draw(st.sampled_from(ACTIVATIONS)))
        if how == "scale":
            return self.g.scale(other, self.draw(st.sampled_from([0.5, -1.7, 0.0])))
        if how == "clamp":
            return self.g.clamp(other, 0.4)
        if how == "xielu":
            return self.g.xielu(other, alpha_p=0.7, alpha_n=1.3, beta=0.5, eps=-1e-6)
        if how == "gaussian_topk":
            return self.g.gaussian_topk(other, 0.4)
        if how == "scale_by":
            return self.scale_by(other)
        if how == "shift_by":
            return self.g.shift_by(other, self.vector(other.shape[-1], around=0.0))
        if how == "gated":
            kind, limit = self.draw(st.sampled_from(ACTIVATIONS)), self.draw(LIMITS)
            return self.g.gated(x, other, kind, limit=limit, offset=self.draw(st.integers(0, 1)))
        return getattr(self.g, how)(x, other)

    def scale_by(self, x):
        width = 1 if self.draw(st.integers(0, 3)) == 0 else x.shape[-1]
        heads = x.shape[1:-1] if self.draw(st.booleans()) else ()
        return self.g.scale_by(x, self.vector(*heads, width, around=1.0))

    def feed_forward(self, x):
        """Norm, gate and up, down, residual: what a backend may fuse."""
        g, width = self.g, self.draw(widths)
        normed = self.norm(x) if self.draw(st.booleans()) else x
        gated = g.gated(self.product(normed, width), self.product(normed, width))
        down = self.product(gated, x.shape[1])
        return g.add(x, down) if self.draw(st.booleans()) else g.add(down, x)

    def views(self, x):
        """Cut and join: values that do not begin where their buffers do."""
        g, wide = self.g, self.product(x, 6 * self.draw(st.integers(1, 20)))
        three, two = g.split_heads(wide, 3), g.split_heads(wide, 2)
        stop = self.draw(st.integers(1, int(three.shape[2])))
        part = g.slice(three, self.draw(st.integers(0, stop - 1)), stop)
        one = g.split_heads(g.slice(wide, 1, wide.shape[1]), 1)
        return g.concat(
            g.merge_heads(g.concat(part, three)),
            g.merge_heads(self.scale_by(self.norm(two))),
            g.merge_heads(g.repeat(one, 3)),
            x,
        )

    def rope(self, x):
        pairs = int(x.shape[2]) // 2
        if not pairs or self.draw(st.booleans()):
            return x
        pairs = self.draw(st.integers(1, pairs))
        return self.g.rope(
            x,
            self.g.inputs.positions,
            [1e4 ** (-i / pairs) for i in range(pairs)],
            style=self.draw(st.sampled_from(["halves", "pairs"])),
            axes=[i % self.n_axes for i in range(pairs)],
            magnitude=self.draw(st.sampled_from([1.0, 1.3])),
            factors=self.add(Tensor(self.rng.uniform(0.5, 4, pairs + self.draw(st.integers(0, 2)))))
            if self.draw(st.booleans())
            else None,
        )

    def bias(self, n_heads):
        """Draw a position bias, or none, and whether scores are capped."""
        softcap = {"softcap": self.draw(st.sampled_from([0.0, 0.0, 0.5, 30.0]))}
        kind = self.draw(st.sampled_from(["none", "alibi", "buckets", "buckets"]))
        if kind == "none":
            return softcap
        if kind == "alibi":
            return {"max_alibi_bias": self.draw(st.sampled_from([2.0, 8.0])), **softcap}
        n_buckets = self.draw(st.integers(4, 20))
        return {
            "bias": self.vector(n_buckets, n_heads),
            "max_distance": self.draw(st.integers(n_buckets // 2 + 1, 100)),
            **softcap,
        }

    def attend(self, x):
        g, n_heads = self.g, self.draw(few)
        n_queries = n_heads * self.draw(st.sampled_from([1, 2, 3, 17]))
        k_width, v_width = self.draw(head_widths), self.draw(head_widths)
        normed = self.norm(x) if self.draw(st.booleans()) else x
        q = self.sharpened(self.rope(self.heads(normed, n_queries, k_width)))
        k = self.rope(self.heads(normed, n_heads, k_width))
        v = self.heads(normed, n_heads, v_width)
        kind = self.draw(st.sampled_from(["causal", "causal", "window", "latent", "block"]))
        self.sees_batch |= kind == "block"
        made = g.attention(
            q,
            k,
            self.draw(st.integers(1, k_width)) if kind == "latent" else v,
            layer=self.layer,
            scale=k_width**-0.5,
            mask="block" if kind == "block" else "causal",
            window=self.draw(st.integers(1, 70)) if kind == "window" else 0,
            sinks=self.maybe(n_queries),
            **self.bias(n_queries),
        )
        self.stored.append((self.layer, n_heads, k_width, kind == "window"))
        self.layer += 1
        if self.draw(st.booleans()):
            made = g.mul(made, g.activation(self.product(x, n_queries), "sigmoid"))
        return g.add(x, self.product(g.merge_heads(made), x.shape[1]))

    def sharpened(self, q):
        """Return queries, times a factor of their positions or as they are."""
        if self.draw(st.booleans()):
            return q
        n, offset = self.draw(st.integers(1, 40)), self.draw(st.integers(0, 1))
        positions = self.g.inputs.positions
        return self.g.scale_by_position(q, positions, beta=0.3, n=n, offset=offset)

    def attend_again(self, x):
        """Attend to what an earlier layer stored."""
        if not self.stored:
            return self.attend(x)
        g = self.g
        layer, n_heads, k_width, is_near = self.draw(st.sampled_from(self.stored))
        n_queries = n_heads * self.draw(st.sampled_from([1, 2, 5]))
        q = self.rope(self.heads(x, n_queries, k_width))
        window = self.draw(st.integers(1, 70)) if not is_near else 1
        adjusted = {"softcap": 3.0} if self.draw(st.booleans()) else {"max_alibi_bias": 8.0}
        made = g.attend(
            q, layer=layer, scale=0.2, window=window, sinks=self.maybe(n_queries), **adjusted
        )
        return g.add(x, self.product(g.merge_heads(made), x.shape[1]))

    def recur(self, x):
        """A convolution, and a delta rule that reads what it made; each state decays."""
        g, draw = self.g, self.draw
        n_key_heads, k_width, v_width = draw(few), draw(head_widths), draw(head_widths)
        n_heads = n_key_heads * draw(few)
        decays, kernel = (
            draw(st.sampled_from(["head", "channel", "column"])),
            draw(st.integers(1, 5)),
        )
        n_keys = n_key_heads * k_width
        channels = 2 * n_keys + n_heads * v_width
        taps = self.vector(channels, kernel)
        kind = draw(st.sampled_from(["silu", "none"]))
        made = g.causal_conv(self.product(x, channels), taps, layer=self.state, kind=kind)
        q = g.l2_norm(g.split_heads(g.slice(made, 0, n_keys), n_key_heads), 1e-6)
        k = g.l2_norm(g.split_heads(g.slice(made, n_keys, 2 * n_keys), n_key_heads), 1e-6)
        v = g.split_heads(g.slice(made, 2 * n_keys, channels), n_heads)
        decay, rates = self.product(x, n_heads), None
        if decays == "channel":
            decay = self.heads(x, n_heads, k_width)
        if decays == "column":
            decay, rates = (
                self.heads(x, n_heads, v_width),
                self.vector(n_heads * v_width, k_width, around=1.0),
            )
        decay = g.scale(g.activation(decay, "softplus"), -1.0)
        beta = g.activation(self.product(x, n_heads), "sigmoid")
        order = draw(st.sampled_from(["tiled", "grouped"]))
        y = g.delta_rule(
            *(q, k, v, decay, beta),
            layer=self.state,
            key_heads=order,
            corrects=draw(st.booleans()),
            rates=rates,
        )
        self.state += 1
        return g.add(x, self.product(g.merge_heads(y), x.shape[1]))

    def mix_blocks(self, x):
        """What a row makes of its block, and with those before it."""
        g, size, width = self.g, self.draw(st.integers(1, 9)), x.shape[1]
        self.sees_batch = True
        mean = g.block_mean(x, self.draw(st.integers(1, 20)))
        mixed = g.block_mix(self.product(x, width), self.vector(size, size, width))
        n_taps, part = self.draw(st.integers(1, 4)), self.draw(st.integers(0, 1))
        n_groups = self.draw(st.sampled_from([n for n in (1, 2, 3, 16, width) if not width % n]))
        changes, kernels = self.product(x, n_taps * n_groups), self.vector(2, n_taps, width)
        return g.add(g.add(mean, mixed), g.block_conv(x, changes, kernels, size=size, part=part))

    def best(self, x):
        """A row of -inf but for its largest values, made finite again."""
        return self.g.activation(self.g.keep_best(x, self.draw(st.integers(1, 20))), "tanh")

    def candidates(self, x):
        """The best columns of a row, what blocks of them make of each other, and a walk."""
        g, x = self.g, self.widened(x)
        n_columns, width = x.shape[1], self.draw(widths)
        n, n_heads = self.draw(st.integers(1, min(4, n_columns))), self.draw(few)
        size = self.draw(st.integers(1, 6))
        of_blocks = {"size": size, "first": self.draw(st.integers(0, size - 1))}
        self.sees_batch = True
        ids, shares = g.find_best(x, n)
        y = g.concat(g.embed_ids(ids, self.matrix(n_columns, width)), shares)
        q, k, v = (
            g.rank_matmul(y, self.matrix(n_heads * 5, width + 2), self.maybe(n_heads * 5))
            for _ in range(3)
        )
        bias = self.vector(n_heads, 2 * size - 1)
        y = g.block_attention(q, k, v, bias, scale=0.4, **of_blocks)
        start = self.product(x, n_heads * 5)
        return g.activation(g.block_walk(ids, start, y, q, width=n_columns, **of_blocks), "tanh")

    def experts(self, x):
        g, n_groups = self.g, self.draw(few)
        n_experts = n_groups * self.draw(st.integers(1, 4))
        n_groups_used = self.draw(st.integers(1, n_groups))
        n_used = self.draw(st.integers(1, min(4, n_experts // n_groups * n_groups_used)))
        x = self.widened(x)
        ids, shares = g.route(
            x,
            self.vector(n_experts, x.shape[1]),
            self.maybe(n_experts),
            bias=self.maybe(n_experts),
            factors=self.maybe(n_experts),
            n_used=n_used,
            gate=self.draw(st.sampled_from(["sigmoid", "softmax"])),
            normalise=self.draw(st.booleans()),
            n_groups=n_groups,
            n_groups_used=n_groups_used,
            n_best_of_group=self.draw(st.integers(1, 2)),
        )
        width = self.draw(widths)
        gate, up = (
            g.expert_matmul(
                x, ids, self.matrix(n_experts, width, x.shape[1]), self.maybe(n_experts, width)
            )
            for _ in range(2)
        )
        if self.draw(st.booleans()):
            gate = g.scale_chosen(gate, ids, self.vector(n_experts, around=1.0))
        inner, n_of_group = g.gated(gate, up), self.draw(st.integers(0, n_experts))
        if n_of_group and n_experts % n_of_group == 0:
            ids, n_experts = g.group_ids(ids, n_of_group), n_experts // n_of_group
        down = g.expert_matmul(inner, ids, self.matrix(n_experts, x.shape[1], width))
        return g.add(x, g.mix(down, shares))

    def clusters(self, x):
        """A row of -inf but for the outputs of some clusters, made finite again."""
        g, n_clusters, size = self.g, self.draw(st.integers(1, 6)), self.draw(st.integers(1, 40))
        x, n_outputs = self.widened(x), n_clusters * size
        router = self.vector(n_clusters, x.shape[1])
        n_used = self.draw(st.integers(1, min(n_clusters, 4)))
        ids, _ = g.route(x, router, n_used=n_used, gate="softmax")
        ordering = self.add(Tensor(self.rng.permutation(n_outputs).astype(np.float32)))
        matrix = self.matrix(n_outputs, x.shape[1])
        return g.activation(g.cluster_matmul(x, ids, matrix, ordering), "tanh")

    def multiply_heads(self, x):
        n_heads, width = self.draw(few), self.draw(widths)
        made = self.heads(x, n_heads, width)
        stack = self.matrix(n_heads, self.draw(odd_widths), width)
        return self.g.merge_heads(self.g.head_matmul(made, stack))

    UNITS = (
        norm, project, combine, feed_forward, views, attend, attend, attend_again, recur,
        experts, clusters, multiply_heads, mix_blocks, best, candidates,
    )  # fmt: skip

    # The whole

    def write(self):
        g, draw = self.g, self.draw
        has_embeddings = draw(st.booleans())
        table = self.matrix(N_VOCAB, draw(widths))
        scale = draw(st.sampled_from([1.0, 3.7]))
        values = [g.embed(g.inputs.tokens, table, embeddings=has_embeddings, scale=scale)]
        if draw(st.booleans()):
            second, absent = self.matrix(N_VOCAB, draw(widths)), draw(st.integers(0, N_VOCAB - 1))
            values.append(g.embed(g.inputs.tokens, second, scale=0.3, absent=absent))
        values += [g.inputs[slot] for slot in self.slots]
        unread = list(values)
        for unit in draw(st.lists(st.sampled_from(self.UNITS), min_size=1, max_size=6)):
            x = draw(st.sampled_from(values))
            if draw(st.booleans()):
                x = values[-1]  # a chain is likelier than a bush
            unread = [value for value in unread if value is not x]
            values.append(unit(self, x))
            unread.append(values[-1])
        rows = {f"y{i}": value for i, value in enumerate(unread)}
        logits = None
        if draw(st.booleans()):
            kept = g.output_rows(values[-1])
            kept = self.norm(kept) if draw(st.booleans()) else kept
            logits = self.product(self.widened(kept), N_VOCAB)
        program = g.finish(Outputs(logits, **rows))
        return Drawn(
            program, self.tensors, self.slots, self.n_axes, has_embeddings, self.sees_batch
        )


@st.composite
def random_programs(draw):
    """Draw a program; adapters change products of some."""
    drawn = Writer(draw).write()
    return adapt(draw, drawn) if draw(st.integers(0, 3)) == 0 else drawn


def adapt(draw, drawn):
    """Let adapters change some products, biases and norms of a program, where it has any."""
    program = drawn.program
    products = adapted_products(program) | adapted_tables(program) | adapted_vectors(program)
    chosen = draw(st.sets(st.sampled_from(sorted(products)))) if products else ()
    if not chosen:
        return drawn
    n, n_used, rng = draw(few), draw(few), np.random.default_rng(draw(seeds))
    ranks = {name: draw(st.integers(1, 20)) for name in sorted(chosen)}
    program = adapt_products(drawn.program, ranks, n, n_used, (".a", ".b"))
    for name, weight in program.weights().items():
        if name.endswith((".a", ".b")):
            stack = rng.normal(0, 0.3, weight.shape)
            stack[-1] = 0
            drawn.tensors[name] = Tensor(stack)
    return drawn._replace(program=program)


class Batch(NamedTuple):
    """Rows in order: sequence and place of each, which outputs are wanted, and parents if any."""

    seq: np.ndarray
    place: np.ndarray
    outputs: np.ndarray
    parent: np.ndarray | None = None


@st.composite
def random_batches(draw, drawn, most=40):
    """Draw batches of up to three sequences, cut into each other; the last may be a tree."""
    rng = np.random.default_rng(draw(seeds))
    length = {seq: draw(st.sampled_from([0, 0, 55, 64, 130])) for seq in range(3)}
    n_rows = st.integers(1, 6) | st.sampled_from([n for n in (1, 8, 9, 16, 17, 40) if n <= most])
    runs = st.lists(st.tuples(st.integers(0, 2), n_rows), min_size=1, max_size=4)
    batches = []
    for parts in draw(st.lists(runs, min_size=1, max_size=4)):
        seq = np.repeat([s for s, _ in parts], [n for _, n in parts]).astype(np.int32)
        place = np.empty_like(seq)
        for s in length:
            mine = np.flatnonzero(seq == s)
            place[mine] = length[s] + np.arange(len(mine))
            length[s] += len(mine)
        wanted = rng.random(len(seq)) < draw(st.sampled_from([0.0, 0.3, 1.0]))
        batches.append(Batch(seq, place, np.flatnonzero(wanted).astype(np.int32)))
    longest = max(np.bincount(batches[-1].seq))
    has_room = longest <= LOG or not drawn.program.states
    if not drawn.sees_batch and has_room and draw(st.booleans()):
        batches[-1] = batches[-1]._replace(parent=_random_tree(rng, batches[-1].seq))
    return batches


def _random_tree(rng, seq):
    """Return a parent for each row: one of the three before it in its sequence, or none."""
    parent = np.full(len(seq), -1, np.int32)
    for s in np.unique(seq):
        mine = np.flatnonzero(seq == s)
        for i in range(len(mine)):
            above = rng.integers(max(i - 3, -1), i)
            parent[mine[i]] = -1 if above < 0 else mine[above]
    return parent
