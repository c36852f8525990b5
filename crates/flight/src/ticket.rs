//! Tickets: what a client shows to get rows.
//!
//! ```text
//!   0   4  "TPT1"
//!   4   8  the opening of the store that it is good for, little-endian
//!  12   …  the name of the user who may show it, if there are users, and the work, in postcard's format
//!  -16 16  SipHash-2-4-128 of all before, with the door's key
//! ```
//! A ticket names its freeze, so whoever shows it again gets the same rows. The key and the number of the opening are drawn at random when the
//! door begins: no ticket outlives it, and a ticket of another opening is told to be too old before its code is looked at, which nobody could
//! check any more.
//!
//! Pure.

use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher24};
use tapetum_service::request::Request;

const MAGIC: [u8; 4] = *b"TPT1";
const HEAD_BYTES: usize = 12;
const CODE_BYTES: usize = 16;
/// A ticket is not longer: statements are bounded, and so are keys.
pub const TICKET_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(MAGIC.len() + 8 == HEAD_BYTES);

/// The work that a ticket is good for.
#[allow(clippy::large_enum_variant)] // A call has one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// A request that reads, and the most rows that are wanted of it.
    Request { request: Request, rows_max: Option<u64> },
    /// A statement without FROM.
    Constants(String),
}

/// The contents of a ticket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TicketBody {
    /// The user who may show it; `None` where there are no users.
    pub user: Option<String>,
    pub work: Work,
}

/// Why a ticket is worth nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketError {
    /// It is not of this door's making.
    Forged,
    /// The store was opened again since.
    TooOld,
}

/// Signs tickets, and looks at them.
pub struct TicketOffice {
    key: [u8; 16],
}

impl TicketOffice {
    pub fn new(key: [u8; 16]) -> TicketOffice {
        TicketOffice { key }
    }

    /// A user's ticket for some work with the store of an opening.
    pub fn sign(&self, opening: u64, user: Option<&str>, work: &Work) -> Vec<u8> {
        self.seal(opening, &postcard::to_stdvec(&(user, work)).expect("plain data has a form as bytes"))
    }

    /// A ticket for these bytes.
    pub fn seal(&self, opening: u64, body: &[u8]) -> Vec<u8> {
        let mut ticket = [&MAGIC[..], &opening.to_le_bytes(), body].concat();
        let code = self.code(&ticket);
        ticket.extend_from_slice(&code);
        ticket
    }

    /// The contents of a ticket.
    ///
    /// # Errors
    /// If this office has not signed it for this opening.
    pub fn check(&self, opening: u64, ticket: &[u8]) -> Result<TicketBody, TicketError> {
        if !is_ticket(ticket) || ticket.len() < HEAD_BYTES + CODE_BYTES || ticket.len() > TICKET_BYTES_MAX {
            return Err(TicketError::Forged);
        }
        let (body, code) = ticket.split_at(ticket.len() - CODE_BYTES);
        if body[MAGIC.len()..HEAD_BYTES] != opening.to_le_bytes() {
            return Err(TicketError::TooOld);
        }
        // All bytes are compared, whichever differ.
        let differs = self.code(body).iter().zip(code).fold(0, |differs, (a, b)| differs | (a ^ b));
        if differs != 0 {
            return Err(TicketError::Forged);
        }
        postcard::from_bytes(&body[HEAD_BYTES..]).map_err(|_| TicketError::Forged)
    }

    fn code(&self, bytes: &[u8]) -> [u8; CODE_BYTES] {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(bytes);
        hasher.finish128().as_bytes()
    }
}

/// Whether these bytes begin as a ticket does.
pub fn is_ticket(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work() -> Work {
        Work::Request { request: Request::Format { keyspace: "papers".into(), freeze: Some(7) }, rows_max: Some(3) }
    }

    #[test]
    fn a_ticket_is_good_for_its_door_and_opening_alone() {
        let (office, other) = (TicketOffice::new([1; 16]), TicketOffice::new([2; 16]));
        let ticket = office.sign(5, Some("alice"), &work());
        assert_eq!(office.check(5, &ticket), Ok(TicketBody { user: Some("alice".into()), work: work() }));
        let of_everybody = office.check(5, &office.sign(5, None, &work()));
        assert_eq!(of_everybody, Ok(TicketBody { user: None, work: work() }));
        assert_eq!(office.check(6, &ticket), Err(TicketError::TooOld));
        assert_eq!(other.check(5, &ticket), Err(TicketError::Forged));
    }

    #[test]
    fn a_ticket_that_was_changed_anywhere_is_worth_nothing() {
        let office = TicketOffice::new([1; 16]);
        let ticket = office.sign(5, Some("alice"), &work());
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert!(office.check(5, &changed).is_err(), "byte {at}");
            assert!(office.check(5, &ticket[..at]).is_err(), "cut at {at}");
        }
        assert_eq!(office.check(5, &vec![b'T'; TICKET_BYTES_MAX + 1]), Err(TicketError::Forged));
    }
}
