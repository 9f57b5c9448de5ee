"""The interactive page: state as data, charts as functions of it, streamlit only in `page.py`."""
