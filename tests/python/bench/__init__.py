"""The benchmark behind scripts/bench: a mounted frame against the native ones, in turn, in the same run, as a table of ratios.

`harness` is what a case is, how it is timed and what comes of it; `data` the frames; `sides` what is compared: native frames,
mounts, other tools' mounts. Each other module holds some cases, and `__main__` the list of those modules and the command line.
"""
