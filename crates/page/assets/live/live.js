// The view of the run in progress. It follows the server's events and draws at most once per screen refresh.

import { configure, follow, post } from "./api.js";
import { announce, card, el, setText, table } from "./dom.js";
import { ABSENT, FORMS, classOf, count, duration, moment, scaled, share } from "./format.js";
import { LedgerDrawing } from "./ledger.js";
import { TimePlot, ratesOf } from "./plot.js";
import { StreamTable } from "./streams.js";

/** Maximum number of points of a plot. When it is reached, every second point is dropped. */
const MAX_POINTS = 2000;
const SIGNS = { running: "▶", armed: "●", preparing: "…", draining: "…", collecting: "…" };

/** Formatters of port columns for which the formatter of their format is not enough. */
const PORT_WORDS = {
  location: (location, { node }) => (node && node !== "local" ? `${node}: ${location}` : location),
  link_up: (isUp) => (isUp === null ? ABSENT : isUp ? "✓ up" : "✗ down"),
};

/** The value of a column in a row. A dot in the name separates nested members, as in `tx.frames`. */
const member = (row, name) => name.split(".").reduce((part, key) => part?.[key], row);

/** Cumulative totals over time in bounded memory. */
class Totals {
  constructor() {
    this.names = ["elapsed_ms", "frames_tx", "frames_rx", "bytes_tx", "bytes_rx", "gaps"];
    this.clear();
  }

  clear() {
    this.columns = Object.fromEntries(this.names.map((name) => [name, []]));
    this.spanMs = 0;
  }

  load(columns) {
    this.columns = Object.fromEntries(this.names.map((name) => [name, columns[name].map(Number)]));
    const times = this.columns.elapsed_ms;
    this.spanMs = times.length > 2 ? times[1] - times[0] : 0;
  }

  add(run) {
    const times = this.columns.elapsed_ms;
    const last = times[times.length - 1] ?? -1;
    if (run.sampled_ms === null || run.elapsed_ms <= last || run.elapsed_ms - last < this.spanMs * 0.9) return;
    if (times.length >= MAX_POINTS) {
      for (const name of this.names) this.columns[name] = this.columns[name].filter((_, index) => index % 2 === 0);
      this.spanMs = Math.max(this.spanMs * 2, 200);
    }
    times.push(run.elapsed_ms);
    for (const name of this.names.slice(1)) this.columns[name].push(Number(run.totals[name]));
  }
}

class LiveView {
  constructor(context) {
    this.context = context;
    this.mayControl = context.server.may.control;
    this.totals = new Totals();
    this.configuration = null;
    this.plots = {
      rates: new TimePlot("Frames per second", ["sent", "received"], (value) => scaled(value, "fps")),
      gaps: new TimePlot("Gaps in sequence numbers per second", ["lost"], (value) => scaled(value, "fps")),
    };
    this.ledger = new LedgerDrawing();
    this.streams = new StreamTable(context.server.columns.streams, this.mayControl, () => this.changeWindow());
    this.streams.onSelect = () => this.nameSelection();
    this.build();
    this.follower = follow(this.path(true), {
      state: (state, error) => this.onLink(state, error),
      history: (data) => this.onHistory(data),
      live: (data) => this.onLive(data),
      heartbeat: () => {},
      stopping: () => this.context.setLink("lost", "✗ The server is stopping"),
    });
  }

  close() {
    this.isClosed = true;
    this.follower.close();
    this.streams.close();
    for (const plot of Object.values(this.plots)) plot.close();
  }

  path(withHistory) {
    const query = this.streams.query();
    if (!withHistory) query.set("history", "false");
    return `events?${query}`;
  }

  changeWindow() {
    this.isOtherWindow = true;
    this.follower.changePath(this.path(false));
    // A connection after a lost one needs the history again.
    this.follower.path = this.path(true);
  }

