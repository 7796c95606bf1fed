//! The two drawings of a ledger: from left to right for wide pages and paper, from top to bottom for narrow screens.

use super::format_coordinate;
use super::ledger::{
    FlowBalance, LedgerBranch, LedgerBranchKind, LedgerDiagram, LedgerSide, LedgerStage, account_name,
};
use crate::markup::Markup;
use crate::quantity::format_count;

/// Width of the flow itself. It is the same everywhere: the drawing shows places, not shares.
const FLOW_WIDTH: f64 = 44.0;

/// Width of the arrow of a loss. It grows with the logarithm of the number of frames.
fn loss_branch_width(frames: u64) -> f64 {
    match frames {
        0 => 0.0,
        // One frame is 3 units wide, and each factor of ten adds 3.
        _ => (3.0 + (frames as f64).log10() * 3.0).min(24.0),
    }
}

const WIDE_PICTURE_WIDTH: f64 = 1520.0;
const FLOW_TOP: f64 = 112.0;
const FLOW_BASE: f64 = FLOW_TOP + FLOW_WIDTH;
/// Positions of the stations. The path is between the fourth and the fifth.
const STATION_POSITIONS: [f64; 8] = [64.0, 224.0, 384.0, 544.0, 882.0, 1024.0, 1214.0, 1406.0];
const FIRST_ROW_TOP: f64 = FLOW_BASE + 52.0;
const ROW_HEIGHT: f64 = 41.0;

/// Draws the ledger from left to right.
pub(super) fn draw_wide_diagram(flow: &LedgerDiagram) -> Markup {
    // Each loss has its own row, so the station with the most losses decides the height.
    let rows = flow.stations.iter().map(|station| station.exits.len()).max().unwrap_or(0);
    let height = FIRST_ROW_TOP + rows as f64 * ROW_HEIGHT + 8.0;
    let mut svg = Markup::new();
    let view = format!("0 0 {WIDE_PICTURE_WIDTH} {}", format_coordinate(height));
    svg.open_element(
        "svg",
        &[
            ("class", "ledger-wide"),
            ("viewBox", &view),
            ("role", "img"),
            ("aria-label", &flow.describe_flow()),
        ],
    );
    // The boxes end between stations: 544 is the last one of the sender, 882 the first one of the receiver.
    for (name, zone, from, until) in [
        ("Our sender", LedgerSide::Sender, 8.0, 612.0),
        ("Device and path", LedgerSide::Path, 620.0, 816.0),
        ("Our receiver", LedgerSide::Receiver, 824.0, 1512.0),
    ] {
        draw_zone(&mut svg, name, zone, [from, 6.0, until - from, height - 12.0]);
    }
    // SVG paints in this order: stations and exits cover the trunk.
    for (index, station) in flow.stations.iter().enumerate() {
        if let Some(next) = STATION_POSITIONS.get(index + 1) {
            draw_wide_trunk(&mut svg, station, &flow.stations[index + 1], STATION_POSITIONS[index], *next);
        }
    }
    draw_wide_totals(&mut svg, flow);
    for (index, station) in flow.stations.iter().enumerate() {
        draw_wide_exits(&mut svg, flow, station, STATION_POSITIONS[index]);
        draw_wide_station(&mut svg, station, STATION_POSITIONS[index]);
    }
    draw_wide_joined(&mut svg, flow);
    svg.close_element("svg");
    svg
}

fn draw_zone(svg: &mut Markup, name: &str, zone: LedgerSide, [x, y, width, height]: [f64; 4]) {
    let class = match zone {
        LedgerSide::Path => "zone zone-path",
        LedgerSide::Sender | LedgerSide::Receiver => "zone",
    };
    let [left, top, width, height] = [x, y, width, height].map(format_coordinate);
    svg.empty_element(
        "rect",
        &[("class", class), ("x", &left), ("y", &top), ("width", &width), ("height", &height), ("rx", "8")],
    );
    svg.add_element(
        "text",
        &[("class", "zone-name"), ("x", &format_coordinate(x + 10.0)), ("y", &format_coordinate(y + 20.0))],
        name,
    );
}

/// True if the count of frames is unknown at one of the two stations.
fn is_loss_unknown(from: &LedgerStage, to: &LedgerStage) -> bool {
    from.frames.is_none() || to.frames.is_none()
}

