//! Reads a client's configuration into a plan with the real locations of ports, and opens or changes the run for it.

use super::live::LiveCounts;
use super::names::ConfigurationNames;
use super::refusals::plan_warnings;
use super::{ChangeState, ClientView, TestConsole};
use crate::shape;
use crate::tester::TesterRefusal;
use packetrig_fleet::served::RunSource;
use packetrig_plan::{PlanChange, PlanDocument};
use packetrig_report::event::RunEvent;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Replaces the aliases of port locations in a document by the real locations.
pub fn replace_aliases(document: &mut Value, aliases: &BTreeMap<String, String>) {
    let ports = document.get_mut("ports").and_then(Value::as_array_mut);
    for location in ports.into_iter().flatten().filter_map(|port| port.get_mut("location")) {
        let alias = location.as_str().and_then(|alias| aliases.get(alias));
        if let Some(meant) = alias {
            *location = Value::String(meant.clone());
        }
    }
}

/// Names and plan of a configuration without errors.
pub(super) struct ParsedConfiguration {
    pub(super) names: ConfigurationNames,
    /// The configuration with the real locations of ports.
    pub(super) document: PlanDocument,
}

impl<R: RunSource> TestConsole<R> {
    /// Reads the names and the plan of a normalised configuration. Fails if the plan has errors.
    fn read_config(&self, config: &Arc<str>) -> Result<ParsedConfiguration, TesterRefusal> {
        let document = self.read_document(Arc::clone(config))?;
        Ok(ParsedConfiguration { names: ConfigurationNames::without_routes(config), document })
    }

    /// Reads the plan of a configuration, with aliases replaced by real locations.
    pub(super) fn read_document(&self, config: Arc<str>) -> Result<PlanDocument, TesterRefusal> {
        // Without aliases the text is shared: a copy of it may have many megabytes.
        let with_locations = if self.aliases.is_empty() {
            config
        } else {
            let copied = shape::copy_config(config.as_bytes(), &self.aliases);
            copied.map_err(|error| TesterRefusal::validation(error.to_string()))?.into()
        };
        Ok(PlanDocument::read_text(with_locations, self.rigs.plan_parse_options())?)
    }

    /// Ends the open run, and opens a run for `config`. Returns the warnings of the plan. An empty configuration only
    /// ends the open run.
    pub(super) fn replace_config(
        &self,
        changes: &mut ChangeState,
        config: Arc<str>,
    ) -> Result<Vec<String>, TesterRefusal> {
        // Scripts clean up with an empty configuration: it ends the run and opens nothing.
        if &*config == "{}" {
            self.end_run(changes);
            return Ok(Vec::new());
        }
        // The document is read before the old run ends: a configuration with errors changes nothing. The old
        // run must end before the new one opens its ports.
        let ParsedConfiguration { names, document } = self.read_config(&config)?;
        self.end_run(changes);
        let plan = Arc::clone(document.plan());
        let warnings = plan_warnings(&plan);
        // The counts are created before the run, because the run's first events come while it is being opened.
        let live = Arc::new(Mutex::new(LiveCounts::default()));
        let sink = {
            let live = Arc::clone(&live);
            Box::new(move |event: &RunEvent| {
                live.lock().unwrap_or_else(PoisonError::into_inner).on_event(event);
            })
        };
        // After a failure there is no configuration: the old run has ended, and its ports are closed.
        changes.run = Some(self.rigs.open_steered_run(document, sink)?);
        let names = Arc::new(names.with_routes(&plan));
        // Numbers start from 1, because 0 means that there is no configuration.
        let number = self.configured.fetch_add(1, Ordering::Relaxed) + 1;
        *self.lock_view() = ClientView { names, config, number, plan: Some(plan), live };
        Ok(warnings)
    }

    /// Changes the open run to `config` without closing it. Returns the warnings of the plan.
    pub(super) fn apply_config_to_run(
        &self,
        changes: &mut ChangeState,
        config: Arc<str>,
    ) -> Result<Vec<String>, TesterRefusal> {
        let ParsedConfiguration { names, document } = self.read_config(&config)?;
        let warnings = plan_warnings(document.plan());
        let Some(run) = &mut changes.run else {
            return Err(TesterRefusal::validation("there is no configuration to change; set one first"));
        };
        // The run changes before the view: if the run refuses, clients still see the old configuration.
        run.make_change(PlanChange::Replan(document))?;
        let plan = run.plan();
        let mut view = self.lock_view();
        let names = names.with_routes(&plan);
        // A new flow may have the name of a removed one, and must not show its counts.
        view.lock_live().hide_stream_counts(names.streams_unknown_to(&view.names));
        view.names = Arc::new(names);
        view.config = config;
        view.plan = Some(plan);
        Ok(warnings)
    }
}
