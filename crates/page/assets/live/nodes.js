// The nodes of a fleet, as `fleet up` last heard them. Nothing is sent to a node.

import { card, el, table } from "./dom.js";
import { ABSENT, DASH, count, moment, nanoseconds, scaled } from "./format.js";
import { showPolled } from "./poll.js";

/** Older than this, the file of `fleet up` is no news. */
const STALE_MS = 30000;

const PRESENCE = { fresh: "✓ heard", suspect: "? late", lost: "✗ lost" };

function clockOf(clock) {
  if (!clock?.synchronised || clock.max_error === null) return "✗ not synchronised";
  return `✓ ${clock.source}, ±${nanoseconds(clock.max_error)}`;
}

function workOf(node) {
  const { lead, hello } = node;
  if (lead && !lead.is_free) return el("span", {}, `▶ run ${lead.run} of ${lead.user}@${lead.host}, since `, moment(Math.floor(lead.since_wall_ns / 1e6)));
  return hello.busy ? `▶ run ${hello.busy.run}` : "idle";
}

function portOf(port) {
  const speed = port.speed ? ` ${scaled(port.speed, "bit/s")}` : "";
  return el("li", {}, `${port.up ? "✓" : "✗ down:"} ${port.interface}${speed} (${port.driver}; ${port.back_ends.join(", ")})`);
}

function doubtsOf(node) {
  const texts = [...node.hello.troubles];
  if (node.skew) texts.push(`its protocol ${node.skew.node.major}.${node.skew.node.minor} does not fit ours`);
  if (node.restarts) texts.push(`${node.restarts} restarts`);
  return texts.length ? el("ul", {}, texts.map((text) => el("li", {}, text))) : "none";
}

function nodeRow(node) {
  const waiting = node.hello.spooled.reduce((sum, one) => sum + one[2], 0);
  const labels = [...node.hello.labels, ...node.operator_labels];
  return [node.node, `${PRESENCE[String(node.presence).toLowerCase()] ?? node.presence}, ${nanoseconds(node.silent)} ago`, workOf(node), clockOf(node.hello.clock),
    node.hello.version, el("ul", { class: "plain" }, node.hello.ports.map(portOf)), doubtsOf(node), scaled(node.hello.disk_free, "B"),
    waiting ? `${count(waiting)} segments wait` : DASH, labels.join(", ") || DASH];
}

function content(data) {
  const header = ["Node", "Presence", "Work and lease", "Clock", "Version", "Ports", "Doubt", "Free disk", "Results", "Labels"];
  const rows = data.nodes.map(nodeRow);
  for (const node of data.never_heard) rows.push([node, "✗ never heard", ...Array(header.length - 2).fill(DASH)]);
  const age = data.heard_ms_ago;
  const note = age === null ? [el("code", {}, "packetrig fleet up"), " has not written what it heard: it does not run, or has just begun."]
    : age > STALE_MS ? `✗ fleet up has not listened for ${nanoseconds(age * 1e6)}, so this is old.` : `✓ heard ${nanoseconds(age * 1e6)} ago`;
  const server = data.server === null ? ABSENT : data.server.failure ? `✗ ${data.server.failure}` : `✓ works, ${scaled(data.server.disk_free_bytes, "B")} free`;
  return [card("Fleet", el("p", { role: "status" }, note), el("p", {}, `Message server: ${server}`),
    rows.length ? table("Nodes of the fleet", header, rows, [7]) : el("p", {}, "No node has joined yet. ", el("code", {}, "packetrig fleet invite"), " prints a line with which one joins."))];
}

/** Shows the nodes; returns what ends that. */
export const showNodes = (context) => showPolled(context, "Nodes", "nodes", content);
