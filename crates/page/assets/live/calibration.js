// The view of calibration results: limits that this machine has measured about itself.

import { get } from "./api.js";
import { card, el, table } from "./dom.js";
import { count, moment, nanoseconds, scaled } from "./format.js";

function rigRow(row) {
  const kernel = el("span", { class: "nowrap" }, row.is_of_this_kernel ? row.kernel : `? not the running kernel: ${row.kernel}`);
  return [`${row.back_end}, ${row.driver}`, count(row.size), scaled(row.frames_per_second, "fps"), nanoseconds(row.latency_floor), nanoseconds(row.send_error_p99),
    nanoseconds(row.clock_reading), kernel, moment(row.measured_ms)];
}

function rigCard(rig) {
  if (!rig.length) return card("Limits of the rig", el("p", {}, "Nothing was measured yet. ", el("code", {}, "packetrig test calibrate --tx eth1 --rx eth2"), " measures a cable between two ports."));
  const isOld = rig.some((row) => !row.is_of_this_kernel);
  return card("Limits of the rig", isOld ? el("p", {}, "? Rows that were measured with another kernel may be wrong for the running one; measure again with ", el("code", {}, "packetrig test calibrate"), ".") : "",
    table("Measured without a device under test", ["Back end, driver", "Frame, bytes", "Frames per second", "Latency floor", "Send error, p99", "Clock reading", "Kernel", "Measured"],
      rig.map(rigRow), [1, 2, 3, 4, 5]));
}

function releaseCard(release) {
  if (!release) return card("Release of probes", el("p", {}, "Nothing was measured yet. ", el("code", {}, "packetrig probe calibrate"), " measures how late probes leave."));
  return card("Release of probes", el("p", {}, `Kernel ${release.kernel}, driver ${release.driver}`,
    release.is_of_this_kernel ? "" : ". ? Another kernel runs now; measure again with packetrig probe calibrate."),
    table("How late probes leave", ["Mechanism", "Median", "p99", "Maximum"],
      release.mechanisms.map((one) => [one.mechanism, nanoseconds(one.p50_ns), nanoseconds(one.p99_ns), nanoseconds(one.most_ns)]), [1, 2, 3]));
}

export async function showCalibration(context) {
  const { rig, release } = await get("calibration", context.signal);
  context.place(el("h1", {}, "Calibration"), rigCard(rig), releaseCard(release));
  return () => {};
}
