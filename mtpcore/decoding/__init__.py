"""Rounds of draft and verify for many sequences."""

from mtpcore.decoding.generator import Generator
from mtpcore.decoding.request import Request
from mtpcore.decoding.stats import Stats

__all__ = ["Generator", "Request", "Stats"]
