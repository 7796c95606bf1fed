//! Errors of requests to the kernel: the call that failed, its object, and the remedy.

/// A failed request to the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{call} failed on {object}: {source}{}", remedy.map(|r| format!("; {r}")).unwrap_or_default())]
    Call {
        call: &'static str,
        /// Object of the call: interface, namespace, file.
        object: String,
        source: std::io::Error,
        remedy: Option<&'static str>,
    },
    /// There is no interface or namespace of that name, or no interface with that number.
    #[error("{}; {remedy}", describe_missing(what, name))]
    Missing {
        /// Interface or network namespace.
        what: &'static str,
        /// The name that was given; for a number, `number 5`.
        name: String,
        /// Command that lists the existing ones.
        remedy: &'static str,
    },
    /// Another process holds the object.
    #[error("{object} is in use by {}", holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}")))]
    Busy {
        object: String,
        /// Number of the process that holds the object; `None` if it cannot be found out.
        holder: Option<i32>,
    },
    /// Neither of the two ways to find the user of a connection works on this kernel.
    #[error(
        "cannot find the user of a local connection: neither SOCK_DIAG nor /proc/net/tcp shows it: {source}"
    )]
    UnknownOwner { source: std::io::Error },
    /// The kernel or driver lacks a feature.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedFeature),
}

impl Error {
    pub(crate) fn from_call(
        call: &'static str,
        object: impl Into<String>,
        source: impl Into<std::io::Error>,
    ) -> Self {
        Self::Call { call, object: object.into(), source: source.into(), remedy: None }
    }

    /// The error of the system call that has just failed.
    pub(crate) fn last_os_error(call: &'static str, object: impl Into<String>) -> Self {
        Self::from_call(call, object, std::io::Error::last_os_error())
    }

    /// Adds the remedy `cure` if the call failed because rights are missing.
    pub(crate) fn with_rights(mut self, cure: &'static str) -> Self {
        if let Self::Call { source, remedy, .. } = &mut self
            && matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES))
        {
            *remedy = Some(cure);
        }
        self
    }

    /// Returns true if the call failed because rights are missing.
    pub fn is_permission_error(&self) -> bool {
        matches!(self.errno(), Some(libc::EPERM | libc::EACCES))
    }

    /// The error number of the failed call; `None` if the error is not from a system call.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

// No interface has a blank in its name, so `number 5` can only be the number of an interface.
fn describe_missing(what: &str, name: &str) -> String {
    match name.strip_prefix("number ").filter(|_| what == "interface") {
        Some(number) => format!("no interface has the number {number}"),
        None => format!("no {what} named `{name}`"),
    }
}

/// Drops the result of a request that may fail without harm; a comment at the call says why.
pub(crate) fn ignore_failure<T, E>(_attempt: Result<T, E>) {}

/// Something this machine cannot do; the only valid reason to skip a test.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{feature} needs {needs}; found {found}")]
pub struct UnsupportedFeature {
    pub feature: &'static str,
    pub needs: String,
    pub found: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_call_object_reason_and_cure() {
        let error = Error::from_call("socket", "eth1", std::io::Error::from_raw_os_error(libc::EPERM));
        assert!(error.is_permission_error());
        let text = error.with_rights("run as root").to_string();
        assert!(text.starts_with("socket failed on eth1: ") && text.ends_with("; run as root"), "{text}");
    }

    #[test]
    fn rights_remedy_is_not_offered_for_other_errors() {
        let error = Error::from_call("socket", "eth1", std::io::Error::from_raw_os_error(libc::ENODEV));
        assert!(!error.with_rights("run as root").to_string().contains("run as root"));
    }

    #[test]
    fn missing_interface_is_described_by_name_or_number() {
        let missing = |name: &str| {
            Error::Missing { what: "interface", name: name.into(), remedy: "`ip link` lists the interfaces" }
                .to_string()
        };
        assert_eq!(missing("eth9"), "no interface named `eth9`; `ip link` lists the interfaces");
        assert_eq!(missing("number 5"), "no interface has the number 5; `ip link` lists the interfaces");
    }

    #[test]
    fn the_holder_is_named_when_it_is_known() {
        let busy = |holder| Error::Busy { object: "eth1".into(), holder }.to_string();
        assert_eq!(busy(Some(7)), "eth1 is in use by process 7");
        assert_eq!(busy(None), "eth1 is in use by another process");
    }
}
