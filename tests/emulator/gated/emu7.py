import ctypes as C, sys, torch
sys.path[:0]=['/work/wt/gated/tests','/work/wt/gated/tests/scan']
import gated_oracle as oracle
from helpers import rel_rms
lib=C.CDLL('/tmp/gated-emu/emu.so')
class S3(C.Structure): _fields_=[('p',C.c_void_p),('b',C.c_longlong),('r',C.c_longlong)]
class S4(C.Structure): _fields_=[('p',C.c_void_p),('b',C.c_longlong),('r',C.c_longlong),('c',C.c_longlong)]
lib.s7run.argtypes=[C.c_int]*3+[S3,S4,S3,S3,S3]+[C.c_void_p]*5+[C.c_int]*5
def s3(x): return S3(0,0,0) if x is None else S3(x.data_ptr(),x.stride(0),x.stride(1))
def s4(x,t=False): return S4(x.data_ptr(),x.stride(0),*( (x.stride(2),x.stride(1)) if t else (x.stride(1),x.stride(2))))
def p(x): return 0 if x is None else x.data_ptr()
def run(what,dir,A=None,M=None,t=False,v=None,bias=None,out=None,states=None,grads=None,gl=None,last=None,ofA=None,rows=0,cols=0,L=0,b=1,bf=0):
    vec=int(L*(2 if bf else 4)%16==0)
    lib.s7run(bf,what,dir,s3(A),s4(M,t) if M is not None else S4(),s3(v),s3(bias),s3(out),p(states),p(grads),p(gl),p(last),p(ofA),rows,cols,L,vec,b)
def check(b,H,N,L,dtype,bias,A=None):
    g=lambda *s: torch.randn(*s).to(dtype)
    u,Am,B,Cm,bi=g(b,H,L),g(b,N,L),g(b,N,H,L),g(b,H,N,L),g(b,N,L)
    if A is not None: Am.fill_(A)
    if not bias: bi=None
    bf=int(dtype==torch.bfloat16); k=dict(L=L,b=b,bf=bf)
    x=torch.full((b,N,L),float('nan')); out=torch.full((b,H,L),float('nan'),dtype=dtype); last=torch.full((b,N),float('nan'))
    run(0,1,M=B,v=u,bias=bi,out=x,rows=N,cols=H,**k); run(1,0,A=Am,states=x,last=last,rows=N,**k); run(0,0,M=Cm,v=x,out=out,rows=H,cols=N,**k)
    lv=[y.double().requires_grad_() for y in (u,Am,B,Cm)]+([bi.double().requires_grad_()] if bias else [])
    eo,el=oracle.s7(*lv); gy,gl=g(b,H,L),torch.randn(b,N)
    ex=torch.autograd.grad((eo,el),lv,(gy.double(),gl.double()))
    gx=torch.full((b,N,L),float('nan')); ofu=torch.full_like(u,float('nan')); ofA=torch.full_like(Am,float('nan')); ofB=torch.full_like(B,float('nan')); ofC=torch.full_like(Cm,float('nan'))
    run(0,1,M=Cm,t=True,v=gy,out=gx,rows=N,cols=H,**k); run(1,1,A=Am,states=x,grads=gx,gl=gl,ofA=ofA,rows=N,**k); run(0,0,M=B,t=True,v=gx,out=ofu,rows=H,cols=N,**k)
    run(2,0,M=ofB,v=gx,bias=u,rows=N,cols=H,**k); run(2,0,M=ofC,t=True,v=x,bias=gy,rows=N,cols=H,**k)
    e=dict(out=rel_rms(out,eo),last=rel_rms(last,el),u=rel_rms(ofu,ex[0]),A=rel_rms(ofA,ex[1]),B=rel_rms(ofB,ex[2]),C=rel_rms(ofC,ex[3]))
    if bias: e['bias']=rel_rms(gx,ex[4])
    tol=5e-3 if bf else 2e-6
    print('ok' if all(v<tol for v in e.values()) else 'BAD',(b,H,N,L),dtype,{k:f'{v:.0e}' for k,v in e.items()},flush=True)
torch.manual_seed(1)
for dtype in (torch.float32,torch.bfloat16):
    check(2,5,3,37,dtype,True); check(1,3,6,1104,dtype,False); check(1,2,2,2100,dtype,True,30.); check(1,1,1,1,dtype,True); check(1,5,7,64,dtype,True)