fn draw_wide_trunk(svg: &mut Markup, from: &LedgerStage, to: &LedgerStage, x: f64, next: f64) {
    let class = if is_loss_unknown(from, to) { "trunk trunk-unknown" } else { "trunk" };
    let mut piece = |from: f64, until: f64| {
        let [x, y, width, height] = [from, FLOW_TOP, until - from, FLOW_WIDTH].map(format_coordinate);
        svg.empty_element(
            "rect",
            &[("class", class), ("x", &x), ("y", &y), ("width", &width), ("height", &height)],
        );
    };
    let FlowBalance::Broken(rule) = &from.balance else { return piece(x, next) };
    let middle = x.midpoint(next) + 30.0;
    piece(x, middle - 8.0);
    piece(middle + 8.0, next);
    draw_wide_imbalance(svg, middle, rule);
}

/// Marks a rule of the ledger that does not hold.
fn draw_wide_imbalance(svg: &mut Markup, middle: f64, rule: &str) {
    let mark = format!(
        "M{} {}l12 12m0-12l-12 12",
        format_coordinate(middle - 6.0),
        format_coordinate(FLOW_TOP + FLOW_WIDTH / 2.0 - 6.0)
    );
    svg.open_element("path", &[("class", "broken"), ("d", &mark)])
        .add_element("title", &[], rule)
        .close_element("path");
    let (x, y) = (format_coordinate(middle), format_coordinate(FLOW_TOP - 6.0));
    svg.add_element("text", &[("class", "broken-name middle"), ("x", &x), ("y", &y)], "does not add up");
}

fn draw_wide_totals(svg: &mut Markup, flow: &LedgerDiagram) {
    let Some(last) = flow.stations.last() else { return };
    let x = STATION_POSITIONS[STATION_POSITIONS.len() - 1];
    let class = if last.frames.is_none() { "trunk trunk-unknown" } else { "trunk" };
    let head = format!("M{x} {FLOW_TOP}h44v-12l34 34l-34 34v-12h-44z");
    svg.empty_element("path", &[("class", class), ("d", &head)]);
    if let FlowBalance::Broken(rule) = &last.balance {
        draw_wide_imbalance(svg, x + 22.0, rule);
    }
    // The two numbers stand below the arrow, where the last station has no exits.
    let lines = [
        ("expected", flow.expected.map_or_else(|| "not known".to_owned(), format_count)),
        ("lost in all", flow.lost.map_or_else(|| "not known".to_owned(), format_count)),
    ];
    for (row, (name, value)) in lines.iter().enumerate() {
        let y = FIRST_ROW_TOP + row as f64 * ROW_HEIGHT;
        svg.add_element(
            "text",
            &[("class", "exit-name"), ("x", &format_coordinate(x - 4.0)), ("y", &format_coordinate(y))],
            name,
        );
        svg.add_element(
            "text",
            &[
                ("class", "exit-count"),
                ("x", &format_coordinate(x - 4.0)),
                ("y", &format_coordinate(y + 17.0)),
            ],
            value,
        );
    }
}

fn draw_wide_station(svg: &mut Markup, station: &LedgerStage, x: f64) {
    // A station is a vertical line, which extends beyond the trunk by 8 units on both sides.
    let line = format!("M{x} {}V{}", FLOW_TOP - 8.0, FLOW_BASE + 8.0);
    svg.empty_element("path", &[("class", "station"), ("d", &line)]);
    let x = format_coordinate(x);
    let frames = station.frames.map_or_else(|| "not measured".to_owned(), format_count);
    let class =
        if station.frames.is_some() { "station-count middle" } else { "station-count unknown middle" };
    svg.add_element(
        "text",
        &[("class", "station-name middle"), ("x", &x), ("y", "58")],
        account_name(station.account),
    );
    svg.add_element("text", &[("class", class), ("x", &x), ("y", "77")], &frames);
}

