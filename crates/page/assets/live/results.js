// The views of past results: the list with its filters, one result, and two results side by side. The address names
// what is shown, so links keep working.

import { get, getText, hasToken } from "./api.js";
import { card, el, field, figures, option, table, verdict } from "./dom.js";
import { ABSENT, DASH, count, moment, nanoseconds, percent, scaled } from "./format.js";
import { LedgerDrawing } from "./ledger.js";
import { TimePlot } from "./plot.js";
import { poll } from "./poll.js";

const PAGE_SIZE = 50;
/** Maximum number of streams that are shown of a result; its JSON file has all. */
const MAX_STREAMS = 100;
/** The address of a result on this page. */
export const resultAddress = (id) => `#/runs/${encodeURIComponent(id)}`;

/** Results that are selected for a comparison. They stay selected while the user looks at other pages of the list. */
const selected = new Set();

export async function showResults(context, query) {
  const wanted = new URLSearchParams();
  for (const name of ["text", "verdict", "kind", "plan", "since_ms", "before_ms", "from"]) {
    if (query.get(name)) wanted.set(name, query.get(name));
  }
  wanted.set("most", PAGE_SIZE);
  const lists = el("div");
  let shown = "";
  const refresh = async () => {
    const [page, unfinished] = await Promise.all([get(`runs?${wanted}`), get("unfinished")]);
    // Without news the list is not rebuilt, so that focus and selected text stay.
    const key = JSON.stringify([page, unfinished]);
    if (key === shown) return;
    shown = key;
    lists.replaceChildren(...resultLists(page, unfinished, query));
  };
  await refresh();
  context.place(el("h1", {}, "Results"), filters(query), lists);
  return poll(context, refresh);
}

function resultLists(page, unfinished, query) {
  const from = Number(query.get("from") ?? 0);
  const compare = el("button", { type: "button", id: "compare", onclick: openComparison }, "");
  const nameCompare = () => {
    compare.disabled = selected.size !== 2;
    compare.textContent = selected.size === 2 ? "Compare the two selected" : `Compare: select two (${selected.size} selected)`;
  };
  nameCompare();
  const list = page.results.length === 0
    ? el("p", {}, page.total === 0 ? ["There are no results yet. ", el("code", {}, "packetrig demo"), " makes one."] : "No result matches these filters.")
    : table("Results, the newest first", ["Result", "Verdict", "Select", "Kind", "Started", "Ended", "Streams", "Sent, frames", "Lost, frames"],
      page.results.map((row) => resultRow(row, nameCompare)), [6, 7, 8]);
  return [
    card("Past runs and test methods", el("p", { role: "status", class: "muted" }, `${count(page.matching)} of ${count(page.total)} results match`),
      el("p", { class: "controls" }, compare), list, pager(page, from, query)),
    unfinished.runs.length ? unfinishedCard(unfinished.runs) : "",
  ];
}

function resultRow(row, onSelect) {
  const box = el("input", { type: "checkbox", "aria-label": `Select ${row.id}`, onchange: () => {
    if (box.checked) selected.add(row.id);
    else selected.delete(row.id);
    onSelect();
  } });
  box.checked = selected.has(row.id);
  // The name and the verdict come first: a narrow screen shows them without scrolling.
  const result = el("div", { class: "result-cell" }, el("a", { href: resultAddress(row.id) }, row.name || row.id), row.name ? el("small", {}, row.id) : "");
  return [result, verdict(row.verdict), box, row.kind, moment(row.started_ms), row.outcome,
    row.streams === null ? DASH : count(row.streams), row.sent === null ? DASH : count(row.sent), row.lost === null ? DASH : count(row.lost)];
}

function openComparison() {
  const [one, other] = [...selected].sort();
  location.hash = `#/compare?${new URLSearchParams({ a: one, b: other })}`;
}

