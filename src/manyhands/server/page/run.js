// A run, from its records (server/records.py): every moment of it can be asked for.
//
// A moment is the number of passes that have been made: the record of pass 7 holds moment 7. Nothing is thrown
// away and nothing is drawn here. A step keeps, for each piece of its text, the moment at which it was written,
// so that what stood there at any moment is the beginning of what stands there now:
//
//     step.text      "84+29=113; ..."       starts [0, 2, 3, ...]      moments [1, 2, 3, ...]
//
// A step that was cut (a line that could pass for the team's structure) keeps what was dropped beside it.
//
// Blocks say who saw what. A token is fed with its writer's next row, into the block that this row writes to;
// `content` of a block lists pieces with the moment from which they stand in it.

import { upTo } from "./text.js";

const PERSON = "person";

export class Run {
  constructor() {
    this.begin = null;
    this.end = null;
    this.moments = []; // of each: {pass, time, tokens}
    this.workers = [];
    this.steps = []; // in the order in which they began
    this.finished = []; // in the order in which they ended
    this.groups = []; // workers that came together: branches of one block
    this.reply = this.textOf(null, 0, "");
    this.answers = [];
    this.refused = [];
    this.states = [{ at: 0, state: "begins" }];
    this.views = new Map(); // a writer's name -> [{from, items}]
    this.blocks = new Map(); // number -> {name, owner, content}
    this.byName = new Map();
    this.missed = 0;
    this.pending = new Map(); // a writer's name -> its pieces that no row has fed yet
    this.unplaced = []; // persons' steps that no block holds yet
    this.unfed = new Set(); // workers that were sent away with a token that no row has fed
  }

  /** Take the next record. */
  take(record) {
    if (record.kind === "begin") this.open(record);
    else if (record.kind === "missed") this.missed += record.count;
    else if (record.kind === "end") this.end = { ...record, at: this.now };
    else if (record.kind === "pass") this.pass(record);
  }

  get now() {
    return Math.max(0, this.moments.length - 1);
  }

  get isTeam() {
    const areSeveral = (this.begin.names ?? []).length > 1; // from the start, also where one of them writes the reply
    return (!this.begin.solo || areSeveral) && !this.isAttempts;
  }

  get isAttempts() {
    return ["self_consistency", "best_of_n"].includes(this.begin.method);
  }

  open(record) {
    this.begin = record;
    for (const name of record.names ?? []) this.welcome(name, false, false, 0);
  }

  pass(record) {
    const before = this.moments.at(-1) ?? { pass: 0, tokens: 0 };
    const moment = { pass: before.pass, time: record.time, tokens: before.tokens };
    this.moments.push(moment);
    // Views stand before the tokens of their pass: most come with the pass before, the first ones with their own.
    const lastWritten = record.events.findLastIndex((event) => WRITES.has(event.event));
    let isSettled = false;
    record.events.forEach((event, place) => {
      if (!ENGINE.has(event.event)) moment.pass = Math.max(moment.pass, event.forward_pass);
      if (event.event === "ViewsChanged") this.viewsChanged(event, this.now + (place > lastWritten ? 1 : 0));
      else if (event.event === "TokenWritten" && !isSettled) isSettled = this.settle();
      this[`on${event.event}`]?.(event, this.now);
    });
    if (!isSettled) this.settle();
    moment.tokens = this.workers.reduce((sum, worker) => sum + worker.tokens.length, 0);
  }

  welcome(name, late, isPerson, at) {
    const worker = {
      index: this.workers.length,
      name,
      late,
      isPerson,
      at,
      steps: [],
      tokens: [],
      states: [{ at, state: isPerson ? PERSON : "thinking" }],
      own: null,
    };
    this.workers.push(worker);
    return worker;
  }

  /** The worker of this number; one that nobody announced (records were missed) is made up. */
  worker(index, at) {
    while (this.workers.length <= index) this.welcome(`Worker ${this.workers.length}`, true, false, at);
    return this.workers[index];
  }

  textOf(worker, number, label) {
    return { id: -1, worker, number, label, begin: 0, end: null, text: "", starts: [], moments: [], cuts: [] };
  }

  openStep(worker, number, label, at) {
    const step = this.textOf(worker.index, number, label);
    step.id = this.steps.length;
    step.begin = at;
    this.steps.push(step);
    worker.steps.push(step);
    return step;
  }

