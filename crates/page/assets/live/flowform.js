// The question about flow records: a form, the address of the page that stores its state, and the parameters
// of the API calls.

import { el, field, option } from "./dom.js";

/** Groupings that are often useful; any other column can be typed. */
const GROUPINGS = {
  "src-ip": "Source address",
  "dst-ip": "Destination address",
  pair: "Pair of addresses",
  "src-ip,dst-ip": "Source and destination address",
  port: "Service (lower port)",
  "dst-port": "Destination port",
  protocol: "Protocol",
  exporter: "Exporter",
};
const COLUMNS = ["src-ip", "dst-ip", "src-port", "dst-port", "pair", "port", "protocol", "exporter", "in-if", "out-if", "vlan", "src-as", "dst-as", "next-ip", "tunnel"];
export const ORDERS = {
  bytes: "Bytes",
  packets: "Packets",
  flows: "Flows",
  bps: "Bits per second",
  pps: "Packets per second",
  bpp: "Bytes per packet",
  duration: "Duration",
};
/** Periods that the form offers, by their length in seconds. */
const SPANS = { 300: "Last 5 minutes", 3600: "Last hour", 86400: "Last day", 604800: "Last 7 days" };
/** Units for lengths that are not in `SPANS`, the longest first. */
const SPAN_UNITS = [[86400, "days"], [3600, "h"], [60, "min"]];
/** The latest time that a field for times can show: the last second of the year 9999. */
const LATEST_MS = 253402300799000;
/** Parameters of the address that can be wrong. The text of a problem begins with the name of its parameter. */
const NAMES = ["by", "order", "filter", "last", "since_ms", "before_ms"];

/**
 * Reads the question from an address; missing parts get defaults. `problems` has the errors that are found without the
 * server. `since` and `before` stay texts, as they were written.
 */
export function readQuestion(query) {
  const text = (name) => query.get(name) || null;
  const last = text("last") && Number(text("last"));
  const isWrong = last !== null && !(last > 0 && last < Infinity);
  return { by: text("by") ?? "src-ip", order: (text("order") ?? "bytes").toLowerCase(), filter: text("filter") ?? "",
    last: isWrong ? null : last, since: text("since_ms"), before: text("before_ms"),
    problems: isWrong ? [`last: \`${text("last")}\` is not a number of seconds above 0`] : [] };
}

/** The name of a period, such as `Last 2 h`. */
function spanText(seconds) {
  const [size, unit] = SPAN_UNITS.find(([size]) => seconds % size === 0) ?? [1, "s"];
  return SPANS[seconds] ?? `Last ${seconds / size} ${unit}`;
}

/** Filter and period as parameters of the calls `flows/top` and `flows/totals`. */
export function recordParameters(question) {
  const parameters = new URLSearchParams();
  const since = question.last ? Math.max(0, Math.round(Date.now() - question.last * 1000)) : question.since;
  if (question.filter) parameters.set("filter", question.filter);
  if (since !== null) parameters.set("since_ms", since);
  if (!question.last && question.before !== null) parameters.set("before_ms", question.before);
  return parameters;
}

/**
 * A field for a time. `text` is ms since 1970; the field shows the nearest time that it can show, and is empty if
 * `text` is no number.
 */
function timeInput(id, name, text) {
  const ms = text === null ? NaN : Math.min(Math.max(Number(text), 0), LATEST_MS);
  const value = Number.isNaN(ms) ? "" : new Date(ms).toISOString().slice(0, 19);
  return el("input", { type: "datetime-local", step: 1, id, value, "aria-describedby": `problem-${name}` });
}

/** The options of a select. A chosen value that `texts` does not contain gets an option of its own. */
function options(texts, chosen, textOf = String) {
  const all = chosen === "" || Object.hasOwn(texts, chosen) ? texts : { ...texts, [chosen]: textOf(chosen) };
  return Object.entries(all).map(([value, text]) => option(value, text, chosen));
}

