// The view of taps. It shows the taps of the user that the server runs as, and where frames and their copies went, from
// the counts that each tap's process last wrote.

import { card, el, figures } from "./dom.js";
import { count, isAbsent, moment, scaled } from "./format.js";
import { LedgerDrawing, exit, station } from "./ledger.js";
import { showPolled } from "./poll.js";

/** Age from which the counts of a tap are called old. Its process writes them about once a second. */
const OLD_MS = 10000;
/** Why frames were not forwarded or copied, short enough for the drawing. */
const CAUSES = {
  ring: "our receive ring was full",
  gone: "the interface is gone",
  down: "the interface was down",
  "too-long": "longer than the interface can send",
  memory: "the kernel had no free memory",
  driver: "driver refused: slow receiver on link",
  full: "the transmit ring was full",
  "no-room": "no room for the trailer",
  skipped: "down, gone or unable to take the frame",
  "no-redirect": "interface accepts no redirected frames",
  impaired: "dropped on purpose (impairment)",
  other: "another reason",
};
const REASONS = {
  filter: "does not match the filter",
  own: "sent to a station that gets copies",
  "too-long": "too long for this method to copy",
  unseen: "lost before the tap received it",
};

/** The steps of a frame in one direction of a tap, and the number of frames in each step, by account. */
class DirectionAccounts {
  constructor(direction) {
    this.steps = [{ box: `${direction.from} → ${direction.to}` }];
    this.counts = {};
    this.add({ ...station("received", "received"), isSaid: true }, direction.received);
    if (direction.made) this.add({ ...exit("made", "made on purpose"), isEntry: true }, direction.made);
    this.addExits("dropped", "dropped", direction.dropped, CAUSES);
    this.add({ ...station("forwarded", `forwarded to ${direction.to}`), isSaid: true }, direction.forwarded);
    if (!direction.mirrors.length) return;
    this.steps.push({ box: "Copies for mirrors", isCopy: true });
    this.addExits("uncopied", "not to be copied", direction.uncopied, REASONS, true);
    this.add(station("wanted", "to be copied"), direction.wanted);
    direction.mirrors.forEach((mirror, index) => {
      this.steps.push({ box: `Mirror ${mirror.to}`, isCopy: true });
      this.addExits(`mirror ${index}`, "not copied", mirror.dropped, CAUSES);
      this.add({ ...station(`mirrored ${index}`, `copied to ${mirror.to}`), isSaid: true }, mirror.mirrored);
    });
  }

  add(step, frames) {
    this.steps.push(step);
    this.counts[step.station ?? step.exit] = frames;
  }

  /** Adds an exit for each cause; a single exit with 0 if there are no causes. */
  addExits(account, what, frames, words, isOther = false) {
    const causes = Object.entries(frames);
    if (!causes.length) this.add({ ...exit(account, what), isOther }, 0);
    for (const [cause, number] of causes) {
      this.add({ ...exit(`${account} ${cause}`, words[cause] ?? `${what}: ${cause}`), isOther, isSaid: !isOther }, number);
    }
  }
}

/**
 * Computes rates from two answers of the server, with the time at which the tap's process
 * read its counters (`elapsed`).
 */
class TapRates {
  constructor() {
    this.last = null;
  }

  /** Frames per second of each account, in one object for each direction; an account without a rate is absent. */
  update(accounts, directions) {
    const now = { elapsed: Number(accounts.elapsed), counts: directions.map((direction) => direction.counts) };
    const seconds = this.last ? (now.elapsed - this.last.elapsed) / 1e9 : 0;
    // There is no rate if nothing new was written since the last poll, or if the counters began anew.
    const rates = seconds > 0 ? now.counts.map((counts, index) => frameRates(counts, this.last.counts[index] ?? {}, seconds)) : [];
    this.last = now;
    return rates;
  }
}

