"""Variants of ask 2, in turns; `check` compares results."""

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
    "fp32": Shape(8, 1536, 2048, dtype=torch.float32),
}
NAMES = ("GDN_X_LANES", "GDN_X_LTURNS", "GDN_X_BACK", "GDN_X_TURNS", "GDN_X_PIECES")


def use(**x):
    for name in NAMES:
        os.environ.pop(name, None)
    for name, value in x.items():
        os.environ["GDN_X_" + name.upper()] = str(value)


def check():
    for name, s in (
        ("full", Shape(4, 3200, 640)),
        ("N64", Shape(4, 3200, 320, N=64)),
        ("cplx", Shape(4, 2048, 640, is_complex=True)),
    ):
        torch.manual_seed(1)
        call = timed_call(layer_inputs("cuda", s), True)
        use(turns=1)
        want = [x.clone() for x in call()]
        for t in (0, 2, 3):
            use(turns=t)
            got = call()
            errors = [
                (
                    (torch.view_as_real(g) if g.is_complex() else g).float()
                    - (torch.view_as_real(w) if w.is_complex() else w).float()
                )
                .norm()
                .item()
                / (w.abs().float().norm().item() + 1e-30)
                for g, w in zip(got, want)
            ]
            print(name, t, ["%.1e" % e for e in errors], flush=True)
    for name, s in (
        ("long", Shape(1, 12000, 1024)),
        ("long", Shape(1, 5120, 4096, trained=True)),
        ("N64", Shape(2, 5120, 776, N=64)),
    ):
        torch.manual_seed(1)
        call = timed_call(layer_inputs("cuda", s), False)
        use(lanes=-1)
        want = call().float()
        for i in range(6):
            for t in (1, 4):
                use(lanes=i, lturns=t)
                got = call().float()
                err = ((got - want).norm() / want.norm()).item()
                if not err < 4e-3:
                    print(s.name, i, t, "differs", err, flush=True)
    print("checked", flush=True)


def main():
    if sys.argv[1] == "check":
        return check()
    if sys.argv[1] == "once":
        use(**eval(f"dict({sys.argv[3]})"))
        call = timed_call(layer_inputs("cuda", ROWS[sys.argv[2]]), sys.argv[4] == "b")
        call()
        torch.cuda.synchronize()
        return
    from gdn_cuda.cli.bench_timing import Timer

    timer = Timer(9)

    def times(name, backward, options, rounds=2):
        call = timed_call(layer_inputs("cuda", ROWS[name]), backward)
        found = {}
        for _ in range(rounds):
            for o in options:
                use(**o)
                found.setdefault(str(o).replace("'", "").replace(" ", ""), []).append(timer.stream_us(call))
        print(name, "backward" if backward else "forward", "  ".join(f"{i} {min(t):.1f}" for i, t in found.items()), flush=True)

    L = lambda i, t=1: dict(lanes=i, lturns=t)
    times("cplx", True, [dict(turns=t) for t in (1, 0, 2, 3, 4, 8)])
    times("full", True, [dict(turns=t) for t in (1, 0, 2, 4, 8)])
    times("N64", True, [dict(turns=t) for t in (1, 0, 2, 4)] + [dict(back=1, turns=1), dict(back=1, turns=4)])
    times("long", False, [L(-1), L(3), L(3, 2), L(3, 4), L(3, 8), L(4, 1), L(4, 4), L(4, 8), L(1), L(2), L(2, 4), L(5)])
    times(
        "short",
        True,
        [
            dict(),
            dict(back=-1, pieces=1),
            dict(pieces=2),
            dict(pieces=4),
            dict(back=3, pieces=1),
            dict(back=3, pieces=2),
            dict(back=2, pieces=1),
            dict(back=2, pieces=2),
        ],
    )
    times("short", False, [L(2), L(5), L(3), L(1)])
    times("N64", False, [L(0), L(0, 2), L(0, 4)])
    times("small", True, [dict(turns=1), dict(turns=0)], 1)
    times("fp32", True, [dict(turns=1), dict(turns=0)], 1)
    times("2048", False, [L(-1), L(3), L(1), L(2), L(5)], 1)
    times("small", False, [L(-1), L(3), L(3, 4)], 1)
    times("long", True, [dict(), dict(back=3, pieces=1), dict(pieces=1)], 1)


main()
