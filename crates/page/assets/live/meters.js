// Losses of flow records: packets that were lost before the meters, and the ledger of each meter with its accounts in
// the order in which packets pass them.

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
/** Index of the row "seen by the parser"; the rows of ignored packets follow it. */
const SEEN = 4;

function ledgerTable(meter) {
  const rows = ROWS.map(([name, of]) => [name, count(of(meter.ledger))]);
  const ignored = Object.entries(meter.ledger.packets.ignored).filter(([, packets]) => Number(packets) > 0);
  rows.splice(SEEN + 1, 0, ...ignored.map(([cause, packets]) => [`ignored: ${cause.replaceAll("_", " ")}`, count(packets)]));
  return table(`Packets of ${meter.exporter}`, ["Account", "Packets"], rows, [1]);
}

/**
 * Packets that are in no record because the meter lost them, as far as this is known. The API sends counts
 * above 2^53 as text.
 */
function lossesOf({ capture, packets, export: sent }) {
  return [capture.driver_dropped ?? 0, capture.ring_dropped, packets.untracked, sent.queue_dropped.packets, sent.refused.packets].reduce((sum, one) => sum + BigInt(one), 0n);
}

function lossText(ledger) {
  const lost = lossesOf(ledger);
  const isKnown = !isAbsent(ledger.capture.driver_dropped);
  if (lost > 0n) return isKnown ? `✗ Packets lost in this meter: ${count(lost)}.` : `✗ Packets lost in this meter: at least ${count(lost)}; drops of the driver were not measured.`;
  return isKnown ? "✓ No packet was lost in this meter." : "? No known loss; drops of the driver were not measured.";
}

function meterPart(meter) {
  return el("div", { class: "apart" }, el("h3", {}, meter.exporter), el("p", {}, lossText(meter.ledger), " Ledger written at ", moment(meter.at_ms)),
    meter.imbalances.length ? el("ul", { class: "problem", "aria-label": "What does not add up" }, meter.imbalances.map((text) => el("li", {}, `✗ ${text}`))) : "",
    el("details", {}, el("summary", {}, "Ledger: where its packets went"), ledgerTable(meter)));
}

/** The card about losses; no card if there are neither records nor meters. */
export function meterCards(totals) {
  if (Number(totals.records) === 0 && !totals.meters.length) return [];
  const doubt = Number(totals.records_with_loss) > 0 ? `✗ Records of flows during which packets were lost before they reached the meter: ${count(totals.records_with_loss)} of ${count(totals.records)}.`
    : "✓ During none of these flows were packets lost before they reached the meter.";
  const merged = Number(totals.records_with_merges) > 0 ? el("p", {}, `✗ Records with packets that were merged before they reached the meter: ${count(totals.records_with_merges)} of ${count(totals.records)}. Merged packets count as one, so the counts of these records are too low.`) : "";
  const sampled = Number(totals.sampled_records) > 0 ? el("p", {}, `? Records of sampled packets: ${count(totals.sampled_records)} of ${count(totals.records)}. Sums count only the metered packets; they are not multiplied by the sampling interval.`) : "";
  return [card("Losses", el("p", {}, doubt), merged, sampled, totals.meters.length ? totals.meters.map(meterPart) : el("p", {}, "No meter has written a ledger into these directories."))];
}