  /** The step that a worker writes now. */
  current(worker, at) {
    const step = worker.steps.at(-1);
    if (step && step.end === null) return step;
    return this.openStep(worker, (step?.number ?? 0) + 1, "", at);
  }

  // -- what the strategy does

  onStepBegun(event, at) {
    const worker = this.worker(event.worker, at);
    const open = worker.steps.at(-1);
    const isOpen = open && open.end === null;
    if (isOpen && !open.starts.length && !open.cuts.length) {
      Object.assign(open, { number: event.step, label: event.text });
      return;
    }
    if (isOpen) open.end = at; // a line that parted without having said anything
    this.openStep(worker, event.step, event.text, at);
  }

  onTokenWritten(event, at) {
    const worker = this.worker(event.worker, at);
    const writer = this.writerOf(worker);
    const view = this.viewAt(writer, at);
    if (view) {
      worker.own = view.at(-1);
      this.fill(worker.own, this.fed(writer), at);
    }
    worker.tokens.push(at);
    const step = this.current(worker, at);
    this.pending.set(writer, [[step, step.starts.length]]);
    write(step, event.text, at);
  }

  onStepEnded(event, at) {
    const worker = this.worker(event.worker, at);
    const step = this.current(worker, at);
    if (worker.isPerson) {
      write(step, event.text, at);
      this.unplaced.push(step);
    } else if (!this.isTeam && step.moments.at(-1) < at) {
      // It ended its turn in this pass with a token that is not reported; the row fed the one before.
      const writer = this.writerOf(worker);
      this.fill(this.viewAt(writer, at)?.at(-1), this.fed(writer), at);
    }
    step.end = at;
    if (step.text.trim()) this.finished.push(step);
  }

  onStepCut(event, at) {
    const worker = this.worker(event.worker, at);
    const step = this.current(worker, at);
    const from = Math.max(0, step.text.length - event.text.length);
    const kept = upTo(step.starts, from - 1);
    step.cuts.push({ at, from, ...tail(step, kept, from) });
    step.text = step.text.slice(0, from);
    step.starts.length = step.moments.length = kept;
    const isKept = ([one, piece]) => one !== step || piece < kept;
    const writer = this.writerOf(worker);
    this.pending.set(writer, this.pendingOf(writer).filter(isKept));
    const own = this.blocks.get(worker.own);
    if (own) own.content = own.content.filter(isKept);
  }

  onCheckAsked(event, at) {
    this.current(this.worker(event.worker, at), at).checked = true;
  }

  onWorkerJoined(event, at) {
    const worker = this.worker(event.worker, at);
    Object.assign(worker, { name: event.name, late: !event.is_person, isPerson: event.is_person, at });
    worker.states = [{ at, state: event.is_person ? PERSON : "thinking" }];
    if (event.is_person || this.isTeam) return;
    const group = this.groups.at(-1);
    const isOpen = group && group.workers.some((index) => this.stateAt(this.workers[index], at).state !== "done");
    if (isOpen) group.workers.push(worker.index);
    else this.groups.push({ at, workers: [worker.index] });
  }

  onWorkerPaused(event, at) {
    this.worker(event.worker, at).states.push({ at, state: "paused" });
  }

  onWorkerResumed(event, at) {
    this.worker(event.worker, at).states.push({ at, state: "thinking" });
  }

  onWorkerStopped(event, at) {
    const worker = this.worker(event.worker, at);
    worker.states.push({ at, state: "done", reason: event.reason });
    if (event.reason === "stopped") worker.tokens.pop(); // a token that ends the turn is no word
    else if (event.reason === "dismissed") this.unfed.add(worker);
  }

  onRequestRefused(event, at) {
    this.refused.push({ at, request: event.request, reason: event.reason });
  }

  onForkRefused(event, at) {
    const { name } = this.worker(event.worker, at);
    this.refused.push({ at, request: "a fork", reason: `a fork of ${name}: ${event.reason}` });
  }

  onAnswerFound(event, at) {
    this.answers.push({ at, pass: event.forward_pass, worker: event.worker, answer: event.answer });
  }

  onReplyWritten(event, at) {
    write(this.reply, event.text, at);
  }

  // -- what the engine does with the run

