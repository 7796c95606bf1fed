//! What a client sets becomes a document and a plan: with the real locations of ports, and as what the open run follows.

use super::names::ConfigurationNames;
use super::refusals::warnings;
use super::{ChangeState, TestConsole};
use crate::tester::TesterRefusal;
use packetrig_fleet::served::RunSource;
use packetrig_plan::{PlanChange, PlanDocument};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Puts the real locations of ports into a document that may have other names for them.
pub fn replace_aliases(document: &mut Value, aliases: &BTreeMap<String, String>) {
    let ports = document.get_mut("ports").and_then(Value::as_array_mut);
    for location in ports.into_iter().flatten().filter_map(|port| port.get_mut("location")) {
        let alias = location.as_str().and_then(|alias| aliases.get(alias));
        if let Some(meant) = alias {
            *location = Value::String(meant.clone());
        }
    }
}

impl<R: RunSource> TestConsole<R> {
    /// The document of a configuration, with locations instead of aliases.
    pub(super) fn read(&self, config: &Value) -> Result<PlanDocument, TesterRefusal> {
        Ok(PlanDocument::read(self.text_with_locations(config), self.rigs.reading())?)
    }

    /// Clients get the locations back that they sent; only this text has the real ones.
    fn text_with_locations(&self, config: &Value) -> String {
        // As values, a document takes many times its length: so it is copied only where something is replaced.
        if self.aliases.is_empty() {
            return config.to_string();
        }
        let mut document = config.clone();
        replace_aliases(&mut document, &self.aliases);
        document.to_string()
    }

    /// Makes the open run follow `config` from now on.
    pub(super) fn replan(
        &self,
        changes: &mut ChangeState,
        config: Value,
    ) -> Result<Vec<String>, TesterRefusal> {
        let document = self.read(&config)?;
        let warnings = warnings(document.plan());
        let Some(run) = &mut changes.run else {
            return Err(TesterRefusal::validation("there is no configuration to change"));
        };
        // Before the view changes: if the run refuses, clients still see the old configuration.
        run.steer(PlanChange::Replan(document))?;
        let plan = run.plan();
        let mut view = self.view();
        let names = ConfigurationNames::new(&config, &plan);
        view.live().hide(names.streams_unknown_to(&view.names));
        view.names = Arc::new(names);
        view.config = config.to_string();
        view.plan = Some(plan);
        Ok(warnings)
    }
}
