// Formats numbers with units, and times. A value that was not measured is shown as words, never as 0.

import { el } from "./dom.js";

export const ABSENT = "not measured";
/** Shown for a value that does not exist, such as the rate of a single packet, or the end of a log that still grows. */
export const DASH = "–";

/** Whether a value is absent: it was not measured or is unknown. */
export const isAbsent = (value) => value === null || value === undefined;

/** A count with its digits in groups of three. The API sends counts above 2^53 as text. */
export function count(value) {
  if (isAbsent(value)) return ABSENT;
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

const LARGE = ["", "k", "M", "G", "T", "P"];

/** A quantity with a decimal prefix: `scaled(1.5e6, "bit/s")` is 1.5 Mbit/s. */
export function scaled(value, unit) {
  if (isAbsent(value)) return ABSENT;
  let rest = Number(value);
  let step = 0;
  // 999.5 would be rounded to 1000, which has one digit more.
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

/** A time span, given in nanoseconds, with a unit from ns to s. */
export function nanoseconds(ns) {
  if (isAbsent(ns)) return ABSENT;
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (Math.abs(ns) >= size * 0.9995) return `${digits(ns / size)} ${unit}`;
  }
  return `${digits(ns)} ns`;
}

/** A time span, given in milliseconds, as `1:02:03.4`. */
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

/** A time, given in ms since 1970, as `2026-11-26 08:00:00 UTC`. */
export function utc(ms) {
  return isAbsent(ms) ? ABSENT : `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** A time in the time zone of the browser, with its difference to UTC. */
export function local(ms) {
  if (isAbsent(ms)) return ABSENT;
  const at = new Date(ms);
  const minutes = -at.getTimezoneOffset();
  const two = (number) => String(Math.abs(number)).padStart(2, "0");
  const zone = `UTC${minutes < 0 ? "−" : "+"}${two(Math.trunc(minutes / 60))}:${two(minutes % 60)}`;
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${date} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())} (${zone})`;
}

/** An element with a time in UTC and in local time; only in UTC if both are the same. */
export function moment(ms) {
  if (isAbsent(ms)) return el("span", { class: "absent" }, ABSENT);
  const at = new Date(ms);
  const here = at.getTimezoneOffset() === 0 ? [] : [el("br"), el("span", { class: "muted" }, local(ms))];
  return el("time", { datetime: at.toISOString(), title: local(ms) }, utc(ms), ...here);
}

/** Like `moment`; a dash if the time is absent. */
export const momentOrDash = (ms) => (isAbsent(ms) ? DASH : moment(ms));

/** The share of `part` in `whole`, in percent; an empty text if `whole` is 0. */
export function share(part, whole) {
  const [a, b] = [Number(part), Number(whole)];
  return b > 0 ? percent((a * 100) / b) : "";
}

const bitRate = (bits) => scaled(bits, "bit/s");

/** Formatters of values, by the name that the server gives to the format of a column. */
export const FORMS = {
  text: (text) => text ?? ABSENT, count, percent, time: nanoseconds, bit_rate: bitRate, byte_rate: (bytes) => bitRate(isAbsent(bytes) ? null : bytes * 8),
  frame_rate: (frames) => scaled(frames, "fps"),
};

/** The CSS class of cells with values in a format; null for texts and yes/no. */
export const classOf = (form) => (form === "text" || form === "yes_no" ? null : "number");
