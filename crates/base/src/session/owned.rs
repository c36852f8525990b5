//! A request that has to wait: its bytes, kept.

use crate::request::decide::{Answer, is_counted_as_get, leaves_as_is, unchanged};
use crate::request::item::{Access, ItemHead};
use crate::request::{Outcome, Request, Terms, ValueRange};

#[derive(Debug)]
pub struct OwnedRequest {
    pub key: Vec<u8>,
    value: Vec<u8>,
    /// Without key and value.
    bare: Request<'static>,
    /// It only reads, as far as is known yet.
    reads: bool,
}

impl Default for OwnedRequest {
    fn default() -> OwnedRequest {
        OwnedRequest { key: Vec::new(), value: Vec::new(), bare: Request::Get { key: &[] }, reads: false }
    }
}

impl OwnedRequest {
    /// Becomes a copy of `request`; the room for the key is used again.
    pub fn assign(&mut self, request: &Request<'_>) {
        self.key.clear();
        self.key.extend_from_slice(request.key());
        self.value = request.value().to_vec();
        (self.bare, self.reads) = (request.with(&[], &[]), request.reads());
    }

    pub fn borrow(&self) -> Request<'_> {
        self.bare.with(&self.key, &self.value)
    }

    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// The value, for whoever keeps it instead.
    pub fn take_value(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.value)
    }

    pub fn deletes_all(&self) -> bool {
        matches!(self.bare, Request::DeleteAll { .. })
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
        if let Request::GetAndLease { terms, .. } = self.bare {
            self.reads &= match found {
                Some(item) => leaves_as_is(&self.borrow(), item),
                None => terms.vivify.is_none(),
            };
        }
        self.reads
    }

    /// The answer to a get that found this; not all ask for `access`.
    pub fn found(&self, item: ItemHead, access: impl FnOnce() -> Access, value: ValueRange) -> Outcome {
        match self.bare {
            Request::GetAndLease { .. } => unchanged(item, access(), value),
            _ => Answer::Value.outcome(item, value),
        }
    }

    /// Whether it leaves no trace as a read.
    pub fn is_unnoticed(&self) -> bool {
        matches!(self.bare, Request::GetAndLease { terms: Terms { unnoticed: true, .. }, .. })
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

    pub fn value(&self) -> &'a [u8] {
        match *self {
            Request::Put { value, .. } | Request::Append { value, .. } | Request::Prepend { value, .. } => value,
            _ => &[],
        }
    }

    /// The same about another key, with another value.
    fn with<'b>(self, key: &'b [u8], value: &'b [u8]) -> Request<'b> {
        match self {
            Request::Get { .. } => Request::Get { key },
            Request::GetAndLease { terms, .. } => Request::GetAndLease { key, terms },
            Request::Put { flags, expiry, condition, .. } => Request::Put { key, value, flags, expiry, condition },
            Request::Append { stamp, .. } => Request::Append { key, value, stamp },
            Request::Prepend { stamp, .. } => Request::Prepend { key, value, stamp },
            Request::Increment { delta, decrement, initial, stamp, touch, .. } => {
                Request::Increment { key, delta, decrement, initial, stamp, touch }
            }
            Request::Touch { expiry, .. } => Request::Touch { key, expiry },
            Request::GetAndTouch { expiry, .. } => Request::GetAndTouch { key, expiry },
            Request::Invalidate { stamp, expiry, .. } => Request::Invalidate { key, stamp, expiry },
            Request::Delete { stamp, .. } => Request::Delete { key, stamp },
            Request::DeleteAll { at } => Request::DeleteAll { at },
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
        self.key().len() + self.value().len()
    }
}
