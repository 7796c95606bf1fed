// What runs with probes have measured: all pairs of the newest run of a measurement, and one pair over its runs.

import { Refusal, get, hasToken } from "./api.js";
import { announce, card, el, field, figures, morphChildren, option, verdict } from "./dom.js";
import { DASH, count, moment, utc } from "./format.js";
import { poll } from "./poll.js";
import { allPairs } from "./probepairs.js";
import { ProbeTimes } from "./probetimes.js";
import { CELLS, KeptProbes, isPair, pairName } from "./probevalues.js";
import { resultAddress } from "./results.js";

const PERIOD_MS = 10000;
/** Results of the list among which measurements are looked for. */
const MAX_LISTED = 200;
const USUAL_RUNS = 20;
const MAX_RUNS = 100;
/** Runs without streams can be without probes, too. So many plans are tried for a first measurement. */
const MAX_TRIED = 10;
/** More than a view shows, so that a new run does not push out one that is shown. */
const MAX_KEPT = 120;

/** Probes of runs, the least recently used first. They stay while the user looks at other pages. */
const kept = new Map();
/** Methods by plan; null if the plan has no probes. */
const methods = new Map();

/** The probes of a run, null if it has none. A result that comes late completes a report, so the verdict and the end count as well. */
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

/** The same in a row. A report that is gone or cannot be read is a problem of that run only. */
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

/** Distinct plans, that of the newest run first. */
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

/** The pair of a line. The target belongs to it only if several lines have the same ends. */
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

  /** A change of one of the selects. */
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

  /** Without a new view, so that the focus stays. */
  change(part) {
    Object.assign(this.question, part);
    history.pushState(null, "", addressOf(this.question));
    this.draw();
  }

  /** Asks for the list, and for the reports that are not known yet, one after the other. False if there is no measurement. */
  async refresh() {
    const { signal } = this.context;
    const listed = ofProbes(await get(`runs?kind=run&most=${MAX_LISTED}`, signal));
    this.question.plan ??= await this.firstPlan(listed);
    if (!this.question.plan) return false;
    const page = await get(`runs?${new URLSearchParams({ kind: "run", plan: this.question.plan, most: this.question.most })}`, signal);
    this.matching = page.matching;
    this.listed = listed;
    // The address may have the beginning of a hash only.
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
      // The newest run is shown before all others are there.
      if (rows.length === 1 && this.rows[0]?.run.id !== run.id) this.draw(rows);
    }
    this.draw(rows);
    this.times.progress.textContent = `${count(rows.length)} of ${count(this.matching)} runs, the newest`;
  }

  draw(rows = this.rows) {
    if (!this.context.isCurrent()) return;
    this.rows = rows;
    const [first] = rows;
    this.lines = first?.probes?.lines() ?? [];
    morphChildren(this.choice, this.choices());
    if (this.lines.length) this.question.pair ??= pairOf(this.lines, this.lines.find((line) => line.found) ?? this.lines[0]);
    this.times.node.hidden = !this.question.pair;
    morphChildren(this.newest, [first ? this.newestCard(first) : card("No run", el("p", {}, "No run of this plan was kept."))]);
    // Shown as soon as there is something, while more is read.
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
    return [field("Measurement (runs of the same plan)", measurement, { kind: "wide" }), field("Newest runs over time", newest)];
  }

  newestCard({ run, probes, problem }) {
    const links = el("p", { class: "controls apart" }, el("a", { href: resultAddress(run.id) }, "Result"),
      // A browser sends no token with a link; the page of the result saves the report then.
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
  return card("No probes", el("p", {}, "No probes were kept yet. ", el("code", {}, "packetrig fleet probe"), " measures between the nodes of a fleet."));
}

/** Shows the measurement that the address asks for, and looks for new runs every ten seconds; returns what ends that. */
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
