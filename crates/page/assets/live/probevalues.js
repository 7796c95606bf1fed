// Results of probes between two ends, as numbers and words. The report page uses
// the same words (crates/page/src/report/probe_grid.rs).

import { el } from "./dom.js";
import { count, isAbsent, nanoseconds, percent, scaled } from "./format.js";

/** Methods whose probes are answered by packetrig on a node, which reports its own counts. */
const WITH_REFLECTORS = ["oneway", "stamp", "capacity"];
/** What a cell can show if both directions were measured. */
export const CELLS = { there: "Delay there", back: "Delay back", lost_there: "Loss there", lost_back: "Loss back", round: "Round trip" };

export const hasDirections = (method) => method === "oneway" || method === "stamp";
export const pairName = (pair) => `${pair.from} → ${pair.to}`;
export const isPair = (line, pair) => line.from === pair.from && line.to === pair.to && (!pair.target || line.target === pair.target);

/** The numbers of a line that the page shows, by their path in `found`. */
const FIGURES = [
  ...["planned", "sent", "answered", "lost", "refused", "duplicates", "reordered", "corrupted", "doubtful"].map((name) => ["counts", name]),
  ["lost_there"],
  ["lost_back"],
  ...["delay_there", "delay_back", "round_trip"].flatMap((name) => ["p50_ns", "p99_ns", "max_ns", "bound_ns"].map((figure) => [name, figure])),
  ["variation_there", "p99_ns"],
  ["variation_back", "p99_ns"],
  ["capacity", "used"],
  ["capacity", "trains"],
  ...["bits_per_s", "low", "high"].map((name) => ["capacity", "rate", name]),
];

/** The members of a line that are not numbers. They are equal in most lines of a run. */
function wordsOf({ missing, found }) {
  if (!found) return { missing };
  const { end, clocks, far_end_reported, capacity } = found;
  return { found: { end, clocks, far_end_reported, ...(capacity && { capacity: { why_not: capacity.why_not } }) } };
}

function setFigure(found, path, value) {
  const holder = path.slice(0, -1).reduce((inner, name) => (inner[name] ??= {}), found);
  holder[path[path.length - 1]] = value;
}

/** Ends of the lines of the run that was read last. Runs of one plan have equal ends, so they share this array. */
let shared = { text: "", ends: [] };

function sharedEnds(lines) {
  const ends = lines.map(({ from, to, to_node, target }) => ({ from, to, to_node, target }));
  const text = JSON.stringify(ends);
  if (shared.text !== text) shared = { text, ends };
  return shared.ends;
}

/** Replaces equal texts by the same string object, to save memory. */
function uniqueTexts(texts) {
  const known = new Map(texts.map((text) => [text, text]));
  return texts.map((text) => known.get(text));
}

/**
 * The part of a run's probes that the page shows. It needs about a sixth of the memory of the report: a run of 40
 * nodes has 1560 lines.
 */
export class KeptProbes {
  constructor({ method, lines }) {
    this.method = method;
    this.ends = sharedEnds(lines);
    this.words = uniqueTexts(lines.map((line) => JSON.stringify(wordsOf(line))));
    // NaN: not measured.
    this.figures = FIGURES.map((path) => ({ path, values: Float64Array.from(lines, ({ found }) => path.reduce((inner, name) => inner?.[name], found) ?? NaN) }))
      .filter(({ values }) => values.some((value) => !Number.isNaN(value)));
  }

  /** Builds a line in the format of the report. A value that was not measured is absent. */
  line(index) {
    const { missing, found } = JSON.parse(this.words[index]);
    if (found) {
      for (const { path, values } of this.figures) if (!Number.isNaN(values[index])) setFigure(found, path, values[index]);
    }
    return { ...this.ends[index], missing, found };
  }

  /** The line of a pair; undefined if there is none. */
  find(pair) {
    const index = this.ends.findIndex((ends) => isPair(ends, pair));
    return index === -1 ? undefined : this.line(index);
  }

  /** All lines, in the order of the report. */
  lines() {
    return this.ends.map((_, index) => this.line(index));
  }
}

const add = (a, b) => Number(a) + Number(b);
const quotient = (part, whole) => (isAbsent(part) || !(Number(whole) > 0) ? null : (Number(part) * 100) / Number(whole));

/** Loss in one direction, in percent of the packets that were sent in this direction; null if it is unknown. */
export function lossOf(found, way) {
  if (way === "there") return quotient(found.lost_there, found.counts.sent);
  if (isAbsent(found.lost_back)) return null;
  return quotient(found.lost_back, add(found.counts.answered, found.lost_back));
}

/** Probes that were lost or that a host refused, in percent of the sent probes. */
export const unansweredOf = (found) => quotient(add(found.counts.lost, found.counts.refused), found.counts.sent);

