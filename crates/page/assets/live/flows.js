// The view of flow records: the largest groups, sums over time, and the losses that the meters have counted.

import { Refusal, get } from "./api.js";
import { card, el, figures, morphChildren, svg, table } from "./dom.js";
import { FlowForm, ORDERS, readQuestion, recordParameters } from "./flowform.js";
import { DASH, count, isAbsent, moment, momentOrDash, nanoseconds, scaled, share } from "./format.js";
import { meterCards } from "./meters.js";
import { TimePlot } from "./plot.js";
import { poll } from "./poll.js";

const PERIOD_MS = 10000;
const MAX_GROUPS = 20;
/** Maximum number of steps of the drawing. */
const MAX_STEPS = 240;
/** Lengths of a step that the page requests, in milliseconds. */
const STEPS_MS = [100, 500, 1000, 5000, 10000, 30000, 60000, 300000, 600000, 1800000, 3600000, 10800000, 21600000, 43200000, 86400000];

/**
 * Quantities that the drawing can show: title, name of the line, value of a step, and format of a value. The sums of
 * a step are BigInts.
 */
const BITS = { title: "Bits per second", name: "bits", of: (step, seconds) => (Number(step.bytes) * 8) / seconds, text: (value) => scaled(value, "bit/s") };
const PACKETS = { title: "Packets per second", name: "packets", of: (step, seconds) => Number(step.packets) / seconds, text: (value) => scaled(value, "pps") };
const FLOWS = { title: "Flows per second", name: "flows", of: (step, seconds) => Number(step.flows) / seconds, text: (value) => scaled(value, "/s") };
const QUANTITIES = new Map([["packets", PACKETS], ["pps", PACKETS], ["flows", FLOWS]]);

/** The value by which groups are ordered: a number, a text if it is above 2^53, or null if a rate does not exist. */
const MEASURES = {
  bytes: (group) => group.bytes,
  packets: (group) => group.packets,
  flows: (group) => group.flows,
  bps: (group) => group.bits_per_second,
  pps: (group) => group.packets_per_second,
  bpp: (group) => group.bytes_per_packet,
  duration: (group) => group.duration_ns,
};
const SUMS = ["bytes", "packets", "flows"];

