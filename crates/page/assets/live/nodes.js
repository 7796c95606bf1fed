// The view of a fleet's nodes. It shows what the nodes last told `packetrig fleet up`, which writes this to a file. The
// server sends nothing to a node for this view.

import { card, el, table } from "./dom.js";
import { ABSENT, DASH, count, moment, nanoseconds, scaled } from "./format.js";
import { showPolled } from "./poll.js";

/** Age from which the file of `fleet up` counts as old. */
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
  if (node.skew) texts.push(`its protocol version ${node.skew.node.major}.${node.skew.node.minor} is not compatible with ours`);
  if (node.restarts) texts.push(`restarts: ${node.restarts}`);
  return texts.length ? el("ul", {}, texts.map((text) => el("li", {}, text))) : "none";
}

function nodeRow(node) {
  const waiting = node.hello.spooled.reduce((sum, one) => sum + one[2], 0);
  const labels = [...node.hello.labels, ...node.operator_labels];
  return [node.node, `${PRESENCE[String(node.presence).toLowerCase()] ?? node.presence}, ${nanoseconds(node.silent)} ago`, workOf(node), clockOf(node.hello.clock),
    node.hello.version, el("ul", { class: "plain" }, node.hello.ports.map(portOf)), doubtsOf(node), scaled(node.hello.disk_free, "B"),
    waiting ? `waiting segments: ${count(waiting)}` : DASH, labels.join(", ") || DASH];
}

function content(data) {
  const header = ["Node", "Presence", "Work and lease", "Clock", "Version", "Ports", "Doubts", "Free disk", "Results", "Labels"];
  const rows = data.nodes.map(nodeRow);
  for (const node of data.never_heard) rows.push([node, "✗ never heard", ...Array(header.length - 2).fill(DASH)]);
  const age = data.heard_ms_ago;
  const note = age === null ? [el("code", {}, "packetrig fleet up"), " has not written its list of nodes: it is not running, or has just started."]
    : age > STALE_MS ? `✗ fleet up has not updated this list for ${nanoseconds(age * 1e6)}, so it is old.` : `✓ updated ${nanoseconds(age * 1e6)} ago`;
  const server = data.server === null ? ABSENT : data.server.failure ? `✗ ${data.server.failure}` : `✓ works, ${scaled(data.server.disk_free_bytes, "B")} free`;
  return [card("Fleet", el("p", { role: "status" }, note), el("p", {}, `Message server: ${server}`),
    rows.length ? table("Nodes of the fleet", header, rows, [7]) : el("p", {}, "No node has joined yet. ", el("code", {}, "packetrig fleet invite"), " prints a line with which a node can join."))];
}

/** Shows the nodes. Returns a function that stops the updates. */
export const showNodes = (context) => showPolled(context, "Nodes", "nodes", content);
