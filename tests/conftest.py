"""What all tests share: a cache folder of their own, so that they neither read nor fill the user's."""

import os


def pytest_configure(config):
    if "SARTOR_CACHE" not in os.environ or not hasattr(config, "workerinput"):
        os.environ["SARTOR_CACHE"] = str(config.cache.mkdir("sartor"))
    os.environ.pop("SARTOR_ISA", None)
