"""Which summary of a KV block picks the blocks that carry the attention mass? Measured on SmolLM2-135M-Instruct.

    PYTHONPATH=drafts/smollm2-135m-eagle3 python eval/study/scorers.py --gguf MODEL.gguf --head drafts/smollm2-135m-eagle3 \\
        --held held.npz --out scorers.json

A block of 16 keys has two rows per KV head, a centre c and a spread h; a query head scores it q.c + beta |q|.h ("box": c, h = middle and
half width, beta = 1 is Quest). The scores of a query group are added up ("sum"), or turned into probabilities over the blocks first
("prob"). Mass = attention mass of the K best sealed blocks plus the open block, mean over the query heads; "ideal" picks by the true mass.
Even-numbered documents are tested; rotations and calibrated betas come from the odd-numbered ones.
"""
import argparse
import json
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import lookahead
from eagle3 import Head
from lookahead import dense_pass, draft_rows, groups_of, top_mask
from target import Target, rope

NEG = float("-inf")
BETAS = (0.0, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0)


@dataclass(frozen=True)
class Scorer:
    kind: str = "box"      # box | soft | disc | std | sqrt | cum2 | exact max | exact lse | exact mean
    beta: float = 1.0
    agg: str = "sum"       # sum | prob | max over the query group
    basis: str = ""        # fixed rotation of queries and keys per KV head: "" (none) | q | qlate | k
    dims: int = 0          # keep this many leading dimensions of the rotated space (0: all)
    sub: int = 16          # summarise runs of this many tokens of a block
    pool: str = "max"      # a block from its runs: max | lse per query head, or late (max of the group's score)
    quant: str = ""        # "" | fp8 | int8 | int4 (one scale a row) | int4c (one scale a channel)
    first: int = 0         # always keep this many first blocks
    recent: int = 0        # and this many of the latest sealed ones
    tau: float = 1.0       # temperature of "prob"
    table: str = ""        # name of a table of calibrated betas, one a KV head, that replaces beta

    def __str__(self):
        s = f"{self.kind} b{self.beta:g} {self.agg}"
        for name, default in (("tau", 1.0), ("basis", ""), ("dims", 0), ("sub", 16), ("pool", "max"), ("quant", ""), ("first", 0), ("recent", 0), ("table", "")):
            v = getattr(self, name)
            if v != default:
                s += f" {name}={v:g}" if not isinstance(v, str) else f" {name}={v}"
        return s


def quantised(x, how, positive):
    if not how:
        return x
    top = x.abs().amax(-2 if how == "int4c" else -1, keepdim=True).clamp(min=1e-9)
    if how == "fp8":
        return (x / top * 448).to(torch.float8_e4m3fn).to(x.dtype) * top / 448
    n = {"int8": 127, "int4": 7, "int4c": 7}[how] * (2 if positive else 1) + (1 if positive else 0)
    return (x / top * n).round() * top / n


