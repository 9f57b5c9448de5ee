"""The interactive page of `ropewalk explore`, in English and Chinese.

`controls` and `state` hold the values, `charts` and `drawings` draw them, only `page`, `panels` and `widgets`
need streamlit, and `launch` starts the server.
"""
