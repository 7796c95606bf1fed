// Creates and updates elements. Text is never parsed as markup, because names of streams and ports come from users.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Creates an element. A child is a node, a text or nothing (null, undefined, false). `on…` attributes are listeners.
 */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Creates an SVG element, with the same arguments as `el`. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else node.setAttribute(name, String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

/** Sets a text only if it differs, so that an unchanged cell costs nothing and a selection in it stays. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/**
 * Attributes that a shown node gets later: `open` from the user, `data-wide` from the observer
 * below. `morph` keeps them.
 */
const KEPT = ["open", "data-wide"];

/**
 * Makes `old` like `fresh` and changes only what differs, so that focus, selection, scrolling and opened details stay.
 * A node that is changed keeps its own listeners and does not get those of `fresh`.
 */
function morph(old, fresh) {
  if (old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
  if (old.nodeType === Node.TEXT_NODE) {
    setText(old, fresh.textContent);
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!KEPT.includes(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) setAttribute(old, name, value);
  morphChildren(old, [...fresh.childNodes]);
}

/** Makes the children of `place` like the nodes of `fresh`, with `morph`. */
export function morphChildren(place, fresh) {
  const old = [...place.childNodes];
  fresh.forEach((node, index) => (index < old.length ? morph(old[index], node) : place.append(node)));
  for (const node of old.slice(fresh.length)) node.remove();
}

/** Lets a screen reader say a text. */
export function announce(text) {
  document.getElementById("announce").textContent = text;
}

/** A card: a section with a heading. Its id is made from the title, so the cards of a page need different titles. */
export function card(title, ...children) {
  const id = `card-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
  return el("section", { class: "card", "aria-labelledby": id }, el("h2", { id }, title), ...children);
}

/**
 * Marks boxes that are narrower than their table; the style sheet then shows that they scroll. The mark changes sizes,
 * so it is set in the next animation frame: the observer must not be called again while it runs.
 */
const widths = new ResizeObserver((entries) => requestAnimationFrame(() => {
  for (const { target } of entries) {
    const box = target.closest(".table-box");
    if (box) setAttribute(box, "data-wide", box.scrollWidth > box.clientWidth + 1 ? "" : null);
  }
}));

/** A box in which a table scrolls sideways if the page is too narrow for it. */
export function tableBox(label, shown) {
  const box = el("div", { class: "table-box", tabindex: 0, role: "region", "aria-label": label }, shown);
  widths.observe(box);
  widths.observe(shown);
  return box;
}

/** A table whose rows are arrays of cells; a cell is text or a node. `numbers`: indices of the columns with numbers. */
export function table(caption, header, rows, numbers = []) {
  const kind = (index) => (numbers.includes(index) ? "number" : null);
  const head = el("tr", {}, header.map((text, index) => el("th", { scope: "col", class: kind(index) }, text)));
  const body = rows.map((row) =>
    el("tr", {}, row.map((cell, index) =>
      index === 0 ? el("th", { scope: "row" }, cell) : el("td", { class: kind(index) }, cell))));
  return tableBox(caption, el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, body)));
}

/** A paragraph of the class `kind` with a label, its input, and the nodes of `more`, such as a hint. */
export function field(label, input, { kind = null, more = [] } = {}) {
  return el("p", { class: kind }, el("label", { for: input.id }, label), input, ...more);
}

/** An option of a select; it is selected if `value` equals `chosen`. */
export const option = (value, text, chosen) => el("option", { value, selected: value === chosen }, text);

/** A list of names and their values. */
export function figures(pairs) {
  return el("dl", { class: "figures" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** A verdict as a word, a sign and a colour; "no verdict" if the word is empty. */
export function verdict(word) {
  const [kind, sign] = { PASS: ["pass", "✓"], FAIL: ["fail", "✗"] }[word] ?? ["unknown", "?"];
  return el("span", { class: `verdict verdict-${kind}` }, el("span", { "aria-hidden": "true" }, sign), ` ${word || "no verdict"}`);
}
