"""Ends with a readable message under a Python too old for the package; runs under old ones itself."""

import sys

OLDEST = (3, 11)

if sys.version_info < OLDEST:
    found = ".".join(str(number) for number in sys.version_info[:2])
    message = "rankloom needs Python 3.11 or newer, not {} ({}); name another: make PYTHON=python3.12 ..."
    sys.exit(message.format(found, sys.executable))
