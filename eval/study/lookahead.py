"""How well does a draft token's query predict the next step's top-K KV blocks? Measured on SmolLM2-135M-Instruct with its head.

    PYTHONPATH=drafts/smollm2-135m-eagle3 python eval/study/lookahead.py --gguf MODEL.gguf --head drafts/smollm2-135m-eagle3 \\
        --held held.npz --onpolicy held_onpolicy.npz --out results.json

Blocks of 16 tokens; score of a block for a KV head = sum over the query heads of its group of sum_i max(q_i min_i, q_i max_i).
At position t the sealed blocks are those that end before t; the open block is always attended. The truth for a prediction made at
step t is the top-K by the true next token's query at position t+1.
Part 1 (dense) scores predictors against the densely attending model. Part 2 (sparse) runs the engine's loop: resident sets, cap,
LRU eviction, main and draft rows attending the selected set only, many policies side by side as batch entries.
"""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from eagle3 import Head
from target import Target, rope

BLOCK = 16


def groups_of(q, kv):  # [.., heads, .., hd] -> [.., kv, G, .., hd] on dim 1
    return q.unflatten(1, (kv, q.shape[1] // kv))


def summaries(k):
    """k [.., T, hd] -> [.., NB, 2hd]: (max, -min) of each full block, so that score = (relu(q), relu(-q)) . summary."""
    nb = k.shape[-2] // BLOCK
    b = k[..., :nb * BLOCK, :].unflatten(-2, (nb, BLOCK))
    return torch.cat([b.amax(-2), -b.amin(-2)], -1)


def split_sign(q):
    return torch.cat([q.relu(), (-q).relu()], -1)


def top_mask(score, k):
    """score [.., NB] (-inf: no candidate), k int or tensor broadcastable to score[..., :1] -> bool mask of the k best."""
    order = score.argsort(dim=-1, descending=True, stable=True)
    rank = torch.arange(score.shape[-1], device=score.device).expand_as(order)
    take = rank < k
    return torch.zeros_like(score, dtype=torch.bool).scatter(-1, order, take) & (score > float("-inf"))


@torch.no_grad()
def dense_pass(t, head, ids, steps):
    """Whole sequences, dense. Returns K, V [L][N, kv, T, hd] (K rotated), un-rotated Q of the last `steps`, drafts, logits there."""
    n, length = ids.shape
    pos = torch.arange(length, device=ids.device)
    ks, vs, qs = [], [], []

    def attend(i, q, k, v):
        qs.append(q[:, :, -steps:].clone())
        q, k = rope(q, pos, t.theta), rope(k, pos, t.theta)
        ks.append(k)
        vs.append(v.contiguous())
        g = t.heads // t.kv_heads
        return torch.cat([F.scaled_dot_product_attention(q[j:j + 1], k[j:j + 1].repeat_interleave(g, 1),
                                                         v[j:j + 1].repeat_interleave(g, 1), is_causal=True) for j in range(n)])

    h, taps = t.forward(ids, attend)
    logits = t.logits(h[:, -steps:])
    # row p (feature p, token p+1) drafts token p+2
    def draft_attend(q, k, v):
        g = head.heads // head.kv_heads
        return torch.cat([F.scaled_dot_product_attention(q[j:j + 1], k[j:j + 1].repeat_interleave(g, 1),
                                                         v[j:j + 1].repeat_interleave(g, 1), is_causal=True) for j in range(n)])
    emb = F.embedding(ids[:, 1:], t.w["embed_tokens.weight"])
    _, x = head.row(emb, head.feature(taps[:, :-1]), pos[:-1], draft_attend)
    z = F.linear(x[:, -(steps + 1):], head.w("lm_head"))
    best = head.target_ids()[z.argmax(-1)]
    drafts = torch.zeros_like(ids)
    drafts[:, -steps:] = best[:, -(steps + 1):-1]  # row T-2-1 predicts token T-1
    return ks, vs, qs, drafts, logits


def ngram_drafts(ids, steps):
    """Prompt lookup: the token after the latest earlier occurrence of the last 3, 2, 1 tokens; else the most frequent one."""
    out = torch.zeros_like(ids)
    found = 0
    for n, row in enumerate(ids.tolist()):
        length = len(row)
        latest = {}
        common = int(np.bincount(row[:length - steps]).argmax())
        for p in range(length):
            # predict row[p] from row[:p]
            if p >= length - steps:
                guess = common
                for m in (3, 2, 1):
                    if tuple(row[p - m:p]) in latest:
                        guess = row[latest[tuple(row[p - m:p])]]
                        found += m > 1
                        break
                out[n, p] = guess
            for m in (1, 2, 3):  # the gram that ends at p-1 is followed by position p: known from the next step on
                if p >= m:
                    latest[tuple(row[p - m:p])] = p
    return out.to(ids.device), found / (len(ids) * steps)


@torch.no_grad()
def draft_rows(t, ks, vs, tokens, positions):
    """Rows `tokens` [N, W] at `positions` [W], each seeing the dense keys before its position and itself. Rotated Q [L][N, heads, W, hd]."""
    length = ks[0].shape[2]
    hide = torch.arange(length, device=tokens.device)[None] >= positions[:, None]
    out = []

    def attend(i, q, k, v):
        q, k = rope(q, positions, t.theta), rope(k, positions, t.theta)
        out.append(q)
        g = groups_of(q, t.kv_heads)
        s = (g @ ks[i][:, :, None].transpose(-1, -2)).masked_fill(hide, float("-inf"))
        own = (g * k[:, :, None]).sum(-1, keepdim=True)
        p = (torch.cat([s, own], -1) * t.hd ** -0.5).softmax(-1)
        o = p[..., :-1] @ vs[i][:, :, None] + p[..., -1:] * v[:, :, None]
        return o.flatten(1, 2)

    t.forward(tokens, attend, positions)
    return out


def dense_study(t, ids, ks, vs, qs, drafts, the, budgets):
    """Part 1 on one group of sequences. Targets are positions T-steps+1 .. T-1."""
    n, length = ids.shape
    steps = qs[0].shape[2]
    target_pos = torch.arange(length - steps + 1, length, device=ids.device)
    w = len(target_pos)
    ngram, _ = ngram_drafts(ids, steps)
    tokens = {"draft": drafts, "ngram": ngram, "the": torch.full_like(ids, the)}
    rows = {k: draft_rows(t, ks, vs, v[:, -w:], target_pos) for k, v in tokens.items()}
    right = {k: (v[:, -w:] == ids[:, -w:]) for k, v in tokens.items()}
    nb = length // BLOCK
    closed = torch.arange(nb, device=ids.device)[None] >= (target_pos // BLOCK)[:, None]  # not sealed yet
    res = {"right": {k: v.float().mean().item() for k, v in right.items()}}
    agree = {}
    mass = {}
    lru, truths, firsts = {}, {}, []

    def record(name, budget, layer, m):  # m [N, kv, W]
        agree.setdefault((name, budget), []).append(m.mean().item())
        agree.setdefault((name + "/head_min", budget), []).append(m.mean((0, 2)).min().item())
        kind = name.split()[0]
        if kind in right:
            r = right[kind][:, None].expand_as(m)
            agree.setdefault((name + "/right", budget), []).append(m[r].mean().item() if r.any() else float("nan"))
            agree.setdefault((name + "/wrong", budget), []).append(m[~r].mean().item() if (~r).any() else float("nan"))
        elif name == "current":
            for tag, r in (("right", right["draft"]), ("wrong", ~right["draft"])):
                r = r[:, None].expand_as(m)
                agree.setdefault((f"{name}/draft {tag}", budget), []).append(m[r].mean().item())

    for i in range(t.layers):
        summ = summaries(ks[i])
        q = {"true": rope(qs[i][:, :, 1:], target_pos, t.theta),
             "current": rope(qs[i][:, :, :-1], target_pos - 1, t.theta),
             "advanced": rope(qs[i][:, :, :-1], target_pos, t.theta),
             **{k: v[i] for k, v in rows.items()}}
        scores = {}
        for k, v in q.items():
            per = split_sign(groups_of(v, t.kv_heads))  # [N, kv, G, W, 2hd]
            scores[k, "sum"] = (per.sum(2) @ summ.transpose(-1, -2)).masked_fill(closed, float("-inf"))
            if k in ("true", "current", "draft"):
                scores[k, "max"] = (per @ summ[:, :, None].transpose(-1, -2)).amax(2).masked_fill(closed, float("-inf"))
        scores["blend", "sum"] = scores["draft", "sum"] + scores["advanced", "sum"]
        scores["either", "sum"] = torch.maximum(scores["draft", "sum"], scores["advanced", "sum"])
        g = groups_of(q["true"], t.kv_heads)[:, :, :, ::8]
        prob = (g @ ks[i][:, :, None].transpose(-1, -2)) * t.hd ** -0.5
        hide = torch.arange(length, device=ids.device)[None] > target_pos[::8, None]
        prob = prob.masked_fill(hide, float("-inf")).softmax(-1)
        bmass = prob[..., :nb * BLOCK].unflatten(-1, (nb, BLOCK)).sum(-1)  # [N, kv, G, W/8, NB]
        sealed = ~closed[::8]
        bmass = bmass * sealed
        rest = 1 - bmass.sum(-1)  # the open block
        for budget in budgets:
            best = {k: top_mask(v, budget) for k, v in scores.items()}
            truth = best["true", "sum"]
            for k in [*q, "blend", "either"]:
                if k != "true":
                    record(k, budget, i, (best[k, "sum"] & truth).sum(-1) / budget)
            for k in ("current", "draft"):
                record(k + " (max)", budget, i, (best[k, "max"] & best["true", "max"]).sum(-1) / budget)
            agree.setdefault(("sum vs max", budget), []).append(((best["true", "max"] & truth).sum(-1) / budget).mean().item())
            ideal = top_mask(bmass.sum(2).masked_fill(~sealed, float("-inf")), budget)
            for name, sel in (("sum", truth[:, :, ::8]), ("max", best["true", "max"][:, :, ::8]), ("ideal", ideal),
                              ("draft", best["draft", "sum"][:, :, ::8]), ("current", best["current", "sum"][:, :, ::8])):
                mass.setdefault((name, budget), []).append((rest + (bmass * sel[:, :, None]).sum(-1)).mean().item())
            truths.setdefault(budget, []).append(truth)
        firsts.append(scores["true", "sum"][:, :, 0])

    # temporal locality: an LRU cache that is asked for the true set at every step, all layers at once
    first = torch.stack(firsts)  # [L, N, kv, NB]
    order = first.argsort(dim=-1, descending=True, stable=True)
    where = target_pos.tolist()
    for budget in budgets:
        truth = torch.stack(truths[budget])  # [L, N, kv, W, NB]
        for ratio in (1.0, 1.25, 1.5, 2.0):
            size = int(budget * ratio)
            last = torch.zeros_like(first).scatter(-1, order, -torch.arange(nb, device=ids.device).float().expand_as(order))
            held, misses = top_mask(first, size), []
            for s in range(1, w):
                want = truth[..., s, :]
                if where[s] % BLOCK == 0:  # the block sealed just now is in the fast tier anyway
                    held[..., where[s] // BLOCK - 1] = True
                misses.append((want & ~held).sum(-1).float().mean((1, 2)))
                held = held | want
                last = torch.where(want, torch.full_like(last, float(s)), last)
                over = held.sum(-1, keepdim=True) - size
                held = held & ~top_mask((-last).masked_fill(~held | want, float("-inf")), over)
            lru[ratio, budget] = torch.stack(misses[16:]).mean(0).tolist()
    res["agree"] = {f"{k}|{b}": v for (k, b), v in agree.items()}
    res["mass"] = {f"{k}|{b}": v for (k, b), v in mass.items()}
    res["lru_misses"] = {f"{k}|{b}": v for (k, b), v in lru.items()}
    return res


class Policy:
    def __init__(self, name, row, budget, cap=0.05, ratio=1.0, kind="bounded"):
        self.name, self.row, self.budget, self.ratio, self.kind = name, row, budget, ratio, kind
        self.cap = 10**6 if cap is None else int(np.ceil(cap * budget))


def policies(budgets, drift=False):
    out = [Policy("dense", "draft", budgets[0], None, kind="dense")]
    for k in budgets:
        out += [Policy("bounded", row, k) for row in ("draft", "oracle", "ngram", "the", "proxy")]
        out += [Policy("uncapped", row, k, None) for row in ("draft", "oracle", "proxy")]
        out += [Policy("exact", row, k, None, kind="exact") for row in ("draft", "oracle")]
        if not drift:
            out += [Policy(f"bounded r{r}", "draft", k, 0.05, r) for r in (1.25, 1.5, 2.0)]
        out += [Policy(f"bounded c{c}", "draft", k, c) for c in (0.1, 0.2)]
    return out


@torch.no_grad()
def simulate(t, ids, ks, vs, qs, tokens, plist):
    """The engine's loop over the last steps of each sequence for every policy at once. Batch entry = n * len(plist) + policy."""
    dev = ids.device
    n, length = ids.shape
    steps = qs[0].shape[2] - 1
    t0 = length - steps  # first simulated position; qs[..., 0] is that of t0 - 1, the last prompt token
    np_, kv, hd, nl = len(plist), t.kv_heads, t.hd, t.layers
    b, nb = n * np_, length // BLOCK

    def per(values, dtype=torch.int64):
        return torch.tensor(list(values) * n, dtype=dtype, device=dev)

    k_of, cap_of = per(p.budget for p in plist), per(p.cap for p in plist)
    size_of = per(int(p.budget * p.ratio) for p in plist)
    dense = per((p.kind == "dense" for p in plist), torch.bool)
    exact = per((p.kind == "exact" for p in plist), torch.bool)
    proxy = per((p.row == "proxy" for p in plist), torch.bool)
    owner = torch.arange(n, device=dev).repeat_interleave(np_)
    draft = torch.stack([tokens.get(p.row, tokens["draft"]) for p in plist], 1).reshape(b, length)  # the token at each position
    # the step at t carries the draft for t+1; past the end of the text any token does
    draft = torch.cat([draft, draft[:, -1:]], 1)

    key = torch.empty(nl, b, kv, length, hd, device=dev)  # positions >= t0 are rewritten by the simulation
    val, summ = torch.empty_like(key), torch.empty(nl, b, kv, nb, 2 * hd, device=dev)
    for i in range(nl):
        key[i], val[i], summ[i] = ks[i][owner], vs[i][owner], summaries(ks[i])[owner]
    k4, cap4, size4 = (x[:, None, None, None] for x in (k_of, cap_of, size_of))
    blocks = torch.arange(nb, device=dev)
    where = torch.arange(length, device=dev)
    NEG = float("-inf")

    def score_all(q, limit):  # q [B, L, heads, hd] -> [B, L, kv, NB]
        a = split_sign(q.unflatten(2, (kv, -1))).sum(3)
        return torch.einsum("blkd,lbknd->blkn", a, summ).masked_fill(blocks >= limit, NEG)

    q0 = torch.stack([rope(x[:, :, 0], torch.tensor(t0 - 1, device=dev), t.theta) for x in qs], 1)[owner]
    s0 = score_all(q0, t0 // BLOCK)
    order = s0.argsort(dim=-1, descending=True, stable=True)
    last = torch.zeros_like(s0).scatter(-1, order, t0 - torch.arange(nb, device=dev).expand_as(order) / nb)
    resident, chosen, predicted = top_mask(s0, size4), top_mask(s0, k4), top_mask(s0, k4)
    rec = {k: [] for k in ("agree", "cover", "agree_layer", "cover_layer", "agree_min", "miss", "admit", "top1", "nll", "kl")}

    for s in range(steps):
        at = t0 + s
        sealed = at // BLOCK
        open_ = (where >= sealed * BLOCK) & (where <= at)
        pair = torch.stack([ids[owner, at], draft[:, at + 1]], 1)
        pos = torch.tensor([at, at + 1], device=dev)
        q_main, q_next = [], []

        def attend(i, q, k, v):
            nxt = torch.where(proxy[:, None, None], rope(q[:, :, :1], pos[1:], t.theta)[:, :, 0], rope(q[:, :, 1:], pos[1:], t.theta)[:, :, 0])
            q, k = rope(q, pos, t.theta), rope(k, pos, t.theta)
            q_main.append(q[:, :, 0])
            q_next.append(nxt)
            key[i, :, :, at], val[i, :, :, at] = k[:, :, 0], v[:, :, 0]
            sel = chosen[:, i]
            a = split_sign(q[exact, :, 0].unflatten(1, (kv, -1))).sum(2)
            sc = torch.einsum("bkd,bknd->bkn", a, summ[i, exact]).masked_fill(blocks >= sealed, NEG)
            sel = sel.clone()
            sel[exact] = top_mask(sc, k4[exact, :, 0])
            see = (sel | dense[:, None, None]).repeat_interleave(BLOCK, -1)
            see = F.pad(see, (0, length - see.shape[-1])) & (where < sealed * BLOCK) | open_
            g = groups_of(q, kv)[..., :, :].flatten(2, 3)  # [B, kv, G*2, hd], rows main, draft, main, draft ..
            sc = (g @ key[i, :, :, :at + 1].transpose(-1, -2)).masked_fill(~see[:, :, None, :at + 1], NEG)
            own = (g * k[:, :, 1:]).sum(-1, keepdim=True)
            own[:, :, ::2] = NEG
            p = (torch.cat([sc, own], -1) * hd ** -0.5).softmax(-1)
            o = p[..., :-1] @ val[i, :, :, :at + 1] + p[..., -1:] * v[:, :, 1:]
            return o.view(b, kv, -1, 2, hd).flatten(1, 2)

        h, _ = t.forward(pair, attend, pos)
        logits = t.logits(h[:, 0]).view(n, np_, -1)
        logp = logits.log_softmax(-1)
        rec["top1"].append((logits.argmax(-1) == logits[:, :1].argmax(-1)).float())
        rec["kl"].append((logp[:, :1].exp() * (logp[:, :1] - logp)).sum(-1))
        if at + 1 < length:
            rec["nll"].append(-logp.gather(-1, ids[:, None, at + 1, None].expand(n, np_, 1))[..., 0])

        truth = top_mask(score_all(torch.stack(q_main, 1), sealed), k4)
        if s:  # predictions of the previous step
            hit = (predicted & truth).sum(-1) / k_of[:, None, None]
            cov = (chosen & truth).sum(-1) / k_of[:, None, None]
            rec["agree"].append(hit.mean((1, 2)).view(n, np_))
            rec["agree_min"].append(hit.amin((1, 2)).view(n, np_))
            rec["cover"].append(cov.mean((1, 2)).view(n, np_))
            rec["agree_layer"].append(hit.mean(2).view(n, np_, nl).mean(0))
            rec["cover_layer"].append(cov.mean(2).view(n, np_, nl).mean(0))

        if (at + 1) % BLOCK == 0:
            summ[:, :, :, sealed] = summaries(key[:, :, :, sealed * BLOCK:at + 1])[:, :, :, 0]
            resident[..., sealed] = True  # written just now: in the fast tier
            last[..., sealed] = at
        score = score_all(torch.stack(q_next, 1), (at + 1) // BLOCK)
        predicted = top_mask(score, k4)
        miss = predicted & ~resident
        admit = top_mask(score.masked_fill(~miss, NEG), cap4)
        rec["miss"].append(miss.sum(-1).float().mean((1, 2)).view(n, np_))
        rec["admit"].append(admit.sum(-1).float().mean((1, 2)).view(n, np_))
        resident |= admit
        last = torch.where(predicted & resident, torch.full_like(last, at + 1.0), last)
        over = resident.sum(-1, keepdim=True) - size4
        resident &= ~top_mask((-last).masked_fill(~resident | predicted, NEG), over)
        chosen = predicted & resident
        chosen |= top_mask(last.masked_fill(~resident | predicted, NEG), k4 - chosen.sum(-1, keepdim=True))
    return {k: torch.stack(v).float().cpu().numpy() for k, v in rec.items()}, t0


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--gguf", required=True)
    a.add_argument("--head", required=True)
    a.add_argument("--held", required=True)
    a.add_argument("--onpolicy", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--device", default="cuda")
    a.add_argument("--contexts", default="4096,8192")
    a.add_argument("--budgets", default="32,64,128")
    a.add_argument("--steps", type=int, default=224)
    a.add_argument("--sequences", type=int, default=10)
    a.add_argument("--bytes", type=float, default=80e9, help="GPU memory for the simulated caches")
    a.add_argument("--deadline", type=float, default=500)
    args = a.parse_args()
    begin = time.time()
    torch.backends.cuda.matmul.allow_tf32 = False
    t = Target(args.gguf, torch.float32, args.device)
    w = load_file(f"{args.head}/model.safetensors")
    head = Head(t.hidden, t.heads, t.kv_heads, t.inter, w["lm_head.weight"].shape[0], t.vocab, t.theta, 1e-5).load(w).to(args.device)
    from target import tokenizer
    the = tokenizer(t.meta).encode(" the").ids[0]
    budgets = [int(x) for x in args.budgets.split(",")]
    z = np.load(args.held)
    held = np.split(z["ids"].astype(np.int64), np.cumsum(z["lens"])[:-1])
    z = np.load(args.onpolicy)
    own = np.split(z["ids"].astype(np.int64), np.cumsum(z["lens"])[:-1])
    results = {"dense": {}, "sparse": {}, "drift": {}}

    def run(name, seqs, length, part):
        seqs = [x[:length] for x in seqs if len(x) >= length]
        if not seqs:
            return
        seqs = seqs[::max(1, len(seqs) // args.sequences)][:args.sequences]
        plist = policies(budgets if part != "drift" else budgets[1:2], part == "drift")
        per = len(plist) * length * t.layers * t.kv_heads * t.hd * 2 * 4 * 1.15
        size = max(1, min(len(seqs), int(args.bytes / per)))
        sims, dense = [], []
        for lo in range(0, len(seqs), size):
            if time.time() - begin > args.deadline:
                print("out of time at", name, lo, flush=True)
                break
            ids = torch.from_numpy(np.stack(seqs[lo:lo + size])).to(args.device)
            ks, vs, qs, drafts, _ = dense_pass(t, head, ids, args.steps + 1)
            ngram, _ = ngram_drafts(ids, args.steps + 1)
            if part != "drift":
                dense.append((len(ids), dense_study(t, ids, ks, vs, qs, drafts, the, budgets)))
                print(f"[{time.time() - begin:5.0f}s] dense {name} {lo}", flush=True)
            toks = {"draft": drafts, "oracle": ids, "ngram": ngram, "the": torch.full_like(ids, the)}
            rec, t0 = simulate(t, ids, ks, vs, qs, toks, plist)
            rec["right"] = (drafts == ids)[:, t0:].T.float().cpu().numpy()[..., None]
            rec["ngram_right"] = (ngram == ids)[:, t0:].T.float().cpu().numpy()[..., None]
            sims.append(rec)
            del ks, vs, qs
            print(f"[{time.time() - begin:5.0f}s] sparse {name} {lo} of {len(seqs)}", flush=True)
        if not sims:
            return
        if dense:
            total = sum(n for n, _ in dense)

            def mean(group):
                return {k: (sum(n * np.array(d[group][k]) for n, d in dense) / total).tolist() for k in dense[0][1][group]}

            results["dense"][name] = {"sequences": total, "right": mean("right"), "agree": mean("agree"), "mass": mean("mass"),
                                      "lru_misses": mean("lru_misses")}
        out = {"sequences": sum(s["top1"].shape[1] for s in sims), "steps": args.steps, "policies": {}}
        joined = {k: np.concatenate([s[k] for s in sims], 1) for k in sims[0] if not k.endswith("_layer")}
        layer = {k: np.mean([s[k] for s in sims], 0) for k in ("agree_layer", "cover_layer")}
        right = joined["right"][1:, :, 0] > 0.5  # was the draft for the judged position right
        out["draft_right"], out["ngram_right"] = float(joined["right"].mean()), float(joined["ngram_right"].mean())
        for i, p in enumerate(plist):
            x = {k: joined[k][:, :, i] for k in ("agree", "cover", "agree_min", "miss", "admit", "top1", "nll", "kl")}
            y = {k: float(v.mean()) for k, v in x.items()}
            y["agree_right"], y["agree_wrong"] = float(x["agree"][right].mean()), float(x["agree"][~right].mean())
            y["cover_right"], y["cover_wrong"] = float(x["cover"][right].mean()), float(x["cover"][~right].mean())
            y["agree_worst_layer"] = float(layer["agree_layer"][:, i].mean(0).min())
            y["cover_worst_layer"] = float(layer["cover_layer"][:, i].mean(0).min())
            if part == "drift":
                y["curve_cover"] = x["cover"].mean(1).round(4).tolist()
                y["curve_agree"] = x["agree"].mean(1).round(4).tolist()
                y["curve_miss"] = x["miss"].mean(1).round(2).tolist()
                y["curve_top1"] = x["top1"].mean(1).round(3).tolist()
                y["curve_kl"] = x["kl"].mean(1).round(4).tolist()
            out["policies"][f"{p.name}|{p.row}|{p.budget}"] = y
        results["drift" if part == "drift" else "sparse"][name] = out
        json.dump(results, open(args.out, "w"))
        if part != "drift":
            d = results["dense"][name]["agree"]
            for k in budgets:
                print(name, "K", k, {x.split("|")[0]: round(float(np.mean(v)), 4) for x, v in d.items() if x.endswith(f"|{k}") and "/" not in x}, flush=True)
        for k, y in out["policies"].items():
            print(name, k, {m: round(y[m], 4) for m in ("agree", "cover", "agree_worst_layer", "miss", "admit", "top1", "kl")}, flush=True)

    contexts = [int(x) for x in args.contexts.split(",")]
    for context in contexts:
        run(f"documents {context}", held, context, "main")
    run(f"on-policy {contexts[-1]}", [x for x in own if len(x) >= contexts[-1]], contexts[-1], "main")
    context = contexts[0]
    lead = 48
    cut = context - args.steps + lead  # the switch happens after `lead` simulated steps
    rest = context - cut
    switch = [np.concatenate([x[:cut], held[(i + 7) % len(held)][:rest]]) for i, x in enumerate(held)]
    recall = [np.concatenate([x[:cut], x[context // 4:context // 4 + rest]]) for x in held]
    run(f"switch {context} at {lead}", switch, context, "drift")
    run(f"recall {context} at {lead}", recall, context, "drift")
    if len(contexts) > 1:
        run(f"on-policy {context}", [x for x in own if context <= len(x) <= context + 8], context, "main")
    print(f"[{time.time() - begin:5.0f}s] done", flush=True)


if __name__ == "__main__":
    main()
