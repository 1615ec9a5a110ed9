"""Settings for all tests."""

from hypothesis import settings

# Machines that run the suite are slow and shared: time is no reason to fail an example.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
