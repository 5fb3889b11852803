"""The program `vmpin`, without the garbage collector (a tenth of its start), which commands that last switch on.

Run as `vmpin`, `kubectl-vmpin` and `python -m vmpin.cli`.
"""

import gc

gc.disable()  # before the imports, which it would scan again and again

import sys  # noqa: E402

from vmpin.cli.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
