"""Tables about the layers: their launches, their products' tiles, quantised weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.performance import NOTHING_YET, Result, cell, result, results, table
from benchmarks.shapes import EXPANDED, LATENT, SHAPES

KINDS = {"ordinary": "bfloat16", "fp8": "float8", "int4": "four bits"}


def launches() -> str:
    """Kernels of one decode layer without attention, and its time, before and after the fused modules."""
    found = result("launches")
    if found is None:
        return NOTHING_YET
    by_model: dict[str, dict[bool, Result]] = {}
    for line in found["layers"]:
        by_model.setdefault(line["model"], {})[line["fused"]] = line
    rows = [
        [model, *(f"{pair[fused][what]:.0f}" for what in ("launches", "us") for fused in pair)]
        for model, pair in by_model.items()
    ]
    return table(["shapes", "launches", "fused", "µs", "fused"], rows)


def experts() -> str:
    """Decoding with experts, beside the modelling code's own in the same engine; those in mxfp4 beside ours in 16 bits."""
    rows = []
    for name in _EXPERTS:
        found = result(name)
        if found is None:
            continue
        card = " ".join(found["hardware"].split(",")[0].split()[1:2])
        for line in found["cells"]:
            ms, floor, before = line["ms"], line["floor_ms"], line["before_ms"]
            rows.append(
                [
                    found["model"] if line is found["cells"][0] else "",
                    card if line is found["cells"][0] else "",
                    f"{line['rows']}, a team"
                    if line["team"] and line["rows"] > 1
                    else f"{line['rows']}",
                    f"{line['experts_read']:.0f} of {found['num_experts']}",
                    f"{ms:.2f}",
                    f"{floor:.2f}",
                    f"{ms / floor:.2f} ×",
                    f"{before:.2f}" if before else "",
                    f"{before / ms:.2f} ×" if before else "",
                    f"{line['tokens_per_second']:.0f}",
                    found["commit"],
                ]
            )
    head = ["network", "card", "rows", "experts read", "ms", "floor, ms", "over it"]
    head += ["before, ms", "times as fast", "tokens/s", "commit"]
    return table(head, rows) if rows else NOTHING_YET


_EXPERTS = (
    "experts_qwen3-30b-a3b",
    "experts_gpt-oss-20b",
    "experts_gpt-oss-20b-mxfp4",
    "experts_gpt-oss-120b-mxfp4",
    "experts_glm-4.5-air-12",
)


def experts_in_mxfp4() -> str:
    """All experts of one layer in mxfp4, and in 16 bits."""
    found = result("mxfp4_tiles")
    if found is None:
        return NOTHING_YET
    lines = found["tiles"]
    whole = {line["tokens"]: line["us"] for line in lines if line["form"].startswith("16 bits")}
    rows = []
    last = ""
    for line in sorted(
        (line for line in lines if line.get("used")),
        key=lambda line: (line["network"] != "gpt-oss-20b", line["tokens"]),
    ):
        before = whole.get(line["tokens"]) if line["network"] == "gpt-oss-20b" else None
        rows.append(
            [
                "" if line["network"] == last else line["network"],
                str(line["tokens"]),
                f"{line['experts_read']:.0f}",
                f"{line['us']:.0f}",
                f"{before:.0f}" if before else "",
                f"{before / line['us']:.2f} ×" if before else "",
                f"{line['gb_per_second'] / 1e3:.2f}",
            ]
        )
        last = line["network"]
    head = ["network", "tokens", "experts read", "µs", "in 16 bits, µs", "times as fast", "TB/s"]
    return table(head, rows)


def mxfp4_rings() -> str:
    """All experts of one layer in mxfp4, straight to registers and through a ring."""
    found = result("mxfp4_rings")
    if found is None:
        return NOTHING_YET
    lines = found["tiles"]
    before: dict[int, float] = {}
    for line in lines:  # the first line of so many tokens is what was there
        before.setdefault(line["tokens"], line["us"])
    rows = [
        [
            str(line["tokens"]),
            f"{before[line['tokens']]:.1f}",
            f"{line['us']:.1f}",
            f"{before[line['tokens']] / line['us']:.2f} ×",
        ]
        for line in lines
        if line.get("used")
    ]
    return table(["tokens", "without a ring, µs", "as chosen, µs", "times as fast"], rows)


