//! OTG documents, made as plainly as a user writes them.

use serde_json::{Value, json};

/// A document of ports and flows. Port `n` is called `port n`.
#[derive(Clone, Debug)]
pub struct Document(Value);

impl Document {
    /// Ports at these locations, nothing to send yet. A busy machine may hold the sender up: that is no fault of what is tested.
    pub fn new(locations: &[String]) -> Self {
        let port = |(n, location)| json!({"name": format!("port {n}"), "location": location});
        let ports: Vec<Value> = locations.iter().enumerate().map(port).collect();
        Self(json!({"ports": ports, "flows": [], "x_criteria": {"max_late": "5s"}}))
    }

    /// With one more flow.
    #[must_use]
    pub fn flow(mut self, flow: Flow) -> Self {
        if let Some(flows) = self.0["flows"].as_array_mut() {
            flows.push(flow.0);
        }
        self
    }

    /// With these flows.
    #[must_use]
    pub fn flows(self, flows: impl IntoIterator<Item = Flow>) -> Self {
        flows.into_iter().fold(self, Self::flow)
    }

    /// With a top-level object set.
    #[must_use]
    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.0[key] = value;
        self
    }

    /// With what `port` receives captured.
    #[must_use]
    pub fn capture(self, port: usize, format: &str) -> Self {
        let capture = json!([{"name": "capture", "port_names": [format!("port {port}")], "format": format}]);
        self.with("captures", capture)
    }

    /// As JSON, which is YAML, too.
    pub fn text(&self) -> String {
        self.0.to_string()
    }
}

/// A flow from port 0 to port 1 of 100 measured frames of 128 bytes, IPv4 and UDP, at 1000 frames per second, unless
/// said otherwise.
#[derive(Clone, Debug)]
pub struct Flow(Value);

impl Flow {
    /// A flow whose source address ends with `key`, by which the reference device knows it.
    pub fn new(name: impl Into<String>, key: u16) -> Self {
        let name: String = name.into();
        Self(json!({
            "name": name,
            "tx_rx": {"choice": "port", "port": {"tx_name": "port 0", "rx_names": ["port 1"]}},
            "packet": [ethernet(key), ipv4(), udp()],
            "size": {"choice": "fixed", "fixed": 128},
            "rate": {"choice": "pps", "pps": 1000},
            "duration": {"choice": "fixed_packets", "fixed_packets": {"packets": 100}},
            "metrics": {"enable": true, "loss": true, "timestamps": true, "latency": {"enable": true, "mode": "cut_through"}},
        }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.0["name"].as_str().unwrap_or_default()
    }

    /// With a member set.
    #[must_use]
    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.0[key] = value;
        self
    }

    /// From one port to others.
    #[must_use]
    pub fn between(self, from: usize, to: &[usize]) -> Self {
        let to: Vec<String> = to.iter().map(|n| format!("port {n}")).collect();
        let ends = json!({"choice": "port", "port": {"tx_name": format!("port {from}"), "rx_names": to}});
        self.with("tx_rx", ends)
    }

    /// These headers.
    #[must_use]
    pub fn packet(self, headers: impl IntoIterator<Item = Value>) -> Self {
        self.with("packet", headers.into_iter().collect())
    }

    /// Frames of one size.
    #[must_use]
    pub fn size(self, bytes: u32) -> Self {
        self.with("size", json!({"choice": "fixed", "fixed": bytes}))
    }

    /// Frames per second.
    #[must_use]
    pub fn pps(self, pps: u64) -> Self {
        self.with("rate", json!({"choice": "pps", "pps": pps}))
    }

    /// That many frames.
    #[must_use]
    pub fn packets(self, packets: u64) -> Self {
        self.with("duration", json!({"choice": "fixed_packets", "fixed_packets": {"packets": packets}}))
    }
}

/// Ethernet header with a source address that ends with `key`.
pub fn ethernet(key: u16) -> Value {
    let [high, low] = key.to_be_bytes();
    json!({"choice": "ethernet", "ethernet": {
        "src": value(format!("02:00:00:00:{high:02x}:{low:02x}")), "dst": value("02:00:00:01:00:01")}})
}

/// VLAN header.
pub fn vlan(id: u16) -> Value {
    json!({"choice": "vlan", "vlan": {"id": value(id)}})
}

/// IPv4 header with addresses set aside for benchmarks.
pub fn ipv4() -> Value {
    json!({"choice": "ipv4", "ipv4": {"src": value("198.18.0.1"), "dst": value("198.19.0.1")}})
}

/// IPv6 header with addresses set aside for benchmarks.
pub fn ipv6() -> Value {
    json!({"choice": "ipv6", "ipv6": {"src": value("2001:2::1"), "dst": value("2001:2:0:1::1")}})
}

/// UDP header.
pub fn udp() -> Value {
    json!({"choice": "udp", "udp": {"src_port": value(10000), "dst_port": value(20000)}})
}

/// TCP header.
pub fn tcp() -> Value {
    json!({"choice": "tcp", "tcp": {"src_port": value(10000), "dst_port": value(20000)}})
}

/// The pattern of one value.
pub fn value(value: impl Into<Value>) -> Value {
    json!({"choice": "value", "value": value.into()})
}
