//! A request that has to wait: its bytes, kept.

use crate::keyspace::decide::{Answer, is_counted_as_get, leaves_as_is, unchanged};
use crate::keyspace::item::{Access, ItemHead};
use crate::keyspace::request::{Condition, Initial, Outcome, Request, Terms, ValueRange};

#[derive(Debug, Default)]
pub enum Verb {
    #[default]
    Get,
    GetAndLease {
        terms: Terms,
    },
    Put {
        flags: u32,
        expiry: u32,
        condition: Condition,
    },
    Append {
        stamp: Option<u64>,
    },
    Prepend {
        stamp: Option<u64>,
    },
    Increment {
        delta: u64,
        decrement: bool,
        initial: Option<Initial>,
        stamp: Option<u64>,
        touch: Option<u32>,
    },
    Touch {
        expiry: u32,
    },
    GetAndTouch {
        expiry: u32,
    },
    Invalidate {
        stamp: Option<u64>,
        expiry: Option<u32>,
    },
    Delete {
        stamp: Option<u64>,
    },
    DeleteAll {
        at: u32,
    },
}

#[derive(Debug, Default)]
pub struct OwnedRequest {
    pub key: Vec<u8>,
    value: Vec<u8>,
    verb: Verb,
    /// It only reads, as far as is known yet.
    reads: bool,
}

impl OwnedRequest {
    /// Becomes a copy of `request`; the room for the key is used again.
    pub fn assign(&mut self, request: &Request<'_>) {
        let (verb, value): (Verb, &[u8]) = match *request {
            Request::Get { .. } => (Verb::Get, &[]),
            Request::GetAndLease { terms, .. } => (Verb::GetAndLease { terms }, &[]),
            Request::Put { value, flags, expiry, condition, .. } => (Verb::Put { flags, expiry, condition }, value),
            Request::Append { value, stamp, .. } => (Verb::Append { stamp }, value),
            Request::Prepend { value, stamp, .. } => (Verb::Prepend { stamp }, value),
            Request::Increment { delta, decrement, initial, stamp, touch, .. } => {
                (Verb::Increment { delta, decrement, initial, stamp, touch }, &[])
            }
            Request::Touch { expiry, .. } => (Verb::Touch { expiry }, &[]),
            Request::GetAndTouch { expiry, .. } => (Verb::GetAndTouch { expiry }, &[]),
            Request::Invalidate { stamp, expiry, .. } => (Verb::Invalidate { stamp, expiry }, &[]),
            Request::Delete { stamp, .. } => (Verb::Delete { stamp }, &[]),
            Request::DeleteAll { at } => (Verb::DeleteAll { at }, &[]),
        };
        self.key.clear();
        self.key.extend_from_slice(request.key());
        (self.value, self.verb, self.reads) = (value.to_vec(), verb, request.reads());
    }

    pub fn borrow(&self) -> Request<'_> {
        let (key, value) = (&self.key[..], &self.value[..]);
        match self.verb {
            Verb::Get => Request::Get { key },
            Verb::GetAndLease { terms } => Request::GetAndLease { key, terms },
            Verb::Put { flags, expiry, condition } => Request::Put { key, value, flags, expiry, condition },
            Verb::Append { stamp } => Request::Append { key, value, stamp },
            Verb::Prepend { stamp } => Request::Prepend { key, value, stamp },
            Verb::Increment { delta, decrement, initial, stamp, touch } => {
                Request::Increment { key, delta, decrement, initial, stamp, touch }
            }
            Verb::Touch { expiry } => Request::Touch { key, expiry },
            Verb::GetAndTouch { expiry } => Request::GetAndTouch { key, expiry },
            Verb::Invalidate { stamp, expiry } => Request::Invalidate { key, stamp, expiry },
            Verb::Delete { stamp } => Request::Delete { key, stamp },
            Verb::DeleteAll { at } => Request::DeleteAll { at },
        }
    }

    /// The value that it brings.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// The value, for whoever keeps it instead.
    pub fn take_value(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.value)
    }

    pub fn deletes_all(&self) -> bool {
        matches!(self.verb, Verb::DeleteAll { .. })
    }

    /// Whether it only reads, as far as is known yet.
    pub fn is_get(&self) -> bool {
        self.reads
    }

    /// Whether it asks for an item, whatever else it does.
    pub fn is_counted_as_get(&self) -> bool {
        is_counted_as_get(&self.borrow())
    }

    /// A get that found this: if that makes it write, it is no get from now on. Whether it is one still.
    pub fn judge(&mut self, found: Option<ItemHead>) -> bool {
        if let Verb::GetAndLease { terms } = self.verb {
            self.reads &= match found {
                Some(item) => leaves_as_is(&self.borrow(), item),
                None => terms.vivify.is_none(),
            };
        }
        self.reads
    }

    /// The answer to a get that found this; not all ask for `access`.
    pub fn found(&self, item: ItemHead, access: impl FnOnce() -> Access, value: ValueRange) -> Outcome {
        match self.verb {
            Verb::GetAndLease { .. } => unchanged(item, access(), value),
            _ => Answer::Value.outcome(item, value),
        }
    }

    /// Whether it leaves no trace as a read.
    pub fn is_unnoticed(&self) -> bool {
        matches!(self.verb, Verb::GetAndLease { terms: Terms { unnoticed: true, .. } })
    }
}

impl<'a> Request<'a> {
    /// The key it is about; empty for [`Request::DeleteAll`].
    pub fn key(&self) -> &'a [u8] {
        match *self {
            Request::Get { key }
            | Request::GetAndLease { key, .. }
            | Request::Put { key, .. }
            | Request::Append { key, .. }
            | Request::Prepend { key, .. }
            | Request::Increment { key, .. }
            | Request::Touch { key, .. }
            | Request::GetAndTouch { key, .. }
            | Request::Invalidate { key, .. }
            | Request::Delete { key, .. } => key,
            Request::DeleteAll { .. } => &[],
        }
    }

    /// Whether it only reads, unless what it finds makes it write.
    pub fn reads(&self) -> bool {
        match self {
            Request::Get { .. } => true,
            Request::GetAndLease { terms, .. } => terms.touch.is_none(),
            _ => false,
        }
    }

    /// Whether the answer has the item's value, of a length that nobody knows before.
    pub fn shows_value(&self) -> bool {
        matches!(self, Request::Get { .. } | Request::GetAndLease { .. } | Request::GetAndTouch { .. })
    }

    /// Bytes of key and value that it brings.
    pub fn payload_bytes(&self) -> usize {
        match *self {
            Request::Put { key, value, .. }
            | Request::Append { key, value, .. }
            | Request::Prepend { key, value, .. } => key.len() + value.len(),
            _ => self.key().len(),
        }
    }
}
