//! Passwords that were right a moment ago: a keyed digest of each, so that who logs in for every request costs a hash a minute.
//!
//! 1. A digest is of the user's name, his hash in the users file, and the password: a changed password is not known.
//! 2. It is good for a minute from when the password was hashed.
//! 3. At most [`USERS_MAX`] are remembered.
//!
//! Threads: one at a time.

#![allow(clippy::disallowed_methods)] // In tests, whose clocks nothing depends on.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ring::hmac;
use ring::rand::SystemRandom;

use crate::desk::Print;
use crate::password::{Hash, Password};

const LASTS: Duration = Duration::from_secs(60);
const USERS_MAX: usize = 10_000;

/// See the [module](self).
pub struct Remembered {
    key: hmac::Key,
    digests: HashMap<String, (hmac::Tag, Instant)>,
}

impl Remembered {
    /// # Errors
    /// If the system has no random bytes.
    pub fn new() -> Result<Remembered, ring::error::Unspecified> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())?;
        Ok(Remembered { key, digests: HashMap::new() })
    }

    /// Whether this password was right within the last minute. Takes as long whichever byte differs.
    pub fn is_right(&self, name: &str, hash: &Hash, password: &Password, now: Instant) -> bool {
        let Some((tag, until)) = self.digests.get(name) else { return false };
        let differs = tag.as_ref().iter().zip(self.tag(name, hash, password).as_ref()).fold(0, |d, (a, b)| d | (a ^ b));
        now < *until && differs == 0
    }

    pub fn remember(&mut self, name: &str, hash: &Hash, password: &Password, now: Instant) {
        if self.digests.len() >= USERS_MAX {
            self.digests.retain(|_, (_, until)| now < *until);
        }
        if self.digests.len() < USERS_MAX || self.digests.contains_key(name) {
            self.digests.insert(name.into(), (self.tag(name, hash, password), now + LASTS));
        }
    }

    /// A code of all three.
    pub fn print(&self, name: &str, hash: &Hash, password: &Password) -> Print {
        let mut print = [0; 32];
        print.copy_from_slice(self.tag(name, hash, password).as_ref());
        print
    }

    fn tag(&self, name: &str, hash: &Hash, password: &Password) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [name.as_bytes(), hash.text().as_bytes(), password.bytes()] {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        context.sign()
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // A time to count from.
mod tests {
    use super::*;

    #[test]
    fn a_right_password_is_known_for_a_minute_and_no_other_one() {
        let (right, wrong) = (Password::new(b"right").unwrap(), Password::new(b"wrong").unwrap());
        let (hash, other) = (Hash::of(&right).unwrap(), Hash::of(&right).unwrap());
        let (mut remembered, now) = (Remembered::new().unwrap(), Instant::now());
        assert!(!remembered.is_right("alice", &hash, &right, now));
        remembered.remember("alice", &hash, &right, now);
        assert!(remembered.is_right("alice", &hash, &right, now + LASTS / 2));
        assert!(!remembered.is_right("alice", &hash, &right, now + LASTS), "its minute is over");
        assert!(!remembered.is_right("alice", &hash, &wrong, now));
        assert!(!remembered.is_right("alice", &other, &right, now), "the users file has another hash now");
        assert!(!remembered.is_right("bob", &hash, &right, now));
    }
}
