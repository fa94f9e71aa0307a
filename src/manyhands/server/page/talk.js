// Words of a person to a run, "answer now" and stop. Kept away where no run listens.

import { brief, make, say } from "./text.js";

const AUTHOR = "manyhands-author";
const LONGEST_SAID = 100_000;

export class Talk {
  /** `tell(item)` says something to the run, `stop()` ends it; both are promises. */
  constructor(tell, stop) {
    this.tell = tell;
    this.author = make("input", { class: "author", name: "author", "aria-label": "Your name", value: remembered(), placeholder: "your name", maxlength: "80", autocomplete: "nickname", required: true, spellcheck: "false" });
    this.text = make("textarea", { name: "text", rows: "1", "aria-label": "Say something to the team", placeholder: "Say something: everybody reads it in the next pass", maxlength: String(LONGEST_SAID), required: true });
    this.send = make("button", { class: "primary" }, "Say");
    this.answer = make("button", { type: "button", title: "Ask for the answer now (a)", click: () => this.tell({ item: "AnswerNow" }) }, "Answer now");
    this.stop = make("button", { type: "button", class: "danger", title: "Stop the run (Shift+S)", click: () => this.askToStop(stop) }, "Stop");
    this.said = make("form", { class: "say", submit: (event) => this.speak(event) }, this.author, this.text, this.send);
    this.element = make("div", { class: "talk", hidden: true }, this.said, this.answer, this.stop);
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.said.requestSubmit();
    });
  }

  async speak(event) {
    event.preventDefault();
    const [author, text] = [this.author.value.trim(), this.text.value.trim()];
    if (!author || !text) return;
    remember(author);
    if (await this.tell({ item: "Said", text, author })) this.text.value = "";
  }

  /** A run that was stopped cannot be taken up: the first press asks, the second stops. */
  askToStop(stop) {
    if (this.isSure) {
      clearTimeout(this.doubt);
      this.rest();
      return stop();
    }
    this.isSure = true;
    say(this.stop, "Really stop?");
    this.doubt = setTimeout(() => this.rest(), 4000);
  }

  rest() {
    this.isSure = false;
    say(this.stop, "Stop");
  }

  draw(run, isServed) {
    const isLive = isServed && run.end === null;
    if (this.element.hidden === isLive) this.element.hidden = !isLive;
    this.said.hidden = this.answer.hidden = !run.begin.listens;
    const names = run.workers.filter((worker) => !worker.isPerson).map((worker) => brief(worker.name));
    this.author.setCustomValidity(names.includes(this.author.value.trim()) ? "A worker has this name." : "");
  }
}

function remembered() {
  try {
    return localStorage.getItem(AUTHOR) ?? "";
  } catch {
    return ""; // a document from a file may keep nothing
  }
}

function remember(author) {
  try {
    localStorage.setItem(AUTHOR, author);
  } catch {
    // as above
  }
}
