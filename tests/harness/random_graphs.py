"""Random graphs that no family has: any verb on any values, views of views, values read again.

``random_programs`` has the units of models. Here each verb reads what it likes of all that was made
before, so that values have several readers and names, and views begin and end anywhere.
"""

from hypothesis import strategies as st

from harness.random_programs import N_VOCAB, Drawn, Writer, adapt
from mtpcore.graph import Outputs
from mtpcore.graph.ops import ACTIVATIONS
from mtpcore.graph.program import OUTPUTS, TOKENS

WIDEST, MOST_HEADS = 160, 6
WIDTHS = [1, 4, 12, 16, 32, 32, 64, 64]  # few, so that values fit each other
N_EXPERTS, N_CODES = 4, 3


class Grower(Writer):
    """Grows a program verb by verb from all values so far."""

    WIDTHS = st.sampled_from(WIDTHS)

    def __init__(self, draw, reads_codes=True):
        super().__init__(draw)
        self.reads_codes = reads_codes
        self.values, self.ids, self.found = [], [], []
        self.has_embeddings, self.width = draw(st.booleans()), draw(self.WIDTHS)

    # What is there

    def pick(self, fits=lambda value: True):
        """Draw a value that fits, the newest and the unread likelier; None where there is none."""
        found = [value for value in self.values if fits(value)]
        if not found:
            return None
        unread = [value for value in self.unread() if fits(value)]
        return self.draw(st.sampled_from([*found, *found[-2:] * 2, *unread * 3]))

    def unread(self):
        read = {i for node in self.g._nodes for i in node.inputs}
        return [value for value in self.values if value.id not in read]

    def flat(self, axis=None):
        return self.pick(lambda v: len(v.shape) == 2 and axis in (None, v.shape[0]))

    def in_heads(self, fits=lambda value: True):
        return self.pick(lambda v: len(v.shape) == 3 and fits(v))

    def like(self, value):
        return self.pick(lambda v: v.shape == value.shape)

    # Verbs: each returns what it made, or None where nothing fits

    def embed(self):
        """Look tokens up once more; where rows may stand in their place, those serve here too."""
        width = self.width if self.has_embeddings else self.draw(self.WIDTHS)
        table = self.matrix(N_VOCAB, width)
        return self.g.embed(self.g.inputs.tokens, table, embeddings=self.has_embeddings)

    def embed_by_position(self):
        width = self.width if self.has_embeddings else self.draw(self.WIDTHS)
        n = self.draw(st.integers(1, 4))
        n_first = self.draw(st.sampled_from([0, N_VOCAB, N_VOCAB + 3]))
        n_each = (
            self.draw(st.sampled_from([N_VOCAB, N_VOCAB - 4])) if n_first and n > 1 else N_VOCAB
        )
        table = self.matrix((n_first or n_each) + (n - 1) * n_each, width)
        tokens, positions = self.g.inputs.tokens, self.g.inputs.positions
        return self.g.embed_by_position(
            tokens,
            positions,
            table,
            n,
            first=self.draw(st.integers(0, 2)),
            n_first=n_first,
            embeddings=self.has_embeddings,
        )

    def embed_positions(self):
        """Look positions up, of which some are after the table's last."""
        positions = self.g.inputs.positions
        if positions.shape[1] > 1:
            return None
        return self.g.embed_positions(positions, self.matrix(3, self.draw(self.WIDTHS)))

    def embed_codes(self):
        """Sum up codes, of which some name no row."""
        if not self.reads_codes:
            return None
        n_first = self.draw(st.sampled_from([0, 5, 8]))
        table = self.matrix((n_first or 7) + (N_CODES - 1) * 7, self.draw(self.WIDTHS))
        return self.g.embed_codes(self.g.inputs.codes(N_CODES), table, n_first=n_first)

    def embedding_rows(self):
        return self.g.embedding_rows(self.width) if self.has_embeddings else None

    def matmul_by_position(self):
        x = self.flat()
        stack = self.matrix(self.draw(st.integers(1, 4)), self.draw(self.WIDTHS), x.shape[1])
        first = self.draw(st.integers(0, 2))
        return self.g.matmul_by_position(x, self.g.inputs.positions, stack, first=first)

    def matmul(self):
        return self.product(self.flat(), self.draw(self.WIDTHS))

    def norm_of_any(self):
        return self.norm(self.pick())

    def two(self):
        a = self.pick()
        how, b = self.draw(st.sampled_from(["add", "mul", "gated"])), self.like(a)
        if how == "gated":
            return self.g.gated(a, b, self.draw(st.sampled_from(ACTIVATIONS)))
        return getattr(self.g, how)(a, b)

    def scale(self):
        return self.g.scale(self.pick(), self.draw(st.sampled_from([0.5, -1.7])))

    def multiply_each_head(self):
        a = self.in_heads()
        b = a and self.pick(lambda v: v.shape == a.shape[:2])
        return b and self.g.mul(a, b)

    def clamp(self):
        return self.g.clamp(self.pick(), self.draw(st.sampled_from([0.1, 1.0])))

    def xielu(self):
        eps = self.draw(st.sampled_from([-1e-6, 0.3]))
        return self.g.xielu(self.pick(), alpha_p=0.7, alpha_n=1.3, beta=0.5, eps=eps)

    def gaussian_topk(self):
        return self.g.gaussian_topk(self.pick(), self.draw(st.sampled_from([1.6, -0.2])))

    def scale_by_position(self):
        x = self.pick(lambda v: v.shape[0] == TOKENS)
        positions, n = self.g.inputs.positions, self.draw(st.integers(1, 9))
        return x and self.g.scale_by_position(x, positions, beta=0.7, n=n)

    def scale_any_by(self):
        return self.scale_by(self.pick())

    def shift_any_by(self):
        x = self.pick()
        return self.g.shift_by(x, self.vector(x.shape[-1]))

    def activate(self):
        return self.g.activation(self.pick(), self.draw(st.sampled_from(ACTIVATIONS)))

    def concat(self):
        parts = [self.pick()]
        for _ in range(self.draw(st.integers(1, 3))):
            parts.append(self.pick(lambda v: v.shape[:-1] == parts[0].shape[:-1]))
        return self.g.concat(*parts) if sum(v.shape[-1] for v in parts) <= WIDEST else None

    def slice(self):
        value = self.pick()
        width = value.shape[-1]
        start = self.draw(st.integers(0, width - 1) | st.just(0))
        return self.g.slice(value, start, self.draw(st.integers(start + 1, width) | st.just(width)))

    def split(self):
        value = self.flat()
        fits = [n for n in range(1, MOST_HEADS + 1) if value.shape[1] % n == 0]
        return self.g.split_heads(value, self.draw(st.sampled_from(fits)))

    def join(self):
        value = self.in_heads()
        return value and self.g.merge_heads(value)

    def repeat(self):
        value = self.in_heads(lambda v: v.shape[1] == 1)
        return value and self.g.repeat(value, self.draw(st.integers(1, 3)))

    def turn(self):
        value = self.in_heads(lambda v: v.shape[0] == TOKENS)
        return value and self.rope(value)

    def attention(self):
        q = self.in_heads(lambda v: v.shape[0] == TOKENS)
        if q is None:
            return None
        _, n_heads, width = q.shape
        k = self.in_heads(
            lambda v: v.shape[0] == TOKENS and n_heads % v.shape[1] == 0 and v.shape[2] == width
        )
        v = self.in_heads(lambda v: v.shape[:2] == k.shape[:2])
        kind = self.draw(st.sampled_from(["causal", "window", "latent", "block", "spans"]))
        self.sees_batch |= kind in ("block", "spans")
        self.layer += 1
        return self.g.attention(
            q,
            k,
            self.draw(st.integers(1, width)) if kind == "latent" else v,
            layer=self.layer - 1,
            scale=0.3,
            mask=kind if kind in ("block", "spans") else "causal",
            window=self.draw(st.integers(1, 9)) if kind in ("window", "spans") else 0,
            sinks=self.maybe(n_heads),
            **(self.bias(n_heads) if kind != "spans" else {"softcap": 0.7}),
        )

    def route(self):
        x, n_used = self.flat(), self.draw(st.integers(1, 3))
        router = self.vector(N_EXPERTS, x.shape[1])
        ids, shares = self.g.route(x, router, self.maybe(N_EXPERTS), n_used=n_used)
        self.ids.append(ids)
        return shares

    def expert_matmul(self):
        """Multiply a row for all ranks or, at times in heads made for it, one for each."""
        if not self.ids:
            self.values.append(self.route())
        ids = self.draw(st.sampled_from(self.ids))
        n_rows, n_used = ids.shape
        x = self.pick(
            lambda v: v.shape[:-1] == ids.shape or (len(v.shape) == 2 and v.shape[0] == n_rows)
        )
        if x is None:
            return None
        if len(x.shape) == 2 and x.shape[1] % n_used == 0 and self.draw(st.booleans()):
            x = self.g.split_heads(x, n_used)
        stack = self.matrix(ids.n_experts, self.draw(self.WIDTHS), x.shape[-1])
        return self.g.expert_matmul(x, ids, stack)

    def group_ids(self):
        """Add groups of chosen experts, at times each of one or all of them."""
        if not self.ids:
            self.values.append(self.route())
        ids = self.draw(st.sampled_from(self.ids))
        divisors = [n for n in range(1, ids.n_experts + 1) if ids.n_experts % n == 0]
        self.ids.append(self.g.group_ids(ids, self.draw(st.sampled_from(divisors))))

    def scale_chosen(self):
        if not self.ids:
            self.values.append(self.route())
        ids = self.draw(st.sampled_from(self.ids))
        x = self.in_heads(lambda v: v.shape[:2] == ids.shape)
        return x and self.g.scale_chosen(x, ids, self.vector(ids.n_experts))

    def mix(self):
        x = self.in_heads()
        shares = x and self.pick(lambda v: v.shape == x.shape[:2])
        return shares and self.g.mix(x, shares)

    def head_matmul(self):
        x = self.in_heads()
        return x and self.g.head_matmul(
            x, self.matrix(x.shape[1], self.draw(self.WIDTHS), x.shape[2])
        )

    def rank_matmul(self):
        x = self.in_heads()
        return x and self.g.rank_matmul(x, self.matrix(self.draw(self.WIDTHS), x.shape[2]))

    def find_best(self):
        x = self.flat()
        ids, shares = self.g.find_best(x, self.draw(st.integers(1, min(3, x.shape[1]))))
        self.found.append((ids, x.shape[1]))
        return shares

    def embed_ids(self):
        if not self.found:
            self.values.append(self.find_best())
        ids, n = self.draw(st.sampled_from(self.found))
        return self.g.embed_ids(ids, self.matrix(n, self.draw(self.WIDTHS)))

    def of_blocks(self):
        self.sees_batch = True
        size = self.draw(st.integers(1, 5))
        return {"size": size, "first": self.draw(st.integers(0, size - 1))}

    def block_attention(self):
        q = self.in_heads(lambda v: v.shape[0] == TOKENS)
        if q is None:
            return None
        n_heads = self.draw(st.sampled_from([n for n in (1, 2, 3) if q.shape[2] % n == 0]))
        k, v, of_blocks = self.like(q), self.like(q), self.of_blocks()
        bias = self.vector(n_heads, 2 * of_blocks["size"] - 1)
        return self.g.block_attention(q, k, v, bias, scale=0.3, **of_blocks)

    def block_walk(self):
        found = [(ids, n) for ids, n in self.found if ids.shape[0] == TOKENS]
        if not found:
            return None
        ids, n = self.draw(st.sampled_from(found))
        going = self.in_heads(lambda v: v.shape[:2] == ids.shape)
        if going is None:
            return None
        start, coming = self.product(self.flat(TOKENS), going.shape[2]), self.like(going)
        walk = self.g.block_walk(ids, start, going, coming, width=n, **self.of_blocks())
        return self.g.activation(walk, "tanh")

    def output_rows(self):
        value = self.pick(lambda v: v.shape[0] == TOKENS)
        return value and self.g.output_rows(value)

    VERBS = (
        embed, embed_by_position, embed_positions, embed_codes, embedding_rows, matmul_by_position,
        matmul, matmul, norm_of_any,
        two, two, scale, scale_any_by, shift_any_by, activate, clamp, multiply_each_head,
        scale_by_position, xielu, gaussian_topk,
        concat, concat, concat, slice, slice, slice, split, split, join, join, repeat, turn,
        attention, attention, route, expert_matmul, expert_matmul, group_ids, scale_chosen, mix,
        head_matmul, output_rows,
        rank_matmul, find_best, embed_ids, embed_ids, block_attention, block_walk,
    )  # fmt: skip

    # The whole

    def grow(self):
        """Start from an embedding and the slots, and add what some verbs make."""
        self.values.append(self.embed())
        self.values += [self.g.inputs[slot] for slot in self.slots]
        verbs = st.lists(st.sampled_from(self.VERBS), max_size=10)
        for verb in self.draw(verbs) + self.draw(verbs):
            made = verb(self)
            if made is not None:
                self.values.append(made)

    def outputs(self):
        """Return what nobody reads, and some values that are read, perhaps twice."""
        some = self.draw(st.lists(st.sampled_from(self.values), max_size=3))
        return {f"y{i}": value for i, value in enumerate(some + self.unread())}

    def logits(self):
        """Return a product of output rows; at times a view of it, or of a part."""
        source = self.flat()
        kept = source if source.shape[0] == OUTPUTS else self.g.output_rows(source)
        made = self.product(kept, N_VOCAB)
        self.values.append(made)
        how = self.draw(st.sampled_from(["alone", "alone", "view", "part", "scaled"]))
        if how == "view":
            return self.g.slice(made, 0, N_VOCAB)
        if how == "part":
            return self.g.slice(self.g.concat(made, made), 3, 3 + N_VOCAB)
        return self.g.scale(made, 2.0) if how == "scaled" else made

    def finish(self, logits, rows):
        program = self.g.finish(Outputs(logits, **rows))
        return Drawn(
            program, self.tensors, self.slots, self.n_axes, self.has_embeddings, self.sees_batch
        )


@st.composite
def random_graphs(draw):
    """Draw a program of any verbs."""
    one = Grower(draw)
    one.grow()
    drawn = one.finish(one.logits() if draw(st.booleans()) else None, one.outputs())
    return adapt(draw, drawn) if draw(st.integers(0, 3)) == 0 else drawn


@st.composite
def random_drafters(draw):
    """Draw a program that drafts, and which output each of its slots is fed with."""
    one = Grower(draw, reads_codes=False)
    one.grow()
    logits, rows, recycle = one.logits(), one.outputs(), {}
    for slot, width in one.slots.items():
        fits = [value for value in [*one.values, logits] if value.shape[1:] == (width,)]
        is_new = draw(st.booleans())
        recycle[slot] = f"next_{slot}"
        rows[f"next_{slot}"] = (
            one.product(one.flat(), width) if is_new else draw(st.sampled_from(fits))
        )
    return one.finish(logits, rows), recycle
