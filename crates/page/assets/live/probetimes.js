// One pair over the runs of a measurement: drawings, and a table with all values.

import { card, el, morphChildren, table, verdict } from "./dom.js";
import { DASH, count, moment, nanoseconds, percent, scaled } from "./format.js";
import { TimePlot } from "./plot.js";
import { lossOf, outcomeOf, pairName, unansweredOf } from "./probevalues.js";
import { resultAddress } from "./results.js";

const bits = (value) => scaled(value, "bit/s");
const time = (of, figure) => (found) => found[of]?.[figure] ?? null;
const rate = (figure) => (found) => found.capacity?.rate?.[figure] ?? null;

/**
 * The drawings: `names` of the series, `text` formats a value, `of` has for each series a function that reads its value
 * from the findings of a pair, `says` is the caption.
 */
const DRAWINGS = [
  { title: "Round trip", names: ["p50", "p99"], text: nanoseconds, of: [time("round_trip", "p50_ns"), time("round_trip", "p99_ns")], says: "Median and 99th percentile of each run" },
  { title: "One-way delay", names: ["there", "back"], text: nanoseconds, of: [time("delay_there", "p50_ns"), time("delay_back", "p50_ns")], says: "Median of each run; the table has the bounds" },
  { title: "Loss by direction", names: ["there", "back"], text: percent, of: [(found) => lossOf(found, "there"), (found) => lossOf(found, "back")], says: "Share of the packets sent in that direction that were lost, in each run" },
  { title: "Without an answer", names: ["lost"], text: percent, of: [unansweredOf], says: "Share of the sent probes that were refused, or lost on the way there or back" },
  { title: "Capacity", names: ["rate", "low", "high"], text: bits, of: [rate("bits_per_s"), rate("low"), rate("high")], says: "Rate of the narrowest link on the way to the target, in bits of frames, and its range" },
];

const ns = (of, figure) => (found) => (found[of] ? nanoseconds(found[of][figure]) : null);
const boundOf = (of) => (found) => (found[of] ? `± ${nanoseconds(found[of].bound_ns)}` : null);
const counted = (name) => (found, method) => (method === "send" || Number(found.counts.sent) === 0 ? null : count(found.counts[name]));
const exception = (name) => (found) => (Number(found.counts[name]) > 0 ? count(found.counts[name]) : null);
const lossText = (name, way) => (found) => {
  const loss = lossOf(found, way);
  return loss === null ? null : `${count(found[name])} (${percent(loss)})`;
};
const CLOCKS = { one: "one clock", fleet: "the fleet's comparison", exchanges: "the probes' own comparison" };
const timeColumns = (title, of) => [[`${title} p50`, ns(of, "p50_ns")], [`${title} p99`, ns(of, "p99_ns")], [`${title} max`, ns(of, "max_ns")], [`${title} bound`, boundOf(of)]];
/**
 * Columns of the table: a heading, and a function that returns a text or null. A column without any text is left out.
 */
const COLUMNS = [
  ["Sent, probes", (found) => count(found.counts.sent)],
  ["Answered, probes", counted("answered")],
  ["Lost, probes", counted("lost")],
  ["Lost there", lossText("lost_there", "there")],
  ["Lost back", lossText("lost_back", "back")],
  ...timeColumns("Delay there", "delay_there"),
  ...timeColumns("Delay back", "delay_back"),
  ["Clocks related by", (found) => CLOCKS[found.clocks] ?? null],
  ...timeColumns("Round trip", "round_trip"),
  ["Variation there p99", ns("variation_there", "p99_ns")],
  ["Variation back p99", ns("variation_back", "p99_ns")],
  ["Capacity", (found) => (found.capacity?.rate ? bits(found.capacity.rate.bits_per_s) : null)],
  ["Capacity, from", (found) => (found.capacity?.rate ? bits(found.capacity.rate.low) : null)],
  ["Capacity, to", (found) => (found.capacity?.rate ? bits(found.capacity.rate.high) : null)],
  ["Trains used", (found) => (found.capacity ? `${count(found.capacity.used)} of ${count(found.capacity.trains)}` : null)],
  ["Reordered, probes", exception("reordered")],
  ["Duplicates, probes", exception("duplicates")],
  ["Refused, probes", exception("refused")],
  ["Corrupted, probes", exception("corrupted")],
  ["Uncertain, probes", exception("doubtful")],
];

