"""How long a property is searched: its share of what the profile spends."""

from hypothesis import settings

CI_EXAMPLES = 50
"""Examples of a property that asks for none, in the profile ``ci``."""


def searching(n_examples, **options):
    """Return settings with n examples in the profile ``ci``; another profile scales all alike.

    ``settings(max_examples=n)`` would be n in a deep search too.
    """
    n = n_examples * settings().max_examples // CI_EXAMPLES
    return settings(max_examples=max(n, 1), **options)
