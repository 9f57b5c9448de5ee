"""Runners: scripts that run in an engine's own environment. They import each other as files, and
nothing of ropewalk.
"""
