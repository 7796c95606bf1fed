// Draws lines over time as SVG. The y axis always contains 0, so that small variations do not look large. Series differ
// in colour, in dashes and in the label at their end.

import { setAttribute, setText, svg } from "./dom.js";

const MARGIN = { left: 72, right: 84, top: 14, bottom: 34 };
const HEIGHT = 230;
const DASHES = ["", "7 4", "2 3"];

/** The step of an axis: 1, 2 or 5 times a power of ten, so that `most` has at most about `parts` steps. */
function niceStep(most, parts) {
  const rough = Math.max(most, Number.MIN_VALUE) / parts;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
}

/** Steps of an axis of clock times, in seconds. */
const CLOCK_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

function clockStep(span, parts) {
  return CLOCK_STEPS.find((step) => step >= span / parts) ?? Math.ceil(span / parts / 86400) * 86400;
}

/** A clock time in UTC as `08:00:05`, or as `11-26 08:00` if the axis is longer than a day. */
function clockText(seconds, span) {
  const text = new Date(seconds * 1000).toISOString();
  return span > 86400 ? text.slice(5, 16).replace("T", " ") : text.slice(11, 19);
}

export class TimePlot {
  /**
   * `label`: begins the summary for screen readers. `names`: those of the series. `format`: formats a value with its
   * unit. With `isClock`, the time axis has clock times instead of seconds since the start. With `hasDots`, each value
   * has a dot, because a single value between two gaps makes no line.
   */
  constructor(label, names, format, isClock = false, hasDots = false) {
    this.label = label;
    this.names = names;
    this.format = format;
    this.isClock = isClock;
    this.grid = svg("g", { class: "plot-grid" });
    this.lines = names.map((name, index) =>
      svg("path", { class: `series series-${index + 1}`, "stroke-dasharray": DASHES[index] || null, fill: "none" }));
    this.dots = hasDots ? names.map((_, index) => svg("path", { class: `series series-${index + 1}`, fill: "none" })) : [];
    this.ends = names.map((name, index) => svg("text", { class: `series-label series-label-${index + 1}` }, name));
    this.empty = svg("text", { class: "muted-text", "text-anchor": "middle" }, "no data yet");
    this.cursor = svg("line", { class: "plot-cursor", visibility: "hidden" });
    this.node = svg("svg", { class: "plot", role: "img", height: HEIGHT }, this.grid, this.lines, this.dots, this.ends, this.cursor, this.empty);
    this.width = 0;
    this.points = { x: [], series: names.map(() => []) };
    this.observer = new ResizeObserver(() => requestAnimationFrame(() => this.draw()));
    this.observer.observe(this.node);
  }

  close() {
    this.observer.disconnect();
  }

  /** `x` in seconds; `series`: an array of values for each name, null where nothing was measured. */
  update(x, series, unfinished = false) {
    this.points = { x, series, unfinished };
    this.draw();
  }

