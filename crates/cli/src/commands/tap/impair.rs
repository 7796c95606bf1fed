//! Impairments of a tap: from flags or a document to what is done to frames, and what was done to text.

use crate::args::ImpairArgs as Arguments;
use crate::error::Error;
use crate::numbers::count;
use crate::output::remark;
use crate::table::table;
use packetrig_engine::impair::{
    DIRECTIONS, DirectionSpec, ImpairAccount, ImpairSpecs, ImpairTreatment, ImpairWatch, TruthFile,
};
use packetrig_engine::tap::FrameTreatment;
use packetrig_sys::clock;
use std::path::Path;

/// The seed if nobody names one.
const SEED: u64 = 1;

/// For each direction what is done to its frames.
pub(super) type FrameTreatments = [Box<dyn FrameTreatment>; 2];

/// What is done to frames on their way, and how it is told.
pub(super) struct TapImpairments {
    watch: ImpairWatch,
    truth: Option<TruthFile>,
}

impl TapImpairments {
    /// What the flags ask for: for each direction what is done to its frames. Nothing if they ask for nothing.
    pub(super) fn prepare(arguments: &Arguments) -> Result<Option<(Self, FrameTreatments)>, Error> {
        if !arguments.is_any() {
            let more = arguments.seed.is_some() || arguments.truth.is_some();
            return if more {
                Err(Error::Usage("--seed and --truth need --impair".into()))
            } else {
                Ok(None)
            };
        }
        let specs = specs(arguments)?;
        let seed = arguments.seed.or(specs.seed).unwrap_or(SEED);
        let header = header(seed, &specs);
        let offset = clock::realtime_offset();
        let truth =
            arguments.truth.as_deref().map(|path| TruthFile::create(path, &header, offset)).transpose()?;
        let (treatments, watch) = ImpairTreatment::pair(specs.plans(seed), truth.as_ref());
        Ok(Some((Self { watch, truth }, treatments)))
    }

    /// What was done, when the tap has ended and let go of its treatments; and the rules that are broken.
    pub(super) fn finish(self) -> Result<([ImpairAccount; 2], Vec<String>), Error> {
        let books = self.watch.books();
        if let Some(truth) = self.truth {
            truth.finish()?;
        }
        let untold: u64 = books.iter().map(|books| books.untold).sum();
        if untold > 0 {
            remark(format_args!("tap: the truth log lacks {} frames: its disk was too slow", count(untold)));
        }
        let broken = |(direction, books): (&&str, &ImpairAccount)| {
            Some(format!("impairment of {direction}: {}", books.imbalance()?))
        };
        let broken = DIRECTIONS.iter().zip(&books).filter_map(broken).collect();
        Ok((books, broken))
    }
}

fn specs(arguments: &Arguments) -> Result<ImpairSpecs, Error> {
    let mut specs = match &arguments.both {
        Some(text) if is_file(text) => {
            let document = std::fs::read_to_string(text)
                .map_err(|source| Error::ReadFile { name: text.clone(), source })?;
            ImpairSpecs::read(&document)?
        }
        Some(text) => ImpairSpecs::both(&text.parse::<DirectionSpec>()?),
        None => ImpairSpecs::default(),
    };
    for (way, text) in [&arguments.there, &arguments.back].into_iter().enumerate() {
        if let Some(text) = text {
            specs.ways[way] = text.parse()?;
        }
    }
    Ok(specs)
}

fn is_file(text: &str) -> bool {
    Path::new(text).extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// The truth log's first line: what it takes to have the same again.
fn header(seed: u64, specs: &ImpairSpecs) -> String {
    let [there, back] = &specs.ways;
    serde_json::json!({
        "truth": 1,
        "seed": seed,
        DIRECTIONS[0]: format!("{there}"),
        DIRECTIONS[1]: format!("{back}"),
    })
    .to_string()
}

/// The books by direction, for programs; null if nothing was impaired.
pub(super) fn value(books: Option<&[ImpairAccount; 2]>) -> serde_json::Value {
    books.map_or(
        serde_json::Value::Null,
        |[there, back]| serde_json::json!({ DIRECTIONS[0]: there, DIRECTIONS[1]: back }),
    )
}

/// A row for each direction.
pub(super) fn shown(books: &[ImpairAccount; 2]) -> String {
    let rows = DIRECTIONS.iter().zip(books).map(|(direction, books)| {
        let counts = &books.counts;
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
        let cells = numbers.map(count).into_iter().chain([count(counts.left), format!("{late:.0} us")]);
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
    table(&header, rows)
}
