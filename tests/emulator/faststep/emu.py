import sys; sys.path[:0]=['/work/wt/faststep/tests','/work/wt/faststep/tests/scan']
import torch, gdn_cuda, time
torch.ops.load_library('/tmp/faststep-emu/emu.so')
from step_cases import *
NAMES=['mamba','zoh','bilinear','dirac','s7','rglru']
def step(sms, **x):
    torch.ops.gdn_emu.step(x['state'],x['x'],x['dt'],x['A'],x['B'],x['C'],x.get('D'),x.get('z'),x.get('dt_bias'),x.get('delta_a'),x.get('state_batch_indices'),x.get('num_accepted_tokens'),x.get('step_states'),x.get('step_slots'),x.get('dt_softplus',False),NAMES.index(x.get('discretization','mamba')),x['out'],sms)
    return x['out']
few=lambda **x: step(132,**x)     # one sequence a block
many=lambda **x: step(0,**x)      # four
STATES=(torch.float32,torch.bfloat16,torch.float16,torch.complex64)
bad=0
def go(label, x, f=few):
    global bad
    try: check(x, f)
    except AssertionError as e: bad+=1; print('FAIL',label,str(e)[:150])
t0=time.time(); seed=1
for st in STATES:
    for N in (1,2,7,8,16,24,33,64,100,128,136,200,255,256):
        go((st,N),draws(seed,N=N,dim=5,batch=2,state=st)); go((st,N,'tokens'),draws(seed,N=N,dim=3,batch=1,tokens=5,state=st))
        go((st,N,'many'),draws(seed,N=N,dim=3,batch=6,state=st),many)
print('rows',time.time()-t0,bad)
for st in STATES:
    for name in (COMPLEX if st.is_complex else REAL):
        for N in (7,16,128):
            go((st,name,N,'h'),draws(seed,name,N=N,state=st,heads=4,groups=2)); go((st,name,N,'bare'),draws(seed,name,N=N,state=st,bare=True,tokens=9,batch=2))
            x=draws(seed,name,N=N,state=st,heads=2,dim=37,batch=5,io=torch.bfloat16)
            for k in ("dt","dt_bias","D"): x[k]=x[k][...,:1].expand_as(x[k])
            x["A"]=x["A"][:,:1,:1].expand_as(x["A"]); go((st,name,N,'tied'),x,many)
print('kinds',time.time()-t0,bad)
for name in REAL:
    for cx in (False,True):
        if cx and name not in COMPLEX: continue
        x=draws(seed,name,batch=6,dim=4,bare=True,state=torch.complex64 if cx else torch.float32)
        x["dt"][:]=torch.tensor([0,1e-6,1e-3,1,20,100.])[:,None]
        sizes=torch.logspace(-6,3,16); r=torch.exp(-sizes) if name=='rglru' else -sizes
        x["A"]=(torch.complex(r,100*r) if cx else r).expand(4,16); go(('extreme',name,cx),x)
for ph in (1.,1e2,1e4):
    for name in ('mamba','zoh','dirac'):
        x=draws(seed,name,dim=16,state=torch.complex64,bare=True); x["A"]=torch.complex(x["A"].real,ph*torch.randn(16,16)); go(('phase',ph,name),x)
H=[2**63-1,-2**63,2**32,-1,1]
for N in (7,16):
    for tk in (None,3):
        for f in (few,many):
            x=draws(seed,batch=10,slots=12,N=N,tokens=tk); x["state_batch_indices"]=torch.tensor(H*2); x["state_batch_indices"][-1]=2; go(('hostile',N,tk),x,f)
for st in STATES:
    for tk in (1,5):
        x=draws(seed,tokens=tk,batch=5,slots=40,heads=2,state=st)
        x["state_batch_indices"]=torch.randperm(40)[:5*tk].view(5,tk).int(); x["state_batch_indices"][2,tk-1]=-1; x["state_batch_indices"][4]=-7
        x["num_accepted_tokens"]=torch.tensor([0,1,min(tk,4),1,1],dtype=torch.int32); go(('verify',st,tk),x); 
for tk in (1,4,6):
    x=draws(seed,tokens=tk,batch=5,slots=6,heads=2); steps=torch.full((5,tk+1,2,5,16),7.)
    x|={"step_states":steps,"step_slots":torch.tensor([4,-1,0,2**40,2])}; x["state_batch_indices"]=torch.tensor([5,1,-1,0,2]); b=x["state"].clone()
    go(('steps',tk),x); assert torch.equal(b,x["state"]) and (steps[:,tk]==7).all() and (steps[[0,1,3]]==7).all()
# layouts
for gap in (0,1,4):
    p=draws(seed,batch=5,heads=4,groups=2,slots=9); pool=torch.full((9,320+gap),7.); x=dict(p)
    x["state"]=pool[:,:320].view(9,4,5,16).copy_(p["state"])
    for n in ("x","dt","z","B","C","A"): x[n]=p[n].mT.contiguous().mT
    x["state_batch_indices"]=torch.tensor([[8,0],[3,0],[0,0],[-1,0],[5,0]])[:,0]; go(('gap',gap),x,many); assert (pool[:,320:]==7).all()
# channel groups without heads, constant B
go('channel groups',draws(seed,dim=6,groups=3,batch=5),many); go('constant',draws(seed,dim=6,groups=6,batch=2))
a,b=(draws(seed,'zoh',tokens=7,batch=3,N=16) for _ in range(2)); a['out']=torch.empty_like(a['x']); few(**a)
for t in range(7):
    k={n:(y[:,t] if n in("x","dt","z","delta_a","B","C") else y) for n,y in b.items()}; k['out']=torch.empty_like(k['x']); many(**k); assert torch.equal(k['out'],a['out'][:,t])
assert torch.equal(a['state'],b['state'])
print('done',time.time()-t0,'bad',bad)

for st in STATES:
    for N in (1,4,7,8,16,24,64,128,256):
        for b in (33,45):
            for name in (('mamba','zoh') if st.is_complex else ('mamba','rglru','s7')):
                go(('chunks',st,N,b,name),draws(seed,name,N=N,dim=6,groups=3,batch=b,state=st),many)
        x=draws(seed,N=N,dim=67,batch=40,slots=90,state=st,io=torch.bfloat16)
        x["state_batch_indices"]=torch.randperm(90)[:40]; x["state_batch_indices"][[3,9,11,17,39]]=torch.tensor([-1,2**40,-2**63,90,-7]); go(('chunks slots',st,N),x,many)
        x=draws(seed,N=N,dim=67,batch=40,state=st); y={k:(v.clone() if isinstance(v,torch.Tensor) else v) for k,v in x.items()}
        x['out']=torch.empty_like(x['x']); y['out']=torch.empty_like(x['x']); many(**x); few(**y); assert torch.equal(x['out'],y['out']) and torch.equal(x['state'],y['state'])
    x=draws(seed,tokens=1,batch=40,slots=90,heads=2,state=st); x["state_batch_indices"]=torch.randperm(90)[:40].view(40,1).int(); x["num_accepted_tokens"]=torch.ones(40,dtype=torch.int32); go(('chunks by slot',st),x,many)
    go(('long tokens',st),draws(seed,tokens=21,batch=2,dim=9,state=st))
print('chunks',time.time()-t0,'bad',bad)
