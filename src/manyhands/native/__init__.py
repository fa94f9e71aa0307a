"""Native code for the integers of a pass: loops over who reads what, in C, and the same in numpy.

    plain.py       each loop in numpy, and what it means
    native.c       the same loops in C
    build.py       compiles them once for a machine, and keeps them
    compiled.py    the loops as they are called: in C where they could be compiled, else in numpy

When a step ends, the device waits for the next plan, and what a host does then once in a pass finds its caches cold: numpy takes
two to four times as long there as in a benchmark that repeats it. A loop in C has little to bring in.

Decisions (which tiles, how many splits, what is shared) stand in `cache/planner.py` and `attention/work.py`, in Python and once.
Here things are counted, sorted and laid out. `tests/native/test_native.py` holds both kinds side by side.
"""
