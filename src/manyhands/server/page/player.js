// The slider over passes: live and afterwards. Playing takes the times of the run where it has any.

import { clock, make, say } from "./text.js";
import { Score } from "./score.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
const PASSES_A_SECOND = 16; // of a run without times, at speed 1
const REDRAWN = 250; // milliseconds between two drawings of the score

export class Player {
  /** `moved(at)` hears where the slider stands now; null: at the end, which moves on while a run is live. */
  constructor(moved) {
    this.moved = moved;
    this.run = null;
    this.at = null;
    this.isPlaying = false;
    this.speed = 1;
    this.score = new Score();
    this.drawnAt = 0;
    this.slider = make("input", { type: "range", min: "0", max: "1", step: "1", value: "1", "aria-label": "Pass", input: () => this.go(Number(this.slider.value)) });
    this.play = make("button", { type: "button", class: "round", click: () => this.toggle() });
    this.back = make("button", { type: "button", class: "small", "aria-label": "One pass back", title: "One pass back ( , )", click: () => this.step(-1) }, "‹");
    this.next = make("button", { type: "button", class: "small", "aria-label": "One pass on", title: "One pass on ( . )", click: () => this.step(1) }, "›");
    this.live = make("button", { type: "button", class: "live", click: () => this.go(null) });
    this.where = make("output", { class: "where" });
    this.choice = make("select", { "aria-label": "Speed", title: "Speed", change: () => (this.speed = Number(this.choice.value)) }, ...SPEEDS.map((speed) => make("option", { value: String(speed), selected: speed === 1 }, `${speed}×`)));
    this.element = make("div", { class: "player", role: "group", "aria-label": "Passes" }, this.play, this.back, this.next, make("div", { class: "rail" }, this.score.element, this.slider), this.where, this.choice, this.live);
  }

  watch(run, at) {
    this.run = run;
    this.at = at;
    this.isPlaying = false;
    this.drawnAt = 0;
  }

  /** The moment that is shown. */
  get moment() {
    return this.at === null ? this.run.now : Math.min(this.at, this.run.now);
  }

  go(at) {
    const isLast = at !== null && at >= this.run.now;
    this.at = isLast && this.run.end ? null : at;
    if (at === null || isLast) this.isPlaying = false;
    this.moved(this.at);
  }

  step(by) {
    this.isPlaying = false;
    this.go(Math.max(0, this.moment + by));
  }

  toggle() {
    this.isPlaying = !this.isPlaying;
    if (!this.isPlaying) return this.moved(this.at);
    if (this.at === null || this.at >= this.run.now) this.at = 0;
    let [last, passed] = [performance.now(), this.passedAt(this.at)];
    const tick = (now) => {
      if (!this.isPlaying) return;
      passed += ((now - last) / 1000) * this.speed;
      last = now;
      const at = this.momentAfter(passed);
      if (at !== this.at) this.go(at);
      if (this.isPlaying) requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
    this.moved(this.at);
  }

  /** Seconds of the run that have passed at a moment. */
  passedAt(at) {
    return this.run.moments[at]?.time ?? at / PASSES_A_SECOND;
  }

  momentAfter(seconds) {
    let at = this.at ?? 0;
    while (at < this.run.now && this.passedAt(at + 1) <= seconds) at += 1;
    return at;
  }

  draw() {
    const { run } = this;
    const at = this.moment;
    if (Number(this.slider.max) !== run.now) this.slider.max = String(Math.max(1, run.now));
    this.slider.value = String(at);
    const moment = run.moments[at];
    const pass = moment?.pass ?? 0;
    const time = Number.isFinite(moment?.time) ? ` · ${clock(moment.time)}` : "";
    this.slider.setAttribute("aria-valuetext", `pass ${pass}`);
    say(this.where, `pass ${pass}${time}`);
    say(this.play, this.isPlaying ? "‖" : "▶");
    this.play.setAttribute("aria-label", this.isPlaying ? "Pause" : "Play");
    this.play.title = `${this.isPlaying ? "Pause" : "Play"} (space)`;
    const isLive = this.at === null && !run.end;
    say(this.live, run.end ? "End" : "Live");
    this.live.classList.toggle("on", isLive);
    this.live.setAttribute("aria-pressed", String(this.at === null));
    this.live.title = run.end ? "To the end (l)" : "Follow the run (l)";
    this.drawScore();
  }

  /**
   * Often enough to be believed; records that came meanwhile are drawn when the time is over, whether more come or not.
   * A timer may ring a millisecond early: it is forgotten before the time is looked at, so that another one is set.
   */
  drawScore() {
    const { run } = this;
    const wait = run.end ? 0 : this.drawnAt + REDRAWN - performance.now();
    if (wait > 0) {
      this.later ??= setTimeout(() => {
        this.later = null;
        this.drawScore();
      }, wait);
      return;
    }
    clearTimeout(this.later);
    this.later = null;
    if (!run.end || this.scored !== run) this.score.draw(run);
    this.scored = run.end ? run : null;
    this.drawnAt = performance.now();
  }
}
