//! Users of this machine whom a service lets in by their number.

use crate::Error;

/// Refuses the overflow user ID: every user that this user namespace does not know appears under this number.
pub fn check_allowed_users(users: &[u32], overflow: u32) -> Result<(), Error> {
    if users.contains(&overflow) {
        return Err(Error::Usage(format!(
            "--allow-user {overflow}: the kernel uses this number for every user that is unknown here; run the \
                client as another user, or give it the token (--token-file)"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_nobody_can_tell_is_not_let_in() {
        assert!(check_allowed_users(&[0, 1000], 65534).is_ok());
        let refused = check_allowed_users(&[1000, 65534], 65534).expect_err("it is refused").to_string();
        assert!(refused.contains("--allow-user 65534"), "{refused}");
    }
}
