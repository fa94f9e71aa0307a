// A new run, and the runs that there are. The bundled model gets a problem of its own small world to try.

import { brief, counted, drawn, make, say, visible } from "./text.js";
import { Refused, ask } from "./source.js";

const LIST = "Solve these problems and box the answers in order, separated by commas:\n";
// Each with a team that suits its length.
const BUNDLED_PROBLEMS = [
  { workers: 4, problem: LIST + "1. 84 + 29 - 38\n2. 17 + 60 + 5 - 31\n3. 93 - 46 + 12\n4. 25 + 25 + 25 + 25\n5. 71 - 8 - 9" },
  { workers: 8, problem: LIST + "1. 48 - 29 + 46 - 5\n2. 214 - 79 - 83\n3. 86 + 89 - 294 + 99\n4. 5 - 7\n5. 371 + 26\n6. 846 - 930 + 55\n7. 67 - 32 + 915\n8. 41 + 31 - 79 + 49 + 18\n9. 467 + 93 - 10\n10. 90 + 41 - 252\n11. 33 + 528 - 60 + 28\n12. 39 - 29 - 21 + 82" },
  { workers: 4, problem: LIST + "1. Musa packed 3 boxes with 9 postcards each. Later 3 of the postcards were lost. How many postcards remain?\n2. 35 + 76 + 41 + 3 + 84 + 57\n3. A bus was carrying 74 people. At the market, 3 people got off and 35 got on. How many people were then on the bus?\n4. Leila reads 12 pages every day for 5 days. The book has 177 pages. How many pages are left?" },
  { workers: 6, problem: LIST + "1. 98 - 6 - 66 - 13 - 8 - 5\n2. 65 + 37 + 97 + 80\n3. 69 + 40 + 94 + 88 - 61\n4. 46 - 21 + 71\n5. 57 - 4 + 12 - 1 - 43 + 94\n6. 91 + 25 + 31 + 70 - 12" },
  { workers: 4, problem: LIST + "1. In the garden there are 4 rows of 7 red flowers and 9 rows of 12 white flowers. How many flowers are in the garden?\n2. 34 + 25 - 35 - 13 + 30 + 67\n3. Yara has 28 puzzles. After giving 12 of them to Anya, how many puzzles does Yara have left?\n4. Musa caught 70 fish and Olga caught 40 fewer than Musa. How many fish did they catch together?" },
];
const PROBLEMS = [
  "Find all integers n between 1 and 60 for which n² + n + 41 is not a prime. Check each candidate by factoring, and give their number in \\boxed{}.",
  "For each of the twelve months, give the number of letters of its English name; then find which pairs of months have names of the same length, and give the number of such pairs in \\boxed{}.",
  "How many ways are there to tile a 3 × 8 rectangle with dominoes? Find a recurrence, compute it in two different ways, and give the number in \\boxed{}.",
];
// The drawing of each method in 64 × 32; `workers`: the smallest number, the usual one, and the largest; `isTrained`: of
// models that were trained for it, `isAsked`: of models that do what a prompt says. The bundled one is neither.
const METHODS = [
  { name: "hogwild", title: "Team", about: "everybody reads everybody, while they write", workers: [1, 4, 256], lines: ["M4 6H60", "M4 13H60", "M4 20H60", "M4 27H60", "M16 6v21M32 6v21M48 6v21"] },
  { name: "branches", title: "Branches", about: "one line parts where it can, and joins again", lines: ["M4 16H18C28 16 24 6 34 6H36C46 6 42 16 52 16H60", "M18 16H52", "M18 16C28 16 24 26 34 26H36C46 26 42 16 52 16"] },
  { name: "skeleton", title: "Skeleton", about: "an outline, its points side by side, a conclusion", workers: [0, 0, 256], lines: ["M4 8h8M4 16h8M4 24h8", "M16 8H44", "M16 16H44", "M16 24H44", "M48 16H60"] },
  { name: "async_reasoning", title: "Think and write", about: "the reply begins while thoughts go on", isAsked: true, lines: ["M4 10H60", "M20 22H60", "M20 10v12M34 10v12M48 10v12"] },
  { name: "async_think", title: "Organiser", about: "it gives parts away, goes on, and asks for results", isAsked: true, workers: [1, 2, 256], lines: ["M4 10H60", "M12 10C18 10 16 18 22 18H34C40 18 38 10 44 10", "M20 10C26 10 24 26 30 26H42C50 26 46 10 54 10"] },
  { name: "self_consistency", title: "Self-consistency", about: "independent attempts, one answer from all", workers: [2, 4, 256], lines: ["M4 6H40C50 6 48 16 58 16", "M4 13H40C48 13 50 16 58 16", "M4 19H40C48 19 50 16 58 16", "M4 26H40C50 26 48 16 58 16"] },
  { name: "best_of_n", title: "Best of n", about: "independent attempts, the best is chosen", workers: [2, 4, 256], lines: ["M4 6H44", "M4 13H60", "M4 20H44", "M4 27H44"] },
  { name: "sequential", title: "Alone", about: "one worker, ordinary decoding", lines: ["M4 16H60"] },
  { name: "profiled", title: "As trained", about: "a model that parts by itself, as it was trained to", isTrained: true, lines: ["M4 16H12C20 16 18 8 26 8C34 8 32 16 38 16C44 16 42 8 48 8C54 8 52 16 60 16", "M12 16C20 16 18 24 26 24C34 24 32 16 38 16", "M38 16C44 16 42 24 48 24C54 24 52 16 60 16"] },
];
// The drawing of a method of another distribution, of which this page knows what the server tells.
const LINES = ["M4 8H60", "M4 16H60", "M4 24H60"];
// Settings that have a field of their own, whatever the method is, and names that a run has for other things.
const FIELDS = new Set(["workers", "budget", "problem", "method", "model"]);
const MOST_BUDGET = 1_000_000;
const PROFILES = [
  ["npr", "Native Parallel Reasoner"],
  ["multiverse", "Multiverse"],
  ["parallel-r1", "Parallel-R1, unseen"],
  ["parallel-r1-seen", "Parallel-R1, seen"],
  ["threadweaver", "ThreadWeaver"],
];
const MOST_BUNDLED = 8; // workers that the bundled model was trained with
const USUAL_BUDGET = 2048;