/// Draws the exits downwards. The first one goes deepest, so that no exit crosses the text of another.
fn draw_wide_exits(svg: &mut Markup, flow: &LedgerDiagram, station: &LedgerStage, station_x: f64) {
    // The exits of the path are in a separate box.
    let left = if station.is_before_path() { 638.0 } else { station_x + 16.0 };
    let count = station.exits.len();
    for (index, exit) in station.exits.iter().enumerate() {
        let row = count - 1 - index;
        let x = left + index as f64 * 14.0;
        let y = FIRST_ROW_TOP + row as f64 * ROW_HEIGHT;
        draw_wide_exit(svg, exit, x, y);
        let (x, first, second) =
            (format_coordinate(x + 14.0), format_coordinate(y), format_coordinate(y + 17.0));
        svg.add_element("text", &[("class", "exit-name"), ("x", &x), ("y", &first)], exit.name);
        svg.add_element(
            "text",
            &[("class", choose_count_class(exit)), ("x", &x), ("y", &second)],
            &flow.describe_share(exit.frames),
        );
    }
}

fn choose_count_class(exit: &LedgerBranch) -> &'static str {
    match (exit.frames, exit.kind) {
        (None, _) => "exit-count unknown",
        (Some(0), _) => "exit-count none",
        (Some(_), LedgerBranchKind::Lost) => "exit-count lost",
        (Some(_), LedgerBranchKind::SetAside) => "exit-count aside",
    }
}

fn choose_exit_class(exit: &LedgerBranch) -> &'static str {
    match (exit.frames, exit.kind) {
        (None, _) => "exit exit-unknown",
        (Some(0), _) => "exit exit-none",
        (Some(_), LedgerBranchKind::Lost) => "exit exit-lost",
        (Some(_), LedgerBranchKind::SetAside) => "exit exit-aside",
    }
}

fn draw_wide_exit(svg: &mut Markup, exit: &LedgerBranch, x: f64, y: f64) {
    let class = choose_exit_class(exit);
    // Zero and unknown have a thin line without a head: the place exists, but no frame is known to have left there.
    let width = exit.frames.map_or(0.0, loss_branch_width);
    if width == 0.0 {
        let path = format!("M{x} {FLOW_BASE}V{}", format_coordinate(y - 2.0));
        svg.empty_element("path", &[("class", class), ("d", &path)]);
        return;
    }
    // A thick exit grows to the left: the text is on its right.
    let x = x + 1.5 - width / 2.0;
    let path = format!(
        "M{} {}V{}",
        format_coordinate(x),
        format_coordinate(FLOW_BASE - 10.0),
        format_coordinate(y + 1.0)
    );
    svg.empty_element("path", &[("class", class), ("d", &path), ("stroke-width", &format_coordinate(width))]);
    // The head is wider than its line, and never smaller than 12 units: a single frame must be visible.
    let half = width.max(8.0) / 2.0 + 2.0;
    let head = format!(
        "M{} {}h{}l-{} 9z",
        format_coordinate(x - half),
        format_coordinate(y + 1.0),
        format_coordinate(half * 2.0),
        format_coordinate(half)
    );
    svg.empty_element("path", &[("class", &format!("{class}-head")), ("d", &head)]);
}

/// Draws the frames that join on the path: they come from above.
fn draw_wide_joined(svg: &mut Markup, flow: &LedgerDiagram) {
    if flow.joined.is_empty() {
        return;
    }
    // Saturating: counts of a damaged report must not stop the page.
    let frames = flow.joined.iter().fold(0, |sum: u64, exit| sum.saturating_add(exit.frames.unwrap_or(0)));
    let x = 718.0;
    let width = loss_branch_width(frames);
    let path = format!("M{x} 82V{}", FLOW_TOP + 10.0);
    svg.empty_element(
        "path",
        &[("class", "exit exit-aside"), ("d", &path), ("stroke-width", &format_coordinate(width))],
    );
    svg.add_element(
        "text",
        &[("class", "exit-name middle"), ("x", &format_coordinate(x)), ("y", "58")],
        "other frames, copies",
    );
    svg.add_element(
        "text",
        &[("class", "exit-count aside middle"), ("x", &format_coordinate(x)), ("y", "76")],
        &format!("+{}", format_count(frames)),
    );
}

const NARROW_PICTURE_WIDTH: f64 = 340.0;
const NARROW_FLOW_X: f64 = 20.0;
const NARROW_FLOW_WIDTH: f64 = 30.0;
const STATION_HEIGHT: f64 = 40.0;
const EXIT_HEIGHT: f64 = 30.0;
const ZONE_HEIGHT: f64 = 30.0;

