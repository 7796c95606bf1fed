//! Impairments of a tap: converts flags or a document to treatments of frames, and formats the counts of such frames.

use crate::args::ImpairArgs as Arguments;
use crate::error::Error;
use crate::numbers::format_count;
use crate::output::print_remark;
use crate::table::format_table;
use packetrig_link::{DIRECTION_NAMES, DirectionSpec, FrameTreatment, ImpairSpecs};
use packetrig_link_io::impair::{ImpairAccount, ImpairAccountsReader, ImpairTreatment, ImpairmentTruthLog};
use packetrig_sys::clock;
use std::path::Path;

/// The seed if neither the flags nor the file name one.
// The seed is fixed, so that the same command impairs the same frames again.
const IMPAIRMENT_SEED: u64 = 1;

/// The treatments that impair the frames: one from A to B, one from B to A.
pub(super) type FrameTreatments = [Box<dyn FrameTreatment>; 2];

/// The impairments of a running tap: their counts, and the truth log, a file with a line for each impaired frame.
pub(super) struct TapImpairments {
    watch: ImpairAccountsReader,
    truth: Option<ImpairmentTruthLog>,
}

pub(super) struct PreparedImpairments {
    pub(super) impairments: TapImpairments,
    pub(super) treatments: FrameTreatments,
}

pub(super) struct FinishedImpairments {
    pub(super) accounts: [ImpairAccount; 2],
    /// Sums in the accounts that are not equal, but must be.
    pub(super) imbalances: Vec<String>,
}

impl TapImpairments {
    /// Prepares the impairments that the flags describe; `None` without such flags.
    pub(super) fn prepare_impairments(arguments: &Arguments) -> Result<Option<PreparedImpairments>, Error> {
        if !arguments.impairs_anything() {
            // Flags without effect are refused: a user who forgets `--impair` would measure a clean link.
            let more = arguments.seed.is_some() || arguments.truth.is_some();
            return if more {
                Err(Error::Usage("--seed and --truth need --impair".into()))
            } else {
                Ok(None)
            };
        }
        let specs = read_specs(arguments)?;
        let seed = arguments.seed.or(specs.seed).unwrap_or(IMPAIRMENT_SEED);
        let header = build_truth_log_header(seed, &specs);
        // The whole file uses one clock offset, so that its times keep their distances when the wall clock is set.
        let offset = clock::measure_realtime_offset();
        let truth = arguments
            .truth
            .as_deref()
            .map(|path| ImpairmentTruthLog::create_with_header(path, &header, offset))
            .transpose()?;
        let (treatments, watch) =
            ImpairTreatment::for_both_directions(specs.to_fault_plans(seed), truth.as_ref());
        Ok(Some(PreparedImpairments { impairments: Self { watch, truth }, treatments }))
    }

    /// Returns the final accounts. The tap must have ended and dropped its treatments.
    pub(super) fn read_final_impair_accounts(self) -> Result<FinishedImpairments, Error> {
        let accounts = self.watch.read_accounts();
        if let Some(truth) = self.truth {
            truth.finish_file()?;
        }
        // The truth log drops lines rather than delay frames: a frame that the log delays would be impaired wrongly.
        let unlogged: u64 = accounts.iter().map(|account| account.untold).sum();
        if unlogged > 0 {
            print_remark(format_args!(
                "tap: frames that are missing in the truth log, because its disk was too slow: {}",
                format_count(unlogged)
            ));
        }
        let imbalances = DIRECTION_NAMES.iter().zip(&accounts).filter_map(|(direction, account)| {
            Some(format!("impairment of {direction}: {}", account.find_imbalance()?))
        });
        let imbalances = imbalances.collect();
        Ok(FinishedImpairments { accounts, imbalances })
    }
}

fn read_specs(arguments: &Arguments) -> Result<ImpairSpecs, Error> {
    let mut specs = match &arguments.both {
        Some(text) if is_yaml_file_name(text) => {
            let document = std::fs::read_to_string(text)
                .map_err(|source| Error::ReadFile { name: text.clone(), source })?;
            ImpairSpecs::parse_document(&document)?
        }
        Some(text) => ImpairSpecs::same_both_ways(&text.parse::<DirectionSpec>()?),
        None => ImpairSpecs::default(),
    };
    // A flag for one direction replaces the whole specification of that direction.
    for (way, text) in [&arguments.there, &arguments.back].into_iter().enumerate() {
        if let Some(text) = text {
            specs.ways[way] = text.parse()?;
        }
    }
    Ok(specs)
}

fn is_yaml_file_name(text: &str) -> bool {
    // The ending of the name decides, and not a check on the disk: `delay=10ms` could also be the name of a file.
    Path::new(text).extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// The first line of the truth log: the seed and the specifications, from which the same impairments can be made again.
fn build_truth_log_header(seed: u64, specs: &ImpairSpecs) -> String {
    let [there, back] = &specs.ways;
    serde_json::json!({
        "truth": 1,
        "seed": seed,
        DIRECTION_NAMES[0]: format!("{there}"),
        DIRECTION_NAMES[1]: format!("{back}"),
    })
    .to_string()
}

/// Builds the counts of impaired frames by direction, for `--json`; null if the tap impairs nothing.
pub(super) fn build_accounts_json(accounts: Option<&[ImpairAccount; 2]>) -> serde_json::Value {
    accounts.map_or(
        serde_json::Value::Null,
        |[there, back]| serde_json::json!({ DIRECTION_NAMES[0]: there, DIRECTION_NAMES[1]: back }),
    )
}

/// Formats the counts of impaired frames as a table with a row for each direction.
pub(super) fn format_accounts_table(accounts: &[ImpairAccount; 2]) -> String {
    let rows = DIRECTION_NAMES.iter().zip(accounts).map(|(direction, account)| {
        let counts = &account.counts;
        let late = counts.late_most_ns as f64 / 1000.0;
        let numbers = [
            counts.arrived,
            counts.dropped,
            counts.overflowed,
            counts.copies,
            counts.held,
            counts.corrupted,
            counts.delayed,
        ];
        let cells =
            numbers.map(format_count).into_iter().chain([format_count(counts.left), format!("{late:.0} us")]);
        std::iter::once((*direction).to_owned()).chain(cells).collect::<Vec<_>>()
    });
    let header = [
        "impaired",
        "arrived",
        "lost",
        "overflowed",
        "copied",
        "held back",
        "corrupted",
        "delayed",
        "left",
        "late at most",
    ];
    format_table(&header, rows)
}
