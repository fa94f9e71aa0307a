// The stage: a run at one moment, drawn as what its method is.
//
//     a team       the problem and the common history on one side, a desk for each worker on the other
//     one line     a trunk that parts into branches (or points of an outline) and joins again
//     attempts     columns side by side that read nothing of each other, and what came of them
//
// Text is written once into text nodes and then grows at their ends; a step that is long shows a stretch of itself.
// `Words` knows which characters of which step a node holds, so a point on the screen finds its token, and what a
// token could see is marked with highlights that add no element.

import { brief, counted, drawn, make, say, upTo, visible } from "./text.js";
import { textAt } from "./run.js";

const LONGEST_DESK = 4000; // characters of a step that is written
const LONGEST_STEP = 2400; // of a finished one, until more is asked for
const MOST_FOLDS = 6; // finished steps that a desk has a line of
export const NUM_COLOURS = 12; // a team of eight, and those who join it
const NARROWEST = 150; // pixels of a branch beside others
const NARROWEST_OF = { few: 190, many: 165, crowd: 135 }; // pixels of a desk

export const HAS_HIGHLIGHTS = typeof Highlight === "function" && CSS.highlights !== undefined;
const MARK = /<\/?[A-Za-z]+>/g; // of models that were trained to part (strategies/profiles.py)
const dimmed = HAS_HIGHLIGHTS ? new Highlight() : null;
if (dimmed) CSS.highlights.set("dimmed", dimmed);

const holders = new WeakMap(); // text node -> Words
const shownOf = new Map(); // step -> the Words that show it

/** The Words that hold a text node. */
export function wordsIn(node) {
  return holders.get(node);
}

/** All Words that show a step now. */
export function wordsOf(step) {
  return shownOf.get(step) ?? [];
}

/** The class that gives a worker its colour. */
export function colourOf(index) {
  return `w${index % NUM_COLOURS}`;
}

/** A stretch of the text of one step, in one text node. */
class Words {
  constructor(element, { newest = false } = {}) {
    this.node = document.createTextNode("");
    this.element = element;
    this.newest = newest;
    this.limit = newest ? LONGEST_DESK : LONGEST_STEP;
    this.step = null;
    this.from = this.to = 0; // characters of the step's text
    this.more = make("button", { class: "more", type: "button", hidden: true, click: () => this.showMore() });
    this.space = make("p", { class: "words", dir: "auto", tabindex: "-1" });
    this.space.append(this.node);
    element.append(this.space, this.more);
    holders.set(this.node, this);
  }

  draw(step, at, isDone) {
    const { text, end, cut } = textAt(step, at);
    let from = text.length - text.trimStart().length;
    let to = isDone ? text.slice(0, end).trimEnd().length : end;
    from = Math.min(from, to);
    const length = to - from;
    if (length > this.limit) {
      // The newest stretch begins at a multiple of the limit, so that it seldom has to be written anew.
      if (this.newest) from = to - this.limit - ((to - this.limit) % this.limit);
      else to = from + this.limit;
    }
    const goesOn = step === this.step && from === this.from && to >= this.to && cut === this.cut;
    if (step !== this.step) this.leave();
    if (goesOn) {
      if (to > this.to) this.node.appendData(visible(text.slice(this.to, to)));
    } else this.node.data = visible(text.slice(from, to));
    const isNew = step !== this.step;
    Object.assign(this, { step, from, to, cut });
    if (isNew) shownOf.set(step, [...wordsOf(step), this]);
    const left = this.newest ? 0 : length - (to - from);
    if (this.more.hidden !== left <= 0) this.more.hidden = left <= 0;
    if (left > 0) say(this.more, counted(left, "more character"));
  }

  showMore() {
    this.limit *= 8;
    this.element.dispatchEvent(new CustomEvent("redraw", { bubbles: true }));
  }

  /** The step is shown here no more. */
  leave() {
    if (!this.step) return;
    const others = wordsOf(this.step).filter((one) => one !== this);
    if (others.length) shownOf.set(this.step, others);
    else shownOf.delete(this.step);
    this.step = null;
  }

  remove() {
    this.leave();
    this.element.remove();
  }

  /** A range over characters `start` to `end` of the step, as far as they are shown; null if none is. */
  range(start, end) {
    const [low, high] = [Math.max(start, this.from) - this.from, Math.min(end, this.to) - this.from];
    if (low >= high || high > this.node.length) return null;
    const range = document.createRange();
    range.setStart(this.node, low);
    range.setEnd(this.node, high);
    return range;
  }
}

