"""variants.py FOLDER: copies of gdn_cuda and include with patches, in FOLDER/<name>; prints names."""

import shutil
import sys
from pathlib import Path

K = "include/gdn_cuda/kernels/"
PRODUCTS, SCORES, INVERSE, VALUES = (
    K + p for p in ("chunked/products.cuh", "chunked/scores.cuh", "chunked/inverse.cuh", "gdn/prefill/wide.cuh")
)
NO_Q = [(VALUES, "    start_state_product<kIo, Rounding::swapped>(output, own.state, stage.query);  // it waits for d\n    warpgroup_fence_operand(d);",
         "    start_product<kIo>(output, x, stage.query);\n    wait_for_product(d);")]
VARIANTS = {
    "steps1": [(PRODUCTS, "kStepsAtOnce = 2", "kStepsAtOnce = 1")],
    "no_inverse": [(INVERSE, "const bool cancels = store_column(factors, matrices);", "const bool cancels = false;")],
    "no_query": NO_Q,
    "one_tile": [(SCORES, "const int count = value ? kConfig.value_groups : kConfig.key_tiles();", "const int count = 1;")],
    "one_tile_no_inv": [
        (SCORES, "const int count = value ? kConfig.value_groups : kConfig.key_tiles();", "const int count = 1;"),
        (INVERSE, "const bool cancels = store_column(factors, matrices);", "const bool cancels = false;"),
    ],
    "no_state": [(VALUES, "    start_product_mn<kIo>(own.state, update, stage.key);\n    wait_for_product<1>(output);",
                  "    wait_for_product<0>(output);")],
}
root = Path(sys.argv[1])
for name, patches in VARIANTS.items():
    shutil.rmtree(root / name, ignore_errors=True)
    for part in ("gdn_cuda", "include"):
        shutil.copytree(part, root / name / part)
    for path, old, new in patches:
        text = (root / name / path).read_text()
        assert old in text, (name, old)
        (root / name / path).write_text(text.replace(old, new))
print(*VARIANTS)
