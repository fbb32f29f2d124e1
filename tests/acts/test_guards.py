"""One act at a time: a second one is refused, wherever it comes from, and changes nothing."""

import inspect
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness.acts import CALLS, NOT_ACTS, PROMPT, SAMPLING, Room, spell
from harness.held import Held
from harness.interrupted import raising_alarms

import mtpcore
from mtpcore import Batch, BusyError, Context, Cross, Generator, MtpcoreError, link, load_model
from mtpcore.acts.guards import Guard, act, holding
from mtpcore.acts.journal import Journal
from mtpcore.decoding import Controller, Expectation

CORE = str(Path(mtpcore.__file__).parent)


@pytest.fixture(autouse=True)
def one_transaction(monkeypatch):
    """Whatever a test here tries: no transaction is asked for in the middle of another."""
    begin, under_way = Journal.transaction, []

    def watch(journal, things):
        made = begin(journal, things)
        under_way.append(journal._open)
        return made

    monkeypatch.setattr(Journal, "transaction", watch)
    yield
    assert {*under_way} <= {None}


def attempt(call, *args):
    """Return what a call raised of its own accord; None where it did not."""
    try:
        call(*args)
    except MtpcoreError as error:
        return type(error)
    return None


def refusals(room):
    """Try every act; return what each raised."""
    found = {}
    for one, call in CALLS.items():
        try:
            found[spell(one)] = call(room)
        except BusyError as error:
            found[spell(one)] = error
    return found


def assert_all_refused(found):
    assert len(found) == len(CALLS)
    assert {name: what for name, what in found.items() if type(what) is not BusyError} == {}


@pytest.mark.parametrize("owner", NOT_ACTS, ids=lambda owner: owner.__name__)
def test_every_public_method_is_an_act_or_only_looks(owner):
    methods = {
        name: method
        for name, method in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_")
    }
    acts = {name for name, method in methods.items() if hasattr(method, "__wrapped__")}
    assert acts | NOT_ACTS[owner] == set(methods)
    assert acts & NOT_ACTS[owner] == set()
    assert {methods[name] for name in acts} == set(CALLS) & set(methods.values())


@pytest.mark.parametrize("running", CALLS, ids=spell)
def test_all_pairs_of_calls(running):
    """The first act waits in the middle; the second is refused and changes nothing."""
    room, alone = Room(), Room()
    before = room.state()
    with Held(running, lambda: CALLS[running](room)) as held:
        found = refusals(room)
        assert room.state() == before
    assert_all_refused(found)
    for name, error in found.items():
        assert f"{spell(running)} is running in thread 'A'; {name} was called" in str(error)
        assert "from thread 'MainThread'" in str(error)
        assert error.fix
    raised = attempt(CALLS[running], alone)
    assert (type(held.raised) if held.raised else None) is raised
    assert room.state() == alone.state()


def test_a_pass_that_has_given_up_the_gil_is_in_the_middle():
    llm = Context(load_model("demo"), 2048, n_seq_max=2, threads=1)
    llm.process(Batch.of(PROMPT, seq=1))
    digest, refused = llm.digest(1), set()
    calls = {"digest": (0,), "remove": (0,), "rewind": (1, 3), "fork": (0, 1)}
    with ThreadPoolExecutor(1) as pool:
        for _ in range(50):
            running = pool.submit(llm.process, Batch.of([7] * 2000, outputs="none"))
            for name in [*calls] * 5:
                if attempt(getattr(llm, name), *calls[name]) is BusyError:
                    refused.add(name)
            running.result()
            llm.remove(0)
            if refused == calls.keys():
                break
    assert refused == calls.keys()
    assert llm.digest(1) == digest


@pytest.mark.parametrize("made", [Cross, link])
def test_a_context_that_is_running_is_not_linked(made):
    model = load_model("demo")
    head = Context(model, 64, graph_type="draft", threads=1)
    llm = Context(model, 64, threads=1)
    taps, wanted = llm.taps, "Cross() was called from thread"

    def join():
        return link(llm) if made is link else Cross(draft=head, llm=llm)

    with Held(Context.process, lambda: llm.process(Batch.of(PROMPT))):
        with pytest.raises(BusyError, match=r"Context\.process\(\)") as caught:
            join()
        assert wanted in str(caught.value)
    assert (llm.taps, llm.owner, head.owner) == (taps, None, None)
    llm.remove(0)
    assert join().llm is llm


def test_a_context_that_is_being_linked_runs_nothing():
    llm = Context(load_model("demo"), 64, threads=1)
    with (
        Held(Cross.__init__, lambda: link(llm)) as held,
        pytest.raises(BusyError, match=r"^Cross\(\) is running in thread 'A'"),
    ):
        llm.process(Batch.of(PROMPT))
    assert held.raised is None
    with (
        Held(Context.process, lambda: llm.process(Batch.of(PROMPT))),
        pytest.raises(BusyError, match=r"Context\.process\(\)"),
    ):
        llm.owner.draft(0, 1)


class Hook:
    """Something of the caller's that an act calls back, and that tries to make other acts."""

    def __init__(self):
        self.room, self.found = None, []

    def __call__(self, *args):
        if self.room is not None:
            assert len(self.room.cross.tokens(1)) == len(PROMPT)  # looking is no act
            self.found.append(refusals(self.room))

    def propose(self, seq, tokens, k):
        self()
        return [1, 2][:k]


class Policy(Controller):
    """Lengths as ever, and a hook in each place where it is called."""

    hooks: dict

    def choose(self, limits, fixed):
        self.hooks["choose"]()
        return super().choose(limits, fixed)

    def observe(self, done):
        self.hooks["observe"]()
        return super().observe(done)

    def forget(self, seq):
        self.hooks["forget"]()
        super().forget(seq)


