from check import *
import check as c
# no python loop: a constant decay, dim 1, N 2; reference in fp64 by a loop over t with numpy
import numpy as np
def long(L, delta, A, kind='mamba'):
    torch.manual_seed(1)
    dim, N = 1, len(A)
    u = torch.randn(1, dim, L); d = torch.full((1, dim, L), delta); B = torch.randn(1, N, L); C = torch.randn(1, N, L); go = torch.randn(1, dim, L)
    gl = torch.randn(1, dim, N)
    A = torch.tensor([A], dtype=torch.float32)
    un, dn, Bn, Cn, gn, An = [x.double().numpy() for x in (u[0,0], d[0,0], B[0], C[0], go[0,0], A[0])]
    a = np.exp(dn[None] * An[:, None]); x = np.zeros(N); xs = np.zeros((L + 1, N)); 
    for t in range(L): x = a[:, t] * x + dn[t] * un[t] * Bn[:, t]; xs[t + 1] = x
    dx = gl[0,0].double().numpy(); du = np.zeros(L); dd = np.zeros(L); dA = np.zeros(N); dB = np.zeros((N, L)); init = None
    for t in range(L - 1, -1, -1):
        dx = dx + gn[t] * Cn[:, t]
        du[t] = (dx * Bn[:, t]).sum() * dn[t]; dB[:, t] = dx * dn[t] * un[t]
        q = dx * a[:, t] * xs[t]
        dd[t] = un[t] * (dx * Bn[:, t]).sum() + (An * q).sum(); dA += dn[t] * q
        dx = dx * a[:, t]
    st = torch.tensor(xs[0:L:64], dtype=torch.float32)[:, None]
    got = torch.ops.gdn_emu.selective_scan_backward(go, gl, u, d, A, B, C, None, None, None, None, torch.zeros(1, dim, N), None, False, kind, st)
    e = lambda g, w: float(np.sqrt(((g.double().numpy().ravel() - w.ravel())**2).mean() / (w**2).mean()))
    print(L, delta, A.tolist(), 'du %.1e dd %.1e dA %.1e dB %.1e dinit %.1e' % (e(got[0], du), e(got[1], dd), e(got[2], dA), e(got[3], dB), e(got[9], dx)), flush=True)
long(4096, 0.37, [-1e-6, -1e-5]); long(8192, 0.037, [-1e-3, -1.3e-3]); long(8192, 0.01, [-0.2, -0.01]); long(2048, 1., [-1., -1000.])
