"""Rounds of draft and verify for many sequences."""
