//! Asks the server questions about itself, in its system account.

use super::{BrokerSetup, Error, configuration};
use crate::authority::{ACCOUNT_REMOVAL_USER, SERVER_FACTS_SUBJECT};
use crate::connection::{self, ConnectionFailures, FleetCredentials, ServerAccess};
use crate::runtime::SharedRuntime;
use serde_json::Value;
use std::time::Duration;

/// Time within which the server must answer.
const SERVER_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends a question on `subject`, on a new connection, and returns the answer as JSON.
pub(super) fn query_server(
    setup: &BrokerSetup,
    as_whom: &FleetCredentials,
    subject: &'static str,
    question: String,
) -> Result<Value, String> {
    let server = configuration::reachable_address(setup.listen).to_string();
    let access = ServerAccess::for_server(server, Some(as_whom.clone()));
    // Callers are synchronous and ask rarely, so each question starts its own runtime.
    let runtime = SharedRuntime::start_thread().map_err(|error| error.to_string())?;
    let asking = async move {
        let client =
            connection::open_client(access, ACCOUNT_REMOVAL_USER.to_owned(), ConnectionFailures::default())
                .await;
        let client = client.map_err(|error| error.to_string())?;
        let answer = client.request(subject, question.into()).await.map_err(|error| error.to_string())?;
        // An answer that is not JSON is read as `null`, in which the callers find no values.
        Ok(serde_json::from_slice(&answer.payload).unwrap_or_default())
    };
    let answer = runtime.run_with_timeout(SERVER_ANSWER_TIMEOUT, asking);
    answer.unwrap_or_else(|| Err("the server did not answer".to_owned()))
}

/// Time at which the server last read its configuration, in the server's own format; an error if the
/// server cannot be queried.
pub(super) fn query_configuration_time(
    setup: &BrokerSetup,
    as_whom: &FleetCredentials,
) -> Result<String, Error> {
    let facts = query_server(setup, as_whom, SERVER_FACTS_SUBJECT, String::new());
    let facts = facts.map_err(|why| Error::NotReady(format!("it does not report its state: {why}")))?;
    let time = facts["data"]["config_load_time"].as_str();
    time.map(str::to_owned).ok_or_else(|| Error::NotReady(format!("it does not report its state: {facts}")))
}
