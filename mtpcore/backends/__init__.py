"""Backends: each lowers a Program to a plan of its own."""
