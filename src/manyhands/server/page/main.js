// The page begins here: which run is shown, from where, at which moment.
//
// A run in the document itself (`manyhands view`) is shown at once. Otherwise the address says: #run=ID, and &at=57
// where the slider does not stand at the end, so that a reload goes on where it was. Without a run there is the form
// that begins one. Records only change the run; the screen is drawn once per frame, whatever has come.

import { brief, clock, counted, drawn, make, say } from "./text.js";
import { Run } from "./run.js";
import { Refused, ask, door, embedded, follow } from "./source.js";
import { Stage } from "./stage.js";
import { Marks } from "./marks.js";
import { Player } from "./player.js";
import { Talk } from "./talk.js";
import { Start } from "./start.js";

const THEME = "manyhands-theme";
const THEMES = ["auto", "light", "dark"];
const QUIET = 6000; // milliseconds between two things that a screen reader is told
const KEYS = [
  ["Space", "play or pause the passes"],
  [", and .", "one pass back, one pass on"],
  ["l", "to the end; follow the run while it is live"],
  ["1 … 9", "to a worker; h: to the history"],
  ["← and →", "there: from token to token, and what its writer could see"],
  ["Esc", "clear the marks"],
  ["/", "say something to the team"],
  ["a", "ask for the answer now"],
  ["Shift + S", "stop the run (twice)"],
  ["n", "a new run"],
  ["t", "dark, light, or as the system has it"],
  ["?", "this help"],
];

