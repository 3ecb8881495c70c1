"""What all tests share: a cache folder of their own, so that they neither read nor fill the user's, and how hypothesis runs."""

import os
from tempfile import mkdtemp

from hypothesis import HealthCheck, settings

# Machines that run tests are busy: no example is wrong for being slow, and every run meets the same examples.
settings.register_profile("sartor", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sartor")


def pytest_configure(config):
    if "SARTOR_CACHE" not in os.environ or not hasattr(config, "workerinput"):
        cache = getattr(config, "cache", None)  # none where pytest runs without its cache
        os.environ["SARTOR_CACHE"] = str(cache.mkdir("sartor")) if cache else mkdtemp(prefix="sartor-tests-")
    os.environ.pop("SARTOR_ISA", None)
