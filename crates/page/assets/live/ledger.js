// Draws a ledger (counts of all frames of a run or tap) as a trunk of fixed width through our sender, the device and
// our receiver. Lost frames leave the trunk as an arrow at the place of the loss, and so do frames that the receiver
// sets aside. The width of an arrow follows the logarithm of its frames: 3 of 10^9 frames would be invisible to scale.

import { el, setAttribute, setText, svg } from "./dom.js";
import { count, isAbsent, share } from "./format.js";

const WIDTH = 380;
const ROW = 31;
/** Height between the last row of a box and the next box, including the lower margin of the first box. */
const GAP = 18;
const TRUNK_X = 34;
const TRUNK_WIDTH = 26;
const LABEL_X = 112;

export const station = (account, name) => ({ station: account, name });
export const exit = (account, name) => ({ exit: account, name });
/** An exit of frames that were not lost and are not counted: frames of other senders, protocols or runs, and copies. */
const other = (account, name) => ({ exit: account, name, isOther: true });

/**
 * The steps of a frame of a run. `box`: a heading; with `isCopy` its frames are copies, so a new trunk begins there.
 * `station`: an account on the way. `exit`: frames leave the trunk; with `isEntry` they join it. `isPlace`: the number
 * is in `places`, not in `accounts`. `isOptional`: not drawn if the number is undefined. `isLoss`, `isSaid`: part of the
 * summary for screen readers.
 */
const STEPS = [
  { box: "Our sender" },
  { ...station("planned", "planned"), isOptional: true },
  { ...exit("unsent", "not built before the run ended"), isOptional: true },
  station("built", "built"),
  exit("refused", "refused by the kernel"),
  station("handed_over", "handed over to the kernel"),
  exit("tx_dropped", "dropped by the sending interface"),
  station("on_wire", "on the wire"),
  { box: "Device under test and path" },
  { ...exit("in_flight_or_lost", "in flight or lost"), isPlace: true, isLoss: true, isOptional: true },
  { ...exit("path_or_in_doubt", "lost on the path or in doubt"), isPlace: true, isLoss: true, isOptional: true },
  { ...exit("path", "lost on the path"), isPlace: true, isLoss: true, isOptional: true },
  { ...exit("in_doubt", "lost in doubt"), isPlace: true, isOptional: true },
  { box: "Our receiver" },
  station("arrived", "arrived"),
  exit("ring_dropped", "dropped by our full ring"),
  station("seen", "seen by the receiver"),
  other("foreign", "not from packetrig"),
  other("protocol", "ARP and other protocols"),
  other("other_runs", "of other runs"),
  exit("misdelivered", "of this run, at a wrong port"),
  station("recognised", "recognised"),
  other("duplicate", "copies"),
  exit("stale", "too late to tell from copies"),
  exit("unnumbered", "with a damaged tag"),
  station("counted", "counted"),
];

/** Width of an exit, twice that of its line: 0 without frames, otherwise 3 to 24 by the logarithm of their number. */
function exitWidth(frames) {
  const number = Number(frames);
  return number > 0 ? Math.min(24, 3 + 2.1 * Math.log10(number)) : 0;
}

export class LedgerDrawing {
  /**
   * `about`: begins the summary for screen readers. `id`: that of the list; drawings on one page need different ids.
   */
  constructor(steps = STEPS, about = "Ledger of frames", id = "ledger-list") {
    this.steps = steps;
    this.about = about;
    this.parts = [];
    this.pieces = [];
    this.list = el("ol", { class: "ledger-list" });
    this.shape = svg("g");
    this.node = svg("svg", { class: "ledger", role: "img", "aria-details": id }, hatching(), this.shape);
    const details = el("details", {}, el("summary", {}, "The same as a list"), this.list);
    this.list.id = id;
    this.figure = el("figure", {}, this.node,
      el("figcaption", {}, "Where frames went. Widths are not to scale; numbers are exact."), details);
    this.shown = "";
  }

