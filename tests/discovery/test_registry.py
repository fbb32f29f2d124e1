"""The door: what is found, what is asked, what is refused, and who is named."""

import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import numpy as np
import pytest
import toy

from mtpcore import Batch, Context
from mtpcore.cross.finding import BUILT_IN
from mtpcore.declarations.spec import TreeShape
from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry, describe_plugins, load_registry
from mtpcore.errors import BackendError, ModelFileError, PluginError
from mtpcore.plugin import (
    BackendSpec,
    Block,
    Checkpoint,
    DrafterSpec,
    Feed,
    Fit,
    Heads,
    hookimpl,
)

ROOT = Path(__file__).parents[2]


def refused(*modules):
    with pytest.raises(PluginError) as caught:
        Registry.of(*modules)
    return caught.value


def test_hooks_are_asked_once_and_give_data():
    asked = []

    class Plugin:
        __name__ = "counting"

        @staticmethod
        @hookimpl
        def mtpcore_models():
            asked.append("models")
            return [toy.TRUNK]

    found = Registry.of(Plugin())
    assert found.models == found.models
    assert found.architectures["toy"].plugin == "counting"
    assert asked == ["models"]


def test_two_claims_of_one_model_name_both():
    class Plugin:
        __name__ = "usurper"

        @staticmethod
        @hookimpl
        def mtpcore_models():
            return [msgspec.structs.replace(toy.TRUNK, name="toy_again")]

    error = refused(toy, Plugin())
    assert "'toy'" in error.where
    assert "'usurper'" in error.where
    assert "architecture 'toy'" in error.what


def test_two_drafters_of_one_name():
    error = refused(toy, toy.offering(toy.HEAD))
    assert "'toy'" in error.where
    assert "'other'" in error.where


def test_one_plugin_with_two_drafters_of_one_name():
    error = refused(toy.offering(toy.HEAD, toy.HEAD))
    assert error.what == "two declarations of the drafter 'toy_head'"
    assert error.where == "plugin 'other'"
    assert "give one of them another name" in error.fix


@pytest.mark.parametrize(
    "name", ["auto", "Auto", "draft_model", "draft-model", "lookup", "LOOKUP", *BUILT_IN]
)
def test_a_name_by_which_nobody_could_ask_for_the_drafter(name):
    error = refused(toy.offering(toy.replaced(name=name)))
    assert "'other'" in error.where
    assert "has a meaning of its own" in error.what


def test_no_layer_has_a_negative_number():
    error = refused(
        toy.offering(toy.replaced(feeds=(Feed(slot="hidden", taps=("layer_input:-1",)),)))
    )
    assert error.what == "not a tap"


def test_a_plugin_without_a_hook():
    class Plugin:
        __name__ = "unmarked"

        @staticmethod
        def mtpcore_drafter():
            return []

    error = refused(Plugin())
    assert "'unmarked'" in error.where
    assert "@hookimpl" in error.wanted


def test_a_misspelt_hook():
    class Plugin:
        __name__ = "misspelt"

        @staticmethod
        @hookimpl
        def mtpcore_drafter():
            return []

    error = refused(Plugin())
    assert "'misspelt'" in error.where
    assert "mtpcore_drafter" in error.what
    assert "mtpcore_drafters" in error.wanted


def test_a_hook_that_asks_for_arguments():
    class Plugin:
        __name__ = "asking"

        @staticmethod
        @hookimpl
        def mtpcore_drafters(model):
            return []

    assert "'asking'" in refused(Plugin()).where


def test_a_hook_without_its_mark():
    class Plugin:
        __name__ = "unmarked"

        @staticmethod
        def mtpcore_drafters():
            return []

    error = refused(Plugin())
    assert "'unmarked'" in error.where
    assert "@hookimpl" in error.what


@pytest.mark.parametrize("wrong", [None, toy.HEAD, [toy.TRUNK], ["toy"], {"toy": 1}])
def test_wrong_objects(wrong):
    class Plugin:
        __name__ = "wrong"

        @staticmethod
        @hookimpl
        def mtpcore_drafters():
            return wrong

    error = refused(Plugin())
    assert "'wrong'" in error.where
    assert "DrafterSpec" in error.wanted