const STATES = {
  thinking: ["thinking", "●"],
  paused: ["paused", "‖"],
  waiting: ["waiting", "◌"],
  done: ["done", "✓"],
  person: ["joined", "☺"],
};
const REASONS = { budget: "out of budget", dismissed: "sent away", context: "context full" };

/** One worker: name, state, tokens; the step that it writes, or all of its steps. */
class Column {
  constructor(worker, run, { keepsAll, say: tell }) {
    this.worker = worker;
    this.run = run;
    this.keepsAll = keepsAll;
    this.name = make("h3", { class: "name", id: `worker-${worker.index}` });
    this.mark = make("span", { class: "initials", "aria-hidden": "true" });
    this.state = make("span", { class: "state" });
    this.tokens = make("span", { class: "tokens" });
    this.label = make("span", { class: "label" });
    this.body = make("div", { class: "body", "data-worker": String(worker.index), tabindex: "0", role: "group", "aria-labelledby": `worker-${worker.index}` });
    this.box = make("span", { class: "boxed", hidden: true });
    this.pause = make("button", { type: "button", class: "small", click: () => this.pauseOrResume(tell) });
    this.dismiss = make(
      "button",
      { type: "button", class: "small", click: () => tell({ item: "DismissWorker", worker: worker.index }) },
      "✕",
    );
    this.actions = make("span", { class: "actions", hidden: true }, this.pause, this.dismiss);
    this.element = make(
      "section",
      { class: `column ${colourOf(worker.index)}`, "aria-labelledby": `worker-${worker.index}` },
      make("header", {}, this.mark, make("div", { class: "who" }, this.name, make("div", { class: "facts" }, this.state, this.label, this.tokens)), this.actions),
      this.body,
      this.box,
    );
    this.parts = []; // {step, words}
    this.folds = make("div", { class: "folds" });
    this.desk = make("div", { class: "desk" }, this.folds);
    if (!keepsAll) {
      this.words = new Words(this.desk, { newest: true });
      this.body.append(this.desk);
    }
  }

  pauseOrResume(tell) {
    tell({ item: this.isPaused ? "ResumeWorker" : "PauseWorker", worker: this.worker.index });
  }

  draw(at, { live, listens, waits }) {
    const { worker, run } = this;
    const { state, reason } = run.stateAt(worker, at);
    const isOver = run.end !== null && at >= run.end.at;
    const shown = state !== "thinking" ? state : isOver ? "done" : waits ? "waiting" : state;
    const [word, sign] = STATES[shown];
    say(this.name, brief(worker.name, 48));
    const initials = initialsOf(worker.name);
    say(this.mark, initials);
    this.mark.hidden = initials === brief(worker.name, 48);
    say(this.state, `${sign} ${REASONS[reason] ?? word}`);
    const tokens = run.tokensAt(worker, at);
    const rate = shown === "thinking" ? run.rateAt(at, worker) : null;
    say(this.tokens, `${counted(tokens, "token")}${rate ? ` · ${counted(rate)}/s` : ""}`);
    this.element.dataset.state = shown;
    const isActive = live && listens && shown !== "done";
    if (this.actions.hidden === isActive) this.actions.hidden = !isActive;
    if (isActive) {
      this.isPaused = state === "paused";
      say(this.pause, this.isPaused ? "▶" : "‖");
      const name = brief(worker.name, 30);
      this.pause.setAttribute("aria-label", this.isPaused ? `Let ${name} go on` : `Pause ${name}`);
      this.pause.title = this.pause.getAttribute("aria-label");
      this.dismiss.setAttribute("aria-label", `Send ${name} away`);
      this.dismiss.title = this.dismiss.getAttribute("aria-label");
    }
    if (this.keepsAll) this.drawAll(at);
    else this.drawStep(at);
    this.drawAnswer(at);
  }

  drawStep(at) {
    const step = this.run.stepAt(this.worker, at);
    const isOpen = step && (step.end === null || step.end > at);
    const isIdle = !isOpen || (this.element.dataset.state === "done" && !textAt(step, at).text.trim());
    say(this.label, isIdle ? "" : `step ${step.number}${step.checked ? " · asked: redundant?" : ""}`);
    this.words.draw(isOpen ? step : NO_STEP, at, false);
    const done = this.worker.steps.filter((one) => one.end !== null && one.end <= at && one.text.trim());
    if (done.length !== this.folded) this.fold(done);
    this.folded = done.length;
  }

