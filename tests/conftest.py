"""For all tests in Python."""

import os

# Processes that run tests beside each other share the processors. By default torch's threads wait
# by spinning, which takes up to ten times the time of the work in these small tests.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
