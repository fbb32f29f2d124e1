"""Rounds of draft and verify for many sequences."""

from mtpcore.decoding.generator import Generator
from mtpcore.decoding.length import default_length
from mtpcore.decoding.request import Request
from mtpcore.decoding.stats import Stats
from mtpcore.decoding.synthetic import SyntheticAcceptance

__all__ = ["Generator", "Request", "Stats", "SyntheticAcceptance", "default_length"]
