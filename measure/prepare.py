"""gdn/kda_prepare: this worktree's code against that before it (measure/old), and variants of it. Needs a Hopper.

    python measure/prepare.py [VARIANT ...]

µs by events over replays of a CUDA graph with ten launches, median of nine (benchmarks/kda_launches.py). A process a
variant, as each has its own headers. First how far records, training records and outputs are from the old code's; then times.
Without the kernels in the cache some 40 s for each of `old` and `new`, 15 s for the others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNEL, SCORES = "gdn_cuda/kernels/gdn/kda_prepare.cuh", "gdn_cuda/kernels/gdn/kda/scores.cuh"


def staggered(cycles: int) -> list[tuple[str, str, str]]:
    """The second block of each multiprocessor in the first wave starts later, so that the two are not in the same phase."""
    code = f"""    KdaChunk chunk;
    unsigned processors;
    asm volatile("mov.u32 %0, %%nsmid;" : "=r"(processors));
    const unsigned linear = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    if (linear - processors < processors && gridDim.x * gridDim.y >= 8 * processors) {{
        if (threadIdx.x == 0)
            for (const long long start = clock64(); clock64() - start < {cycles};) __nanosleep(100);
        __syncthreads();
    }}
    if constexpr (kConfig.trains) {{
"""
    return [(KERNEL, "    KdaChunk chunk;\n    if constexpr (kConfig.trains) {\n", code)]


# Variant: edits of headers (file, old, new).
VARIANTS: dict[str, list[tuple[str, str, str]]] = {
    "old": [],
    "new": [],
    "staggered3": staggered(3000),
    "staggered6": staggered(6000),
    "staggered9": staggered(9000),
}


def headers(variant: str, to: Path) -> Path:
    shutil.copytree(ROOT / "include", to / "include")
    if variant == "old":
        shutil.copytree(ROOT / "measure/old", to / "include/gdn_cuda/kernels/gdn", dirs_exist_ok=True)
    for file, before, after in VARIANTS[variant]:
        path = to / "include" / file
        text = path.read_text()
        assert before in text, (variant, file, before)
        path.write_text(text.replace(before, after))
    return to / "include"


def run_variant(variant: str, folder: Path) -> None:
    import torch

    import gdn_cuda

    gdn_cuda.init(library_root=os.environ["KDA_INCLUDE"])
    sys.path[:0] = [str(ROOT / "benchmarks")]
    from kda_launches import DEVICE, RECORD, call, errors, gates, microseconds
    from kda_windows import time_call

    def preparing(kind: str, T: int, heads: int, trains: bool):
        rng = torch.Generator(DEVICE).manual_seed(T + heads)
        query, key, value = (torch.randn(1, T, heads, 128, generator=rng, device=DEVICE).bfloat16() for _ in range(3))
        beta = torch.rand(1, T, heads, generator=rng, device=DEVICE)
        raw = gates(kind, T, heads, rng)
        records = torch.zeros(heads, -(-T // 64), RECORD, dtype=torch.uint8, device=DEVICE)
        flags = torch.zeros(heads, -(-T // 64), dtype=torch.int32, device=DEVICE)
        last, out = torch.empty(1, heads, 128, 128, device=DEVICE), torch.empty_like(value)

        def launch() -> None:
            torch.ops.gdn_cuda.kda_chunks(
                query, key, value, raw["gate"], beta, None, None, None, raw["lower_bound"], True, raw["A_log"],
                raw["dt_bias"], False, False, False, True, False, trains, records, flags, last, out,
            )  # fmt: skip

        return launch, records, flags

    def parts(records: torch.Tensor, trains: bool) -> dict[str, torch.Tensor]:
        tiles = records[..., : 10 * 8192].reshape(*records.shape[:-1], 10, 8192).contiguous().view(torch.bfloat16)
        factors = records[..., 10 * 8192 :].contiguous().view(torch.float32)
        names = ("key_in", "key_out", "query_in", "inverse", "scores") if trains else ("key_in", "query_in", "update", "scores")
        found = {name: tiles[..., 2 * i : 2 * i + 2, :] for i, name in enumerate(names)}
        if trains:
            for name in ("inverse", "scores"):
                found[name] = found[name][..., 0, :].double() + found[name][..., 1, :].double()
            found["factors"] = factors[..., :320]
        else:
            found["scores"] = tiles[..., 6, :]
            found["factors"] = factors[..., :384]
        return {name: t.cpu() for name, t in found.items()}

    made: dict[str, torch.Tensor] = {}
    for kind in ("init", "heavy", "bounded"):
        launch, x = call(kind, 1000, 4)
        launch(True, True)
        made |= {f"{kind} out": x["out"].cpu(), f"{kind} state": x["last"].cpu()}
        for trains in (False, True):
            prepare, records, flags = preparing(kind, 1000, 4, trains)
            prepare()
            made |= {f"{kind} {'trains ' if trains else ''}{name}": t for name, t in parts(records, trains).items()}
            if not trains:
                made[f"{kind} flags"] = flags.cpu()
    torch.save(made, folder / f"{variant}.pt")
    against = {kind: errors(kind) for kind in ("init", "heavy")}
    print(f"{variant}: relative RMS errors (o, S) against fp64: {against}", flush=True)
    if variant != "old" and (folder / "old.pt").exists():
        before = torch.load(folder / "old.pt")
        for name, t in made.items():
            a, b = before[name].double(), t.double()
            equal = (before[name] == t).double().mean().item()
            finite = a.isfinite() & b.isfinite()
            apart = ((a - b)[finite].norm() / a[finite].norm().clamp(min=1e-30)).item()
            print(f"    {name:24} equal {equal:7.2%}  relative RMS {apart:.1e}")
    rows = []
    for kind in ("init", "heavy"):
        launch, _ = call(kind, 8192, 64)
        rows.append((f"64 heads 1x8192 {kind}", microseconds(partial(launch, True, False))))
        del launch
        torch.cuda.empty_cache()
        train, *_ = preparing(kind, 8192, 32, True)
        rows.append((f"32 heads 1x8192 {kind}, trains", microseconds(train)))
        del train
        torch.cuda.empty_cache()
    whole = (("init", 16), ("heavy", 16), ("init", 24), ("init", 64), ("heavy", 64)) if variant in ("old", "new") else ()
    rows += [(f"chunked_forward {heads} heads 1x8192 {kind}", time_call(kind, heads, 8192, 1)) for kind, heads in whole]
    print("\n".join(f"{variant:12} {name:40} {us:8.1f} us" for name, us in rows), flush=True)


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[1] == "--one":
        run_variant(sys.argv[2], Path(sys.argv[3]))
        return
    with tempfile.TemporaryDirectory() as folder:
        for variant in sys.argv[1:] or VARIANTS:
            include = headers(variant, Path(folder) / variant)
            environment = {**os.environ, "KDA_INCLUDE": str(include)}
            subprocess.run([sys.executable, __file__, "--one", variant, folder], env=environment, check=False)


if __name__ == "__main__":
    main()
