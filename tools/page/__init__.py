"""Data of the page that is made from results."""
