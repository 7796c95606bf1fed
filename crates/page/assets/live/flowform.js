// What is asked about flow records: a form whose state is the address, and the parameters of the calls that follow from it.

import { el } from "./dom.js";

/** Groupings that are often useful; any other column can be typed. */
const GROUPINGS = {
  "src-ip": "Source address",
  "dst-ip": "Destination address",
  pair: "Pair of addresses",
  "src-ip,dst-ip": "From and to address",
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
/** The last so many seconds. */
const SPANS = { 300: "Last 5 minutes", 3600: "Last hour", 86400: "Last day", 604800: "Last 7 days" };

/** The question in an address, with defaults. */
export function readQuestion(query) {
  const number = (name) => (query.get(name) ? Number(query.get(name)) : null);
  return { by: query.get("by") || "src-ip", order: query.get("order") || "bytes", filter: query.get("filter") ?? "", last: number("last"), since: number("since_ms"), before: number("before_ms") };
}

/** Filter and period as both calls take them. */
export function recordParameters(question) {
  const parameters = new URLSearchParams();
  const since = question.last ? Date.now() - question.last * 1000 : question.since;
  if (question.filter) parameters.set("filter", question.filter);
  if (since !== null) parameters.set("since_ms", since);
  if (!question.last && question.before !== null) parameters.set("before_ms", question.before);
  return parameters;
}

const option = (value, text, chosen) => el("option", { value, selected: value === chosen }, text);

/** A label above its input. */
function field(id, label, input, ...more) {
  return el("p", {}, el("label", { for: id }, label), input, ...more);
}

function timeInput(id, ms) {
  return el("input", { type: "datetime-local", step: 1, id, value: Number.isFinite(ms) && ms !== null ? new Date(ms).toISOString().slice(0, 19) : "" });
}

export class FlowForm {
  constructor(question) {
    const isOther = !Object.hasOwn(GROUPINGS, question.by);
    const isBetween = !question.last && (question.since !== null || question.before !== null);
    this.by = el("select", { id: "flow-by", onchange: () => this.hideUnused() },
      Object.entries(GROUPINGS).map(([value, text]) => option(value, text, question.by)), option("", "Other columns…", isOther ? "" : null));
    this.columns = el("input", { id: "flow-columns", list: "flow-column-names", value: question.by, autocomplete: "off", spellcheck: "false", "aria-describedby": "problem-by" });
    this.order = el("select", { id: "flow-order", "aria-describedby": "problem-order" }, Object.entries(ORDERS).map(([value, text]) => option(value, text, question.order)));
    this.filter = el("input", { type: "search", id: "flow-filter", value: question.filter, autocomplete: "off", autocapitalize: "none", spellcheck: "false", "aria-describedby": "problem-filter flow-filter-hint" });
    this.span = el("select", { id: "flow-span", onchange: () => this.hideUnused() }, option("", "All records", ""),
      Object.entries(SPANS).map(([value, text]) => option(value, text, String(question.last))), option("between", "Between two times", isBetween ? "between" : null));
    this.since = timeInput("flow-since", question.since);
    this.before = timeInput("flow-before", question.before);
    this.problems = Object.fromEntries(["by", "order", "filter"].map((name) => [name, el("span", { class: "problem", id: `problem-${name}`, role: "alert" })]));
    this.node = this.build();
    this.hideUnused();
  }

  build() {
    const hint = el("span", { class: "muted", id: "flow-filter-hint" }, "As in nfdump, such as ", el("code", {}, "src net 198.18.0.0/15 and packets > 1k"));
    this.columnField = field("flow-columns", "Columns, comma-separated", this.columns, this.problems.by);
    this.times = [field("flow-since", "From (UTC)", this.since), field("flow-before", "Before (UTC)", this.before)];
    return el("form", { class: "card filters", role: "search", "aria-label": "Question about flows", onsubmit: (event) => {
      event.preventDefault();
      location.hash = `#/flows?${this.address()}`;
    } }, field("flow-by", "Group by", this.by), this.columnField, field("flow-order", "Largest by", this.order, this.problems.order),
    field("flow-span", "Flows that began", this.span), this.times,
    el("p", { class: "wide" }, el("label", { for: "flow-filter" }, "Filter"), this.filter, this.problems.filter, hint),
    el("datalist", { id: "flow-column-names" }, COLUMNS.map((value) => el("option", { value }))), el("p", {}, el("button", { type: "submit" }, "Show")));
  }

  hideUnused() {
    this.columnField.hidden = this.by.value !== "";
    for (const time of this.times) time.hidden = this.span.value !== "between";
  }

  /** The question in the form as the address has it. */
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

  /** Shows what the server said of a wrong question, beside the field that its text begins with. */
  showProblems(errors) {
    for (const text of errors) {
      const name = /^(by|order):/.exec(text)?.[1] ?? "filter";
      if (name === "by") this.columnField.hidden = false;
      this.problems[name].append(`✗ ${text}\n`);
      const input = { by: this.columns, order: this.order, filter: this.filter }[name];
      input.setAttribute("aria-invalid", "true");
    }
  }
}