def mxfp4_many() -> str:
    """All experts of one layer in mxfp4 that have many tokens, by the kernel of few and by that of many, and in 16 bits."""
    found = result("mxfp4_many")
    if found is None:
        return NOTHING_YET
    rows, last = [], ""
    for line in found["tiles"]:
        if (used := next((each for each in line["tiles"] if each.get("used")), None)) is None:
            continue
        whole = line["us_in_16_bits"]
        rows.append(
            [
                "" if line["network"] == last else line["network"],
                str(line["tokens"]),
                f"{line['before_us']:.0f}",
                f"{used['us']:.0f}",
                f"{line['before_us'] / used['us']:.2f} ×",
                f"{whole:.0f}" if whole else "",
            ]
        )
        last = line["network"]
    head = ["network", "tokens", "before, µs", "now, µs", "times as fast", "in 16 bits, µs"]
    return table(head, rows)


def lone_recordings() -> str:
    """The op where rows share little: by recordings with tiles for a team of four, by those of their own, and by a plan's own tiles."""
    found = result("lone_recordings")
    if found is None:
        return NOTHING_YET
    rows, last = [], ""
    for line in found["rows"]:
        heads = "/".join(map(str, line["heads"]))
        heads += "" if line["dim"] == _USUAL_DIM else f", {line['dim']} dims"
        other = f"{line['us_fa3']:.1f}" if line["us_fa3"] else ""
        rows.append(["" if heads == last else heads, *_before_and_now(line), other])
        last = heads
    return table(["heads", *_BEFORE_AND_NOW, "FlashAttention 3"], rows)


_BEFORE_AND_NOW = ("rows", "limit", "own tiles", "before", "now", "now / before")


def _before_and_now(line: Result) -> list[str]:
    """Cells of one situation of the op, by two ways."""
    before, now = line["us_before"], line["us_now"]
    times = f"{line['us_own']:.1f}", f"{before:.1f}", f"{now:.1f}"
    return [line["situation"], f"{line['us_limit']:.0f}", *times, f"{now / before:.2f} ×"]


def many_tiles() -> str:
    """The op of many small tiles by wide recordings, before their launches were chosen for what they are and behind that."""
    found = result("many_tiles")
    if found is None:
        return NOTHING_YET
    rows, last = [], ""
    for line in found["rows"]:
        heads = f"{'/'.join(map(str, line['heads']))}, {line['bits']} bits"
        rows.append(["" if heads == last else heads, *_before_and_now(line)])
        last = heads
    return table(["heads", *_BEFORE_AND_NOW], rows)


def life_many_tiles() -> str:
    """Whole passes in life, by both ways in turns in one engine: the mean, or the median of those without a prompt."""
    rows = []
    for name in _LIVES:
        found = result(name)
        if found is None:
            continue
        times: dict[tuple[int, str], dict[str, list[str]]] = {}
        for line in found["situations"]:
            come = "come" in line["name"]
            milliseconds = line["narrow_p50_ms"] if come else line["mean_ms"]
            way = "now" if line["variant"] in _NOW else "before"
            kept = times.setdefault((line["bits"], line["name"]), {})
            kept.setdefault(way, []).append(f"{milliseconds:.2f}")
        for (bits, situation), ways in times.items():
            cells = ", ".join(ways["before"]), ", ".join(ways["now"])
            rows.append([found["model"], str(bits), situation, *cells, _CHANGES[name]])
    head = ["network", "bits of keys", "situation", "before, ms", "now, ms", "what has changed"]
    return table(head, rows) if rows else NOTHING_YET


_CHANGES = {
    "life_many_tiles_qwen3-8b": "launches, recordings for teams of eight",
    "life_two_warps_qwen3-32b": "tiles of 32 rows by two warps",
    "life_lone_in_turns_qwen3-32b": "recordings for rows alone, tiles beside prompts",
}
_LIVES, _NOW = tuple(_CHANGES), ("now", "two warps")


