//! For people who look at a store from outside: check, inspect, scan, locate, repair.

pub mod check;
pub mod inspect;
pub mod locate;
pub mod repair;
pub mod scan;
