// The ledger as a drawing: a trunk of fixed width through our sender, the device and our receiver. What is lost leaves at its place;
// what does not belong to the streams joins. Not to scale: 3 of 10^9 frames would not be seen, so widths follow the logarithm.

import { el, setAttribute, setText, svg } from "./dom.js";
import { ABSENT, count, share } from "./format.js";

const WIDTH = 380;
const ROW = 31;
/** Between two boxes, with the lower edge of the first. */
const GAP = 18;
const TRUNK_X = 34;
const TRUNK_WIDTH = 26;
const LABEL_X = 112;

/** The steps of a frame. `station`: an account on the way. `exit`: frames leave. `entry`: frames of others join. */
const STEPS = [
  { box: "Our sender" },
  { station: "planned", name: "planned", isOptional: true },
  { exit: "unsent", name: "not built before the end", isOptional: true },
  { station: "built", name: "built" },
  { exit: "refused", name: "refused by the kernel" },
  { station: "handed_over", name: "handed over to the kernel" },
  { exit: "tx_dropped", name: "dropped by the sending interface" },
  { station: "on_wire", name: "on the wire" },
  { box: "Device under test and path" },
  { exit: "path", name: "lost on the path", isLoss: true },
  { box: "Our receiver" },
  { station: "arrived", name: "arrived" },
  { exit: "ring_dropped", name: "dropped by our full ring" },
  { station: "seen", name: "seen by the receiver" },
  { entry: "foreign", name: "of others" },
  { entry: "protocol", name: "ARP and other protocols" },
  { entry: "other_runs", name: "of other runs" },
  { entry: "misdelivered", name: "of this run, at a wrong port" },
  { station: "recognised", name: "recognised" },
  { entry: "duplicate", name: "copies" },
  { exit: "stale", name: "too late to tell" },
  { exit: "unnumbered", name: "with a damaged tag" },
  { station: "counted", name: "counted" },
];

/** Width of an exit in pixels: none for 0, else 3 to 24 by the logarithm. */
export function exitWidth(frames) {
  const number = Number(frames);
  return number > 0 ? Math.min(24, 3 + 2.1 * Math.log10(number)) : 0;
}

export class LedgerDrawing {
  constructor() {
    this.parts = [];
    this.list = el("ol", { class: "ledger-list" });
    this.shape = svg("g");
    this.node = svg("svg", { class: "ledger", role: "img", "aria-details": "ledger-list" }, hatching(), this.shape);
    const details = el("details", {}, el("summary", {}, "The same as a list"), this.list);
    this.list.id = "ledger-list";
    this.figure = el("figure", {}, this.node,
      el("figcaption", {}, "Where frames went. Widths are not to scale; numbers are exact."), details);
    this.shown = "";
  }

  /** `accounts` by name; `path`: frames lost on the path, null if that is not known; `isPreliminary`: some are still on the way. */
  update(accounts, path, isPreliminary) {
    const steps = STEPS.filter((step) => !step.isOptional || accounts[step.station ?? step.exit] !== undefined);
    const key = steps.length;
    if (this.shown !== key) {
      this.shown = key;
      this.build(steps);
    }
    const whole = accounts.planned ?? accounts.built ?? 0;
    const says = [];
    for (const part of this.parts) {
      const { step } = part;
      const value = step.exit === "path" ? path : accounts[step.station ?? step.exit ?? step.entry];
      const name = step.isLoss && isPreliminary ? "lost, or still on the way" : step.name;
      const text = value === null || value === undefined ? ABSENT : count(value);
      const part_share = step.station || !Number(value) ? "" : ` (${share(value, whole)})`;
      setText(part.value, text);
      setText(part.name, `${name}${part_share}`);
      setText(part.item, `${kindWord(step)}${name}: ${text}${part_share}`);
      if (part.flow) drawFlow(part, value);
      if (step.isLoss || step.station === "built" || step.station === "counted") says.push(`${name} ${text}`);
    }
    setAttribute(this.node, "aria-label", `Ledger of frames: ${says.join(", ")}`);
  }

  build(steps) {
    const shapes = [];
    const items = [];
    this.parts = [];
    let y = 6;
    const boxes = steps.map((step, index) => ({ ...step, index })).filter((step) => step.box);
    for (const box of boxes) {
      const next = boxes.find((other) => other.index > box.index)?.index ?? steps.length;
      const height = (next - box.index) * ROW + GAP;
      shapes.push(svg("rect", { class: "ledger-box", x: 4, y, width: WIDTH - 8, height: height - 8, rx: 8 }));
      y += height;
    }
    shapes.push(svg("rect", { class: "ledger-trunk", x: TRUNK_X, y: 6 + ROW, width: TRUNK_WIDTH, height: y - ROW - GAP - 6 }));
    y = 6;
    for (const step of steps) {
      const middle = y + ROW / 2;
      if (step.box) {
        shapes.push(svg("text", { class: "ledger-title", x: LABEL_X - 36, y: middle + 5 }, step.box));
        items.push(el("li", { class: "ledger-place" }, step.box));
        y += ROW;
        continue;
      }
      const part = this.part(step, middle);
      shapes.push(...part.shapes);
      items.push(part.item);
      this.parts.push(part);
      y += ROW + (steps[steps.indexOf(step) + 1]?.box ? GAP : 0);
    }
    setAttribute(this.node, "viewBox", `0 0 ${WIDTH} ${y + GAP}`);
    this.shape.replaceChildren(...shapes);
    this.list.replaceChildren(...items);
  }

  part(step, y) {
    const value = svg("text", { class: step.station ? "ledger-count" : "ledger-side-count", x: LABEL_X, y: y - 1 });
    const name = svg("text", { class: "muted-text ledger-name", x: LABEL_X, y: y + 12 });
    const shapes = [value, name];
    let flow = null;
    if (step.station) {
      shapes.unshift(svg("line", { class: "ledger-station", x1: TRUNK_X - 6, x2: TRUNK_X + TRUNK_WIDTH + 6, y1: y, y2: y }));
    } else {
      const [from, to] = [TRUNK_X + TRUNK_WIDTH, LABEL_X - 12];
      flow = { line: svg("path", { d: `M${from} ${y}L${to - 4} ${y}`, fill: "none" }), head: svg("path", { d: headPath(step.exit ? to : from, y, step.exit ? 6 : -6), fill: "none", "stroke-width": 2 }) };
      shapes.unshift(flow.line, flow.head);
    }
    return { step, y, value, name, flow, shapes, item: el("li") };
  }
}

function kindWord(step) {
  if (step.exit) return "leaves: ";
  return step.entry ? "joins: " : "";
}

/** The head of an arrow that points where the frames go. */
function headPath(x, y, size) {
  return `M${x - size} ${y - 6}L${x} ${y}L${x - size} ${y + 6}`;
}

function drawFlow(part, value) {
  const isAbsent = value === null || value === undefined;
  setAttribute(part.flow.line, "stroke-width", isAbsent ? 6 : Math.max(1, exitWidth(value) / 2));
  const kind = part.step.exit ? "ledger-exit" : "ledger-entry";
  for (const shape of [part.flow.line, part.flow.head]) setAttribute(shape, "class", `${kind}${isAbsent ? " is-absent" : ""}${!isAbsent && Number(value) === 0 ? " is-none" : ""}`);
}

/** Hatching for what was not measured: absent is not 0. */
function hatching() {
  return svg("defs", {}, svg("pattern", { id: "hatching", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("line", { class: "hatching", x1: 0, x2: 0, y1: 0, y2: 6 })));
}
