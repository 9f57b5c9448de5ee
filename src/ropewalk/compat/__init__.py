"""Drop-in replacements for the rotary APIs of other libraries, computed by our kernels: only the
import changes.

Each module is named after the library it replaces; import it by name, since `import ropewalk` loads
none of them.
"""
