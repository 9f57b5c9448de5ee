"""`ropewalk bench`: times of the rotation on this machine, beside a plain copy and beside other libraries.

A contender is timed only if it agrees with the float64 definition. The scripts in `benchmarks/` build on these modules.
"""