def rows(s, k, turn):
    """k [B, kv, nb, tokens, hd] -> centre, spread [B, kv, nb * runs, dims]. turn: this layer's rotations {name: [kv, hd, hd]}."""
    if s.basis:
        k = k @ turn[s.basis][:, None]
        k = k[..., :s.dims] if s.dims else k
    sub = min(s.sub, k.shape[3])
    k = k.unflatten(3, (k.shape[3] // sub, sub)).flatten(2, 3)
    if s.kind in ("box", "disc"):
        hi, lo = k.amax(3), k.amin(3)
        c, h = (hi + lo) / 2, (hi - lo) / 2
        if s.kind == "disc":  # one radius for each RoPE pair
            r = k - c[:, :, :, None]
            n = r.shape[-1] // 2
            h = (r[..., :n].pow(2) + r[..., n:].pow(2)).sqrt().amax(3)
    else:
        c = k.mean(3)
        d = k - c[:, :, :, None]
        h = d.pow(2).mean(3)
        if s.kind == "std":
            h = h.sqrt()
        if s.kind == "soft":  # log-mean-exp with slope 2 per typical deviation instead of the hard extremes
            unit = h.sqrt().mean(2, keepdim=True).clamp(min=1e-6) / 2
            z, n = d / unit[:, :, :, None], float(np.log(k.shape[3]))
            hi, lo = (z.logsumexp(3) - n) * unit, -((-z).logsumexp(3) - n) * unit
            c, h = c + (hi + lo) / 2, (hi - lo) / 2
    return quantised(c, s.quant, False), quantised(h, s.quant, True)


def parts(s, q, c, h, turn):
    """q [B, kv, G, W, hd] -> (centre term, spread term) [B, kv, G, W, runs]; the score is the first plus beta times the second."""
    hd = q.shape[-1]
    if s.basis:
        q = q @ turn[s.basis][:, None]
        q = q[..., :s.dims] if s.dims else q

    def dot(x, y):
        return (x.flatten(2, 3) @ y.transpose(-1, -2)).unflatten(2, q.shape[2:4])

    if s.kind == "sqrt":
        return dot(q, c), dot(q * q, h).sqrt()
    if s.kind == "cum2":
        return dot(q, c), dot(q * q, h) * hd ** -0.5
    if s.kind == "disc":
        n = hd // 2
        return dot(q, c), dot((q[..., :n].pow(2) + q[..., n:].pow(2)).sqrt(), h)
    return dot(q, c), dot(q.abs(), h)


def combine(s, a, b, sealed, hd, turn):
    """a, b of `parts` [B, kv, G, W, runs], sealed [W, nb] -> block scores [B, kv, W, nb], -inf where not sealed."""
    x = a + (turn[s.table][:, None, None, None] if s.table else s.beta) * b
    nb = sealed.shape[-1]
    runs = x.shape[-1] // nb
    if runs > 1 and s.pool != "late":
        x = x.unflatten(-1, (nb, runs))
        x = x.amax(-1) if s.pool == "max" else (x * hd ** -0.5).logsumexp(-1) * hd ** 0.5
    if s.agg == "sum":
        x = x.sum(2)
    elif s.agg == "max":
        x = x.amax(2)
    else:
        open_ = ~sealed if x.shape[-1] == nb else ~sealed.repeat_interleave(runs, -1)
        x = (x * (s.tau * hd ** -0.5)).masked_fill(open_, NEG).softmax(-1).sum(2)
    if runs > 1 and s.pool == "late":
        x = x.unflatten(-1, (nb, runs)).amax(-1)
    x = x.clone()
    if s.first:
        x[..., :s.first] = 1e30
    if s.recent:
        late = torch.arange(nb, device=x.device) >= sealed.sum(-1, keepdim=True) - s.recent
        x = x.masked_fill(late, 1e30)
    return x.masked_fill(~sealed, NEG)


@torch.no_grad()
def mass_study(t, ks, qs, length, scorers, turns, budgets, block=16, stride=4, chunk=5):
    """Mass kept: {scorer: [N, L, kv, budgets]}. ks [L][N, kv, T, hd] rotated, qs [L][N, heads, steps, hd] not rotated; budgets in blocks."""
    dev, steps = ks[0].device, qs[0].shape[2]
    at = torch.arange(0, steps, stride, device=dev)
    pos = length - steps + at
    nb = length // block
    sealed = torch.arange(nb, device=dev)[None] < (pos // block)[:, None]
    hide = torch.arange(length, device=dev)[None] > pos[:, None]
    last = [b - 1 for b in budgets]
    out = {}
    for lo in range(0, ks[0].shape[0], chunk):
        for i in range(t.layers):
            k = ks[i][lo:lo + chunk]
            kb = k[:, :, :nb * block].unflatten(2, (nb, block))
            q = groups_of(rope(qs[i][lo:lo + chunk][:, :, at], pos, t.theta), t.kv_heads)
            logit = (q.flatten(2, 3) @ k.transpose(-1, -2)).unflatten(2, q.shape[2:4])
            p = (logit * t.hd ** -0.5).masked_fill(hide, NEG).softmax(-1).mean(2)
            mass = p[..., :nb * block].unflatten(-1, (nb, block)).sum(-1) * sealed
            rest = 1 - mass.sum(-1)
            cache = {}

            def keep(name, score):
                got = mass.gather(-1, score.argsort(-1, descending=True)).cumsum(-1)[..., last]
                out.setdefault(name, {}).setdefault(i, []).append((rest[..., None] + got).mean(2))

            keep("ideal", mass.masked_fill(~sealed, NEG))
            for s in scorers:
                key = (s.kind, s.basis, s.dims, s.sub, s.quant)
                if key not in cache:
                    if s.kind.startswith("exact"):
                        x = logit[..., :nb * block].unflatten(-1, (nb, block))
                        x = {"exact max": lambda: x.amax(-1), "exact mean": lambda: x.mean(-1),
                             "exact lse": lambda: (x * t.hd ** -0.5).logsumexp(-1) * t.hd ** 0.5}[s.kind]()
                        cache[key] = x, torch.zeros_like(x)
                    else:
                        cache[key] = parts(s, q, *rows(s, kb, turns[i]), turns[i])
                a, b = cache[key]
                keep(str(s), combine(s, a, b, sealed, t.hd, turns[i]))
    return {k: torch.stack([torch.cat(v[i]) for i in range(t.layers)], 1) for k, v in out.items()}


@torch.no_grad()
def locality_study(t, head, ids, ks, vs, qs, drafts, scorers, turns, budget):
    """Agreement of the draft row and the current query with the truth, and misses of an LRU cache asked for the truth."""
    dev, (n, length), steps = ids.device, ids.shape, qs[0].shape[2]
    pos = torch.arange(length - steps + 1, length, device=dev)
    nb, w = length // 16, steps - 1
    sealed = torch.arange(nb, device=dev)[None] < (pos // 16)[:, None]
    rows_q = draft_rows(t, ks, vs, drafts[:, -w:], pos)
    res = {}
    for s in scorers:
        truths, firsts, hit = [], [], {"draft": [], "current": []}
        for i in range(t.layers):
            kb = ks[i].unflatten(2, (nb, 16))
            c, h = rows(s, kb, turns[i])
            sel = {}
            for name, q in (("true", rope(qs[i][:, :, 1:], pos, t.theta)), ("current", rope(qs[i][:, :, :-1], pos - 1, t.theta)), ("draft", rows_q[i])):
                a, b = parts(s, groups_of(q, t.kv_heads), c, h, turns[i])
                score = combine(s, a, b, sealed, t.hd, turns[i])
                sel[name] = top_mask(score, budget)
                if name == "true":
                    firsts.append(score[:, :, 0])
            truths.append(sel["true"])
            for name in hit:
                hit[name].append(((sel[name] & sel["true"]).sum(-1) / budget).mean().item())
        truth, first = torch.stack(truths), torch.stack(firsts)
        order = first.argsort(dim=-1, descending=True, stable=True)
        r = {name: float(np.mean(v)) for name, v in hit.items()}
        for ratio in (1.0, 1.5, 2.0):
            size = int(budget * ratio)
            seen = torch.zeros_like(first).scatter(-1, order, -torch.arange(nb, device=dev).float().expand_as(order))
            held, misses = top_mask(first, size), []
            for j, p in enumerate(pos.tolist()):
                if j == 0:
                    continue
                want = truth[..., j, :]
                if p % 16 == 0:
                    held[..., p // 16 - 1] = True
                misses.append((want & ~held).sum(-1).float().mean())
                held = held | want
                seen = torch.where(want, torch.full_like(seen, float(j)), seen)
                over = held.sum(-1, keepdim=True) - size
                held = held & ~top_mask((-seen).masked_fill(~held | want, NEG), over)
            r[f"misses {ratio:g}K"] = torch.stack(misses[16:]).mean().item()
        res[str(s)] = r
    return res


@torch.no_grad()
def decode_study(t, ids, ks, vs, steps, scorers, budgets, turns):
    """Teacher-forced decoding of the last `steps` tokens; every policy selects exactly, at use, with its own scorer. Policy 0 is dense.

    Returns names and {metric: [steps, policies, N]}. Batch entry = policy * N + document."""
    dev, (n, length) = ids.device, ids.shape
    kv, nl, nb, t0 = t.kv_heads, t.layers, length // 16, length - steps
    names = ["dense"] + [f"{s}|{k}" for s in scorers for k in budgets]
    per = len(budgets) * n
    b = len(names) * n
    key = torch.stack([x.repeat(len(names), 1, 1, 1) for x in ks])
    val = torch.stack([x.repeat(len(names), 1, 1, 1) for x in vs])
    summ = []
    for s in scorers:
        made = [[x.repeat(len(budgets), 1, 1, 1) for x in rows(s, ks[i].unflatten(2, (nb, 16)), turns[i])] for i in range(nl)]
        summ.append([torch.stack([m[0] for m in made]), torch.stack([m[1] for m in made])])
        del made
    size = torch.tensor([k for k in budgets for _ in range(n)], device=dev)[:, None, None]
    where, rank = torch.arange(length, device=dev), torch.arange(max(budgets), device=dev)
    rec = {k: [] for k in ("top1", "kl", "nll")}
    for step in range(steps):
        at = t0 + step
        sealed = torch.arange(nb, device=dev)[None] < at // 16
        open_ = (where >= at // 16 * 16) & (where <= at)
        pos = torch.tensor([at], device=dev)

        def attend(i, q, k, v):
            q, k = rope(q, pos, t.theta), rope(k, pos, t.theta)
            key[i, :, :, at], val[i, :, :, at] = k[:, :, 0], v[:, :, 0]
            g = groups_of(q, kv)  # [B, kv, G, 1, hd]
            see = torch.empty(b, kv, length, dtype=torch.bool, device=dev)
            see[:n] = where <= at
            for j, s in enumerate(scorers):
                part = slice(n + j * per, n + (j + 1) * per)
                x, y = parts(s, g[part], summ[j][0][i], summ[j][1][i], turns[i])
                best = combine(s, x, y, sealed, t.hd, turns[i])[:, :, 0].topk(max(budgets)).indices
                sel = torch.zeros(per, kv, nb, dtype=torch.bool, device=dev).scatter(-1, best, (rank < size).expand(best.shape))
                see[part] = sel.repeat_interleave(16, -1) | open_
            p = (g[:, :, :, 0] @ key[i].transpose(-1, -2) * t.hd ** -0.5).masked_fill(~see[:, :, None], NEG).softmax(-1)
            return (p @ val[i]).flatten(1, 2)[:, :, None]

        h, _ = t.forward(ids[:, at].repeat(len(names))[:, None], attend, pos)
        logp = t.logits(h[:, 0]).view(len(names), n, -1).log_softmax(-1)
        rec["top1"].append((logp.argmax(-1) == logp[:1].argmax(-1)).float())
        rec["kl"].append((logp[:1].exp() * (logp[:1] - logp)).sum(-1))
        if at + 1 < length:
            rec["nll"].append(-logp.gather(-1, ids[None, :, at + 1, None].expand(len(names), n, 1))[..., 0])
        if (at + 1) % 16 == 0:
            j0 = at // 16
            for j, s in enumerate(scorers):
                part = slice(n + j * per, n + (j + 1) * per)
                runs = summ[j][0].shape[3] // nb
                for i in range(nl):
                    c, hh = rows(s, key[i, part, :, at - 15:at + 1][:, :, None], turns[i])
                    summ[j][0][i][:, :, j0 * runs:(j0 + 1) * runs], summ[j][1][i][:, :, j0 * runs:(j0 + 1) * runs] = c, hh
    return names, {k: torch.stack(v).cpu().numpy() for k, v in rec.items()}


def shrunk_summaries(k, beta=0.5, plain=lookahead.summaries):
    """lookahead.py's (max, -min) rows of the shrunk box; block 0 gets rows that always win."""
    hi, lo = plain(k).chunk(2, -1)
    mid, half = (hi - lo) / 2, (hi + lo) / 2
    s = torch.cat([mid + beta * half, beta * half - mid], -1)
    if s.shape[-2] > 1:
        s[..., 0, :] = 1e4
    return s


def loop_study(t, ids, ks, vs, qs, drafts, budget):
    """The engine's loop of lookahead.py (draft row, cap 5%, R = 1.5K) with Quest's summaries and with the shrunk ones."""
    P, plain, out = lookahead.Policy, lookahead.summaries, {}
    plist = [P("dense", "draft", budget, None, kind="dense"), P("exact", "draft", budget, None, kind="exact"),
             P("uncapped", "draft", budget, None), P("bounded r1.5", "draft", budget, 0.05, 1.5)]
    for name, made in (("quest", plain), ("beta .5, block 0", shrunk_summaries)):
        lookahead.summaries = made
        rec, _ = lookahead.simulate(t, ids, ks, vs, qs, {"draft": drafts, "oracle": ids}, plist)
        for i, p in enumerate(plist):
            out[f"{name}|{p.name}"] = {k: rec[k][:, :, i].mean(0).tolist() for k in ("agree", "cover", "miss", "admit", "top1", "kl", "nll")}
    lookahead.summaries = plain
    return out


@torch.no_grad()
def query_moments(t, ids, first=256):
    """Second moments of the rotated queries at all positions from `first` on, pooled over documents and the query group: [L][kv, hd, hd]."""
    pos = torch.arange(ids.shape[1], device=ids.device)
    out = [0.0] * t.layers

    def attend(i, q, k, v):
        q, k = rope(q, pos, t.theta), rope(k, pos, t.theta)
        g = groups_of(q, t.kv_heads)[:, :, :, first:].transpose(0, 1).flatten(1, 3)
        out[i] = out[i] + g.transpose(-1, -2) @ g
        r = t.heads // t.kv_heads
        return F.scaled_dot_product_attention(q, k.repeat_interleave(r, 1), v.repeat_interleave(r, 1), is_causal=True)

    for row in ids:
        t.forward(row[None], attend)
    return out


def eigenbasis(m):
    return torch.linalg.eigh(m.double())[1].flip(-1).float()  # columns, largest eigenvalue first


def catalogue():
    """The scorers of the mass study, by table."""
    S = Scorer
    cat = {"S0": [S(), S(agg="max"), S(first=1), S(agg="prob"), S(agg="prob", first=1)]}
    cat["S1"] = [S(beta=b, agg=a, first=f) for b in BETAS for a in ("sum", "prob") for f in (0, 1)]
    cat["S1"] += [S(beta=.5, agg="max", first=1)] + [S(beta=.5, agg="prob", tau=x, first=1) for x in (.5, 2.0)]
    cat["S2"] = [S(kind=k, beta=b, agg=a, first=f) for k in ("std", "sqrt") for b in (0, .5, 1, 1.5, 2, 3) for a in ("sum", "prob") for f in (0, 1)]
    cat["S3"] = [S(kind="cum2", beta=b, agg=a, first=f) for b in (.25, .5, 1, 2) for a in ("sum", "prob", "max") for f in (0, 1)]
    cat["rotated"] = [S(beta=b, agg=a, first=1, basis="q") for b in BETAS for a in ("sum", "prob")]
    cat["rotated"] += [S(beta=b, agg=a, first=0, basis="q") for b in (.4, .5, 1) for a in ("sum", "prob")]
    cat["rotated"] += [S(beta=b, agg="sum", first=1, basis=x) for x in ("qlate", "k") for b in (.4, .5, 1)]
    cat["other"] = [S(kind="disc", beta=b, agg=a, first=1) for b in (.4, .5, .6, 1) for a in ("sum", "prob")]
    cat["other"] += [S(kind="soft", beta=b, agg=a, first=1, basis=x) for b in (.5, .75, 1) for a in ("sum", "prob") for x in ("", "q")]
    cat["reference"] = [S(kind=f"exact {x}", beta=0, agg=a, first=f) for x in ("max", "lse", "mean") for a in ("sum", "prob") for f in (0, 1)]
    cat["S4"] = [S(beta=b, sub=u, pool=p, first=1, basis=x) for b in (.5, 1) for u in (8, 4) for p in ("max", "lse", "late") for x in ("", "q")]
    cat["S4"] += [S(beta=.5, sub=u, agg="prob", first=1, basis=x) for u in (8, 4) for x in ("", "q")]
    cat["S4"] += [S(beta=b, basis="q", dims=d, sub=u, pool="late", first=1) for b in (.5, .75) for d, u in ((48, 16), (32, 16), (16, 16), (32, 8), (16, 8), (16, 4))]
    cat["S5"] = [S(quant=z, first=1) for z in ("fp8", "int8", "int4", "int4c")]
    cat["S5"] += [S(beta=.5, quant=z, first=1, basis=x) for z in ("fp8", "int8", "int4", "int4c") for x in ("", "q")]
    cat["S5"] += [S(beta=.5, quant=z, sub=u, pool="late", first=1, basis=x) for z, u in (("fp8", 8), ("int8", 8), ("int4c", 8), ("int4", 8), ("int4c", 4), ("int4", 4)) for x in ("", "q")]
    cat["S6"] = [S(beta=b, first=f, recent=r) for b in (.5, 1) for f in (0, 1) for r in (0, 1, 2, 4)]
    return cat


DECODED = [
    Scorer(), Scorer(first=1), Scorer(beta=.5), Scorer(beta=.5, first=1),
    Scorer(table="box sum", first=1), Scorer(agg="prob", first=1), Scorer(beta=.5, agg="prob", first=1),
    Scorer(beta=.5, agg="prob", tau=.5, first=1), Scorer(table="box prob", agg="prob", first=1),
    Scorer(beta=.5, sub=8, pool="late", quant="fp8", first=1), Scorer(beta=.5, first=1, basis="q"),
    Scorer(beta=.5, agg="prob", first=1, basis="q"), Scorer(beta=.5, sub=8, pool="late", quant="fp8", first=1, basis="q")]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--gguf", required=True)
    a.add_argument("--head", required=True)
    a.add_argument("--held", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--device", default="cuda")
    a.add_argument("--context", type=int, default=8192)
    a.add_argument("--budgets", default="32,64,128")
    a.add_argument("--steps", type=int, default=224)
    a.add_argument("--documents", type=int, default=10, help="tested documents; as many others calibrate")
    a.add_argument("--group", type=int, default=5, help="documents decoded at once")
    a.add_argument("--stride", type=int, default=4, help="the mass is measured at every such step")
    a.add_argument("--phases", default="mass,decode,locality,half,recall,recall half,loop")
    a.add_argument("--decoded", default="", help="indices into DECODED (default: all)")
    args = a.parse_args()
    begin = time.time()
    torch.backends.cuda.matmul.allow_tf32 = False
    dev, context, half = args.device, args.context, args.context // 2
    phases = args.phases.split(",")
    budgets = [int(x) for x in args.budgets.split(",")]
    mid = min(1, len(budgets) - 1)
    some = [DECODED[int(x)] for x in args.decoded.split(",")] if args.decoded else DECODED
    t = Target(args.gguf, torch.float32, dev)
    w = load_file(f"{args.head}/model.safetensors")
    head = Head(t.hidden, t.heads, t.kv_heads, t.inter, w["lm_head.weight"].shape[0], t.vocab, t.theta, 1e-5).load(w).to(dev)
    z = np.load(args.held)
    held = [x for x in np.split(z["ids"].astype(np.int64), np.cumsum(z["lens"])[:-1]) if len(x) >= context]
    test, other = held[0::2][:args.documents], held[1::2][:args.documents]
    results = {"mass": {}, "best_beta": {}, "locality": {}, "decode": {}, "recall": {}, "loop": {}}

    def log(*x):
        print(f"[{time.time() - begin:5.0f}s]", *x, flush=True)

    def save():
        json.dump(results, open(args.out, "w"))

    def load(docs, length):
        ids = torch.from_numpy(np.stack([x[:length] for x in docs])).to(dev)
        got = [dense_pass(t, head, ids[j:j + 2], args.steps + 1) for j in range(0, len(ids), 2)]
        ks, vs, qs = ([torch.cat([p[x][i] for p in got]) for i in range(t.layers)] for x in range(3))
        return ids, ks, vs, qs, torch.cat([p[3] for p in got])

    def report(name, got):
        tab = {k: {"mass": v.mean((0, 1, 2)).tolist(), "layers": v.mean((0, 2)).tolist(), "documents": v.mean((1, 2)).tolist()} for k, v in got.items()}
        results["mass"].setdefault(name, {}).update(tab)
        save()
        for k, v in tab.items():
            print(f"{name} | {k:48s}", *[f"{x:.4f}" for x in v["mass"]], flush=True)

    # calibration: rotations, then the best beta for all, per layer and per KV head
    ids, ks, vs, qs, _ = load(other, context)
    del vs
    moments, turns = query_moments(t, ids), []
    pos = torch.arange(context - args.steps - 1, context, device=dev)
    for i in range(t.layers):
        late = groups_of(rope(qs[i], pos, t.theta), t.kv_heads).transpose(0, 1).flatten(1, 3)
        kb = ks[i].unflatten(2, (-1, 16))
        dv = (kb - kb.mean(3, keepdim=True)).transpose(0, 1).flatten(1, 3)
        turns.append({"q": eigenbasis(moments[i]), "qlate": eigenbasis(late.transpose(-1, -2) @ late), "k": eigenbasis(dv.transpose(-1, -2) @ dv)})
    families = {"box": dict(first=1), "box q": dict(first=1, basis="q")}
    grid = {(f, g): [Scorer(beta=b, agg=g, **kw) for b in BETAS] for f, kw in families.items() for g in ("sum", "prob")}
    cal = mass_study(t, ks, qs, context, [s for v in grid.values() for s in v], turns, budgets, stride=args.stride)
    del ks, qs
    best = {}
    for (f, g), v in grid.items():
        c = torch.stack([cal[str(s)].mean(0) for s in v])  # [betas, L, kv, budgets]
        best[f, g] = c.mean((1, 2)).argmax(0), c.mean(2).argmax(0), c.argmax(0)
        for i in range(t.layers):
            turns[i][f"{f} {g}"] = torch.tensor(BETAS, device=dev)[best[f, g][2][i, :, mid]]
        results["best_beta"][f"{f} {g}"] = {"all": [BETAS[j] for j in best[f, g][0].tolist()], "heads": [[BETAS[j] for j in r] for r in best[f, g][2][..., mid].tolist()]}
    log("calibrated")

    if {"mass", "decode", "locality"} & set(phases):
        ids, ks, vs, qs, drafts = load(test, context)
    few = [Scorer(), Scorer(first=1)] + [Scorer(beta=.5, agg=g, first=1, basis=x) for x in ("", "q") for g in ("sum", "prob")]
    if "mass" in phases:
        got = mass_study(t, ks, qs, context, list(dict.fromkeys(s for group in catalogue().values() for s in group)), turns, budgets, stride=args.stride)
        report(f"{context}", got)
        for (f, g), v in grid.items():
            x = torch.stack([got[str(s)] for s in v], 1)  # [N, betas, L, kv, budgets]
            one, layer, each = best[f, g]
            report(f"{context}", {f"calibrated {f} {g}, one beta": torch.stack([x[:, one[j], :, :, j] for j in range(len(budgets))], -1),
                                  f"calibrated {f} {g}, per layer": x.gather(1, layer[None, None, :, None].expand(len(x), 1, -1, t.kv_heads, -1))[:, 0],
                                  f"calibrated {f} {g}, per head": x.gather(1, each[None, None].expand(len(x), 1, -1, -1, -1))[:, 0]})
        for block in (8, 32):
            report(f"{context} blocks of {block}", mass_study(t, ks, qs, context, few, turns, [k * 16 // block for k in budgets], block, args.stride))
        log("mass done")
    if "locality" in phases:
        results["locality"] = locality_study(t, head, ids, ks, vs, qs, drafts, some, turns, budgets[mid])
        for k, v in results["locality"].items():
            print("locality", k, {x: round(y, 3) for x, y in v.items()}, flush=True)
        log("locality done")

    def decode(docs, length, ks_, spans, into, label):
        joined = {}
        for lo in range(0, len(docs), args.group):
            i_, k_, v_, _, _ = load(docs[lo:lo + args.group], length)
            names, rec = decode_study(t, i_, k_, v_, args.steps, some, ks_, turns)
            del k_, v_
            for k, v in rec.items():
                joined.setdefault(k, []).append(v)
        joined = {k: np.concatenate(v, 2) for k, v in joined.items()}
        for i, name in enumerate(names):
            results[into][label + name] = {k: {m: v[s, i].mean(0).tolist() for m, s in spans.items()} for k, v in joined.items()}
            print(into, label, name, {k: [round(float(v[s, i].mean()), 4) for s in spans.values()] for k, v in joined.items()}, flush=True)
        save()
        log(into, label, "done")

    if "decode" in phases:
        del ks, vs, qs
        decode(test, context, budgets, {"all": slice(None)}, "decode", "")
    lead = 48
    for phase, length in (("recall", context), ("recall half", half)):
        if phase in phases:  # verbatim copy of an early passage after `lead` steps
            cut = length - args.steps + lead
            docs = [np.concatenate([x[:cut], x[length // 4:length // 4 + length - cut]]) for x in test]
            decode(docs, length, [budgets[mid]], {"before": slice(0, lead), "16-64": slice(lead + 16, lead + 64), "64-": slice(lead + 64, None)}, "recall", f"{length} ")
    if "half" in phases:  # rotation and betas still come from the longer documents
        ids, ks, vs, qs, _ = load(test, half)
        more = few + [s for v in grid.values() for s in v] + [Scorer(kind="cum2", beta=1, first=1), Scorer(kind="std", beta=1.5, first=1)]
        report(f"{half}", mass_study(t, ks, qs, half, list(dict.fromkeys(more)), turns, budgets, stride=args.stride))
    if "loop" in phases:
        for lo in range(0, len(test), args.group):
            ids, ks, vs, qs, drafts = load(test[lo:lo + args.group], context)
            for k, v in loop_study(t, ids, ks, vs, qs, drafts, budgets[mid]).items():
                for m, x in v.items():
                    results["loop"].setdefault(k, {}).setdefault(m, []).extend(x)
        for k, v in results["loop"].items():
            print("loop", k, {m: round(float(np.mean(x)), 4) for m, x in v.items()}, flush=True)
    save()
    log("done")


if __name__ == "__main__":
    main()
