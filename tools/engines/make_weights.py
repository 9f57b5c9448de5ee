"""Write random weights of the matrix's small models with transformers, for engines that convert
checkpoints.

    python make_weights.py rows.json folder

The rope does not change the weights: rows that differ in it alone share a folder, named by
`folder_name`.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ropewalk_lab.engines_run.checkpoints import folder_name


def main() -> None:
    """Write one checkpoint for each distinct shape of model among the rows; what transformers
    cannot build is left out.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    rows: list[dict[str, Any]] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    target = Path(sys.argv[2])
    for row in rows:
        folder = target / folder_name(row["config"])
        if folder.exists():
            continue
        torch.manual_seed(0)
        try:
            config = AutoConfig.for_model(**row["config"])
            model_class = (
                AutoModelForImageTextToText
                if "text_config" in row["config"]
                else AutoModelForCausalLM
            )
            model_class.from_config(config).save_pretrained(folder)
        except Exception as error:
            # another row with the same shape may have a rope that transformers takes
            print(f"weights: {row['name']}: {type(error).__name__}: {error}"[:200], file=sys.stderr)


if __name__ == "__main__":
    main()
