from check import *
B=torch.bfloat16; H=torch.float16
for lay in ('tokens','channels'):
    check(dim=32,L=128,batch=1,layout=lay); check(dim=32,L=128,batch=2,layout=lay,io=B,limit=1e-2); check(dim=64,L=136,batch=1,layout=lay,io=H,limit=2e-3,GB=2,GC=1)
    check(dim=32,L=128,batch=1,layout=lay,da=True,z=False); check(dim=32,L=64,batch=1,layout=lay,kind='dirac',io=B,limit=1e-2)
    check(dim=16,L=128,batch=1,layout=lay,N=64,io=B,limit=1e-2); check(dim=16,L=128,batch=1,layout=lay,N=32); check(dim=32,L=128,batch=1,layout=lay,N=40)
    for k in ('zoh','bilinear','s7','rglru'):
        check(dim=32,L=128,batch=1,layout=lay,kind=k,N=16); check(dim=32,L=64,batch=1,layout=lay,kind=k,N=16,cB=True,io=B,limit=1e-2)
    for k in ('mamba','zoh','bilinear'): check(dim=16,L=64,batch=1,layout=lay,kind=k,cplx=True); check(dim=16,L=64,batch=1,layout=lay,kind=k,cplx=True,N=32,cC=True)
cu=torch.tensor([0,64,64,200,264],dtype=torch.int32)
check(cu=cu,batch=1,L=264,dim=32,layout='channels',io=B,limit=1e-2); check(cu=cu,batch=1,L=264,dim=32)
check(cu=cu,batch=1,L=264,dim=32,layout='channels')
check(dim=32,L=192,batch=1,Ascale=1e-4,dmin=1e-3); check(dim=32,L=192,batch=1,softplus=False,scale=100.)
