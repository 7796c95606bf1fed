// Numbers with units and times. A value that was not measured is a word, never 0.

import { el } from "./dom.js";

export const ABSENT = "not measured";
/** What does not exist, such as the rate of a single packet, or the end of a log that grows. */
export const DASH = "–";

/** Whether something was not measured or is not known. */
export const isAbsent = (value) => value === null || value === undefined;

/** A count with its digits in groups. Counts above 2^53 come as text. */
export function count(value) {
  if (isAbsent(value)) return ABSENT;
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

const LARGE = ["", "k", "M", "G", "T", "P"];

/** A quantity in the decimal multiple that fits: `scaled(1.5e6, "bit/s")` is 1.5 Mbit/s. */
export function scaled(value, unit) {
  if (isAbsent(value)) return ABSENT;
  let rest = Number(value);
  let step = 0;
  // 999.5 would be rounded to a number with a digit more.
  while (Math.abs(rest) >= 999.5 && step < LARGE.length - 1) {
    rest /= 1000;
    step += 1;
  }
  return `${digits(rest)} ${LARGE[step]}${unit}`;
}

function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1).replace(/\.0$/, "");
  return value.toFixed(2).replace(/\.?0+$/, "");
}

/** A time span from nanoseconds. */
export function nanoseconds(ns) {
  if (isAbsent(ns)) return ABSENT;
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (Math.abs(ns) >= size * 0.9995) return `${digits(ns / size)} ${unit}`;
  }
  return `${digits(ns)} ns`;
}

/** `1:02:03.4` from milliseconds. */
export function duration(ms) {
  if (isAbsent(ms)) return ABSENT;
  const tenths = Math.floor(ms / 100);
  const seconds = Math.floor(tenths / 10);
  const two = (number) => String(number).padStart(2, "0");
  const clock = `${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}.${tenths % 10}`;
  return seconds >= 3600 ? `${Math.floor(seconds / 3600)}:${clock}` : clock;
}

export function percent(value) {
  if (isAbsent(value)) return ABSENT;
  return `${value !== 0 && Math.abs(value) < 0.01 ? value.toPrecision(2) : digits(Number(value))} %`;
}

/** `2026-11-26 08:00:00 UTC`. */
export function utc(ms) {
  return isAbsent(ms) ? ABSENT : `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** The same in the viewer's time zone, with its difference to UTC. */
export function local(ms) {
  if (isAbsent(ms)) return ABSENT;
  const at = new Date(ms);
  const minutes = -at.getTimezoneOffset();
  const two = (number) => String(Math.abs(number)).padStart(2, "0");
  const zone = `UTC${minutes < 0 ? "−" : "+"}${two(Math.trunc(minutes / 60))}:${two(minutes % 60)}`;
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${date} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())} (${zone})`;
}

/** A moment in UTC and in local time. Where local time is UTC, it would say the same twice. */
export function moment(ms) {
  if (isAbsent(ms)) return el("span", { class: "absent" }, ABSENT);
  const at = new Date(ms);
  const here = at.getTimezoneOffset() === 0 ? [] : [el("br"), el("span", { class: "muted" }, local(ms))];
  return el("time", { datetime: at.toISOString(), title: local(ms) }, utc(ms), ...here);
}

/** The same; a dash if there is none. */
export const momentOrDash = (ms) => (isAbsent(ms) ? DASH : moment(ms));

/** The share of a count, by exact counts. */
export function share(part, whole) {
  const [a, b] = [Number(part), Number(whole)];
  return b > 0 ? percent((a * 100) / b) : "";
}

const bitRate = (bits) => scaled(bits, "bit/s");

/** How values of a column are shown, by the word that the server has for it. */
export const FORMS = {
  text: (text) => text ?? ABSENT, count, percent, time: nanoseconds, bit_rate: bitRate, byte_rate: (bytes) => bitRate(isAbsent(bytes) ? null : bytes * 8),
  frame_rate: (frames) => scaled(frames, "fps"),
};

/** The class of cells with values in this form. */
export const classOf = (form) => (form === "text" || form === "yes_no" ? null : "number");