  /** Finished steps stand in the history; here a line is left of each of the last. */
  fold(done) {
    const lines = done.slice(-MOST_FOLDS).map((step) => {
      const reveal = () => this.element.dispatchEvent(new CustomEvent("reveal", { bubbles: true, detail: step }));
      return make("button", { type: "button", class: "fold", title: "Show it in the history", dir: "auto", click: reveal }, `✓ ${brief(step.text, 160)}`);
    });
    this.folds.replaceChildren(...lines);
  }

  drawAll(at) {
    const count = upTo(this.worker.steps, at, (step) => step.begin);
    while (this.parts.length > count) this.parts.pop().words.remove();
    for (let number = this.parts.length; number < count; number += 1) {
      const element = make("div", { class: "part" });
      this.body.append(element);
      this.parts.push({ step: this.worker.steps[number], words: new Words(element, {}) });
    }
    for (const { step, words } of this.parts) words.draw(step, at, step.end !== null && step.end <= at);
  }

  /** What this worker boxed, where each has an answer of its own. */
  drawAnswer(at) {
    const own = this.run.isAttempts && this.run.answers.filter((one) => one.worker === this.worker.index && one.at <= at).at(-1);
    if (this.box.hidden === Boolean(own)) this.box.hidden = !own;
    if (own) say(this.box, brief(own.answer, 80));
  }

  remove() {
    this.words?.leave();
    for (const { words } of this.parts) words.leave();
    this.element.remove();
  }
}

const NO_STEP = { text: "", starts: [], moments: [], cuts: [], end: null };

function initialsOf(name) {
  const words = brief(name, 40).split(/[^\p{L}\p{N}]+/u).filter(Boolean);
  if (/^\d{1,3}$/.test(words.at(-1))) return words.at(-1);
  if (words.length > 1) return [...words[0]][0] + [...words.at(-1)][0];
  return [...(words[0] ?? "?")].slice(0, 2).join("");
}

/** A list of columns that grows and shrinks with the workers that are there. */
class Columns {
  constructor(run, options) {
    this.run = run;
    this.options = options;
    this.element = make("div", { class: "columns" });
    this.columns = [];
    this.width = 0;
    new ResizeObserver(([entry]) => {
      this.width = entry.contentRect.width;
      requestAnimationFrame(() => this.spread()); // within the same frame it would resize what is being observed
    }).observe(this.element);
  }

  /** As many in a row as fit, in rows of like length: five are three and two, not four and one. */
  spread() {
    const count = Math.max(1, this.columns.length);
    const size = count > 24 ? "crowd" : count > 12 ? "many" : "few";
    const fitting = Math.max(1, Math.min(count, Math.floor(this.width / NARROWEST_OF[size])));
    const rows = Math.ceil(count / fitting);
    this.element.dataset.size = size;
    this.element.style.setProperty("--count", count);
    this.element.style.setProperty("--in-a-row", Math.ceil(count / rows));
  }

  draw(workers, at, scene) {
    while (this.columns.length > workers.length) this.columns.pop().remove();
    for (const worker of workers.slice(this.columns.length)) {
      const column = new Column(worker, this.run, this.options);
      this.columns.push(column);
      this.element.append(column.element);
    }
    for (const column of this.columns) column.draw(at, scene);
    if (this.spreadOver !== workers.length) this.spread();
    this.spreadOver = workers.length;
  }
}

/** The finished steps of all, in the order in which they ended. */
class History {
  constructor(run) {
    this.run = run;
    this.items = [];
    this.list = make("ol", { class: "steps" });
    this.empty = make("p", { class: "quiet" });
    this.element = make("section", { class: "history panel", "aria-labelledby": "history" });
    this.title = make("h2", { id: "history" });
    this.count = make("span", { class: "count" });
    const all = make("div", { class: "all" }, this.empty, this.list);
    this.scroller = make("div", { class: "scroller newest", tabindex: "0", role: "group", "aria-labelledby": "history" }, all);
    this.element.append(make("header", {}, this.title, this.count), this.scroller);
  }

