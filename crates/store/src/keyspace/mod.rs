//! What callers ask of a store and how they hear of the answer.

pub mod notify;
pub mod request;
