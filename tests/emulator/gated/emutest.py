import ctypes as C, sys, torch, random
sys.path[:0]=['/work/wt/gated/tests','/work/wt/gated/tests/scan']
import gated_oracle as oracle
from rglru_cases import inputs
from types import SimpleNamespace
from gdn_cuda.scan import reference_rglru as ref
from helpers import rel_rms
lib=C.CDLL('/tmp/gated-emu/emu.so')
class T3(C.Structure): _fields_=[('p',C.c_void_p),('s',C.c_longlong*3),('v',C.c_int)]
class In(C.Structure): _fields_=[(n,T3) for n in ('u','delta','out','A','initial','last')]+[('ckpt',C.c_void_p),('cu',C.c_void_p),('cu64',C.c_int),('reset',C.c_void_p),('reset64',C.c_int),('rb',C.c_longlong),('rt',C.c_longlong)]+[(n,C.c_int) for n in ('B','D','N','L','S','tiles','first')]+[(n,T3) for n in ('grad','of_u','of_delta','grad_last','of_initial')]+[('of_log',C.c_void_p),('least',C.c_float)]
def t3(x, vec=False):
    if x is None: return T3()
    s=[0 if n<=1 else st for n,st in zip(x.shape,x.stride())]
    al = vec and x.stride(2)==1 and x.data_ptr()%16==0 and all(st*x.element_size()%16==0 for st in s[:2])
    return T3(x.data_ptr(),(C.c_longlong*3)(*s),int(al))
def like(x): 
    y=torch.empty_strided(x.shape,x.stride(),dtype=x.dtype); y.fill_(float('nan')); return y
def check(B,D,L,N,seed,dtype=torch.float32,bound=None,extreme=False,**way):
    x=inputs(B,D,L,N,seed,dtype=dtype,**way)
    if extreme:
        x.delta.copy_(torch.where(torch.rand(x.delta.shape)<0.3,0,x.delta)); x.delta[...,::7]=100
    cl=int(ref.channels_are_last(x.u)); many=int(N>1)
    tile=lib.tile(cl,many); tiles=-(-L//tile); assert tile==ref.tile_of(x.u,x.A)
    init=x.options.get('initial_state'); cu=x.options.get('cu_seqlens'); reset=x.options.get('reset')
    S=B if cu is None else len(cu)-1
    reset=None if reset is None else reset.int()
    out=like(x.u); last=torch.full((S,D,N),float('nan')); ck=torch.full((B,tiles,N,D),float('nan'))
    A3=T3(x.A.data_ptr(),(C.c_longlong*3)(0,x.A.stride(0),x.A.stride(1)),0)
    grad=like(x.u); grad.copy_(torch.randn(x.u.shape)); gl=torch.randn(S,D,N)
    of_u,of_d=like(x.u),like(x.u); of_init=torch.full((S,D,N),float('nan')); W=lib.warps(cl,many); of_log=torch.full((B,D,N,W),float('nan'))
    least = 0.5/bound if bound else 0.
    s=In(u=t3(x.u,True),delta=t3(x.delta,True),out=t3(out,True),A=A3,initial=t3(init),last=t3(last),ckpt=ck.data_ptr(),cu=0 if cu is None else cu.data_ptr(),cu64=1,reset=0 if reset is None else reset.data_ptr(),reset64=0,rb=0 if reset is None or B==1 else reset.stride(0),rt=0 if reset is None or L==1 else reset.stride(1),B=B,D=D,N=N,L=L,S=S,tiles=tiles,first=int(way.get('first_multiplier',False)),grad=t3(grad,True),of_u=t3(of_u,True),of_delta=t3(of_d,True),grad_last=t3(gl),of_initial=t3(of_init) if init is not None else T3(),of_log=of_log.data_ptr(),least=least)
    lib.run(C.byref(s),int(dtype==torch.bfloat16),cl,many,0)
    lib.run(C.byref(s),int(dtype==torch.bfloat16),cl,many,1)
    # wide reference
    w=SimpleNamespace(u=x.u.double(),delta=x.delta.double(),A=x.A.double(),initial_state=None if init is None else init.double(),cu_seqlens=cu,reset=reset,first_multiplier=way.get('first_multiplier',False),max_sqrt_gradient=bound,grad=grad.double(),grad_last=gl.double())
    if x.u.stride()!=w.u.stride(): print('layout?')
    eo,el,ec=ref.rglru_forward(w); bu,bd,bA,bi=ref.rglru_backward(w)
    errs=dict(out=rel_rms(out,eo),last=rel_rms(last,el),ck=rel_rms(ck,ec) if L else 0,u=rel_rms(of_u,bu),d=rel_rms(of_d,bd),A=rel_rms(of_log.sum((0,3)),bA))
    if init is not None: errs['init']=rel_rms(of_init,bi)
    tol=6e-3 if dtype==torch.bfloat16 else 1e-5
    bad={k:v for k,v in errs.items() if not v<(tol if k in('out','last','ck','init') else 5*tol)}
    print('BAD' if bad else 'ok', (B,D,L,N),str(dtype)[6:],{k:v for k,v in way.items() if k!='packed'},len(way.get('packed',[])), {k:f'{v:.1e}' for k,v in (bad or errs).items()}, flush=True)
if __name__=='__main__':
    torch.manual_seed(0)
    for cl in (False,True):
        for N in (1,3):
            check(1,2,37,N,1,channels_last=cl)
            check(2,35,150,N,2,channels_last=cl,initial=True)
            check(2,3,150,N,3,channels_last=cl,resets=True,first_multiplier=True,initial=True)
            check(1,3,300,N,4,channels_last=cl,packed=[0,0,17,17,150,299],initial=True,first_multiplier=True)
            check(1,3,300,N,5,channels_last=cl,packed=[0,1,2,64,128,256,300],resets=True,bound=1000.)
            check(1,3,300,N,6,channels_last=cl,packed=[0,300,300],dtype=torch.bfloat16,initial=True,resets=True,first_multiplier=True)
            check(1,2,304,N,7,channels_last=cl,dtype=torch.bfloat16,first_multiplier=True)
            check(1,2,300,N,8,channels_last=cl,extreme=True,bound=3.)
            check(1,2,0,N,9,channels_last=cl,initial=True)
            check(1,2,1,N,9,channels_last=cl,initial=True)
    check(1,1,4500,1,10,first_multiplier=True); check(1,1,4500,2,11,packed=[0,2047,2048,2049,4096,4400],initial=True,resets=True)
    check(1,2,4096,1,12,initial=True,dtype=torch.bfloat16)
