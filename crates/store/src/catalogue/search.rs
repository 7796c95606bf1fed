//! Searches runs and test methods together, a page at a time.

use super::{RunCatalogue, read_count};
use crate::{Error, migrations};
use packetrig_units::clamp_to_i64;
use rusqlite::{Row, params};

const RUN_ROWS_SQL: &str =
    "SELECT id, 'run' AS kind, started_wall_ns, name, verdict, outcome, plan_sha256, streams, sent, lost,
    NULL AS trials FROM runs";
const METHOD_ROWS_SQL: &str =
    "SELECT id, method, started_wall_ns, name, verdict, state, NULL, NULL, NULL, NULL, trials FROM methods";
/// An empty text matches everything. `instr` and not LIKE: a name may contain `%`.
const TEXT_MATCH_SQL: &str =
    "(?1 = '' OR instr(lower(name), lower(?1)) > 0 OR instr(lower(id), lower(?1)) > 0)
    AND (?2 = '' OR verdict = ?2) AND (?3 = '' OR kind = ?3)
    AND (?4 = '' OR substr(plan_sha256, 1, length(?4)) = ?4)
    AND started_wall_ns >= ?5 AND started_wall_ns < ?6";

/// Conditions of a search. An empty text matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CatalogueQuery {
    /// A part of the name or of the id; ASCII letters in any case.
    pub text: String,
    /// PASS, FAIL or INCONCLUSIVE.
    pub verdict: String,
    /// `run`, or the name of a method.
    pub kind: String,
    /// Hash of the plan, or its first characters.
    pub plan: String,
    /// Started at this time or later, ns since 1970.
    pub since_ns: Option<u64>,
    /// Started before this time, ns since 1970.
    pub before_ns: Option<u64>,
    /// Number of matching results to skip.
    pub from: usize,
    /// Maximum number of results to return.
    pub most: usize,
}

/// A page of results, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CataloguePage {
    /// Number of all matching results.
    pub matching: u64,
    /// Number of all stored results.
    pub total: u64,
    pub entries: Vec<CatalogueEntry>,
}

/// A run or a method that was found. Fields that only runs have are absent for methods, and the other way round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogueEntry {
    pub id: String,
    /// `run`, or the name of the method.
    pub kind: String,
    pub started_wall_ns: u64,
    pub name: String,
    pub verdict: String,
    /// Outcome of a run, or state of a method.
    pub outcome: String,
    pub plan_sha256: Option<String>,
    pub streams: Option<u64>,
    pub sent: Option<u64>,
    pub lost: Option<u64>,
    pub trials: Option<u64>,
}

impl RunCatalogue {
    /// Returns one page of the runs and methods that match, and the number of all that match.
    pub fn search_results(&self, query: &CatalogueQuery) -> Result<CataloguePage, Error> {
        // A catalogue of an earlier version that cannot be written has no table of methods.
        let rows = if self.is_older_than(migrations::METHODS_SCHEMA_VERSION) {
            RUN_ROWS_SQL.to_owned()
        } else {
            format!("{RUN_ROWS_SQL} UNION ALL {METHOD_ROWS_SQL}")
        };
        let parameters = params![
            query.text,
            query.verdict,
            query.kind,
            query.plan,
            clamp_to_i64(query.since_ns.unwrap_or(0)),
            // SQLite has only signed integers, so its largest one means "no limit".
            clamp_to_i64(query.before_ns.unwrap_or(u64::MAX)),
        ];
        let count = |sql: &str, parameters: &[&dyn rusqlite::ToSql]| {
            let found = self.connection.query_row(sql, parameters, |row| read_count(row, 0));
            found.map_err(|source| self.catalogue_error(source))
        };
        let total = count(&format!("SELECT count(*) FROM ({rows})"), &[])?;
        let matching = count(&format!("SELECT count(*) FROM ({rows}) WHERE {TEXT_MATCH_SQL}"), parameters)?;
        // The id as a second key makes the order total, so that pages neither repeat nor skip results that
        // started at the same time.
        let page = format!(
            "SELECT * FROM ({rows}) WHERE {TEXT_MATCH_SQL} ORDER BY started_wall_ns DESC, id DESC LIMIT {} OFFSET {}",
            clamp_to_i64(query.most as u64),
            clamp_to_i64(query.from as u64)
        );
        Ok(CataloguePage { matching, total, entries: self.query_rows(&page, parameters, read_entry)? })
    }
}

fn read_entry(row: &Row<'_>) -> rusqlite::Result<CatalogueEntry> {
    let optional =
        |column: usize| row.get::<_, Option<i64>>(column).map(|count| count.map(i64::unsigned_abs));
    Ok(CatalogueEntry {
        id: row.get(0)?,
        kind: row.get(1)?,
        started_wall_ns: read_count(row, 2)?,
        name: row.get(3)?,
        verdict: row.get(4)?,
        outcome: row.get(5)?,
        plan_sha256: row.get(6)?,
        streams: optional(7)?,
        sent: optional(8)?,
        lost: optional(9)?,
        trials: optional(10)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::report;

    #[test]
    fn catalogue_search_filters_pages_and_counts() {
        let place = tempfile::tempdir().unwrap();
        let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
        for (index, name) in ["nightly 100%", "Nightly", "other"].into_iter().enumerate() {
            let mut report = report(&format!("r{index}"));
            report.name = name.to_owned();
            report.started_wall_ns = 1000 + index as u64;
            catalogue.store_finished_run(&report, "{}").unwrap();
        }
        let ids = |query: CatalogueQuery| {
            let page = catalogue.search_results(&CatalogueQuery { most: 10, ..query }).unwrap();
            assert_eq!(page.total, 3);
            (page.matching, page.entries.into_iter().map(|entry| entry.id).collect::<Vec<_>>())
        };
        let all = CatalogueQuery::default();
        assert_eq!(ids(all.clone()).1, ["r2", "r1", "r0"], "the newest first");
        assert_eq!(ids(CatalogueQuery { text: "NIGHTLY".into(), ..all.clone() }).1, ["r1", "r0"]);
        assert_eq!(ids(CatalogueQuery { text: "0%".into(), ..all.clone() }).1, ["r0"]);
        assert_eq!(ids(CatalogueQuery { kind: "rfc2544".into(), ..all.clone() }), (0, vec![]));
        assert_eq!(ids(CatalogueQuery { from: 1, ..all.clone() }), (3, vec!["r1".into(), "r0".into()]));
        assert_eq!(ids(CatalogueQuery { since_ns: Some(1001), before_ns: Some(1002), ..all }).1, ["r1"]);
    }
}