  /**
   * Shows new numbers. `accounts`: frames by account. `places`: lost frames, as `path` and `in_doubt`; for a run in
   * progress as `path_or_in_doubt` and `in_flight_or_lost`, where null is unknown. `rates`: texts by account.
   */
  update(accounts, places, rates = {}) {
    const valueOf = (step) => (step.isPlace ? places : accounts)[step.station ?? step.exit];
    const steps = this.steps.filter((step) => !step.isOptional || valueOf(step) !== undefined);
    const key = steps.map((step) => step.box ?? step.name).join();
    if (this.shown !== key) {
      this.shown = key;
      this.build(steps);
    }
    const whole = accounts.planned ?? accounts.built ?? accounts.received ?? 0;
    const says = [];
    for (const part of this.parts) {
      const { step } = part;
      const value = valueOf(step);
      const { name } = step;
      const text = count(value);
      const part_share = step.station || !Number(value) ? "" : ` (${share(value, whole)})`;
      const rate = Number(value) ? rates[step.station ?? step.exit] : null;
      setText(part.value, rate ? `${text}, ${rate}` : text);
      setText(part.name, `${name}${part_share}`);
      setText(part.item, `${kindWord(step)}${name}: ${text}${part_share}${rate ? `, ${rate}` : ""}`);
      if (part.flow) drawFlow(part, value);
      if (step.isLoss || step.isSaid || step.station === "built" || step.station === "counted") says.push(`${name} ${text}`);
    }
    for (const { shape, stations } of this.pieces) {
      const isUnknown = stations.some(({ step }) => isAbsent(valueOf(step)));
      setAttribute(shape, "class", isUnknown ? "ledger-trunk is-unknown" : "ledger-trunk");
    }
    setAttribute(this.node, "aria-label", `${this.about}: ${says.join(", ")}`);
  }

  build(steps) {
    const shapes = [];
    const items = [];
    this.parts = [];
    let y = 6;
    const boxes = steps.map((step, index) => ({ ...step, index })).filter((step) => step.box);
    let trunk = y;
    const trunks = [];
    const endTrunk = () => trunks.push([trunk + ROW, y - GAP]);
    for (const box of boxes) {
      if (box.isCopy) {
        endTrunk();
        trunk = y;
      }
      const next = boxes.find((other) => other.index > box.index)?.index ?? steps.length;
      const height = (next - box.index) * ROW + GAP;
      shapes.push(svg("rect", { class: "ledger-box", x: 4, y, width: WIDTH - 8, height: height - 8, rx: 8 }));
      y += height;
    }
    endTrunk();
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
    this.pieces = trunks.flatMap(([top, bottom]) => this.trunkPieces(top, bottom));
    this.shape.replaceChildren(...this.pieces.map((piece) => piece.shape), ...shapes);
    this.list.replaceChildren(...items);
  }

  /** The pieces of a trunk between its stations, each with the stations at its ends. */
  trunkPieces(top, bottom) {
    const stations = this.parts.filter(({ step, y }) => step.station && y > top && y < bottom);
    const cuts = [top, ...stations.map((part) => part.y), bottom];
    return cuts.slice(1).map((end, index) => ({
      shape: svg("rect", { x: TRUNK_X, y: cuts[index], width: TRUNK_WIDTH, height: end - cuts[index] }),
      stations: stations.slice(Math.max(0, index - 1), index + 1),
    }));
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
      flow = { line: svg("path", { d: `M${from} ${y}L${to - 4} ${y}`, fill: "none" }), head: svg("path", { d: step.isEntry ? entryPath(from + 2, y) : headPath(to, y), fill: "none", "stroke-width": 2 }) };
      shapes.unshift(flow.line, flow.head);
    }
    return { step, y, value, name, flow, shapes, item: el("li") };
  }
}

function kindWord(step) {
  if (step.station) return "";
  if (step.isEntry) return "joins: ";
  return step.isOther ? "set aside: " : "leaves: ";
}

/** The path of an arrow head that points out of the trunk. */
function headPath(x, y) {
  return `M${x - 6} ${y - 6}L${x} ${y}L${x - 6} ${y + 6}`;
}

/** The path of an arrow head that points into the trunk. */
function entryPath(x, y) {
  return `M${x + 6} ${y - 6}L${x} ${y}L${x + 6} ${y + 6}`;
}

function drawFlow(part, value) {
  const isUnknown = isAbsent(value);
  setAttribute(part.flow.line, "stroke-width", isUnknown ? 6 : Math.max(1, exitWidth(value) / 2));
  const kind = part.step.isOther || part.step.isEntry ? "ledger-exit is-other" : "ledger-exit";
  for (const shape of [part.flow.line, part.flow.head]) setAttribute(shape, "class", `${kind}${isUnknown ? " is-absent" : ""}${!isUnknown && Number(value) === 0 ? " is-none" : ""}`);
}

/** Hatching for numbers that were not measured, so that they do not look like 0. */
function hatching() {
  return svg("defs", {}, svg("pattern", { id: "hatching", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("line", { class: "hatching", x1: 0, x2: 0, y1: 0, y2: 6 })));
}
