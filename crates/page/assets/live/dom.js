// Makes elements. Text is always text: names of streams and ports come from outside, so nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; a child is a node, a text or nothing. `on…` attributes are listeners. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
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

/** What the browser or the user has set, and no fresh node has. */
const KEPT = ["open", "data-wide"];

/**
 * Makes `old` like `fresh` and changes only what differs, so that focus, selection, scrolling and opened details stay. Listeners of
 * `fresh` are not taken over.
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

/** The same for the children of a node. */
export function morphChildren(place, fresh) {
  const old = [...place.childNodes];
  fresh.forEach((node, index) => (index < old.length ? morph(old[index], node) : place.append(node)));
  for (const node of old.slice(fresh.length)) node.remove();
}

/** Tells a screen reader. */
export function announce(text) {
  document.getElementById("announce").textContent = text;
}

/** A heading with content in a card. */
export function card(title, ...children) {
  const id = `card-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
  return el("section", { class: "card", "aria-labelledby": id }, el("h2", { id }, title), ...children);
}

/** Marks boxes whose table is wider, so that they say that they scroll. In a frame of its own: the mark changes sizes. */
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

/** A table whose rows are arrays of cells; a cell is text or a node. `numbers` are the columns with numbers. */
export function table(caption, header, rows, numbers = []) {
  const kind = (index) => (numbers.includes(index) ? "number" : null);
  const head = el("tr", {}, header.map((text, index) => el("th", { scope: "col", class: kind(index) }, text)));
  const body = rows.map((row) =>
    el("tr", {}, row.map((cell, index) =>
      index === 0 ? el("th", { scope: "row" }, cell) : el("td", { class: kind(index) }, cell))));
  return tableBox(caption, el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, body)));
}

/** An input with its label in a paragraph of the class `kind`, and what belongs to the input. */
export function field(label, input, { kind = null, more = [] } = {}) {
  return el("p", { class: kind }, el("label", { for: input.id }, label), input, ...more);
}

/** An option of a select. */
export const option = (value, text, chosen) => el("option", { value, selected: value === chosen }, text);

/** Names with values. */
export function figures(pairs) {
  return el("dl", { class: "figures" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** A verdict as a word, a sign and a colour. */
export function verdict(word) {
  const [kind, sign] = { PASS: ["pass", "✓"], FAIL: ["fail", "✗"] }[word] ?? ["unknown", "?"];
  return el("span", { class: `verdict verdict-${kind}` }, el("span", { "aria-hidden": "true" }, sign), ` ${word || "no verdict"}`);
}
