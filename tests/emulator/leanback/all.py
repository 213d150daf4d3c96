from check import *
import time
t=time.time()
check()
check(L=64); check(L=1); check(L=7,batch=1); check(L=130, z=False, D=False, bias=False, softplus=False, init=False, last=False)
check(layout='channels'); check(zmix=True); check(dim=6, GB=2, GC=3); check(dim=8, GB=4, GC=2); check(N=1); check(N=7); check(N=17, dim=4); check(N=64, dim=4, L=66)
check(dim=70, L=65, batch=1)
check(kind='dirac'); check(da=True)
print(time.time()-t)
check(cB=True); check(cC=True); check(cB=True, cC=True)
for k in ('zoh','bilinear','s7','rglru'):
    check(kind=k); check(kind=k, cB=True, cC=True); check(kind=k, cB=True); check(kind=k, cC=True)
    if k in ('zoh','bilinear'): check(kind=k, da=True)
    check(kind=k, N=19, dim=5)
print(time.time()-t)
for k in ('mamba','zoh','bilinear','dirac'):
    check(kind=k, cplx=True); check(kind=k, cplx=True, cB=True, cC=True, da=(k!='dirac')); check(kind=k, cplx=True, N=33, dim=3)
cu=torch.tensor([0,3,3,70,71,140],dtype=torch.int32)
check(cu=cu,batch=1,L=140); check(cu=cu.long(),batch=1,L=150, kind='zoh'); check(cu=cu,batch=1,L=140,N=20)
check(limit=1e-2, io=torch.bfloat16); check(limit=2e-3, io=torch.float16)
check(limit=1e-2, io=torch.bfloat16, layout='channels', cplx=True)
os.environ['EMU_SMS']='1'
print(time.time()-t)
