"""Cross: named contexts, the links between them, and acts that change all of them or none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtpcore.acts.guards import Guard, act, act_of_all
from mtpcore.acts.journal import Journal, Saved, Transaction
from mtpcore.boundary.arguments import Flag, Length, Probability, read, read_below
from mtpcore.boundary.arrays import RowsLike, integers
from mtpcore.boundary.copies import Uncopied
from mtpcore.cross.assembly import make_drafters
from mtpcore.cross.by_sequence import (
    Samplings,
    pairs_of,
    read_ids,
    read_names,
    read_processors,
    read_unfinished,
    setting_of,
)
from mtpcore.cross.codebooks import find_codebooks
from mtpcore.cross.encoder import find_encoder
from mtpcore.cross.owners import Owners
from mtpcore.cross.saving import dump_cross, load_cross
from mtpcore.cross.speculation import DraftSampler, DraftSettings, Overwritten, Speculation
from mtpcore.cross.verification import Verdicts
from mtpcore.declarations.checks import check_struct
from mtpcore.declarations.draft_tree import Draft
from mtpcore.declarations.proposer import Proposer
from mtpcore.declarations.spec import Link
from mtpcore.drafting.drafters import Drafter
from mtpcore.drafting.fed import FedRole
from mtpcore.errors import BatchError, LinkError, NoTokenError, spell
from mtpcore.links.links import Links
from mtpcore.runtime.adapters import AdapterChoice
from mtpcore.runtime.context import Context
from mtpcore.runtime.prompt import Prompt
from mtpcore.runtime.runner import GraphRunner
from mtpcore.runtime.saving import StateSource, check_empty, most_bytes, open_state, write_state
from mtpcore.sampling import LogitsProcessor, Sampling

__all__ = ["Cross"]

DrafterNames = Sequence[str]
T = TypeVar("T")
GREEDY = Sampling.greedy()


class Cross(Uncopied):
    """Contexts in named roles and the rows that pass between them.

    ``Cross(llm=a, draft=b)`` takes contexts and Proposers; the role ``llm`` is the target. A
    context belongs to one Cross. ``connect`` adds links; those that stand in a declaration are made
    at once: a drafter context's, and from a further graph of the target's family that has the role
    of its type, as ``encoder``. All acts touch all roles or none.

    One call at a time runs on a Cross, its contexts and its generators; another one meanwhile, of
    another thread or of something that the first calls back, is a BusyError and changes nothing.

    Raises
    ------
    LinkError
        Roles that do not fit together.
    """

    _instead = "link a new Context; load(seq, cross.save(seq)) gives its Cross a sequence's state"

    @act_of_all
    def __init__(self, **roles: Context | Proposer | FedRole) -> None:
        self.guard = Guard()
        self.journal = Journal(self.guard)
        if not isinstance(roles.get("llm"), Context):
            raise LinkError("a Cross has a context in the role llm", got=", ".join(roles))
        contexts = {n: r for n, r in roles.items() if isinstance(r, Context)}
        for name, context in contexts.items():
            if context.owner is not None:
                raise LinkError("context belongs to another Cross", where=name)
        if len({id(c) for c in contexts.values()}) != len(contexts):
            raise LinkError("one context in two roles", got=", ".join(contexts))
        self.contexts: dict[str, Context] = contexts
        self.llm = contexts["llm"]
        for name, context in contexts.items():
            if context.n_seq_max < self.llm.n_seq_max:
                raise LinkError(
                    "a role holds every sequence of the target",
                    where=name,
                    wanted=f"n_seq_max {self.llm.n_seq_max}",
                    got=f"n_seq_max {context.n_seq_max}",
                )
        graphs = {n: r.runner if isinstance(r, Context) else r for n, r in roles.items()}
        runners = {name: context.runner for name, context in contexts.items()}
        self.links = Links(runners)
        self.links.declare_target()
        drafters = make_drafters(graphs, self.links)
        codes, encoder = find_codebooks(runners, self.links), find_encoder(runners)
        self.speculation = Speculation(runners, self.links, drafters, codes=codes, encoder=encoder)
        self.owners = Owners(self.llm.runner, self.speculation.states, encoder)
        for context in contexts.values():
            context.join(self)

    def __repr__(self) -> str:
        roles = ", ".join([*self.contexts, *(n for n in self.drafters if n not in self.contexts)])
        return f"{type(self).__name__}({roles})"

    @property
    def drafters(self) -> Mapping[str, Drafter]:
        """What drafts, by role, in the order in which they are asked."""
        return self.speculation.drafters

    @property
    def invalid(self) -> int:
        """How many ids from drafters were not in the vocabulary."""
        return self.speculation.checker.invalid

    @property
    def paused(self) -> int:
        """How often a sequence got no further draft, as ``Stats.paused``."""
        drafters = self.drafters.values()
        return self.speculation.checker.paused + sum(drafter.paused for drafter in drafters)

    def transaction(self, seqs: Iterable[int], *things: Saved) -> Transaction:
        """Return an act that may change the sequences ``seqs`` in every role, and ``things``."""
        return self.journal.transaction([*self.speculation.saved(list(seqs)), *things])

    def settle(self, runner: GraphRunner, seq: int) -> None:
        """Bring a sequence of a drafter's ``runner`` up to date, in an act that is under way."""
        self.speculation.settle(runner, seq)

    @act
    def prepare(self, *, pack: bool = True) -> None:
        """Make the plans of all contexts and pack the weights now; see ``Context.prepare``."""
        pack = read(pack, Flag, "pack is yes or no")
        for context in self.contexts.values():
            context.runner.prepare(pack=pack)

    @property
    def bytes_to_pack(self) -> int:
        """Bytes of weights that are still to be packed; what contexts share counts for each."""
        return sum(context.runner.bytes_to_pack for context in self.contexts.values())

    @overload
    def draft(
        self,
        seq: int,
        k: int | None = None,
        sampling: Samplings | None = None,
        *,
        draft_sampler: DraftSampler | Mapping[int, DraftSampler] = "coupled",
        p_min: float | Mapping[int, float] = 0.0,
        drafters: DrafterNames | Mapping[int, DrafterNames] | None = None,
        processors: Mapping[int, LogitsProcessor] | None = None,
    ) -> Draft: ...
    @overload
    def draft(
        self,
        seq: Mapping[int, int],
        k: None = None,
        sampling: Samplings | None = None,
        *,
        draft_sampler: DraftSampler | Mapping[int, DraftSampler] = "coupled",
        p_min: float | Mapping[int, float] = 0.0,
        drafters: DrafterNames | Mapping[int, DrafterNames] | None = None,
        processors: Mapping[int, LogitsProcessor] | None = None,
    ) -> dict[int, Draft]: ...
    @act
    def draft(
        self,
        seq: int | Mapping[int, int],
        k: int | None = None,
        sampling: Samplings | None = None,
        *,
        draft_sampler: DraftSampler | Mapping[int, DraftSampler] = "coupled",
        p_min: float | Mapping[int, float] = 0.0,
        drafters: DrafterNames | Mapping[int, DrafterNames] | None = None,
        processors: Mapping[int, LogitsProcessor] | None = None,
    ) -> Draft | dict[int, Draft]:
        """Draft up to ``k`` tokens after the pending one.

        Parameters
        ----------
        seq : int, or mapping of seq to k
            One sequence, or several that draft together.
        k : int, optional
            How much to draft for one sequence; default: nothing. No drafter is asked for more than
            its declaration's ``limit``.
        sampling : Sampling, or mapping of seq to Sampling, optional
            The target's settings. Default: those that each sequence was chosen or drafted with
            last, greedy where there are none; so they need be given once.
        draft_sampler : {"coupled", "argmax"}, or mapping of seq to them
            The drafter shares the noise of the target's settings ("coupled"), or takes its own most
            probable token ("argmax").
        p_min : float, or mapping of seq to float
            A draft less probable than this ends the drafts.
        drafters : sequence of str, or mapping of seq to them, optional
            Names of drafters, or roles: the first of them that proposes anything drafts. Default:
            all, in the order in which they were linked.
        processors : mapping of seq to callable, optional
            What ``verify`` will be given: those that are a ``PureProcessor`` change the drafters'
            logits, too; the others do not, and fewer drafts are accepted.

        Returns
        -------
        list of int or DraftTree, or dict of seq to them
            A tree if the drafter makes trees; it is at most ``k`` deep.

        Raises
        ------
        BatchError
            A sequence has nothing to continue from; ``k`` beside a mapping, which has its own.
        LinkError
            No such drafter.
        """
        several = isinstance(seq, Mapping)
        if several and k is not None:
            raise BatchError(
                "one length beside a length for each sequence",
                wanted="k alone, or a mapping of seq to k alone",
                got=spell(k),
                fix="leave k out",
            )
        wanted = self._read_lengths(
            pairs_of(seq, "seq") if several else [(seq, 0 if k is None else k)]
        )
        least = {
            s: read(setting_of(p_min, s), Probability, "p_min is a probability") for s in wanted
        }
        plans = {
            s: self.speculation.plan_drafts(k, read_names(setting_of(drafters, s)))
            for s, k in wanted.items()
        }
        settings = self._settings(wanted, sampling)
        watching = read_processors({} if processors is None else processors)
        chosen_by = {
            s: DraftSettings(
                setting_of(settings, s), setting_of(draft_sampler, s), least[s], watching.get(s)
            )
            for s in wanted
        }
        with self.transaction(wanted):
            for s, one in chosen_by.items():
                self.speculation.states.sampler(s, one.sampling, one.draft_sampler)
            drafts = self.speculation.draft(plans, chosen_by.__getitem__).drafts
        return drafts if several else next(iter(drafts.values()))

    def _settings(self, seqs: Iterable[int], given: Samplings | None) -> Samplings:
        """Return the settings that were given, or those of each sequence."""
        if given is not None:
            return given
        states = self.speculation.states
        return {seq: states.checked(seq).sampling or GREEDY for seq in seqs}

    def _read_lengths(self, given: Iterable[tuple[Any, Any]]) -> dict[int, int]:
        """Return how much to draft for each sequence, checked."""
        wanted = {}
        for seq, n in given:
            if type(n) is not int or n < 0:  # each round asks this of each sequence
                what = "a draft's length is a number of tokens"
                n = read(n, Length, what, where=f"sequence {spell(seq)}")
            wanted[self.llm.check_seq(seq)] = n
        return wanted

    @act
    def verify(
        self,
        drafts: Mapping[int, Draft],
        sampling: Samplings | None = None,
        *,
        prefill: Mapping[int, Sequence[int] | Prompt] | None = None,
        unfinished: Collection[int] = (),
        processors: Mapping[int, LogitsProcessor] | None = None,
        logits: bool = False,
    ) -> Verdicts:
        """Let the target choose after every drafted token, all sequences in one batch.

        Parameters
        ----------
        drafts : mapping of seq to token ids or DraftTree
            Drafts after each pending token; may be empty. Of a tree the target takes the child
            that it chooses, as long as there is one.
        sampling : Sampling, or mapping of seq to Sampling, optional
            The target's settings. The verdict does not depend on the drafts. Default: as in
            ``draft``, so those that were drafted with.
        prefill : mapping of seq to token ids or Prompt, optional
            Prompt tokens of other sequences that run in the same batch. Of a Prompt the rows stand
            where it says, from 0 on; they run in a batch of their own.
        unfinished : collection of seq
            Those of ``prefill`` whose prompt goes on in a later batch: nothing is chosen after it,
            and no logits are made.
        processors : mapping of seq to callable, optional
            Called with the tokens and the logits of each token that the target comes to, before
            it chooses there; each may change the logits. See ``LogitsProcessor``.
        logits : bool
            Whether the output has the logits of all drafted rows. Where a token is chosen while
            they are computed they are not kept otherwise.

        Returns
        -------
        Verdicts
            A dict of seq to Verdict, for the sequences of ``drafts``; each waits for ``accept``.
            Its ``output`` is the pass's, with the rows of all sequences.

        Raises
        ------
        BatchError, CapacityError
            Ids that are no tokens, nothing pending, no room; nothing changed.
        NoTokenError
            Where the target comes to no token is left to choose; nothing changed. A generator ends
            the text there.
        """
        drafts = read_ids(drafts, "drafts")
        given = read_ids({} if prefill is None else prefill, "prefill")
        unfinished = read_unfinished(unfinished, given)
        watching = read_processors({} if processors is None else processors)
        keep: bool = read(logits, Flag, "logits is yes or no")
        settings = self._settings(drafts, sampling)
        with self.transaction({**drafts, **given}):
            verdicts = self.speculation.verify(
                drafts, settings, given, unfinished, watching, logits=keep
            )
            for seq, verdict in verdicts.items():
                _chosen(seq, None if verdict.is_stuck else verdict)
            return verdicts

    @act
    def accept(self, seq: int, n: int | None = None) -> None:
        """Commit the pending token and ``n`` drafts (default: all accepted); forget the rest.

        The token after them becomes the pending one.

        Raises
        ------
        LinkError
            Nothing was verified, or more drafts than were accepted.
        """
        seq = self.llm.check_seq(seq)
        with self.transaction((seq,)):
            self.speculation.accept(seq, n)

    @property
    def encoder(self) -> Context | None:
        """The context that reads prompts, where it is not the target; None where there is none."""
        spec = self.llm.model.spec
        return self.contexts.get(spec.encoder) if spec is not None and spec.encoder else None

    @act
    def encode(self, prompts: Mapping[int, Sequence[int]]) -> None:
        """Let the encoder read prompts, for the target to attend to.

        Parameters
        ----------
        prompts : mapping of seq to token ids
            Of sequences that hold nothing yet.

        Raises
        ------
        BatchError, CapacityError, LinkError
            There is no encoder, ids that are no tokens, or none, a sequence that was begun, or no
            room; nothing changed.
        """
        given, encoder = read_ids(prompts, "prompts"), self.speculation.encoder
        if not given:
            return
        if encoder is None:
            raise LinkError(
                "no role reads prompts for the target",
                got=", ".join(self.contexts),
                fix="link(Context(model)) makes an encoder's context where the model has one",
            )
        with self.transaction(given):
            encoder.read(given)

    @act
    def frame(
        self,
        seqs: Collection[int],
        sampling: Samplings = GREEDY,
        *,
        depth_sampling: Samplings | None = None,
        earlier: Mapping[int, ArrayLike] | None = None,
    ) -> dict[int, NDArray[np.int32]]:
        """Choose the frame of codes that follows the newest row of each sequence.

        For models that write codes (``Model.codebooks``). The first code is chosen from the
        target's logits, without marks but the one that ends a text; the others are chosen by the
        graph after it, all in one call. Nothing is stored: the frame becomes the next row when
        ``llm.process(Batch(codes=...))`` reads it. ``Frames`` does both for many requests.

        Parameters
        ----------
        seqs : collection of seq
        sampling : Sampling, or mapping of seq to Sampling
            Code i of the frame at place n is chosen with the noise of index ``n * count + i`` of
            the settings' stream, so it does not depend on what else runs.
        depth_sampling : Sampling, or mapping of seq to Sampling, optional
            Other settings for the codes after the first. Biases and penalties hold for the first
            codes alone. Default: those of ``sampling``.
        earlier : mapping of seq to int32[n], optional
            First codes of the frames before, for penalties.

        Returns
        -------
        dict of seq to int32[count]

        Raises
        ------
        LinkError
            The model writes no codes, or no role chooses them.
        BatchError
            A sequence has nothing to continue from.
        NoTokenError
            No code is left to choose.
        """
        codes = self.speculation.codes
        if codes is None:
            codebooks = self.llm.model.codebooks
            raise LinkError(
                "no role chooses codes",
                got=", ".join(self.contexts),
                fix="take a model that writes codes"
                if codebooks is None
                else f"add a role: Context(model, graph_type={codebooks.graph!r}), or let link() "
                "make it",
            )
        given: list[Any] = read(seqs, list[Any], "no sequences", wanted="their numbers")
        wanted = list(dict.fromkeys(map(self.llm.check_seq, given)))
        texts = {seq: integers(text, "codes") for seq, text in pairs_of(earlier or {}, "earlier")}
        with self.transaction(wanted):
            frames = codes.choose(self.speculation.states, wanted, sampling, depth_sampling, texts)
            return {seq: _chosen(seq, frame) for seq, frame in frames.items()}

    @act
    def connect(self, link: Link) -> None:
        """Let the rows of a tap of one role feed a slot of another.

        Parameters
        ----------
        link : Link
            Several links to one slot are joined along the last axis, in order.

        Raises
        ------
        LinkError
            No such role or slot, widths that do not fit, or a source that holds tokens whose rows
            were not kept.
        GraphError
            The source's graph does not offer the tap.
        """
        if not isinstance(link, Link):
            raise LinkError("connect() takes a Link", got=spell(link))
        check_struct(link, "Link", LinkError)
        self.links.connect(link)
        self.links.apply()

    @act
    def feed(
        self, role: str, tap: str | Sequence[str], seq: int, place: int, rows: RowsLike
    ) -> None:
        """Deliver rows from another program as if ``role`` had computed them.

        Parameters
        ----------
        role : str
            Whose rows they are.
        tap : str or sequence of str
            The tap, or those that are joined in one slot, in their order.
        rows : array_like or DLPack, shape (n, width)
            Hidden rows of places ``place``, ``place + 1``, ...

        Raises
        ------
        LinkError, BatchError
            Nothing reads this tap, or the rows do not fit or are not finite.
        """
        seq = self.llm.check_seq(seq)
        with self.transaction((seq,)):
            self.links.feed(role, tap, seq, place, rows)

    def tokens(self, seq: int) -> list[int]:
        """Return the tokens that the target has processed; -1 where it read an embedding row."""
        state = self.speculation.states.checked(seq)
        self.journal.settle()
        tokens: list[int] = state.history[: state.n].tolist()
        return tokens

    @act
    def pending(
        self,
        seq: int,
        sampling: Sampling | None = None,
        processor: LogitsProcessor | None = None,
    ) -> int | None:
        """Return the token that was chosen and not yet processed.

        Where none was chosen and the newest row has logits, it is chosen now, by ``sampling``
        (None: only look). ``processor`` may change the logits before, see ``LogitsProcessor``.

        Raises
        ------
        NoTokenError
            No token is left to choose.
        """
        self.journal.settle()
        if processor is not None:
            seq = self.llm.check_seq(seq)
            processor = read_processors({seq: processor})[seq]
        return self.speculation.states.pending(seq, sampling, processor)

    @act
    def rollback(self, seq: int, place: int) -> None:
        """Forget everything from ``place`` on, in every role.

        The pending token is forgotten, too. To go on, process what follows; or, to choose anew,
        roll back one further and process the last token again. All tokens up to those that are
        processed so count as prompt for the penalties.

        Recurrent layers have the states of some earlier places only. Where that of ``place`` is
        gone, the tokens after the nearest earlier one are processed again: the bits are the same,
        and it takes as long as a prompt of that many tokens.

        Roles that the target reads (an encoder) keep their rows: they are no consequence of what
        is taken back, and the target needs them again.

        Raises
        ------
        BatchError, CapacityError
            No such place, a role with a sliding window keeps too little, or rows would have to be
            processed again that came as embeddings; nothing changed.
        """
        seq = self.llm.check_seq(seq)
        state = self.speculation.states.checked(seq)
        place = read_below(
            place, state.n + 1, "rolls back to a place that is not there", where=f"sequence {seq}"
        )
        with self.transaction((seq,)):
            self.speculation.rollback(seq, place)

    @act
    def shift(self, seq: int, *, keep: int, drop: int) -> None:
        """Drop tokens in the middle of a sequence, in every role, to make room at its end.

        The tokens after them are processed again at their new positions, so that every role is in
        the state that it would have if it had never seen the dropped ones. That takes as long as
        reading the tokens that move. The pending token stays, and so does what counts as prompt for
        the penalties; later tokens are chosen as in a text of the new length.

        Parameters
        ----------
        seq : int
        keep : int
            How many of the first tokens stay where they are.
        drop : int
            How many tokens after them are dropped; one at least remains.

        Raises
        ------
        BatchError
            No such sequence or places; or, after those that are dropped, embedding rows or tokens
            that were given positions of their own.
        LinkError
            A draft is undecided, or the target reads rows of another role by their places.
        CapacityError
            A sliding window or a recurrent layer cannot go back to ``keep``, and there are such
            rows before it.
        """
        seq = self.llm.check_seq(seq)
        state, where = self.speculation.states.decided(seq), f"sequence {seq}"
        keep = read_below(keep, state.n + 1, "keeps more than there is", where=where)
        drop = read_below(drop, state.n - keep + 1, "drops more than there is", where=where)
        if drop and drop == state.n:
            raise BatchError("nothing would remain", where=where, fix="call remove()")
        if drop and self.links.inboxes("llm"):
            raise LinkError(
                "the target reads rows of another role by their places",
                where=where,
                fix="remove the sequence, and process what is to remain with its rows",
            )
        if drop:
            with self.transaction((seq,), Overwritten(self.speculation, seq)):
                self.speculation.shift(seq, keep, drop)

    @act
    def adapt(self, seq: int, adapters: AdapterChoice) -> None:
        """Give an empty sequence adapters of the target; see ``Context.adapt``.

        Drafters run without them: they read adapted hidden states, and their drafts are verified.

        Raises
        ------
        BatchError
            No such sequence or adapter, or a sequence that is not empty.
        """
        seq = self.llm.check_seq(seq)
        with self.transaction((seq,)):
            self.llm.runner.adapt(seq, adapters)

    @act
    def fork(self, seq: int, new: int, *, stream: int | None = None) -> None:
        """Let the empty sequence ``new`` continue from where ``seq`` is, in every role.

        Drafters first read what they have not read yet, so that both share what they make of it.

        Parameters
        ----------
        stream : int, optional
            Which noise ``new`` draws from until it is removed, whatever the stream of the settings
            it is given: its tokens are those of a request with this stream. A token that is
            pending was chosen before and stays. Default: as ``seq`` does.

        Raises
        ------
        BatchError, LinkError
            No such sequence, one that is not empty, or a draft that is undecided.
        SamplingError
            No number of a stream.
        """
        seq, new = self.llm.check_seq(seq), self.llm.check_seq(new)
        with self.transaction((seq, new)):
            self.speculation.states.decided(seq)
            self.speculation.settle_all(seq)
            self.speculation.fork(seq, new, stream)

    @act
    def remove(self, seq: int) -> None:
        """Forget a whole sequence, in every role."""
        seq = self.llm.check_seq(seq)
        with self.transaction((seq,)):
            self.speculation.remove(seq)

    @overload
    def save(self, seq: int, path: None = None) -> bytes: ...

    @overload
    def save(self, seq: int, path: str | PathLike[str]) -> None: ...

    @act
    def save(self, seq: int, path: str | PathLike[str] | None = None) -> bytes | None:
        """Save all that determines how a sequence goes on, to be loaded later, anywhere.

        That is every role's memory, rows that wait on links, tokens, the pending one or the logits
        that it will be chosen from, the stream, and the settings that it was chosen with last.
        Drafters first read what they have not read yet. What a proposer remembers is its own.

        Parameters
        ----------
        seq : int
        path : path, optional
            A file, which is replaced as a whole or not at all.

        Returns
        -------
        bytes or None
            The state, where there is no path.

        Raises
        ------
        BatchError, LinkError
            No such sequence, or one with an undecided draft.
        StateError
            The file cannot be written.
        """
        seq = self.llm.check_seq(seq)
        with self.transaction((seq,)):
            self.speculation.states.decided(seq)
            for runner in self.speculation.runners.values():
                runner.sequences.check_decided(seq)
                self.speculation.settle(runner, seq)
            return write_state(path, dump_cross(self.speculation, seq))

    @act
    def load(self, seq: int, source: StateSource) -> Sampling | None:
        """Let an empty sequence go on where a saved one was, in every role.

        Contexts may differ in ``n_ctx``, ``n_seq_max``, ``n_batch``, ``checkpoint_bytes`` and
        threads, and sequences in their numbers: with the settings that are returned the text that
        follows, drafts included, is the one that would have been written.

        Parameters
        ----------
        seq : int
        source : bytes or path
            What ``save`` returned, or the file that it wrote.

        Returns
        -------
        Sampling or None
            The settings with which its tokens were chosen last, where any were.

        Raises
        ------
        BatchError
            No such sequence, or one that is not empty.
        StateError
            A state that is damaged, cut short or of another format; or of other roles, another
            model file, plugin, backend or ``kv_dtype``; or that does not fit. Nothing changed.
        """
        seq = self.llm.check_seq(seq)
        self.journal.settle()
        runners = self.speculation.runners.values()
        check_empty(seq, max(runner.sequences.n_held(seq) for runner in runners))
        width = sum(box.width for box in self.links.boxes) + 1
        n_bytes = 4 * (width * self.llm.n_ctx + self.llm.model.hparams.n_vocab)
        state = open_state(source, most_bytes(runners) + 4 * n_bytes)
        with self.transaction((seq,)):
            self.speculation.remove(seq)
            return load_cross(self.speculation, seq, state)

    @act
    def digest(self, seq: int) -> dict[str, bytes]:
        """Return each role's digest of a sequence; drafters are settled first."""
        seq = self.llm.check_seq(seq)
        with self.transaction((seq,)):
            digests = {}
            for name, context in self.contexts.items():
                self.speculation.settle(context.runner, seq)
                digests[name] = context.runner.sequences.digest(seq)
            return digests


def _chosen(seq: int, chosen: T | None) -> T:
    """Return what was chosen for a sequence.

    Raises
    ------
    NoTokenError
        Nothing was left to choose.
    """
    if chosen is None:
        raise NoTokenError(
            "no token is left to choose",
            where=f"sequence {seq}",
            got="every logit minus infinity, or no number",
            fix="let settings and processors allow one token at least",
        )
    return chosen
