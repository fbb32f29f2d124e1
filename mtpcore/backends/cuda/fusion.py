"""Which nodes of a program share launches: found by what reads what, never by a model's name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from mtpcore.backends.cuda.buffers import VIEWS, columns_of_others
from mtpcore.backends.cuda.layout import TILE
from mtpcore.graph.program import Node, Program

__all__ = ["MOST_PAIRS", "Group", "fuse"]

MOST_PAIRS = 512
"""Pairs of a head that one launch can rotate while it stores."""

_NORMS = ("rms_norm", "layer_norm")
_MAKERS = (*_NORMS, "gated", "attention", "cross_attention")
_PRODUCTS = ("matmul", "expert_matmul", "head_matmul")
_SORTING = ("expert_matmul", "matmul_by_position", "cluster_matmul")
"""Operations whose rows are sorted by the matrix that they choose, all in the same memory."""


class Group(msgspec.Struct, frozen=True):
    """Nodes that run together: rows are made and multiplied, in as few launches as can be.

    ============== =============================================================================
    field          what it is
    ============== =============================================================================
    ``nodes``      all nodes that run here, in the program's order
    ``maker``      makes the rows, at once as int8 codes for ``products``; a node that stands alone
                   is the maker. None: the rows are there
    ``is_kept``    the rows are read elsewhere, too, so floats are stored as well
    ``products``   multiply the rows
    ``source``     where there is no maker: the value whose rows, or columns of whose heads, these
                   are
    ``totals``     add the only product to what was there before; of a maker that mixes what experts
                   made, up to two, one after the other
    ``route``      chooses experts by the rows of a norm; products of experts wait for it
    ``is_sorted``  the last group that sorted rows did so by the experts of this one's products
    ``followers``  groups that read ``products``, all of whose nodes run here: the maker of one
                   takes two products together (a gate and what it lets through) or mixes
                   those of experts; one without a maker multiplies a product
    ``next``       the group after this one, whose maker is a norm of what this one makes last: the
                   norm runs here
    ``n_before``   how many groups came before in a row of which each ran the maker of the next; 0
                   for a group that runs its own maker
    ``stores_for`` attention of a later group: this one makes its queries, keys and values, rotates
                   them and stores them
    ``heads``      the products that are these; with a ``norm``, the one that queries begin with
    ``is_stored``  an earlier group did so for the attention that is this one's maker
    ``ropes``      rotate the queries and the keys of the maker, or of ``stores_for``
    ``norm``       of latent attention: ``ropes`` rotate parts, and keys begin with what this makes
    ============== =============================================================================

    A dense layer with plain attention is three groups; the next layer's norm runs in the third one:

    ============== ================= ================= =====================================
    field          group 1           group 2           group 3
    ============== ================= ================= =====================================
    ``maker``      norm              attention         ff_norm (has run in group 2)
    ``products``   q, k, v           o                 gate, up
    ``totals``                       o + residual
    ``followers``                                      maker: gate * up; product: down;
                                                       total: down + residual; next: layer 2
    ``next``                         group 3
    ``n_before``   0                 0                 1
    ``stores_for`` attention
    ``heads``      q, k, v
    ``ropes``      of q and of k
    ``is_stored``                    yes
    ============== ================= ================= =====================================
    """

    nodes: tuple[Node, ...]
    maker: Node | None
    ropes: tuple[Node, ...] = ()
    norm: Node | None = None
    route: Node | None = None
    products: tuple[Node, ...] = ()
    totals: tuple[Node, ...] = ()
    followers: tuple[Group, ...] = ()
    next: Group | None = None
    n_before: int = 0
    heads: tuple[Node, ...] = ()
    stores_for: Node | None = None
    is_stored: bool = False
    is_kept: bool = True
    is_sorted: bool = False
    source: int | None = None


def fuse(program: Program, block_of: Callable[[Node], int]) -> list[Group]:
    """Return the nodes of a program in groups, each after what it reads.

    Parameters
    ----------
    program : Program
    block_of : callable
        How many activations share a scale where this node multiplies, 0 where it does so in
        floating point.
    """
    found, last = _Fusion(program, block_of).groups(), None

    def marked(group: Group) -> Group:
        nonlocal last
        followed = {id(node) for follower in group.followers for node in follower.nodes}
        own = [node for node in group.nodes if id(node) not in followed]
        choosing = [node for node in own if node.op in _SORTING]
        kinds = {_kind_of_sort(node, block_of) for node in choosing}
        only = kinds.pop() if len(kinds) == 1 else None
        # All sort in the same memory: what is there stays until rows are sorted by another choice.
        is_sorted = only is not None and only == last
        last = only if choosing else last
        followers = tuple(map(marked, group.followers))
        return msgspec.structs.replace(group, followers=followers, is_sorted=is_sorted)

    return [marked(group) for group in found]


def _kind_of_sort(node: Node, block_of: Callable[[Node], int]) -> tuple[int, int, bool] | None:
    """Return all that tiles of rows depend on, where experts choose them."""
    if node.op != "expert_matmul" or node.weights[0] is None:
        return None
    return node.inputs[1], node.weights[0].shape[0], block_of(node) > 0


class _Found(msgspec.Struct, frozen=True):
    """A group by the numbers of its nodes."""

    maker: int | None
    ropes: tuple[int, ...] = ()
    norm: int | None = None
    views: tuple[int, ...] = ()
    route: int | None = None
    products: tuple[int, ...] = ()
    totals: tuple[int, ...] = ()
    followers: tuple[_Found, ...] = ()
    next: _Found | None = None
    n_before: int = 0
    heads: tuple[int, ...] = ()
    stores_for: int | None = None
    is_stored: bool = False
    is_kept: bool = True
    source: int | None = None

    @property
    def last(self) -> _Found:
        """What runs last: the last follower's last, or the group itself."""
        return self.followers[-1].last if self.followers else self

    @property
    def all_stored(self) -> set[int]:
        """Attention that is stored here, and by followers."""
        followed = (i for follower in self.followers for i in follower.all_stored)
        return {*followed, *(() if self.stores_for is None else (self.stores_for,))}

    @property
    def members(self) -> list[int]:
        """All nodes that run here, in the program's order."""
        makers = (None if self.n_before else self.maker, self.next.maker if self.next else None)
        own = (*self.ropes, self.norm, *makers, *self.views, self.route, *self.products)
        followed = (i for follower in self.followers for i in follower.members)
        found = (*own, *self.totals, *followed)
        return sorted(i for i in found if i is not None)


