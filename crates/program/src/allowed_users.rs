//! Checks the users that `--allow-user` gives access to a service by their number.

use crate::Error;

/// Fails if `users` contains the overflow user ID, because every user without a mapping in this user namespace has this
/// number. `token_option` names the option with the access token of the service, for advice in the message.
pub fn check_allowed_users(users: &[u32], overflow: u32, token_option: Option<&str>) -> Result<(), Error> {
    if users.contains(&overflow) {
        let token = token_option
            .map(|name| format!(", or let the client use the access token ({name})"))
            .unwrap_or_default();
        return Err(Error::Usage(format!(
            "--allow-user {overflow}: the kernel uses this number for every user without a mapping in this \
             user namespace; run the client as another user{token}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_user_is_refused_by_allow_list() {
        assert!(check_allowed_users(&[0, 1000], 65534, None).is_ok());
        let refused =
            |token| check_allowed_users(&[1000, 65534], 65534, token).expect_err("it is refused").to_string();
        assert!(refused(Some("--token-file")).contains("--allow-user 65534"));
        assert!(refused(Some("--token-file")).ends_with("(--token-file)"));
        assert!(!refused(None).contains("token"), "advice must name an option that exists");
    }
}
