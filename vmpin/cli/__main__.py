"""The program `vmpin`, without the garbage collector (a tenth of its start), which commands that last switch on.

Run as `vmpin`, `kubectl-vmpin` and `python -m vmpin.cli`.
"""

import gc

gc.disable()  # before the imports, which it would scan again and again

import signal  # noqa: E402

# Ctrl-C while modules are loaded ends the process without a traceback; `main` catches it later.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored (nohup)
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys  # noqa: E402

from vmpin.cli.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
