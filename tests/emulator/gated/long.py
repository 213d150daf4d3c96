import sys; sys.path.insert(0,'/tmp/gated-emu'); import emutest, torch, ctypes as C
from emutest import *
# a = 1 - 1e-7 over 65536 tokens, N = 1
for cl in (False,True):
    D,L=2,65536
    u=torch.randn(1,D,L); u[0,1]=1; delta=torch.ones(1,D,L); A=torch.full((D,1),1-1e-7)
    A=torch.tensor([[1-2**-23],[1-2**-23]]); delta[:]=1e-7/2**-23
    if cl: u,delta=u.mT.contiguous().mT,delta.mT.contiguous().mT
    init=torch.ones(1,D,1); tile=lib.tile(cl,0); tiles=L//tile
    out=like(u); last=torch.empty(1,D,1); ck=torch.empty(1,tiles,1,D)
    s=In(u=t3(u,True),delta=t3(delta,True),out=t3(out,True),A=T3(A.data_ptr(),(C.c_longlong*3)(0,1,1),0),initial=t3(init),last=t3(last),ckpt=ck.data_ptr(),B=1,D=D,N=1,L=L,S=1,tiles=tiles,first=0)
    s.A=T3(A.data_ptr(),(C.c_longlong*3)(0,1,0),0)
    lib.run(C.byref(s),0,int(cl),0,0)
    log=(delta.double()*A.double().log()[None,:,:])[0]
    x=torch.ones(D,dtype=torch.float64); exp=[]
    a=log.exp(); m=(-torch.expm1(2*log)).sqrt()*u[0].double()
    import numpy as np
    a,m=a.numpy(),m.numpy(); X=np.ones(D); E=np.empty((D,L))
    for t in range(L): X=a[:,t]*X+m[:,t]; E[:,t]=X
    E=torch.tensor(E)
    print(cl,[rel_rms(out[0,i],E[i]) for i in range(D)],rel_rms(last[0,:,0],E[:,-1]),flush=True)