function frameRates(now, before, seconds) {
  const rates = {};
  for (const [account, frames] of Object.entries(now)) {
    if (isAbsent(frames)) continue;
    // A cause without frames is absent. The API sends counts above 2^53 as text.
    const difference = Number(BigInt(frames) - BigInt(before[account] ?? 0));
    if (difference >= 0) rates[account] = scaled(difference / seconds, "fps");
  }
  return rates;
}

function drawing(tap, accounts, rates, index) {
  const ledger = new LedgerDrawing(accounts.steps, `${tap.name}, ${accounts.steps[0].box}`, `ledger-${tap.name.replace(/\s/g, "-")}-${index}`);
  ledger.update(accounts.counts, {}, rates);
  return ledger.figure;
}

function factsOf(tap) {
  return figures([
    ["Sides", tap.sides.join(", ")],
    ["Mirrors", tap.mirrors.join(", ") || "none"],
    ["Filter of copies", tap.filter ? el("code", {}, tap.filter) : "none"],
    ["Since", moment(tap.since_ms)],
    ["Process", tap.process_runs ? `▶ ${tap.process} is running` : `✗ ${tap.process} is not running`],
    ["Counts written", moment(tap.counted_ms)],
  ]);
}

function recordingOf(recording) {
  if (!recording) return "";
  return el("div", { class: "apart" }, el("h3", {}, "Recording to a file"), figures([
    ["Read from the rings, frames", count(recording.frames)],
    ["Dropped: ring full", count(recording.ring_dropped)],
    ["Dropped: queue full", count(recording.queue_dropped)],
    ["Lost at the disk", count(recording.disk_lost)],
  ]));
}

/** Says why the counts of a tap are old; an empty text if they are current. */
function ageOf(tap, nowMs) {
  if (!tap.process_runs && !tap.accounts) return "The tap's process was detached or has died before it wrote any counts.";
  if (!tap.process_runs) return "The tap's process was detached or has died, so these counts are old.";
  if (tap.accounts?.is_final || tap.counted_ms === null || nowMs - tap.counted_ms <= OLD_MS) return "";
  return `The tap's process runs but has not written its counts for ${Math.floor((nowMs - tap.counted_ms) / 1000)} s, so they are old.`;
}

function tapCard(tap, nowMs, remembered) {
  const age = ageOf(tap, nowMs);
  const old = el("p", { class: "apart" }, `? ${age} `, el("code", {}, `packetrig tap status ${tap.name}`), " reads the kernel's counters.");
  const parts = [el("p", { class: "muted" }, `Method ${tap.method}: ${tap.why}`), factsOf(tap),
    tap.caveats.length ? el("ul", { class: "apart", "aria-label": "Doubts" }, tap.caveats.map((text) => el("li", {}, text))) : "", age ? old : ""];
  if (!tap.accounts) return card(`Tap ${tap.name}`, ...parts, tap.process_runs ? el("p", {}, "Its process has not written any counts yet.") : "");
  const directions = tap.accounts.directions.map((direction) => new DirectionAccounts(direction));
  const key = JSON.stringify([tap.name, tap.since_ms, tap.process]);
  if (!remembered.has(key)) remembered.set(key, new TapRates());
  const rates = remembered.get(key).update(tap.accounts, directions);
  const drawings = directions.map((accounts, index) => drawing(tap, accounts, age ? {} : rates[index], index));
  return card(`Tap ${tap.name}`, ...parts, tap.accounts.is_final ? el("p", {}, "■ The tap has ended; these are its final counts.") : "",
    el("div", { class: "tap-directions" }, drawings), recordingOf(tap.accounts.recording));
}

function emptyCard(user) {
  return card("No tap", el("p", {}, `No tap of ${user === 0 ? "root" : `user ${user}`} is running; taps of other users are not visible here. `,
    el("code", {}, "packetrig tap eth1 eth2 --mirror eth3"), " starts one."));
}

/** Shows the taps. Returns a function that stops the updates. */
export function showTaps(context) {
  const remembered = new Map();
  return showPolled(context, "Taps", "taps", ({ user, now_ms: nowMs, taps }) => (taps.length ? taps.map((tap) => tapCard(tap, nowMs, remembered)) : [emptyCard(user)]));
}
