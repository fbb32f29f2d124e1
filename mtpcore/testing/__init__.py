"""The conformance kit: what tests of backends, trunks and drafters share."""

from mtpcore.testing.runner import Runner, Weights

__all__ = ["Runner", "Weights"]
