// Pointing at a word: what its writer could see in that pass is marked, all else steps back.
//
// The mouse points, a click keeps the mark until Escape; with the keyboard, the arrows go from token to token of the
// step that has the focus. Marks are highlights over ranges of text nodes, in the colours of the writers; the strip
// above the slider says the same in words, in the order in which the row read its blocks.

import { brief, make, say } from "./text.js";
import { HAS_HIGHLIGHTS, NUM_COLOURS, colourOf, wordsIn, wordsOf } from "./stage.js";
import { pieceAt, seenBy, spanOf } from "./seen.js";

const PLUMBING = new Set(["others' header", "own header", "more to come", "between", "prompt"]);

export class Marks {
  constructor(root) {
    this.root = root;
    this.run = null;
    this.at = null; // {step, piece}
    this.isKept = false;
    this.who = make("span", { class: "pointed" });
    this.order = make("ol", { class: "order", "aria-label": "In the order in which it was read" });
    this.close = make("button", { type: "button", class: "small", "aria-label": "Clear the marks", title: "Clear the marks (Esc)", click: () => this.clear() }, "✕");
    this.hint = make("span", { class: "hint" }, "Point at a word, or go to it with the arrows: what its writer could read in that pass is marked.");
    this.element = make("section", { class: "seen", "aria-label": "Who saw what" }, this.hint, this.who, this.order, this.close);
    let [x, y, isWaiting] = [0, 0, false];
    root.addEventListener("pointermove", (event) => {
      if (event.pointerType === "touch" || this.isKept) return;
      [x, y] = [event.clientX, event.clientY];
      if (isWaiting) return;
      isWaiting = true;
      requestAnimationFrame(() => {
        isWaiting = false;
        if (this.run && !this.isKept) this.point(pointed(x, y));
      });
    });
    root.addEventListener("pointerleave", () => this.isKept || this.clear());
    root.addEventListener("click", (event) => {
      if (!this.run || event.target.closest("button, input, a") || String(getSelection())) return;
      const found = pointed(event.clientX, event.clientY);
      this.isKept = found !== null;
      if (found) this.point(found);
      else this.clear();
    });
    root.addEventListener("keydown", (event) => this.press(event));
  }

  watch(run) {
    this.run = run;
    this.clear();
  }

  press(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const group = event.target.closest?.(".body, .scroller, .trunk");
    if (!step || !group || event.altKey || event.ctrlKey || event.metaKey) return;
    const next = this.at && group.dataset.pointed ? this.beside(this.at, step) : this.lastIn(group);
    if (!next) return;
    event.preventDefault();
    for (const other of this.root.querySelectorAll("[data-pointed]")) delete other.dataset.pointed;
    group.dataset.pointed = "yes";
    this.isKept = true;
    this.point(next);
  }

  /** The last token that is shown in an element. */
  lastIn(group) {
    const nodes = [...group.querySelectorAll(".words")].reverse();
    for (const { firstChild } of nodes) {
      const words = wordsIn(firstChild);
      if (words?.step?.starts?.length && words.to > words.from) return { step: words.step, piece: pieceAt(words.step, words.to - 1) };
    }
    const worker = this.run.workers[group.dataset.worker];
    const step = worker?.steps.findLast((one) => one.text.trim()); // its steps have moved to the history
    return step ? { step, piece: pieceAt(step, step.text.trimEnd().length - 1) } : null;
  }

  /** The next token of the same worker, or the one before. */
  beside({ step, piece }, direction) {
    let next = piece + direction;
    while (next >= 0 && next < step.starts.length) {
      const [start, end] = spanOf(step, next);
      if (end > start) return { step, piece: next };
      next += direction;
    }
    const steps = step.worker === null ? [] : this.run.workers[step.worker].steps;
    const other = steps[steps.indexOf(step) + direction];
    if (!other?.starts.length) return null;
    return { step: other, piece: direction > 0 ? 0 : other.starts.length - 1 };
  }

  point(found) {
    if (!found) {
      if (!this.isKept) this.clear();
      return;
    }
    if (this.at?.step === found.step && this.at.piece === found.piece) return;
    this.at = found;
    this.draw();
  }

  clear() {
    this.at = null;
    this.isKept = false;
    this.draw();
  }