export class Start {
  /** `show(id)` goes to a run. */
  constructor(show) {
    this.show = show;
    this.shown = 0; // of the problems
    this.team = undefined; // workers that suit the problem that is offered
    this.isBundled = false;
    this.problem = make("textarea", { name: "problem", id: "new-problem", rows: "7", required: true, spellcheck: "false", dir: "auto" });
    this.problem.addEventListener("input", () => (this.isOwn = true));
    this.workers = make("input", { type: "number", name: "workers", min: "1", max: "256", value: "4", id: "new-workers" });
    this.workersLabel = make("label", { for: "new-workers" }, "Workers");
    this.budget = make("input", { type: "number", name: "budget", min: "1", max: String(MOST_BUDGET), value: String(USUAL_BUDGET), id: "new-budget" });
    this.profile = make("select", { name: "profile", id: "new-profile" }, ...PROFILES.map(([value, title]) => make("option", { value }, title)));
    this.profilePart = make("div", { hidden: true }, make("label", { for: "new-profile" }, "Trained as"), this.profile);
    this.begin = make("button", { class: "primary big" }, "Let them think");
    this.error = make("p", { class: "error", role: "alert", hidden: true });
    this.other = make("button", { type: "button", class: "small wide", click: () => this.offer(1) }, "Another problem");
    this.methods = METHODS; // and behind them the installed ones, once they are known
    this.cards = METHODS.map((method, number) => this.card(method, number === 0));
    this.choices = make("fieldset", { class: "methods" }, make("legend", {}, "Method"), ...this.cards);
    this.settings = []; // of an installed method: {name, field, value()}
    this.form = make(
      "form",
      { class: "new panel", submit: (event) => this.submit(event), change: () => this.fit() },
      make("div", { class: "labelled" }, make("label", { for: "new-problem" }, "Problem"), this.other),
      this.problem,
      this.choices,
      make("div", { class: "numbers" }, make("div", {}, this.workersLabel, this.workers), this.profilePart, make("div", {}, make("label", { for: "new-budget" }, "Budget, in passes"), this.budget), this.begin),
      this.error,
    );
    this.runs = make("ul", { class: "runs" });
    this.past = make("section", { class: "past", hidden: true, "aria-labelledby": "past" }, make("h2", { id: "past" }, "Runs"), this.runs);
    this.model = make("p", { class: "quiet" });
    this.element = make(
      "div",
      { class: "start" },
      make("div", { class: "hello" }, make("h1", {}, "One model, many hands."), make("p", { class: "lead" }, "Several workers think at the same time in one shared KV cache, and read each other's words while they are written."), this.model),
      this.form,
      this.past,
    );
  }