  onQueued(event, at) {
    this.states.push({ at, state: "waits for memory" });
  }

  onAdmitted(event, at) {
    this.states.push({ at, state: "thinking" });
  }

  onPreempted(event, at) {
    this.states.push({ at, state: "left memory" });
  }

  onResumed(event, at) {
    this.states.push({ at, state: "thinking" });
  }

  /** Rows read other blocks from this pass on. */
  viewsChanged(event, from) {
    const isNew = new Set(Object.keys(event.blocks).map(Number));
    for (const [number, name] of Object.entries(event.blocks)) {
      this.blocks.set(Number(number), { name, owner: null, content: [] });
      this.byName.set(name, Number(number));
    }
    for (const [writer, items] of Object.entries(event.views)) {
      const before = this.views.get(writer)?.at(-1)?.items ?? [];
      if (!this.views.has(writer)) this.views.set(writer, []);
      this.views.get(writer).push({ from, items });
      this.inherit(flatView(items), flatView(before), isNew, from);
    }
  }

  /** Fill the new blocks of a view that hold what was written before: text that is fed once more, tails. */
  inherit(view, before, isNew, from) {
    view.forEach((number, place) => {
      const block = this.blocks.get(number);
      if (!block || !isNew.has(number) || block.content.length) return;
      if (block.name.endsWith("newest")) {
        const owner = this.blocks.get(view[place - 1])?.owner;
        if (owner) this.fill(number, this.pendingOf(owner), from);
      } else if (BEFORE_A_FORK.has(block.name)) {
        this.fill(number, this.pendingOf(this.blocks.get(view[place - 1])?.owner ?? "writer"), from);
      } else if (block.name === "branches") {
        // All that was written behind the block before it: by the parts of this fork, and by parts of theirs.
        for (const worker of this.workers.filter((one) => one.index && this.hasRead(one, view[place - 1]))) {
          for (const step of worker.steps) this.fill(number, piecesOf(step), from);
        }
      } else if (this.isTeam) {
        const old = before.find((one) => !view.includes(one) && this.blocks.get(one)?.name === block.name);
        if (old === undefined) return;
        const { owner, content } = this.blocks.get(old);
        this.fill(number, content.map(([step, piece]) => [step, piece]), from);
        if (owner) this.fill(number, this.fed(owner), from);
      }
    });
  }

  /** Whether a worker has read a block, or has it before its own text now. */
  hasRead(worker, number) {
    return (this.views.get(this.writerOf(worker)) ?? []).some(({ items }) => flatView(items).slice(0, -1).includes(number));
  }

  /** The newest pieces of a writer, which wait for its next row. */
  pendingOf(writer) {
    return this.pending.get(writer) ?? [];
  }

  /** The same; from now on they do not wait. */
  fed(writer) {
    const pieces = this.pendingOf(writer);
    this.pending.delete(writer);
    return pieces;
  }

  fill(number, pieces, from) {
    const block = this.blocks.get(number);
    if (!block) return;
    for (const [step, piece] of pieces) if (piece < step.starts.length) block.content.push([step, piece, from]);
  }

  /** What was said and what was left behind stands in a block from this pass on. */
  settle() {
    const at = this.now;
    for (const step of this.unplaced) {
      const { name } = this.workers[step.worker];
      const number = this.byName.get(`${name} ${step.number}`) ?? this.byName.get(`${name} 1`);
      if (number !== undefined) this.fill(number, piecesOf(step), at);
    }
    this.unplaced = [];
    for (const worker of this.unfed) {
      if (worker.own !== null) this.fill(worker.own, this.fed(this.writerOf(worker)), at);
    }
    this.unfed.clear();
    for (const worker of this.workers) {
      if (worker.isPerson) continue;
      const writer = this.writerOf(worker);
      const block = this.blocks.get(this.viewAt(writer, at)?.at(-1));
      if (block) block.owner = writer;
    }
    return true;
  }

  // -- any moment of it

  /** What the row of a writer reads in pass `at`: numbers of blocks in order; undefined if unknown. */
  viewAt(writer, at) {
    const views = this.views.get(writer) ?? [];
    const items = views[upTo(views, at, (view) => view.from) - 1]?.items;
    return items && flatView(items);
  }

