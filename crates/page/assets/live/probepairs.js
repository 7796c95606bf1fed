// All pairs of a run with probes as a grid of buttons, or as a select if there are too many ends. The user chooses the
// pair that is shown over time.

import { el, field, option, tableBox } from "./dom.js";
import { CELLS, cellOf, hasDirections, isPair, meaningOf, pairName } from "./probevalues.js";

/** Maximum number of ends of a grid; with more ends there is a select. */
const MAX_ENDS = 40;

/** The ends of all lines: senders first, in plan order, so that rows and columns have the same order. */
function endsOf(lines) {
  return [...new Set([...lines.map((line) => line.from), ...lines.map((line) => line.to)])];
}

/** Groups lines by their two ends. A group usually has one line; it has several if only their targets differ. */
function linesByPair(lines) {
  const cells = new Map();
  for (const line of lines) {
    const key = JSON.stringify([line.from, line.to]);
    if (!cells.has(key)) cells.set(key, []);
    cells.get(key).push(line);
  }
  return cells;
}

function pairButton(line, probes, question, hasTarget) {
  const target = hasTarget ? line.target : null;
  return el("button", { type: "button", class: "pair-button", "data-from": line.from, "data-to": line.to, "data-target": target, "aria-pressed": String(isPair(line, question.pair)) },
    cellOf(line, probes.method, question.cell), target ? [" ", el("small", {}, `at ${target}`)] : null, el("span", { class: "visually-hidden" }, `, ${pairName(line)}`));
}

function pairCell(lines, probes, question) {
  if (!lines) return el("td", { class: "number" }, el("span", { class: "muted", "aria-hidden": "true" }, "–"), el("span", { class: "visually-hidden" }, "not in the plan"));
  return el("td", { class: "number" }, lines.map((line) => pairButton(line, probes, question, lines.length > 1)));
}

function grid(probes, question) {
  const ends = endsOf(probes.lines);
  const cells = linesByPair(probes.lines);
  const rows = ends.filter((end) => probes.lines.some((line) => line.from === end));
  const columns = ends.filter((end) => probes.lines.some((line) => line.to === end));
  const label = "All pairs: from row to column";
  return tableBox(label, el("table", { id: "probe-pairs" }, el("caption", { class: "visually-hidden" }, label),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "from / to"), columns.map((to) => el("th", { scope: "col", class: "number" }, to)))),
    el("tbody", {}, rows.map((from) => el("tr", {}, el("th", { scope: "row" }, from), columns.map((to) => pairCell(cells.get(JSON.stringify([from, to])), probes, question)))))));
}

function pairSelect(probes, question, ends) {
  const chosen = probes.lines.findIndex((line) => isPair(line, question.pair));
  return [el("p", {}, `No grid: the probes have ${ends} different ends, and a grid is drawn for at most ${MAX_ENDS}.`),
    field("Pair", el("select", { id: "probe-pair-choice" }, option("", "Choose a pair", chosen === -1 ? "" : null),
      probes.lines.map((line, index) => option(index, line.target ? `${pairName(line)} (${line.target})` : pairName(line), chosen))), { kind: "controls" })];
}

/** A select of what the cells show; empty if the method does not measure both directions. */
function cellSelect(probes, question) {
  if (!hasDirections(probes.method)) return [];
  return [field("Cells show", el("select", { id: "probe-cell" }, Object.entries(CELLS).map(([value, text]) => option(value, text, question.cell))), { kind: "controls" })];
}

/** The grid of the pairs of the newest run, or the select if there are too many ends. */
export function allPairs(probes, question) {
  const ends = endsOf(probes.lines).length;
  if (ends > MAX_ENDS) return pairSelect(probes, question, ends);
  return [...cellSelect(probes, question), el("p", { class: "muted" }, `${meaningOf(probes.method, question.cell)} A dash marks a pair that is not in the plan. Click a cell to show its pair over time.`), grid(probes, question)];
}
