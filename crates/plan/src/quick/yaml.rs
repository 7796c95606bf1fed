//! Writes documents as people do: block YAML.

use serde_json::{Map, Value};

/// Writes a JSON value as block YAML. Strings are quoted as JSON, which YAML reads the same way.
pub(crate) fn write_yaml(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(members) if !members.is_empty() => write_yaml_object(members, indent, false, out),
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                out.push_str(&" ".repeat(indent));
                out.push_str("- ");
                match item {
                    Value::Object(members) if !members.is_empty() => {
                        write_yaml_object(members, indent + 2, true, out);
                    }
                    other => {
                        out.push_str(&other.to_string());
                        out.push('\n');
                    }
                }
            }
        }
        other => {
            out.push_str(&other.to_string());
            out.push('\n');
        }
    }
}

fn write_yaml_object(members: &Map<String, Value>, indent: usize, begun: bool, out: &mut String) {
    // `name` and `choice` come first, as people write documents.
    let mut ordered: Vec<_> = members.iter().collect();
    // A stable sort: all other members keep their order.
    ordered.sort_by_key(|(key, _)| ["name", "choice"].iter().position(|first| first == key).unwrap_or(2));
    for (index, (key, value)) in ordered.into_iter().enumerate() {
        if index > 0 || !begun {
            out.push_str(&" ".repeat(indent));
        }
        out.push_str(key);
        let is_block = matches!(value, Value::Object(m) if !m.is_empty())
            || matches!(value, Value::Array(a) if !a.is_empty());
        out.push_str(if is_block { ":\n" } else { ": " });
        // A list may begin at the indentation of its key, as people usually write it.
        let deeper = if value.is_array() { indent } else { indent + 2 };
        write_yaml(value, deeper, out);
    }
}
