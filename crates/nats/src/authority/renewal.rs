//! Renews the certificate of the message server and of the enrolment server while they run.

use super::{FleetAuthority, renewal_due_time};
use crate::broker::{self, MessageServer, ServerSecurity};
use crate::enrol::{self, EnrolServer};
use std::sync::Arc;

/// Renews the server certificate after two thirds of its lifetime. The callers pass in the time.
#[derive(Debug)]
pub struct ServerCertificateRenewer {
    authority: Arc<FleetAuthority>,
    names: Vec<String>,
    security: ServerSecurity,
    due: u64,
    is_known_to_broker: bool,
}

/// Reasons why the server certificate was not renewed, or why a server still uses the old one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenewalError {
    /// The authority did not issue a certificate.
    #[error(transparent)]
    Authority(#[from] super::Error),
    /// The message server does not use the new certificate.
    #[error(transparent)]
    Broker(#[from] broker::Error),
    /// The enrolment server does not use the new certificate.
    #[error(transparent)]
    Door(#[from] enrol::Error),
}

impl ServerCertificateRenewer {
    /// Issues a certificate for these addresses and names at `now` (seconds since 1970).
    pub fn with_new_certificate(
        authority: Arc<FleetAuthority>,
        names: Vec<String>,
        now: u64,
    ) -> Result<Self, super::Error> {
        let security = authority.issue_server_certificate_at(&names, now)?;
        Ok(Self { authority, names, security, due: renewal_due_time(now), is_known_to_broker: true })
    }

    /// The current certificate, with which the message server and the enrolment server are started.
    pub const fn security(&self) -> &ServerSecurity {
        &self.security
    }

    /// Renews the certificate if it is due, and makes the enrolment server and the message server (if there is one) use
    /// it. Returns true if they use a new certificate from now on. Existing connections continue. After an error, the
    /// next call repeats the step that failed.
    pub fn renew_certificate_if_due(
        &mut self,
        now: u64,
        broker: Option<&MessageServer>,
        door: &EnrolServer,
    ) -> Result<bool, RenewalError> {
        if now >= self.due {
            self.security = self.authority.issue_server_certificate_at(&self.names, now)?;
            self.due = renewal_due_time(now);
            self.is_known_to_broker = false;
        }
        if self.is_known_to_broker {
            return Ok(false);
        }
        // If the message server fails below, the next call gives this server the same certificate again.
        door.renew_certificate(&self.security)?;
        if let Some(broker) = broker {
            broker.reload_configuration(&self.authority.load_system_user_credentials()?)?;
        }
        self.is_known_to_broker = true;
        Ok(true)
    }
}
