// The table of streams: the server sorts and filters, and sends only the rows that are visible. Rows have a fixed height, and a spacer
// stands for those that are not here, so thousands of streams cost what sixty cost.

import { el, setAttribute, setText } from "./dom.js";
import { count, nanoseconds, percent, scaled } from "./format.js";

const ROW_HEIGHT = 30;
/** Rows that are requested beyond the visible ones, so that a short scroll needs nothing new. */
const SPARE = 10;
const MOST_VISIBLE = 40;
const SCROLL_PAUSE_MS = 150;
const FILTER_PAUSE_MS = 250;

const STATES = { started: "▶ started", paused: "‖ paused", stopped: "■ stopped" };

/** Columns: name in the API, heading, and how a value becomes text. */
const COLUMNS = [
  ["name", "Stream", String],
  ["state", "State", (word) => STATES[word] ?? word],
  ["port_tx", "From", String],
  ["port_rx", "To", (ports) => ports || "–"],
  ["frames_tx", "Sent, frames", count],
  ["frames_rx", "Received, frames", count],
  ["lost", "Lost, frames", count],
  ["loss_percent", "Lost, share", percent],
  ["in_flight_or_lost", "In flight or lost, frames", count],
  ["bytes_tx_rate", "Sending", (bytes) => scaled(bytes === null ? null : bytes * 8, "bit/s")],
  ["bytes_rx_rate", "Receiving", (bytes) => scaled(bytes === null ? null : bytes * 8, "bit/s")],
  ["latency_mean_ns", "Mean latency", nanoseconds],
  ["latency_max_ns", "Largest latency", nanoseconds],
];
const TEXTS = 4;

export class StreamTable {
  /** `onWindow` is called when other rows are wanted; `mayControl` adds a box to each row to select it. */
  constructor(mayControl, onWindow) {
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
    this.heads = COLUMNS.map(([name, title], index) => this.head(name, title, index >= TEXTS));
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

  head(name, title, isNumber) {
    const button = el("button", { type: "button", class: "sort", onclick: () => this.toggleSort(name) }, title);
    return el("th", { scope: "col", class: isNumber ? "number" : null, "data-column": name }, button);
  }

  /** The query of the rows that are wanted. */
  query() {
    const rows = Math.min(MOST_VISIBLE, Math.ceil((this.box.clientHeight || 400) / ROW_HEIGHT)) + 2 * SPARE;
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

  /** Largest first, then smallest first, then the order of the configuration. */
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
    // Another configuration or filter may have fewer rows than this window skips.
    if (this.from > 0 && this.from >= matching) this.showFirstRows();
    const names = columns.name;
    setText(this.counter, matching === total ? `${count(total)} streams` : `${count(matching)} of ${count(total)} streams`);
    setAttribute(this.table, "aria-rowcount", matching + 1);
    while (this.rows.length < names.length) this.rows.push(this.row());
    this.rows.length = names.length;
    this.above.firstChild.style.height = `${from * ROW_HEIGHT}px`;
    this.below.firstChild.style.height = `${Math.max(0, matching - from - names.length) * ROW_HEIGHT}px`;
    for (const spacer of [this.above, this.below]) setAttribute(spacer.firstChild, "colspan", COLUMNS.length + Number(this.mayControl));
    this.rows.forEach((row, index) => this.fill(row, columns, index, from));
    const wanted = [this.above, ...this.rows.map((row) => row.node), this.below];
    if (wanted.length !== this.body.children.length || wanted.some((node, index) => this.body.children[index] !== node)) {
      this.body.replaceChildren(...wanted);
    }
  }

  row() {
    const cells = COLUMNS.map((column, index) => (index === 0 ? el("th", { scope: "row" }) : el("td", { class: index >= TEXTS ? "number" : null })));
    const box = el("input", { type: "checkbox", onchange: () => this.toggle(box) });
    const select = this.mayControl ? el("td", { class: "select-cell" }, box) : null;
    return { node: el("tr", {}, select, cells), cells, box };
  }

  fill(row, columns, index, from) {
    setAttribute(row.node, "aria-rowindex", from + index + 2);
    const name = columns.name[index];
    COLUMNS.forEach(([column, , format], place) => {
      const value = columns[column][index];
      setText(row.cells[place], format(value));
      row.cells[place].classList.toggle("absent", value === null);
    });
    row.cells[6].classList.toggle("is-lost", Number(columns.lost[index]) > 0);
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