const at = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.run = null;
    this.id = null; // of a run of the server
    this.records = embedded();
    this.stop = null;
    this.isDue = false;
    this.toldAt = 0;
    this.told = "";
    this.trouble = ""; // with the connection
    this.cache = null; // share of the KV cache that is in use, if the server says so
    this.player = new Player((moment) => this.moved(moment));
    this.marks = new Marks(at("main"));
    this.talk = new Talk((item) => this.tell(item), () => this.end());
    this.start = new Start((id) => (location.hash = `run=${encodeURIComponent(id)}`));
    this.top();
    at("dock").append(this.marks.element, this.player.element, this.talk.element);
    at("main").addEventListener("redraw", () => this.draw());
    addEventListener("resize", () => this.draw());
    addEventListener("keydown", (event) => this.press(event));
    addEventListener("hashchange", () => this.route());
    door.askForKey = (isWrong) => this.askForKey(isWrong);
    this.theme(stored(THEME) ?? "auto");
    if (this.records) this.replay();
    else this.route();
  }

  // -- the top

  top() {
    const logo = drawn("svg", { viewBox: "0 0 32 32", class: "logo", "aria-hidden": "true" });
    ["M3 7c9 0 9 9 16 9", "M3 13c8 0 9 3 16 3", "M3 19c8 0 9-3 16-3", "M3 25c9 0 9-9 16-9h10"].forEach((d, number) => logo.append(drawn("path", { d, class: `w${number}` })));
    this.home = make("a", { class: "brand", href: "#", title: "manyhands" }, logo, make("span", {}, "manyhands"));
    if (this.records) this.home.removeAttribute("href");
    this.about = make("div", { class: "about" });
    this.link = make("span", { class: "link", hidden: true });
    this.stats = {};
    const stats = make("dl", { class: "stats" });
    for (const [key, label] of [["passes", "passes"], ["tokens", "tokens"], ["rate", "tokens/s"], ["time", "time"], ["cache", "KV in use"]]) {
      const value = make("dd", {}, "–");
      const item = make("div", { class: `stat ${key}` }, make("dt", {}, label), value);
      this.stats[key] = { item, value };
      stats.append(item);
    }
    this.bar = make("i");
    this.stats.passes.item.append(make("span", { class: "bar", "aria-hidden": "true" }, this.bar));
    this.statsElement = stats;
    this.themeButton = make("button", { type: "button", class: "small", click: () => this.nextTheme() });
    this.save = make("button", { type: "button", class: "small wide trace", hidden: true, title: "Save the trace of this run", click: () => this.saveTrace() }, "Trace");
    this.newRun = make("a", { class: "button small wide", href: "#", hidden: Boolean(this.records), title: "A new run, and the list of runs (n)" }, "Runs");
    const help = make("button", { type: "button", class: "small", "aria-label": "Help", title: "Help (?)", click: () => this.help.showModal() }, "?");
    at("top").append(this.home, this.about, this.link, stats, make("nav", { class: "actions", "aria-label": "Page" }, this.save, this.newRun, this.themeButton, help));
    this.help = this.helpDialog();
    document.body.append(this.help);
  }

  helpDialog() {
    const keys = make("dl", { class: "keys" }, ...KEYS.flatMap(([key, what]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, what)]));
    this.letters = make("input", { type: "checkbox", checked: stored("manyhands-keys") !== "off", change: () => store("manyhands-keys", this.letters.checked ? "on" : "off") });
    return make(
      "dialog",
      { "aria-labelledby": "help", class: "help" },
      make("h2", { id: "help" }, "What is seen here"),
      make("p", {}, "Several workers of one language model think at the same time and read each other in one shared KV cache. Point at a word, or go to it with the arrows: what its writer could read in that pass is marked in the colours of those who wrote it; all else steps back."),
      keys,
      make("label", { class: "check" }, this.letters, " Single letters are shortcuts"),
      make("form", { method: "dialog" }, make("button", { class: "primary" }, "Close")),
    );
  }

  theme(name) {
    this.themeName = THEMES.includes(name) ? name : "auto";
    document.documentElement.dataset.theme = this.themeName;
    say(this.themeButton, { auto: "◐", light: "☀", dark: "☾" }[this.themeName]);
    const words = `Colours: ${this.themeName === "auto" ? "as the system" : this.themeName} (t)`;
    this.themeButton.setAttribute("aria-label", words);
    this.themeButton.title = words;
  }

  nextTheme() {
    this.theme(THEMES[(THEMES.indexOf(this.themeName) + 1) % THEMES.length]);
    store(THEME, this.themeName);
  }

  // -- which run

  route() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const id = asked.get("run");
    const moment = asked.has("at") ? Number(asked.get("at")) : null;
    if (this.records) return;
    if (id && id === this.id) {
      if (this.run?.begin && moment !== this.player.at) this.player.go(moment);
      return;
    }
    this.stop?.();
    [this.run, this.stage, this.id, this.stop] = [null, null, id, null];
    this.trouble = "";
    if (!id) return this.showStart();
    this.wanted = moment;
    at("main").replaceChildren(make("p", { class: "quiet wait" }, "Waiting for the run …"));
    this.stop = follow(id, (records) => this.take(records), (state, error) => this.stream(state, error));
  }

  replay() {
    const asked = new URLSearchParams(location.hash.slice(1));
    this.wanted = asked.has("at") ? Number(asked.get("at")) : null;
    this.take(this.records);
  }

  showStart() {
    this.marks.watch(null);
    document.body.dataset.shows = "start";
    document.title = "manyhands";
    at("main").replaceChildren(this.start.element);
    this.start.open();
    this.frame();
  }

  take(records) {
    for (const record of records) {
      if (record.kind === "begin") this.open(record);
      else this.run?.take(record);
    }
    this.draw();
  }

  open(record) {
    this.run = new Run();
    this.run.take(record);
    this.stage = new Stage(this.run, (item) => this.tell(item));
    this.player.watch(this.run, this.wanted);
    this.marks.watch(this.run);
    document.body.dataset.shows = "run";
    at("main").replaceChildren(this.stage.element);
    const method = (record.method ?? "a strategy").replaceAll("_", " ");
    this.about.replaceChildren(make("span", { class: "method" }, brief(method, 40)), make("span", { class: "model" }, brief(record.model ?? "", 48)));
    document.title = `${brief(record.problem ?? method, 40)} · manyhands`;
    this.refused = this.told = 0;
    if (!this.records) this.watchCache();
  }

  stream(state, error) {
    const words = { lost: "connection lost, trying again", refused: error?.message };
    this.trouble = brief(words[state] ?? "", 80);
    this.draw();
    if (state === "refused" && !this.run) at("main").replaceChildren(make("p", { class: "quiet wait" }, brief(error.message, 300)));
  }

  moved(moment) {
    const where = new URLSearchParams(this.id ? { run: this.id } : {});
    if (moment !== null) where.set("at", String(moment));
    clearTimeout(this.noted); // browsers allow few changes of the address a second
    this.noted = setTimeout(() => history.replaceState(null, "", `#${where}`), 200);
    this.draw();
  }

  // -- what a person does

  async tell(item) {
    return this.try(() => ask(`v1/runs/${encodeURIComponent(this.id)}/messages`, { method: "POST", body: item }));
  }

  async end() {
    return this.try(() => ask(`v1/runs/${encodeURIComponent(this.id)}`, { method: "DELETE" }));
  }

  async saveTrace() {
    const text = await this.try(() => ask(`v1/runs/${encodeURIComponent(this.id)}/trace`, { raw: true }));
    if (!text) return;
    const url = URL.createObjectURL(new Blob([text], { type: "application/jsonl" }));
    make("a", { href: url, download: `${this.id}.jsonl` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  /** What `act` gives, or false and a notice. */
  async try(act) {
    try {
      return (await act()) ?? true;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.notice(error.message);
      return false;
    }
  }

  notice(text) {
    const note = make("p", { class: "notice" }, brief(text, 300));
    at("notices").append(note);
    setTimeout(() => note.remove(), 7000);
  }

  askForKey(isWrong) {
    return new Promise((resolve) => {
      const field = make("input", { type: "password", "aria-label": "API key", autocomplete: "off", required: true });
      const dialog = make("dialog", { "aria-labelledby": "key", close: () => (dialog.remove(), resolve(dialog.returnValue === "use" ? field.value.trim() : null)) });
      dialog.append(make("h2", { id: "key" }, isWrong ? "This key is not taken" : "This server asks for a key"), make("p", {}, "It is kept for this tab only."), make("form", { method: "dialog" }, field, make("button", { class: "primary", value: "use" }, "Use it")));
      document.body.append(dialog);
      dialog.showModal();
    });
  }

  press(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target.matches?.("input:not([type=range], [type=radio], [type=checkbox]), textarea, select");
    if (event.key === "Escape" && isTyping) return event.target.blur();
    if (isTyping || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") return this.marks.clear();
    if (!this.letters.checked && event.key !== " ") return;
    const act = this.action(event);
    if (!act) return;
    event.preventDefault();
    act();
  }

  action(event) {
    const { key } = event;
    if (key === "?") return () => this.help.showModal();
    if (key === "t") return () => this.nextTheme();
    if (key === "n" && !this.records) return () => (location.hash = "");
    if (!this.run) return null;
    if (key === " " && !event.target.matches?.("button, a, [type=checkbox]")) return () => this.player.toggle();
    if (key === ",") return () => this.player.step(-1);
    if (key === ".") return () => this.player.step(1);
    if (key === "l") return () => this.player.go(null);
    if (/^[1-9]$/.test(key)) return () => document.querySelectorAll(".column .body")[Number(key) - 1]?.focus();
    if (key === "h") return () => document.querySelector(".history .scroller, .trunk .words")?.focus();
    if (this.talk.element.hidden) return null;
    if (key === "/") return () => (this.talk.author.value ? this.talk.text : this.talk.author).focus();
    if (key === "a") return () => this.talk.answer.click();
    if (key === "S") return () => this.talk.stop.click();
    return null;
  }

  // -- drawing

  draw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      this.frame();
    });
  }

  frame() {
    const { run, stage } = this;
    const hasRun = Boolean(run && stage);
    for (const part of [this.statsElement, this.player.element, this.marks.element, this.about]) part.hidden = !hasRun;
    this.save.hidden = !(hasRun && this.id);
    if (!hasRun) {
      this.talk.element.hidden = this.link.hidden = true;
      return;
    }
    const moment = this.player.moment;
    const main = at("main");
    const goesOn = !run.isTeam && this.player.at === null && !run.end; // a line grows downwards
    const atEnd = goesOn && main.scrollHeight - main.scrollTop - main.clientHeight < 60;
    stage.draw(moment, { live: this.player.at === null && !this.records });
    if (atEnd) main.scrollTop = main.scrollHeight;
    this.player.draw();
    this.talk.draw(run, this.id !== null);
    if (this.marks.at) this.marks.draw();
    this.count(moment);
    this.announce();
    for (const { reason } of run.refused.slice(this.refused)) this.notice(`Not possible: ${reason}`);
    this.refused = run.refused.length;
  }

  count(moment) {
    const { run, stats } = this;
    const { pass = 0, time, tokens = 0 } = run.moments[moment] ?? {};
    const budget = run.begin.budget;
    const rate = run.rateAt(moment);
    say(stats.passes.value, budget ? `${counted(pass)} / ${counted(budget)}` : counted(pass));
    this.bar.style.setProperty("--share", String(budget ? Math.min(1, pass / budget) : 0));
    say(stats.tokens.value, counted(tokens));
    stats.rate.item.hidden = rate === null;
    if (rate !== null) say(stats.rate.value, counted(rate));
    stats.time.item.hidden = !Number.isFinite(time);
    if (Number.isFinite(time)) say(stats.time.value, clock(time));
    stats.cache.item.hidden = this.cache === null || run.end !== null;
    if (this.cache !== null) say(stats.cache.value, `${(100 * this.cache).toFixed(this.cache < 0.1 ? 1 : 0)} %`);
    const condition = run.conditionAt(moment);
    const waits = ["waits for memory", "left memory"].includes(condition);
    const missed = run.missed ? `missed: ${counted(run.missed, "record")}` : "";
    const words = this.trouble || (waits ? condition : missed);
    this.link.hidden = !words;
    say(this.link, words);
  }

  /** Now and then, in one sentence, and at once when there is an answer. */
  announce() {
    const { run } = this;
    const now = performance.now();
    const answer = run.end?.answer?.answer;
    const isOver = run.end !== null;
    if (this.told === "over" || (!isOver && now - this.toldAt < QUIET)) return;
    this.toldAt = now;
    const { pass = 0 } = run.moments.at(-1) ?? {};
    const thinking = run.workers.filter((worker) => run.stateAt(worker, run.now).state === "thinking").length;
    const steps = run.finished.length;
    const words = isOver
      ? answer == null ? "The run has ended." : `The run has ended. The answer is ${brief(answer, 100)}.`
      : `Pass ${pass}. ${thinking} thinking, ${counted(steps, "step")} finished.`;
    if (isOver) this.told = "over";
    say(at("status"), words);
  }

  /** The share of the KV cache in use, from the server's metrics, while a run is live. */
  async watchCache() {
    const { run } = this;
    while (run === this.run && !run.end) {
      try {
        const found = /kv_cache_usage_perc(?:\{[^}]*\})?\s+([\d.eE+-]+)/.exec(await ask("metrics", { raw: true }));
        if (!found) return;
        this.cache = Number(found[1]);
      } catch {
        return; // a server without metrics has none to show
      }
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null; // a document from a file may keep nothing
  }
}

function store(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // as above
  }
}

new Page();
