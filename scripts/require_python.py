"""Ends with a readable message under a Python that is too old to install the package. Runs under any Python."""

import sys

if sys.version_info < (3, 11):
    sys.exit(
        "rankloom needs Python 3.11 or newer, and %s is %d.%d; name another one: make PYTHON=python3.12 ..."
        % (sys.executable, sys.version_info[0], sys.version_info[1])
    )
