"""The cost of a server, and the load it bears: `manyhands serve` as a process, and clients of raw sockets in another.

    python -m benchmarks.serving                    cost, load and leavers, with the bundled model
    python -m benchmarks.serving --part soak --seconds 600

    cost      CPU time of the event loop for a pass, beside that of the thread that makes the passes, at 1, 16,
              64 and 256 streams. Both are CPU times of threads (/proc), so other work on the machine counts little
    load      64 clients that stream for a while: time to the first token, gaps between pieces, tokens a second,
              and how soon `/health` answers meanwhile
    leavers   200 clients that leave after half a second; then one request, and what is left of them: memory,
              threads, files, pages
    page      in a Chromium, as a person sees it for the first time: until the form can be used, and from the click
              until the team's first word stands on the page. Needs playwright, and a browser on the PATH
    soak      clients of all kinds for minutes: whole answers, streams, teams, those that leave and those that
              speak. What is left over is counted at the end, and memory after each fifth: a leak
              grows in every one of them, and what is kept on purpose does not

Latencies are those of a machine as busy as `machine_load` says (processes that want a core, over 1, 5 and 15
minutes). The server computes with one thread, so that the thread that makes the passes is all of the model. It needs
Linux, for /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results import Clock, Results, parser
from manyhands.cli.solve import EXAMPLE

PARTS = ("cost", "load", "leavers", "page", "soak")
CLICKS = 10
STREAMS = (1, 16, 64, 256)
CHAT, MODEL = "/v1/chat/completions", "bundled"
MEMORY_TOKENS, PAGE = 262144, 16  # of the server, and of one page of it
ROUNDS = 5  # of a soak, with a look at what is left behind each: what leaks grows in all of them


@dataclass
class Server:
    """The process and its address."""

    child: subprocess.Popen[str]
    port: int

    @property
    def folder(self) -> Path:
        """Where Linux tells of the process."""
        return Path(f"/proc/{self.child.pid}")

    def cpu_seconds(self) -> dict[int, float]:
        """CPU time of each thread; the main one, whose number is the process's, has the event loop."""
        found = {}
        for task in self.folder.joinpath("task").iterdir():
            # In nanoseconds, as the scheduler counts; `stat` counts whole ticks of ten milliseconds.
            found[int(task.name)] = int(task.joinpath("schedstat").read_text().split()[0]) / 1e9
        return found

    def remains(self) -> dict[str, float]:
        """Counts that grow where something is left over."""
        status = dict(
            line.split(":", 1) for line in self.folder.joinpath("status").read_text().splitlines()
        )
        return {
            "resident_mib": int(status["VmRSS"].split()[0]) / 1024,
            "threads": int(status["Threads"]),
            "files": len(list(self.folder.joinpath("fd").iterdir())),
        }


