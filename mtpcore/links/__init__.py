"""Links, which carry rows from one context to another, by sequence and place."""
