//! The model's operations as requests to the store, and the store's replies as answers of the model.

use crate::model::operation::{Item, Kind, Told};
use std::rc::Rc;
use tapetum::{Condition, Error, Initial, KeyspaceRef, Outcome, PlainPut, Request, Session, Terms, Write};

/// The request for an operation on one key.
pub fn request<'a>(key: &'a [u8], kind: &'a Kind) -> Request<'a> {
    match kind {
        Kind::Get => Request::Get { key },
        Kind::Put { value, flags, expiry, condition } => {
            Request::Put { key, value, flags: *flags, expiry: *expiry, condition: *condition }
        }
        Kind::Append { value, stamp } => Request::Append { key, value, stamp: *stamp },
        Kind::Prepend { value, stamp } => Request::Prepend { key, value, stamp: *stamp },
        Kind::Increment { delta, decrement, initial, stamp } => Request::Increment {
            key,
            delta: *delta,
            decrement: *decrement,
            initial: initial.map(|(value, expiry)| Initial { value, expiry }),
            stamp: *stamp,
            touch: None,
        },
        Kind::Touch { expiry } => Request::Touch { key, expiry: *expiry },
        Kind::GetAndTouch { expiry } => Request::GetAndTouch { key, expiry: *expiry },
        Kind::Lease { recache_before, vivify } => {
            let terms = Terms { stale: true, recache_before: *recache_before, vivify: *vivify, ..Terms::default() };
            Request::GetAndLease { key, terms }
        }
        Kind::Invalidate { stamp } => Request::Invalidate { key, stamp: *stamp, expiry: None },
        Kind::Delete { stamp } => Request::Delete { key, stamp: *stamp },
        Kind::Patch { .. } | Kind::Zero { .. } => unreachable!("a change of a block makes its own requests"),
        Kind::Clear | Kind::ClearAt(_) | Kind::Drop => unreachable!("not an operation on one key"),
    }
}

/// An operation as a part of a batch.
pub fn write<'a>(keyspace: KeyspaceRef, key: &'a [u8], kind: &'a Kind) -> Write<'a> {
    match kind {
        Kind::Put { value, flags, expiry, .. } => Write::Put { keyspace, key, value, flags: *flags, expiry: *expiry },
        Kind::Drop => Write::Delete { keyspace, key },
        _ => unreachable!("not part of a batch"),
    }
}

/// The client's answer to an operation that DRAM answers at once; `None` if it must be submitted.
pub fn told_at_once(session: &mut Session, keyspace: KeyspaceRef, key: &[u8], kind: &Kind) -> Option<Told> {
    let digest = session.digest(keyspace, key);
    match kind {
        Kind::Get => {
            session.fetch_each(&[digest], 0);
            let mut value = Vec::new();
            let item = session.get_from_dram(keyspace, digest, &mut value, |_, _, _| true)?;
            let tapetum::DramItem { flags, expiry, stamp, marks, .. } = item;
            let (value, stamp, marks) = (value.into(), Some(stamp), Some(marks));
            Some(Told::Value(Item { value, flags, expiry, stamp, marks, writer: 0 }))
        }
        Kind::Put { value, flags, expiry, condition: Condition::Always } => {
            session.fetch_each(&[digest], 1);
            session
                .put_at_once(keyspace, digest, PlainPut { key, value, flags: *flags, expiry: *expiry })
                .map(Told::Stored)
        }
        _ => None,
    }
}

/// The client's answer. `Err` for an outcome that must not get here.
pub fn told(session: &Session, outcome: Outcome) -> Result<Told, Error> {
    Ok(match outcome {
        Outcome::Value { flags, stamp, expiry, value } => {
            let value: Rc<[u8]> = session.bytes(value).into();
            Told::Value(Item { value, flags, expiry, stamp: Some(stamp), marks: None, writer: 0 })
        }
        Outcome::Leased { flags, stamp, expiry_before, marks, won, value, .. } => {
            let (value, expiry) = (session.bytes(value).into(), expiry_before.unwrap_or_default());
            let item = Item { value, flags, expiry, stamp: Some(stamp), marks: Some(marks), writer: 0 };
            Told::Leased { item, won, made: expiry_before.is_none() }
        }
        Outcome::Missing => Told::Missing,
        Outcome::Stored { stamp } => Told::Stored(stamp),
        Outcome::NotStored => Told::NotStored,
        Outcome::Exists => Told::Exists,
        Outcome::Deleted => Told::Deleted,
        Outcome::Touched { stamp } => Told::Touched(stamp),
        Outcome::Number { number, stamp, .. } => Told::Number(number, stamp),
        Outcome::NotNumber => Told::NotNumber,
        Outcome::Done => Told::Done,
        Outcome::Failed(Error::ValueTooLarge { .. } | Error::BatchTooLarge { .. }) => Told::TooLarge,
        Outcome::Failed(Error::FullFlash | Error::FullIndex | Error::FullManifest) => Told::Refused,
        Outcome::Failed(error) => return Err(error),
    })
}
