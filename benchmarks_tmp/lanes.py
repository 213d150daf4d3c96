"""Times of layouts of scan/selective_lanes; `check` compares their results; `once ROW INDEX` makes a call."""

import os, sys
import torch
from gdn_cuda.scan.measure_selective import Shape, layer_inputs, timed_call

ROWS = {
    "long": Shape(1, 5120, 4096),
    "short": Shape(1, 1536, 512),
    "cplx": Shape(8, 1024, 2048, is_complex=True),
    "2048": Shape(1, 2048, 4096),
    "N64": Shape(8, 5120, 2048, N=64),
    "full": Shape(8, 5120, 2048),
    "small": Shape(8, 1536, 2048),
    "big": Shape(1, 8192, 32768),
}
COUNT = int(os.environ.get("COUNT", "13"))
ALL = [-1, *range(COUNT)]


def use(i):
    os.environ["GDN_X_LANES"] = str(i)


def main():
    if sys.argv[1] == "once":
        i = int(sys.argv[3])
        if i >= -1:
            use(i)
        call = timed_call(layer_inputs("cuda", ROWS[sys.argv[2]]), i < -1)
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        return
    if sys.argv[1] == "check":
        for name in ("short", "2048"):
            for trained in (False, True):
                from dataclasses import replace

                torch.manual_seed(1)
                x = layer_inputs("cuda", replace(ROWS[name], trained=trained))
                call = timed_call(x, False)
                use(-1)
                want = call().float()
                for i in range(COUNT):
                    use(i)
                    got = call().float()
                    err = ((got - want).norm() / want.norm()).item()
                    if not err < 4e-3:
                        print(name, trained, i, "differs", err, flush=True)
        print("checked", flush=True)
        return
    from gdn_cuda.cli.bench_timing import Timer

    timer = Timer(9)
    if sys.argv[2] == "back":
        for name, options in (
            ("short", [(-1, 0), (-1, 1), (-1, 2), (-1, 4), (2, 1), (2, 2), (3, 1), (3, 2), (3, 4)]),
            ("long", [(-1, 0), (-1, 3), (3, 1), (3, 2), (3, 3)]),
            ("N64", [(-1, 0), (1, 0)]),
        ):
            call = timed_call(layer_inputs("cuda", ROWS[name]), True)
            found = {}
            for _ in range(2):
                for o in options:
                    os.environ["GDN_X_BACK"], os.environ["GDN_X_PIECES"] = map(str, o)
                    found.setdefault(o, []).append(timer.stream_us(call))
            print("back", name, "  ".join(f"{i}: {min(t):.1f}" for i, t in found.items()), flush=True)
        return
    chosen = {
        "2048": [-1, 0, 1, 3, 6, 7, 8, 9],
        "N64": [0, 7, 3, 4, 6, 9, 10],
        "full": [-1, 0, 7, 3],
        "small": [-1, 0, 7, 3],
        "big": [-1, 0, 7, 3, 4],
    }
    if os.environ.get("CHOSEN"):
        chosen = {k: [int(i) for i in os.environ["CHOSEN"].split(",")] for k in ROWS}
    for name in sys.argv[2:]:
        call = timed_call(layer_inputs("cuda", ROWS[name]), False)
        found = {}
        for _ in range(2):
            for i in chosen.get(name, ALL):
                use(i)
                found.setdefault(i, []).append(timer.stream_us(call))
        print(f"{name:6}", "  ".join(f"{i}: {min(t):.1f}" for i, t in found.items()), flush=True)


main()