class _Fusion:
    """A walk through a program, which keeps what belongs to a group already."""

    def __init__(self, program: Program, block_of: Callable[[Node], int]) -> None:
        self._nodes, self._values = program.nodes, program.values
        self._block_of, self._columns = block_of, columns_of_others(program, block_of)
        self._made_by = {value: i for i, node in enumerate(self._nodes) for value in node.outputs}
        self._readers: dict[int, list[int]] = {value.id: [] for value in program.values}
        for i, node in enumerate(self._nodes):
            for value in node.inputs:
                self._readers[value].append(i)
        self._outputs = set(program.outputs.values())
        self._taken: set[int] = set()
        self._stored: set[int] = set()  # attention whose keys and values are stored before it

    def groups(self) -> list[Group]:
        """Return all groups in order; ropes move down to their attention, all others up."""
        found: dict[int, _Found] = {}
        for i in range(len(self._nodes)):
            if i in self._taken and i not in found:
                continue
            group = found.get(i) or self._found_at(i)
            if len(group.members) > 1:  # now, as `_with_next` asks what still runs in between
                self._taken.update(group.members)
            self._stored.update(group.all_stored)
            group = self._with_next(i, group)
            if group.n_before or group.is_stored or len(group.members) > 1:
                found[i] = group
                self._taken.update(group.members)
            if (after := group.last.next) and after.maker is not None and after.products:
                found[after.maker] = after
        return [
            self._group(found.get(i, _Found(i)))
            for i in range(len(self._nodes))
            if i in found or i not in self._taken
        ]

    def _group(self, found: _Found) -> Group:
        def node_of(i: int | None) -> Node | None:
            return None if i is None else self._nodes[i]

        def nodes_of(numbers: Sequence[int]) -> tuple[Node, ...]:
            return tuple(self._nodes[i] for i in numbers)

        return Group(
            nodes=nodes_of(found.members),
            maker=node_of(found.maker),
            ropes=nodes_of(found.ropes),
            norm=node_of(found.norm),
            route=node_of(found.route),
            products=nodes_of(found.products),
            totals=nodes_of(found.totals),
            followers=tuple(map(self._group, found.followers)),
            next=self._group(found.next) if found.next else None,
            n_before=found.n_before,
            heads=nodes_of(found.heads),
            stores_for=node_of(found.stores_for),
            is_stored=found.is_stored,
            is_kept=found.is_kept,
            source=found.source,
        )

    def _found_at(self, i: int) -> _Found:
        """Return the group that runs at node i, which may be alone."""
        node = self._nodes[i]
        if node.op == "mix":
            return _Found(i, totals=self._totals_of(i, i, 2))
        if node.op in _PRODUCTS:
            group = self._multiplying(i, i)
            return self._with_heads(i, group) if group and len(group.members) > 1 else _Found(i)
        if node.op not in _MAKERS:
            return _Found(i)
        is_stored = i in self._stored
        rotating = () if is_stored else self._ropes(node) or self._parts(node)
        ropes, norm = rotating[:2], rotating[2] if rotating[2:] else None
        views, value = self._views(node.outputs[0])
        is_norm = node.op in _NORMS
        route = self._route(value) if is_norm else None
        products = tuple(self._products(i, value, route))
        is_kept = value in self._outputs or set(self._readers[value]) != set(products)
        # Norms of heads have rows of their own, which are no whole blocks.
        can_make = not is_kept or is_norm
        can_make &= not is_norm or len(self._values[node.outputs[0]].shape) == 2
        if not products or not can_make:
            return _Found(i, ropes, norm, is_stored=is_stored)
        if not any(self._reads(j, route) for j in products):
            route = None
        totals = self._totals(i, products)
        followers = () if node.op == "gated" else self._followers(i, products, route)
        group = _Found(i, ropes, norm, views, route, products, totals, followers, is_kept=is_kept)
        return self._with_heads(i, msgspec.structs.replace(group, is_stored=is_stored))

    def _multiplying(
        self,
        first: int,
        i: int,
        route: int | None = None,
        source: int | None = None,
        made: Collection[int] = (),
    ) -> _Found | None:
        """Return the group that runs at node i, of rows that are there, from this product on.

        These may be what another group makes there: the value ``source``, among those ``made``.
        """
        products = tuple(self._products(i, self._nodes[first].inputs[0], route))
        if products[:1] != (first,):
            return None
        totals, followers = self._totals(i, products), self._followers(i, products, route)
        group = _Found(None, products=products, totals=totals, followers=followers, source=source)
        return self._with_parts(i, group, made)

    def _with_parts(self, i: int, group: _Found, made: Collection[int]) -> _Found:
        """Return a group that runs at node i, with what is joined to its product in attention.

        That is the rest of queries, which is rotated, and keys, which are stored.
        """
        product = group.products[0]
        joined = self._only_reader(self._nodes[product].outputs[0])
        if joined is None or self._nodes[product].op != "head_matmul":
            return group
        a = self._only_reader(self._nodes[joined].outputs[0])
        parts = () if a is None or a in self._stored else self._parts(self._nodes[a])
        read = {self._read_from(value) for j in parts for value in self._nodes[j].inputs}
        are_there = all(
            value in made or self._made_by.get(value, -1) in self._taken or self._is_there(value, i)
            for value in read
        )
        if not parts or not are_there:
            return group
        ropes, norm = parts[:2], parts[2]
        return msgspec.structs.replace(
            group, ropes=ropes, norm=norm, heads=(product,), stores_for=a
        )

    def _read_from(self, value: int) -> int:
        """Return the value whose rows one is columns of, or a view."""
        while (made := self._made_by.get(value, -1)) >= 0:
            node = self._nodes[made]
            if node.op not in VIEWS and not (node.op == "slice" and value in self._columns):
                break
            (value,) = node.inputs
        return value

    def _with_heads(self, i: int, group: _Found) -> _Found:
        """Return a group that runs at node i, with attention's ropes where its products are heads.

        These are whole tiles. Nobody reads the layer before attention has written it.
        """
        plain = (j for j in group.products if self._nodes[j].op == "matmul")
        made = {self._nodes[j].outputs[0]: j for j in plain}
        for a in sorted(self._attention_of(made)):
            node = self._nodes[a]
            ropes = self._ropes(node)
            if a in self._stored or not ropes:
                continue
            read = [self._nodes[j].inputs[0] for j in ropes] + list(node.inputs[2:])
            views, heads = set[int](), list[int]()
            for value in read:
                above, source = self._viewed(value)
                views.update(above)
                heads.append(made.get(source, -1))
            are_tiles = all(int(self._values[value].shape[2]) % TILE == 0 for value in read)
            is_ready = self._is_there(self._nodes[ropes[0]].inputs[1], i)
            if min(heads) >= 0 and are_tiles and is_ready:
                return msgspec.structs.replace(
                    group,
                    ropes=ropes,
                    views=(*group.views, *sorted(views)),
                    heads=tuple(heads),
                    stores_for=a,
                )
        return group

    def _attention_of(self, values: Iterable[int]) -> set[int]:
        """Return attention whose queries or keys values are, seen as heads and rotated."""
        found, left = set[int](), list(values)
        while left:
            for j in self._readers[left.pop()]:
                if self._nodes[j].op == "attention":
                    found.add(j)
                elif self._nodes[j].op in (*VIEWS, "rope"):
                    left += self._nodes[j].outputs
        return found

    def _viewed(self, value: int) -> tuple[list[int], int]:
        """Return the views that a value is seen through, and what is seen."""
        views = list[int]()
        while (made := self._made_by.get(value, -1)) >= 0 and self._nodes[made].op in VIEWS:
            views.append(made)
            (value,) = self._nodes[made].inputs
        return views, value

    def _followers(
        self, i: int, products: Sequence[int], route: int | None = None
    ) -> tuple[_Found, ...]:
        """Return the groups that begin with two of the products, or multiply rows of one.

        They run at node i, and are groups of their own where that would take more launches.
        """
        made = {self._nodes[j].outputs[0] for j in products}
        followers = list[_Found]()
        for j, (source, views) in self._reading(made).items():
            node = self._nodes[j]
            if node.op in _PRODUCTS:
                group = self._multiplying(j, i, route, source, made)
            else:
                is_gate = node.op == "gated" and len(made.intersection(node.inputs)) == 2
                group = self._found_at(j) if is_gate else None
            if group is None or not group.products or (group.heads and group.norm is None):
                continue
            value = self._nodes[group.products[0]].inputs[0]
            at = {k: tuple(self._products(k, value, route)) for k in (i, j)}
            totals = {self._totals(k, products) for k, products in at.items()}
            if at[i] == at[j] == group.products and len(totals) == 1:
                followers.append(msgspec.structs.replace(group, views=(*group.views, *views)))
        return tuple(followers)

    def _reading(self, values: Iterable[int]) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Return the nodes that read values, in order, with the value and the views between.

        Columns that are read where they are count as a view.
        """
        found = dict[int, tuple[int, tuple[int, ...]]]()
        left: list[tuple[int, int, tuple[int, ...]]] = [(value, value, ()) for value in values]
        while left:
            value, seen, views = left.pop()
            for j in self._readers[seen]:
                node = self._nodes[j]
                if node.op in VIEWS or (node.op == "slice" and node.outputs[0] in self._columns):
                    left.append((value, node.outputs[0], (*views, j)))
                elif j not in self._taken:
                    found[j] = value, views
        return dict(sorted(found.items()))

    def _with_next(self, i: int, group: _Found) -> _Found:
        """Return a group that runs at node i, with the norm of what it makes last, if it has one.

        Nothing runs between that and the group after it, so that its codes are not written over.
        What mixes the products of experts that it makes last runs here, too.
        """
        if group.followers:
            followers = (*group.followers[:-1], self._with_next(i, group.followers[-1]))
            return msgspec.structs.replace(group, followers=followers)
        if mix := self._mixing(i, group):
            self._taken.update(mix.members)
            return self._with_next(i, msgspec.structs.replace(group, followers=(mix,)))
        readers = (j for value in self._made_last(group) for j in self._readers[value])
        for j in (j for j in readers if self._nodes[j].op in _NORMS and j not in self._taken):
            if self._taken.issuperset(range(i + 1, j)):
                after = msgspec.structs.replace(self._found_at(j), n_before=group.n_before + 1)
                return msgspec.structs.replace(group, next=after)
        return group

    def _mixing(self, i: int, group: _Found) -> _Found | None:
        """Return what mixes a group's only product, of experts, if nothing runs in between."""
        if [self._nodes[j].op for j in group.products] != ["expert_matmul"]:
            return None
        for j in self._readers[self._nodes[group.products[0]].outputs[0]]:
            if self._nodes[j].op == "mix" and self._taken.issuperset(range(i + 1, j)):
                return self._found_at(j)
        return None

    def _made_last(self, group: _Found) -> list[int]:
        """Return the rows that a group makes last, by products or a mix of experts."""
        if group.totals:
            return list(self._nodes[group.totals[-1]].outputs)
        if group.maker is not None and self._nodes[group.maker].op == "mix":
            return list(self._nodes[group.maker].outputs)
        is_plain = not group.heads and all(self._nodes[j].op == "matmul" for j in group.products)
        return [self._nodes[j].outputs[0] for j in group.products] if is_plain else []

    def _reads(self, j: int, maker: int | None) -> bool:
        """Whether a node reads what another one makes."""
        return any(self._made_by.get(value, -1) == maker for value in self._nodes[j].inputs)

    def _only_reader(self, value: int) -> int | None:
        """Return the one node that reads a value once; None where the caller does, too."""
        readers = self._readers[value]
        return readers[0] if len(readers) == 1 and value not in self._outputs else None

    def _views(self, value: int) -> tuple[tuple[int, ...], int]:
        """Return the views through which alone a value is read, and the last one's value."""
        views: tuple[int, ...] = ()
        while True:
            reader = self._only_reader(value)
            if reader is None or self._nodes[reader].op not in VIEWS:
                return views, value
            views, value = (*views, reader), self._nodes[reader].outputs[0]

    def _route(self, value: int) -> int | None:
        """Return the route that reads a value."""
        routes = (j for j in self._readers[value] if self._nodes[j].op == "route")
        return next((j for j in routes if j not in self._taken), None)

    def _products(self, i: int, value: int, route: int | None = None) -> Iterator[int]:
        """Return the products of a value's rows as codes of one size, which can run at node i."""
        block = 0
        for j in self._readers[value]:
            node = self._nodes[j]
            if node.op not in _PRODUCTS or j in self._taken or node.inputs[0] != value:
                continue
            own = self._block_of(node)
            is_ready = all(self._is_there(other, i, route) for other in node.inputs[1:])
            if own and own == (block or own) and is_ready:
                block = own
                yield j

    def _is_there(self, value: int, i: int, route: int | None = None) -> bool:
        """Whether a value is made before node i, or by the route."""
        made = self._made_by.get(value, -1)
        return made < i or made == route

    def _totals(self, i: int, products: Sequence[int]) -> tuple[int, ...]:
        """Return what adds the only product to something that is there at node i."""
        is_plain = len(products) == 1 and self._nodes[products[0]].op == "matmul"
        return self._totals_of(products[0], i, 1) if is_plain else ()

    def _totals_of(self, part: int, i: int, most: int) -> tuple[int, ...]:
        """Return what adds a node's value to something that is there at node i, then that sum."""
        value = self._nodes[part].outputs[0]
        reader = self._only_reader(value)
        if reader is None or reader in self._taken or self._nodes[reader].op != "add":
            return ()
        (other,) = (given for given in self._nodes[reader].inputs if given != value)
        if not self._is_there(other, i):
            return ()
        return reader, *(self._totals_of(reader, i, most - 1) if most > 1 else ())

    def _ropes(self, node: Node) -> tuple[int, ...]:
        """Return what rotates queries and keys of attention, where one launch can do both."""
        if node.op != "attention" or len(node.inputs) < 2:
            return ()
        found = tuple(self._made_by.get(value, -1) for value in node.inputs[:2])
        if any(j < 0 or self._nodes[j].op != "rope" or j in self._taken for j in found):
            return ()
        q, k = (self._nodes[j] for j in found)
        are_alone = all(self._only_reader(rope.outputs[0]) is not None for rope in (q, k))
        return found if are_alone and _are_alike(q, k) else ()

    def _parts(self, node: Node) -> tuple[int, ...]:
        """Return what rotates the last parts of queries and keys, and what keys begin with.

        That is a norm; all of it lies where it is joined, and nobody else reads it.
        """
        if node.op != "attention" or len(node.inputs) != 2:
            return ()
        joined = [self._made_by.get(value, -1) for value in node.inputs]
        if any(j < 0 or self._nodes[j].op != "concat" for j in joined):
            return ()
        of_q, of_k = (
            [self._made_by.get(self._viewed(part)[1], -1) for part in self._nodes[j].inputs]
            for j in joined
        )
        found = (of_q[-1], of_k[-1], of_k[0])
        if len(of_k) != 2 or self._values[node.inputs[1]].shape[1] != 1 or min(found) < 0:
            return ()
        q, k, norm = (self._nodes[j] for j in found)
        columns = [self._columns.get(one.outputs[0]) for one in (q, k, norm)]
        are_there = all(
            lies is not None and lies.of == whole
            for lies, whole in zip(columns, (*node.inputs, node.inputs[1]), strict=True)
        )
        are_these = (q.op, k.op, norm.op) == ("rope", "rope", "rms_norm")
        if not (are_these and are_there and _are_alike(q, k)) or self._taken.intersection(found):
            return ()
        return found


def _are_alike(q: Node, k: Node) -> bool:
    """Whether one launch can rotate both queries and keys, by the same cosines and sines."""
    are_alike = (q.inputs[1], q.weights, q.attrs) == (k.inputs[1], k.weights, k.attrs)
    return are_alike and len(q.attrs["frequencies"]) <= MOST_PAIRS