  build() {
    this.title = el("h1", {}, "No run yet");
    this.state = el("p", { class: "run-state", id: "run-state", role: "status" });
    this.figures = el("dl", { class: "figures", id: "figures" });
    this.figureCells = new Map();
    this.sampled = el("span");
    this.ended = el("p", { class: "problem", role: "alert" });
    this.portsBox = el("div");
    this.findings = el("ul");
    this.findingsCard = card("Remarks of the run", this.findings);
    this.neighboursBox = el("div");
    this.neighboursCard = card("Neighbours", this.neighboursBox);
    this.lossNote = el("p", { class: "muted", id: "loss-note" });
    const rates = card("Frame rates", el("figure", {}, this.plots.rates.node, el("figcaption", {}, "Frames per second, summed over all streams, as means over about one second. The time axis begins with the first counters.")));
    const gaps = card("Losses seen by receivers", el("figure", {}, this.plots.gaps.node, el("figcaption", {}, "Gaps in the sequence numbers of received frames. Frames that are lost at the very end leave no gap: they count as in flight or lost until nothing moves.")));
    this.run = el("div", {},
      el("div", { class: "live-grid" },
        el("div", { class: "stack" }, card("Totals", this.figures, el("p", { class: "muted" }, "Counters read at ", this.sampled)), rates, gaps),
        card("Where frames went", this.lossNote, this.ledger.figure)),
      card("Streams", this.streams.node), card("Ports", this.portsBox), this.findingsCard, this.neighboursCard);
    this.none = card("No configuration", el("p", {}, this.mayControl
      ? "This server has no configuration. A script can send one over the OTG API, or you can load a JSON file above, under Configuration. packetrig sends nothing before somebody starts a stream."
      : "This server has no configuration now. This page shows the run as soon as there is one."));
    this.controls = this.mayControl ? this.buildControls() : el("p", { class: "muted" }, "You may view this run, but not start or stop streams.");
    this.context.place(el("div", { class: "live-title" }, this.title, this.state), this.ended, this.controls, this.none, this.run);
    this.show(false);
  }

  buildControls() {
    const button = (change, text) => el("button", { type: "button", "data-change": change, onclick: () => this.steer(change) }, text);
    this.buttons = [button("start", "▶ Start"), button("pause", "‖ Pause"), button("resume", "▶ Resume"), button("stop", "■ Stop")];
    this.selection = el("span", { class: "muted", role: "status" });
    this.problem = el("p", { class: "problem", id: "control-problem", role: "alert" });
    const file = el("input", { type: "file", id: "configuration-file", accept: ".json,application/json" });
    const load = el("button", { type: "button", onclick: () => this.load(file) }, "Load configuration");
    const end = el("button", { type: "button", id: "end-run", onclick: () => this.end() }, "End the run and store its result");
    this.endButton = end;
    const details = el("details", {}, el("summary", {}, "Configuration"),
      el("p", { class: "controls" }, el("label", { for: "configuration-file" }, "OTG document (JSON)"), " ", file, " ", load),
      el("p", { class: "controls" }, end));
    return el("section", { class: "card controls-card", "aria-label": "Control" },
      el("p", { class: "controls" }, this.buttons, " ", this.selection), details, this.problem);
  }

  async steer(change) {
    const streams = [...this.streams.selected];
    await this.attempt(() => post("streams", { change, streams }), `${change}: done`);
  }

  async load(input) {
    const [file] = input.files;
    if (!file) {
      setText(this.problem, "Choose a file first.");
      return;
    }
    await this.attempt(async () => configure(await file.text()), "configuration loaded");
  }

  async end() {
    await this.attempt(() => configure("{}"), "the run has ended");
  }

  /** Performs a change. Shows the warnings of the server or, if it refuses the change, all problems. */
  async attempt(change, done) {
    setText(this.problem, "");
    this.controls.setAttribute("aria-busy", "true");
    try {
      const { warnings = [] } = await change();
      setText(this.problem, warnings.join("\n"));
      announce(done);
    } catch (error) {
      setText(this.problem, error.message);
    } finally {
      this.controls.removeAttribute("aria-busy");
    }
  }

  nameSelection() {
    const { size } = this.streams.selected;
    setText(this.selection, size === 0 ? "all streams" : `${size} selected`);
  }

  onLink(state, error) {
    const texts = { connecting: "… Connecting", open: "✓ Connected", lost: "✗ Connection lost, trying again", refused: `✗ ${error?.message}` };
    if (state !== "connecting" || !this.isOtherWindow) this.context.setLink(state, texts[state]);
    this.run.classList.toggle("is-stale", state === "lost" || state === "refused");
    if (state === "lost") announce("connection lost");
    if (state === "open") this.isOtherWindow = false;
  }

  /** Forgets totals and selected streams if the configuration is another one: its counters and names are new. */
  noteConfiguration(configuration) {
    if (this.configuration === configuration) return;
    this.configuration = configuration;
    this.totals.clear();
    this.streams.selected.clear();
    if (this.mayControl) this.nameSelection();
  }

  onHistory(data) {
    this.noteConfiguration(data.configuration);
    this.totals.load(data.columns);
  }

