//! The times of probe lines as a picture: the slowest lines, each from its smallest to its largest time.

use crate::draw::ranges::{TimeRange, draw_ranges};
use crate::markup::Markup;
use crate::quantity;
use packetrig_report::{ProbeFindings, ProbesReport};
use packetrig_stats::probe::ProbeTimes;
use std::cmp::Reverse;

/// Maximum number of lines of a picture.
const MAX_RANGES: usize = 32;

/// Writes a picture for each kind of time that the lines have.
pub(super) fn write_range_pictures(page: &mut Markup, probes: &ProbesReport) {
    let pictures = [
        RangePicture::from_lines(probes, "One-way delay there", |found| found.delay_there),
        RangePicture::from_lines(probes, "Round trip", |found| found.round_trip),
    ];
    // If no line can be drawn on the axis, the figure stays, because its note says how many lines are not drawn.
    let pictures: Vec<&RangePicture> = pictures.iter().filter(|picture| picture.total > 0).collect();
    if pictures.is_empty() {
        return;
    }
    page.add_element("h3", &[("class", "after-figures")], "Ranges of times");
    page.open_element("div", &[("class", "charts")]);
    for picture in pictures {
        picture.write_range_picture(page);
    }
    page.close_element("div");
}

/// The lines of one picture, the slowest first.
struct RangePicture {
    title: &'static str,
    ranges: Vec<TimeRange>,
    /// Number of lines with such times, including lines that are not drawn.
    total: usize,
    /// Number of lines that are not drawn: a logarithmic axis cannot show a time at or below zero, and times that are
    /// out of order cannot be true.
    without_place: usize,
}

impl RangePicture {
    fn from_lines(
        probes: &ProbesReport,
        title: &'static str,
        times: fn(&ProbeFindings) -> Option<ProbeTimes>,
    ) -> Self {
        let lines = probes.lines.iter().filter_map(|line| Some((line, times(line.found.as_ref()?)?)));
        let total = lines.clone().count();
        let mut ranges: Vec<TimeRange> = lines
            // A delay at or below zero is possible within its bound. Times that are out of order come
            // from a damaged report.
            .filter(|(_, times)| times.min_ns > 0 && times.is_ordered())
            .map(|(line, times)| {
                let [min_ns, p50_ns, p99_ns, max_ns] =
                    // Fewer than 100 answers have no 99th percentile. The thick part of the line is empty then.
                    [times.min_ns, times.p50_ns, times.p99_ns.unwrap_or(times.p50_ns), times.max_ns]
                        .map(i64::unsigned_abs);
                TimeRange { name: super::probes::line_name(line), min_ns, p50_ns, p99_ns, max_ns }
            })
            .collect();
        let without_place = total - ranges.len();
        // The lines are sorted by p99 and not by the maximum, because a single late answer decides the maximum.
        ranges.sort_by_key(|range| Reverse(range.p99_ns));
        ranges.truncate(MAX_RANGES);
        Self { title, ranges, total, without_place }
    }

    fn write_range_picture(&self, page: &mut Markup) {
        page.open_element("figure", &[]).add_element("h4", &[], self.title);
        if !self.ranges.is_empty() {
            let description = format!("{} of {} pairs, from min to max", self.title, self.ranges.len());
            page.append(&draw_ranges(&description, &self.ranges));
        }
        page.open_element("figcaption", &[]);
        for note in self.list_picture_notes() {
            page.add_element("p", &[("class", "note")], &note);
        }
        page.close_element("figcaption").close_element("figure");
    }

    fn list_picture_notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.ranges.is_empty() {
            notes.push(
                "The thin line is from min to max, the thick line from median to p99, if there are 100 \
                 answers. The upright mark is the median. The line with the largest p99 is at the top."
                    .to_owned(),
            );
        }
        let drawn = self.total - self.without_place;
        if self.ranges.len() < drawn {
            let total = quantity::format_count(self.total as u64);
            notes.push(format!("Only the {} slowest of {total} pairs are drawn.", self.ranges.len()));
        }
        if self.without_place > 0 {
            let pairs = quantity::format_count_with_unit(self.without_place as u64, "pair");
            notes.push(format!(
                "Not drawn: {pairs} with a time at or below zero, which a logarithmic axis cannot show, or \
                with times out of order."
            ));
        }
        notes
    }
}
