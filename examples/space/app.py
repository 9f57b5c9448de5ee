"""The explorer as one file for a hosted space: `streamlit run app.py` serves it."""

from ropewalk_lab.explorer.page import page

page()
