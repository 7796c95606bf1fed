// What meters know of their own losses: their ledgers, in the order in which packets pass.

import { card, el, table } from "./dom.js";
import { count, isAbsent, moment } from "./format.js";

const ROWS = [
  ["arrived at the interface", (ledger) => ledger.capture.arrived],
  ["sent by the meter's machine", (ledger) => ledger.capture.sent ?? 0],
  ["dropped by the driver", (ledger) => ledger.capture.driver_dropped],
  ["dropped: ring full", (ledger) => ledger.capture.ring_dropped],
  ["seen by the parser", (ledger) => ledger.packets.seen],
  ["metered", (ledger) => ledger.packets.metered],
  ["not tracked: flow table full", (ledger) => ledger.packets.untracked],
  ["in flows that have not ended", (ledger) => ledger.packets.live],
  ["in records", (ledger) => ledger.packets.recorded],
  ["dropped: export queue full", (ledger) => ledger.export.queue_dropped.packets],
  ["refused by the transport", (ledger) => ledger.export.refused.packets],
  ["left to the active meter of the group", (ledger) => ledger.export.left_to_others.packets],
  ["waiting to be sent", (ledger) => ledger.export.waiting.packets],
  ["sent", (ledger) => ledger.export.sent.packets],
];
/** Ignored packets come after those that the parser saw. */
const SEEN = 4;

function ledgerTable(meter) {
  const rows = ROWS.map(([name, of]) => [name, count(of(meter.ledger))]);
  const ignored = Object.entries(meter.ledger.packets.ignored).filter(([, packets]) => Number(packets) > 0);
  rows.splice(SEEN + 1, 0, ...ignored.map(([cause, packets]) => [`ignored: ${cause.replaceAll("_", " ")}`, count(packets)]));
  return table(`Packets of ${meter.exporter}`, ["Account", "Packets"], rows, [1]);
}

/** Packets that are in no record although the meter was there, as far as that is known. Counts above 2^53 are text. */
function lossesOf({ capture, packets, export: sent }) {
  return [capture.driver_dropped ?? 0, capture.ring_dropped, packets.untracked, sent.queue_dropped.packets, sent.refused.packets].reduce((sum, one) => sum + BigInt(one), 0n);
}

function lossText(ledger) {
  const lost = lossesOf(ledger);
  const isKnown = !isAbsent(ledger.capture.driver_dropped);
  if (lost > 0n) return isKnown ? `✗ ${count(lost)} packets were lost in this meter.` : `✗ At least ${count(lost)} packets were lost in this meter; drops of the driver were not measured.`;
  return isKnown ? "✓ No packet was lost in this meter." : "? No known loss; drops of the driver were not measured.";
}

function meterPart(meter) {
  return el("div", { class: "apart" }, el("h3", {}, meter.exporter), el("p", {}, lossText(meter.ledger), " Ledger of ", moment(meter.at_ms)),
    meter.imbalances.length ? el("ul", { class: "problem", "aria-label": "What does not add up" }, meter.imbalances.map((text) => el("li", {}, `✗ ${text}`))) : "",
    el("details", {}, el("summary", {}, "Ledger: where its packets went"), ledgerTable(meter)));
}

/** What is known of losses; nothing if there are neither records nor meters. */
export function meterCards(totals) {
  if (Number(totals.records) === 0 && !totals.meters.length) return [];
  const doubt = Number(totals.records_with_loss) > 0 ? `✗ ${count(totals.records_with_loss)} of ${count(totals.records)} records are of flows during which packets were lost before the meter.`
    : "✓ No record is of a flow during which packets were lost before the meter.";
  const merged = Number(totals.records_with_merges) > 0 ? el("p", {}, `✗ ${count(totals.records_with_merges)} of ${count(totals.records)} records have packets that were merged before the meter and count as one.`) : "";
  const sampled = Number(totals.sampled_records) > 0 ? el("p", {}, `? ${count(totals.sampled_records)} of ${count(totals.records)} records are of sampled packets: sums count the metered packets, and are not multiplied by the sampling interval.`) : "";
  return [card("Losses", el("p", {}, doubt), merged, sampled, totals.meters.length ? totals.meters.map(meterPart) : el("p", {}, "No meter has written its ledger here."))];
}