/** How the pair ended in a run, or why the run has no values of it. */
function outcome(row) {
  if (row.problem) return `✗ ${row.problem}`;
  if (!row.line) return "? missing: the report has no such pair";
  return row.line.found ? outcomeOf(row.line, row.probes.method) : `? ${outcomeOf(row.line, row.probes.method)}`;
}

function runTable(rows) {
  const texts = rows.map(({ line, probes }) => COLUMNS.map(([, text]) => (line?.found ? text(line.found, probes.method) : null)));
  const shown = COLUMNS.map((_, index) => index).filter((index) => texts.some((row) => row[index] !== null));
  const header = ["Run", "Started", "Verdict of the run", "Outcome of the pair", ...shown.map((index) => COLUMNS[index][0])];
  const cells = rows.map(({ run, ...row }, place) => [el("a", { href: resultAddress(run.id) }, run.id), moment(run.started_ms), verdict(run.verdict),
    outcome(row), ...shown.map((index) => texts[place][index] ?? DASH)]);
  const node = table("Runs, the newest first. A dash stands for a value that was not measured or is unknown.", header, cells, shown.map((_, index) => index + 4));
  node.querySelector("table").id = "probe-runs";
  return node;
}

/** Drawings and table of the chosen pair. Another pair is shown in the same elements. */
export class ProbeTimes {
  constructor() {
    this.heading = el("h2", { id: "probe-pair" });
    this.progress = el("p", { class: "muted", role: "status" });
    this.drawings = DRAWINGS.map((drawing) => {
      const plot = new TimePlot(drawing.title, drawing.names, drawing.text, true, true);
      const node = card(drawing.title, el("figure", {}, plot.node, el("figcaption", {}, `${drawing.says}. Times in UTC.`)));
      node.hidden = true;
      return { ...drawing, plot, node };
    });
    this.nothing = el("p", {}, "? There is nothing to draw: none of these runs has a value of this pair. The table says why.");
    this.rows = el("div");
    this.node = el("section", { "aria-labelledby": "probe-pair" }, this.heading, this.progress, this.nothing,
      el("div", { class: "live-grid" }, this.drawings.map(({ node }) => node)),
      el("div", { class: "card" }, el("details", {}, el("summary", {}, "The same as a table, with all values"), this.rows)));
  }

  /** `runs`: the newest first; each has `run`, its row in the list of results, and `probes` or a `problem`. */
  update(pair, runs) {
    this.heading.textContent = `${pairName(pair)}${pair.target ? ` at ${pair.target}` : ""} over time`;
    const rows = runs.map((row) => ({ ...row, line: row.probes?.find(pair) }));
    const oldestFirst = [...rows].sort((a, b) => a.run.started_ms - b.run.started_ms);
    const seconds = oldestFirst.map(({ run }) => run.started_ms / 1000);
    for (const { of, plot, node } of this.drawings) {
      const series = of.map((value) => oldestFirst.map(({ line }) => (line?.found ? value(line.found) : null)));
      node.hidden = !series.some((values) => values.some((value) => value !== null));
      plot.update(seconds, series);
    }
    // If the loss of each direction is drawn, the loss of both together adds nothing.
    const [, , byDirection, any] = this.drawings;
    any.node.hidden ||= !byDirection.node.hidden || rows.every(({ probes }) => probes?.method === "send");
    this.nothing.hidden = this.drawings.some(({ node }) => !node.hidden);
    morphChildren(this.rows, [runTable(rows)]);
  }

  close() {
    for (const { plot } of this.drawings) plot.close();
  }
}
