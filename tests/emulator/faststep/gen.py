import re
src='/work/wt/faststep/include/gdn_cuda/kernels/common/'
dst='/tmp/faststep-emu/inc/gdn_cuda/kernels/common/'
s=open(src+'numeric.cuh').read()
s=s.replace('#include <cuda_bf16.h>\n','#include "/tmp/faststep-emu/emu.hpp"\n').replace('#include <cuda_fp16.h>\n','')
def body(s,sig,new):
    i=s.index(sig); j=s.index('{',i); d=0
    for k in range(j,len(s)):
        d+= s[k]=='{'; d-= s[k]=='}'
        if d==0: break
    return s[:j]+'{'+new+'}'+s[k+1:]
s=body(s,'unsigned load_raw(','unsigned raw=0; if(from.type==DType::f32) std::memcpy(&raw,(const char*)from.data+4*at,4); else std::memcpy(&raw,(const char*)from.data+2*at,2); return raw;')
s=body(s,'void load(const void* address, bool is_wide)','if(is_wide) std::memcpy(&wide,address,4); else std::memcpy(&narrow,address,2);')
s=body(s,'i64 load_index(','if(from.type==DType::i64) return ((const i64*)from.data)[at]; return ((const int*)from.data)[at];')
s=body(s,'float exp2_fast(','return std::exp2(x);')
s=body(s,'float at_least(','return std::isnan(x)?x:std::fmax(x,bound);')
s=body(s,'float at_most(','return std::isnan(x)?x:std::fmin(x,bound);')
open(dst+'numeric.cuh','w').write(s)
s=open(src+'vector.cuh').read()
s=re.sub(r'asm volatile\("ld\.global\.L1::no_allocate\.v[24].*?;\n','std::memcpy(&bits, from, sizeof bits);\n',s,flags=re.S)
s=re.sub(r'asm volatile\("st\.global\.v4.*?"memory"\);','std::memcpy(to, &bits, 16);',s,flags=re.S)
open(dst+'vector.cuh','w').write(s)
open(dst+'cp_async_ptx.cuh','w').write('''#pragma once
namespace gdn_cuda { inline void cp_async_16(void* a, const void* b){ if((uintptr_t)b%16||(uintptr_t)a%16) std::abort(); std::memcpy(a,b,16);} inline void cp_async_fence(){} template<int k> void cp_async_wait(){} }
''')
# the operator's own preparation, registered for the emulation
p='/work/wt/faststep/csrc/families/scan/selective_state_update.cpp'
s=open(p).read().replace('"../../','"/work/wt/faststep/csrc/').replace('"selective_step.hpp"','"/work/wt/faststep/csrc/families/scan/selective_step.hpp"')
a=s.index('GDN_REGISTER('); 
a0=s.index('void run_step(')
s=s[:a0]+open('/tmp/faststep-emu/tail.cpp').read()
open('/tmp/faststep-emu/op.cpp','w').write('#include "/tmp/faststep-emu/emu.hpp"\n'+s)
s=open('/work/wt/faststep/include/gdn_cuda/kernels/scan/selective_step.cuh').read()
s=re.sub(r'asm volatile\(""[^;]*;','',s)
open('/tmp/faststep-emu/inc/gdn_cuda/kernels/scan/selective_step.cuh','w').write(s)

s=open('/work/wt/faststep/include/gdn_cuda/kernels/scan/discretization.cuh').read()
s=body(s,'float reciprocal(','return 1.f/x;')
open('/tmp/faststep-emu/inc/gdn_cuda/kernels/scan/discretization.cuh','w').write(s)
