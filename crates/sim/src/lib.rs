//! Deterministic simulation: the production store on a drive that crashes, beside a model that knows every state that a
//! key may be in.
//!
//! One seed decides one [run](mod@run): what sessions ask for, in what order everything moves, where the power fails and what
//! survives of the writes on their way. A run is one thread; several runs may be under way at once, each by itself.

pub mod bugs;
mod depot;
pub mod device;
pub mod exhaustive;
pub mod failed;
pub mod hunt;
mod keyspaces;
pub mod lease;
pub mod model;
pub mod run;
pub mod tally;
mod workload;

pub use run::{Failure, Setup, run};
pub use tally::Tally;
pub use workload::Load;
