//! placeholder
pub mod error;
pub mod request;
pub mod stats;

pub use error::Error;
pub use request::*;
pub use stats::Stats;