  draw() {
    const { x, series } = this.points;
    const width = Math.max(280, Math.round(this.node.clientWidth || 640));
    const right = width < 480 ? 64 : MARGIN.right;
    setAttribute(this.node, "viewBox", `0 0 ${width} ${HEIGHT}`);
    const values = series.flat().filter((value) => value !== null);
    const isEmpty = values.length === 0;
    setAttribute(this.empty, "x", width / 2);
    setAttribute(this.empty, "y", HEIGHT / 2);
    setAttribute(this.empty, "visibility", isEmpty ? "visible" : "hidden");
    const [first, last] = isEmpty ? [0, 1] : [x[0], Math.max(x[x.length - 1], x[0] + 1)];
    const largest = values.reduce((most, value) => Math.max(most, value), 0) || 1;
    // Delays between two clocks may be below 0.
    const smallest = values.reduce((least, value) => Math.min(least, value), 0);
    const stepY = niceStep(largest - smallest, 4);
    const most = Math.ceil(largest / stepY) * stepY;
    const least = Math.floor(smallest / stepY) * stepY;
    const toX = (value) => MARGIN.left + ((value - first) / (last - first)) * (width - MARGIN.left - right);
    const toY = (value) => HEIGHT - MARGIN.bottom - ((value - least) / (most - least)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    this.drawGrid(width, right, isEmpty ? null : { first, last, least, most, stepY }, toX, toY);
    this.lines.forEach((line, index) => setAttribute(line, "d", path(x, series[index] ?? [], toX, toY)));
    this.dots.forEach((dots, index) => setAttribute(dots, "d", dotsPath(x, series[index] ?? [], toX, toY)));
    this.placeEnds(series, toY, width - right + 6);
    const says = series.map((of, index) => `${this.names[index]} ${of.length ? this.format(of[of.length - 1]) : "no data"}`);
    setAttribute(this.node, "aria-label", `${this.label}: ${says.join(", ")}`);
  }

  drawGrid(width, right, range, toX, toY) {
    const parts = [];
    if (range) {
      for (let value = range.least; value <= range.most + range.stepY * 0.0001; value += range.stepY) {
        parts.push(svg("line", { x1: MARGIN.left, x2: width - right, y1: toY(value), y2: toY(value) }));
        parts.push(svg("text", { x: MARGIN.left - 6, y: toY(value) + 4, "text-anchor": "end" }, this.format(value)));
      }
      const span = range.last - range.first;
      const most = width < 480 ? 3 : 6;
      const stepX = this.isClock ? clockStep(span, most) : niceStep(span, most);
      for (let value = Math.ceil(range.first / stepX) * stepX; value <= range.last; value += stepX) {
        parts.push(svg("line", { x1: toX(value), x2: toX(value), y1: HEIGHT - MARGIN.bottom, y2: HEIGHT - MARGIN.bottom + 5 }));
        parts.push(svg("text", { x: toX(value), y: HEIGHT - MARGIN.bottom + 18, "text-anchor": "middle" }, this.isClock ? clockText(value, span) : `${Number(value.toPrecision(6))} s`));
      }
    }
    this.grid.replaceChildren(...parts);
  }

  /** Labels at the ends of lines, moved apart if they would cover each other. */
  placeEnds(series, toY, x) {
    const ends = series.map((of, index) => {
      const last = of.findLast((value) => value !== null);
      return { index, y: last === undefined ? null : toY(last) + 4 };
    });
    const shown = ends.filter((end) => end.y !== null).sort((a, b) => a.y - b.y);
    shown.forEach((end, place) => {
      if (place > 0) end.y = Math.max(end.y, shown[place - 1].y + 14);
    });
    for (const { index, y } of ends) {
      setAttribute(this.ends[index], "visibility", y === null ? "hidden" : "visible");
      setAttribute(this.ends[index], "x", x);
      setAttribute(this.ends[index], "y", y ?? 0);
      setText(this.ends[index], this.names[index]);
    }
  }
}

/** A dot for each value. */
function dotsPath(x, values, toX, toY) {
  return values.map((value, index) => (value === null ? "" : `M${(toX(x[index]) - 3).toFixed(1)} ${toY(value).toFixed(1)}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0`)).join("");
}

/** A line with a gap where nothing was measured. */
function path(x, values, toX, toY) {
  let text = "";
  let pen = "M";
  for (let index = 0; index < values.length; index += 1) {
    if (values[index] === null) {
      pen = "M";
      continue;
    }
    text += `${pen}${toX(x[index]).toFixed(1)} ${toY(values[index]).toFixed(1)}`;
    pen = "L";
  }
  return text;
}

/**
 * Length of the window over which a rate is a mean. In a shorter one the rates of sender and receiver would differ too
 * much, because their counters are not read at the same instant.
 */
const WINDOW_MS = 1000;

/** Computes rates from cumulative counts. `x`: end of each window in seconds; `values`: rates per second. */
export function ratesOf(elapsedMs, counts) {
  const x = [];
  const values = [];
  let begin = 0;
  for (let index = 1; index < elapsedMs.length; index += 1) {
    while (begin + 1 < index && elapsedMs[index] - elapsedMs[begin + 1] >= WINDOW_MS) begin += 1;
    const span = (elapsedMs[index] - elapsedMs[begin]) / 1000;
    if (span < 0.5) continue;
    x.push(elapsedMs[index] / 1000);
    values.push(Math.max(0, (Number(counts[index]) - Number(counts[begin])) / span));
  }
  return { x, values };
}
