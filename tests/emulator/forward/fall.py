from check import *
import os
for sms in ("1", "1000"):
    os.environ['EMU_SMS'] = sms
    for io in (torch.float32, torch.bfloat16):
        lim = 2e-5 if io == torch.float32 else 1e-2
        for layout in ("tokens", "channels"):
            k = dict(limit=lim, io=io, layout=layout)
            check(L=200, dim=40, **k); check(L=128, dim=32, batch=1, **k); check(L=64, dim=64, **k); check(L=1, **k); check(L=136, dim=48, z=False, D=False, bias=False, softplus=False, init=False, **k)
            check(zmix=True, L=128, dim=32, **k); check(dim=64, GB=2, GC=4, L=128, **k); check(N=1, dim=32, L=72, **k); check(N=7, dim=32, L=128, **k); check(N=40, dim=32, L=128, **k); check(N=64, dim=16, L=136, **k)
            check(da=True, L=128, dim=32, **k); check(kind='dirac', L=128, dim=32, **k); check(cB=True, dim=32, L=128, **k); check(cC=True, N=3, dim=32, L=128, **k); check(cB=True, cC=True, N=20, dim=32, L=128, **k)
            cu = torch.tensor([0, 3, 3, 70, 71, 140], dtype=torch.int32); check(cu=cu, batch=1, L=140, dim=32, **k)
            check(L=192, dim=64, dmin=1e-3, Ascale=1e-2, **k); check(L=192, dim=64, dmin=100., Ascale=1., **k)
for kind in ('zoh', 'bilinear', 's7', 'rglru'):
    for k in (dict(), dict(layout='channels', cB=True), dict(cC=True, cB=True), dict(N=19, io=torch.bfloat16, limit=1e-2)): check(kind=kind, L=130, dim=32, **k)
for kind in ('mamba', 'zoh', 'bilinear', 'dirac'):
    for k in (dict(), dict(layout='channels', cB=True), dict(cC=True, cB=True), dict(N=33), dict(dmin=50., Ascale=1.)): check(kind=kind, cplx=True, L=130, dim=32, **k)
