//! Changes, adds and removes flows of a configuration. The functions are pure: each returns a new
//! configuration, or all problems.

use crate::tester::{RefusalKind, TesterRefusal};
use serde_json::Value;
use std::collections::HashSet;

/// Sets the properties (rate, size) that `update` lists, in the flows that it names.
pub(super) fn update_flows(mut config: Value, update: &Value) -> Result<Value, TesterRefusal> {
    if update.get("protocols").is_some() {
        return Err(TesterRefusal::validation(
            "protocols: not supported; only rates and sizes of flows can be updated",
        ));
    }
    let update = &update["flows"];
    let properties: Vec<&str> =
        list_items(&update["property_names"]).iter().filter_map(Value::as_str).collect();
    let mut errors = Vec::new();
    if properties.is_empty() {
        errors.push("flows.property_names: required: list the properties to update (rate, size)".to_owned());
    }
    for (index, change) in list_items(&update["flows"]).iter().enumerate() {
        let name = flow_name(change);
        let flows = config.get_mut("flows").and_then(Value::as_array_mut);
        let Some(flow) = flows.into_iter().flatten().find(|flow| flow_name(flow) == name) else {
            errors.push(format!("flows.flows[{index}].name: there is no flow `{name}`"));
            continue;
        };
        // OTG: only the members in `property_names` change. Other members of the sent flow are ignored.
        for property in &properties {
            match change.get(property) {
                // The value is used unchanged: the whole new configuration is read and checked afterwards.
                Some(value) => flow[property] = value.clone(),
                None => errors.push(format!(
                    "flows.flows[{index}].{property}: required, because `property_names` lists it"
                )),
            }
        }
    }
    config_or_errors(config, errors)
}

/// Adds the flows of `append` after the existing ones.
pub(super) fn append_flows(mut config: Value, append: Value) -> Result<Value, TesterRefusal> {
    let mut errors = Vec::new();
    let mut names: HashSet<String> = flow_names(&config).map(str::to_owned).collect();
    let mut new = Vec::new();
    for (place, resources) in list_items(&append["config_append_list"]).iter().enumerate() {
        for (index, flow) in list_items(&resources["flows"]).iter().enumerate() {
            let name = flow_name(flow);
            // New names must also differ from each other, so each one is added to the set.
            if !names.insert(name.to_owned()) {
                errors.push(format!(
                    "config_append_list[{place}].flows[{index}].name: there is already a flow `{name}`"
                ));
            }
            new.push(flow.clone());
        }
    }
    // `config["flows"]` adds a `null` if the configuration has no flows. The `else` branch replaces it.
    if let Some(flows) = config["flows"].as_array_mut() {
        flows.extend(new);
    } else if let Some(config) = config.as_object_mut() {
        config.insert("flows".into(), Value::Array(new));
    }
    config_or_errors(config, errors)
}

/// Removes the flows that `delete` names.
pub(super) fn delete_flows(mut config: Value, delete: &Value) -> Result<Value, TesterRefusal> {
    let known: HashSet<&str> = flow_names(&config).collect();
    let mut errors = Vec::new();
    let mut gone: HashSet<String> = HashSet::new();
    for (place, resources) in list_items(&delete["config_delete_list"]).iter().enumerate() {
        for (index, name) in list_items(&resources["flows"]).iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            if !known.contains(name) {
                errors.push(format!("config_delete_list[{place}].flows[{index}]: there is no flow `{name}`"));
            }
            gone.insert(name.to_owned());
        }
    }
    if let Some(flows) = config.get_mut("flows").and_then(Value::as_array_mut) {
        // The flows are removed even if there are errors, because the result is then dropped.
        flows.retain(|flow| !gone.contains(flow_name(flow)));
    }
    config_or_errors(config, errors)
}

fn config_or_errors(config: Value, errors: Vec<String>) -> Result<Value, TesterRefusal> {
    // A change is made completely or not at all. OTG does not define the state after a failed append or delete.
    if errors.is_empty() { Ok(config) } else { Err(TesterRefusal { kind: RefusalKind::Validation, errors }) }
}

fn flow_names(config: &Value) -> impl Iterator<Item = &str> {
    list_items(&config["flows"]).iter().map(flow_name)
}

fn list_items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn flow_name(flow: &Value) -> &str {
    flow["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> Value {
        json!({"ports": [], "flows": [{"name": "a", "rate": {"pps": "1"}}, {"name": "b"}]})
    }

    #[test]
    fn rates_and_sizes_are_updated() {
        let change = json!({"flows": {"property_names": ["rate"], "flows": [{"name": "a", "rate": {"pps": "9"}, "size": {}}]}});
        let after = update_flows(config(), &change).expect("updates");
        assert_eq!(after["flows"][0], json!({"name": "a", "rate": {"pps": "9"}}));
        let bad = json!({"flows": {"property_names": ["size"], "flows": [{"name": "x"}, {"name": "b"}]}});
        let errors = update_flows(config(), &bad).expect_err("refused").errors;
        assert!(errors[0].starts_with("flows.flows[0].name") && errors[1].starts_with("flows.flows[1].size"));
        assert!(update_flows(config(), &json!({"protocols": {}})).is_err());
    }

    #[test]
    fn config_flows_are_added_and_removed() {
        let more = json!({"config_append_list": [{"choice": "flows", "flows": [{"name": "c"}]}]});
        let after = append_flows(config(), more).expect("appends");
        assert_eq!(flow_names(&after).collect::<Vec<_>>(), ["a", "b", "c"]);
        let twice = json!({"config_append_list": [{"flows": [{"name": "d"}, {"name": "d"}]}, {"flows": [{"name": "a"}]}]});
        assert_eq!(append_flows(config(), twice).expect_err("refused").errors.len(), 2);
        let less = json!({"config_delete_list": [{"flows": ["a"]}]});
        assert_eq!(flow_names(&delete_flows(after, &less).expect("deletes")).collect::<Vec<_>>(), ["b", "c"]);
        assert!(delete_flows(config(), &json!({"config_delete_list": [{"flows": ["z"]}]})).is_err());
        let into_nothing =
            append_flows(json!({}), json!({"config_append_list": [{"flows": [{"name": "c"}]}]}));
        assert_eq!(flow_names(&into_nothing.expect("appends")).collect::<Vec<_>>(), ["c"]);
    }
}
