"""Drafters: heads, models and proposers that guess the next tokens."""
