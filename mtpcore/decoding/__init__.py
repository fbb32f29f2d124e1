"""Rounds of draft and verify for many sequences."""

from mtpcore.decoding.frames import FrameRequest, Frames
from mtpcore.decoding.generator import Generator
from mtpcore.decoding.lengths.controller import Controller
from mtpcore.decoding.lengths.length import controller_for, default_length
from mtpcore.decoding.lengths.policy import LengthDecision, LengthPolicy, Proposed, Round
from mtpcore.decoding.lengths.prospects import Expectation
from mtpcore.decoding.logprobs import TokenLogprobs
from mtpcore.decoding.options import REQUEST_DEFAULTS, RequestOptions
from mtpcore.decoding.request import FinishReason, Request
from mtpcore.decoding.simulated import SimulatedAcceptance
from mtpcore.decoding.stats import Stats

__all__ = [
    "REQUEST_DEFAULTS",
    "LengthDecision",
    "Controller",
    "Expectation",
    "FinishReason",
    "FrameRequest",
    "Frames",
    "Generator",
    "LengthPolicy",
    "Proposed",
    "Request",
    "RequestOptions",
    "Round",
    "Stats",
    "SimulatedAcceptance",
    "TokenLogprobs",
    "controller_for",
    "default_length",
]