def room_with(kind, hook):
    """Return a room in which the hook is called back, and text that was written meanwhile."""
    settings = {}
    policy = Policy({"": Expectation(2)}) if kind in ("choose", "observe", "forget") else None
    if policy is not None:
        policy.hooks = dict.fromkeys(("choose", "observe", "forget"), Hook()) | {kind: hook}
        settings["lengths"] = policy
    return Room([hook] if kind == "propose" else "auto", **settings)


def write(room):
    """Write on, also a text whose lengths are chosen."""
    other = room.generator.add([4, 4], max_tokens=8, draft="auto", ignore_eos=True)
    while room.generator.active:
        room.generator.step()
    return room.request.tokens, other.tokens


KINDS = ["propose", "choose", "observe", "forget"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_act_calls_back_can_make_none(kind):
    hook = Hook()
    alone, room = write(room_with(kind, hook)), room_with(kind, hook)
    hook.room = room
    assert write(room) == alone
    assert hook.found
    for found in hook.found:
        assert_all_refused(found)
    message = str(hook.found[0]["Generator.step()"])
    assert "Generator.step() is running in thread 'MainThread'" in message
    assert "Generator.step() was called in the middle of it" in message


def test_another_context_may_run_in_a_callback():
    """A proposer with a model of its own has a guard of its own."""
    own = Context(load_model("demo"), 64, threads=1)

    class Proposer:
        def propose(self, seq, tokens, k):
            own.remove(0)
            return own.process(Batch.of(tokens.tolist())).logits[-1].argsort()[-k:].tolist()

    room = Room([Proposer()])
    assert len(room.cross.draft(1, 2, SAMPLING)) == 2


def at_every_line(running, call, do):
    """Call, and do something at every line while an act is running, as a signal handler would.

    A ``__del__`` comes at such places, too. Returns what each try returned.
    """
    found, code, inside = [], running.__wrapped__.__code__, False

    def trace(frame, event, argument):
        nonlocal inside
        if not frame.f_code.co_filename.startswith(CORE):
            return None
        if frame.f_code is code and event in ("call", "return"):
            inside = event == "call"
        if event == "line" and inside:
            sys.settrace(None)
            found.append(do())
            sys.settrace(trace)
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return found


@pytest.mark.parametrize("running", [Context.process, Cross.verify, Generator.step], ids=spell)
def test_a_signal_handler_makes_no_act_in_the_middle_of_another(running):
    room, alone = Room(), Room()
    CALLS[running](alone)
    found = at_every_line(
        running,
        lambda: CALLS[running](room),
        lambda: {attempt(CALLS[one], room) for one in CALLS},
    )
    assert len(found) > 20
    assert set.union(*found) == {BusyError}
    assert room.state() == alone.state()


class Bare:
    """Something with a guard and an act."""

    def __init__(self):
        self.guard = Guard()

    @act
    def count(self):
        return [one + 1 for one in range(4)]


def interrupted(call, n):
    """Raise KeyboardInterrupt before bytecode n of mtpcore's and of this file; say if it came."""
    files = (CORE, __file__)

    def trace(frame, event, argument):
        nonlocal n
        if not frame.f_code.co_filename.startswith(files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            n -= 1
            if n < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def make_bare():
    bare = Bare()
    return bare.count, bare.count


def make_context():
    llm = Context(load_model("demo"), 64, n_seq_max=2, threads=1)
    llm.prepare()
    return lambda: llm.process(Batch.of(PROMPT, seq=0, pos=llm.length(0))), lambda: llm.digest(1)


def make_round():
    room = Room()
    return room.generator.step, lambda: room.generator.add([1])


@pytest.mark.parametrize(
    ("make", "step"),
    [(make_bare, 1), (make_context, 29), (make_round, 307)],
    ids=["bare", "process", "round"],
)
def test_an_interrupt_at_any_bytecode_leaves_the_guard_free(make, step):
    """Another thread may make the next act, so nothing of the first one stands."""
    with ThreadPoolExecutor(1) as pool:
        n, came = 0, True
        while came:
            call, afterwards = make()
            came = interrupted(call, n)
            pool.submit(afterwards).result()
            n += step
    assert n > 30


def test_signals_leave_the_guard_free():
    llm = Context(load_model("demo"), 512, n_seq_max=2, threads=1)
    llm.prepare()
    raised = 0

    end = time.monotonic() + 1.0
    with raising_alarms(), ThreadPoolExecutor(1) as pool:
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + raised % 97))
                while True:
                    llm.process(Batch.of([7] * 8, outputs="none"))
                    llm.remove(0)
            except KeyboardInterrupt:
                raised += 1
            pool.submit(llm.remove, 0).result()
    assert raised > 5


def test_no_signal_leaves_a_lock_taken():
    """At whichever moment: while it waits, when it is taken, and within."""
    chance, lock, n_raised, is_over = random.Random(2), threading.RLock(), 0, threading.Event()

    def take_turns():
        while not is_over.is_set():
            holding(lock, sum, [1, 2])

    other = threading.Thread(target=take_turns, daemon=True)
    with raising_alarms():
        other.start()
        while n_raised < 300:
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 2e-4))
                    while True:
                        assert holding(lock, max, [1, 2], default=0) == 2
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                n_raised += 1
    is_over.set()
    other.join(60)
    assert not other.is_alive()


def test_what_a_call_raises_leaves_its_lock_free():
    lock = threading.Lock()
    with pytest.raises(ZeroDivisionError):
        holding(lock, divmod, 1, 0)
    assert not lock.locked()
