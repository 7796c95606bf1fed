// The table of streams. The server sorts and filters, and sends only the visible rows and a few more. Rows have a fixed
// height, and spacer rows stand for the rows that were not sent, so thousands of streams cost no more than sixty.

import { el, setAttribute, setText } from "./dom.js";
import { DASH, FORMS, classOf, count } from "./format.js";

const ROW_HEIGHT = 30;
/** Rows that are requested beyond the visible ones, so that a short scroll needs nothing new. */
const SPARE = 10;
const MAX_VISIBLE = 40;
const SCROLL_PAUSE_MS = 150;
const FILTER_PAUSE_MS = 250;

const STATES = { started: "▶ started", paused: "‖ paused", stopped: "■ stopped" };
/** Formatters of columns that show other words than the API sends. */
const WORDS = { state: (word) => STATES[word] ?? word, port_rx: (ports) => ports || DASH };

export class StreamTable {
  /**
   * `columns` come from the server, with `name`, `heading` and `form`. `mayControl` adds a checkbox to each row, to
   * select its stream. `onWindow` is called when the table needs other rows.
   */
  constructor(columns, mayControl, onWindow) {
    this.columns = columns;
    this.mayControl = mayControl;
    this.onWindow = onWindow;
    this.selected = new Set();
    this.sort = "";
    this.filter = "";
    this.from = 0;
    this.rows = [];
    this.onSelect = () => {};
    this.filterBox = el("input", { type: "search", id: "stream-filter", autocomplete: "off", oninput: () => this.askLater(FILTER_PAUSE_MS, () => this.readFilter()) });
    this.counter = el("span", { class: "muted", role: "status" });
    this.heads = columns.map((column) => this.head(column));
    this.body = el("tbody");
    this.above = el("tr", { class: "spacer-row", "aria-hidden": "true" }, el("td", { class: "spacer" }));
    this.below = el("tr", { class: "spacer-row", "aria-hidden": "true" }, el("td", { class: "spacer" }));
    const selectHead = mayControl ? el("th", { scope: "col", class: "select-cell" }, el("span", { class: "visually-hidden" }, "Select")) : null;
    this.table = el("table", { class: "stream-table" },
      el("caption", { class: "visually-hidden" }, "Streams; counters since the last start of each"),
      el("thead", {}, el("tr", {}, selectHead, this.heads)), this.body);
    this.box = el("div", { class: "table-box stream-box", tabindex: 0, role: "region", "aria-label": "Table of streams", onscroll: () => this.askLater(SCROLL_PAUSE_MS, () => this.readScroll()) }, this.table);
    this.node = el("div", {}, el("p", { class: "controls" },
      el("label", { for: "stream-filter" }, "Filter by name or port"), " ", this.filterBox, " ", this.counter), this.box);
  }

  head({ name, heading, form }) {
    const button = el("button", { type: "button", class: "sort", onclick: () => this.toggleSort(name) }, heading);
    return el("th", { scope: "col", class: classOf(form), "data-column": name }, button);
  }

  /** The parameters with which the server is asked for the needed rows. */
  query() {
    const rows = Math.min(MAX_VISIBLE, Math.ceil((this.box.clientHeight || 400) / ROW_HEIGHT)) + 2 * SPARE;
    return new URLSearchParams({ sort: this.sort, filter: this.filter, from: String(this.from), rows: String(rows) });
  }

  askLater(pause, change) {
    clearTimeout(this.timer);
    this.timer = setTimeout(change, pause);
  }

  close() {
    clearTimeout(this.timer);
  }

  readFilter() {
    this.filter = this.filterBox.value.trim();
    this.showFirstRows();
  }

  showFirstRows() {
    this.from = 0;
    this.box.scrollTop = 0;
    this.onWindow();
  }

  readScroll() {
    const first = Math.floor(this.box.scrollTop / ROW_HEIGHT);
    const visible = Math.ceil(this.box.clientHeight / ROW_HEIGHT);
    const isHere = first >= this.from && first + visible <= this.from + this.rows.length;
    if (isHere || this.rows.length >= this.matching) return;
    this.from = Math.max(0, first - SPARE);
    this.onWindow();
  }

  /** A click sorts the largest first, the second click the smallest first, the third one as in the configuration. */
  toggleSort(name) {
    const next = { [`-${name}`]: name, [name]: "" };
    this.sort = next[this.sort] ?? `-${name}`;
    for (const head of this.heads) {
      const { column } = head.dataset;
      const direction = { [column]: "ascending", [`-${column}`]: "descending" }[this.sort];
      setAttribute(head, "aria-sort", direction ?? null);
    }
    this.showFirstRows();
  }

  update(streams) {
    const { total, matching, from, columns } = streams;
    this.matching = matching;
    // With another configuration or filter, the first requested row may be after the last row.
    if (this.from > 0 && this.from >= matching) this.showFirstRows();
    const names = columns.name;
    setText(this.counter, matching === total ? `streams: ${count(total)}` : `streams: ${count(matching)} of ${count(total)}`);
    setAttribute(this.table, "aria-rowcount", matching + 1);
    while (this.rows.length < names.length) this.rows.push(this.row());
    this.rows.length = names.length;
    this.above.firstChild.style.height = `${from * ROW_HEIGHT}px`;
    this.below.firstChild.style.height = `${Math.max(0, matching - from - names.length) * ROW_HEIGHT}px`;
    for (const spacer of [this.above, this.below]) setAttribute(spacer.firstChild, "colspan", this.columns.length + Number(this.mayControl));
    this.rows.forEach((row, index) => this.fill(row, columns, index, from));
    const wanted = [this.above, ...this.rows.map((row) => row.node), this.below];
    if (wanted.length !== this.body.children.length || wanted.some((node, index) => this.body.children[index] !== node)) {
      this.body.replaceChildren(...wanted);
    }
  }

  row() {
    const cells = this.columns.map(({ form }, index) => (index === 0 ? el("th", { scope: "row" }) : el("td", { class: classOf(form) })));
    const box = el("input", { type: "checkbox", onchange: () => this.toggle(box) });
    const select = this.mayControl ? el("td", { class: "select-cell" }, box) : null;
    return { node: el("tr", {}, select, cells), cells, box };
  }

  fill(row, columns, index, from) {
    setAttribute(row.node, "aria-rowindex", from + index + 2);
    const name = columns.name[index];
    this.columns.forEach((column, place) => {
      const value = columns[column.name][index];
      const cell = row.cells[place];
      setText(cell, (WORDS[column.name] ?? FORMS[column.form])(value));
      cell.classList.toggle("absent", value === null);
      if (column.name === "lost") cell.classList.toggle("is-lost", Number(value) > 0);
    });
    row.box.dataset.stream = name;
    setAttribute(row.box, "aria-label", `Select ${name}`);
    row.box.checked = this.selected.has(name);
  }

  toggle(box) {
    const name = box.dataset.stream;
    if (box.checked) this.selected.add(name);
    else this.selected.delete(name);
    this.onSelect();
  }
}
