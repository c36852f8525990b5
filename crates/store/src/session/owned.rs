//! A request that has to wait: its bytes, kept.

use crate::request::{Condition, Initial, Request};

#[derive(Debug, Default)]
pub enum Verb {
    #[default]
    Get,
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
    },
    Touch {
        expiry: u32,
    },
    GetAndTouch {
        expiry: u32,
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
}

impl OwnedRequest {
    /// Becomes a copy of `request`; the room for the key is used again.
    pub fn assign(&mut self, request: &Request<'_>) {
        let (verb, value): (Verb, &[u8]) = match *request {
            Request::Get { .. } => (Verb::Get, &[]),
            Request::Put { value, flags, expiry, condition, .. } => (Verb::Put { flags, expiry, condition }, value),
            Request::Append { value, stamp, .. } => (Verb::Append { stamp }, value),
            Request::Prepend { value, stamp, .. } => (Verb::Prepend { stamp }, value),
            Request::Increment { delta, decrement, initial, stamp, .. } => {
                (Verb::Increment { delta, decrement, initial, stamp }, &[])
            }
            Request::Touch { expiry, .. } => (Verb::Touch { expiry }, &[]),
            Request::GetAndTouch { expiry, .. } => (Verb::GetAndTouch { expiry }, &[]),
            Request::Delete { stamp, .. } => (Verb::Delete { stamp }, &[]),
            Request::DeleteAll { at } => (Verb::DeleteAll { at }, &[]),
        };
        self.key.clear();
        self.key.extend_from_slice(request.key());
        (self.value, self.verb) = (value.to_vec(), verb);
    }

    pub fn borrow(&self) -> Request<'_> {
        let (key, value) = (&self.key[..], &self.value[..]);
        match self.verb {
            Verb::Get => Request::Get { key },
            Verb::Put { flags, expiry, condition } => Request::Put { key, value, flags, expiry, condition },
            Verb::Append { stamp } => Request::Append { key, value, stamp },
            Verb::Prepend { stamp } => Request::Prepend { key, value, stamp },
            Verb::Increment { delta, decrement, initial, stamp } => {
                Request::Increment { key, delta, decrement, initial, stamp }
            }
            Verb::Touch { expiry } => Request::Touch { key, expiry },
            Verb::GetAndTouch { expiry } => Request::GetAndTouch { key, expiry },
            Verb::Delete { stamp } => Request::Delete { key, stamp },
            Verb::DeleteAll { at } => Request::DeleteAll { at },
        }
    }

    /// The value, for whoever keeps it instead.
    pub fn take_value(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.value)
    }

    pub fn deletes_all(&self) -> bool {
        matches!(self.verb, Verb::DeleteAll { .. })
    }

    pub fn is_get(&self) -> bool {
        matches!(self.verb, Verb::Get)
    }
}

impl<'a> Request<'a> {
    /// The key it is about; empty for [`Request::DeleteAll`].
    pub fn key(&self) -> &'a [u8] {
        match *self {
            Request::Get { key }
            | Request::Put { key, .. }
            | Request::Append { key, .. }
            | Request::Prepend { key, .. }
            | Request::Increment { key, .. }
            | Request::Touch { key, .. }
            | Request::GetAndTouch { key, .. }
            | Request::Delete { key, .. } => key,
            Request::DeleteAll { .. } => &[],
        }
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