/// Draws the ledger from top to bottom, each exit in its own row.
pub(super) fn draw_narrow_diagram(flow: &LedgerDiagram) -> Markup {
    let mut body = Markup::new();
    let mut y = 4.0;
    // True if the count is unknown above or below the rows between two stations.
    let mut is_gap_unknown = false;
    for (index, station) in flow.stations.iter().enumerate() {
        let is_path = station.is_before_path();
        // The first four stations belong to the sender. The zone of the path begins after the fourth station, below,
        // so that it contains the exits of that station.
        if index == 0 || index == 4 {
            let name = if station.side() == LedgerSide::Sender { "Our sender" } else { "Our receiver" };
            y = draw_narrow_zone(&mut body, name, y, (index > 0).then_some(is_gap_unknown));
        }
        y = draw_narrow_station(&mut body, station, y, index + 1 == flow.stations.len());
        let next = flow.stations.get(index + 1).unwrap_or(station);
        is_gap_unknown = is_loss_unknown(station, next);
        if is_path {
            y = draw_narrow_zone(&mut body, "Device and path", y, Some(is_gap_unknown));
        }
        for exit in &station.exits {
            y = draw_narrow_exit(&mut body, flow, exit, y, is_gap_unknown);
        }
        if is_path {
            for joined in &flow.joined {
                y = draw_narrow_joined(&mut body, joined, y, is_gap_unknown);
            }
        }
        if let FlowBalance::Broken(_) = &station.balance {
            y = draw_narrow_imbalance(&mut body, y);
        }
    }
    let mut svg = Markup::new();
    let view = format!("0 0 {NARROW_PICTURE_WIDTH} {}", format_coordinate(y + 22.0));
    svg.open_element(
        "svg",
        &[
            ("class", "ledger-narrow"),
            ("viewBox", &view),
            ("role", "img"),
            ("aria-label", &flow.describe_flow()),
        ],
    );
    svg.append(&body).close_element("svg");
    svg
}

fn draw_narrow_trunk(svg: &mut Markup, y: f64, height: f64, is_unknown: bool) {
    let class = if is_unknown { "trunk trunk-unknown" } else { "trunk" };
    let [x, y, width, height] = [NARROW_FLOW_X, y, NARROW_FLOW_WIDTH, height].map(format_coordinate);
    svg.empty_element(
        "rect",
        &[("class", class), ("x", &x), ("y", &y), ("width", &width), ("height", &height)],
    );
}

/// Draws the heading of a zone and returns the `y` below it. `trunk`: whether the count of the trunk is unknown;
/// `None` if the trunk does not pass the heading.
fn draw_narrow_zone(svg: &mut Markup, name: &str, y: f64, trunk: Option<bool>) -> f64 {
    if let Some(is_unknown) = trunk {
        draw_narrow_trunk(svg, y, ZONE_HEIGHT, is_unknown);
    }
    let x = if trunk.is_some() { NARROW_FLOW_X + NARROW_FLOW_WIDTH + 8.0 } else { 0.0 };
    let line = format!("M{} {}H{NARROW_PICTURE_WIDTH}", format_coordinate(x), format_coordinate(y + 8.0));
    svg.empty_element("path", &[("class", "zone-line"), ("d", &line)]);
    svg.add_element(
        "text",
        &[("class", "zone-name"), ("x", &format_coordinate(x)), ("y", &format_coordinate(y + 24.0))],
        name,
    );
    y + ZONE_HEIGHT
}

fn draw_narrow_station(svg: &mut Markup, station: &LedgerStage, y: f64, is_last: bool) -> f64 {
    let is_unknown = station.frames.is_none();
    let middle = y + STATION_HEIGHT / 2.0;
    draw_narrow_trunk(svg, y, STATION_HEIGHT, is_unknown);
    if is_last {
        let (left, base) = (NARROW_FLOW_X - 8.0, format_coordinate(y + STATION_HEIGHT));
        let head =
            format!("M{left} {base}h{}l-{} 18z", NARROW_FLOW_WIDTH + 16.0, NARROW_FLOW_WIDTH / 2.0 + 8.0);
        svg.empty_element(
            "path",
            &[("class", if is_unknown { "trunk trunk-unknown" } else { "trunk" }), ("d", &head)],
        );
    }
    let line = format!(
        "M{} {m}H{}",
        NARROW_FLOW_X - 8.0,
        NARROW_FLOW_X + NARROW_FLOW_WIDTH + 8.0,
        m = format_coordinate(middle)
    );
    svg.empty_element("path", &[("class", "station"), ("d", &line)]);
    let frames = station.frames.map_or_else(|| "not measured".to_owned(), format_count);
    let class = if is_unknown { "station-count unknown end" } else { "station-count end" };
    let base = format_coordinate(middle + 5.0);
    svg.add_element(
        "text",
        &[("class", "station-name"), ("x", "66"), ("y", &base)],
        account_name(station.account),
    );
    svg.add_element(
        "text",
        &[("class", class), ("x", &format_coordinate(NARROW_PICTURE_WIDTH - 2.0)), ("y", &base)],
        &frames,
    );
    y + STATION_HEIGHT
}

