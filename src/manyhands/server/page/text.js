// Text that others wrote (a model, a person, a file), made harmless, and elements that hold it.
//
// Such text reaches the document as text nodes alone, never as markup. Characters that are obeyed instead of
// shown are replaced one for one, so that offsets in the text stay what they were: controls by their pictures
// (ESC is ␛), overrides of direction by U+FFFD. Text in Hebrew or Arabic keeps its direction; it is isolated.

const UNPRINTABLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff]/g;

/** The text with every character that would be obeyed replaced by a visible one; as long as before. */
export function visible(text) {
  return String(text ?? "").replace(UNPRINTABLE, (found) => {
    const code = found.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : "\ufffd";
  });
}

/** One line of at most `most` characters: for names and titles. */
export function brief(text, most = 60) {
  const line = visible(text).replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** An element. Attributes that are functions listen; children that are strings become text nodes. */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** An element of SVG. */
export function drawn(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Set the text of a node if it differs: writing the same would cost a layout. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** 12345 as 12,345, with a thin space instead of the comma; before a noun: "1 pass", "2 passes". */
export function counted(number, noun = "") {
  const whole = Math.round(number);
  const digits = String(whole).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  if (!noun) return digits;
  return `${digits} ${noun}${whole === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
}

/** Seconds as 0:07 or 1:02:03. */
export function clock(seconds) {
  const whole = Math.floor(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const end = `${String(rest).padStart(2, "0")}`;
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${end}` : `${minutes}:${end}`;
}

/** How many entries of an ascending list are at most `limit`; `of` takes the number from an entry. */
export function upTo(list, limit, of = (entry) => entry) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (of(list[middle]) <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}
