"""Checkpoints on disk: folders of safetensors, read, written and converted between pair layouts.

`safetensors_file` and `shards` read and write, `atomic_folder` makes a write all or nothing,
`convert`, `attention_names` and `tensor_rules` change the layout, `layout_record` states it,
`which_layout` detects it.
"""

from ropewalk.interop.checkpoint.convert import Conversion, convert_checkpoint
from ropewalk.interop.checkpoint.shards import open_folder, write_folder
from ropewalk.interop.checkpoint.which_layout import which_layout

__all__ = ["Conversion", "convert_checkpoint", "open_folder", "which_layout", "write_folder"]