  /** Mark anew: texts have grown or moved. */
  draw() {
    const { run, at } = this;
    const seen = at && seenBy(run, at.step, at.piece);
    this.root.classList.toggle("marking", Boolean(seen));
    this.root.classList.toggle("sees-problem", Boolean(seen?.problem));
    if (HAS_HIGHLIGHTS) paint(run, at, seen);
    this.hint.hidden = Boolean(at);
    this.who.hidden = this.order.hidden = this.close.hidden = !at;
    if (at) this.tell(at, seen);
  }

  tell({ step, piece }, seen) {
    const { run } = this;
    const [start, end] = spanOf(step, piece);
    const worker = step.worker === null ? null : run.workers[step.worker];
    const name = worker ? brief(worker.name, 40) : "The reply";
    const word = brief(step.text.slice(start, end), 24) || "⏎";
    const pass = run.moments[step.moments[piece]]?.pass ?? 0;
    if (worker?.isPerson) say(this.who, `${name} said this; all read it from the next pass on.`);
    else if (!seen) say(this.who, `${name} wrote “${word}” in pass ${pass}. The records do not say what it could read.`);
    else say(this.who, `${name} wrote “${word}” in pass ${pass} and could read:`);
    const blocks = (seen?.order ?? []).filter(({ name: block, count }) => count > 0 && !PLUMBING.has(block));
    const shown = blocks.length > 40 ? [...blocks.slice(0, 20), null, ...blocks.slice(-19)] : blocks;
    const chips = shown.map((block) => {
      if (!block) return make("li", { class: "gap" }, `… ${blocks.length - 39} more …`);
      const colour = block.worker === null || block.name === "branches" ? "" : colourOf(block.worker);
      return make("li", { class: `chip ${colour}` }, make("b", {}, this.called(block)), this.sizeOf(block));
    });
    if (seen?.problem) chips.unshift(make("li", { class: "chip" }, make("b", {}, "problem")));
    if (seen && !blocks.length && !seen.problem) chips.push(make("li", { class: "gap" }, "nothing yet"));
    this.order.replaceChildren(...chips);
  }

  sizeOf({ worker, count }) {
    if (worker !== null && this.run.workers[worker].isPerson) return ""; // whose words are not counted
    return ` ${count} token${count === 1 ? "" : "s"}`;
  }

  /** A block's name as people know it. */
  called(block) {
    const worker = block.worker === null ? null : this.run.workers[block.worker];
    if (worker && this.run.isTeam) return brief(block.name, 30).replace(/ (\d+)$/, " [$1]");
    if (!worker || block.name === "branches") return brief(block.name, 30);
    return brief(worker.index === 0 && this.run.begin.solo ? "main strand" : worker.name, 30);
  }
}

/** The token under a point of the screen, or null. */
function pointed(x, y) {
  let [node, offset] = [null, 0];
  if (document.caretPositionFromPoint) {
    const found = document.caretPositionFromPoint(x, y);
    [node, offset] = [found?.offsetNode, found?.offset];
  } else if (document.caretRangeFromPoint) {
    const found = document.caretRangeFromPoint(x, y);
    [node, offset] = [found?.startContainer, found?.startOffset];
  }
  const words = node && wordsIn(node);
  if (!words?.step?.starts?.length) return null;
  for (const start of [offset, offset - 1]) {
    if (start < 0 || start >= node.length) continue;
    const range = document.createRange();
    range.setStart(node, start);
    range.setEnd(node, start + 1);
    for (const box of range.getClientRects()) {
      if (x < box.left - 1 || x > box.right + 1 || y < box.top - 2 || y > box.bottom + 2) continue;
      const piece = pieceAt(words.step, words.from + start);
      return piece < 0 ? null : { step: words.step, piece };
    }
  }
  return null;
}

function paint(run, at, seen) {
  const ranges = Array.from({ length: NUM_COLOURS }, () => []);
  for (const [step, spans] of seen?.spans ?? []) {
    for (const words of wordsOf(step)) {
      for (const [start, end] of spans) {
        const range = words.range(start, end);
        if (range) ranges[(step.worker ?? 0) % NUM_COLOURS].push(range);
      }
    }
  }
  ranges.forEach((list, colour) => CSS.highlights.set(`seen-${colour}`, new Highlight(...list)));
  const own = at ? wordsOf(at.step).map((words) => words.range(...spanOf(at.step, at.piece))) : [];
  const point = new Highlight(...own.filter(Boolean));
  point.priority = 1;
  CSS.highlights.set("pointed", point);
}
