"""Temporary: variants of scan/selective_step_tied on int8 states."""

import os, sys, torch, gdn_cuda


def case(B, state, H=128, P=64, N=128, G=8):
    d = "cuda"
    g = lambda *s, dtype=torch.bfloat16: torch.randn(*s, device=d).to(dtype)
    x = dict(
        x=g(B, H, P),
        dt=g(B, H),
        A=-g(H, dtype=torch.float32).abs(),
        B=g(B, G, N),
        C=g(B, G, N),
        D=g(H, dtype=torch.float32),
        z=g(B, H, P),
        dt_bias=g(H, dtype=torch.float32),
        dt_softplus=True,
        out=torch.empty(B, H, P, device=d, dtype=torch.bfloat16),
    )
    s = torch.randn(B, H, P, N, device=d)
    if state == torch.int8:
        x["state"], x["state_scales"] = gdn_cuda.convert_states(s, torch.int8)
    else:
        x["state"] = s.to(state)
    x["state_batch_indices"] = torch.randperm(B, device=d).int()
    return x


def time(f, n=30):
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f()
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    ts = []
    for _ in range(n):
        flush.zero_()
        a = torch.cuda.Event(enable_timing=True)
        b = torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        ts.append(a.elapsed_time(b) * 1e3)
    return sorted(ts)[len(ts) // 2]


def main():
    variants = os.environ.get("VARIANTS", "4,1,6 4,1,5 8,1,5 4,1,4 8,1,4 4,2,3 8,2,3 4,2,4").split()
    warm = "--warm" in sys.argv
    for B in (64,) if warm else (16, 64, 256):
        row = [f"B={B}"]
        for st in (torch.bfloat16, torch.int8):
            x = case(B, st)
            for v in variants if st == torch.int8 else [""]:
                if v:
                    os.environ["GDN_SSD8"] = v
                f = lambda: gdn_cuda.selective_state_update(**x)
                if warm:
                    f()
                    torch.cuda.synchronize()
                    continue
                row.append(f"{v or 'bf16'}: {time(f):.1f}")
            del x
            torch.cuda.empty_cache()
        print("  ".join(row), flush=True)


if __name__ == "__main__":
    main()
