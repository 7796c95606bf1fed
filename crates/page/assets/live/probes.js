// The view of runs with probes. A measurement is the runs of one plan. The view shows all pairs of its newest run, and
// one pair over its runs.

import { Refusal, get, hasToken } from "./api.js";
import { announce, card, el, field, figures, morphChildren, option, verdict } from "./dom.js";
import { DASH, count, moment, utc } from "./format.js";
import { poll } from "./poll.js";
import { allPairs } from "./probepairs.js";
import { ProbeTimes } from "./probetimes.js";
import { CELLS, KeptProbes, isPair, pairName } from "./probevalues.js";
import { resultAddress } from "./results.js";

const PERIOD_MS = 10000;
/** Number of newest results in which the page looks for measurements. */
const MAX_LISTED = 200;
const USUAL_RUNS = 20;
const MAX_RUNS = 100;
/** Number of plans that are tried to find a first measurement: a run without streams may have no probes either. */
const MAX_TRIED = 10;
/**
 * Maximum number of runs in `kept`. It is above `MAX_RUNS`, so that a new run does not push out a run that is shown.
 */
const MAX_KEPT = 120;

/** Cached probes of runs, the least recently used first. The cache is kept while the user looks at other pages. */
const kept = new Map();
/** Probe method of each plan, by SHA-256 of the plan; null if its runs have no probes. */
const methods = new Map();

/**
 * Gets the probes of a run; null if it has none. The cache key contains verdict and outcome, because a late result of a
 * node changes the report.
 */
async function probesOf(run, signal) {
  const key = JSON.stringify([run.id, run.verdict, run.outcome]);
  let probes = kept.get(key);
  if (probes === undefined) {
    const report = await get(`runs/${encodeURIComponent(run.id)}`, signal);
    probes = report.probes ? new KeptProbes(report.probes) : null;
  }
  kept.delete(key);
  kept.set(key, probes);
  if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value);
  methods.set(run.plan_sha256, probes?.method ?? null);
  return probes;
}

/**
 * Gets the row of a run. A report that is missing or unreadable becomes the problem of this row; the others are shown.
 */
async function loadRun(run, signal) {
  try {
    const probes = await probesOf(run, signal);
    return probes ? { run, probes } : { run, problem: "the report has no probes" };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return { run, problem: error.message };
  }
}

const ofProbes = (page) => page.results.filter((run) => run.kind === "run" && Number(run.streams) === 0 && run.plan_sha256);

/** Groups runs by plan, the plan of the newest run first. Plans that are known to have no probes are left out. */
function measurementsOf(runs) {
  const plans = new Map();
  for (const run of runs) {
    const known = plans.get(run.plan_sha256);
    if (known) known.runs += 1;
    else plans.set(run.plan_sha256, { plan: run.plan_sha256, newest: run, runs: 1 });
  }
  return [...plans.values()].filter(({ plan }) => methods.get(plan) !== null);
}

function measurementText({ plan, newest, runs }) {
  const parts = [newest.name || plan.slice(0, 12), methods.get(plan), `${count(runs)} ${runs === 1 ? "run" : "runs"}`, `newest ${utc(newest.started_ms)}`];
  return parts.filter(Boolean).join(", ");
}

function readQuestion(query) {
  const most = Math.min(MAX_RUNS, Math.max(1, Math.trunc(Number(query.get("most"))) || USUAL_RUNS));
  const cell = Object.hasOwn(CELLS, query.get("cell") ?? "") ? query.get("cell") : "there";
  const pair = query.get("from") && query.get("to") ? { from: query.get("from"), to: query.get("to"), target: query.get("target") || null } : null;
  return { plan: query.get("plan") || null, most, cell, pair };
}

function addressOf({ plan, most, cell, pair }) {
  const next = new URLSearchParams({ plan });
  if (pair) next.set("from", pair.from);
  if (pair) next.set("to", pair.to);
  if (pair?.target) next.set("target", pair.target);
  if (most !== USUAL_RUNS) next.set("most", most);
  if (cell !== "there") next.set("cell", cell);
  return `#/probes?${next}`;
}

/** The pair of a line. It has a target only if several lines have the same ends. */
function pairOf(lines, line) {
  const pair = { from: line.from, to: line.to, target: null };
  return lines.filter((one) => isPair(one, pair)).length > 1 ? { ...pair, target: line.target } : pair;
}

class ProbeView {
  constructor(context, question) {
    this.context = context;
    this.question = question;
    this.rows = [];
    /** Lines of the newest run. */
    this.lines = [];
    this.choice = el("form", { class: "card filters", "aria-label": "Measurement", onsubmit: (event) => event.preventDefault(), onchange: (event) => this.choose(event.target) });
    this.newest = el("div", { onclick: (event) => this.press(event), onchange: (event) => this.choose(event.target) });
    this.times = new ProbeTimes();
    this.node = el("div", {}, this.choice, this.newest, this.times.node);
  }

  /** Applies a change of one of the selects. */
  choose(input) {
    if (input.id === "probe-plan") location.hash = addressOf({ ...this.question, plan: input.value, pair: null });
    if (input.id === "probe-most") location.hash = addressOf({ ...this.question, most: Number(input.value) });
    if (input.id === "probe-cell") this.change({ cell: input.value });
    if (input.id === "probe-pair-choice" && input.value) this.showPair(pairOf(this.lines, this.lines[Number(input.value)]));
  }

