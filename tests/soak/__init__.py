"""A soak: random things happen to a real watcher for minutes, and after each settle everything is as it should be.

    make soak                                     # ten minutes (SOAK="--seconds 60")
    PYTHONPATH=tests python -m soak --seconds 60 --seed 7

The same seed gives the same story; how its steps fall between the watcher's own differs from run to run. `story` is
what happens, `world` does it to real processes (`containers`: to real containers), `oracle` says what must follow, by
rules of its own, and `checks` compares that with the kernel. Nothing of the machine's own is touched, and nothing is
left behind.
"""