def lent_logits() -> str:
    """Memory of an engine's recordings, with logits of their own and with one place for all."""
    found = result("lent_logits")
    if found is None:
        return NOTHING_YET
    rows = [
        [
            line["logits"],
            str(line["recordings"]),
            str(line["reserved_mib"]),
            f"{line['seconds']:.1f}",
        ]
        for line in found["rows"]
    ]
    return table(["logits", "recordings", "MiB reserved", "seconds until ready"], rows)


_USUAL_DIM = 128  # of a head


def mxfp4_prompts() -> str:
    """From the submission of a prompt to its first token, by both kernels."""
    found = result("mxfp4_many")
    if found is None:
        return NOTHING_YET
    rows = []
    for length in sorted({line["tokens"] for line in found["prompts"]}):
        before, now = (
            min(
                line["ms"]
                for line in found["prompts"]
                if (line["way"], line["tokens"]) == (way, length)
            )
            for way in ("before", "many")
        )
        rows.append([str(length), f"{before:.1f}", f"{now:.1f}", f"{before / now:.2f} ×"])
    return table(["tokens", "before, ms", "now, ms", "times as fast"], rows)


def routers() -> str:
    """The product of a router, in one program for all inputs, and in parts."""
    found = result("router_tiles")
    if found is None:
        return NOTHING_YET
    lines = [line for line in found["products"] if line["product"].endswith("router")]
    rows = []
    for line in lines:
        if line["tiles"] is not None:
            continue
        here = line["product"], line["tokens"]
        tried = [other for other in lines if (other["product"], other["tokens"]) == here]
        near = next(other for other in tried if other["tiles"] == [16, 64, 8, 2, 4])
        best = min(other["us"] for other in tried)
        rows.append(
            [
                line["product"].removesuffix(", router"),
                f"{line['outputs']} × {line['inputs']}",
                str(line["tokens"]),
                f"{line['us']:.2f}",
                f"{near['us']:.2f}",
                f"{best:.2f}",
            ]
        )
    head = [
        "network",
        "outputs × inputs",
        "tokens",
        "one program, µs",
        "eight parts, µs",
        "best, µs",
    ]
    return table(head, rows)


def tiles() -> str:
    """The best tiles for each product in passes of a whole network."""
    rows = []
    for name, found in results("tiles"):
        before = found["ms_before"]
        for line in found["tiles"]:
            size, best = " × ".join(map(str, line["size"])), line["tried"][0]
            shown = "{1} × {2}, {3}, {4}, {5}".format(*best)
            rows.append(
                [
                    SHAPES[name].title,
                    line["product"],
                    size,
                    shown,
                    f"{before:.2f} → {line['ms']:.2f}",
                ]
            )
            before = line["ms"]
    head = ["shapes", "product", "outputs × inputs", "best: tile, parts, warps, stages", "pass, ms"]
    return table(head, rows) if rows else NOTHING_YET


def quantised_products() -> str:
    """All products of one layer by kind of weights and tokens, and reading them at the speed of a copy."""
    found = result("quantised_products")
    if found is None or not found.get("products"):
        return NOTHING_YET
    tokens = sorted({line["tokens"] for line in found["products"]})
    rows = []
    for model in dict.fromkeys(line["model"] for line in found["products"]):
        for kind, called in KINDS.items():
            if kind == "int4":  # of the kernel before; `four_bits` has today's beside it
                continue
            sums = [_sum(found, model, kind, count) for count in tokens]
            if all(sums):
                floor = sums[0]["floor_us"]
                rows.append([model, called, f"{floor:.0f}", *(f"{s['us']:.0f}" for s in sums)])
    return table(["shapes", "weights", "floor, µs", *map(str, tokens)], rows)


