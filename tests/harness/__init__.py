"""Test doubles and machines shared by tests; nothing here is collected."""