const END_WORDS = {
  stopped: "stopped before the end",
  lease_ended: "ended early because the node heard nothing from the controller and its lease expired",
  lossy: "ended early because more probes were lost than the limits of the target allow",
  prohibited: "ended early because a host on the path prohibits the probes",
};

/** Says how a line ended, or why its results are missing. */
export function outcomeOf(line, method) {
  const { found } = line;
  if (!found) return `missing: ${line.missing ?? "the report does not say why"}`;
  const { why, detail } = found.end;
  if (why !== "done") return END_WORDS[why] ?? (why === "limits" ? `ended early because of the limits of the target: ${detail}` : detail ?? why);
  if (found.capacity && !found.capacity.rate) return found.capacity.why_not ?? "no rate";
  const unsent = Number(found.counts.planned) - Number(found.counts.sent);
  if (unsent > 0 && !found.capacity) return `${count(unsent)} of ${count(found.counts.planned)} probes not sent`;
  return method !== "send" && Number(found.counts.answered) === 0 ? "no answer" : "complete";
}

/** A word in place of a value. Its sign is ✗ if no probe was answered although the other end worked, otherwise ?. */
function wordCell(line, method, word) {
  const { found } = line;
  const hasFarEnd = !line.to_node || !WITH_REFLECTORS.includes(method) || found?.far_end_reported;
  const isFailure = found && method !== "send" && Number(found.counts.sent) > 0 && Number(found.counts.answered) === 0 && hasFarEnd;
  return el("span", { class: `verdict verdict-${isFailure ? "fail" : "unknown"}` }, el("span", { "aria-hidden": "true" }, isFailure ? "✗" : "?"), ` ${word}`);
}

const median = (times) => (times ? nanoseconds(times.p50_ns) : null);
const bound = (times) => (times ? `± ${nanoseconds(times.bound_ns)}` : null);
/** The loss in words; null if nothing was lost. An unknown loss has words, too: no text would look like no loss. */
const lossWords = (loss) => (loss === null ? "loss unknown" : loss === 0 ? null : `${percent(loss)} lost`);
const bits = (value) => scaled(value, "bit/s");

/** An array: the value of a line (null if it has none), then short facts that are shown beside it. */
function valueOf(found, method, shown) {
  const rate = found.capacity?.rate;
  if (method === "send") return [`${count(found.counts.sent)} sent`, Number(found.counts.sent) < Number(found.counts.planned) ? `of ${count(found.counts.planned)}` : null];
  if (method === "capacity") return rate ? [bits(rate.bits_per_s), `${bits(rate.low)} to ${bits(rate.high)}`] : [null];
  if (method === "ping") return [median(found.round_trip), lossWords(unansweredOf(found))];
  const there = lossOf(found, "there");
  const back = lossOf(found, "back");
  switch (shown) {
    case "back": return [median(found.delay_back), bound(found.delay_back), lossWords(back)];
    case "lost_there": return [there === null ? null : percent(there), `${count(found.lost_there)} of ${count(found.counts.sent)}`];
    case "lost_back": return [back === null ? null : percent(back), `${count(found.lost_back)} of ${count(add(found.counts.answered, found.lost_back ?? 0))}`];
    case "round": return [median(found.round_trip), lossWords(unansweredOf(found))];
    default: return [median(found.delay_there), bound(found.delay_there), lossWords(there)];
  }
}

/** The content of a cell for a line. It is never empty: that would look like a pair that is not in the plan. */
export function cellOf(line, method, shown) {
  const { found } = line;
  if (!found) return [wordCell(line, method, "missing")];
  if (Number(found.counts.sent) === 0) return [wordCell(line, method, "not sent")];
  const [value, ...beside] = valueOf(found, method, shown);
  const isShare = hasDirections(method) && shown.startsWith("lost_");
  const isAnswered = Number(found.counts.answered) > 0;
  const word = isAnswered || isShare ? (method === "capacity" ? "no rate" : "unknown") : "no answer";
  const facts = isShare && value === null ? [] : beside.filter(Boolean);
  if (found.end.why !== "done") facts.push("ended early");
  return [value ?? wordCell(line, method, word), ...facts.flatMap((fact) => [" ", el("small", {}, fact)])];
}

const MEANINGS = {
  send: "From row to column: probes that were sent. No host answers them.",
  capacity: "From row to column: the rate of the narrowest link, in bits of frames, and its range.",
  ping: "From row to column and back: median round trip, and the share of probes that were lost.",
  there: "From row to column: median one-way delay with its bound, and the share of probes lost in this direction.",
  back: "From column back to row: median one-way delay of the answers with its bound, and the share lost in this direction.",
  lost_there: "From row to column: the share of the sent probes that were lost in this direction.",
  lost_back: "From column back to row: the share of the answers that were lost in this direction.",
  round: "From row to column and back: median round trip, and the share of probes without an answer.",
};

/** What the cells show, as a sentence. */
export const meaningOf = (method, shown) => MEANINGS[hasDirections(method) ? shown : method] ?? MEANINGS.there;
