"""The generator of the conformance vectors: rows, exact arithmetic, files."""
