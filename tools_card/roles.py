"""roles.py CSV HOT: samples of ncu's source page by role (code between USETMAXREGs), and each role's hottest instructions."""
import collections, csv, sys
rows = list(csv.reader(open(sys.argv[1])))
hot = int(sys.argv[2])
for i, r in enumerate(rows):
    if "Source" in r:
        h, body = r, rows[i + 1:]
        break
ix = {n: i for i, n in enumerate(h)}
stalls = [n for n in h if n.startswith("stall_") and "Not" not in n]
num = lambda r, n: int(float(r[ix[n]] or 0)) if r[ix[n]] not in ("", "-") else 0
parts = [[]]
for i, r in enumerate(body):
    if len(r) < len(h): continue
    if "USETMAXREG" in r[ix["Source"]]: parts.append([])
    parts[-1].append((i, r))
total = sum(num(r, "# Samples") for p in parts for _, r in p)
for p in parts:
    s = sum(num(r, "# Samples") for _, r in p)
    if s < total / 100: continue
    c = collections.Counter()
    for _, r in p:
        for n in stalls: c[n[6:]] += num(r, n)
    print(f"part {p[0][0]}-{p[-1][0]} {p[0][1][ix['Source']].split(';')[0][:30]} samples {s} of {total} warp-instr {sum(num(r, 'Instructions Executed') for _, r in p)}", " ".join(f"{n}:{v*100//max(s,1)}" for n, v in c.most_common(9)))
    for i, r in sorted(p, key=lambda x: -num(x[1], "# Samples"))[:hot]:
        c = collections.Counter({n[6:]: num(r, n) for n in stalls})
        print(f"  {i}:{num(r, '# Samples')*1000//s}‰ {' '.join(r[ix['Source']].split())[:34]} {' '.join(f'{n}' for n, v in c.most_common(2))}")
