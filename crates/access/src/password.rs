//! Passwords and their hashes: Argon2id, as its text is usual (`$argon2id$v=19$m=19456,t=2,p=1$salt$hash`).
//!
//! [RFC 9106] describes it. The parameters of new hashes are those that OWASP recommends for 19 MiB. A hash takes the time and memory of its
//! own parameters, which are bounded.
//!
//! [RFC 9106]: https://www.rfc-editor.org/rfc/rfc9106

use std::fmt;
use std::str::FromStr;

use argon2::password_hash::{self, Ident};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use rustix::rand::{GetRandomFlags, getrandom};
use zeroize::{Zeroize, Zeroizing};

/// A password is not longer.
pub const PASSWORD_BYTES_MAX: usize = 512;
const MEMORY_KIB: u32 = 19 << 10;
const PASSES: u32 = 2;
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;
/// The most that a hash may ask for.
const MEMORY_KIB_MAX: u32 = 64 << 10;
const PASSES_MAX: u32 = 8;
const LANES_MAX: u32 = 4;

/// Wiped when it is not needed any more, and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Zeroizing<Vec<u8>>);

impl Password {
    /// # Errors
    /// If it is empty or too long.
    pub fn new(bytes: &[u8]) -> Result<Password, PasswordError> {
        match bytes.len() {
            0 => Err(PasswordError::Empty),
            1..=PASSWORD_BYTES_MAX => Ok(Password(Zeroizing::new(bytes.to_vec()))),
            _ => Err(PasswordError::TooLong),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PasswordError {
    Empty,
    TooLong,
    /// The text is no hash that this server takes.
    Hash(String),
    /// The system has no random bytes.
    Random,
}

impl fmt::Display for PasswordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PasswordError::Empty => f.write_str("the password is empty: give one"),
            PasswordError::TooLong => {
                write!(f, "the password is longer than {PASSWORD_BYTES_MAX} bytes: give a shorter one")
            }
            PasswordError::Hash(why) => write!(f, "the password's hash is none of Argon2id's: {why}"),
            PasswordError::Random => f.write_str("the system has no random bytes now: try again"),
        }
    }
}

impl std::error::Error for PasswordError {}

/// The hash of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Hash {
    text: String,
    params: Params,
    salt: Vec<u8>,
    output: Vec<u8>,
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash")
    }
}

impl Hash {
    /// Takes a tenth of a second, and [`Hash::memory_bytes`].
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn of(password: &Password) -> Result<Hash, PasswordError> {
        let mut salt = [0; SALT_BYTES];
        getrandom(&mut salt, GetRandomFlags::empty()).map_err(|_| PasswordError::Random)?;
        Ok(Hash::with_salt(password, &salt))
    }

    /// A hash that no password is known to have, of the usual parameters: for users that are not there.
    pub fn of_nobody() -> Hash {
        let params = usual();
        Hash { text: String::new(), params, salt: vec![0; SALT_BYTES], output: vec![0; HASH_BYTES] }
    }

    /// One of nobody, with the parameters of this.
    pub fn as_costly_of_nobody(&self) -> Hash {
        Hash { params: self.params.clone(), output: vec![0; self.output.len()], ..Hash::of_nobody() }
    }

    /// The bytes that looking at it writes.
    pub fn cost(&self) -> usize {
        self.memory_bytes() * self.params.t_cost() as usize
    }

    fn with_salt(password: &Password, salt: &[u8]) -> Hash {
        let params = usual();
        let output = hashed(password, &params, salt, HASH_BYTES).expect("the parameters are in range");
        let text = |error: password_hash::Error| panic!("the parts make a hash: {error}");
        let salt_text = password_hash::SaltString::encode_b64(salt).unwrap_or_else(text);
        let made = password_hash::PasswordHash {
            algorithm: Algorithm::Argon2id.ident(),
            version: Some(Version::V0x13.into()),
            params: (&params).try_into().unwrap_or_else(|error| panic!("the parameters are in range: {error}")),
            salt: Some(salt_text.as_salt()),
            hash: Some(password_hash::Output::new(&output).unwrap_or_else(|error| panic!("{error}"))),
        };
        Hash { text: made.to_string(), params, salt: salt.to_vec(), output: output.to_vec() }
    }