fn draw_narrow_exit(
    svg: &mut Markup,
    flow: &LedgerDiagram,
    exit: &LedgerBranch,
    y: f64,
    is_trunk_unknown: bool,
) -> f64 {
    // The trunk continues beside the exits, so that the rows of one column are one flow.
    draw_narrow_trunk(svg, y, EXIT_HEIGHT, is_trunk_unknown);
    let middle = y + EXIT_HEIGHT / 2.0;
    let edge = NARROW_FLOW_X + NARROW_FLOW_WIDTH;
    let class = choose_exit_class(exit);
    let width = exit.frames.map_or(0.0, loss_branch_width);
    let path = format!("M{} {}H{}", edge - 6.0, format_coordinate(middle), edge + 20.0);
    if width > 0.0 {
        // The exit stays within its row.
        let width = width.min(EXIT_HEIGHT - 8.0);
        svg.empty_element(
            "path",
            &[("class", class), ("d", &path), ("stroke-width", &format_coordinate(width))],
        );
        let half = width.max(8.0) / 2.0 + 2.0;
        let head = format!(
            "M{} {}v{}l9-{}z",
            edge + 20.0,
            format_coordinate(middle - half),
            format_coordinate(half * 2.0),
            format_coordinate(half)
        );
        svg.empty_element("path", &[("class", &format!("{class}-head")), ("d", &head)]);
    } else {
        svg.empty_element("path", &[("class", class), ("d", &path)]);
    }
    let base = format_coordinate(middle + 5.0);
    svg.add_element("text", &[("class", "exit-name"), ("x", "86"), ("y", &base)], exit.name);
    let class = format!("{} end", choose_count_class(exit));
    svg.add_element(
        "text",
        &[("class", &class), ("x", &format_coordinate(NARROW_PICTURE_WIDTH - 2.0)), ("y", &base)],
        &flow.describe_share(exit.frames),
    );
    y + EXIT_HEIGHT
}

fn draw_narrow_joined(svg: &mut Markup, joined: &LedgerBranch, y: f64, is_trunk_unknown: bool) -> f64 {
    draw_narrow_trunk(svg, y, EXIT_HEIGHT, is_trunk_unknown);
    // The arrow points from right to left: these frames enter the flow.
    let middle = format_coordinate(y + EXIT_HEIGHT / 2.0);
    let edge = NARROW_FLOW_X + NARROW_FLOW_WIDTH;
    let path = format!("M{} {middle}H{}", edge + 26.0, edge - 2.0);
    svg.empty_element("path", &[("class", "exit exit-aside"), ("d", &path), ("stroke-width", "4")]);
    let base = format_coordinate(y + EXIT_HEIGHT / 2.0 + 5.0);
    svg.add_element(
        "text",
        &[("class", "exit-name"), ("x", "86"), ("y", &base)],
        &format!("joined by: {}", joined.name),
    );
    let frames = format!("+{}", format_count(joined.frames.unwrap_or(0)));
    svg.add_element(
        "text",
        &[
            ("class", "exit-count aside end"),
            ("x", &format_coordinate(NARROW_PICTURE_WIDTH - 2.0)),
            ("y", &base),
        ],
        &frames,
    );
    y + EXIT_HEIGHT
}

fn draw_narrow_imbalance(svg: &mut Markup, y: f64) -> f64 {
    let mark = format!("M{} {}l12 12m0-12l-12 12", NARROW_FLOW_X + 9.0, format_coordinate(y + 6.0));
    svg.empty_element("path", &[("class", "broken"), ("d", &mark)]);
    svg.add_element(
        "text",
        &[("class", "broken-name"), ("x", "66"), ("y", &format_coordinate(y + 17.0))],
        "does not add up",
    );
    y + 26.0
}