function filters(query) {
  const text = el("input", { type: "search", id: "filter-text", value: query.get("text") ?? "" });
  const choice = el("select", { id: "filter-verdict" }, ["", "PASS", "FAIL", "INCONCLUSIVE", "NOT JUDGED"].map((word) => option(word, word || "any", query.get("verdict") ?? "")));
  const kind = el("input", { type: "text", id: "filter-kind", value: query.get("kind") ?? "", placeholder: "run, rfc2544, …" });
  const day = (name) => el("input", { type: "date", id: `filter-${name}`, value: query.get(name) ? new Date(Number(query.get(name))).toISOString().slice(0, 10) : "" });
  const [since, before] = [day("since_ms"), day("before_ms")];
  const form = el("form", { class: "card filters", role: "search", "aria-label": "Filters", onsubmit: (event) => {
    event.preventDefault();
    const next = new URLSearchParams();
    const set = (name, value) => value && next.set(name, value);
    set("text", text.value.trim());
    set("verdict", choice.value);
    set("kind", kind.value.trim());
    set("since_ms", since.value && String(Date.parse(`${since.value}T00:00:00Z`)));
    set("before_ms", before.value && String(Date.parse(`${before.value}T00:00:00Z`)));
    location.hash = `#/runs?${next}`;
  } }, field("Name or id", text), field("Verdict", choice), field("Kind", kind),
  field("From day (UTC)", since), field("Before day (UTC)", before), el("p", {}, el("button", { type: "submit" }, "Filter")));
  return form;
}

function pager(page, from, query) {
  const link = (start, text) => {
    const next = new URLSearchParams(query);
    next.set("from", String(start));
    return el("a", { href: `#/runs?${next}` }, text);
  };
  const end = from + page.results.length;
  if (page.matching <= page.results.length) return "";
  return el("nav", { class: "controls", "aria-label": "Pages of results" },
    from > 0 ? link(Math.max(0, from - PAGE_SIZE), "← newer") : "", ` ${count(from + 1)} to ${count(end)} `,
    end < page.matching ? link(end, "older →") : "");
}

function unfinishedCard(runs) {
  return card("Runs without a report", table("In progress, or cut short", ["Run", "Begun", "State"],
    runs.map((run) => [run.id, moment(run.begun_ms), run.process === null ? "✗ cut short" : `▶ in progress (process ${run.process})`])));
}

export async function showResult(context, id) {
  const text = await getText(`runs/${encodeURIComponent(id)}`);
  const result = JSON.parse(text);
  const download = [
    reportLink(id),
    el("button", { type: "button", onclick: () => save(`${id}.json`, text, "application/json") }, "Save as JSON"),
  ];
  if (!result.streams) {
    context.place(el("h1", {}, `Result ${id}`), methodCard(result), el("p", { class: "controls" }, download));
    return () => {};
  }
  const title = el("div", { class: "live-title" }, el("h1", {}, `Run ${result.run}`), verdict(verdictWord(result.verdict)));
  // A report of probes has no streams and no counts of frames. Losses and a ledger would show
  // zeros that nobody measured.
  if (result.probes && !result.streams.length) {
    context.place(title, factsCard(result, download), criteriaCard(result), result.caveats.length ? caveatsCard(result) : "");
    return () => {};
  }
  const drawing = new LedgerDrawing();
  // Reports of older versions do not have `in_doubt`.
  drawing.update(accountsOf(result.ledger), { in_doubt: 0, ...result.lost });
  const plot = new TimePlot("Frames per second", ["sent", "received"], (value) => scaled(value, "fps"));
  context.place(title, factsCard(result, download),
    el("div", { class: "live-grid" },
      el("div", { class: "stack" }, criteriaCard(result), caveatsCard(result),
        card("Frame rates", el("figure", {}, plot.node, el("figcaption", {}, "Frames in each second; the last second may be incomplete")))),
      card("Where frames went", drawing.figure)),
    streamsCard(result));
  overlay(plot, ["tx", "rx"].map((half) => sumSeries(result.ports.map((port) => port[`${half}_series`]))));
  return () => plot.close();
}