  draw(at, isNew) {
    const { run, items } = this;
    const isShared = run.begin.settings?.layout !== "contiguous" && !run.begin.solo; // where one writes the reply nothing moves
    say(this.title, isShared ? "Common history" : "Finished steps");
    say(this.empty, isShared ? "A finished step moves here, and everybody reads it from then on." : "Finished steps stay on their writers' desks; this is a list of them.");
    const count = upTo(run.finished, at, (step) => step.end);
    while (items.length > count) items.pop().words.remove();
    const fresh = run.finished.slice(items.length, count);
    for (const step of fresh) this.add(step, at, isNew && fresh.length < 9);
    say(this.count, counted(count, "step"));
    if (this.empty.hidden !== count > 0) this.empty.hidden = count > 0;
  }

  /** Bring a step into sight. */
  reveal(step) {
    const found = this.items.find((one) => one.step === step)?.words.element;
    found?.scrollIntoView({ block: "nearest" });
    found?.animate([{ background: "var(--tint)" }, {}], 1200);
  }

  add(step, at, arrives) {
    const worker = this.run.workers[step.worker];
    const name = make("b", {}, brief(worker.name, 40));
    const first = this.run.moments[step.moments[0] ?? step.end]?.pass;
    const last = this.run.moments[step.end]?.pass;
    const when = worker.isPerson ? `said after pass ${last}` : `passes ${first}–${last}`;
    const item = make(
      "li",
      { class: `step ${colourOf(worker.index)}${worker.isPerson ? " person" : ""}${arrives ? " arrives" : ""}` },
      make("div", { class: "head" }, name, make("span", { class: "number" }, worker.isPerson ? "a person" : `step ${step.number}`), make("span", { class: "when" }, when)),
    );
    this.list.append(item);
    const words = new Words(item, {});
    words.draw(step, at, true);
    item.addEventListener("redraw", (event) => {
      event.stopPropagation();
      words.draw(step, this.run.now, true);
    });
    this.items.push({ step, words });
  }
}