def four_bits() -> str:
    """All products of one layer with weights of four bits, by the kernel before and by today's."""
    found = result("quantised_registers_h100")
    rows = [
        [
            line["model"],
            str(line["tokens"]),
            *(f"{line[key]:.0f}" for key in ("floor_us", "before_us", "now_us")),
            f"{line['floor_us'] / line['now_us']:.0%}",
        ]
        for line in (found or {}).get("layers", [])
    ]
    head = ["shapes", "tokens", "floor, µs", "before", "now", "of a copy's speed"]
    return table(head, rows) if rows else NOTHING_YET


def four_bits_passes() -> str:
    """Whole passes with weights of four bits."""
    rows = []
    for name, shape in SHAPES.items():
        found = result(f"decode_{name}_int4") or {}
        parts = {line["workers"]: line for line in found.get("breakdown", [])}
        for line in found.get("cells", []):
            inside = parts.get(line["workers"], {})
            rows.append(
                [
                    shape.title,
                    str(line["history"]),
                    str(line["workers"]),
                    f"{line['ms']:.2f} ({line['floor_ms']:.2f})",
                    *(f"{inside[key]:.2f}" if key in inside else "" for key in _PARTS),
                ]
            )
    head = ["shapes", "history", "workers", "ms (floor)", "products", "attention", "rest"]
    return table(head, rows) if rows else NOTHING_YET


_PARTS = ("ms_linears", "ms_attention", "ms_rest")


def _sum(found: Result, model: str, kind: str, tokens: int) -> dict[str, float]:
    lines = [
        line
        for line in found["products"]
        if (line["model"], line["weights"], line["tokens"]) == (model, kind, tokens)
    ]
    return {what: sum(line[what] for line in lines) for what in ("us", "floor_us")} if lines else {}


def quantised_accuracy() -> str:
    """The loss by rounding: the same text through the ordinary and the quantised network."""
    found = result("quantised_accuracy")
    if found is None or not found.get("accuracy"):
        return NOTHING_YET
    return table(
        [
            "network",
            "weights",
            "of the bytes",
            "lists right",
            "KL per token",
            "likeliest token agrees",
        ],
        list(_accuracies(found)),
    )


def _accuracies(found: Result) -> Iterator[list[str]]:
    def share(line: Result, name: str) -> str:
        return f"{line[name]:.1%}" if name in line else ""

    for line in found["accuracy"]:
        yield [
            line["model"],
            KINDS[line["weights"]],
            share(line, "size"),
            share(line, "right"),
            f"{line['kl']:.4f}" if "kl" in line else "",
            share(line, "agreement"),
        ]


_LATENT_NETWORKS = {
    "deepseek-v2-lite": "DeepSeek-V2-Lite, 16 heads",
    "glm-4.7-flash": "GLM-4.7-Flash, 20",
    "kimi-k2": "Kimi K2, 64",
    "deepseek-v3": "DeepSeek-V3, 128",
}
_LATENT_PEERS = (
    (LATENT, "FlashMLA"),
    (LATENT, "FlashAttention 3"),
    (EXPANDED, "FlashAttention 3"),
)


def latents() -> str:
    """Attention of one layer with latents by both kinds of tiles, and with the keys and values that they stand for."""
    found = result("latents")
    if found is None:
        return NOTHING_YET
    by_case: dict[tuple[str, str], dict[str, Result]] = {}
    for line in found["cells"]:
        by_case.setdefault((line["name"], line["case"]), {})[line["tiles"] or line["form"]] = line
    rows = []
    last = ""
    for (name, case), by in by_case.items():
        ours, ordinary, expanded = by["specialised"], by.get("ordinary"), by["expanded"]
        rows.append(
            [
                _LATENT_NETWORKS.get(name, name) if name != last else "",
                *_latent_case(case),
                f"{ours['us']:.0f}",
                f"{ordinary['us']:.0f}" if ordinary else "",
                f"{ours['us'] / ordinary['us']:.2f}" if ordinary else "",
                f"{ours['us'] / ours['us_limit']:.1f}",
                f"{expanded['us']:.0f}",
            ]
        )
        last = name
    head = ["network", "queries", "history", "specialised tiles, µs", "ordinary, µs", "ratio"]
    return table([*head, "over the limit", "expanded, µs"], rows)