    /// Whether it is this password's. Takes as long whichever differs.
    pub fn is_of(&self, password: &Password) -> bool {
        let Ok(output) = hashed(password, &self.params, &self.salt, self.output.len()) else { return false };
        let differs = output.iter().zip(&self.output).fold(0, |differs, (a, b)| differs | (a ^ b));
        // The hash of nobody is in no file, and has no text.
        differs == 0 && !self.text.is_empty()
    }

    /// The memory that [`Hash::is_of`] takes.
    pub fn memory_bytes(&self) -> usize {
        self.params.block_count() * Block::SIZE
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

impl FromStr for Hash {
    type Err = PasswordError;

    fn from_str(text: &str) -> Result<Hash, PasswordError> {
        let none = |why: &dyn fmt::Display| PasswordError::Hash(why.to_string());
        let parsed = password_hash::PasswordHash::new(text).map_err(|error| none(&error))?;
        if parsed.algorithm != Ident::new_unwrap("argon2id") || parsed.version != Some(Version::V0x13.into()) {
            return Err(none(&"give one that begins with $argon2id$v=19$"));
        }
        let params = Params::try_from(&parsed).map_err(|error| none(&error))?;
        if params.m_cost() > MEMORY_KIB_MAX || params.t_cost() > PASSES_MAX || params.p_cost() > LANES_MAX {
            return Err(none(&format_args!(
                "it asks for too much: m={MEMORY_KIB_MAX}, t={PASSES_MAX} and p={LANES_MAX} are the most"
            )));
        }
        let (Some(salt), Some(output)) = (parsed.salt, parsed.hash) else { return Err(none(&"it is not whole")) };
        let mut salt_bytes = [0; 64];
        let salt = salt.decode_b64(&mut salt_bytes).map_err(|error| none(&error))?.to_vec();
        Ok(Hash { text: text.into(), params, salt, output: output.as_bytes().to_vec() })
    }
}

fn usual() -> Params {
    Params::new(MEMORY_KIB, PASSES, 1, Some(HASH_BYTES)).expect("the parameters are in range")
}

fn hashed(password: &Password, params: &Params, salt: &[u8], bytes: usize) -> argon2::Result<Zeroizing<Vec<u8>>> {
    let (mut output, mut blocks) = (Zeroizing::new(vec![0; bytes]), vec![Block::new(); params.block_count()]);
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params.clone());
    let done = argon2.hash_password_into_with_memory(password.bytes(), salt, &mut output, &mut blocks[..]);
    blocks.iter_mut().for_each(|block| block.as_mut().zeroize());
    done.map(|()| output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(text: &str) -> Password {
        Password::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_hash_is_of_its_password_alone_also_when_it_was_read_from_text() {
        let hash = Hash::of(&password("open sesame")).unwrap();
        let read: Hash = hash.text().parse().unwrap();
        assert_eq!(read, hash);
        assert!(read.is_of(&password("open sesame")) && !read.is_of(&password("open sesam")));
        assert_ne!(Hash::of(&password("open sesame")).unwrap().text(), hash.text(), "each has a salt of its own");
        assert!(hash.memory_bytes() <= 20 << 20 && !Hash::of_nobody().is_of(&password("x")));
    }

    #[test]
    fn a_hash_of_another_program_is_read() {
        // The reference implementation's: `echo -n password | argon2 somesalt -id -t 2 -k 65536 -p 1 -l 24 -e`.
        let text = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        let hash: Hash = text.parse().unwrap();
        assert!(hash.is_of(&password("password")));
    }

    #[test]
    fn what_is_no_hash_or_asks_for_too_much_is_refused() {
        for text in [
            "",
            "secret",
            "$argon2i$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
            "$argon2id$v=16$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
            "$argon2id$v=19$m=4194304,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
            "$argon2id$v=19$m=65536,t=900,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
            "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ",
            "$2b$12$abcdefghijklmnopqrstuv",
        ] {
            assert!(matches!(text.parse::<Hash>(), Err(PasswordError::Hash(_))), "{text}");
        }
        assert_eq!(Password::new(b""), Err(PasswordError::Empty));
        assert_eq!(Password::new(&[b'x'; 1 << 20]), Err(PasswordError::TooLong));
        assert_eq!(format!("{:?}", password("x")), "Password");
    }
}
