"""pytest's settings for these tests."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def pytest_sessionfinish(session, exitstatus):
    """A file that is skipped as a whole (a package that is not installed) collects nothing, which is an error
    to pytest."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == 5 and reporter and reporter.stats.get("skipped"):
        session.exitstatus = 0