def _latent_case(case: str) -> tuple[str, str]:
    """The queries of a case of `benchmarks/latents.py`, and their history."""
    kind, history, more = case.split()
    team = "1 worker" if more == "1" else f"{more} workers"
    return team if kind == "team" else f"prompt of {more}", history


def latents_peers() -> str:
    """Ours of latents beside FlashMLA and FlashAttention 3, each by the fastest way to ask it.

    Teams are of one run; prompts of another, in which ours have tiles for the expanded form.
    """
    rows = []
    last = ""
    for kind, file in (("team", "latents_peers"), ("prefill", "latents_prompts")):
        found = result(file)
        if found is None:
            continue
        best: dict[tuple[str, str, str, str], Result] = {}
        for line in found["peers"]:
            key = line["name"], line["case"], line["form"], line["peer"]
            if key not in best or line["us"] < best[key]["us"]:
                best[key] = line
        for name, case in dict.fromkeys(key[:2] for key in best):
            ours = cell(found, name=name, case=case, form=LATENT, tiles="specialised")
            expanded = cell(found, name=name, case=case, form=EXPANDED)
            if ours is None or not case.startswith(kind):
                continue
            told = []
            for form, peer in _LATENT_PEERS:
                line = best.get((name, case, form, peer))
                own = ours if form == LATENT else expanded
                told += (
                    [f"{line['us']:.0f} ({line['way']})", _over(own, line)] if line else ["", ""]
                )
            network = _LATENT_NETWORKS.get(name, name) if name != last else ""
            own_expanded = f"{expanded['us']:.0f}" if expanded and kind == "prefill" else ""
            rows.append([network, *_latent_case(case), f"{ours['us']:.0f}", own_expanded, *told])
            last = name
    head = ["network", "queries", "history", "ours, µs", "ours, expanded, µs"]
    for form, peer in _LATENT_PEERS:
        head += [f"{peer}{', expanded' if form == EXPANDED else ''}, µs", "ours over it"]
    return table(head, rows) if rows else NOTHING_YET


def _over(ours: Result | None, line: Result) -> str:
    return f"{ours['us'] / line['us']:.2f}" if ours and line["us"] else ""


def latents_first_tokens() -> str:
    """First tokens of prompts of a whole network with latents, in both forms in turns."""
    found = result("latents_first_tokens")
    if found is None:
        return NOTHING_YET
    by_length: dict[int, dict[str, float]] = {}
    for line in found["cells"]:
        by_length.setdefault(line["tokens"], {})[line["form"]] = line["ms"]
    rows = [
        [
            str(length),
            f"{by[EXPANDED]:.1f}",
            f"{by['absorbed']:.1f}",
            f"{by[EXPANDED] / by['absorbed']:.2f}",
        ]
        for length, by in by_length.items()
    ]
    return table(["tokens", "expanded form, ms", "absorbed form, ms", "ratio"], rows)


def latents_passes() -> str:
    """Passes of a whole network with latents, by both kinds of tiles."""
    found = result("latents_passes")
    if found is None:
        return NOTHING_YET
    by_cell: dict[tuple[int, int], dict[str, float]] = {}
    for line in found["cells"]:
        by_cell.setdefault((line["history"], line["workers"]), {})[line["tiles"]] = line["ms"]
    rows = [
        [
            str(history),
            str(workers),
            f"{by['specialised']:.2f}",
            f"{by['ordinary']:.2f}" if "ordinary" in by else "",
            f"{by['specialised'] / by['ordinary']:.2f}" if "ordinary" in by else "",
        ]
        for (history, workers), by in by_cell.items()
    ]
    head = ["history", "workers", "specialised tiles, ms", "ordinary, ms", "ratio"]
    return table(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        launches,
        experts,
        experts_in_mxfp4,
        mxfp4_rings,
        mxfp4_many,
        mxfp4_prompts,
        lone_recordings,
        many_tiles,
        life_many_tiles,
        lent_logits,
        routers,
        tiles,
        quantised_products,
        four_bits,
        four_bits_passes,
        quantised_accuracy,
        latents,
        latents_peers,
        latents_first_tokens,
        latents_passes,
    )
}
