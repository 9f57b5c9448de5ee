"""The interactive page of `ropewalk explore`, in English and Chinese.

`controls` and `state` hold the values; `charts` and `drawings` draw them; `launch` starts the
server. Only `page`, `panels` and `widgets` import streamlit.
"""