/**
 * Draws counts per second on one time axis. A second that is missing within a series is 0; after its end,
 * there is no value.
 */
function overlay(plot, series) {
  const length = Math.max(...series.map((counts) => counts.length));
  const seconds = Array.from({ length }, (_, second) => second);
  plot.update(seconds, series.map((counts) => seconds.map((second) => counts[second] ?? (second < counts.length ? 0 : null))));
}

/**
 * The word of a verdict, in capitals. Results of methods have the word; reports of runs have an object
 * with word and reasons.
 */
function verdictWord(value) {
  return String(value?.verdict ?? value ?? "").toUpperCase();
}

function accountsOf(ledger) {
  return ledger.counts ?? ledger;
}

function sumSeries(series) {
  const sums = [];
  for (const { seconds } of series.filter(Boolean)) {
    seconds.forEach(([frames], second) => { sums[second] = (sums[second] ?? 0) + frames; });
  }
  return sums;
}

/**
 * A link to the report page. A browser sends no token when it follows a link; with a token, a button
 * saves the page instead.
 */
function reportLink(id) {
  const path = `runs/${encodeURIComponent(id)}/report.html`;
  if (!hasToken()) return el("a", { href: `../api/v1/${path}` }, "Report as a page");
  return el("button", { type: "button", onclick: async () => save(`${id}.html`, await getText(path), "text/html") }, "Save the report as a page");
}