def test_a_hook_that_raises():
    class Plugin:
        __name__ = "raising"

        @staticmethod
        @hookimpl
        def mtpcore_drafters():
            raise ZeroDivisionError("oops")

    error = refused(Plugin())
    assert "'raising'" in error.where
    assert "ZeroDivisionError" in error.what


def _block(size=4, entries="", post_head="", **changes):
    """Return changes that make a block of the head, with others."""
    block = Block(size=size, mask=1, entries=entries, post_head=post_head)
    return {"shape": "block", "block": block, "feeds": (), **changes}


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"feeds": [Feed(slot="hidden")]}, "feeds"),
        ({"feeds": (Feed(slot="hidden", taps="hidden"),)}, "feeds[0].taps"),
        ({"feeds": (Feed(slot="hidden", taps=("Hidden!",)),)}, "Hidden!"),
        ({"feeds": (Feed(slot="hidden", taps=()),)}, "hidden"),
        ({"feeds": (Feed(slot="hidden", src="nowhere"),)}, "hidden"),
        ({"feeds": (Feed(slot="hidden"), Feed(slot="hidden"))}, "hidden"),
        ({"feeds": (Feed(slot="hidden", pairing="same-token", recycle="hidden"),)}, "hidden"),
        ({"fit": Fit(architectures={"toy"})}, "fit.architectures"),
        ({"fit": Fit(architectures=frozenset({"toy"}))}, "fit.tensors"),
        ({"heads": Heads(order="parallel")}, "heads.order"),
        ({"heads": Heads(hidden_from="target")}, "heads.hidden_from"),
        ({"limit": 0}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": "3"}, "limit"),
        ({"acceptance": (0.9, 0.5)}, "acceptance"),
        ({"shape": "bloc"}, "shape"),
        ({"shape": "block"}, "block"),
        ({"block": Block(size=4, mask=1)}, "block"),
        (_block(entries="entries"), "block"),
        (_block(entries="head", post_head="head", graphs=(("head", toy.head),)), "block"),
        (_block(heads=Heads(count=2)), "heads"),
        (_block(size=4.0), "block.size"),
        (_block(feeds=(Feed(slot="hidden"),)), "hidden"),
        (_block(feeds=(Feed(slot="hidden", mask="x", recycle="hidden"),)), "hidden"),
        (_block(feeds=(Feed(slot="hidden", mask="x", src="draft"),)), "hidden"),
        (_block(feeds=(Feed(slot="hidden", mask="x", pairing="same-token"),)), "hidden"),
        ({"feeds": (Feed(slot="hidden", mask="x", recycle="hidden"),)}, "hidden"),
        ({"shape": "tree"}, "tree"),
        ({"tree": TreeShape(depth=2, width=2, n_nodes=3)}, "tree"),
        ({"shape": "proposer"}, "proposer"),
        ({"standalone": True}, "standalone"),
        ({"build": "build"}, "build"),
        ({"name": "two words"}, "name"),
        ({"graphs": (("draft", toy.head),)}, "graphs"),
        ({"checkpoint": Checkpoint(architectures=frozenset({"Toy"}))}, "checkpoint.heads"),
        ({"checkpoint": Checkpoint(architectures="Toy", heads="{n}")}, "checkpoint.architectures"),
        ({"layouts": (Checkpoint(architectures=frozenset({"Toy"}), heads="{n}"),)}, "layouts"),
    ],
)
def test_declarations_are_checked_field_by_field(changes, where):
    error = refused(toy.offering(toy.replaced(**{"name": "checked", **changes})))
    assert "'other'" in error.where
    assert where in error.where


def test_a_variant_names_a_drafter_of_its_plugin():
    def named(name, of=""):
        return toy.replaced(name=name, variant_of=of)

    head, variant = named("head"), named("variant", "head")
    assert len(Registry.of(toy.offering(head, variant)).drafters) == 2
    for wrong in ((variant,), (head, variant, named("third", "variant"))):
        error = refused(toy.offering(*wrong))
        assert "variant_of" in error.where
        assert error.wanted == ("head" if head in wrong else "another drafter of this plugin")


