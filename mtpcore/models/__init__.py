"""Trunks and shared blocks, registered through the same hooks as any plugin's."""
