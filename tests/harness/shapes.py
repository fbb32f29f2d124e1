"""Well-formed files of odd shapes: small, but asking for a lot of memory or time.

``python -m harness.shapes FOLDER`` prints a JSON line for each: its name and how it ended.
"""

import json
import logging
import sys
from pathlib import Path

from harness.fuzz import judge
from harness.generated import TINY, make_metadata, make_tensors, types_of
from mtpcore.gguf import write_model_file

SMALL = TINY._replace(width=2, n_ff=2, n_heads=1, n_kv_heads=1, head_width=2, n_vocab=8)
SHAPES = {
    "few long rows": ("llama", SMALL._replace(width=1 << 17, n_ff=1, n_vocab=4)),
    "long rows": ("llama", SMALL._replace(width=1 << 16, n_ff=32, n_vocab=32, n_layers=1)),
    "wide heads": ("llama", SMALL._replace(width=1, head_width=1 << 18)),
    "many heads": ("llama", SMALL._replace(n_heads=1 << 17, n_layers=1)),
    "wide feed-forward": ("llama", SMALL._replace(width=32, n_ff=1 << 17, n_layers=1)),
    "long vocabulary": ("llama", SMALL._replace(n_vocab=1 << 19)),
    "all of many experts": ("glm4moe", SMALL._replace(head_width=4, n_experts=1 << 12)),
    "deep": ("llama", SMALL._replace(n_layers=700)),
    "too deep": ("llama", SMALL._replace(n_layers=1400)),
}


def main(folder):
    logging.disable()
    path = Path(folder) / "odd.gguf"
    for name, (family, sizes) in SHAPES.items():
        tensors, metadata = make_tensors(family, "F32", sizes), make_metadata(family, sizes)
        if family == "glm4moe":
            metadata["glm4moe.expert_used_count"] = sizes.n_experts
        write_model_file(path, family, metadata, tensors, types_of(tensors, "F32"))
        del tensors
        print(json.dumps({"name": name, "how": judge([path])}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