  /**
   * The name under which the engine knows a worker. Points of an outline go round among the workers.
   *
   * Parts are known by their numbers: their names are words of the model, and those of a later fork may be the same.
   */
  writerOf(worker) {
    const { method, solo } = this.begin;
    if (worker.index === 0 && solo) return "writer";
    if (PART_NAMES[method]) return `${PART_NAMES[method]} ${worker.index}`;
    if (method === "skeleton") {
      const count = this.workers.filter((one) => one.late).length;
      const before = (worker.steps.at(-1)?.number ?? 1) - 1;
      return `point ${worker.index + before * count}`;
    }
    return this.views.has(worker.name) ? worker.name : worker.name.toLowerCase();
  }

  stateAt(worker, at) {
    return worker.states[Math.max(0, upTo(worker.states, at, (state) => state.at) - 1)];
  }

  /** How the whole run fares: of the engine, and of its end. */
  conditionAt(at) {
    if (this.end && at >= this.end.at) return this.end.error ? "failed" : "done";
    return this.states[upTo(this.states, at, (state) => state.at) - 1]?.state ?? "begins";
  }

  answerAt(at) {
    return this.answers[upTo(this.answers, at, (answer) => answer.at) - 1] ?? null;
  }

  /** The step that a worker has open at a moment, or its last. */
  stepAt(worker, at) {
    return worker.steps[upTo(worker.steps, at, (step) => step.begin) - 1] ?? null;
  }

  tokensAt(worker, at) {
    return upTo(worker.tokens, at);
  }

  /** Tokens a second of a worker, or of all, over the last seconds; at the end over all; null without times. */
  rateAt(at, worker = null, seconds = 2) {
    const { time, tokens } = this.moments[at] ?? {};
    if (!Number.isFinite(time)) return null;
    if (worker === null && this.end && at >= this.end.at) {
      const last = this.moments.find((moment) => moment.tokens >= tokens);
      return last.time > 0 ? tokens / last.time : null;
    }
    const first = upTo(this.moments, time - seconds, (moment) => moment.time);
    const before = Math.max(0, Math.min(first, at - 1));
    const past = time - this.moments[before].time;
    if (past <= 0) return null;
    if (worker === null) return (tokens - this.moments[before].tokens) / past;
    return (this.tokensAt(worker, at) - this.tokensAt(worker, before)) / past;
  }
}

/** How names of parts' writers begin, by their method. */
const PART_NAMES = { branches: "branch", profiled: "part", async_think: "worker" };
/** Blocks that hold the newest token of the main strand when it parts. */
const BEFORE_A_FORK = new Set(["before the block", "fork"]);
/** Events that tell what was chosen in a pass. */
const WRITES = new Set(["TokenWritten", "ReplyWritten"]);
/** Events of the engine, whose `forward_pass` counts the passes of endings too. */
const ENGINE = new Set(["Queued", "Admitted", "Preempted", "Resumed", "ViewsChanged", "UsageCounted"]);

/** What stands in a step at a moment: {text, end, cut}, `end` characters of its text or of what was cut. */
export function textAt(step, at) {
  const cut = step.cuts.find((one) => one.at > at);
  if (!cut) {
    const end = lengthAt(step, at);
    return { text: step.text, end, cut: null };
  }
  const before = Math.min(lengthAt(step, at), cut.from);
  const more = lengthAt(cut, at);
  return { text: step.text.slice(0, before) + cut.text, end: before + more, cut };
}

function lengthAt(step, at) {
  const pieces = upTo(step.moments, at);
  return pieces < step.starts.length ? step.starts[pieces] : step.text.length;
}

/** Append a piece to a text. */
function write(step, text, at) {
  step.starts.push(step.text.length);
  step.moments.push(at);
  step.text += text;
}

/** What is behind some pieces, as a text of its own. It may begin within the last of them. */
function tail(step, kept, from) {
  const first = kept && step.starts[kept] !== from ? kept - 1 : kept;
  const starts = step.starts.slice(first).map((start) => Math.max(0, start - from));
  return { text: step.text.slice(from), starts, moments: step.moments.slice(first) };
}

/** All pieces of a step. */
function piecesOf(step) {
  return step.starts.map((_, piece) => [step, piece]);
}

/** A view's blocks in the order in which they are read; lanes, of lanes too, one behind another. */
function flatView(items) {
  return items.flat(Infinity);
}