@pytest.mark.parametrize(
    "shape",
    [
        {"shape": "chain"},
        {"shape": "tree", "tree": TreeShape(depth=2, width=2, n_nodes=3)},
    ],
    ids=lambda shape: shape["shape"],
)
def test_only_a_proposer_drafts_without_a_graph(shape):
    error = refused(toy.offering(toy.replaced(build=None, **shape)))
    assert error.where.endswith("build")
    assert shape["shape"] in error.wanted


def test_a_proposer_is_a_declaration_too():
    spec = DrafterSpec(name="script", fit=Fit(), shape="proposer", proposer=lambda model: None)
    assert Registry.of(toy.offering(spec)).drafters[0].name == "script"


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"build": toy.head}, "build"),
        ({"graphs": (("further", toy.head),)}, "graphs"),
        ({"ties": toy.HEAD.ties}, "ties"),
        ({"heads": Heads(count=2)}, "heads"),
        ({"vocabulary": "d2t"}, "vocabulary"),
        ({"hparams": toy.Hparams}, "hparams"),
        ({"standalone": True}, "standalone"),
        ({"fit": Fit(targets=frozenset({"toy"}))}, "fit.targets"),
        ({"fit": Fit(sidecars=("toy-*.gguf",))}, "fit.sidecars"),
    ],
)
def test_a_proposer_declares_nothing_that_only_graphs_have(changes, where):
    plain = {"name": "script", "fit": Fit(), "shape": "proposer", "proposer": lambda model: None}
    error = refused(toy.offering(DrafterSpec(**plain | changes)))
    assert "nothing reads these fields" in error.what
    assert error.where.endswith(f": {where}")


# Installed distributions


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Put distributions on the path: name, entry-point name, module, its source."""

    def install(distribution, entry, module, source=None):
        info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[mtpcore]\n{entry} = {module}\n")
        if source is not None:
            (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))

    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield install
    for name in set(sys.modules) - before:
        if not name.startswith("mtpcore"):
            del sys.modules[name]


DRAFTER = """
    from mtpcore.plugin import DrafterSpec, Fit, hookimpl

    @hookimpl
    def mtpcore_drafters():
        return [DrafterSpec(name="{0}", fit=Fit(), shape="proposer", proposer=lambda model: None)]
"""


BACKEND = """
    from mtpcore.plugin import BackendSpec, hookimpl

    @hookimpl
    def mtpcore_backends():
        return [BackendSpec(name="{0}", source="{1}")]
"""
ITS_CLASS = """
    from mtpcore.backends.reference import ReferenceBackend

    class Mine(ReferenceBackend):
        name = "mine"

    class Nothing:
        pass
