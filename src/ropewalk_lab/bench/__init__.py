"""`ropewalk bench`: time the rotation on this machine, compared with a plain copy and with other
libraries.

A contender is timed only if it agrees with the float64 definition. The scripts in `benchmarks/`
build on these modules.
"""
