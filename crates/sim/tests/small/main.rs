//! The simulator on a small scale. `make test-simulation` runs more of it, and hunts all planted bugs.

mod device;
mod simulation;
