"""Drop-ins: other libraries' names and shapes on our kernels. Change the import, keep the results.

Each module is named after what it stands in for and imported by itself; `import ropewalk` loads none of them.
"""
