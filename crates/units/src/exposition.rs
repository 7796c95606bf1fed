//! Writes metrics in the text format of Prometheus (exposition format 0.0.4).

use std::fmt::Write;

/// Media type of the text, for the HTTP response to Prometheus.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text of all metrics, while it is being written.
#[derive(Clone, Debug)]
pub struct MetricsText {
    prefix: &'static str,
    text: String,
}

/// Writes the samples of one metric.
#[derive(Debug)]
pub struct MetricSamples<'a> {
    prefix: &'static str,
    name: &'a str,
    text: &'a mut String,
}

/// Value of a sample: a number, or an optional number. An unknown value is left out, because a 0 would look measured.
pub trait MetricValue {
    /// Returns the number as text; `None` if it is unknown.
    fn format_if_known(self) -> Option<String>;
}

impl MetricValue for u64 {
    fn format_if_known(self) -> Option<String> {
        Some(self.to_string())
    }
}

impl MetricValue for usize {
    fn format_if_known(self) -> Option<String> {
        Some(self.to_string())
    }
}

impl MetricValue for f64 {
    fn format_if_known(self) -> Option<String> {
        // The number is written without an exponent, however large it is.
        Some(self.to_string())
    }
}

impl<V: MetricValue> MetricValue for Option<V> {
    fn format_if_known(self) -> Option<String> {
        self.and_then(MetricValue::format_if_known)
    }
}

impl MetricsText {
    /// Begins an empty text. The name of each metric will get this prefix.
    pub fn with_prefix(prefix: &'static str) -> Self {
        Self { prefix, text: String::with_capacity(8192) }
    }

    /// Writes a metric; `fill` adds its samples. A metric is a counter if its name ends in `_total`, otherwise a gauge.
    pub fn write_metric(&mut self, name: &str, help: &str, fill: impl FnOnce(&mut MetricSamples<'_>)) {
        let Self { prefix, text } = self;
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        write_infallibly(text, format_args!("# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}\n"));
        fill(&mut MetricSamples { prefix, name, text });
    }

    /// Writes a metric that has one sample, without labels.
    pub fn write_value(&mut self, name: &str, help: &str, value: impl MetricValue) {
        self.write_metric(name, help, |samples| samples.add_sample(&[], value));
    }

    pub fn into_text(self) -> String {
        self.text
    }
}

impl MetricSamples<'_> {
    /// Adds a sample with these labels; an unknown value adds none.
    pub fn add_sample(&mut self, labels: &[(&str, &str)], value: impl MetricValue) {
        let Some(value) = value.format_if_known() else { return };
        let pairs: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape_label(value))).collect();
        let braces = if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) };
        let Self { prefix, name, text } = self;
        write_infallibly(text, format_args!("{prefix}{name}{braces} {value}\n"));
    }
}

fn write_infallibly(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("writing to text cannot fail");
}

/// Escapes the value of a label: users choose names of ports and files. The format escapes backslash, quote and line
/// break, and nothing else.
fn escape_label(value: &str) -> String {
    // Backslashes are replaced first: otherwise the backslashes of the other escapes would be escaped again.
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_a_kind_by_name_and_escaped_labels() {
        let mut text = MetricsText::with_prefix("rig_");
        text.write_metric("frames_total", "Frames.", |samples| {
            samples.add_sample(&[("port", "a\"b\\\n"), ("node", "")], 7_u64);
            samples.add_sample(&[("port", "unknown")], None::<u64>);
        });
        text.write_value("seconds", "Time.", 1.5);
        assert_eq!(
            text.into_text(),
            "# HELP rig_frames_total Frames.\n# TYPE rig_frames_total counter\n\
             rig_frames_total{port=\"a\\\"b\\\\\\n\",node=\"\"} 7\n\
             # HELP rig_seconds Time.\n# TYPE rig_seconds gauge\nrig_seconds 1.5\n"
        );
    }
}
