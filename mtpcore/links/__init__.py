"""Rows that pass from one context to another, addressed by sequence and position."""
