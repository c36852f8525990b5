//! Tokens: what a client of Flight shows after it has logged in.
//!
//! ```text
//!   base64url( until u64 (Unix seconds) · name · HMAC-SHA-256 of both and of the hash in the users file )
//! ```
//! A token is good until its time is over, the user's password is another one, the user is gone, or the server is started again: the key is
//! drawn then. Nothing is kept of it.
//!
//! Pure.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::SystemRandom;

use crate::password::Hash;
use crate::users::{User, Users};
use std::sync::Arc;

/// A token is not longer.
const TOKEN_BYTES_MAX: usize = 512;
const TIME_BYTES: usize = 8;
const CODE_BYTES: usize = 32;

/// Signs tokens, and looks at them.
pub struct TokenOffice {
    key: hmac::Key,
}

impl TokenOffice {
    /// # Errors
    /// If the system has no random bytes.
    pub fn new() -> Result<TokenOffice, ring::error::Unspecified> {
        Ok(TokenOffice { key: hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())? })
    }

    pub fn sign(&self, user: &User, until_unix_seconds: u64) -> String {
        let said = [&until_unix_seconds.to_le_bytes()[..], user.name.as_bytes()].concat();
        let code = hmac::sign(&self.key, &signed(&said, user.hash.as_ref()));
        URL_SAFE_NO_PAD.encode([&said, code.as_ref()].concat())
    }

    /// The user whose token it is.
    pub fn check<'a>(&self, token: &[u8], users: &'a Users, now_unix_seconds: u64) -> Option<&'a Arc<User>> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let decoded = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (said, code) = decoded.split_at_checked(decoded.len().checked_sub(CODE_BYTES)?)?;
        let (until, name) = said.split_first_chunk::<TIME_BYTES>()?;
        let user = users.find(str::from_utf8(name).ok()?)?;
        hmac::verify(&self.key, &signed(said, user.hash.as_ref()), code).ok()?;
        (now_unix_seconds < u64::from_le_bytes(*until)).then_some(user)
    }
}

fn signed(said: &[u8], hash: Option<&Hash>) -> Vec<u8> {
    [said, b"\n", hash.map_or("", Hash::text).as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::password::Password;

    #[test]
    fn a_token_is_its_users_until_its_time_or_the_password_is_over() {
        let hash = |text: &str| Hash::of(&Password::new(text.as_bytes()).unwrap()).unwrap();
        let users = |hash: &Hash| Users::parse(format!("alice read:a {}\n", hash.text()).as_bytes()).unwrap();
        let (old, new) = (hash("old"), hash("new"));
        let (office, other) = (TokenOffice::new().unwrap(), TokenOffice::new().unwrap());
        let now = users(&old);
        let token = office.sign(now.find("alice").unwrap(), 100);
        assert_eq!(office.check(token.as_bytes(), &now, 99).unwrap().name, "alice");
        assert_eq!(office.check(token.as_bytes(), &now, 100), None, "its time is over");
        assert_eq!(office.check(token.as_bytes(), &users(&new), 99), None, "the password is another one");
        assert_eq!(office.check(token.as_bytes(), &Users::none(), 99), None, "the user is gone");
        assert_eq!(other.check(token.as_bytes(), &now, 99), None, "the server was started again");
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(office.check(&changed, &now, 99), None, "byte {at}");
            assert_eq!(office.check(&token.as_bytes()[..at], &now, 99), None);
        }
        assert_eq!(office.check(&vec![b'A'; 1 << 20], &now, 99), None);
    }
}
