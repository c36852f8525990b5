//! Reads and writes that are one step: what others write in between is never lost.

use tapetum::{Condition, Expiry, Initial, KeyspaceHandle, Outcome, Request};

use super::OpenStore;
use super::items::row;
use crate::caller::Caller;
use crate::failure::Failure;
use crate::item_limit;
use crate::reply::{Counted, ItemRow, Reply, Verdict};
use crate::request::Increment;

pub fn get(open: OpenStore<'_>, keyspace: &str, key: Vec<u8>, caller: &mut dyn Caller) -> Result<(), Failure> {
    let item = open.keyspace(keyspace)?.get(&key).map_err(|error| open.failure(error))?;
    let stamped = item.map(|item| {
        let stamp = item.stamp;
        (row(key, item), stamp)
    });
    Ok(caller.take(Reply::Stamped(stamped))?)
}

pub fn compare_and_set(
    open: OpenStore<'_>,
    keyspace: &KeyspaceHandle,
    item: &ItemRow,
    stamp: Option<u64>,
    caller: &mut dyn Caller,
) -> Result<(), Failure> {
    let ItemRow { key, value, flags, expiry } = item;
    if let Some(why) = item_limit::refusal(value.len(), open.store) {
        return Err(Failure::bad(why));
    }
    let condition = stamp.map_or(Condition::Absent, Condition::Stamp);
    let put = Request::Put { key, value, flags: *flags, expiry: *expiry, condition };
    let (outcome, _) = keyspace.run(put).map_err(|error| open.failure(error))?;
    let verdict = if matches!(outcome, Outcome::Stored { .. }) { Verdict::Stored } else { Verdict::Kept };
    Ok(caller.take(Reply::Verdicts(vec![verdict]))?)
}

pub fn increment(
    open: OpenStore<'_>,
    keyspace: &KeyspaceHandle,
    asked: &Increment,
    caller: &mut dyn Caller,
) -> Result<(), Failure> {
    let initial = asked.initial.map(|value| Initial { value, expiry: Expiry::NONE });
    let request = Request::Increment {
        key: &asked.key,
        delta: asked.delta,
        decrement: asked.is_decrement,
        initial,
        stamp: None,
        touch: None,
    };
    let (outcome, _) = keyspace.run(request).map_err(|error| open.failure(error))?;
    let counted = match outcome {
        Outcome::Number { number, .. } => Counted::Number(number),
        Outcome::NotNumber => Counted::NoNumber,
        _ => Counted::NoKey,
    };
    Ok(caller.take(Reply::Counted(counted))?)
}
