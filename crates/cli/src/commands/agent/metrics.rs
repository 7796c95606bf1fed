//! `--metrics` of a node: whether it reaches its fleet, how many results wait on its disk, and
//! when its certificate expires.

use super::NodeHome;
use super::membership::CertificateExpiry;
use crate::args::AgentArgs as Arguments;
use crate::error::Error;
use crate::output::print_remark;
use packetrig_engine::gate::SendGate;
use packetrig_fleet_io::{ResultUplink, UplinkObserver, UplinkStatus};
use packetrig_nats::{ConnectionWatch, NatsEndpoint};
use packetrig_program::metrics::MetricsResponder;
use packetrig_program::sandbox::ThreadConfinement;
use packetrig_report::NodeName;
use packetrig_sys::{clock, disk};
use packetrig_units::Nanos;
use packetrig_units::exposition::MetricsText;
use std::path::PathBuf;

/// Sources of a node's metrics. Each can be read at any time, without delaying the agent's loop.
pub(super) struct NodeObserver {
    node: NodeName,
    expiry: CertificateExpiry,
    spool: PathBuf,
    spool_limit: u64,
    started_ns: u64,
    connection: ConnectionWatch,
    uplink: UplinkObserver,
    gate: SendGate,
}

/// Values of a node that one scrape of the metrics returns.
struct NodeState {
    elapsed: Nanos,
    is_connected: bool,
    certificate_expires: Option<u64>,
    uplink: UplinkStatus,
    spool_limit: u64,
    disk_free: Option<u64>,
    lease: Option<Nanos>,
}

impl NodeObserver {
    pub(super) fn new(
        arguments: &Arguments,
        home: &NodeHome,
        expiry: &CertificateExpiry,
        (node, endpoint): (&NodeName, &NatsEndpoint),
        (uplink, gate): (&ResultUplink, &SendGate),
    ) -> Self {
        Self {
            node: node.clone(),
            expiry: expiry.clone(),
            spool: home.file_path("spool"),
            spool_limit: arguments.spool.saturating_mul(1 << 20),
            started_ns: clock::monotonic_ns(),
            connection: endpoint.connection_watch(),
            uplink: uplink.observer(),
            gate: gate.clone(),
        }
    }

    /// Starts a thread that serves the metrics if `--metrics` is given. It has none of the capabilities that runs need.
    pub(super) fn serve_if_requested(
        self,
        arguments: &Arguments,
        confinement: &ThreadConfinement,
    ) -> Result<Option<MetricsResponder>, Error> {
        let Some(listen) = arguments.metrics else { return Ok(None) };
        let responder = confinement.run_confined_listener(listen.0.port(), || {
            MetricsResponder::start_serving(listen.0, move || {
                format_node_metrics(&self.node.0, &self.read_state())
            })
        })??;
        print_remark(format_args!("agent: metrics at http://{}/metrics", responder.address()));
        Ok(Some(responder))
    }

    fn read_state(&self) -> NodeState {
        NodeState {
            elapsed: Nanos::new(clock::monotonic_ns() - self.started_ns),
            is_connected: self.connection.is_connected(),
            certificate_expires: self.expiry.read_expiry_seconds(),
            uplink: self.uplink.read_status(),
            spool_limit: self.spool_limit,
            disk_free: disk::free_bytes(&self.spool).ok(),
            lease: self.gate.remaining_time(),
        }
    }
}

fn format_node_metrics(node: &str, state: &NodeState) -> String {
    let mut text = MetricsText::with_prefix("packetrig_agent_");
    text.write_metric("info", "The name of the node.", |samples| {
        samples.add_sample(&[("node", node)], 1_u64);
    });
    text.write_value(
        "elapsed_seconds",
        "Time since the worker first connected to its fleet.",
        state.elapsed.as_secs_f64(),
    );
    text.write_value(
        "connected",
        "1 while this node is connected to the message server of its fleet.",
        u64::from(state.is_connected),
    );
    text.write_value(
        "certificate_expiry_timestamp_seconds",
        "Expiry of the certificate of this node, in seconds since 1970.",
        state.certificate_expires,
    );
    text.write_value(
        "lease_remaining_seconds",
        "Time for which senders may still send; 0 if there is no lease, or if it has expired.",
        state.lease.map(Nanos::as_secs_f64),
    );
    let uplink = &state.uplink;
    text.write_value("runs_begun_total", "Run attempts that this node began.", uplink.begun_runs);
    text.write_value("runs_finished_total", "Run attempts that ended with a result.", uplink.finished_runs);
    text.write_value(
        "spool_waiting_segments",
        "Result segments that the controller does not have yet.",
        uplink.waiting_segments,
    );
    text.write_value("spool_used_bytes", "Disk space of result segments in the spool.", uplink.used_bytes);
    text.write_value("spool_limit_bytes", "Disk space that results may use (--spool).", state.spool_limit);
    text.write_value(
        "spool_blocked",
        "1 while results cannot be sent to the controller.",
        u64::from(uplink.is_blocked),
    );
    text.write_value("disk_free_bytes", "Free space of the disk with the results.", state.disk_free);
    text.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_metrics_omit_unknown_expiry() {
        let uplink = UplinkStatus {
            begun_runs: 3,
            finished_runs: 2,
            waiting_segments: 1,
            used_bytes: 4096,
            is_blocked: false,
        };
        let state = NodeState {
            elapsed: Nanos::from_secs(5),
            is_connected: true,
            certificate_expires: None,
            uplink,
            spool_limit: 1 << 20,
            disk_free: Some(7),
            lease: Some(Nanos::ZERO),
        };
        let text = format_node_metrics("rack2", &state);
        for line in [
            "packetrig_agent_info{node=\"rack2\"} 1",
            "packetrig_agent_connected 1",
            "packetrig_agent_runs_begun_total 3",
            "packetrig_agent_lease_remaining_seconds 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("\npacketrig_agent_certificate_expiry"), "{text}");
    }
}
