"""variants.py FOLDER: copies of gdn_cuda and include with patches, in FOLDER/<name>; prints names."""

import shutil
import sys
from pathlib import Path

K = "include/gdn_cuda/kernels/"
PRODUCTS, SCORES, INVERSE, VALUES = (
    K + p for p in ("chunked/products.cuh", "chunked/scores.cuh", "chunked/inverse.cuh", "gdn/prefill/wide.cuh")
)
VARIANTS = {
    "no_inverse": [(INVERSE, "const bool cancels = store_column(factors, matrices);", "const bool cancels = false;")],
    "late_release": [
        (VALUES, ", [&] { own.release(own.shared.inverse_empty); });", ");"),
        (VALUES, "    release_rows(own, chunk);\n    read_factors", "    release_rows(own, chunk);\n"
         "    own.release(own.shared.inverse_empty);\n    read_factors"),
    ],
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
