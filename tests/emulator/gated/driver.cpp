#include "emu.hpp"
#include <gdn_cuda/kernels/scan/rglru.cuh>
#include <gdn_cuda/kernels/scan/rglru_backward.cuh>
#include <gdn_cuda/kernels/scan/s7_states.cuh>
#include <gdn_cuda/kernels/scan/s7_product.cuh>
#include <gdn_cuda/kernels/scan/s7_outer.cuh>
using namespace gdn_cuda; using namespace gdn_cuda::scan;
template <class F> void grid(Dim blocks, int threads, size_t bytes, F f) {
  for (unsigned z=0; z<blocks.z; ++z) for (unsigned y=0;y<blocks.y;++y) for (unsigned x=0;x<blocks.x;++x) {
    Block b(threads); block=&b; std::vector<unsigned char> m(bytes+64, 0xff); shared_memory = (unsigned char*)((size_t(m.data())+63)/64*64);
    std::vector<std::thread> t; for (int i=0;i<threads;++i) t.emplace_back([=]{ threadIdx={unsigned(i),0,0}; blockIdx={x,y,z}; parity=0; f(); });
    for (auto& each: t) each.join();
  }
}
struct T3 { void* p; i64 s[3]; int vectors; };
static RglruTensor tensor(const T3& t){ return {t.p,t.s[0],t.s[1],t.s[2],t.vectors!=0}; }
static RglruStates states(const T3& t){ return {(float*)t.p,t.s[0],t.s[1],t.s[2]}; }
struct In { T3 u,delta,out,A,initial,last; float* ckpt; void* cu; int cu64; void* reset; int reset64; i64 rb, rt; int B,D,N,L,S,tiles,first; T3 grad,of_u,of_delta,grad_last,of_initial; float* of_log; float least; };
static RglruArgs args_of(const In& x){ RglruArgs a{}; a.u=tensor(x.u);a.delta=tensor(x.delta);a.out=tensor(x.out);a.A=states(x.A);a.initial=states(x.initial);a.last=states(x.last);a.checkpoints=x.ckpt;
 if(x.cu) a.cu_seqlens={x.cu,x.cu64?DType::i64:DType::i32}; if(x.reset) a.reset={x.reset,x.reset64?DType::i64:DType::i32}; a.reset_batch=x.rb;a.reset_token=x.rt; a.batches=x.B;a.channels=x.D;a.states=x.N;a.tokens=x.L;a.sequences=x.S;a.tiles=x.tiles;a.first_multiplier=x.first; return a; }
template <DType io,bool cl,bool many> void go(const In& x,bool back){
  constexpr RglruConfig f{io,cl,many,many?8:16}, b{io,cl,many,8};
  unsigned blocks = x.B*((x.D+f.channels()-1)/f.channels());
  if(!back){ auto a=args_of(x); grid({blocks,1,1}, f.threads(), sizeof(RglruSharedPlan<f>), [=]{ rglru<f>(a); }); }
  else { RglruBackwardArgs a{}; a.forward=args_of(x); a.grad=tensor(x.grad);a.of_u=tensor(x.of_u);a.of_delta=tensor(x.of_delta);a.grad_last=states(x.grad_last);a.of_initial=states(x.of_initial);a.of_log_A=x.of_log;a.least_root=x.least;
    grid({blocks,1,1}, b.threads(), sizeof(RglruBackwardSharedPlan<b>), [=]{ rglru_backward<b>(a); }); }
}
extern "C" void run(const In* x,int bf,int cl,int many,int back){
 if(bf){ if(cl){ many?go<DType::bf16,true,true>(*x,back):go<DType::bf16,true,false>(*x,back);} else { many?go<DType::bf16,false,true>(*x,back):go<DType::bf16,false,false>(*x,back);} }
 else { if(cl){ many?go<DType::f32,true,true>(*x,back):go<DType::f32,true,false>(*x,back);} else { many?go<DType::f32,false,true>(*x,back):go<DType::f32,false,false>(*x,back);} }
}
extern "C" int warps(int cl,int many){ RglruConfig c{DType::f32,cl!=0,many!=0,8}; return c.warps(); }
extern "C" int tile(int cl,int many){ RglruConfig c{DType::f32,cl!=0,many!=0,8}; return c.tile(); }
struct S3{void*p;i64 b,r;}; struct S4{void*p;i64 b,r,c;};
template <DType io> void s7(int what,int dir,S3 A,S4 M,S3 v,S3 bias,S3 out,float* states,float* grads,const float* gl,float* last,void* ofA,int rows,int cols,int L,int vec,int batches){
  if(what==0){ S7ProductArgs a{{M.p,M.b,M.r,M.c},{v.p,v.b,v.r},{bias.p,bias.b,bias.r},{out.p,out.b,out.r},rows,cols,L,vec!=0};
    constexpr S7ProductConfig c{io,true}, d{io,false}; Dim g{unsigned((L+c.tile()-1)/c.tile()),unsigned((rows+3)/4),unsigned(batches)};
    if(dir) grid(g,128,1<<15,[=]{ s7_product<c>(a);}); else grid(g,128,1<<15,[=]{ s7_product<d>(a);}); }
  if(what==1){ S7StatesArgs a{{A.p,A.b,A.r},states,grads,gl,last,ofA,rows,L}; constexpr S7StatesConfig c{io,false}, d{io,true}; Dim g{unsigned(rows*batches),1,1};
    if(dir) grid(g,128,1<<16,[=]{ s7_states<d>(a);}); else grid(g,128,1<<16,[=]{ s7_states<c>(a);}); }
  if(what==2){ S7OuterArgs a{{v.p,v.b,v.r},{bias.p,bias.b,bias.r},{M.p,M.b,M.r,M.c},rows,cols,L,vec!=0}; constexpr S7OuterConfig c{io}; Dim g{unsigned((L+c.tile()-1)/c.tile()),unsigned((rows+3)/4),unsigned(batches)};
    grid(g,128,1<<15,[=]{ s7_outer<c>(a);}); }
}
extern "C" void s7run(int bf16,int what,int dir,S3 A,S4 M,S3 v,S3 bias,S3 out,float* states,float* grads,const float* gl,float* last,void* ofA,int rows,int cols,int L,int vec,int batches){
 if(bf16) s7<DType::bf16>(what,dir,A,M,v,bias,out,states,grads,gl,last,ofA,rows,cols,L,vec,batches); else s7<DType::f32>(what,dir,A,M,v,bias,out,states,grads,gl,last,ofA,rows,cols,L,vec,batches);
}