/** Curves from one line to many columns, or back. */
class Fork {
  constructor(joins) {
    this.joins = joins;
    this.element = drawn("svg", { class: `fork${joins ? " joins" : ""}`, viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.drawn = "";
  }

  draw(workers) {
    const key = workers.map((worker) => worker.index).join();
    if (key === this.drawn) return;
    this.drawn = key;
    this.element.replaceChildren(
      ...workers.map((worker, place) => {
        const x = (100 * (place + 0.5)) / workers.length;
        const curve = this.joins ? `M${x} 0C${x} 55 50 45 50 100` : `M50 0C50 55 ${x} 45 ${x} 100`;
        return drawn("path", { d: curve, class: colourOf(worker.index) });
      }),
    );
  }
}

/** Workers side by side between a fork and a join. */
class Fan {
  constructor(run, options) {
    this.fork = new Fork(false);
    this.join = new Fork(true);
    this.columns = new Columns(run, { ...options, keepsAll: true });
    this.element = make("div", { class: "fan" }, this.fork.element, this.columns.element, this.join.element);
    this.run = run;
  }

  draw(workers, at, scene, isJoined) {
    this.columns.draw(workers, at, scene);
    this.fork.draw(workers);
    this.join.draw(workers);
    const width = this.element.clientWidth;
    this.element.classList.toggle("stacked", width > 0 && width / workers.length < NARROWEST);
    this.element.classList.toggle("joined", isJoined);
  }
}

/** A stretch of the main strand. `hasMarks`: words like <plan> in it are marks, which step back behind the text. */
class Trunk {
  constructor(hasMarks = false) {
    this.hasMarks = hasMarks && HAS_HIGHLIGHTS;
    this.marks = [];
    this.element = make("div", { class: "trunk panel", tabindex: "0", role: "group", "aria-label": "Main strand" });
    this.note = make("p", { class: "quiet", hidden: true });
    this.words = new Words(this.element, {});
    this.element.append(this.note);
  }

  draw(step, at, isOver) {
    const isDone = isOver || (step.end !== null && step.end <= at);
    this.words.draw(step, at, isDone);
    const tokens = upTo(step.moments, at);
    const isSilent = !textAt(step, at).text.trim() && tokens > 0;
    if (this.note.hidden === isSilent) this.note.hidden = !isSilent;
    if (isSilent) say(this.note, `${isDone ? "Wrote" : "Writes"} the titles of the parts: ${counted(tokens, "token")}`);
    this.element.classList.toggle("open", !isDone);
    this.element.hidden = isDone && !tokens;
    if (this.hasMarks) this.dim();
  }

  /** Marks anew, where the text has changed. */
  dim() {
    const { node } = this.words;
    if (node.data === this.dimmed) return;
    this.dimmed = node.data;
    this.forget();
    for (const found of node.data.matchAll(MARK)) {
      const range = document.createRange();
      range.setStart(node, found.index);
      range.setEnd(node, found.index + found[0].length);
      this.marks.push(range);
      dimmed.add(range);
    }
  }

  forget() {
    for (const range of this.marks.splice(0)) dimmed.delete(range);
  }

  remove() {
    this.forget();
    this.words.leave();
    this.element.remove();
  }
}

/** The answer, who boxed it, the reply; for attempts also how many came to which. */
class Ending {
  constructor(run) {
    this.run = run;
    this.answer = make("p", { class: "answer", dir: "auto" });
    this.by = make("p", { class: "by" });
    this.tally = make("ul", { class: "tally", hidden: true });
    this.reply = make("div", { class: "reply", hidden: true });
    this.words = new Words(this.reply, {});
    this.title = make("h2", { id: "ending" });
    this.element = make("section", { class: "ending panel", "aria-labelledby": "ending", hidden: true }, this.title, this.answer, this.by, this.tally, this.reply);
    this.element.addEventListener("redraw", () => this.words.draw(run.reply, run.now, true));
  }

  draw(at) {
    const { run } = this;
    const found = run.isAttempts ? run.answers.filter((one) => one.worker === null && one.at <= at).at(-1) : run.answerAt(at);
    const isOver = run.end !== null && at >= run.end.at;
    const answer = found?.answer ?? (isOver ? run.end.answer?.answer : null);
    const hasReply = !run.begin.solo && textAt(run.reply, at).end > 0;
    const hidden = !found && !isOver && !hasReply;
    if (this.element.hidden !== hidden) this.element.hidden = hidden;
    if (hidden) return;
    const error = isOver ? run.end.error : null;
    say(this.title, error ? "The run ended early" : answer == null && !hasReply ? "No answer" : "Answer");
    this.element.classList.toggle("failed", Boolean(error));
    say(this.answer, visible(error && answer == null ? error.message : (answer ?? "")).slice(0, 2000));
    this.answer.hidden = this.answer.textContent === "";
    this.answer.classList.toggle("long", this.answer.textContent.length > 60);
    say(this.by, this.story(found, at, isOver));
    this.reply.hidden = !hasReply;
    if (hasReply) this.words.draw(run.reply, at, isOver);
    this.count(at);
  }

  story(found, at, isOver) {
    const { run } = this;
    const parts = [];
    const writer = found && found.worker !== null ? run.workers[found.worker] : null;
    const isLone = run.begin.solo && writer?.index === 0; // there is but one line
    if (writer) parts.push(`boxed ${isLone ? "" : `by ${brief(writer.name, 40)} `}in pass ${found.pass}`);
    else if (found) parts.push(this.verdict());
    const reason = isOver && run.end.answer?.finish_reason;
    if (isOver && ENDS[reason]) parts.push(ENDS[reason]);
    const moment = run.moments[Math.min(at, run.now)];
    if (isOver && moment) parts.push(counted(moment.pass, "pass"), counted(moment.tokens, "token"));
    const saved = isOver && run.end.usage?.kv_bytes_saved;
    if (saved > 1e5) parts.push(`sharing spared ${bytes(saved)} of reading`);
    return parts.join(" · ");
  }

  verdict() {
    const { method, settings } = this.run.begin;
    if (method === "best_of_n") return "the attempt with the best grade";
    if (method === "self_consistency") return settings?.mode === "vote" ? "by a vote" : "by a row that read all attempts";
    return "asked for by the finisher, which read everything";
  }

  count(at) {
    const { run } = this;
    this.tally.hidden = !run.isAttempts;
    if (!run.isAttempts) return;
    const counts = new Map();
    for (const worker of run.workers) {
      const own = run.answers.filter((one) => one.worker === worker.index && one.at <= at).at(-1);
      const key = own ? brief(own.answer, 60) : "no answer";
      counts.set(key, [...(counts.get(key) ?? []), worker]);
    }
    const key = [...counts].map(([answer, workers]) => `${answer}/${workers.map((worker) => worker.index)}`).join();
    if (key === this.tallied) return;
    this.tallied = key;
    this.tally.replaceChildren(
      ...[...counts]
        .sort((a, b) => b[1].length - a[1].length)
        .map(([answer, workers]) =>
          make("li", {}, make("span", { class: "votes", "aria-label": `${workers.length} of ${run.workers.length}` }, ...workers.map((worker) => make("i", { class: colourOf(worker.index), title: brief(worker.name) }))), make("span", { dir: "auto" }, answer)),
        ),
    );
  }
}

const ENDS = {
  stopped: "all have ended their turns",
  budget: "the budget was spent",
  context: "the context was full",
  asked: "a person asked for it",
};

function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(4, Math.floor(Math.log10(number) / 3));
  return `${(number / 1000 ** power).toPrecision(3)} ${units[power]}`;
}

/** All of a run. */
export class Stage {
  constructor(run, tell) {
    this.run = run;
    this.ending = new Ending(run);
    this.problem = make("p", { class: "words problem-words", dir: "auto" }, visible(run.begin.problem ?? ""));
    this.problemPanel = make("section", { class: "problem panel", "aria-labelledby": "problem" }, make("h2", { id: "problem" }, "Problem"), make("div", { class: "scroller", tabindex: "0", role: "group", "aria-labelledby": "problem" }, this.problem));
    if (run.begin.warning) this.problemPanel.append(make("p", { class: "warning", dir: "auto" }, visible(run.begin.warning)));
    const options = { keepsAll: false, say: tell };
    this.sections = []; // of one line: {kind, of, part}
    dimmed?.clear();
    this.element = make("div", { class: "stage" });
    if (run.isTeam) {
      this.element.classList.add("team");
      this.history = new History(run);
      this.desks = new Columns(run, options);
      this.add = make("form", { class: "add", hidden: true, submit: (event) => this.addWorker(event, tell) }, make("input", { name: "name", "aria-label": "Name of a worker to add", placeholder: "name", maxlength: "80", required: true, autocomplete: "off" }), make("button", { class: "small" }, "Add worker"));
      this.element.append(
        make("div", { class: "side" }, this.problemPanel, this.history.element),
        make("div", { class: "desks", reveal: (event) => this.history.reveal(event.detail) }, this.desks.element, this.add, this.ending.element),
      );
    } else {
      this.element.classList.add("line");
      this.flow = make("div", { class: "flow" });
      this.options = options;
      this.element.append(this.problemPanel, this.flow, this.ending.element);
      if (run.isAttempts) {
        this.fan = new Fan(run, options);
        this.flow.append(this.fan.element);
      }
    }
  }