@contextmanager
def served(*arguments: str) -> Iterator[Server]:
    """A server of the bundled model on a free port."""
    command = [sys.executable, "-m", "manyhands", "serve", "--port", "0", "--no-log", *arguments]
    command += ["--memory-tokens", str(MEMORY_TOKENS), "--connections", "2048", "--streams", "1024"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as child:
        try:
            assert child.stderr is not None
            url = next(line for line in child.stderr if "serving at" in line).split()[-1]
            yield Server(child, int(url.rsplit(":", 1)[1]))
        finally:
            child.terminate()
            code = child.wait(60)
            assert code == 0, f"the server ended with {code}"


@dataclass
class Seen:
    """One stream as its client saw it; times in seconds."""

    first: float | None = None
    gaps: list[float] = field(default_factory=list)
    pieces: int = 0
    status: int = 0


async def ask(
    port: int, method: str, path: str, body: Any = None, *, leave_after: float | None = None
) -> tuple[Seen, bytes]:
    """One request over a connection of its own; pieces are timed as they come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    begun = last = time.perf_counter()
    seen, found = Seen(), bytearray()
    try:
        writer.write(head.encode() + content)
        async with asyncio.timeout(leave_after):
            while piece := await reader.read(1 << 16):
                now = time.perf_counter()
                num_pieces = piece.count(b'"content":"') - piece.count(b'"content":""')
                if num_pieces:
                    if seen.first is None:
                        seen.first = now - begun
                    else:
                        seen.gaps.append(now - last)
                    last = now
                seen.pieces += num_pieces
                found += piece
    except TimeoutError:
        pass
    finally:
        writer.close()
    if found:
        seen.status = int(found.split(b" ", 2)[1])
    return seen, bytes(found)


def streaming(seed: int, max_tokens: int, **more: Any) -> dict[str, Any]:
    """A request that streams."""
    said = [{"role": "user", "content": EXAMPLE}]
    body = {"model": MODEL, "messages": said, "stream": True, "seed": seed, "temperature": 1.0}
    # The end of a turn is no letter of the bundled world: streams are as long as they may be.
    return {**body, "max_tokens": max_tokens, **more}


async def metrics(port: int) -> dict[str, float]:
    """The counts of the server."""
    _, page = await ask(port, "GET", "/metrics")
    found = {}
    for line in page.decode().splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("manyhands_") and "{" not in name:
            found[name.removeprefix("manyhands_")] = float(value)
    return found


def percentile(values: list[float], share: float) -> float | None:
    """In milliseconds."""
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


# -- the parts ---------------------------------------------------------------------------------------


async def cost(server: Server, num_streams: int, seconds: float) -> dict[str, Any]:
    """CPU milliseconds of a pass, of the loop and of the model, while so many streams go on."""
    ends_at = time.monotonic() + seconds + 3

    async def client(seed: int) -> None:
        while time.monotonic() < ends_at:
            left = max(0.1, ends_at - time.monotonic())
            await ask(server.port, "POST", CHAT, streaming(seed, 400), leave_after=left)

    clients = [asyncio.ensure_future(client(seed)) for seed in range(num_streams)]
    await asyncio.sleep(2.5)
    before, passes = server.cpu_seconds(), (await metrics(server.port))["forward_passes_total"]
    tokens = (await metrics(server.port))["generation_tokens_total"]
    await asyncio.sleep(seconds)
    after, counted = server.cpu_seconds(), await metrics(server.port)
    await asyncio.gather(*clients)
    num_passes = counted["forward_passes_total"] - passes
    spent = {thread: after[thread] - before.get(thread, 0.0) for thread in after}
    loop = spent.pop(server.child.pid)
    model = max(spent.values())
    return {
        "streams": num_streams,
        "passes": num_passes,
        "rows_per_pass": round((counted["generation_tokens_total"] - tokens) / num_passes, 1),
        "loop_ms_per_pass": round(1000 * loop / num_passes, 3),
        "model_ms_per_pass": round(1000 * model / num_passes, 3),
        "share": round(loop / model, 4),
    }


async def load(server: Server, num_clients: int, seconds: float) -> dict[str, Any]:
    """Clients that stream one answer after another, and one that asks for the server's health."""
    ends_at = time.monotonic() + seconds
    all_seen: list[Seen] = []
    health: list[float] = []

    async def client(seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < ends_at:
            asked = streaming(rng.randrange(10**6), rng.randint(20, 120))
            seen, _ = await ask(server.port, "POST", CHAT, asked)
            all_seen.append(seen)

    async def look() -> None:
        while time.monotonic() < ends_at:
            begun = time.perf_counter()
            await ask(server.port, "GET", "/health")
            health.append(time.perf_counter() - begun)
            await asyncio.sleep(0.1)

    before, begun = await metrics(server.port), time.monotonic()
    await asyncio.gather(look(), *(client(seed) for seed in range(num_clients)))
    spent, after = time.monotonic() - begun, await metrics(server.port)
    tokens = after["generation_tokens_total"] - before["generation_tokens_total"]
    first = [seen.first for seen in all_seen if seen.first is not None]
    gaps = [gap for seen in all_seen for gap in seen.gaps]
    return {
        "clients": num_clients,
        "seconds": round(spent, 1),
        "answers": len(all_seen),
        "not_ok": sum(seen.status != 200 for seen in all_seen),
        "tokens_per_second": round(tokens / spent, 1),
        "first_ms_p50": percentile(first, 0.5),
        "first_ms_p99": percentile(first, 0.99),
        "gap_ms_p50": percentile(gaps, 0.5),
        "gap_ms_p99": percentile(gaps, 0.99),
        "health_ms_p50": percentile(health, 0.5),
        "health_ms_p99": percentile(health, 0.99),
        "health_ms_most": percentile(health, 1.0),
    }


async def leavers(server: Server, num_clients: int) -> dict[str, Any]:
    """Clients that leave, then one that stays. A crowd before warms what stays for good."""

    async def crowd() -> None:
        asked = [streaming(seed, 1000, n=4) for seed in range(num_clients)]
        await asyncio.gather(
            *(ask(server.port, "POST", CHAT, each, leave_after=0.5) for each in asked)
        )

    await crowd()
    await settled(server)
    before = server.remains()
    await crowd()
    begun = time.monotonic()
    seen, _ = await ask(server.port, "POST", CHAT, streaming(1, 10))
    answered = time.monotonic() - begun
    await settled(server)
    counted = await metrics(server.port)
    return {
        "clients": num_clients,
        "status": seen.status,
        "answered_after_seconds": round(answered, 2),
        "before": before,
        "after": server.remains(),
        "runs_left": counted["num_requests_running"] + counted["num_requests_waiting"],
        "streams_left": counted["num_streams"],
        "kv_cache_usage": counted["kv_cache_usage_perc"],
    }


def page(server: Server, clicks: int) -> dict[str, Any]:
    """Milliseconds until a person sees something, at each of several visits."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
    usable, first = [], []
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        for _ in range(clicks):
            tab = browser.new_context().new_page()
            begun = time.perf_counter()
            tab.goto(f"http://localhost:{server.port}/")
            _until(tab, "document.querySelector('button.primary')?.disabled === false")
            usable.append(time.perf_counter() - begun)
            # Both ends are read by the page's own clock: the way to the browser and back is not counted.
            tab.evaluate(
                """() => { const button = document.querySelector('button.primary');
                button.addEventListener('click', () => (window.clicked = performance.now()));
                const look = () => { const words = [...document.querySelectorAll('.column .words, .history .words')];
                  if (words.some((one) => one.textContent)) window.seen = performance.now(); else requestAnimationFrame(look); };
                look(); button.click(); }"""
            )
            _until(tab, "window.seen")
            first.append(tab.evaluate("(window.seen - window.clicked) / 1000"))
            tab.context.close()
        browser.close()
    return {
        "visits": clicks,
        "usable_ms_p50": percentile(usable, 0.5),
        "usable_ms_most": percentile(usable, 1.0),
        "first_word_ms_p50": percentile(first, 0.5),
        "first_word_ms_most": percentile(first, 1.0),
    }


def _until(tab: Any, truth: str) -> None:
    """Wait until an expression is true. Playwright's own way needs `eval`, which the page forbids."""
    limit = time.monotonic() + 20
    while not tab.evaluate(truth):
        if time.monotonic() > limit:
            raise RuntimeError(f"never true: {truth}")
        time.sleep(0.005)


async def settled(server: Server) -> None:
    """Until nothing is under way."""
    for _ in range(300):
        counted = await metrics(server.port)
        if not (counted["num_requests_running"] or counted["num_requests_waiting"]):
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)


async def soak(server: Server, num_clients: int, seconds: float) -> dict[str, Any]:
    """Clients of all kinds; a first minute warms what stays for good."""
    statuses: dict[str, int] = {}

    async def client(number: int, ends_at: float) -> None:
        rng = random.Random(number)
        while time.monotonic() < ends_at:
            kind = rng.choice(["whole", "stream", "team", "leaves", "run", "wrong"])
            asked = streaming(rng.randrange(10**6), rng.randint(1, 80), n=rng.randint(1, 3))
            patience = None
            if kind == "whole":
                asked["stream"] = False
            elif kind == "team":
                asked |= {"model": f"{MODEL}:hogwild-{rng.randint(1, 4)}"}
            elif kind == "leaves":
                asked["max_tokens"], patience = 1000, rng.random()
            elif kind == "wrong":
                asked["temperature"] = -1
            if kind == "run":
                status = await run(rng)
            else:
                seen, _ = await ask(server.port, "POST", CHAT, asked, leave_after=patience)
                status = seen.status
            name = f"{kind} {status}"
            statuses[name] = statuses.get(name, 0) + 1

    async def run(rng: random.Random) -> int:
        given = {"problem": EXAMPLE, "workers": rng.randint(1, 4), "budget": 300}
        seen, told = await ask(server.port, "POST", "/v1/runs", given)
        if seen.status == 201:
            path = "/v1/runs/" + json.loads(told.split(b"\r\n\r\n", 1)[1])["id"]
            await ask(server.port, "GET", f"{path}/events", leave_after=rng.random())
            said = {"item": "Said", "text": "Look once more.", "author": "Dana"}
            await ask(server.port, "POST", f"{path}/messages", said)
            await ask(server.port, "DELETE", path)
        return seen.status

    async def crowd(long: float) -> None:
        ends_at = time.monotonic() + long
        await asyncio.gather(*(client(number, ends_at) for number in range(num_clients)))
        await settled(server)

    async def found() -> dict[str, float]:
        """Counts that grow where something is left over, and what is kept on purpose."""
        counted = await metrics(server.port)
        _, told = await ask(server.port, "GET", "/v1/runs")
        return {
            **server.remains(),
            "pages": round(counted["kv_cache_usage_perc"] * MEMORY_TOKENS / PAGE),
            "runs_kept": len(json.loads(told.split(b"\r\n\r\n", 1)[1])["data"]),
        }

    await crowd(min(60.0, seconds / ROUNDS))
    seen = [await found()]
    statuses.clear()
    for _ in range(ROUNDS):
        await crowd(seconds / ROUNDS)
        seen.append(await found())
    counted = await metrics(server.port)
    return {
        "clients": num_clients,
        "seconds": seconds,
        "statuses": dict(sorted(statuses.items())),
        "before": seen[0],
        "after": seen[-1],
        "resident_mib_by_round": [round(each["resident_mib"], 1) for each in seen],
        "runs_left": counted["num_requests_running"] + counted["num_requests_waiting"],
        "streams_left": counted["num_streams"],
    }


def main() -> None:
    """Measure the parts that were asked for; lines of the others stay as they are in the file."""
    options = parser(__doc__, minutes=15)
    options.add_argument(
        "--part", choices=PARTS, action="append", help="default: all but page and soak"
    )
    options.add_argument(
        "--seconds", type=float, default=None, help="of load and soak, and of each cost"
    )
    arguments = options.parse_args()
    for part in arguments.part or PARTS[:3]:
        measure(part, arguments)


def measure(part: str, arguments: argparse.Namespace) -> None:
    """One part, into a file of its own."""
    clock = Clock(arguments.minutes)
    results = Results(f"serving_{part}", arguments, clock)
    with served() as server:
        asyncio.run(ask(server.port, "POST", CHAT, streaming(0, 30)))
        if part == "cost":
            for num_streams in (1, 4) if arguments.tiny else STREAMS:
                seconds = arguments.seconds or (1.0 if arguments.tiny else 10.0)
                line = asyncio.run(cost(server, num_streams, seconds))
                results.add("cost", **line)
            return
        seconds = arguments.seconds or (2.0 if arguments.tiny else 120.0)
        num = {"load": 64, "leavers": 200, "page": 1, "soak": 32}[part] // (
            16 if arguments.tiny else 1
        )
        if part == "load":
            line = asyncio.run(load(server, num, seconds))
        elif part == "page":
            line = page(server, 2 if arguments.tiny else CLICKS)
        elif part == "leavers":
            line = asyncio.run(leavers(server, num))
        else:
            line = asyncio.run(soak(server, num, seconds))
        results.add(part, **line, machine_load=[round(each, 1) for each in os.getloadavg()])


if __name__ == "__main__":
    main()