  press(event) {
    const button = event.target.closest("button[data-from]");
    if (button) this.showPair({ from: button.dataset.from, to: button.dataset.to, target: button.dataset.target ?? null });
  }

  showPair({ from, to, target }) {
    this.change({ pair: { from, to, target } });
    announce(`${pairName({ from, to })} is shown over time`);
  }

  /** Changes the question and the address without building a new view, so that the focus stays. */
  change(part) {
    Object.assign(this.question, part);
    history.pushState(null, "", addressOf(this.question));
    this.draw();
  }

  /**
   * Gets the list of results, then each report that is not cached, one after the other. False if
   * there is no measurement.
   */
  async refresh() {
    const { signal } = this.context;
    const listed = ofProbes(await get(`runs?kind=run&most=${MAX_LISTED}`, signal));
    this.question.plan ??= await this.firstPlan(listed);
    if (!this.question.plan) return false;
    const page = await get(`runs?${new URLSearchParams({ kind: "run", plan: this.question.plan, most: this.question.most })}`, signal);
    this.matching = page.matching;
    this.listed = listed;
    // The address may contain only the first characters of the plan's hash.
    this.question.plan = page.results[0]?.plan_sha256 ?? this.question.plan;
    await this.load(ofProbes(page).filter((run) => run.plan_sha256 === this.question.plan));
    return true;
  }

  async firstPlan(listed) {
    for (const { plan, newest } of measurementsOf(listed).slice(0, MAX_TRIED)) {
      const { probes } = await loadRun(newest, this.context.signal);
      if (probes) return plan;
    }
    return null;
  }

  async load(runs) {
    const rows = [];
    for (const run of runs) {
      this.times.progress.textContent = `Reading reports: ${rows.length + 1} of ${runs.length}`;
      rows.push(await loadRun(run, this.context.signal));
      // The newest run is shown before the other reports are read.
      if (rows.length === 1 && this.rows[0]?.run.id !== run.id) this.draw(rows);
    }
    this.draw(rows);
    this.times.progress.textContent = `The newest ${count(rows.length)} of ${count(this.matching)} runs`;
  }

  draw(rows = this.rows) {
    if (!this.context.isCurrent()) return;
    this.rows = rows;
    const [first] = rows;
    this.lines = first?.probes?.lines() ?? [];
    morphChildren(this.choice, this.choices());
    if (this.lines.length) this.question.pair ??= pairOf(this.lines, this.lines.find((line) => line.found) ?? this.lines[0]);
    this.times.node.hidden = !this.question.pair;
    morphChildren(this.newest, [first ? this.newestCard(first) : card("No run", el("p", {}, "No run of this plan is stored."))]);
    // The view appears after the first report, while the others are read.
    if (!this.node.isConnected) this.context.place(el("h1", {}, "Probes"), this.node);
    if (this.question.pair) this.times.update(this.question.pair, rows);
  }

  choices() {
    const { plan, most } = this.question;
    const all = measurementsOf(this.listed);
    if (this.rows.length && !all.some((one) => one.plan === plan)) all.push({ plan, newest: this.rows[0].run, runs: this.matching });
    for (const one of all) if (one.plan === plan) one.runs = this.matching;
    const counts = [...new Set([5, USUAL_RUNS, 50, MAX_RUNS, most])].sort((a, b) => a - b);
    const measurement = el("select", { id: "probe-plan" }, all.map((one) => option(one.plan, measurementText(one), plan)));
    const newest = el("select", { id: "probe-most" }, counts.map((number) => option(number, String(number), most)));
    return [field("Measurement (runs of the same plan)", measurement, { kind: "wide" }), field("Newest runs to show over time", newest)];
  }

  newestCard({ run, probes, problem }) {
    const links = el("p", { class: "controls apart" }, el("a", { href: resultAddress(run.id) }, "Result"),
      // A browser sends no token when it follows a link, so there is no link with a token. The page of the result
      // can save the report.
      hasToken() ? "" : el("a", { href: `../api/v1/runs/${encodeURIComponent(run.id)}/report.html` }, "Report as a page"));
    const facts = figures([
      ["Run", run.id],
      ["Verdict", verdict(run.verdict)],
      ["Name", run.name || DASH],
      ["Method", probes?.method ?? DASH],
      ["Pairs", probes ? count(this.lines.length) : DASH],
      ["Started", moment(run.started_ms)],
    ]);
    if (!probes) return card("Newest run", facts, links, el("p", { class: "problem" }, `✗ ${problem}`));
    const { pair } = this.question;
    const unknown = pair && !this.lines.some((line) => isPair(line, pair)) ? [el("p", {}, `? The newest run has no pair ${pairName(pair)}.`)] : [];
    return card("Newest run", facts, links, ...unknown, ...allPairs({ method: probes.method, lines: this.lines }, this.question));
  }

  close() {
    this.times.close();
  }
}

function emptyCard() {
  return card("No probes", el("p", {}, "No run with probes is stored yet. ", el("code", {}, "packetrig fleet probe"), " measures between the nodes of a fleet."));
}

/**
 * Shows the measurement that the address asks for, and looks for new runs every ten seconds. Returns a
 * function that stops this.
 */
export async function showProbes(context, query) {
  const view = new ProbeView(context, readQuestion(query));
  context.signal.addEventListener("abort", () => view.close());
  const refresh = async () => {
    const isFound = await view.refresh();
    if (!isFound && context.isCurrent()) context.place(el("h1", {}, "Probes"), emptyCard());
  };
  await refresh();
  return poll(context, refresh, PERIOD_MS);
}