  addWorker(event, tell) {
    event.preventDefault();
    const field = event.target.elements.name;
    tell({ item: "AddWorker", name: field.value.trim() });
    field.value = "";
  }

  draw(at, { live }) {
    const { run } = this;
    const condition = run.conditionAt(at);
    const scene = { live: live && !run.end, listens: run.begin.listens, waits: condition !== "thinking" && condition !== "begins" && condition !== "done" };
    if (run.isTeam) {
      this.desks.draw(run.workers.filter((worker) => !worker.isPerson && worker.at <= at), at, scene);
      this.history.draw(at, live);
      this.add.hidden = !(scene.live && scene.listens);
    } else if (run.isAttempts) this.fan.draw(run.workers, at, scene, run.answers.some((one) => one.worker === null && one.at <= at));
    else this.drawLine(at, scene, condition);
    this.ending.draw(at);
  }

  drawLine(at, scene, condition) {
    const { run } = this;
    const trunks = (run.workers[0]?.steps ?? []).filter((step) => step.begin <= at).map((step) => ({ kind: Trunk, begin: step.begin, of: step }));
    const fans = run.groups.filter((group) => group.at <= at).map((group) => ({ kind: Fan, begin: group.at + 0.5, of: group }));
    const wanted = [...trunks, ...fans].sort((a, b) => a.begin - b.begin || (a.kind === Fan ? -1 : 1));
    // A line that goes on behind a block begins at the moment at which the block ends.
    while (this.sections.length && this.sections.at(-1).of !== wanted[this.sections.length - 1]?.of) {
      const { part } = this.sections.pop();
      part.remove ? part.remove() : part.element.remove();
    }
    for (const { kind, of } of wanted.slice(this.sections.length)) {
      const part = kind === Fan ? new Fan(run, this.options) : new Trunk(run.begin.method === "profiled");
      this.sections.push({ kind, of, part });
      this.flow.append(part.element);
    }
    this.sections.forEach(({ kind, of, part }, place) => {
      if (kind === Trunk) part.draw(of, at, run.stateAt(run.workers[0], at).state === "done" || condition === "done");
      else part.draw(of.workers.map((index) => run.workers[index]).filter((worker) => worker.at <= at), at, scene, place + 1 < this.sections.length);
    });
  }
}