  card(method, isFirst) {
    const picture = drawn("svg", { viewBox: "0 0 64 32", "aria-hidden": "true" }, ...method.lines.map((d, line) => drawn("path", { d, class: method.name === "hogwild" && line === 4 ? "thin" : `w${line}` })));
    const choice = make("input", { type: "radio", name: "method", value: method.name, checked: isFirst });
    return make("label", { class: `method-card${method.isTrained ? " trained" : ""}` }, choice, picture, make("b", {}, method.title), make("span", {}, method.about));
  }

  async open() {
    this.say("");
    this.fit();
    // Until the model is known nothing is offered: what suits one may be none of the bundled model's small world.
    this.begin.disabled = this.other.disabled = !this.isKnown;
    try {
      const [models, methods, runs] = await Promise.all([ask("v1/models"), ask("v1/methods"), ask("v1/runs")]);
      const name = (models?.data ?? models ?? [])[0]?.id ?? "";
      const isBundled = /bundled/i.test(name);
      if (isBundled !== this.isBundled) {
        this.isBundled = isBundled;
        if (!this.isOwn) this.offer(0);
        this.fit();
      }
      this.learn(methods?.data ?? []);
      this.isKnown = true;
      say(this.model, name ? `Model: ${brief(name.split(":")[0], 80)}` : "");
      this.list(runs?.data ?? runs ?? []);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.say(error.message);
    } finally {
      this.begin.disabled = this.other.disabled = false;
      if (!this.problem.value) this.offer(0);
    }
  }

  /** Methods as the server tells them: ours that it does not have go, installed ones come behind ours. */
  learn(told) {
    const names = JSON.stringify(told);
    if (names === this.told) return;
    this.told = names;
    this.offered = new Set(told.map((one) => one.id));
    const chosen = this.method.name;
    for (const card of this.cards.splice(METHODS.length)) card.remove();
    const own = new Set(METHODS.map((method) => method.name));
    const installed = told.filter((one) => !own.has(one.id)).map(installedMethod);
    this.methods = [...METHODS, ...installed];
    this.cards.push(...installed.map((method) => this.card(method, method.name === chosen)));
    this.choices.append(...this.cards.slice(METHODS.length));
    if (!this.form.elements.method.value) this.form.elements.method.value = METHODS[0].name;
    this.fit();
  }

  /** A good problem to try. */
  offer(step) {
    const problems = this.isBundled ? BUNDLED_PROBLEMS : PROBLEMS.map((problem) => ({ problem }));
    this.shown = (this.shown + step) % problems.length;
    const { problem, workers } = problems[this.shown];
    [this.problem.value, this.team] = [problem, workers];
    this.isOwn = false;
    if (this.method.name === "hogwild") this.workers.value = String(this.usual);
  }

  /** Workers of the method, if nothing else is said; a team has those that suit the problem that is offered. */
  get usual() {
    const { method } = this;
    return (method.name === "hogwild" && this.team) || (method.workers?.[1] ?? 1);
  }

  get method() {
    return this.methods.find((method) => method.name === this.form.elements.method.value) ?? METHODS[0];
  }

  /** Whether a method asks for more than the model can do: the bundled one, or one whose layers keep states. */
  isBeyond(method) {
    if (this.offered && !this.offered.has(method.name)) return true;
    return Boolean((method.isTrained || method.isAsked) && this.isBundled);
  }

  /** Only what the method knows can be chosen. */
  fit() {
    this.methods.forEach((one, number) => (this.cards[number].hidden = this.isBeyond(one)));
    if (this.isBeyond(this.method)) this.form.elements.method.value = this.methods.find((one) => !this.isBeyond(one)).name;
    const { method } = this;
    this.workers.parentElement.hidden = Boolean(method.isTrained);
    this.profilePart.hidden = !method.isTrained;
    const [least, , most] = method.workers ?? [1, 1, 1];
    this.workers.disabled = !method.workers;
    const largest = this.isBundled && method.name === "hogwild" ? MOST_BUNDLED : most;
    this.workers.min = String(least);
    this.workers.max = String(largest);
    if (this.fitted !== method) this.workers.value = String(this.usual);
    else if (Number(this.workers.value) > largest) this.workers.value = String(largest);
    if (this.fitted !== method) {
      const [fewest, usual, passes] = method.budget ?? [1, USUAL_BUDGET, MOST_BUDGET];
      this.budget.min = String(fewest);
      this.budget.max = String(passes);
      if (method.budget || this.fitted?.budget) this.budget.value = String(usual);
      this.ask(method.settings ?? []);
    }
    this.fitted = method;
    say(this.workersLabel, method.name === "skeleton" ? "Workers (0: one for each point)" : "Workers");
  }