"""


def test_a_backend_of_a_plugin_is_found(installed, tmp_path):
    """It is imported when a context asks for it, and computes what a context of it runs."""
    installed("mtpcore-mine", "mine", "mine_plugin", BACKEND.format("mine", "mine_classes:Mine"))
    (tmp_path / "mine_classes.py").write_text(textwrap.dedent(ITS_CLASS))
    known = load_registry()
    assert [spec.name for spec in known.backends] == ["cpu", "reference", "cuda", "mine"]
    assert "mine_classes" not in sys.modules
    with load_model("demo", plugins=known) as model:
        mine, reference = (Context(model, backend=name) for name in ("mine", "reference"))
        assert mine.backend is Context(model, backend="mine").backend
        assert (mine.backend.name, type(mine.backend).__module__) == ("mine", "mine_classes")
        made = [one.process(Batch([1, 2, 3])).logits for one in (mine, reference)]
        assert np.array_equal(*made)
        with pytest.raises(BackendError, match="wanted cpu, reference, cuda, mine; got 'gpu'"):
            Context(model, backend="gpu")


@pytest.mark.parametrize("name", ["cpu", "reference", "cuda"])
def test_backends_of_mtpcore_are_those_of_any_registry(name):
    (spec,) = (spec for spec in Registry.of(toy).backends if spec.name == name)
    assert spec.plugin == "backends"
    assert spec in load_registry("").backends


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("mine_missing:Mine", "cannot be imported: ModuleNotFoundError"),
        ("mine_classes:Other", "cannot be imported: AttributeError"),
        ("mine_classes:Nothing", "what a backend's class made is none"),
    ],
)
def test_a_backend_that_is_not_where_its_declaration_says(installed, tmp_path, source, said):
    installed("mtpcore-mine", "mine", "mine_plugin", BACKEND.format("mine", source))
    (tmp_path / "mine_classes.py").write_text(textwrap.dedent(ITS_CLASS))
    with (
        load_model("demo", plugins=load_registry()) as model,
        pytest.raises(BackendError, match=said) as caught,
    ):
        Context(model, backend="mine")
    assert caught.value.where == "'mine' of plugin 'mine'"


def backends_of(*specs):
    class Plugin:
        __name__ = "mine"

        @staticmethod
        @hookimpl
        def mtpcore_backends():
            return list(specs)

    return Plugin()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "cpu"}, "two plugins claim the backend 'cpu'"),
        ({"name": "a:1"}, "a name is an identifier"),
        ({"source": "classes"}, "not where a class is"),
        ({"source": "classes:"}, "not where a class is"),
        ({"source": 3}, "wrong type"),
    ],
)
def test_declarations_of_backends_that_are_refused(fields, said):
    spec = BackendSpec(**{"name": "mine", "source": "classes:Mine"} | fields)
    error = refused(backends_of(spec))
    assert said in error.what
    assert "'mine'" in error.where


def test_two_backends_of_one_name_are_refused():
    spec = BackendSpec(name="mine", source="classes:Mine")
    other = msgspec.structs.replace(spec, source="classes:Other")
    assert "two declarations of the backend 'mine'" in refused(backends_of(spec, other)).what


GONE = """
from mtpcore.plugin import DrafterSpec, Fit, hookimpl

def declare():
    return DrafterSpec(name="gone", fit=Fit(), positions="same")

{at_import}

@hookimpl
def mtpcore_drafters():
    return [declare()]