/** Saves a text as a file. */
export function save(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function lossFigures({ lost }) {
  return [
    ["Lost, frames", count(lost.total)],
    ["Lost on the path", count(lost.path)],
    ["Lost by our sender", count(lost.sender)],
    ["Lost by our receiver", count(lost.receiver)],
    ["Lost in doubt", count(lost.in_doubt ?? 0)],
  ];
}

function factsCard(report, download) {
  const probes = report.probes && el("p", {}, el("a", { href: `#/probes?${new URLSearchParams({ plan: report.plan_sha256 })}` }, "Probes of this plan: all pairs, and one pair over its runs"));
  return card("Summary", figures([
    ["Name", report.name || DASH],
    ["Started", moment(Math.floor(report.started_wall_ns / 1e6))],
    ["Nodes that reported", `${report.coverage.reported} of ${report.coverage.expected}`],
    ...(report.streams.length || !report.probes ? lossFigures(report) : []),
    ["Seed", String(report.seed)],
    ["Plan (SHA-256)", el("code", {}, report.plan_sha256.slice(0, 12))],
    ["Version", report.packetrig_version],
  ]), probes, el("p", { class: "controls" }, download));
}

function criteriaCard(report) {
  const reasons = report.verdict.reasons ?? [];
  const why = reasons.length ? el("ul", {}, reasons.map((text) => el("li", {}, text))) : "";
  if (!report.judged?.length) return card("Criteria", why, el("p", {}, "No criteria were set for this run."));
  return card("Criteria", why, table("What the verdict follows from", ["Criterion", "Limit", "Verdict", "Failed", "Not known", "Judged"],
    report.judged.map((line) => [line.criterion, line.limit, verdict({ pass: "PASS", fail: "FAIL", met: "PASS" }[String(line.result).toLowerCase()] ?? String(line.result).toUpperCase()), count(line.failed), count(line.unknown), count(line.judged)]), [3, 4, 5]));
}

function caveatsCard(report) {
  const doubts = [...report.caveats].sort((a, b) => Number(b.matters) - Number(a.matters));
  const rules = report.imbalances.map((one) => `${one.rule} does not hold: left side ${count(one.whole)}, right side ${count(one.parts)}`);
  if (!doubts.length && !rules.length) return card("Doubts", el("p", {}, "None: the ledger balances."));
  return card("Doubts", el("ul", {}, rules.map((text) => el("li", {}, text)),
    doubts.map((one) => el("li", {}, one.matters ? el("strong", {}, "forbids PASS: ") : "", one.subject ? `${one.subject}: ` : "", one.text))));
}

function streamsCard(report) {
  const lost = (stream) => stream.loss?.lost ?? 0;
  const worst = [...report.streams].sort((a, b) => lost(b) - lost(a)).slice(0, MAX_STREAMS);
  const note = report.streams.length > worst.length ? `The ${worst.length} of ${report.streams.length} streams with the largest loss; the JSON file has all.` : `All streams (${report.streams.length}), the largest loss first.`;
  const mean = (stream) => stream.latency?.mean ?? stream.latency?.mean_ns ?? null;
  return card("Streams", table(note, ["Stream", "From", "To", "Sent, frames", "Received, frames", "Lost, frames", "Lost, share", "Mean latency"],
    worst.map((stream) => [stream.name, stream.tx_port, stream.rx_ports.join(", ") || DASH, count(stream.sent?.frames), count(stream.received?.frames),
      count(stream.loss?.lost), percent(stream.loss?.percent), nanoseconds(mean(stream))]), [3, 4, 5, 6, 7]));
}

function methodCard(result) {
  const rows = (result.figures ?? []).map((figure) => [figure.name, figure.subject, figure.value === null ? ABSENT : `${figure.value} ${figure.unit}`]);
  return card(result.options?.method ?? "Test method", el("p", {}, verdict(verdictWord(result.verdict))),
    table("Figures", ["Figure", "Subject", "Value"], rows, [2]));
}

export async function showComparison(context, query) {
  const [a, b] = [query.get("a") ?? "", query.get("b") ?? ""];
  if (!a || !b) {
    context.place(el("h1", {}, "Comparison"), card("Nothing to compare", el("p", {}, "Select two results in ", el("a", { href: "#/runs" }, "the list"), ".")));
    return () => {};
  }
  const report = await get(`compare?${new URLSearchParams({ a, b })}`);
  const value = (number, unit) => (number !== null && unit === "ns" ? nanoseconds(number) : number === null ? ABSENT : `${Number(number.toPrecision(6))} ${unit}`);
  const rows = report.figures.map((figure) => [figure.subject ? `${figure.name} of ${figure.subject}` : figure.name, value(figure.before, figure.unit), value(figure.after, figure.unit),
    value(figure.difference, figure.unit), figure.percent === null ? DASH : percent(figure.percent), changeWord(figure)]);
  const plot = new TimePlot("Frames received per second", ["first", "second"], (frames) => scaled(frames, "fps"));
  const areRuns = report.before.kind === "run" && report.after.kind === "run";
  const title = (label) => el("span", {}, el("a", { href: resultAddress(label.id) }, label.id), ` ${label.name} `, verdict(label.verdict));
  context.place(el("h1", {}, "Comparison"),
    card("Two results", figures([["First", title(report.before)], ["Second", title(report.after)]]),
      report.difference ? el("p", { class: "problem" }, `The results are not of the same test: ${report.difference}. Their figures are shown, but not judged.`) : "",
      areRuns ? el("figure", {}, plot.node, el("figcaption", {}, "Frames received in each second of both runs, counted from the start of each run")) : "",
      rows.length ? table("Figures side by side", ["Figure", "First", "Second", "Difference", "Percent", "Change"], rows, [1, 2, 3, 4]) : el("p", {}, "Neither result has figures.")));
  if (areRuns) {
    const both = await Promise.all([a, b].map((id) => get(`runs/${encodeURIComponent(id)}/series`)));
    overlay(plot, both.map((one) => sumSeries(one.ports.map((port) => port.received))));
  }
  return () => plot.close();
}

function changeWord({ change, difference }) {
  // A difference that is no larger than the error of the measurement is no change.
  if (change === "same" && difference) return "≈ within the error";
  const sign = { better: "▲", worse: "▼", same: "=" }[change] ?? "";
  return `${sign} ${String(change).replaceAll("_", " ")}`.trim();
}
