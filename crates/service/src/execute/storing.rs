//! Stores or deletes many items at once: many are on their way together.

use std::time::Duration;

use serde_bytes::ByteBuf;
use tapetum::{Condition, Error, KeyspaceHandle, Outcome, Request, Session};

use super::OpenStore;
use crate::caller::Caller;
use crate::failure::Failure;
use crate::item_limit;
use crate::opening;
use crate::reply::{ItemRow, Reply, Verdict};

/// The most items and bytes on their way.
const IN_FLIGHT_ITEMS: usize = 1024;
const IN_FLIGHT_BYTES: usize = 4 << 20;

pub fn store(
    open: OpenStore<'_>,
    keyspace: &KeyspaceHandle,
    items: &[ItemRow],
    keeps_existing: bool,
    caller: &mut dyn Caller,
) -> Result<(), Failure> {
    let condition = if keeps_existing { Condition::Absent } else { Condition::Always };
    let session = open.store.session().map_err(|error| open.failure(error))?;
    let mut storing = Storing { session, verdicts: vec![None; items.len()], replies: Vec::new(), has_failed: false };
    let mut in_flight_bytes = 0;
    for (number, item) in items.iter().enumerate() {
        let ItemRow { key, value, flags, expiry } = item;
        if let Some(why) = item_limit::refusal(value.len(), open.store) {
            storing.verdicts[number] = Some(Verdict::Bad(why));
            continue;
        }
        let put = Request::Put { key, value, flags: *flags, expiry: *expiry, condition };
        let submitted = storing.session.submit_to(keyspace.keyspace(), number as u64, put);
        submitted.expect("so few are on their way that there is room");
        in_flight_bytes += key.len() + value.len();
        if in_flight_bytes >= IN_FLIGHT_BYTES {
            storing.wait_until(0);
            in_flight_bytes = 0;
        } else if storing.session.in_flight() >= IN_FLIGHT_ITEMS {
            storing.wait_until(IN_FLIGHT_ITEMS / 2);
        }
        if storing.has_failed {
            break;
        }
    }
    storing.wait_until(0);
    // After the first that failed the rest was not asked for.
    let verdicts = storing.verdicts.into_iter().map_while(|verdict| verdict).collect();
    Ok(caller.take(Reply::Verdicts(verdicts))?)
}

/// Deletes keys, and tells how many there were.
pub fn delete(
    open: OpenStore<'_>,
    keyspace: &KeyspaceHandle,
    keys: &[ByteBuf],
    caller: &mut dyn Caller,
) -> Result<(), Failure> {
    let mut session = open.store.session().map_err(|error| open.failure(error))?;
    let (mut deleted, mut failed, mut replies) = (0, None, Vec::new());
    let mut wait_until = |session: &mut Session, in_flight: usize| {
        loop {
            session.poll(&mut replies);
            for reply in replies.drain(..) {
                match reply.outcome {
                    Outcome::Failed(error) => failed = failed.take().or(Some(error)),
                    outcome => deleted += u64::from(matches!(outcome, Outcome::Deleted)),
                }
            }
            if session.in_flight() <= in_flight {
                return failed.is_some();
            }
            session.wait(Some(Duration::from_millis(10)));
        }
    };
    for (number, key) in keys.iter().enumerate() {
        let submitted = session.submit_to(keyspace.keyspace(), number as u64, Request::Delete { key, stamp: None });
        submitted.expect("so few are on their way that there is room");
        if session.in_flight() >= IN_FLIGHT_ITEMS && wait_until(&mut session, IN_FLIGHT_ITEMS / 2) {
            break;
        }
    }
    wait_until(&mut session, 0);
    match failed {
        Some(error) => Err(open.failure(error)),
        None => Ok(caller.take(Reply::Count(deleted))?),
    }
}

struct Storing {
    session: Session,
    /// One of each item, once it is known.
    verdicts: Vec<Option<Verdict>>,
    replies: Vec<tapetum::Reply>,
    has_failed: bool,
}

impl Storing {
    fn wait_until(&mut self, items: usize) {
        self.poll();
        while self.session.in_flight() > items {
            self.session.wait(Some(Duration::from_millis(10)));
            self.poll();
        }
    }

    fn poll(&mut self) {
        self.session.poll(&mut self.replies);
        for reply in self.replies.drain(..) {
            let verdict = match reply.outcome {
                Outcome::Stored { .. } => Verdict::Stored,
                Outcome::NotStored => Verdict::Kept,
                Outcome::Failed(error @ (Error::KeyTooLong { .. } | Error::KeyEmpty | Error::ValueTooLarge { .. })) => {
                    Verdict::Bad(error.to_string())
                }
                Outcome::Failed(error) => Verdict::Failed(format!("{error}{}", opening::option_to_raise(&error))),
                other => Verdict::Failed(format!("a put was answered with {other:?}")),
            };
            self.has_failed |= matches!(verdict, Verdict::Failed(_));
            self.verdicts[reply.token as usize] = Some(verdict);
        }
    }
}
