"""The lab: corpora without a download, generated tasks, one trainer, and an evaluation that refuses to rank noise."""