export class FlowForm {
  constructor(question) {
    const isOther = !Object.hasOwn(GROUPINGS, question.by);
    const isBetween = !question.last && (question.since !== null || question.before !== null);
    this.by = el("select", { id: "flow-by", onchange: () => this.hideUnused() },
      options(GROUPINGS, isOther ? "" : question.by), option("", "Other columns…", isOther ? "" : null));
    this.columns = el("input", { id: "flow-columns", list: "flow-column-names", value: question.by, autocomplete: "off", spellcheck: "false", "aria-describedby": "problem-by" });
    this.order = el("select", { id: "flow-order", "aria-describedby": "problem-order" }, options(ORDERS, question.order));
    this.filter = el("input", { type: "search", id: "flow-filter", value: question.filter, autocomplete: "off", autocapitalize: "none", spellcheck: "false", "aria-describedby": "problem-filter flow-filter-hint" });
    this.span = el("select", { id: "flow-span", onchange: () => this.hideUnused(), "aria-describedby": "problem-last" }, option("", "All records", ""),
      options(SPANS, String(question.last ?? ""), spanText), option("between", "Between two times", isBetween ? "between" : null));
    this.since = timeInput("flow-since", "since_ms", question.since);
    this.before = timeInput("flow-before", "before_ms", question.before);
    this.problems = Object.fromEntries(NAMES.map((name) => [name, el("span", { class: "problem", id: `problem-${name}`, role: "alert" })]));
    this.node = this.build();
    this.hideUnused();
  }

  build() {
    const hint = el("span", { class: "muted", id: "flow-filter-hint" }, "Syntax as in nfdump, for example ", el("code", {}, "src net 198.18.0.0/15 and packets > 1k"));
    this.columnField = field("Columns, comma-separated", this.columns, { more: [this.problems.by] });
    this.times = [field("From (UTC)", this.since, { more: [this.problems.since_ms] }), field("Before (UTC)", this.before, { more: [this.problems.before_ms] })];
    return el("form", { class: "card filters", role: "search", "aria-label": "Question about flows", onsubmit: (event) => {
      event.preventDefault();
      location.hash = `#/flows?${this.address()}`;
    } }, field("Group by", this.by), this.columnField, field("Order by (largest first)", this.order, { more: [this.problems.order] }),
    field("Flows that began", this.span, { more: [this.problems.last] }), this.times,
    field("Filter", this.filter, { kind: "wide", more: [this.problems.filter, hint] }),
    el("datalist", { id: "flow-column-names" }, COLUMNS.map((value) => el("option", { value }))), el("p", {}, el("button", { type: "submit" }, "Show")));
  }

  hideUnused() {
    this.columnField.hidden = this.by.value !== "";
    for (const time of this.times) time.hidden = this.span.value !== "between";
  }

  /** The question in the form, as parameters of the page's address. */
  address() {
    const next = new URLSearchParams({ by: this.by.value || this.columns.value.trim() || "src-ip", order: this.order.value });
    const set = (name, value) => value && next.set(name, value);
    const time = (input) => input.value && String(Date.parse(`${input.value}Z`));
    set("filter", this.filter.value.trim());
    if (this.span.value === "between") {
      set("since_ms", time(this.since));
      set("before_ms", time(this.before));
    } else {
      set("last", this.span.value);
    }
    return next;
  }

  /** Shows each problem beside the field whose name it begins with, or beside the filter if it begins with no name. */
  showProblems(errors) {
    const inputs = { by: this.columns, order: this.order, filter: this.filter, last: this.span, since_ms: this.since, before_ms: this.before };
    for (const text of errors) {
      const name = NAMES.find((one) => text.startsWith(`${one}:`)) ?? "filter";
      inputs[name].parentElement.hidden = false;
      this.problems[name].append(`✗ ${text}\n`);
      inputs[name].setAttribute("aria-invalid", "true");
    }
  }
}