  onLive(data) {
    this.noteConfiguration(data.configuration);
    if (data.run) this.totals.add(data.run);
    this.latest = data;
    // Draws once per screen refresh, with the newest state, so a slow browser skips states.
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      if (!this.isClosed) this.draw();
    });
  }

  show(hasRun) {
    this.run.hidden = !hasRun;
    this.none.hidden = hasRun;
    for (const button of this.buttons ?? []) button.disabled = !hasRun;
    if (this.endButton) this.endButton.disabled = !hasRun;
  }

  draw() {
    const { run } = this.latest;
    this.show(Boolean(run));
    if (!run) {
      setText(this.title, "No run");
      setText(this.state, "");
      setText(this.ended, "");
      return;
    }
    setText(this.title, run.id ? `Run ${run.id}` : "Run");
    const traffic = run.totals.started > 0 ? `streams that transmit: ${run.totals.started}` : run.totals.paused > 0 ? `streams that are paused: ${run.totals.paused}` : "no stream transmits";
    setText(this.state, `${SIGNS[run.state] ?? "■"} ${run.state ?? "opening"}, ${traffic}`);
    setText(this.ended, run.ended ? `The run has ended: ${run.ended}` : "");
    this.drawFigures(run);
    this.drawPlots();
    this.ledger.update(run.ledger, run.losses);
    setText(this.lossNote, run.losses.in_motion
      ? "Streams transmit. A missing frame is lost if a receiver has seen a later one; the other missing frames are in flight or lost."
      : "Nothing moves: all missing frames are lost. The report separates losses on the path from losses in doubt.");
    this.drawPorts(run.ports);
    this.streams.update(run.streams);
    this.drawRest(run);
  }

  drawFigures(run) {
    const { totals, losses } = run;
    const figures = [
      ["Lost, frames", `${count(losses.lost)}${Number(losses.lost) ? ` (${share(losses.lost, totals.frames_tx)})` : ""}`],
      ["In flight or lost, frames", count(losses.in_flight_or_lost)],
      ...this.context.server.columns.totals.map(({ name, heading, form }) => [heading, FORMS[form](member(totals, name))]),
      ["Time since the first counters", duration(run.elapsed_ms)],
    ];
    for (const [name, text] of figures) {
      if (!this.figureCells.has(name)) {
        const cell = el("dd");
        this.figureCells.set(name, cell);
        this.figures.append(el("div", {}, el("dt", {}, name), cell));
      }
      setText(this.figureCells.get(name), text);
    }
    this.sampled.replaceChildren(run.sampled_ms === null ? ABSENT : moment(run.sampled_ms));
  }

  drawPlots() {
    const { elapsed_ms: times, frames_tx: sent, frames_rx: received, gaps } = this.totals.columns;
    const [tx, rx, lost] = [sent, received, gaps].map((counts) => ratesOf(times, counts));
    this.plots.rates.update(tx.x, [tx.values, rx.values]);
    this.plots.gaps.update(lost.x, [lost.values]);
  }

  drawPorts(ports) {
    const columns = this.context.server.columns.ports;
    const rows = ports.map((port) => columns.map(({ name, form }) => (PORT_WORDS[name] ?? FORMS[form])(member(port, name), port)));
    const key = JSON.stringify(rows.map((row) => row[0]));
    if (this.portKey !== key) {
      this.portKey = key;
      const numbers = columns.flatMap(({ form }, index) => (classOf(form) === "number" ? [index] : []));
      this.portsBox.replaceChildren(table("Ports; frames since traffic last began, drops since the run was opened", columns.map(({ heading }) => heading), rows, numbers));
      this.portsBox.firstChild.classList.add("one-line");
      this.portCells = [...this.portsBox.querySelectorAll("tbody tr")].map((row) => [...row.children]);
      return;
    }
    rows.forEach((row, index) => row.forEach((text, place) => setText(this.portCells[index][place], text)));
  }

  drawRest(run) {
    const key = JSON.stringify([run.findings, run.neighbours]);
    if (this.restKey === key) return;
    this.restKey = key;
    this.findingsCard.hidden = run.findings.length === 0;
    this.findings.replaceChildren(...run.findings.map((text) => el("li", {}, text)));
    this.neighboursCard.hidden = run.neighbours.length === 0;
    this.neighboursBox.replaceChildren(table("Neighbours of emulated interfaces", ["Interface", "Address", "MAC"],
      run.neighbours.map((one) => [one.interface, one.address, one.mac ?? "no answer yet"])));
  }
}

/** Shows the run in progress. Returns a function that closes the view. */
export function showLive(context) {
  if (!context.server.has.live) throw new Error("this server shows no run in progress; the page of `packetrig serve` does");
  const view = new LiveView(context);
  return () => view.close();
}