  /** A field for each setting of an installed method. */
  ask(settings) {
    for (const { part } of this.settings) part.remove();
    this.settings = settings.map(([name, schema]) => settingField(name, schema));
    this.begin.before(...this.settings.map(({ part }) => part));
  }

  async submit(event) {
    event.preventDefault();
    const { method } = this;
    const body = { problem: this.problem.value, method: method.name, budget: Number(this.budget.value) };
    if (method.workers) body.workers = Number(this.workers.value);
    if (method.isTrained) body.profile = this.profile.value;
    for (const { name, value } of this.settings) if (value() !== null) body[name] = value();
    this.begin.disabled = true;
    this.say("");
    try {
      const made = await ask("v1/runs", { method: "POST", body });
      this.show(made.id);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.say(error.message);
    } finally {
      this.begin.disabled = false;
    }
  }

  say(text) {
    this.error.hidden = !text;
    say(this.error, brief(text, 400));
  }

  list(runs) {
    this.past.hidden = !runs.length;
    this.runs.replaceChildren(
      ...runs.slice(0, 50).map((run) => {
        const about = [String(run.method ?? "").replaceAll("_", " "), run.status ?? run.state, Number.isFinite(run.passes) ? counted(run.passes, "pass") : null];
        return make("li", {}, make("a", { href: `#run=${encodeURIComponent(run.id)}` }, make("span", { class: "asked", dir: "auto" }, brief(run.problem || run.id, 120)), make("span", { class: "quiet" }, about.filter(Boolean).map((word) => brief(word, 30)).join(" · "))));
      }),
    );
  }
}

/** A method that the server tells of, as those above are written down here. */
function installedMethod({ id, about, distribution, settings }) {
  const own = Object.entries(settings).filter(([name, schema]) => !FIELDS.has(name) && !name.includes(".") && schema.by === "option" && kindOf(schema));
  const bounded = (schema, least, most) => schema && [schema.minimum ?? least, schema.default, schema.maximum ?? most];
  return {
    name: id,
    title: spelled(id),
    about: distribution ? `${brief(about, 200)} (${brief(distribution)})` : brief(about, 200),
    workers: bounded(settings.workers, 1, 256),
    budget: bounded(settings.budget, 1, MOST_BUDGET), // where it declares its own
    lines: LINES,
    settings: own,
  };
}

/** `most_rounds` as "Most rounds". */
function spelled(name) {
  const words = brief(name).replaceAll("_", " ");
  return words[0].toUpperCase() + words.slice(1);
}

/** What a field can hold of a setting: one number, one text, true or false; null for lists and maps. */
function kindOf({ type }) {
  const kind = [type].flat()[0];
  return ["boolean", "integer", "number", "string"].includes(kind) ? kind : null;
}

/** A field for a setting: `part` stands in the form, `value()` is what is sent, null to leave it out: what stands as it was. */
function settingField(name, schema) {
  const [id, kind, isOpen] = [`new-setting-${name}`, kindOf(schema), [schema.type].flat().includes("null")];
  const unset = schema.default ?? "";
  const shared = { id, title: visible(schema.description) };
  let field;
  if (kind === "boolean") field = make("select", shared, ...[true, false].map((one) => make("option", { value: String(one), selected: one === unset }, one ? "yes" : "no")));
  else if (schema.enum) field = make("select", shared, ...schema.enum.filter((one) => one !== null).map((one) => make("option", { value: one, selected: one === unset }, brief(one))));
  else if (kind === "string") field = make("input", { ...shared, type: "text", value: unset });
  else field = make("input", { ...shared, type: "number", value: String(unset), min: schema.minimum, max: schema.maximum, step: kind === "integer" ? "1" : "any", required: !isOpen });
  if (isOpen && field.tagName === "SELECT") field.prepend(make("option", { value: "", selected: unset === "" }, "unset"));
  const part = make("div", {}, make("label", { for: id, title: shared.title }, spelled(name)), field);
  // A field holds neither several lines nor numbers beyond 2^53, so a default is not read from it.
  const shown = field.value;
  const value = () => {
    if (field.value === shown || (field.value === "" && (isOpen || kind !== "string"))) return null;
    return kind === "boolean" ? field.value === "true" : kind === "string" ? field.value : Number(field.value);
  };
  return { name, part, value };
}
