"""The lab: text without a download, generated tasks, a trainer, evaluation, statistics, studies and
their report.
"""