"""


@pytest.mark.parametrize("at_import", ["declare()", ""])
def test_a_field_that_there_is_no_more_is_named(installed, at_import):
    """When the plugin is imported, or when it is asked."""
    installed("far-gone", "gone", "far_gone", GONE.format(at_import=at_import))
    (plugin,) = (p for p in describe_plugins() if p.name == "gone")
    assert "'gone'" in plugin.error.where
    assert "'positions'" in plugin.error.what


def test_a_name_that_there_is_no_more_is_named(installed):
    installed("far-gone", "gone", "far_gone", "from mtpcore.plugin import KVPolicy")
    (plugin,) = (p for p in load_registry().broken if p.name == "gone")
    assert "'gone'" in plugin.error.where
    assert "'KVPolicy'" in plugin.error.what


def names(found):
    return {plugin.name for plugin in found.plugins}


def test_plugins_are_found_by_entry_points(installed):
    installed("far-away", "far", "far_away", DRAFTER.format("far"))
    found = load_registry()
    assert "far" in {spec.name for spec in found.drafters}
    (plugin,) = (p for p in found.plugins if p.name == "far")
    assert plugin.distributions == ("far-away 1.0",)
    assert not plugin.first_party


def test_switch_chooses_third_party_plugins(installed):
    installed("far-away", "far", "far_away", DRAFTER.format("far"))
    installed("near-by", "near", "near_by", DRAFTER.format("near"))
    assert {"far", "near"} <= names(load_registry(None))
    assert not {"far", "near"} & names(load_registry(""))
    assert {"far", "near"} & names(load_registry(" far, ")) == {"far"}
    assert "trunks" in names(load_registry(""))
    assert load_registry(None).left_out == ()
    assert {"far", "near"} & {*load_registry("near").left_out} == {"far"}
    assert "far (MTPCORE_PLUGINS)" in load_registry("near").absent
    with pytest.raises(PluginError) as caught:
        load_registry("distant")
    assert "far" in caught.value.wanted


def test_one_plugin_through_two_distributions_is_loaded_once(installed):
    installed("far-away", "far", "far_away", DRAFTER.format("far"))
    installed("far-bundle", "far", "far_away")
    found = load_registry()
    (plugin,) = (p for p in found.plugins if p.name == "far")
    assert set(plugin.distributions) == {"far-away 1.0", "far-bundle 1.0"}


def test_two_plugins_of_one_name(installed):
    installed("far-away", "far", "far_away", DRAFTER.format("far"))
    installed("far-off", "far", "far_off", DRAFTER.format("off"))
    with pytest.raises(PluginError) as caught:
        load_registry()
    assert "far-away 1.0" in caught.value.where
    assert "far-off 1.0" in caught.value.where
    assert [p.error is None for p in describe_plugins() if p.name == "far"] == [True, False]


RAISING = DRAFTER.format("broken").replace("return [", "return [0 / 0] + [")
MISSPELT = DRAFTER.format("broken").replace("drafters()", "drafter()")
SOMETHING = DRAFTER.format("broken").replace("return [", "return 3 or [")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nothing_of_this_name", "nothing_of_this_name"),
        (RAISING, "the hook raised ZeroDivisionError"),
        (MISSPELT, "no such hook"),
        (SOMETHING, "returned something else"),
    ],
)
def test_a_broken_plugin_does_not_stop_others(installed, caplog, tmp_path, code, reason):
    installed("broken-thing", "broken", "broken_thing", code)
    installed("far-away", "far", "far_away", DRAFTER.format("far"))
    found = load_registry()
    assert "far" in {spec.name for spec in found.drafters}
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "broken" in warning
    assert reason in warning
    assert "MTPCORE_PLUGINS=" in warning
    (plugin,) = found.broken
    assert plugin.name == "broken"
    path = toy.write(tmp_path / "toy.gguf", toy.trunk_tensors(), architecture="unheard_of")
    with pytest.raises(ModelFileError) as caught:
        load_model(path, plugins=found)
    assert "left out: broken (" in caught.value.fix
    assert reason in caught.value.fix


def test_describe_plugins_shows_broken_ones_and_raises_nothing(installed):
    installed("broken-thing", "broken", "broken_thing", "import nothing_of_this_name")
    installed(
        "bad-hook", "bad", "bad_hook", DRAFTER.format("bad").replace("drafters()", "drafter()")
    )
    shown = {plugin.name: plugin for plugin in describe_plugins()}
    assert not shown["broken"].imported
    assert "no such hook" in shown["bad"].error.what
    assert shown["trunks"].error is None
    assert {plugin.name for plugin in load_registry().broken} == {"bad", "broken"}
    assert "bad" not in names(load_registry(""))


def test_the_environment_chooses(tmp_path):
    code = (
        "from mtpcore.discovery.registry import registry; "
        "print(*sorted(p.name for p in registry().plugins if not p.first_party))"
    )
    (tmp_path / "far-1.0.dist-info").mkdir()
    (tmp_path / "far-1.0.dist-info/METADATA").write_text("Name: far\nVersion: 1.0\n")
    (tmp_path / "far-1.0.dist-info/entry_points.txt").write_text("[mtpcore]\nfar = far_away\n")
    (tmp_path / "far_away.py").write_text(textwrap.dedent(DRAFTER.format("far")))

    kept = ("LD_PRELOAD", "ASAN_OPTIONS")
    preloaded = {name: os.environ[name] for name in kept if name in os.environ}

    def run(**environment):
        path = f"{tmp_path}:{ROOT}:{ROOT / 'plugins/glm_nextn'}"
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**preloaded, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()

    assert "far" in run()
    assert run(MTPCORE_PLUGINS="") == []
    assert run(MTPCORE_PLUGINS="far") == ["far"]
