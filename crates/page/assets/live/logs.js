// The view of traffic logs. It shows what the index of each log says; the capture files are not read.

import { card, el, figures, table } from "./dom.js";
import { DASH, count, momentOrDash, scaled } from "./format.js";
import { showPolled } from "./poll.js";

function stateOf(log) {
  if (log.is_growing) return "▶ growing";
  if (log.ended_ms !== null) return "■ ended normally";
  return "✗ did not end normally: its process was killed, or it runs where this server cannot see it";
}

/**
 * The text of a sum of lost frames. The losses of a file that was mended after a crash are unknown, so a sum with such
 * a file is a lower bound.
 */
function sumText(frames, isLowerBound) {
  const sign = Number(frames) > 0 ? "✗ " : isLowerBound ? "? " : "";
  return `${sign}${isLowerBound ? "at least " : ""}${count(frames)}`;
}

function lossesOf(log) {
  const isLowerBound = Number(log.mended_files) > 0;
  const dropped = [["Dropped by the kernel", log.dropped_kernel], ["Dropped at the queue", log.dropped_queue], ["Lost at the disk", log.dropped_disk]];
  return figures(dropped.map(([place, frames]) => [`${place}, frames`, sumText(frames, isLowerBound)]));
}

function fileRow(file) {
  return [file.name, count(file.frames), scaled(file.bytes, "B"), momentOrDash(file.begun_ms), momentOrDash(file.ended_ms), file.dropped === null ? "unknown" : count(file.dropped), file.mended ? "✓ mended" : DASH];
}

function logCard(log) {
  if (log.error) return card(`Log ${log.directory}`, el("p", { class: "problem" }, `✗ ${log.error}`));
  return card(`Log ${log.directory}`, figures([
    ["Interface", log.interface],
    ["State", stateOf(log)],
    ["Began", momentOrDash(log.began_ms)],
    ["Ended", momentOrDash(log.ended_ms)],
    ["Frames", count(log.frames)],
    ["Bytes", scaled(log.bytes, "B")],
    ["First frame", momentOrDash(log.first_ms)],
    ["Last frame", momentOrDash(log.last_ms)],
    ["Files", count(log.files)],
    ["Files mended after a crash", count(log.mended_files)],
    ["Files removed to make room", count(log.removed_files)],
    ["Frames in removed files", count(log.removed_frames)],
  ]), el("h3", { class: "apart" }, "Losses"), lossesOf(log),
  log.newest.length ? el("div", { class: "apart" }, table(`Newest files of ${log.directory}, at most 20`, ["File", "Frames", "Bytes", "Begun", "Ended", "Dropped, frames", "Mended"], log.newest.map(fileRow), [1, 2, 5]))
    : el("p", { class: "apart" }, "No file is complete yet."));
}

function content({ logs }) {
  const note = el("p", { class: "muted" }, "This page reads only the index of each log. ", el("code", {}, "packetrig log check DIR"), " reads the files and counts their frames.");
  return [note, ...logs.map(logCard)];
}

/** Shows the logs. Returns a function that stops the updates. */
export const showLogs = (context) => showPolled(context, "Logs", "logs", content);
