"""Settings shared by all tests."""

from hypothesis import settings

# A loaded machine is slow, not wrong.
settings.register_profile("flowright", deadline=None)
settings.load_profile("flowright")
