"""How checkpoints of the families in ``mtpcore/models/families.py`` are published, group by group.

Each module is a table for each of some families that are named alike; all are put together from
``mtpcore/models/published.py``. ``tests/conversion/test_families.py`` holds them.
"""
