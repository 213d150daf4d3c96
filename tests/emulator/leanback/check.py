import sys, torch, itertools, math, os
torch.manual_seed(0)
torch.ops.load_library('/tmp/leanback-emu/emu.so')
sys.path.insert(0, '/work/wt/leanback')
from gdn_cuda.scan import discretizations as disc  # TRANSITIONS, plain torch
T = {n: getattr(disc, n) for n in ("mamba", "zoh", "bilinear", "dirac", "s7", "rglru")}

def expand(B, dim, b, t, N):
    if B.dim() == 2: return B
    if B.dim() == 3: B = B.unsqueeze(1)
    g = B.shape[1]
    return B[b, :, :, t].repeat_interleave(dim // g, 0)

def literal(u, delta, A, B, C, D, z, bias, delta_a, init, cu, softplus, kind, keep):
    """fp64 recurrence, per sequence; returns out, last, states every 64"""
    batch, dim, L = u.shape; N = A.shape[1]
    d = delta + (bias[:, None] if bias is not None else 0)
    if softplus: d = torch.nn.functional.softplus(d)
    da = delta_a if delta_a is not None else d
    outs = torch.zeros_like(u); cols = {}
    lasts, states = [], []
    spans = [(b, 0, L) for b in range(batch)] if cu is None else [(0, int(cu[i]), int(cu[i+1])) for i in range(len(cu)-1)]
    ys = {}
    for s, (b, lo, hi) in enumerate(spans):
        x = init[s] if init is not None else torch.zeros(dim, N, dtype=A.dtype)
        for t in range(lo, hi):
            if (t - lo) % 64 == 0: states.append(x)
            Ab, Bb = T[kind](d[b, :, t, None], da[b, :, t, None], A)
            Bt, Ct = expand(B, dim, b, t, N), expand(C, dim, b, t, N)
            if kind == 'rglru':
                x = Ab * x + Bb * u[b, :, t, None]
                if B.dim() == 2: Ct = Ct * B
            else:
                x = Ab * x + Bb * Bt * u[b, :, t, None]
            y = (Ct * x).sum(-1)
            ys[b, t] = 2 * y.real if A.is_complex() else y
        lasts.append(x)
    rows = []
    zero = torch.zeros(dim, dtype=u.dtype)
    y = torch.stack([torch.stack([ys.get((b, t), zero) for t in range(L)], -1) if L else torch.zeros(dim, 0, dtype=u.dtype) for b in range(batch)]) if batch else torch.zeros_like(u)
    covered = torch.zeros(batch, L, dtype=torch.bool)
    for b, lo, hi in spans: covered[b, lo:hi] = True
    if D is not None: y = y + D[:, None] * u
    if z is not None: y = y * torch.nn.functional.silu(z)
    y = y * covered[:, None]
    return y, (torch.stack(lasts) if lasts else None), (torch.stack(states) if states else torch.zeros(0, dim, N, dtype=A.dtype))

def case(kind='mamba', cplx=False, batch=2, dim=8, L=70, N=16, GB=1, GC=1, cB=False, cC=False, z=True, D=True, bias=True, softplus=True, da=False, init=True, last=True, io=torch.float32, layout='tokens', cu=None, scale=0.5, zmix=False, Ascale=1.0, dmin=None):
    f64 = torch.float64; ctype = torch.complex128 if cplx else f64
    def r(*s): return torch.randn(*s, dtype=f64)
    def rc(*s): return torch.complex(r(*s), r(*s)) if cplx else r(*s)
    u, zz, go = r(batch, dim, L), r(batch, dim, L), r(batch, dim, L)
    delta = scale * (r(batch, dim, L) if softplus else r(batch, dim, L).abs() + .05)
    if kind == 's7': softplus, delta = False, r(batch, dim, L)
    if kind == 'rglru': softplus, delta = False, r(batch, dim, L).abs() + .1
    if dmin is not None: softplus=False; delta = torch.full((batch,dim,L), dmin, dtype=f64)
    A = -torch.rand(dim, N, dtype=f64) * Ascale
    if kind == 'rglru': A = torch.rand(dim, N, dtype=f64) * .9 + .05
    if cplx: A = torch.complex(A, r(dim, N) * 3)
    B = rc(dim, N) if cB else rc(batch, GB, N, L)
    C = rc(dim, N) if cC else rc(batch, GC, N, L)
    dela = r(batch, dim, L).abs() * .5 if da else None
    nseq = batch if cu is None else len(cu) - 1
    st = rc(nseq, dim, N) if init else None
    gl = rc(nseq, dim, N) if last else None
    bb = r(dim) * .3 if bias and kind not in ('s7', 'rglru') else None
    Dd = r(dim) if D else None
    if not z: zz = None
    def q(x):  # what the kernel sees
        if x is None: return None
        return x.to(io).to(f64) if not x.is_complex() else torch.view_as_complex(torch.view_as_real(x).float()).to(torch.complex128)
    def f(x): return None if x is None else (x.to(torch.complex64).to(torch.complex128) if x.is_complex() else x.float().to(f64))
    u, delta, zz, go, dela = map(q, (u, delta, zz, go, dela)); A, bb, Dd, st, gl = map(f, (A, bb, Dd, st, gl))
    B = f(B) if cB else q(B); C = f(C) if cC else q(C)
    leaves = dict(u=u, delta=delta, A=A, B=B, C=C, D=Dd, z=zz, delta_bias=bb, delta_a=dela, init=st)
    for x in leaves.values():
        if x is not None: x.requires_grad_()
    out, lasts, states = literal(u, delta, A, B, C, Dd, zz, bb, dela, st, cu, softplus, kind, True)
    loss = (out * go).sum()
    if gl is not None: loss = loss + ((lasts * gl.conj()).sum().real if cplx else (lasts * gl).sum())
    names = [k for k in leaves if leaves[k] is not None]
    want = dict(zip(names, torch.autograd.grad(loss, [leaves[k] for k in names], allow_unused=True)))
    def low(x, coeff=False):
        if x is None: return None
        x = x.detach()
        if x.is_complex(): return x.to(torch.complex64)
        return x.to(io)
    def rows(x):
        x = low(x)
        if x is None: return None
        return x.contiguous() if layout == 'tokens' else x.transpose(1, 2).contiguous().transpose(1, 2)
    f32 = lambda x: None if x is None else (x.detach().to(torch.complex64) if x.is_complex() else x.detach().float())
    st64 = states.detach().to(torch.complex64 if cplx else torch.float32)
    if cu is not None:
        total = L // 64 + nseq
        pad = torch.zeros(total, dim, N, dtype=st64.dtype); pad[:len(st64)] = st64; st64 = pad
    zk = rows(zz) if not zmix else (low(zz).transpose(1, 2).contiguous().transpose(1, 2) if layout == 'tokens' else low(zz).contiguous())
    got = torch.ops.gdn_emu.selective_scan_backward(rows(go), f32(gl), rows(u), rows(delta), f32(A), f32(B) if cB else low(B), f32(C) if cC else low(C), f32(Dd), zk, f32(bb), rows(dela), f32(st), cu, softplus, kind, st64)
    keys = ['u', 'delta', 'A', 'B', 'C', 'D', 'z', 'delta_bias', 'delta_a', 'init']
    worst = 0; text = []
    for k, g in zip(keys, got):
        if leaves[k] is None: continue
        w = want[k]; w = torch.zeros_like(leaves[k]) if w is None else w
        g = g.to(w.dtype)
        if w.numel() == 0: continue
        e = ((g - w).abs().square().mean() / w.abs().square().mean().clamp_min(1e-300)).sqrt().item() if w.abs().max() > 0 else g.abs().max().item()
        text.append(f'{k}={e:.1e}'); worst = max(worst, e if e == e else math.inf)
    return worst, ' '.join(text)

def check(limit=2e-5, **k):
    w, t = case(**k)
    ok = w < limit
    print('ok ' if ok else 'BAD', k, t if not ok else f'{w:.1e}', flush=True)
    return ok
