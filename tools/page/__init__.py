"""The data files of the page, made from results."""
