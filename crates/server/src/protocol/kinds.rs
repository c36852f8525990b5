//! Kinds of events that `watch` observes, a bit each.

pub const FETCHERS: u8 = 1;
pub const MUTATIONS: u8 = 2;
/// Evictions are not reported one by one: segments are evicted whole, and their keys are not read.
pub const EVICTIONS: u8 = 4;
pub const CONNECTIONS: u8 = 8;
/// `stats detail on`.
pub const DETAIL: u8 = 16;
/// The kinds of events that requests cause.
pub const REQUESTS: u8 = FETCHERS | MUTATIONS | DETAIL;
