//! `watch`: from then on the client is told of others' requests, and sends no more of its own. See [`crate::stats::observers`].

use tapetum::Expiry;
use tapetum::{Condition, Outcome, Request};

use super::door::Memcached;
use crate::doors::connection::Client;
use crate::doors::context::Context;
use crate::doors::door::Step;
use crate::protocol::kinds;
use crate::protocol::meta_reply::MetaAnswer;
use crate::protocol::reply::{BinaryAnswer, Form, TextAnswer};
use crate::protocol::text;
use crate::stats::observers::{KeyRequest, Observers, push_key};

/// With more unsent bytes than this, lines wait in the watcher's buffer.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// Facts about a store command that watchers are told with its outcome.
#[derive(Clone, Copy, Debug)]
pub struct ObservedStore {
    command: &'static str,
    /// Seconds; 0 is for ever.
    ttl: u32,
    bytes: usize,
}

impl ObservedStore {
    pub(super) fn of(request: &Request<'_>, now: u32) -> Option<ObservedStore> {
        let (command, expiry, bytes) = match request {
            Request::Put { condition, expiry, value, .. } => {
                let command = match condition {
                    Condition::Always => "set",
                    Condition::Absent => "add",
                    Condition::Present => "replace",
                    Condition::Stamp(_) | Condition::StampOrOlder(_) => "cas",
                };
                (command, *expiry, value.len())
            }
            Request::Append { value, .. } => ("append", Expiry::NONE, value.len()),
            Request::Prepend { value, .. } => ("prepend", Expiry::NONE, value.len()),
            _ => return None,
        };
        Some(ObservedStore { command, ttl: expiry.secs().saturating_sub(now), bytes })
    }
}

impl Memcached {
    pub(super) fn watch(&mut self, kinds: u8, client: &mut Client, cx: &mut Context<'_>) {
        if client.is_sent_whole() {
            return self.say(text::NOT_OVER_UDP, client, cx);
        }
        self.watching = cx.figures.observers.watch(kinds, cx.worker, client.id());
        let answer = if self.watching.is_some() { "OK\r\n" } else { text::TOO_MANY_WATCHERS };
        self.say(answer, client, cx);
    }

    /// Discards input, and passes on the lines for the client.
    pub(super) fn go_on_watching(&mut self, input: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Step {
        let Some(seat) = self.watching.as_ref().filter(|seat| seat.has_lines()) else {
            return if input.is_empty() { Step::Stop(0) } else { Step::Took(input.len()) };
        };
        if client.out.unsent_bytes() > UNSENT_BYTES_MAX {
            client.block();
            return Step::Stop(input.len());
        }
        client.out.append_buffer(cx.pool, seat.take());
        Step::Took(input.len())
    }
}

/// Tells the watchers of a request when its outcome is known.
pub(super) fn observe(
    observers: &Observers,
    descriptor: i32,
    key: &[u8],
    store: Option<ObservedStore>,
    form: Form,
    outcome: &Outcome,
    value_bytes: usize,
) {
    if let Some(ObservedStore { command, ttl, bytes }) = store {
        observers.note_key(key, KeyRequest::Set);
        let status = match outcome {
            Outcome::Stored { .. } => "stored",
            Outcome::Exists => "exists",
            Outcome::Missing => "not_found",
            Outcome::NotStored => "not_stored",
            _ => "no_memory",
        };
        return observers.tell(kinds::MUTATIONS, |line| {
            line.extend_from_slice(b"type=item_store key=");
            push_key(line, key);
            let rest = format!(" status={status} cmd={command} ttl={ttl} clsid=0 cfd={descriptor} size={bytes}");
            line.extend_from_slice(rest.as_bytes());
        });
    }
    let is_miss =
        matches!(outcome, Outcome::Missing | Outcome::Failed(_) | Outcome::Leased { expiry_before: None, .. });
    let is_hit = !is_miss;
    if form.is_get() {
        if form != Form::Lookup {
            observers.note_key(key, KeyRequest::Get { is_hit });
        }
        let status = if is_hit { "found" } else { "not_found" };
        observers.tell(kinds::FETCHERS, |line| {
            line.extend_from_slice(b"type=item_get key=");
            push_key(line, key);
            let rest = format!(" status={status} clsid=0 cfd={descriptor} size={value_bytes}");
            line.extend_from_slice(rest.as_bytes());
        });
    } else if is_delete(form) {
        observers.note_key(key, KeyRequest::Delete);
    }
}

fn is_delete(form: Form) -> bool {
    matches!(
        form,
        Form::Text { answer: TextAnswer::Delete, .. }
            | Form::Binary { answer: BinaryAnswer::Delete, .. }
            | Form::Meta { answer: MetaAnswer::Delete { .. }, .. }
    )
}
