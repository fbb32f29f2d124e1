"""An error keeps what it says on its way out to the caller."""

import pickle

import pytest

from mtpcore import errors
from mtpcore.errors import LinkError, MtpcoreError, PluginError

FAMILY = [e for e in map(errors.__dict__.get, errors.__all__) if isinstance(e, type)]


class Elsewhere(PluginError):
    """A subclass of somebody else's, made of other arguments."""

    def __init__(self, number):
        super().__init__("odd number", got=number)
        self.number = number


@pytest.mark.parametrize("kind", FAMILY)
def test_an_error_seen_from_further_out_is_the_same_error(kind):
    error = kind("too wide", where="slot 'hidden'", wanted=8, got=9, fix="narrow it")
    outer = error.at("drafter 'toy'", fix="buy another one")
    assert type(outer) is kind
    assert outer.where == "drafter 'toy': slot 'hidden'"
    assert (outer.what, outer.wanted, outer.got, outer.fix) == ("too wide", 8, 9, "narrow it")
    text = "drafter 'toy': slot 'hidden': too wide; wanted 8; got 9\n  fix: narrow it"
    assert str(outer) == text
    assert error.where == "slot 'hidden'"


def test_a_place_stands_alone_where_the_error_names_none():
    assert LinkError("too wide").at("drafter 'toy'").where == "drafter 'toy'"


def test_a_fix_is_added_only_where_there_is_none():
    assert LinkError("too wide").at("x", fix="narrow it").fix == "narrow it"
    assert "fix: narrow it" in str(LinkError("too wide").at("x", fix="narrow it"))
    assert LinkError("too wide").at("x").fix == ""


def test_what_a_subclass_adds_stays():
    error = Elsewhere(7)
    error.add_note("seen on a Monday")
    outer = error.at("plugin 'odd'")
    assert (type(outer), outer.number, outer.got) == (Elsewhere, 7, 7)
    assert outer.__notes__ == ["seen on a Monday"]


def test_an_error_survives_pickling():
    error = LinkError("too wide", wanted=8, got=9).at("drafter 'toy'")
    found = pickle.loads(pickle.dumps(error))
    assert isinstance(found, MtpcoreError)
    assert (str(found), found.where, found.got) == (str(error), error.where, 9)
