// The text seen by each worker: all that a row could read in the pass in which it chose a token.
//
// In every layer all rows write their keys first, then all rows read. So a row of pass n reads what was fed up to
// and in pass n: of the others, all that they had written by pass n - 1, if their blocks are in its view.

import { upTo } from "./text.js";

/** The piece that the character at this offset of a step's text belongs to: its number, or -1. */
export function pieceAt(step, offset) {
  return upTo(step.starts, offset) - 1;
}

/** From where to where a piece reaches in its step's text. */
export function spanOf(step, piece) {
  return [step.starts[piece], step.starts[piece + 1] ?? step.text.length];
}

/**
* The text that the writer of a piece could read when it wrote it, or null if nothing is known of its view.
 *
 * `spans`: of each step, the stretches of its text. `order`: the blocks as they were read, each with its name,
 * whose it is, and how many pieces of it were there. `problem`: whether the prompt was among them.
 */
export function seenBy(run, step, piece) {
  const at = step.moments[piece];
  const writer = step.worker === null ? "reply" : writerThen(run, step);
  const view = writer === null ? null : run.viewAt(writer, at);
  if (!view) return null;
  const found = new Map();
  const order = [];
  let problem = false;
  for (const number of view) {
    const block = run.blocks.get(number);
    if (!block) continue;
    problem ||= block.name === "prompt";
    const content = block.content.filter(([, , from]) => from <= at);
    order.push({ name: block.name, worker: content[0]?.[0].worker ?? null, count: content.length });
    for (const [one, part] of content) {
      if (!found.has(one)) found.set(one, []);
      found.get(one).push(part);
    }
  }
  const spans = new Map([...found].map(([one, parts]) => [one, joined(one, parts)]));
  return { at, writer, spans, order, problem };
}

/** The engine's name of the writer of a step, while that step was written. */
function writerThen(run, step) {
  const worker = run.workers[step.worker];
  if (worker.isPerson) return null;
  if (run.begin.method !== "skeleton" || worker.index === 0) return run.writerOf(worker);
  const count = run.workers.filter((one) => one.late).length;
  return `point ${worker.index + (step.number - 1) * count}`;
}

/** Pieces as stretches of text, neighbours in one. */
function joined(step, parts) {
  const spans = [];
  for (const part of [...new Set(parts)].sort((a, b) => a - b)) {
    if (part >= step.starts.length) continue;
    const [start, end] = spanOf(step, part);
    if (spans.length && spans.at(-1)[1] === start) spans.at(-1)[1] = end;
    else if (end > start) spans.push([start, end]);
  }
  return spans;
}