/** A bar and, as text, the share of `part` in `whole`; a dash if `part` is a rate that does not exist (null). */
function bar(part, whole) {
  if (part === null) return DASH;
  const width = Number(whole) > 0 ? Math.min(100, (Number(part) * 100) / Number(whole)) : 0;
  return el("span", { class: "bar-cell" }, svg("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "bar-rest", width: 100, height: 10 }), svg("rect", { class: "bar-part", width: width.toFixed(1), height: 10 })), el("span", {}, share(part, whole)));
}

/** The text of one key column of a group. A protocol number gets the protocol's name. */
function keyText(column, value, protocols) {
  if (isAbsent(value) || value === "") return DASH;
  const name = column === "protocol" && protocols.find((one) => one.protocol === value)?.name;
  return name ? `${name} (${value})` : String(value);
}

/** The text of a rate. Packets that all came at one time have no rate (null). */
const rate = (value, unit) => (value === null ? DASH : scaled(value, unit));

function groupRow(group, top, largest, protocols) {
  const drawn = bar(MEASURES[top.order](group), SUMS.includes(top.order) ? top.total[top.order] : largest);
  return [...top.by.map((column) => keyText(column, group[column], protocols)), drawn, scaled(group.bytes, "B"), count(group.packets), count(group.flows),
    rate(group.bits_per_second, "bit/s"), rate(group.packets_per_second, "pps"), scaled(group.bytes_per_packet, "B"),
    nanoseconds(Number(group.duration_ns)), moment(group.first_ms), moment(group.last_ms)];
}

function topCard(top, totals) {
  const largest = top.groups.reduce((most, group) => Math.max(most, Number(MEASURES[top.order](group))), 0);
  const what = ORDERS[top.order].toLowerCase();
  const header = [...top.by, SUMS.includes(top.order) ? `Share of ${what}` : `${ORDERS[top.order]}, share of the largest`, "Bytes of IP", "Packets", "Flows", "Bits/s", "Packets/s", "Bytes/packet", "Duration", "First", "Last"];
  const begin = top.by.length + 1;
  const changed = top.files_have_changed ? el("p", {}, "? Files were removed or replaced while they were read: the groups may lack flows of these files.") : "";
  return card("Largest groups", el("p", { role: "status", class: "muted" }, `${top.groups.length} of ${top.groups_are_estimated ? "about " : ""}${count(top.groups_seen)} groups, the largest by ${what} first`), changed,
    table("Groups of flows", header, top.groups.map((group) => groupRow(group, top, largest, totals.protocols)), Array.from({ length: 7 }, (_, index) => begin + index)));
}

function totalsCard(totals) {
  return card("Totals of all matching flows", figures([
    ["Flows", count(totals.flows)],
    ["Packets", count(totals.packets)],
    ["Bytes of IP", scaled(totals.bytes, "B")],
    ["Bytes of frames", scaled(totals.frame_bytes, "B")],
    ["First packet", momentOrDash(totals.first_ms)],
    ["Last packet", momentOrDash(totals.last_ms)],
    ["Records", count(totals.records)],
    ["Files read", count(totals.files)],
  ]), el("p", { class: "muted apart" }, `From ${totals.directories.join(", ")}`));
}

function protocolsCard(totals) {
  const rows = [...totals.protocols].sort((a, b) => Number(b.bytes) - Number(a.bytes)).map((one) => [one.name, bar(one.bytes, totals.bytes), scaled(one.bytes, "B"), count(one.packets), count(one.flows)]);
  return card("Protocols", table("The largest first", ["Protocol", "Share of bytes", "Bytes of IP", "Packets", "Flows"], rows, [2, 3, 4]));
}

/** Converts the timeline to at most `MAX_STEPS` steps of equal length. Steps without flows are added with sums of 0. */
function stepsOf(totals) {
  const { at_ms: starts, flows, packets, bytes } = totals.timeline;
  if (!starts.length) return { seconds: 1, steps: [] };
  const spanned = (starts[starts.length - 1] - starts[0]) / totals.bucket_ms + 1;
  const length = totals.bucket_ms * Math.ceil(spanned / MAX_STEPS);
  const most = Math.floor((starts[starts.length - 1] - starts[0]) / length) + 1;
  const steps = Array.from({ length: most }, (_, index) => ({ at: starts[0] + index * length, flows: 0n, packets: 0n, bytes: 0n }));
  starts.forEach((at, index) => {
    const step = steps[Math.floor((at - starts[0]) / length)];
    step.flows += BigInt(flows[index]);
    step.packets += BigInt(packets[index]);
    step.bytes += BigInt(bytes[index]);
  });
  return { seconds: length / 1000, steps };
}

/** The drawing over time, and a table with the same values. */
class FlowTimeline {
  constructor(order) {
    this.quantity = QUANTITIES.get(order) ?? BITS;
    this.plot = new TimePlot(this.quantity.title, [this.quantity.name], this.quantity.text, true);
    this.caption = el("figcaption");
    this.rows = el("div");
    this.node = card(`${this.quantity.title} over time`, el("figure", {}, this.plot.node, this.caption), el("details", {}, el("summary", {}, "The same as a table"), this.rows));
  }

  update(totals) {
    const { seconds, steps } = stepsOf(totals);
    const values = steps.map((step) => this.quantity.of(step, seconds));
    // Each value holds from the start of its step to its end.
    this.plot.update(steps.flatMap((step) => [step.at / 1000, step.at / 1000 + seconds]), [values.flatMap((value) => [value, value])]);
    const beside = totals.beside_timeline > 0 ? ` Records that are left out, because there would be too many steps: ${count(totals.beside_timeline)}.` : "";
    morphChildren(this.caption, [`Means over ${nanoseconds(seconds * 1e9)}; times in UTC. A whole flow counts in the step in which it began, so a long flow makes a peak there.${beside}`]);
    const rows = steps.map((step, index) => [step, values[index]]).filter(([step]) => step.flows || step.packets || step.bytes)
      .map(([step, value]) => [moment(step.at), this.quantity.text(value), count(step.flows), count(step.packets), scaled(step.bytes, "B")]);
    morphChildren(this.rows, [table("Steps with flows", ["Begins", this.quantity.title, "Flows", "Packets", "Bytes of IP"], rows, [1, 2, 3, 4])]);
  }
}

/** Time from the first to the last packet of the groups, in ms; null if there are no groups. */
function spanOf(groups) {
  if (!groups.length) return null;
  return groups.reduce((most, group) => Math.max(most, group.last_ms), 0) - groups.reduce((least, group) => Math.min(least, group.first_ms), Infinity);
}

/**
 * Gets the totals, with steps that suit a time `span` in ms. If `span` is null or too long, the
 * server chooses their length.
 */
async function askTotals(parameters, span, signal) {
  const wanted = new URLSearchParams(parameters);
  const bucket = span === null ? undefined : STEPS_MS.find((length) => span / length <= MAX_STEPS / 2);
  if (bucket) wanted.set("bucket_ms", bucket);
  return get(`flows/totals?${wanted}`, signal);
}

/**
 * Gets groups and totals, one call after the other, because each call reads the files. `last`: the
 * previous answers, or null.
 */
async function ask(question, last, signal) {
  const parameters = recordParameters(question);
  const wanted = new URLSearchParams({ by: question.by, order: question.order, most: MAX_GROUPS });
  const top = await get(`flows/top?${wanted}&${parameters}`, signal);
  const span = (totals) => (totals.first_ms === null ? null : totals.last_ms - totals.first_ms);
  let totals = await askTotals(parameters, last ? span(last.totals) : spanOf(top.groups), signal);
  // The shown groups can cover a much shorter time than all matching flows.
  if (totals.beside_timeline > 0) totals = await askTotals(parameters, span(totals), signal);
  return { top, totals };
}

function emptyCard(totals, parameters) {
  if (totals.files > 0 && String(parameters)) return card("No records match", el("p", {}, `None of the records in ${totals.directories.join(", ")} match this filter and period.`));
  const place = totals.directories[0] ?? "DIR";
  return card("No records yet", el("p", {}, `There are no flow records in ${totals.directories.join(", ") || "the directories of this page"}. `,
    el("code", {}, `packetrig meter eth1 --directory ${place}`), " writes some."));
}

class FlowView {
  constructor(question) {
    this.question = question;
    this.above = el("div");
    this.below = el("div");
    this.timeline = new FlowTimeline(question.order);
    this.node = el("div", {}, this.above, this.timeline.node, this.below);
  }

  update({ top, totals }) {
    const isEmpty = Number(totals.records) === 0;
    this.timeline.node.hidden = isEmpty;
    if (isEmpty) morphChildren(this.above, [emptyCard(totals, recordParameters(this.question))]);
    else morphChildren(this.above, [totalsCard(totals)]);
    if (!isEmpty) this.timeline.update(totals);
    const losses = meterCards(totals);
    morphChildren(this.below, isEmpty ? losses : [topCard(top, totals), el("div", { class: "live-grid" }, protocolsCard(totals), ...losses)]);
  }

  close() {
    this.timeline.plot.close();
  }
}

/** Shows the flows that the address asks for, and asks again every ten seconds. Returns a function that stops this. */
export async function showFlows(context, query) {
  const question = readQuestion(query);
  const form = new FlowForm(question);
  if (question.problems.length) {
    form.showProblems(question.problems);
    context.place(el("h1", {}, "Flows"), form.node);
    return () => {};
  }
  const view = new FlowView(question);
  context.signal.addEventListener("abort", () => view.close());
  const waits = el("p", { class: "muted", role: "status" }, "Reading records…");
  context.place(el("h1", {}, "Flows"), form.node, waits);
  let answers = null;
  const refresh = async () => {
    answers = await ask(question, answers, context.signal);
    if (context.isCurrent()) view.update(answers);
  };
  try {
    await refresh();
  } catch (error) {
    if (!(error instanceof Refusal && error.status === 400)) throw error;
    form.showProblems(error.errors);
    waits.remove();
    return () => {};
  }
  waits.replaceWith(view.node);
  return poll(context, refresh, PERIOD_MS);
}
