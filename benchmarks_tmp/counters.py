"""ncu over calls of several rows; prints a table: kernel, us, counters, and top stalls."""
import csv, io, subprocess, sys, time
if sys.argv[1] == "calls":
    import torch
    from gdn_cuda.operators import measure
    benches = measure.load().benches
    for line in sys.argv[2:]:
        operator, shape = line.split("|")
        case = {c.shape: c for c in benches[operator].cases("cuda")}[shape]
        call = case.prepare().call
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        call()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        del call, case
        torch.cuda.empty_cache()
    raise SystemExit
M = ("gpu__time_duration.sum,smsp__inst_executed.sum,smsp__issue_active.avg.pct_of_peak_sustained_active,sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active,"
     "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active,l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed,sm__warps_active.avg.per_cycle_active,"
     "dram__throughput.avg.pct_of_peak_sustained_elapsed,dram__bytes_read.sum,dram__bytes_write.sum").split(",")
S = "barrier long_scoreboard short_scoreboard mio_throttle math_pipe_throttle wait not_selected dispatch_stall no_instruction lg_throttle branch_resolving membar selected sleeping drain".split()
stall = {f"smsp__average_warps_issue_stalled_{s}_per_issue_active.ratio": s for s in S}
names = sys.argv[1]
command = ["ncu", "--clock-control", "none", "--csv", "--profile-from-start", "off", "--metrics", ",".join(M + list(stall)), "--kernel-name", f"regex:{names}",
           sys.executable, __file__, "calls", *sys.argv[2:]]
start = time.time()
out = subprocess.run(command, capture_output=True, text=True)
lines = out.stdout.splitlines()
first = next((i for i, l in enumerate(lines) if l.startswith('"ID"')), None)
if first is None:
    print(out.stdout[-1500:], out.stderr[-1500:]); raise SystemExit
rows = {}
for r in csv.DictReader(io.StringIO("\n".join(lines[first:]))):
    rows.setdefault((int(r["ID"]), r["Kernel Name"][:34], r["Grid Size"], r["Block Size"]), {})[r["Metric Name"]] = (r["Metric Value"], r["Metric Unit"])
for key, m in rows.items():
    v = lambda n: float(m.get(n, ("nan",))[0].replace(",", ""))
    u = lambda n: m.get(n, ("", ""))[1]
    top = sorted(((v(n), s) for n, s in stall.items() if n in m), reverse=True)[:6]
    print(key[1], key[2].replace(" ", ""), "time %.1f%s inst %.1fM issue %.0f%% xu %.0f%% tensor %.0f%% lsu %.0f%% warps %.1f dram %.0f%% r %s%s w %s%s |" % (
        v(M[0]), u(M[0]), v(M[1]) / 1e6, v(M[2]), v(M[3]), v(M[4]), v(M[5]), v(M[6]), v(M[7]), m[M[8]][0], u(M[8]), m[M[9]][0], u(M[9])),
        " ".join(f"{s} {x:.2f}" for x, s in top), flush=True)
print(f"{time.time() - start:.0f} s")
